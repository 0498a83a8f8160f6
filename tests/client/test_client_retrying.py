"""A function that calls a model is called again with fewer messages where it was told that they are too many."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sdks import Here, here
from test_client_compactor import client, talk

import tidegate
from tidegate.simulator import SimulatorSettings

WINDOW = 2000


def compactor(place: Here, dialect: str, *, asynchronous: bool = False) -> tidegate.Compactor:
    made = client(place, dialect, asynchronous=asynchronous)
    return tidegate.Compactor(made, model="m", dialect=dialect, settings=place.given)  # type: ignore[arg-type]


@pytest.mark.parametrize("dialect", ["chat", "messages"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
def test_it_is_called_again_until_it_fits(dialect, asynchronous):
    with here(SimulatorSettings(window=WINDOW)) as place:
        made = client(place, dialect, asynchronous=asynchronous)
        create = made.messages.create if dialect == "messages" else made.chat.completions.create
        sizes: list[int] = []
        retry = tidegate.retry_on_overflow(compactor(place, dialect, asynchronous=asynchronous))

        if asynchronous:

            @retry
            async def ask(messages: list[Any]) -> Any:
                sizes.append(len(messages))
                return await create(model="m", messages=messages, max_tokens=50)

            answer = asyncio.run(ask(talk(20)))
        else:

            @retry
            def ask(messages: list[Any]) -> Any:
                sizes.append(len(messages))
                return create(model="m", messages=messages, max_tokens=50)

            answer = ask(talk(20))
        assert answer.id
        assert sizes == sorted(sizes, reverse=True)
        assert 2 <= len(sizes) <= 3


def test_the_number_of_calls_is_bounded_and_the_overflow_is_told_in_the_end():
    with here(SimulatorSettings(window=WINDOW)) as place:
        calls = []

        @tidegate.retry_on_overflow(compactor(place, "chat"), attempts=2)
        def ask(messages: list[Any]) -> Any:
            calls.append(len(messages))
            raise RuntimeError("This model's maximum context length is 10 tokens, your messages resulted in 900 tokens")

        with pytest.raises(RuntimeError, match="maximum context length"):
            ask(messages=talk(20))
        assert len(calls) == 2


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("Rate limit reached for requests")])
def test_every_other_exception_passes(error):
    with here(SimulatorSettings()) as place:

        @tidegate.retry_on_overflow(compactor(place, "chat"))
        def ask(messages: list[Any]) -> Any:
            raise error

        with pytest.raises(type(error)) as told:
            ask(talk(3))
        assert told.value is error
        assert place.records == []


def test_where_nothing_can_be_made_smaller_the_overflow_is_told():
    with here(SimulatorSettings()) as place:

        @tidegate.retry_on_overflow(compactor(place, "chat"))
        def ask(messages: list[Any]) -> Any:
            raise RuntimeError("prompt is too long: 215692 tokens > 200000 maximum")

        with pytest.raises(RuntimeError, match="prompt is too long"):
            ask([{"role": "user", "content": "hi"}])


OVERFLOW = "This model's maximum context length is 2000 tokens, your messages resulted in 9000 tokens"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("given", [None, "hello", [1, 2], [{"no": "role"}], {"role": "user"}], ids=repr)
def test_what_is_no_list_of_messages_hides_no_overflow(asynchronous, given):
    with here(SimulatorSettings(window=WINDOW)) as place:
        retry = tidegate.retry_on_overflow(compactor(place, "chat", asynchronous=asynchronous))

        @retry
        def ask(messages: Any) -> Any:
            raise RuntimeError(OVERFLOW)

        @retry
        async def awaited(messages: Any) -> Any:
            raise RuntimeError(OVERFLOW)

        with pytest.raises(RuntimeError, match="9000"):
            asyncio.run(awaited(given)) if asynchronous else ask(given)


def test_a_list_that_is_the_functions_own_default_is_made_smaller_too():
    with here(SimulatorSettings(window=WINDOW)) as place:
        own, sizes = talk(20), []

        @tidegate.retry_on_overflow(compactor(place, "chat"))
        def ask(system: str = "", messages: Any = own, **more: Any) -> str:
            sizes.append(len(messages))
            if len(sizes) == 1:
                raise RuntimeError(OVERFLOW)
            return system + str(more)

        assert ask("s", top=1) == "s{'top': 1}"
        assert sizes[1] < sizes[0] == len(own) == len(talk(20))


def test_a_function_without_such_an_argument_is_told_so():
    with (
        here(SimulatorSettings()) as place,
        pytest.raises(TypeError, match="no argument named 'messages'"),
    ):
        tidegate.retry_on_overflow(compactor(place, "chat"))(lambda history: None)
