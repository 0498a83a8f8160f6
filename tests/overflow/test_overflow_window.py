"""Which stated limits are believed, and what makes them forgotten."""

from __future__ import annotations

import pytest

from tidegate.overflow import Evidence, Kind, Refusal, Sent, Verdict, Windows, classify
from tidegate.providers import load

ENDPOINT, MODEL = "https://api.example/v1", "m-1"
NUMBERS = Sent(tokens=140_000, window=200_000)


def verdict(limit: int | None = 131_072, *, kind: Kind = "overflow", certain: bool = True, **numbers: int) -> Verdict:
    return Verdict(kind, "compact", certain, Evidence("r", "f.toml"), window=limit, **numbers)  # type: ignore[arg-type]


def test_a_stated_limit_is_learned_for_its_endpoint_and_model_only() -> None:
    windows = Windows()
    assert windows.learn(ENDPOINT, MODEL, verdict(), NUMBERS)
    assert windows.limit(ENDPOINT, MODEL) == 131_072
    assert windows.limit(ENDPOINT, "m-2") is None
    assert windows.limit("https://other.example/v1", MODEL) is None


def test_an_input_limit_counts_before_the_window() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, verdict(400_000, input_limit=272_000), Sent(tokens=500_000))
    assert windows.limit(ENDPOINT, MODEL) == 272_000


@pytest.mark.parametrize("kind", ["rate_limit", "quota", "output_limit", "payload_bytes", "media_limit", "other_4xx"])
def test_only_overflows_teach(kind: Kind) -> None:
    assert not Windows().learn(ENDPOINT, MODEL, verdict(kind=kind), NUMBERS)


@pytest.mark.parametrize(
    ("given", "sent", "taken"),
    [
        (verdict(None), NUMBERS, False),
        (verdict(certain=False), NUMBERS, False),
        (verdict(0), NUMBERS, False),
        (verdict(255), Sent(tokens=300), False),
        (verdict(512), Sent(tokens=900), True),
        (verdict(512), None, False),
        (verdict(4_096), None, True),
        (verdict(21_000_000), Sent(tokens=30_000_000), False),
        (verdict(1_000_000), Sent(tokens=9_000), False),
        (verdict(131_072), Sent(tokens=60_000), True),
        (verdict(131_072, input_tokens=90_000), NUMBERS, False),
        (verdict(131_072, input_tokens=130_000, output_requested=8_000), NUMBERS, True),
    ],
)
def test_a_number_must_be_a_window_and_fit_what_was_sent(given: Verdict, sent: Sent | None, taken: bool) -> None:
    assert Windows().learn(ENDPOINT, MODEL, given, sent) is taken


def test_a_larger_success_lifts_a_limit() -> None:
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, verdict(65_536), NUMBERS)
    windows.succeeded(ENDPOINT, MODEL, 60_000)
    assert windows.limit(ENDPOINT, MODEL) == 65_536
    windows.succeeded(ENDPOINT, MODEL, 70_000)
    assert windows.limit(ENDPOINT, MODEL) is None


def test_a_limit_below_what_has_succeeded_is_believed_the_second_time() -> None:
    windows = Windows()
    windows.succeeded(ENDPOINT, MODEL, 100_000)
    assert not windows.learn(ENDPOINT, MODEL, verdict(65_536), NUMBERS)
    assert windows.limit(ENDPOINT, MODEL) is None
    assert not windows.learn(ENDPOINT, MODEL, verdict(4_000), NUMBERS)
    assert windows.learn(ENDPOINT, MODEL, verdict(4_000), NUMBERS)
    assert windows.limit(ENDPOINT, MODEL) == 4_000


def test_an_old_limit_is_forgotten() -> None:
    windows = Windows(lasts=60)
    windows.learn(ENDPOINT, MODEL, verdict(), NUMBERS, now=1_000)
    assert windows.limit(ENDPOINT, MODEL, now=1_060) == 131_072
    assert windows.limit(ENDPOINT, MODEL, now=1_061) is None


def test_no_more_than_its_size_is_kept() -> None:
    windows = Windows(size=2)
    for model in ("a", "b", "c"):
        windows.learn(ENDPOINT, model, verdict(), NUMBERS)
    assert [windows.limit(ENDPOINT, model) for model in ("a", "b", "c")] == [None, 131_072, 131_072]


def test_what_one_request_left_for_its_prompt_is_not_the_models_limit() -> None:
    text = (
        "You passed 170753 input tokens and requested 32000 output tokens. However, the model's context length is only "
        "202752 tokens, resulting in a maximum input length of 170752 tokens."
    )
    judged = classify(Refusal(400, text), load().rules("vllm"), sent=Sent(tokens=260_000, window=262_144))
    windows = Windows()
    windows.learn(ENDPOINT, MODEL, judged, Sent(tokens=260_000))
    assert judged.input_limit is None
    assert windows.limit(ENDPOINT, MODEL) in (None, 202_752)


def test_an_answer_that_filled_the_window_tells_its_size_where_nothing_smaller_is_known() -> None:
    windows = Windows()
    windows.filled(ENDPOINT, MODEL, 2_048)
    assert windows.limit(ENDPOINT, MODEL) == 2_048
    windows.filled(ENDPOINT, MODEL, 4_096)
    assert windows.limit(ENDPOINT, MODEL) == 2_048
    windows.succeeded(ENDPOINT, MODEL, 3_000)
    windows.filled(ENDPOINT, MODEL, 2_500)
    assert windows.limit(ENDPOINT, MODEL) is None
