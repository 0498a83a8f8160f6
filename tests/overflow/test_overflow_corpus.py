"""The labelled refusals, each judged with the rules of its provider.

Gated: the cases that the body decides and that are not reconstructed. No other kind may be compacted, and 95 % of the
overflows must be found. Cases that only what was sent can decide say what was sent.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tidegate.overflow import Refusal, Sent, Verdict, classify
from tidegate.providers import load

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "corpus" / "refusals.jsonl").read_text("utf-8").splitlines()
]
CATALOGUE = load()

PROVIDERS = {
    "openai": "openai", "anthropic": "anthropic", "xai": "xai", "openrouter": "openrouter", "groq": "groq",
    "mistral": "mistral", "deepseek": "deepseek", "ollama": "ollama", "llama.cpp": "llamacpp",
    "llama.cpp server": "llamacpp", "vllm": "vllm", "vLLM": "vllm", "openai-codex": "chatgpt",
}  # fmt: skip

FINER = {"stale_artifact": "other_4xx", "unsupported": "other_4xx"}
"""Kinds the corpus does not know, and the one it has for them."""

KNOWN_WRONG = {
    "C080": "an error as a model's own words in a stream: reading replies would let a model cause a compaction",
    "D144": "a gateway's 502 about a compact answer: whether the fault is the client's is a matter of taste",
    "D133": "reconstructed, and only what was sent tells that the input was cut",
    "D134": "reconstructed, and only what was sent tells that the input was cut",
    "D034": "reconstructed: Gemini's free-tier quota and its rates are refused in the same words",
}

SENT = {
    # empty bodies, or bodies that say as good as nothing: near the window or not
    "C081": (Sent(tokens=8_500, window=8_192), "overflow"),
    "C082": (Sent(tokens=8_500, window=8_192), "overflow"),
    "C083": (Sent(tokens=8_500, window=8_192), "rate_limit"),
    "C089": (Sent(tokens=31_000, window=32_768), "overflow"),
    "C402": (Sent(tokens=8_000, window=128_000, bytes=32_768), "payload_bytes"),
    "C403": (Sent(tokens=8_000, window=128_000), "other_4xx"),
    "C404": (None, "rate_limit"),
    "D072": (Sent(tokens=120_000, window=128_000), "server"),
    "D161": (Sent(tokens=120_000, window=128_000), "overflow"),
    # "at least" is a floor: our own estimate tells the prompt from the output
    "C136": (Sent(tokens=60_000, window=40_960), "overflow"),
    "C150": (Sent(tokens=40_000, window=32_768), "overflow"),
    "C170": (Sent(tokens=180_000, window=128_000), "overflow"),
    "C171": (None, "overflow"),
    "C175": (None, "overflow"),
    "C300": (None, "overflow"),
    "D053": (Sent(tokens=230_000, window=196_608), "overflow"),
    "D054": (Sent(tokens=3_100, window=131_072), "output_limit"),
    "D055": (None, "overflow"),
    "D063": (None, "output_limit"),
    "Lvllm-33": (None, "overflow"),
    "Llitellm-21": (None, "overflow"),
    "Llitellm-25": (None, "overflow"),
    "Llitellm-27": (None, "overflow"),
    # a sum of prompt and output, and no share stated
    "C141": (Sent(tokens=140_000, window=131_072, output_limit=16_000), "overflow"),
    "C149": (Sent(tokens=34_000, window=24_000, output_limit=256), "overflow"),
    # a negative output limit the client never asked for
    "C164": (Sent(tokens=170_000, window=128_000, output_limit=4_096), "overflow"),
    # answers that ended because the window did
    "Lllamacpp-25": (None, "truncated_output"),
    "Lllamacpp-27": (None, "truncated_output"),
    "Lllamacpp-29": (Sent(tokens=844, window=1_024), "truncated_output"),
    "Lllamacpp-30": (None, "truncated_output"),
    "Lllamacpp-32": (Sent(tokens=844, window=1_024), "truncated_output"),
    "Lllamacpp-34": (Sent(tokens=844, window=1_024), "truncated_output"),
    "Ltransformers-serve-01": (Sent(tokens=2_019, window=1_024), "truncated_output"),
    # labelled by what happened on the server; the 500 and its words are a server's failure
    "Llitellm-kvu-09": (None, "server"),
    # labelled other_4xx for want of a word: an empty 200 to a prompt over the window is an overflow
    "Lllamacpppython-empty-1": (Sent(tokens=2_019, window=1_024), "overflow"),
    "Lllamacpppython-empty-2": (Sent(tokens=2_000, window=1_024), "overflow"),
    # an image that a text model refuses
    "Lllamacpp-39": (None, "media_limit"),
}  # fmt: skip

CORRECTED = {
    # a floor ("at least", or one token past the longest prompt: vLLM stops counting there) is no size
    "C136": (None, 40_960), "C150": (None, 32_768), "C170": (None, 128_000), "C171": (None, 262_144),
    "C300": (None, 131_072), "D053": (None, 196_608), "D054": (None, 131_072), "D055": (None, 65_536),
    "D056": (None, 202_752),
    # "you requested T tokens" may hold the output too
    "C368": (None, 16_384),
    # not read at all
    "C080": (None, None),
}  # fmt: skip
"""Labels that the text does not bear out: (input tokens, limit)."""


def judge(case: dict[str, object], sent: Sent | None = None) -> Verdict:
    refusal = Refusal(case["http_status"], case["body"], in_stream=case["stream_event"])  # type: ignore[arg-type]
    rules = CATALOGUE.rules(PROVIDERS.get(str(case["provider"]), "generic"))
    return classify(refusal, rules, sent=sent)


def gated(case: dict[str, object]) -> bool:
    return bool(case["decidable_from_body"]) and case["fidelity"] != "reconstructed"


def expected(case: dict[str, object]) -> tuple[Sent | None, str]:
    sent, kind = SENT.get(str(case["id"]), (None, str(case["kind"])))
    return sent, kind


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case["id"],
            marks=[pytest.mark.xfail(reason=KNOWN_WRONG[case["id"]], strict=True)] if case["id"] in KNOWN_WRONG else [],
        )
        for case in CASES
    ],
)
def test_a_labelled_refusal_is_of_its_kind(case: dict[str, object]) -> None:
    sent, kind = expected(case)
    verdict = judge(case, sent)
    assert FINER.get(verdict.kind, verdict.kind) == kind, verdict.evidence
    assert verdict.evidence.rule != "unreadable", "a rule raised"


def test_nothing_but_an_overflow_is_compacted() -> None:
    others = [case for case in CASES if gated(case) and case["kind"] != "overflow"]
    wrong = {case["id"]: judge(case).evidence.rule for case in others if judge(case).action == "compact"}
    assert wrong == {}


def test_nearly_every_overflow_is_found(record_property: pytest.RecordProperty) -> None:
    overflows = [case for case in CASES if gated(case) and case["kind"] == "overflow"]
    found = sum(judge(case).kind == "overflow" for case in overflows)
    record_property("overflow_recall", f"{found}/{len(overflows)}")
    assert found / len(overflows) >= 0.99, f"{found} of {len(overflows)}"


def test_the_generic_provider_knows_the_same_refusals() -> None:
    rules = CATALOGUE.rules("generic")
    counted: Counter[str] = Counter()
    for case in CASES:
        if gated(case):
            verdict = classify(Refusal(case["http_status"], case["body"], in_stream=case["stream_event"]), rules)
            counted[f"{case['kind'] == 'overflow'}-{verdict.action == 'compact'}"] += 1
    assert counted["False-True"] == 0
    assert counted["True-True"] / (counted["True-True"] + counted["True-False"]) >= 0.99


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] in ("overflow", "output_limit")], ids=lambda c: c["id"])
def test_stated_numbers_are_read(case: dict[str, object]) -> None:
    verdict = judge(case)
    labelled = CORRECTED.get(str(case["id"]), (case["input_tokens"], case["window"]))
    stated = verdict.window or verdict.input_limit
    if stated is None and labelled[1] is not None:
        stated = verdict.output_limit  # some caps of the output are labelled as windows
    assert (verdict.input_tokens, stated) == labelled


def test_no_number_is_read_from_other_kinds() -> None:
    read = {
        case["id"]: (verdict.input_tokens, verdict.window, verdict.input_limit)
        for case in CASES
        if case["kind"] not in ("overflow", "output_limit")
        for verdict in (judge(case),)
        if verdict.input_tokens or verdict.window or verdict.input_limit
    }
    assert read == {}
