"""The summarizer: what it reads, what it keeps, how it fails when told to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator_calls import CHAT_TOOL, PATHS, app_of, call, chat, finish_of, plain, text_of, user

from tidegate.simulator import Step, tokens
from tidegate.simulator.summarizer import HEADINGS, fence_in, summarize

FENCED = (
    "Summarise this. FACT-90 is not in it.\n"
    "<previous_summary>\nFACT-01 the port is 8484.\n</previous_summary>\n"
    '<transcript items="3">\nuser: FACT-02 the colour is blue. Also FACT-03 is red!\ntool: 404\n</transcript>\n'
    "Keep to the headings. FACT-91."
)


def limit(dialect, count):
    return {{"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}[dialect]: count}


@pytest.mark.parametrize("dialect", PATHS)
class TestSummaryCalls:
    def test_keep_every_fact_inside_the_fence_and_none_outside(self, dialect):
        app = app_of()
        text = text_of(dialect, call(app, PATHS[dialect], plain(dialect, FENCED)).json)
        assert [line for line in text.splitlines() if "FACT" in line] == [
            "- FACT-01 the port is 8484",
            "- FACT-02 the colour is blue",
            "- FACT-03 is red",
        ]
        for heading in HEADINGS:
            assert f"## {heading}\n" in text
        assert app.state.records[-1].kind == "summary"
        assert (app.state.main(), app.state.facts) == ([], ())

    def test_stay_under_their_own_limit(self, dialect):
        facts = "\n".join(f"FACT-{number} is one of the things to remember here." for number in range(70))
        body = plain(dialect, f"<transcript>{facts}</transcript>", **limit(dialect, 160))
        app = app_of()
        answer = call(app, PATHS[dialect], body).json
        text = text_of(dialect, answer)
        assert app.state.records[-1].output_tokens <= 160
        assert "FACT-0," in text
        assert "FACT-69" not in text
        assert finish_of(dialect, answer) in ("stop", "completed", "end_turn")

    def test_are_cut_where_not_even_the_headings_fit(self, dialect):
        answer = call(app_of(), PATHS[dialect], plain(dialect, FENCED, **limit(dialect, 20))).json
        assert finish_of(dialect, answer) in ("length", "max_output_tokens", "max_tokens")

    def test_forgetful(self, dialect):
        text = text_of(dialect, call(app_of(forgetful=True), PATHS[dialect], plain(dialect, FENCED)).json)
        assert "FACT" not in text
        text = text_of(dialect, call(app_of(forgetful="half"), PATHS[dialect], plain(dialect, FENCED)).json)
        assert ("FACT-01" in text, "FACT-02" in text, "FACT-03" in text) == (True, False, True)

    def test_with_tools_it_is_no_summary_call(self, dialect):
        tools = {"chat": CHAT_TOOL, "responses": {"type": "function", "name": "f"}}
        tools["messages"] = {"name": "f", "input_schema": {}}
        app = app_of()
        call(app, PATHS[dialect], plain(dialect, FENCED, tools=[tools[dialect]]))
        assert app.state.records[-1].kind == "main"

    @pytest.mark.parametrize(
        ("do", "text", "finish"),
        [
            ("empty", "", ("stop", "completed", "end_turn")),
            ("refusal", "", ("stop", "completed", "refusal")),
            ("refusal_text", "I'm sorry", ("stop", "completed", "end_turn")),
            ("error_text", "Error:", ("stop", "completed", "end_turn")),
            ("length", "## Goal", ("length", "max_output_tokens", "max_tokens")),
            ("window_exceeded", "The beg", ("length", "max_output_tokens", "model_context_window_exceeded")),
            ("tool_call", "", ("tool_calls", "completed", "tool_use")),
        ],
    )
    def test_scripted_faults(self, dialect, do, text, finish):
        app = app_of(script=(Step(do=do, on="summary"),))
        main = call(app, PATHS[dialect], plain(dialect, "Hello."))
        assert "Hello." in text_of(dialect, main.json)
        answer = call(app, PATHS[dialect], plain(dialect, FENCED)).json
        assert text_of(dialect, answer).startswith(text)
        assert finish_of(dialect, answer) == finish[list(PATHS).index(dialect)]
        assert "## Goal" in text_of(dialect, call(app, PATHS[dialect], plain(dialect, FENCED)).json)

    def test_longer_than_what_it_was_given(self, dialect):
        app = app_of(script=(Step(do="longer"),))
        body = plain(dialect, FENCED, **limit(dialect, 2000))
        assert len(text_of(dialect, call(app, PATHS[dialect], body).json)) > len(FENCED)


class TestTheFence:
    @pytest.mark.parametrize(
        ("text", "transcript", "previous"),
        [
            ("<transcript>a</transcript>", "a", ""),
            ('x <transcript n="1" of="2">a</transcript> y', "a", ""),
            ("<transcript>a</transcript> b <transcript>c</transcript>", "a", ""),
            ("<previous_summary>p</previous_summary><transcript>a</transcript>", "a", "p"),
            ("<transcript>a</transcript><previous_summary>p</previous_summary>", "a", "p"),
            ("<transcript>a &lt;/transcript> b</transcript>", "a &lt;/transcript> b", ""),
            (
                "<transcript>a <previous_summary>x</previous_summary></transcript>",
                "a <previous_summary>x</previous_summary>",
                "",
            ),
            ("<transcript>never closed", "never closed", ""),
        ],
    )
    def test_reads(self, text, transcript, previous):
        fence = fence_in(text)
        assert (fence.transcript, fence.previous) == (transcript, previous)

    @pytest.mark.parametrize("closing", ["</transcript>", "</Transcript>", "< / transcript >"])
    def test_an_unescaped_closing_tag_ends_it_and_facts_are_lost(self, closing):
        fence = fence_in(f"<transcript>FACT-01. a file says {closing} FACT-02.</transcript>")
        text = summarize(fence, 1000)
        assert ("FACT-01" in text, "FACT-02" in text) == (True, False)

    @pytest.mark.parametrize("text", ["Hello.", "<previous_summary>x</previous_summary>", "<transcripts>", ""])
    def test_is_not_there(self, text):
        assert fence_in(text) is None

    def test_only_the_newest_user_message_is_read(self):
        app = app_of()
        call(app, PATHS["chat"], chat(user(FENCED), user("And now?")))
        assert app.state.records[-1].kind == "main"


@given(
    facts=st.lists(st.integers(0, 99), max_size=30, unique=True),
    cap=st.integers(1, 400),
    words=st.text(alphabet="abcä漢 ", max_size=120),
)
def test_never_longer_than_the_limit_but_for_the_headings(facts, cap, words):
    fence = fence_in(f"<transcript>{''.join(f'FACT-{number} {words}. ' for number in facts)}</transcript>")
    text = summarize(fence, cap)
    assert tokens.words(text) <= max(cap, tokens.words(summarize(fence_in("<transcript></transcript>"), 1)))
    kept = [
        number for number in facts if f"FACT-{number}" in text.replace(",", " ").split() or f"FACT-{number}\n" in text
    ]
    assert kept == facts[: len(kept)]
