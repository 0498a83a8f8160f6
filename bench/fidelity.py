"""What an agent's long session costs under each policy, and what is left of its facts: in process, through the engine.

    python bench/fidelity.py                 400 turns, each policy as it is, and all from the same threshold
    python bench/fidelity.py --turns 120 --window 40000

The history is made by rule: tool calls and their results, edits, questions, facts and decisions with markers, some of
them changed later. The summarizer is the simulator's, which keeps the markers that it is shown while its room lasts.
docs/benchmarks.md explains the columns. Ends with status 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rig.verdicts import table
from tidegate.compactors.strategy import Call
from tidegate.compactors.summary import Options, default_options
from tidegate.context.fingerprint import Hasher
from tidegate.context.ledger import Ledger
from tidegate.context.policies import NAMED, Named, at_work
from tidegate.drive import rehearsal
from tidegate.engine.request import Kit, Request, Target
from tidegate.engine.router import Wanted
from tidegate.overflow.classify import classify
from tidegate.overflow.window import Windows
from tidegate.providers import load
from tidegate.simulator import summarizer, tokens
from tidegate.store import MemoryStore
from tidegate.wire.conversation import DialectName

HASHER = Hasher(b"b" * 32)
TENANT = HASHER.tenant(b"sk-bench")
CATALOGUE = load()
MODEL = "gpt-5.4"
FRESH = 20
"""Tool results that an agent at work still looks at."""
THRESHOLD = 85
"""Percent of the window, where all policies are to begin at the same size."""

Json = dict[str, Any]


# -- the session ------------------------------------------------------------------------------------------------------


@dataclass
class Script:
    """An agent's session by rule: the same for everybody."""

    messages: list[Json] = field(default_factory=list)
    planted: list[str] = field(default_factory=list)
    """Facts and decisions, each a sentence that begins with its marker; one that was taken back is its newest word."""
    decided: dict[int, int] = field(default_factory=dict)
    """By module: where its decision stands among them."""

    def plant(self, words: str) -> str:
        said = f"FACT-{self.count + 1000} {words}"
        self.count += 1
        self.planted.append(said)
        return f"{said}."

    def decide(self, module: int, words: str) -> str:
        if module in self.decided:
            self.planted[self.decided[module]] = said = f"FACT-{self.count + 1000} {words}"
            self.count += 1
            return f"{said}."
        self.decided[module] = len(self.planted)
        return self.plant(words)

    count: int = 0


def session(turns: int, seed: int = 7) -> Iterator[Script]:
    """The history as it stands when each turn's request goes out."""
    chance, script = random.Random(seed), Script()
    script.messages.append({"role": "system", "content": "You are a coding agent. " + _words(chance, 300)})
    for turn in range(turns):
        if turn % 20 == 0:
            if turn:
                script.messages.append(
                    {"role": "assistant", "content": f"Part {turn // 20} is done. {_words(chance, 40)}"}
                )
            fact = script.plant(f"the service of part {turn} listens on port {8000 + turn}")
            words = f"Please do part {turn // 20 + 1}. {fact} {_words(chance, 120)}"
            script.messages.append({"role": "user", "content": words})
        script.messages += _round(script, chance, turn)
        yield script


def _round(script: Script, chance: random.Random, turn: int) -> list[Json]:
    """A call and its result: mostly reading, every third an edit; every tenth holds a decision, some of them new."""
    name, arguments = "read", {"path": f"src/part_{turn % 37}.py"}
    if turn % 3 == 2:
        name = "edit"
        arguments = {"path": f"src/part_{turn % 37}.py", "old": _words(chance, 30), "new": _words(chance, 90)}
    said = None
    if turn % 10 == 5:
        said = script.decide(turn // 10, f"we keep module {turn // 10} as it is, since tests depend on it")
    elif turn % 50 == 39:
        said = script.decide(turn // 10 - 1, f"module {turn // 10 - 1} is split after all, not kept as it is")
    call = {"id": f"call_{turn}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    size = chance.choice((60, 200, 400, 400, 900)) if name == "read" else 25
    found = script.plant(f"line {17 * turn % 400} of part {turn % 37} is wrong") + "\n" if turn % 4 == 0 else ""
    result = f"{name} {arguments['path']}: ok\n{found}" + _words(chance, size)
    return [
        {"role": "assistant", "content": said, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{turn}", "content": result},
    ]


def _words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choice(_VOCABULARY) for _ in range(count))


_VOCABULARY = (
    "return", "value", "index", "parser", "window", "buffer", "node", "error", "branch", "commit", "module",
    "import", "async", "await", "config", "header", "token", "cache", "store", "session", "queue", "worker",
)  # fmt: skip


# -- the world --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Items:
    """A body as the simulated provider counts it."""

    raw: list[bytes]
    sizes: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.sizes)

    def shared(self, other: Items) -> int:
        return sum(self.sizes[: self._common(other)])

    def begins(self, other: Items) -> bool:
        return self._common(other) == len(self.raw)

    def _common(self, other: Items) -> int:
        pairs = zip(self.raw, other.raw, strict=False)
        return next((n for n, (one, two) in enumerate(pairs) if one != two), min(len(self.raw), len(other.raw)))


@dataclass
class Ruler:
    """Counts bodies as the simulated provider does."""

    known: dict[bytes, int] = field(default_factory=dict)

    def __call__(self, dialect: DialectName, model: str, body: bytes) -> Items:
        found = json.loads(body)
        beside = [found.get("tools")] if found.get("tools") else []
        raw = [json.dumps(it).encode() for it in [*beside, *found["messages"]]]
        for it in raw:
            if it not in self.known:
                self.known[it] = tokens.item(json.loads(it))
        return Items(raw, [self.known[it] for it in raw])


@dataclass
class Sheet(rehearsal.Sheet):
    """What a session came to. Tokens of the simulator's ruler."""

    alive: int = 0
    planted: int = 0
    fresh: list[float] = field(default_factory=list)
    """Of each request: the share of the newest `FRESH` tool results that it held word for word."""

    @property
    def whole(self) -> float:
        """The same over all requests."""
        return sum(self.fresh) / len(self.fresh)


class Bench:
    """One session under one policy."""

    def __init__(self, named: Named, window: int) -> None:
        self.sheet, self.body = Sheet(), b""
        provider = CATALOGUE.get("openai")
        self.target = Target(
            "openai", "https://api.openai.com/v1", MODEL, window=window, own_window=True, policy=named.policy,
            wanted=Wanted(("summary",)),
        )  # fmt: skip
        options = replace(
            default_options(), caching=provider.caching(MODEL), ride="auto" if named is NAMED["default"] else "off",
            tool_result_chars=named.tool_result_chars or default_options().tool_result_chars,
        )  # fmt: skip

        def asked(target: Target, dialect: DialectName) -> Options:
            return options

        self.kit = Kit(
            HASHER, Ledger(HASHER), Windows(),
            lambda name, refusal, sent: classify(refusal, CATALOGUE.rules(name), sent=sent), options=asked,
        )  # fmt: skip
        self.stage = rehearsal.Stage(self.kit, MemoryStore(), Ruler(), _summed_up, tokens.words, sheet=self.sheet)

    def request(self, body: bytes, now: float) -> None:
        conversation = self.kit.recall.read("chat", body)
        self.body = self.stage.request(Request("r", conversation, TENANT, self.target, now)).body


def _summed_up(call: Call, read: int, most: int) -> str:
    messages = json.loads(call.body)["messages"]
    fence = summarizer.fence_in(messages[-1]["content"])
    if fence is None:  # it rides: all that comes before the question
        fence = summarizer.Fence("\n".join(str(it.get("content") or "") for it in messages[:-1]))
    return summarizer.summarize(fence, most)


def run(named: Named, turns: int, window: int) -> Sheet:
    """The session under a policy."""
    bench = Bench(named, window)
    script = Script()
    for number, script in enumerate(session(turns)):
        body = json.dumps({"model": MODEL, "messages": script.messages}).encode()
        bench.request(body, 1_000.0 + 20 * number)
        newest = [it["content"] for it in script.messages if it["role"] == "tool"][-FRESH:]
        text = bench.body.decode()
        bench.sheet.fresh.append(sum(json.dumps(it)[1:-1] in text for it in newest) / len(newest))
    bench.sheet.planted, bench.sheet.alive = len(script.planted), sum(said in text for said in script.planted)
    return bench.sheet


def level(named: Named) -> Named:
    """The same from the same share of the window on, by the same count, and recovering from refusals: what differs is
    what is kept, and how it is made."""
    policy = replace(
        named.policy, enabled=True, on_overflow=True, trigger="percent", threshold_percent=THRESHOLD, rounds_down=False,
        windows=(), estimator="tidegate", counts="larger",
    )  # fmt: skip
    return replace(named, policy=policy) if policy != named.policy else named


HEADER = (
    "policy",
    "requests",
    "compactions",
    "refused",
    "tokens sent",
    "prefix kept",
    "largest",
    "facts",
    "newest whole",
    "cost",
)


def row(name: str, sheet: Sheet) -> tuple[str, ...]:
    return (
        name, f"{sheet.requests}", f"{sheet.compactions}", f"{sheet.refused}", f"{sheet.sent:,}",
        f"{sheet.reused / sheet.sent:.1%}", f"{sheet.largest:,}", f"{sheet.alive} of {sheet.planted}",
        f"{sheet.whole:.1%}", f"{sheet.cost:,.0f}",
    )  # fmt: skip


def missed(sheets: dict[str, Sheet]) -> list[str]:
    """The bars that the policies miss at an equal threshold."""
    own, found = sheets["default"], []
    for name, sheet in sheets.items():
        if sheet.broken:
            found.append(f"{name}: {sheet.broken} requests did not begin with the whole of the one before")
        if name != "default" and sheet.alive >= own.alive and sheet.whole >= own.whole and sheet.cost < own.cost:
            found.append(
                f"{name} costs {sheet.cost / own.cost:.1%} of default, with {sheet.alive} facts and {own.alive}"
            )
    return found


def main() -> int:
    """Prints both tables."""
    options = argparse.ArgumentParser(description="Long sessions under each policy.")
    options.add_argument("--turns", type=int, default=400)
    options.add_argument("--window", type=int, default=64_000)
    given = options.parse_args()
    for title, kind in (("as they are", at_work), (f"all from {THRESHOLD} % of the window on", level)):
        sheets = {name: run(kind(named), given.turns, given.window) for name, named in NAMED.items()}
        print(f"\n{given.turns} turns, a window of {given.window:,} tokens, {title}\n")
        print(table(HEADER, [row(name, sheet) for name, sheet in sheets.items()]))
    problems = missed(sheets)
    print("\n" + "\n".join(f"missed: {problem}" for problem in problems) if problems else "\nno bar is missed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
