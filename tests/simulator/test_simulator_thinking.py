"""What may become of Anthropic thinking: signatures, the newest tool round, preserved thinking."""

import pytest
from simulator_calls import KEYS, MESSAGES, MESSAGES_TOOL, app_of, assistant, call, messages, user

ON = {"type": "enabled", "budget_tokens": 1024}
OLD, NEW, PRESERVING = "claude-sonnet-4-5", "claude-opus-4-6", "claude-sonnet-5-5"
GO = user("Go.")
MODIFIED = "blocks in the latest assistant message cannot be modified"
CONTROLS = KEYS | {"anthropic-beta": "thinking-binding-controls-2026-08-01"}
BOUND = "The block is bound to a different conversation. Remove the block, or set"


def ask(app, *entries, model=OLD, thinking=ON, headers=KEYS, **more):
    body = messages(*entries, max_tokens=2000, tools=[MESSAGES_TOOL], **more) | {"model": model}
    return call(app, MESSAGES, body | ({"thinking": thinking} if thinking else {}), headers)


def answering(content, words="done"):
    ids = [block["id"] for block in content if block["type"] == "tool_use"]
    return user([{"type": "tool_result", "tool_use_id": id_, "content": words} for id_ in ids])


def open_round(model=OLD, **settings):
    """An app, and the thinking and the tool use of its first answer to `GO`."""
    app = app_of(**settings)
    content = ask(app, GO, model=model).json["content"]
    assert [block["type"] for block in content] == ["redacted_thinking" if settings else "thinking", "tool_use"]
    return app, content


@pytest.mark.parametrize("settings", [{}, {"redact_thinking": True}], ids=["thinking", "redacted"])
@pytest.mark.parametrize("model", [OLD, NEW, PRESERVING])
def test_sent_back_as_it_was_it_is_accepted(model, settings):
    app, content = open_round(model, **settings)
    answer = ask(app, GO, assistant(content), answering(content), model=model)
    assert answer.status == 200, answer.raw


class TestTheNewestRound:
    def test_thinking_may_not_be_removed(self):
        app, content = open_round()
        assert MODIFIED in ask(app, GO, assistant(content[1:]), answering(content)).error

    def test_nor_changed(self):
        app, (thought, use) = open_round()
        for changed in ({"thinking": "Other words."}, {"signature": "x"}):
            answer = ask(app, GO, assistant([thought | changed, use]), answering([use]))
            assert answer.error.startswith("messages.1.content.0: `thinking` or `redacted_thinking`")

    def test_nor_taken_twice(self):
        app, (thought, use) = open_round()
        assert MODIFIED in ask(app, GO, assistant([thought, thought, use]), answering([use])).error

    def test_it_may_go_when_thinking_is_turned_off(self):
        app, content = open_round()
        assert ask(app, GO, assistant(content[1:]), answering(content), thinking=None).status == 200

    def test_older_rounds_may_lose_theirs(self):
        app, first = open_round()
        second = ask(app, GO, assistant(first), answering(first)).json["content"]
        history = [GO, assistant(first[1:]), answering(first), assistant(second), answering(second)]
        assert ask(app, *history).status == 200

    def test_older_models_want_it_first(self):
        foreign = [{"type": "tool_use", "id": "toolu_x", "name": "read_file", "input": {}}]
        answer = ask(app_of(), GO, assistant(foreign), answering(foreign))
        assert answer.error.startswith(
            "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."
        )
        assert ask(app_of(), GO, assistant(foreign), answering(foreign), model=NEW).status == 200


class TestSignatures:
    def finished(self, model=OLD, **settings):
        app = app_of(tool_rounds=0, **settings)
        return app, ask(app, GO, model=model).json["content"]

    def test_words_are_signed(self):
        app, (thought, said) = self.finished()
        for changed in ({"thinking": "Other words."}, {"signature": "AAAA"}, {"signature": thought["signature"][:-4]}):
            answer = ask(app, GO, assistant([thought | changed, said]), GO)
            assert answer.error == "messages.1.content.0: Invalid `signature` in `thinking` block"

    def test_redacted_data_is_sealed(self):
        app, (thought, said) = self.finished(redact_thinking=True)
        answer = ask(app, GO, assistant([thought | {"data": "gAAAAAAAA"}, said]), GO)
        assert answer.error == "messages.1.content.0: Invalid `data` in `redacted_thinking` block"

    def test_another_model_can_not_read_it(self):
        app, content = self.finished()
        assert "Invalid `signature`" in ask(app, GO, assistant(content), GO, model=NEW).error

    def test_a_dated_name_is_the_same_model(self):
        app, content = self.finished()
        assert ask(app, GO, assistant(content), GO, model=OLD + "-20250929").status == 200

    def test_older_models_let_the_past_change(self):
        app, content = self.finished()
        assert ask(app, user("Something else."), assistant(content), GO, system="New.").status == 200


class TestPreservedThinking:
    @pytest.mark.parametrize(
        ("model", "preserves"),
        [
            ("claude-sonnet-5-5", True),
            ("claude-opus-5.5", True),
            ("claude-haiku-5-5-20261101", True),
            ("claude-fable-5-1", True),
            ("claude-sonnet-5-1", False),
            ("claude-opus-4-6", False),
            ("mock-5-5", True),
            ("mock", False),
        ],
    )
    def test_by_the_models_name(self, model, preserves):
        app = app_of(tool_rounds=0)
        content = ask(app, GO, model=model).json["content"]
        answer = ask(app, user("Something else."), assistant(content), GO, model=model)
        assert (answer.status == 400) is preserves

    def test_a_setting_overrules_the_name(self):
        app = app_of(tool_rounds=0, preserved_thinking=True)
        content = ask(app, GO).json["content"]
        assert BOUND in ask(app, user("Something else."), assistant(content), GO).error

    @pytest.mark.parametrize(
        "change",
        [{"system": "New."}, {"tools": [MESSAGES_TOOL | {"description": "New."}]}],
        ids=["system", "tools"],
    )
    def test_bound_to_system_and_tools(self, change):
        app = app_of(tool_rounds=0)
        content = ask(app, GO, model=PRESERVING).json["content"]
        body = messages(GO, assistant(content), GO, max_tokens=2000, tools=[MESSAGES_TOOL], thinking=ON)
        assert call(app, MESSAGES, body | {"model": PRESERVING}).status == 200
        assert BOUND in call(app, MESSAGES, body | {"model": PRESERVING} | change).error

    def test_cache_markers_and_the_form_of_a_text_do_not_matter(self):
        app = app_of(tool_rounds=0)
        content = ask(app, GO, model=PRESERVING).json["content"]
        marked = user([{"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}])
        assert ask(app, marked, assistant(content), GO, model=PRESERVING).status == 200

    def test_drop_block_goes_on_without_it_and_says_so(self):
        app = app_of(tool_rounds=0)
        content = ask(app, GO, model=PRESERVING).json["content"]
        dropping = ON | {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        answer = ask(app, user("Other."), assistant(content), GO, model=PRESERVING, thinking=dropping, headers=CONTROLS)
        assert answer.json["input_transformations"] == [
            {"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_binding_mismatch"}
        ]

    def test_what_follows_a_dropped_block_goes_with_it(self):
        app = app_of(tool_rounds=0)
        (first, words) = ask(app, GO, model=PRESERVING).json["content"]
        (second, _) = ask(app, user("Other."), model=PRESERVING).json["content"]
        dropping = ON | {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        history = [user("Other."), assistant([first, second, words]), GO]
        answer = ask(app, *history, model=PRESERVING, thinking=dropping, headers=CONTROLS)
        places = [entry["path"] for entry in answer.json["input_transformations"]]
        assert places == ["messages.1.content.0", "messages.1.content.1"]
        assert ask(app, *history[:1], assistant([second, words]), GO, model=PRESERVING).status == 200

    def test_drop_block_needs_its_beta(self):
        dropping = ON | {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        answer = ask(app_of(), GO, model=PRESERVING, thinking=dropping)
        assert answer.error == "thinking.enabled.block_binding: Extra inputs are not permitted"

    def test_nothing_is_dropped_from_the_same_conversation(self):
        app = app_of(tool_rounds=0)
        content = ask(app, GO, model=PRESERVING).json["content"]
        dropping = ON | {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        answer = ask(app, GO, assistant(content), GO, model=PRESERVING, thinking=dropping, headers=CONTROLS)
        assert answer.json["input_transformations"] == []
        assert "input_transformations" not in ask(app, GO, model=PRESERVING).json

    def test_in_an_open_round_it_may_go_only_if_the_past_has_changed(self):
        app, content = open_round(PRESERVING)
        without = [assistant(content[1:]), answering(content)]
        assert MODIFIED in ask(app, GO, *without, model=PRESERVING).error
        assert ask(app, user("A summary. Go."), *without, model=PRESERVING).status == 200
        forged = [assistant([content[0] | {"thinking": "x"}, content[1]]), answering(content)]
        assert MODIFIED in ask(app, user("A summary. Go."), *forged, model=PRESERVING).error


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"thinking": {"type": "enabled"}}, "budget_tokens: Field required"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "greater than or equal to 1024"),
        ({"max_tokens": 1024, "thinking": ON}, "`max_tokens` must be greater than `thinking.budget_tokens`."),
        ({"thinking": ON, "tool_choice": {"type": "any"}}, "Thinking may not be enabled when tool_choice forces"),
    ],
)
def test_configurations_that_are_refused(change, words):
    body = messages(GO, max_tokens=2000, tools=[MESSAGES_TOOL]) | change
    assert words in call(app_of(), MESSAGES, body).error


def test_a_finished_answer_may_not_be_begun_with_thinking_on():
    assert "Expected `thinking`" in ask(app_of(), GO, assistant("So")).error
