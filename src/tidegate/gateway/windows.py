"""Asks endpoints how large their models' windows are, and Anthropic's what its models can do: in the background, with
the caller's own credential.

Knows when to ask and when to let it be; what to ask is the provider's file's, what is told goes to the targets. Told by
the gateway's conversations of every answer that an upstream gave.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from tidegate.engine.effects import UpstreamError
from tidegate.gateway.messages import unbound
from tidegate.gateway.targets import Targets
from tidegate.provider_file import Provider, Question
from tidegate.providers import ModelFacts, litellm_facts, told_of, windows_from
from tidegate.upstream.client import Client
from tidegate.upstream.decode import BodyTooLarge, BodyUnreadable, decode_body
from tidegate.upstream.http import Headers, Request, Timeouts

log = logging.getLogger("tidegate.steps")

KEPT: Final = 1024
"""Models of endpoints that are remembered as asked about; the longest unheard of goes first."""
AT_ONCE: Final = 4
"""Endpoints asked at the same time; one of them never twice."""
PATIENCE: Final = 5.0
"""Seconds for one answer."""
LIMIT: Final = 8 << 20
"""Bytes of an answer: OpenRouter's list takes one million."""
AGAIN: Final = 3_600.0
"""Seconds after which what was told is asked again: local servers are started anew with other windows."""
FIRST_WAIT: Final = 60.0
LONGEST_WAIT: Final = 6 * 3_600.0
"""Seconds before an endpoint that told nothing is asked again; four times as long after each further time."""
_TIMEOUTS: Final = Timeouts(connect=3, head=PATIENCE, read=PATIENCE)
_BETA: Final = b"anthropic-beta"
_OF_THE_BODY: Final = frozenset({b"content-type", b"accept", b"accept-encoding"})


class Asking:
    """What was asked of whom, and what is to be asked when. Everything runs on the event loop's thread."""

    def __init__(
        self, targets: Targets, pool: Client, *, enabled: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`pool` is used as long as nothing else is (`Client.beside`); not `enabled`, only litellm's table is read."""
        self._targets = targets
        self._pool = pool
        self._enabled = enabled
        self._clock = clock
        self._due: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._silent: dict[tuple[str, str], int] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._litellm = asyncio.Lock()
        self._closed = False

    def heard(self, provider: Provider, model: str, root: str, headers: Headers) -> None:
        """An endpoint has answered a request for a model with success. Asks it, where that is due, and returns at once.

        `headers` are the request's as they went to that very endpoint, credential included.
        """
        due = self._due.get((root, model))
        if (due is not None and self._clock() < due) or not model or self._closed:
            return
        if root in self._busy or len(self._busy) >= AT_ONCE:
            return  # the next request will do
        for_summaries = (self._targets.summary_model, *self._targets.summary_models)
        names = [name for name in dict.fromkeys((model, *for_summaries)) if self._is_due(root, name)]
        asked = [name for name in names if self._targets.askable(provider, name)]
        for name in names:
            self._next(root, name, math.inf)
        if asked:
            self._busy[root] = asyncio.create_task(self._ask(provider, asked, root, headers))

    def follow(self, targets: Targets, *, enabled: bool) -> None:
        """Tells these from now on, and asks for them what they have not been told."""
        self._targets, self._enabled = targets, enabled
        self._due.clear()
        self._silent.clear()

    async def close(self) -> None:
        """Leaves all questions unanswered."""
        self._closed = True
        for task in list(self._busy.values()):
            task.cancel()
        await self._pool.close()

    def _is_due(self, root: str, model: str) -> bool:
        return bool(model) and self._clock() >= self._due.get((root, model), 0.0)

    def _next(self, root: str, model: str, wait: float) -> None:
        self._due[root, model] = self._clock() + wait
        self._due.move_to_end((root, model))
        if len(self._due) > KEPT:
            gone, _ = self._due.popitem(last=False)
            self._silent.pop(gone, None)

    async def _ask(self, provider: Provider, models: list[str], root: str, headers: Headers) -> None:
        try:
            for model in models:
                self._next(root, model, await self._ask_of(provider, model, root, headers))
        except Exception as error:  # a bug: the type alone, a message may quote what it failed on
            log.warning("windows fault where=asking error=%s", type(error).__name__)
        finally:
            del self._busy[root]

    async def _ask_of(self, provider: Provider, model: str, root: str, headers: Headers) -> float:
        """Asks about a model; seconds until it may be asked about again."""
        questions = provider.questions(model, root) if self._enabled else ()
        for question in questions:
            if urlsplit(question.url)[:2] != urlsplit(root)[:2]:
                continue  # the credential belongs to the endpoint it came for
            try:
                facts = await self._answer(question, model, headers)
            except (UpstreamError, BodyUnreadable, BodyTooLarge, TimeoutError):
                log.debug("windows endpoint=%s model=%r api=%s: no answer", root, model, question.api)
                break  # nor will it answer the next
            if facts.tells:
                self._targets.tell(root, model, facts, time.time())
                log.debug(
                    "windows endpoint=%s model=%r api=%s window=%s input_limit=%s on_demand=%s threshold=%s clears=%s",
                    root, model, question.api, facts.window, facts.input_limit,
                    facts.on_demand, facts.threshold, facts.clears,
                )  # fmt: skip
                # Ollama: a model that is not loaded tells what it was trained with, which may not be what it is given.
                return self._wait(root, model) if question.api == "show" else self._told(root, model)
        if not self._targets.borrowed(provider, model).window:
            await self._guess(provider, model, root)
        return self._wait(root, model) if questions else math.inf

    async def _answer(self, question: Question, model: str, headers: Headers) -> ModelFacts:
        """What one answer tells of the model; nothing where it is another than 200."""
        kept = [(name, value) for name, value in unbound(headers) if name.lower() not in _OF_THE_BODY]
        if question.betas:
            named = [value for name, value in kept if name.lower() == _BETA]
            kept = [(name, value) for name, value in kept if name.lower() != _BETA]
            kept.append((_BETA, b",".join([*named, *(beta.encode() for beta in question.betas)])))
        kept.append((b"accept", b"application/json"))
        if question.body:
            kept.append((b"content-type", b"application/json"))
        async with asyncio.timeout(PATIENCE):
            response = await self._pool.send(
                Request(question.method, question.url, kept, question.body or None), _TIMEOUTS
            )
            try:
                body = await response.read_all(LIMIT)
            finally:
                await response.close()
        if response.status != 200:
            return ModelFacts()
        encodings = [value.decode("latin-1") for name, value in response.headers if name.lower() == b"content-encoding"]
        plain = decode_body(body, ", ".join(encodings), LIMIT) if encodings else body
        return told_of(await asyncio.to_thread(windows_from, question.api, plain), model)

    async def _guess(self, provider: Provider, model: str, root: str) -> None:
        """What litellm's table says, where it is installed."""
        async with self._litellm:  # its table is read once
            facts = await asyncio.to_thread(litellm_facts, model, provider.name)
        if facts.sized:
            self._targets.tell(root, model, facts)
            log.debug("windows endpoint=%s model=%r api=litellm input_limit=%s", root, model, facts.input_limit)

    def _told(self, root: str, model: str) -> float:
        self._silent.pop((root, model), None)
        return AGAIN

    def _wait(self, root: str, model: str) -> float:
        times = self._silent.get((root, model), 0)
        self._silent[root, model] = times + 1
        return float(min(LONGEST_WAIT, FIRST_WAIT * 4 ** min(times, 8)))
