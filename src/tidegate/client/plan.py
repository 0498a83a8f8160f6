"""A compaction whose calls its caller makes: what to ask, and what comes of the answers.

Knows effects and the shapes of answers; asks nobody. Made by `Compactor.plan`. Public.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, cast

from tidegate.client.lists import NOTHING, CompactedMessages, Listed, as_json
from tidegate.compactors.strategy import Call, CompactionFailed, Reply
from tidegate.drive.rehearsal import answer
from tidegate.engine.checkpoint import Checkpoint, Store
from tidegate.engine.effects import Compact, Effect, Find, Made, Save, Work
from tidegate.engine.exchange import Compacted
from tidegate.overflow import raised
from tidegate.wire.jsontext import dumps, loads

Asked: TypeAlias = Generator[Effect, object, Compacted | None]

STREAMED = ("stream", "stream_options")
"""Fields by which an answer comes in pieces: whoever makes the calls takes it whole."""


class Plan:
    """A compaction that is due, and has not been made.

    `request` is the body of the call to be made next, None once there is none; `take` is given what came of it. As long
    as `request` is there the next call is still to be made (one that was refused for its length is asked in halves);
    then `made` is the result, and stored as any other. Listeners hear nothing of it. Used by one thread at a time.
    """

    def __init__(self, given: Listed, life: Asked, store: Store, lock: AbstractContextManager[object]) -> None:
        self.request: dict[str, Any] | None = None
        """In the dialect of the messages, with an output limit; not to be streamed."""
        self.made: CompactedMessages | None = None
        """None until it is made, or where it turned out that the list stays as it is."""
        self._given, self._life, self._store, self._lock = given, life, store, lock
        self._work: Work | None = None
        self._go_on(None)

    def take(self, reply: object) -> CompactedMessages | None:
        """What came of the call: an answer as the SDK or JSON has it, the summary's text, or the exception that was
        raised.

        Returns `made`, None where another call is to be made. Raises `CompactionFailed` where nothing can be made of
        it, and `ValueError` where there was no call to be made.
        """
        if self._work is None:
            raise ValueError("this plan has no call to be made")
        self._asks(_reply(self._given, reply))
        return self.made

    def _asks(self, reply: Reply | None) -> None:
        """Goes on with what is being made, to its next call or its end."""
        work = self._work
        assert work is not None
        try:
            with self._lock:
                call = next(work) if reply is None else work.send(reply)
        except StopIteration as end:
            self._work = self.request = None
            self._go_on(end.value)
        except CompactionFailed as error:
            self._work = self.request = None
            self._go_on(error)
        else:
            self.request = _body(call)

    def _go_on(self, result: Made | CompactionFailed | None) -> None:
        """Goes on with the exchange, to where somebody has to be asked or to its end."""
        found: object = result
        try:
            while True:
                with self._lock:
                    failed = isinstance(found, Exception)
                    effect = self._life.throw(cast(Exception, found)) if failed else self._life.send(found)
                if isinstance(effect, Compact):
                    self._work = effect.work()
                    return self._asks(None)
                found = self._performed(effect)
        except StopIteration as end:
            self.made = self._given.told(end.value)
        except CompactionFailed as error:
            if error.reason not in NOTHING:
                raise
        return None

    def _performed(self, effect: Effect) -> object:
        try:
            match effect:
                case Find(tenant=tenant, bucket=bucket, chains=chains):
                    return self._store.find(tenant, bucket, chains) if bucket else None
                case Save(record=record) if isinstance(record, Checkpoint):
                    self._store.save(record)
        except Exception as error:
            return error  # told to the exchange, which knows what to do without a store
        return None


def _body(call: Call) -> dict[str, Any]:
    body = loads(call.body)
    assert isinstance(body, dict)
    return {key: value for key, value in body.items() if key not in STREAMED}


def _reply(given: Listed, reply: object) -> Reply:
    if isinstance(reply, BaseException):
        told = raised.read(reply).refusal
        if told.status is None or told.status < 400:
            return Reply(0, error=type(reply).__name__)
        words = told.body if isinstance(told.body, bytes) else told.body.encode("utf-8", "replace")
        return Reply(told.status, words, told.headers or {})
    body = answer(given.dialect, given.model, reply, 0, 0) if isinstance(reply, str) else as_json(reply)
    if not isinstance(body, Mapping):
        raise TypeError(f"an answer is an object of the SDK's, a mapping or a text, not a {type(reply).__name__}")
    return Reply(200, dumps(cast(Any, body)), {"content-type": "application/json"})
