"""The simulator's own routes under `/__sim/`: look at its state, script it, reset it.

Loopback clients only. Called by the app.
"""

from __future__ import annotations

from dataclasses import asdict

from tidegate.simulator.jsontext import JsonObject, NotJson, decode
from tidegate.simulator.script import read_steps
from tidegate.simulator.state import Record, SimulatorState
from tidegate.simulator.transport import Exchange

PREFIX = "/__sim/"
_LOOPBACK = ("127.0.0.1", "::1", "localhost", "testclient", "")


async def serve_admin(exchange: Exchange, state: SimulatorState) -> None:
    """`GET state`, `GET window/N`, `POST script` (one step or a list of them), `POST reset`."""
    if exchange.client not in _LOOPBACK:
        await exchange.json(404, {"error": "not found"})
        return
    match exchange.method, exchange.path.removeprefix(PREFIX).rstrip("/"):
        case "GET", "state":
            await exchange.json(200, state_json(state))
        case "POST", "script":
            try:
                steps = read_steps(decode(await exchange.body(1 << 20)))
            except (NotJson, ValueError) as error:
                await exchange.json(400, {"error": str(error)})
                return
            state.script.push(*steps)
            await exchange.json(200, {"script_left": len(state.script)})
        case "POST", "reset":
            state.reset()
            await exchange.json(200, {"reset": True})
        case "GET", path if path.startswith("window/"):
            await _window(exchange, state, path.removeprefix("window/"))
        case _:
            expected = "GET /__sim/state, GET /__sim/window/N, POST /__sim/script or POST /__sim/reset"
            await exchange.json(404, {"error": f"expected {expected}"})


async def _window(exchange: Exchange, state: SimulatorState, number: str) -> None:
    """The items that the model got in request N."""
    for record in state.records:
        if str(record.number) == number and record.body:
            await exchange.json(200, {"number": record.number, "verdict": record.verdict, "window": record.window()})
            return
    await exchange.json(404, {"error": f"no request {number} is remembered with its body"})


def state_json(state: SimulatorState) -> JsonObject:
    """Counters, violations and requests (their bodies left out), oldest first."""
    return {
        "counters": state.counters(),
        "facts": list(state.facts),
        "violations": [asdict(violation) for violation in state.violations],
        "requests": [_request(record) for record in state.records],
    }


def _request(record: Record) -> JsonObject:
    shown = asdict(record)
    shown["body_bytes"] = len(record.body)
    del shown["body"]
    shown["effective_bytes"] = len(record.effective)
    del shown["effective"]
    return shown
