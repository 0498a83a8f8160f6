"""Calls of one's own that are made again with fewer messages where the provider says that they are too many.

Knows functions and tenacity; what a refusal means is the classifier's to say. Public.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from tidegate.client.compactor import Compactor
from tidegate.client.lists import CompactedMessages
from tidegate.compactors.strategy import CompactionFailed
from tidegate.providers import classify

P = ParamSpec("P")
T = TypeVar("T")


def retry_on_overflow(
    compactor: Compactor, *, argument: str = "messages", attempts: int = 3
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function, blocking or not, that takes a list of messages and calls a model with it.

    Where it raises what means that the input is too long for the window, the list is compacted to half and the function
    is called with the smaller one, up to `attempts` calls in all. Every other exception passes; so does the overflow
    itself, where nothing can be made smaller. Raises `TypeError` where the function has no such argument.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        if argument not in signature.parameters:
            raise TypeError(f"{function.__name__} has no argument named {argument!r}; name it with argument=...")
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> object:
                call = _Call(signature.bind(*args, **kwargs), argument)

                async def compact(refused: RetryCallState) -> None:
                    made = None
                    with suppress(CompactionFailed, ValueError):  # a list of another dialect's is not made smaller
                        made = await compactor.compact(call.messages, force=True, target_tokens=call.aim)
                    call.go_on(made, refused)

                again = AsyncRetrying(
                    retry=retry_if_exception(call.may_go_on), stop=stop, before_sleep=compact, reraise=True
                )

                async def once() -> object:
                    return await cast(Awaitable[object], function(*call.given.args, **call.given.kwargs))

                return await again(once)

            return cast(Callable[P, T], awaited)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            call = _Call(signature.bind(*args, **kwargs), argument)

            def compact(refused: RetryCallState) -> None:
                made = None
                with suppress(CompactionFailed, ValueError):  # a list of another dialect's is not made smaller
                    made = compactor.compact_sync(call.messages, force=True, target_tokens=call.aim)
                call.go_on(made, refused)

            again = Retrying(retry=retry_if_exception(call.may_go_on), stop=stop, before_sleep=compact, reraise=True)
            return again(lambda: function(*call.given.args, **call.given.kwargs))

        return called

    stop = stop_after_attempt(max(1, attempts))
    return decorate


class _Call:
    """One call of a decorated function, and the list that it is made with."""

    def __init__(self, given: inspect.BoundArguments, argument: str) -> None:
        given.apply_defaults()
        self.given, self._argument = given, argument
        self.aim: int | None = None
        """Tokens to bring the list down to: half of the window, where the refusal told it."""

    @property
    def messages(self) -> Any:
        """The list, as it is by now."""
        return self.given.arguments[self._argument]

    def may_go_on(self, error: BaseException) -> bool:
        """Whether what was raised means that a smaller list is worth a try."""
        if not isinstance(error, Exception) or not isinstance(self.messages, list | tuple):
            return False
        verdict = classify(error)
        limit = verdict.input_limit or verdict.window
        self.aim = limit // 2 if limit else None
        return verdict.action == "compact"

    def go_on(self, made: CompactedMessages | None, refused: RetryCallState) -> None:
        """Takes the smaller list. Raises what the call raised where there is none."""
        if made is not None and made.tokens_after < made.tokens_before:
            self.given.arguments[self._argument] = made.messages
        elif refused.outcome is not None:
            refused.outcome.result()  # raises it
