"""Thinking that is bound to the conversation before it, once a compaction stands for that conversation."""

import pytest
from simulator_calls import KEYS, MESSAGES, MESSAGES_TOOL, app_of, assistant, call, messages, user

from tidegate.simulator import ContextManagement

HEADER = KEYS | {
    "anthropic-beta": "compact-2026-09-04, compact-2026-01-12, thinking-binding-controls-2026-08-01",
}
PRESERVING, PLAIN = "claude-opus-5-5", "claude-opus-4-8"
BOUND = "The block is bound to a different conversation."
THINKS = {"type": "adaptive"}
DROPPING = THINKS | {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
SYSTEM = "Be brief."


class Talk:
    """An agent's history, each answer thought about."""

    def __init__(self, model=PRESERVING, **settings):
        self.app = app_of(**{"window": 50_000, "tool_rounds": 0} | settings)
        self.model = model
        self.history = []

    def send(self, history, **more):
        body = messages(*history, max_tokens=2000, system=SYSTEM, tools=[MESSAGES_TOOL], thinking=THINKS)
        return call(self.app, MESSAGES, body | {"model": self.model} | more, HEADER)

    def say(self, words="Go.", **more):
        return self.hear(user(words), **more)

    def hear(self, message, **more):
        self.history.append(message)
        answer = self.send(self.history, **more)
        assert answer.status == 200, answer.raw
        self.history.append(assistant(answer.json["content"]))
        return answer.json["content"]

    def block(self, history, **more):
        answer = self.send(history, compaction={"type": "summarize"}, **more)
        assert answer.status == 200, answer.raw
        return assistant(answer.json["content"])


def bare(history):
    """The same without thinking, which no other model reads."""
    return [
        message if message["role"] == "user" else assistant([b for b in message["content"] if b["type"] == "text"])
        for message in history
    ]


def turns(count, **settings):
    talk = Talk(**settings)
    for _ in range(count):
        talk.say()
    return talk


class TestAKeptTail:
    """user, assistant, user, assistant, user, assistant; cut where an assistant message comes first."""

    @pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
    def test_keeps_its_thinking_behind_the_apis_own_block(self, cut):
        talk = turns(3)
        block = talk.block(talk.history[:cut])
        assert talk.send([block, *talk.history[cut:], user("On.")]).status == 200

    def test_and_behind_its_first_message(self):
        talk = turns(3)
        block = talk.block(talk.history[:4])["content"][0]
        first = user([block, {"type": "text", "text": "Go."}])
        assert talk.send([first, *talk.history[5:], user("On.")]).status == 200

    @pytest.mark.parametrize(
        "tail",
        [
            lambda history: history[3:],
            lambda history: [user("More."), *history[3:]],
            lambda history: [user("Other."), *history[5:]],
            lambda history: [user("A summary."), *history[3:]],
        ],
        ids=["leftover", "one-more", "one-changed", "text-for-one"],
    )
    def test_must_follow_directly_and_unchanged(self, tail):
        talk = turns(3)
        block = talk.block(talk.history[:4])
        assert BOUND in talk.send([block, *tail(talk.history), user("On.")]).error

    def test_its_first_message_has_another_role_than_the_last_summarised(self):
        talk = turns(1)
        talk.history.append(user("One."))
        talk.say("Two.")
        block = talk.block(talk.history[:3])
        assert BOUND in talk.send([block, *talk.history[3:], user("On.")]).error
        assert talk.send([talk.block(talk.history[:2]), *talk.history[2:], user("On.")]).status == 200

    def test_and_is_no_system_message(self):
        talk = turns(1)
        talk.history.append({"role": "system", "content": "Be kind."})
        talk.say()
        block = talk.block(talk.history[:2])
        assert BOUND in talk.send([block, *talk.history[2:], user("On.")]).error

    @pytest.mark.parametrize("change", [{"system": "Other."}, {"tools": []}], ids=["system", "tools"])
    def test_system_and_tools_stay_the_same_in_all_three(self, change):
        talk = turns(3)
        tail = [*talk.history[4:], user("On.")]
        assert BOUND in talk.send([talk.block(talk.history[:4]), *tail], **change).error
        # A compaction that drops thinking may see other tools, and is then no beginning of this conversation.
        other = talk.block(talk.history[:4], thinking=DROPPING, **change)
        assert BOUND in talk.send([other, *tail]).error

    def test_deferred_tools_may_come(self):
        talk = turns(3)
        block = talk.block(talk.history[:4])
        late = {"name": "late", "input_schema": {"type": "object"}, "defer_loading": True}
        answer = talk.send([block, *talk.history[4:], user("On.")], tools=[MESSAGES_TOOL, late])
        assert answer.status == 200, answer.raw

    @pytest.mark.parametrize(("model", "status"), [(PRESERVING, 200), (PLAIN, 400)])
    def test_the_model_that_compacted_is_one_that_preserves(self, model, status):
        talk = turns(3)
        block = talk.block(bare(talk.history[:4]), model=model)
        answer = talk.send([block, *talk.history[4:], user("On.")])
        assert answer.status == status
        assert status == 200 or BOUND in answer.error
        assert talk.send([block, user("On.")]).status == 200

    @pytest.mark.parametrize(("model", "status"), [(PRESERVING, 200), (PLAIN, 400)])
    def test_at_each_compaction_not_only_the_newest(self, model, status):
        talk = turns(4)
        first = talk.block(bare(talk.history[:2]), model=model)
        second = talk.block([first, *bare(talk.history[2:4])])
        answer = talk.send([second, *talk.history[4:], user("On.")])
        assert answer.status == status
        assert status == 200 or BOUND in answer.error

    def test_thinking_from_after_a_compaction_is_bound_to_it(self):
        talk = turns(2)
        talk.history = [talk.block(talk.history)]
        talk.say("On.")
        talk.say("On.")
        assert talk.send([*talk.history, user("On.")]).status == 200
        again = talk.block(talk.history[:3])
        assert talk.send([again, *talk.history[3:], user("On.")]).status == 200

    def test_an_open_round_goes_on_behind_the_block(self):
        talk = Talk(tool_rounds=3)
        content = talk.say()
        results = user([{"type": "tool_result", "tool_use_id": content[1]["id"], "content": "done"}])
        block = talk.block(talk.history[:1])
        assert talk.send([block, talk.history[1], results]).status == 200
        bare = assistant(content[1:])
        assert "cannot be modified" in talk.send([block, bare, results]).error

    def test_in_an_open_round_behind_a_text_summary_it_must_go_or_be_dropped(self):
        talk = Talk(tool_rounds=3)
        content = talk.say()
        results = user([{"type": "tool_result", "tool_use_id": content[1]["id"], "content": "done"}])
        summary = user("A summary of what was said.")
        assert BOUND in talk.send([summary, assistant(content), results]).error
        answer = talk.send([summary, assistant(content), results], thinking=DROPPING)
        assert [entry["path"] for entry in answer.json["input_transformations"]] == ["messages.1.content.0"]


SMALL = ContextManagement(least_trigger=100)


EDIT = {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 300}}]}


class TestTheThresholdBeta:
    def test_thinking_behind_its_block_is_bound_to_it(self):
        talk = Talk(context=SMALL)
        content = talk.say("x" * 2000, context_management=EDIT)
        assert [block["type"] for block in content] == ["compaction", "thinking", "text"]
        talk.say(context_management=EDIT)
        kept = [*talk.history[1:], user("On.")]
        assert talk.send(kept, context_management=EDIT).status == 200

    def test_turns_put_back_behind_it_lose_theirs(self):
        talk = Talk(context=SMALL)
        talk.say()
        pause = {"edits": [EDIT["edits"][0] | {"pause_after_compaction": True}]}
        block = talk.send([*talk.history, user("x" * 2000)], context_management=pause).json["content"]
        put_back = [assistant(block), *talk.history, user("On.")]
        assert BOUND in talk.send(put_back, context_management=EDIT).error
        dropped = talk.send(put_back, context_management=EDIT, thinking=DROPPING).json
        assert dropped["input_transformations"] == [
            {"type": "thinking_dropped", "path": "messages.2.content.0", "reason": "prefix_binding_mismatch"}
        ]


def test_where_messages_of_one_role_are_divided_makes_no_difference():
    talk = Talk()
    talk.history = [user("One."), user("Two.")]
    talk.say("Three.")
    joined = user([{"type": "text", "text": words} for words in ("One.", "Two.", "Three.")])
    assert talk.send([joined, talk.history[-1], user("On.")]).status == 200


def test_transformations_are_told_first_in_a_stream():
    talk = turns(1)
    history = [user("Other."), talk.history[1], user("On.")]
    events = talk.send(history, thinking=DROPPING, stream=True).events
    assert events[0]["message"]["input_transformations"][0]["path"] == "messages.1.content.0"
    assert "input_transformations" not in events[-2]
