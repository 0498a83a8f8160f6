"""Calls of one's own that are made again with fewer messages where the provider says that they are too many.

Knows functions and tenacity; what a refusal means is the classifier's to say. Public.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from tenacity import AsyncRetrying, Retrying, retry_if_exception_type, stop_after_attempt

from tidegate.client.compactor import Compactor
from tidegate.client.lists import CompactedMessages
from tidegate.compactors.strategy import CompactionFailed
from tidegate.providers import classify

P = ParamSpec("P")
T = TypeVar("T")


class _Smaller(Exception):
    """The call was too long, and there is a smaller list to make it with."""


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
                call = _Call(signature.bind(*args, **kwargs), argument, attempts)

                async def once() -> object:
                    try:
                        return await cast(Awaitable[object], function(*call.given.args, **call.given.kwargs))
                    except Exception as error:
                        if not call.may_go_on(error):
                            raise
                        told = error
                    made = None
                    with suppress(CompactionFailed):
                        made = await compactor.compact(call.messages, force=True, target_tokens=call.aim)
                    call.go_on(made, told)
                    raise _Smaller

                return await AsyncRetrying(retry=retry_if_exception_type(_Smaller), stop=stop, reraise=True)(once)

            return cast(Callable[P, T], awaited)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            call = _Call(signature.bind(*args, **kwargs), argument, attempts)

            def once() -> T:
                try:
                    return function(*call.given.args, **call.given.kwargs)
                except Exception as error:
                    if not call.may_go_on(error):
                        raise
                    told = error
                made = None
                with suppress(CompactionFailed):
                    made = compactor.compact_sync(call.messages, force=True, target_tokens=call.aim)
                call.go_on(made, told)
                raise _Smaller

            return Retrying(retry=retry_if_exception_type(_Smaller), stop=stop, reraise=True)(once)

        return called

    stop = stop_after_attempt(max(1, attempts))
    return decorate


class _Call:
    """One call of a decorated function, and the list that it is made with."""

    def __init__(self, given: inspect.BoundArguments, argument: str, attempts: int) -> None:
        self.given, self._argument, self._left = given, argument, attempts
        self.aim: int | None = None
        """Tokens to bring the list down to: half of the window, where the refusal told it."""

    @property
    def messages(self) -> Any:
        """The list, as it is by now."""
        return self.given.arguments[self._argument]

    def may_go_on(self, error: Exception) -> bool:
        """Whether what was raised means that a smaller list is worth a try."""
        self._left -= 1
        verdict = classify(error)
        limit = verdict.input_limit or verdict.window
        self.aim = limit // 2 if limit else None
        return self._left > 0 and verdict.action == "compact"

    def go_on(self, made: CompactedMessages | None, error: Exception) -> None:
        """Takes the smaller list. Raises what was told where there is none."""
        if made is None or made.tokens_after >= made.tokens_before:
            raise error
        self.given.arguments[self._argument] = made.messages
