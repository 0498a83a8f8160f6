"""`POST /tidegate/v1/compact`: compacts a request's history because somebody asks for it, and sends nothing on.

Knows how such a request is told; the compaction is the engine's, the same as any. Called by the app.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

from tidegate.compactors.strategy import CompactionFailed
from tidegate.context.policies import NAMED
from tidegate.drive.aio import Driver
from tidegate.engine.exchange import Compacted, requested
from tidegate.gateway.arrival import Arrival, Receive
from tidegate.gateway.asgi import AsgiClient
from tidegate.gateway.conversations import Conversations, Crossing
from tidegate.gateway.kit import with_focus
from tidegate.gateway.receiving import while_connected, whole_body
from tidegate.gateway.routes import Route
from tidegate.gateway.targets import no_such
from tidegate.wire import REQUESTS
from tidegate.wire.conversation import DialectName, JsonObject
from tidegate.wire.jsontext import dumps, loads

PATH: Final = "/tidegate/v1/compact"


async def compact(
    house: Conversations, arrival: Arrival, client: AsgiClient, receive: Receive, route: Callable[[str], Route]
) -> None:
    """Answers with the compacted body and what is stored, or says that it is unchanged and why.

    The query may say `api` (`chat`, `responses`, `messages`), `provider`, `policy`, `focus` and `target_tokens`. Raises
    `NoProvider`, `BodyTooLarge` and `ClientGone`.
    """
    asked = {name: values[-1] for name, values in parse_qs(arrival.query.decode("latin-1")).items()}
    body = await whole_body(arrival, receive, house.body_limit)
    dialect = _dialect(asked.get("api", ""), body, arrival)
    if dialect is None:
        await client.fail(400, "Say which API the body is of: ?api=chat, responses or messages.", "unknown_api")
        return
    client.dialect = dialect
    aim = asked.get("target_tokens", "")
    if aim and not (aim.isdigit() and int(aim) > 0):
        await client.fail(400, "target_tokens must be a whole number, at least 1.", "bad_target_tokens")
        return
    policy = asked.get("policy", "")
    if policy and policy not in NAMED:
        await client.fail(400, f"There is no such policy. Known: {', '.join(NAMED)}.", "unknown_policy")
        return
    path = f"/v1{REQUESTS[dialect].PATH}"
    provider = asked.get("provider", "")
    where = route(f"/{provider}{path}" if provider else path)
    if where.kind == "unknown_provider":
        raise no_such(provider, house.targets.catalogue)
    crossing = Crossing(house, Arrival("POST", path, b"", arrival.headers), where, dialect, body)
    crossing.life.close()
    request = crossing.asked()
    if request is None:
        await client.fail(400, f"The body is no request of the {dialect} API that can be read.", "unreadable_body")
        return
    if policy:
        request = request.to(house.targets.under(request.target, dialect, policy))
    kit = with_focus(house.kit, asked.get("focus", ""))
    upstream = crossing.upstream.telling(crossing.heard)
    driver = Driver(dialect, upstream, client, house.store, house.flights, house.pace, crossing.notify)

    async def work() -> None:
        try:
            made = await driver.result(requested(request, kit, aim=int(aim) if aim else None))
        except CompactionFailed as error:
            told: JsonObject = {"unchanged": True, "reason": error.reason}
            await client.answer(200, dumps(told), "requested")
            return
        await client.answer(200, _told(made), "requested")

    await while_connected(work(), receive, lambda: client.ended)


def _told(made: Compacted) -> bytes:
    checkpoint, result = made.view.checkpoint, made.made.result if made.made is not None else None
    facts: JsonObject = {
        "id": checkpoint.id if checkpoint else "",
        "strategy": checkpoint.strategy if checkpoint else "",
        "items": made.view.covered,
        "tokens_before": made.before,
        "tokens_after": made.after,
        "calls": result.calls if result else 0,
        "input_tokens": result.input_tokens if result else 0,
        "output_tokens": result.output_tokens if result else 0,
    }
    # The body as it would be sent, byte for byte: not written anew.
    return b'{"unchanged":false,"checkpoint":' + dumps(facts) + b',"body":' + made.view.body + b"}"


def _dialect(api: str, body: bytes, arrival: Arrival) -> DialectName | None:
    """The API that is named, or, where none is, that of the body's fields and the headers; None where neither tells."""
    if api:
        return next((dialect for dialect in REQUESTS if dialect == api), None)
    try:
        value = loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return None
    if "input" in value:
        return "responses"
    if "messages" not in value:
        return None
    return "messages" if arrival.header(b"anthropic-version") is not None else "chat"
