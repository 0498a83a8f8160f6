"""Chat Completions: what a request says, message by message."""

import pytest
from wire_media import b64, pdf, png

from tidegate.wire import chat
from tidegate.wire.conversation import Facts, Part
from tidegate.wire.jsontext import canonical_dumps, dumps, loads

PNG = b64(png(640, 480))
PDF = b64(pdf(2))

CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
CUSTOM = {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}

FACTS = [
    ({"role": "system", "content": "s"}, Facts("message", "system")),
    ({"role": "developer", "content": "s"}, Facts("message", "system")),
    ({"role": "user", "content": "hi"}, Facts("message", "user", human=True)),
    ({"role": "user", "content": ""}, Facts("message", "user")),
    ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, Facts("message", "user", human=True)),
    ({"role": "assistant", "content": "yes"}, Facts("message", "assistant")),
    ({"role": "assistant", "content": None, "tool_calls": [CALL, CUSTOM]},
     Facts("message", "assistant", calls=("call_1", "call_2"))),
    ({"role": "tool", "tool_call_id": "call_1", "content": "seen"}, Facts("message", "tool", results=("call_1",))),
    ({"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}},
     Facts("message", "assistant", calls=("function:look",))),
    ({"role": "function", "name": "look", "content": "seen"}, Facts("message", "tool", results=("function:look",))),
    ({"role": "assistant", "tool_calls": [{"id": "", "function": {"name": "look"}}]},
     Facts("message", "assistant", calls=("function:look",))),
    ({"role": "tool", "name": "look", "content": "seen"}, Facts("message", "tool", results=("function:look",))),
    ({"role": "user", "content": [{"type": "holo", "id": "h1", "of": "call_1", "words": "not an id"}]},
     Facts("message", "user", human=True, ids=("h1",), mentions=("words", "of", "id", "type", "call_1", "h1", "holo"))),
]  # fmt: skip


@pytest.mark.parametrize(("item", "facts"), FACTS)
def test_facts(item, facts):
    got = chat.facts(item)
    assert set(got.mentions) == set(facts.mentions)
    assert got == _with_mentions(facts, got.mentions)


def _with_mentions(facts, mentions):
    return Facts(facts.kind, facts.role, facts.human, facts.calls, facts.results, facts.ids, mentions)


def test_an_unknown_role_mentions_everything_short_in_it():
    facts = chat.facts({"role": "oracle", "for": ["call_1", {"deep": "call_2"}], "words": "more than one"})
    assert facts.role == "other"
    assert {"call_1", "call_2"} <= set(facts.mentions)
    assert "more than one" not in facts.mentions


PARTS = [
    ({"role": "user", "content": "hi"}, [Part("text", "hi")]),
    ({"role": "user", "content": ""}, []),
    ({"role": "assistant", "content": None}, []),
    ({"role": "user", "content": ["loose", {"type": "text", "text": "part"}, {"type": "text", "text": ""}]},
     [Part("text", "loose"), Part("text", "part")]),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}",
                                                                        "detail": "high"}}]},
     [Part("image", name="image/png", width=640, height=480, detail="high", data_bytes=len(PNG))]),
    ({"role": "user", "content": [{"type": "image_url", "image_url": "https://example.org/a.png"}]}, [Part("image")]),
    ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]},
     [Part("audio", name="wav", data_bytes=4)]),
    ({"role": "user", "content": [{"type": "file", "file": {"filename": "a.pdf",
                                                              "file_data": f"data:application/pdf;base64,{PDF}"}}]},
     [Part("file", name="a.pdf", pages=2, data_bytes=len(PDF))]),
    ({"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}, [Part("file", name="file-1")]),
    ({"role": "assistant", "content": "ok", "tool_calls": [CALL, CUSTOM]},
     [Part("text", "ok"), Part("call", '{"at":"x"}', name="look", id="call_1"),
      Part("call", "*** Begin", name="patch", id="call_2")]),
    ({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": {"at": 1}}}]},
     [Part("call", '{"at":1}', name="look", id="c")]),
    ({"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}},
     [Part("call", "{}", name="look", id="function:look")]),
    ({"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"},
                                                        {"type": "image_url", "image_url": {"url": "u"}}]},
     [Part("result", "a\nb", id="c"), Part("image")]),
    ({"role": "tool", "tool_call_id": "c", "content": {"rows": [1]}}, [Part("result", '{"rows":[1]}', id="c")]),
    ({"role": "function", "name": "look", "content": "seen"},
     [Part("result", "seen", name="look", id="function:look")]),
    ({"role": "assistant", "content": "a", "reasoning_content": "hm"}, [Part("thinking", "hm"), Part("text", "a")]),
    ({"role": "assistant", "reasoning": "hm", "reasoning_details": [{"type": "reasoning.encrypted", "data": "AAAA"}]},
     [Part("thinking", "hm"), Part("opaque", data_bytes=4)]),
    ({"role": "assistant", "reasoning_details": [{"summary": "s"}, {"text": "t"}]}, [Part("thinking", "s\nt")]),
    ({"role": "assistant", "refusal": "no"}, [Part("text", "no")]),
    ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, [Part("text", "no")]),
    ({"role": "assistant", "audio": {"id": "audio_1"}}, [Part("audio", name="audio_1")]),
    ({"role": "user", "content": [{"type": "holo", "x": [1]}, 7]},
     [Part("json", '{"type":"holo","x":[1]}'), Part("json", "7")]),
    ({"role": "oracle", "content": "hi"}, [Part("json", '{"role":"oracle","content":"hi"}')]),
    ({"role": "user", "content": {"text": "hi"}}, [Part("json", '{"text":"hi"}')]),
]  # fmt: skip


@pytest.mark.parametrize(("item", "parts"), PARTS)
def test_parts(item, parts):
    assert list(chat.parts(item)) == parts


@pytest.mark.parametrize("place", ["url", "data", "image_url", "b64_json"])
def test_base64_of_an_unknown_part_is_no_text_but_is_counted(place):
    url = f"data:image/png;base64,{PNG}"
    payload = url if "url" in place else PNG
    parts = list(chat.parts({"role": "user", "content": [{"type": "holo", "of": [{place: payload}]}]}))
    assert [part.kind for part in parts] == ["json", "opaque"]
    assert len(parts[0].text) < 100
    assert parts[1].data_bytes == len(payload)


EQUAL = [
    ({"role": "user", "content": "hi"}, {"content": [{"text": "hi", "type": "text"}], "role": "user"}),
    ({"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}, {"role": "user", "content": "hi"}),
    (
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a", "cache_control": None}]},
        {"role": "tool", "tool_call_id": "c", "content": "a"},
    ),
]
DIFFERENT = [
    ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi "}),
    ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi", "id": "m1"}),
    ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi", "name": "ann"}),
    ({"role": "assistant", "content": None}, {"role": "assistant"}),
    ({"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": [{"text": "a"}]}),
    (
        {"role": "assistant", "tool_calls": [{"function": {"arguments": {"cache_control": 1}}}]},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]},
    ),
    (
        {"role": "tool", "content": [{"type": "x", "json": {"cache_control": 1}}]},
        {"role": "tool", "content": [{"type": "x", "json": {}}]},
    ),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_spellings_of_the_same_message_are_equal(one, other):
    assert canonical_dumps(chat.canonical(one)) == canonical_dumps(chat.canonical(other))


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_messages_are_not(one, other):
    assert canonical_dumps(chat.canonical(one)) != canonical_dumps(chat.canonical(other))


def test_the_conversation_tells_tools_schema_limit_and_leading_system_messages():
    body = {
        "model": "m",
        "stream": True,
        "max_tokens": 5,
        "max_completion_tokens": 7,
        "tools": [{"t": 1}],
        "response_format": {"type": "json_object"},
        "messages": [{"role": "system"}, {"role": "developer"}, {"role": "user", "content": "x"}, {"role": "system"}],
    }
    read = chat.read(dumps(body))
    assert (read.dialect, read.model, read.stream, read.output_limit, read.lead) == ("chat", "m", True, 7, 2)
    assert (read.tools, read.schema) == (b'[{"t":1}]', b'{"type":"json_object"}')
    assert (read.system, read.server_held, read.items_key) == (b"", False, "messages")


def test_legacy_functions_are_tools():
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "functions": [{"name": "look"}]}
    assert chat.read(dumps(body)).tools == b'[{"name":"look"}]'


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_text_item_reads_back(role):
    item = loads(chat.text_item(role, "wörds"))
    assert chat.facts(item).role == role
    assert list(chat.parts(item)) == [Part("text", "wörds")]


def test_there_is_no_text_item_of_a_tool():
    with pytest.raises(ValueError):
        chat.text_item("tool", "x")


PREPENDED = [
    ({"role": "user", "content": "b", "name": "n"}, {"role": "user", "content": "a\n\nb", "name": "n"}),
    ({"role": "user", "content": ""}, {"role": "user", "content": "a"}),
    (
        {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
    ),
    ({"role": "user", "content": None}, None),
    ({"role": "assistant", "content": "b"}, None),
    ({"role": "tool", "content": "b", "tool_call_id": "c"}, None),
]


@pytest.mark.parametrize(("item", "result"), PREPENDED)
def test_words_are_put_before_a_user_message(item, result):
    got = chat.prepend_text(item, "a")
    assert (None if got is None else loads(got)) == result


def test_thinking_is_not_dropped_here():
    item = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    assert loads(chat.drop_thinking(item)) == item


def _request(**given):
    asked = {"model": "m", "system": "s", "prompt": "p", "max_output": 9, "stream": True, **given}
    return loads(chat.text_request(**asked))


def test_a_plain_request():
    assert _request() == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "p"}],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert _request(stream=False, system="", max_output=None) == {
        "model": "m",
        "messages": [{"role": "user", "content": "p"}],
        "stream": False,
    }


@pytest.mark.parametrize(("used", "named"), [("max_completion_tokens",) * 2, ("max_tokens",) * 2, ("x", "max_tokens")])
def test_a_plain_request_names_its_limit_as_the_client_does(used, named):
    like = chat.read(dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], used: 100}))
    request = _request(like=like)
    assert {key for key in request if key.startswith("max")} == {named}
    assert request[named] == 9


def test_extra_fields_are_added_and_removed():
    request = _request(extra={"stream_options": None, "temperature": 0})
    assert "stream_options" not in request
    assert request["temperature"] == 0
