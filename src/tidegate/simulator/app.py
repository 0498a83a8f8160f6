"""The simulated provider: an ASGI app that speaks the three APIs, judges each request and answers it.

Knows the order of things (key, body, rules, script, window, answer) and leaves each to its module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Protocol

from tidegate.simulator import (
    admin,
    betas,
    catalog,
    chat,
    compact_path,
    doors,
    messages,
    messages_compaction,
    model,
    responses,
    responses_compaction,
    stored,
    summarizer,
    tokens,
)
from tidegate.simulator.faults import BREAKING, break_off, early_fault, failing
from tidegate.simulator.jsontext import JsonObject, NotJson, decode, encode
from tidegate.simulator.measuring import measure, note_window, refusal_of
from tidegate.simulator.minting import Mint
from tidegate.simulator.profiles import Profile, error_body, profile_for
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.routes import Route, locate, route_of
from tidegate.simulator.script import Script, Step
from tidegate.simulator.settings import SimulatorSettings
from tidegate.simulator.state import Outcome, Record, SimulatorState
from tidegate.simulator.stream import HEARTBEATS, Frame, pieces, write
from tidegate.simulator.transport import Exchange, Gone, Receive, Scope, Send
from tidegate.simulator.turn import DialectName, Reply, Turn, Usage
from tidegate.simulator.world import Desk, World


class Api(Protocol):
    """What each API's module does."""

    def read(self, body: JsonObject, desk: Desk) -> Turn:
        """Raises `Refusal` where the body breaks a rule."""
        ...

    def drop_oldest(self, turn: Turn) -> bool:
        """Shortens the conversation from its beginning; False where nothing may go."""
        ...

    def answer(self, turn: Turn, reply: Reply, usage: Usage, desk: Desk) -> JsonObject:
        """The whole answer."""
        ...

    def frames(self, turn: Turn, whole: JsonObject, desk: Desk) -> Iterator[Frame]:
        """The whole answer as events."""
        ...

    def error_frames(self, error: JsonObject, event: str, sequence: int) -> Iterator[Frame]:
        """An error body as the events that end a stream."""
        ...


APIS: dict[DialectName, Api] = {"chat": chat, "responses": responses, "messages": messages}
COUNTERS: dict[str, Callable[..., Turn]] = {"responses": responses.read, "messages": messages.read}


_OUTCOMES: dict[str, Outcome] = {"overflow": "overflow", "script": "faulted"}


class SimulatorApp:
    """An ASGI app with `.state` and `.settings`."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.world = World(settings, Mint(settings.seed))
        self.state = SimulatorState(Script(settings.script), settings.keep_requests, settings.keep_bytes)
        self.state.on_reset(self.world.clear)
        self._random = Random(settings.seed)  # noqa: S311 - breaks streams into pieces

    def configure(self, settings: SimulatorSettings) -> None:
        """Takes other settings for the requests to come; what was minted stays valid."""
        self.settings = self.world.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one HTTP request (ASGI)."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        try:
            if exchange.path.startswith(admin.PREFIX):
                await admin.serve_admin(exchange, self.state)
            else:
                await self._serve(exchange)
        finally:
            exchange.close()

    async def _serve(self, exchange: Exchange) -> None:
        door = doors.find(exchange.path, self.settings.profile)
        path, name = (door.path, door.profile) if door else locate(exchange.path, self.settings.profile)
        route = route_of(path, name)
        dialect = route.dialect if route else _guess(exchange)
        profile = profile_for(name, dialect)
        record = Record(0, exchange.path, dialect, "other", tuple(exchange.headers))
        try:
            record.body = await exchange.body(self.settings.max_body)
            self.state.begin(record)
            self._admit(exchange, profile)
            if path == "/models" or path.startswith("/models/"):
                record.kind = "models"
                found = catalog.models(path, self.settings, profile, exchange.headers)
                record.status, record.outcome = 200, "answered"
                await exchange.json(200, found)
                return
            desk = self._desk(exchange, profile, record)
            if route is None and stored.serves(exchange.method, path, desk):
                body = _object(record.body) if record.body else {}
                await exchange.json(200, stored.serve(exchange.method, path, body, desk))
                record.outcome = "answered"
                return
            if route is None or exchange.method != "POST":
                raise catalog.no_such_path(exchange, route is not None, profile)
            await self._judge(exchange, route, desk, record, door)
        except Refusal as refusal:
            if not record.number:
                self.state.begin(record)
            await self._refuse(exchange, record, dialect, profile, refusal)
        except Gone:
            record.outcome = "cancelled"
        finally:
            record.status = exchange.status

    def _admit(self, exchange: Exchange, profile: Profile) -> None:
        """Raises the provider's refusal of a missing or wrong key."""
        key = exchange.key
        keys = self.settings.keys
        if key and (not keys or key in keys):
            return
        if not key and not keys and not profile.needs_key:
            return
        body = profile.wrong_key if key or not profile.unauthorized else profile.unauthorized
        raise Refusal("no such key", rule="auth", status=profile.auth_status, kind="auth", shaped=body)

    def _desk(self, exchange: Exchange, profile: Profile, record: Record) -> Desk:
        record.org = self.settings.orgs.get(exchange.key, "")
        return Desk(self.world, profile, org=record.org, key=exchange.key)

    async def _judge(
        self, exchange: Exchange, route: Route, desk: Desk, record: Record, door: doors.Door | None
    ) -> None:
        """Reads a request, then refuses it, plays its scripted step, or answers it."""
        profile = desk.profile
        if route.compacts and await compact_path.absent(exchange, desk):
            record.kind, record.outcome, record.refusal = "compaction", "refused", "no-compact-path"
            return
        if route.compacts and desk.compact_path == "404":
            raise catalog.no_such_path(exchange, False, profile)
        turn, desk = self._read(exchange, route, desk, record, door)
        step = self.state.script.take(route.name, record.kind)
        if step is None and not route.counts and messages_compaction.due(turn):
            step = self.state.script.take(route.name, "compaction")
        record.step = step.do if step else ""
        if route.counts and not (step and step.do in BREAKING):
            record.status, record.outcome = 200, "answered"
            counted = catalog.counted(turn, self.settings.usage_factor)
            await exchange.json(200, door.count(counted) if door else counted)
            return
        if step is not None and step.delay:
            await self._wait(exchange, turn, step.delay)
        if step is not None and step.do in BREAKING and await early_fault(exchange, turn, step, profile):
            record.outcome = "faulted"
            return
        refusal = refusal_of(turn, record, step, desk, APIS[turn.dialect].drop_oldest)
        if refusal is not None:
            event = step.event if step else "error"
            in_stream = turn.stream and (
                step.in_stream if step and step.do == "overflow" else self.settings.overflow_in_stream
            )
            if not in_stream:
                raise refusal
            record.outcome, record.refusal = "overflow", refusal.rule
            await self._stream(exchange, turn, self._failing(turn, desk, refusal, event, step.after if step else None))
            return
        await self._answer(exchange, turn, desk, record, step)

    def _read(
        self, exchange: Exchange, route: Route, desk: Desk, record: Record, door: doors.Door | None
    ) -> tuple[Turn, Desk]:
        """What a request asks for, and the desk with the betas that it names. Raises `Refusal`."""
        profile = desk.profile
        body = _object(record.body)
        body = door.body(body) if door else body
        if route.dialect == "messages":
            named = body.pop("anthropic_beta", None) if profile.name == "bedrock" else None
            asked = betas.asked(exchange.headers.get("anthropic-beta", ""), named)
            desk = replace(desk, betas=asked & desk.habits.betas)
        record.stream, record.model = bool(body.get("stream")), str(body.get("model") or "")
        if route.dialect == "messages" and profile.name == "anthropic" and "anthropic-version" not in exchange.headers:
            raise Refusal("anthropic-version: header is required", rule="version-header")
        if route.counts:
            record.kind = "count"
            turn = COUNTERS[route.dialect](body, desk, counting=True)
        elif route.compacts:
            record.kind = "compaction"
            turn = responses.read(body, desk, compacting=True)
        else:
            turn = APIS[route.dialect].read(body, desk)
            compacts = turn.compaction or (turn.managed is not None and turn.managed.on_demand)
            record.kind = "compaction" if compacts else "summary" if summarizer.find(turn) else "main"
        turn.framing = door.framing if door else "sse"
        note_window(turn, record)
        if turn.managed is not None and turn.managed.changed:
            record.effective, record.verdict = encode(turn.items), turn.managed.verdict
        measure(turn, record, self.world)
        if messages_compaction.alone(turn):
            record.kind = "compaction"
        return turn, desk

    async def _answer(self, exchange: Exchange, turn: Turn, desk: Desk, record: Record, step: Step | None) -> None:
        whole = messages_compaction.compact(turn, desk, step)
        if turn.managed is not None and turn.managed.verdict:
            record.verdict = turn.managed.verdict
            record.effective = encode(turn.items) if turn.managed.changed else b""
        facts = model.facts_in(model.context(turn))
        if whole is not None:
            record.facts = facts
            await self._deliver(exchange, turn, desk, record, step, whole)
            return
        if turn.compaction:
            said = responses_compaction.reply(turn, step, desk)
        else:
            said = model.cut(turn, model.reply(turn, facts, step, self.settings), self.settings)
            said = responses_compaction.in_band(turn, said, step, desk)
        if said.compacted is not None or turn.compaction:
            record.verdict = "compacted" if said.compacted and said.compacted.copies else "failed: no item"
        factor = self.settings.usage_factor
        output = tokens.scale(model.size(said), factor)
        thought = min(tokens.scale(tokens.words(said.thinking), factor), output)
        usage = Usage(turn.input_tokens, output, turn.cached_tokens, thought)
        if step is not None and step.usage:
            usage = Usage(step.usage.get("input", usage.input), step.usage.get("output", usage.output))
        whole = APIS[turn.dialect].answer(turn, said, usage, desk)
        record.output_tokens, record.facts = output, facts
        await self._deliver(exchange, turn, desk, record, step, whole)

    async def _deliver(
        self, exchange: Exchange, turn: Turn, desk: Desk, record: Record, step: Step | None, whole: JsonObject
    ) -> None:
        """Sends an answer, in one or as a stream, or breaks it off as the script has it."""
        delay = self.settings.delay + (self.settings.responses_compaction.seconds if turn.compaction else 0)
        delay += self.settings.context.seconds if turn.managed and turn.managed.iterations else 0
        if delay:
            await self._wait(exchange, turn, delay)
        if step is not None and step.do in BREAKING:
            record.outcome = "faulted"
            frames = list(APIS[turn.dialect].frames(turn, whole, desk)) if turn.stream else []
            await break_off(
                exchange, turn, step, desk, whole, self._bytes(frames, turn), APIS[turn.dialect].error_frames
            )
            return
        if turn.stream:
            await self._stream(exchange, turn, APIS[turn.dialect].frames(turn, whole, desk))
        else:
            await exchange.json(200, whole, self._headers(turn.dialect))
        record.outcome = "answered"

    def _failing(self, turn: Turn, desk: Desk, refusal: Refusal, event: str, after: int | None) -> Iterator[Frame]:
        """A stream that begins, as this answer would have, and then reports the refusal."""
        error = error_body(desk.profile, turn.dialect, refusal, desk.world.mint.id("req_"))
        api = APIS[turn.dialect]
        whole = api.answer(turn, Reply(text=" "), Usage(turn.input_tokens, 1), desk)
        # Only the Responses API says that it has begun before it looks at the input's size.
        opening = (2 if turn.dialect == "responses" else 0) if after is None else after
        yield from failing(
            api.frames(turn, whole, desk), opening, lambda sequence: api.error_frames(error, event, sequence)
        )

    async def _stream(self, exchange: Exchange, turn: Turn, frames: Iterator[Frame]) -> None:
        if not exchange.status:
            await exchange.start(200, self._stream_headers(turn))
        for first, data in enumerate(self._bytes(list(frames), turn)):
            if first and self.settings.gap:
                await self._wait(exchange, turn, self.settings.gap)
            for piece in pieces(data, self.settings.chunk_bytes, self._random):
                await exchange.part(piece)
        await exchange.end()

    def _bytes(self, frames: list[Frame], turn: Turn) -> list[bytes]:
        return [write(frame, crlf=self.settings.crlf, framing=turn.framing) for frame in frames]

    async def _wait(self, exchange: Exchange, turn: Turn, seconds: float) -> None:
        """Waits; in a stream with heartbeats, says so meanwhile."""
        beat = self.settings.heartbeat
        if not (turn.stream and beat):
            await exchange.wait(seconds)
            return
        if not exchange.status:
            await exchange.start(200, self._stream_headers(turn))
        while seconds > 0:
            await exchange.wait(min(beat, seconds))
            seconds -= beat
            if seconds > 0:
                await exchange.part(self._bytes([HEARTBEATS[turn.dialect]], turn)[0])

    async def _refuse(
        self, exchange: Exchange, record: Record, dialect: DialectName, profile: Profile, refusal: Refusal
    ) -> None:
        record.outcome = _OUTCOMES.get(refusal.kind, "refused")
        record.refusal = refusal.rule
        if refusal.kind in ("rule", "body", "output_limit"):
            self.state.violated(record, refusal.rule, refusal.message, refusal.param)
        request_id = self.world.mint.id("req_")
        body = error_body(profile, dialect, refusal, request_id)
        if exchange.status:
            # A heartbeat has begun the stream: the refusal can only come as an event.
            for frame in APIS[dialect].error_frames(body, "error", 0):
                await exchange.part(write(frame, crlf=self.settings.crlf))
            await exchange.end()
            return
        headers = [*self._headers(dialect, request_id), *refusal.headers.items()]
        await exchange.json(refusal.status, body, headers)

    def _headers(self, dialect: DialectName, request_id: str = "") -> list[tuple[str, str]]:
        name = "request-id" if dialect == "messages" else "x-request-id"
        return [(name, request_id or self.world.mint.id("req_"))]

    def _stream_headers(self, turn: Turn) -> list[tuple[str, str]]:
        amazon = turn.framing == "eventstream"
        kind = "application/vnd.amazon.eventstream" if amazon else "text/event-stream; charset=utf-8"
        return [("content-type", kind), ("cache-control", "no-cache"), *self._headers(turn.dialect)]


def create_app(settings: SimulatorSettings | None = None) -> SimulatorApp:
    """The simulated provider as an ASGI app; what it saw is in its `.state`."""
    return SimulatorApp(settings or SimulatorSettings())


def _object(data: bytes) -> JsonObject:
    try:
        body = decode(data)
    except NotJson:
        text = "We could not parse the JSON body of your request."
        raise Refusal(text, rule="json", kind="body") from None
    if not isinstance(body, dict):
        raise Refusal("The request body is not a JSON object.", rule="json", kind="body")
    return body


def _guess(exchange: Exchange) -> DialectName:
    """Whose error shape a client of an unknown path expects."""
    return "messages" if "anthropic-version" in exchange.headers else "chat"
