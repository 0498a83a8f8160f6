"""The real llama.cpp server refuses, streams and counts, and Tidegate reads it right."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llama_process import PATHS, Answered, llama, post, turn
from tiny_models import ANSWER_TOKENS, RECITED, TURN_TOKENS, write_reciting

from tidegate.overflow import Refusal, Verdict, classify
from tidegate.providers import load
from tidegate.wire import ANSWERS
from tidegate.wire.conversation import DialectName

each_dialect = pytest.mark.parametrize("dialect", PATHS)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


def ask(url: str, dialect: str, text: str, **options: object) -> Answered:
    return post(url + PATHS[dialect], turn(dialect, [{"role": "user", "content": text}], **options))  # type: ignore[arg-type]


def judged(provider: str, answer: Answered, *, in_stream: bool = False) -> Verdict:
    refusal = Refusal(answer.status, answer.body, answer.headers, in_stream)
    return classify(refusal, load().rules(provider))


@each_dialect
@streamed_or_not
@pytest.mark.parametrize("provider", ["llamacpp", "generic"])
def test_a_prompt_over_the_window_is_an_overflow_with_its_numbers(
    babbling: str, dialect: str, stream: bool, provider: str
) -> None:
    answer = ask(babbling, dialect, "x" * 6_000, stream=stream)
    verdict = judged(provider, answer)
    assert answer.status == 400
    assert (verdict.kind, verdict.action, verdict.certain) == ("overflow", "compact", True)
    assert verdict.input_tokens == 6_000 + TURN_TOKENS + ANSWER_TOKENS
    assert verdict.window == 2_048


@each_dialect
def test_the_window_itself_is_already_too_much_whatever_the_output_limit(babbling: str, dialect: str) -> None:
    around = TURN_TOKENS + ANSWER_TOKENS
    full = ask(babbling, dialect, "x" * (2_048 - around), limit=1)
    almost = ask(babbling, dialect, "x" * (2_047 - around), limit=4_000)
    assert judged("llamacpp", full).kind == "overflow"
    assert almost.status == 200


@each_dialect
@streamed_or_not
def test_an_answer_is_read_whole(reciting: str, dialect: DialectName, stream: bool) -> None:
    answer = ANSWERS[dialect].read_answer(ask(reciting, dialect, "how far are we?", stream=stream).body)
    assert answer.text.strip() == "".join(RECITED).strip()
    assert answer.finish == "stop"
    assert not answer.error


@streamed_or_not
@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_an_answer_cut_by_its_limit_says_so(reciting: str, dialect: DialectName, stream: bool) -> None:
    answer = ANSWERS[dialect].read_answer(ask(reciting, dialect, "how far are we?", stream=stream, limit=5).body)
    assert answer.text == "".join(RECITED[:5])
    assert answer.finish == "length"


@streamed_or_not
def test_on_responses_only_the_count_tells_that_an_answer_was_cut(reciting: str, stream: bool) -> None:
    """The server says `completed`; the summary strategy goes by the tokens."""
    answer = ANSWERS["responses"].read_answer(ask(reciting, "responses", "well?", stream=stream, limit=5).body)
    assert answer.finish == "stop"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 5


@each_dialect
def test_usage_counts_what_was_sent(babbling: str, dialect: DialectName) -> None:
    for _ in range(2):  # the second time most of it comes from the cache
        answer = ANSWERS[dialect].read_answer(ask(babbling, dialect, "y" * 700, limit=4).body)
        assert answer.usage is not None
        assert answer.usage.input_tokens == 700 + TURN_TOKENS + ANSWER_TOKENS


@pytest.fixture(scope="module")
def crowded(llama_folder: Path) -> Iterator[str]:
    """A server with two slots in one cache of 1,024 tokens, whose model never ends an answer by itself."""
    write_reciting(llama_folder / "endless.gguf", "", endless=True)
    with llama(
        llama_folder / "endless.gguf", llama_folder / "endless.log", context=1_024, slots=2, unified=True
    ) as url:
        yield url


@each_dialect
@streamed_or_not
def test_a_window_that_runs_out_while_answering_is_an_overflow_too(
    crowded: str, dialect: DialectName, stream: bool
) -> None:
    """Two requests at once fill the cache they share: a 500, or an error in a stream that had begun with 200."""
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, crowded, dialect, letter * 480, stream=stream, limit=900) for letter in "ab"]
        answers = [one.result() for one in asked]
    broken = [answer for answer in answers if b"Context size has been exceeded" in answer.body]
    assert broken
    for answer in broken:
        assert answer.status == (200 if stream else 500)
        # What a driver sees of a stream is the error event alone.
        body = ANSWERS[dialect].read_answer(answer.body).error if stream else answer.body
        verdict = judged("llamacpp", Answered(answer.status, body, answer.headers), in_stream=stream)
        assert (verdict.kind, verdict.action) == ("overflow", "compact")
