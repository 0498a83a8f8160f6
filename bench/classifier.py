"""How well and how fast refusals are judged, beside others, on the labelled refusals of `tests/corpus/`.

    python bench/classifier.py [--speed] [--matrix] [--others]

Without options all parts are printed. "Others" runs LiteLLM's own checks where the `litellm` package can be imported
(set LITELLM_LOCAL_MODEL_COST_MAP=True to keep it off the network) and states what was measured of two more.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidegate.overflow import Refusal, classify
from tidegate.providers import load

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
FINER = {"stale_artifact": "other_4xx", "unsupported": "other_4xx"}
"""Kinds the corpus does not know, and the one it has for them."""
OWN_RULES = {
    "openai": "openai", "anthropic": "anthropic", "xai": "xai", "openrouter": "openrouter", "groq": "groq",
    "mistral": "mistral", "deepseek": "deepseek", "ollama": "ollama", "llama.cpp": "llamacpp",
    "llama.cpp server": "llamacpp", "vllm": "vllm", "vLLM": "vllm", "openai-codex": "chatgpt",
}  # fmt: skip
MEASURED = (
    (
        "pi, list of patterns with its negatives",
        "0.654  0.850   output_limit 11, rate_limit 5, payload_bytes 2, media_limit 2, truncated_output 1",
    ),
    ("Rho, fragments on 4xx and streams", "0.478  0.888   output_limit 11"),
    ("LiteLLM 1.110.2, is_error_str_context_window_exceeded", "0.505  0.885   output_limit 12"),
    ("LiteLLM 1.110.2, exception_type of the provider", "0.500  0.901   output_limit 10"),
)
"""Overflow or not, on the labelled refusals."""
LITELLM_NAMES = {"moonshot": "moonshot", "together": "together_ai", "vertex": "vertex_ai", "bedrock": "bedrock"}
CATALOGUE = load()

Case = dict[str, Any]


def read(name: str) -> list[Case]:
    """The cases of a file."""
    return [json.loads(line) for line in (CORPUS / name).read_text("utf-8").splitlines()]


def gated(cases: Iterable[Case]) -> list[Case]:
    """Those that status and body alone decide, in a wording that was seen."""
    return [case for case in cases if case["decidable_from_body"] and case["fidelity"] != "reconstructed"]


def judged(case: Case) -> tuple[str, bool]:
    """Our kind, in the corpus's words, and whether the history would be compacted."""
    refusal = Refusal(case["http_status"], case["body"], in_stream=case["stream_event"])
    verdict = classify(refusal, CATALOGUE.rules(OWN_RULES.get(case["provider"], "generic")))
    return FINER.get(verdict.kind, verdict.kind), verdict.action == "compact"


def rates(cases: list[Case], is_overflow: Callable[[Case], bool]) -> str:
    """Recall and precision of an overflow-or-not check, and what it takes for overflows."""
    found = {case["id"] for case in cases if is_overflow(case)}
    right = [case for case in cases if case["kind"] == "overflow"]
    hits = sum(case["id"] in found for case in right)
    wrong = Counter(case["kind"] for case in cases if case["id"] in found and case["kind"] != "overflow")
    shown = ", ".join(f"{kind} {count}" for kind, count in wrong.most_common()) or "none"
    return f"{hits / len(right):.3f}  {hits / max(1, len(found)):.3f}   {shown}"


# ── how well ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def matrix(cases: list[Case]) -> None:
    """Per-kind precision and recall, and which kinds are taken for which."""
    pairs = Counter((case["kind"], judged(case)[0]) for case in cases)
    kinds = sorted({kind for pair in pairs for kind in pair})
    print(f"{'kind':<18}{'cases':>6}{'recall':>9}{'precision':>11}   taken for")
    for kind in kinds:
        of_kind = sum(count for (label, _), count in pairs.items() if label == kind)
        as_kind = sum(count for (_, told), count in pairs.items() if told == kind)
        right = pairs[kind, kind]
        others = ", ".join(f"{told} {n}" for (label, told), n in pairs.items() if label == kind and told != kind)
        recall = f"{right / of_kind:.3f}" if of_kind else "-"
        precision = f"{right / as_kind:.3f}" if as_kind else "-"
        print(f"{kind:<18}{of_kind:>6}{recall:>9}{precision:>11}   {others}")
    false = [case["id"] for case in cases if case["kind"] != "overflow" and judged(case)[1]]
    print(f"false compactions: {len(false)} {false or ''}")


# ── others ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def others(cases: list[Case], once: Iterable[tuple[str, str]]) -> None:
    """Overflow or not, by us and by others, on the same cases; `once` has what was measured and is not run here."""
    print(f"{'classifier':<58}recall precision false positives")
    print(f"{'tidegate, rules of the provider':<58}{rates(cases, lambda case: judged(case)[1])}")
    generic = CATALOGUE.rules("generic")

    def anyone(case: Case) -> bool:
        refusal = Refusal(case["http_status"], case["body"], in_stream=case["stream_event"])
        return classify(refusal, generic).action == "compact"

    print(f"{'tidegate, provider unknown':<58}{rates(cases, anyone)}")
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            words, mapping = litellm_checks()
            version, checked, mapped = litellm_version(), rates(cases, words), rates(cases, mapping)
        print(f"{f'LiteLLM {version}, is_error_str_context_window_exceeded':<58}{checked}")
        print(f"{f'LiteLLM {version}, exception_type of the provider':<58}{mapped}")
        once = [row for row in once if not row[0].startswith("LiteLLM")]
    except ImportError:
        print("litellm can't be imported: nothing of it is run")
    for name, figures in once:
        print(f"{f'{name} *':<58}{figures}")
    if once:
        print("* measured once (the first two re-expressed), not run here")


def litellm_version() -> str:
    """As installed."""
    from importlib.metadata import version

    return version("litellm")


def litellm_checks() -> tuple[Callable[[Case], bool], Callable[[Case], bool]]:
    """LiteLLM's check of an error's words, and its mapping of a provider's error to its exception classes."""
    import litellm
    from litellm.litellm_core_utils.exception_mapping_utils import ExceptionCheckers, exception_type

    litellm.suppress_debug_info = True
    logging.disable(logging.CRITICAL)

    class Answered(Exception):
        """What LiteLLM's clients raise: a status and the body as message."""

        def __init__(self, status: int, message: str) -> None:
            self.status_code, self.message = status, message
            super().__init__(message)

    def words(case: Case) -> bool:
        return bool(ExceptionCheckers.is_error_str_context_window_exceeded(case["body"]))

    def mapping(case: Case) -> bool:
        known = {provider.value for provider in litellm.LlmProviders}
        name = LITELLM_NAMES.get(case["provider"], case["provider"])
        error = Answered(case["http_status"] or 400, case["body"])
        try:
            exception_type(model="m", original_exception=error, custom_llm_provider=name if name in known else "openai")
        except Exception as mapped:
            return isinstance(mapped, litellm.ContextWindowExceededError)
        return False

    return words, mapping


# ── how fast ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def speed(cases: list[Case]) -> None:
    """Median microseconds a refusal, of bodies as they come from the wire."""
    structured = [case for case in cases if by_code(case)]
    text = ("The upstream worker answered while the model was busy. " * 80)[:4000]
    page = text + " prompt is too long: 215692 tokens > 200000 maximum"
    calibration = statistics.median(timed(lambda: sum(range(1000)), 400))
    rows = [
        ("a structured code (corpus, median)", statistics.median(median(case["body"].encode()) for case in structured)),
        ("any labelled refusal (corpus, median)", statistics.median(median(c["body"].encode(), 30) for c in cases)),
        ("a 4 KB text, an overflow at its end", median(page.encode())),
        ("a 4 KB text that means nothing", median(text.encode())),
        ("a 4 KB text in a JSON error", median(json.dumps({"error": {"message": page}}).encode())),
        ("1 MB of JSON, hostile (milliseconds)", median(b'{"error":' * 110_000, 5) / 1000),
    ]
    for name, value in rows:
        print(f"{name:<42}{value:>9.1f}")
    print(f"{'for scale: sum(range(1000)) on this machine':<42}{calibration:>9.1f}")


def by_code(case: Case) -> bool:
    """Decided by a structured code alone."""
    rules = CATALOGUE.rules("generic")
    verdict = classify(Refusal(case["http_status"], case["body"]), rules)
    return any(rule.id == verdict.evidence.rule and verdict.evidence.matched in rule.code for rule in rules.all)


def median(body: bytes, times: int = 200) -> float:
    """Microseconds of one classification."""
    refusal, rules = Refusal(400, body), CATALOGUE.rules("openai")
    classify(refusal, rules)
    return statistics.median(timed(lambda: classify(refusal, rules), times))


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Microseconds of each call."""
    spent = []
    for _ in range(times):
        began = time.perf_counter_ns()
        call()
        spent.append((time.perf_counter_ns() - began) / 1000)
    return spent


def main() -> None:
    """Prints the parts that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for part in ("speed", "matrix", "others"):
        parser.add_argument(f"--{part}", action="store_true")
    asked = parser.parse_args()
    every = not (asked.speed or asked.matrix or asked.others)
    cases = gated(read("refusals.jsonl"))
    if asked.matrix or every:
        print(f"\n{len(cases)} labelled refusals that the body decides and that are not reconstructed:\n")
        matrix(cases)
        held = read("held_out.jsonl")
        print(f"\n{len(held)} refusals collected after the rules were written, and since learned from:\n")
        matrix(held)
    if asked.others or every:
        print("\nOverflow or not, on the labelled refusals:\n")
        others(cases, MEASURED)
        print("\nThe same on those collected later, from which only our rules have learned:\n")
        others(read("held_out.jsonl"), ())
    if asked.speed or every:
        print("\nMicroseconds a refusal:\n")
        speed(cases)


if __name__ == "__main__":
    main()
