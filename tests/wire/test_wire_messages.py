"""Messages: what a request says, message by message and block by block."""

import pytest
from wire_media import b64, pdf, png

from tidegate.wire import messages
from tidegate.wire.conversation import Facts, Part
from tidegate.wire.jsontext import canonical_dumps, dumps, loads

PNG = b64(png(640, 480))
PDF = b64(pdf(2))
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
IMAGE_PART = Part("image", name="image/png", width=640, height=480, data_bytes=len(PNG))
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "x"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen"}
SEARCH = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "q"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srv_1",
         "content": [{"type": "web_search_result", "title": "t", "encrypted_content": "E" * 600}]}  # fmt: skip
THINKING = {"type": "thinking", "thinking": "hm", "signature": "SIG="}
TEXT = {"type": "text", "text": "words"}


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


FACTS = [
    ({"role": "user", "content": "hi"}, Facts("message", "user", human=True)),
    ({"role": "user", "content": ""}, Facts("message", "user")),
    (user(TEXT), Facts("message", "user", human=True)),
    (user(IMAGE), Facts("message", "user", human=True)),
    (user(RESULT), Facts("message", "tool", results=("toolu_1",))),
    (user(RESULT, {"type": "text", "text": ""}), Facts("message", "tool", results=("toolu_1",))),
    (user(RESULT, TEXT), Facts("message", "user", human=True, results=("toolu_1",))),
    ({"role": "system", "content": "from now on"}, Facts("message", "system")),
    (assistant(TEXT, USE, {**USE, "id": "toolu_2"}), Facts("message", "assistant", calls=("toolu_1", "toolu_2"))),
    (assistant(THINKING, TEXT), Facts("message", "assistant", thinking=True)),
    (assistant({"type": "redacted_thinking", "data": "AAAA"}), Facts("message", "assistant", thinking=True)),
    (assistant(SEARCH, FOUND, TEXT), Facts("message", "assistant")),
    (assistant(SEARCH), Facts("message", "assistant", calls=("srv_1",))),
    (assistant(FOUND, TEXT), Facts("message", "assistant", results=("srv_1",))),
    (assistant({"type": "mcp_tool_use", "id": "mcp_1"}, {"type": "mcp_tool_result", "tool_use_id": "mcp_1"}, USE),
     Facts("message", "assistant", calls=("toolu_1",))),
    (assistant({"type": "compaction", "content": "so far"}), Facts("message", "assistant", opaque=True)),
    (assistant({"type": "compaction", "content": None}), Facts("message", "assistant")),
]  # fmt: skip


@pytest.mark.parametrize(("item", "facts"), FACTS)
def test_facts(item, facts):
    assert messages.facts(item) == facts


def test_an_unknown_block_bears_its_ids_and_mentions_all_it_could_mean():
    facts = messages.facts(user({"type": "holo", "id": "h_1", "of": {"toolu_9": "two words"}}))
    assert facts.ids == ("h_1",)
    assert {"h_1", "toolu_9"} <= set(facts.mentions)
    assert "two words" not in facts.mentions
    assert facts.human


def test_an_unknown_role_mentions_all_it_could_mean():
    facts = messages.facts({"role": "oracle", "of": "toolu_1"})
    assert facts.role == "other"
    assert "toolu_1" in facts.mentions


PARTS = [
    ({"role": "user", "content": "hi"}, [Part("text", "hi")]),
    ({"role": "system", "content": [TEXT]}, [Part("text", "words")]),
    (user(TEXT, {"type": "text", "text": ""}), [Part("text", "words")]),
    (user(IMAGE), [IMAGE_PART]),
    (user({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}), [Part("image")]),
    (user({"type": "image", "source": {"type": "file", "file_id": "file_1"}}), [Part("image", name="file_1")]),
    (user({"type": "document", "title": "A", "context": "why",
           "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}),
     [Part("text", "why"), Part("file", name="A", pages=2, data_bytes=len(PDF))]),
    (user({"type": "document", "title": "A", "source": {"type": "text", "data": "long text"}}),
     [Part("text", "long text", name="A")]),
    (user({"type": "document", "source": {"type": "content", "content": [TEXT, IMAGE]}}),
     [Part("text", "words"), IMAGE_PART]),
    (user({"type": "document", "source": {"type": "content", "content": "words"}}), [Part("text", "words")]),
    (user({"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}),
     [Part("file", name="https://example.org/a.pdf")]),
    (user({"type": "document", "source": {"type": "file", "file_id": "file_1"}}), [Part("file", name="file_1")]),
    (user({"type": "container_upload", "file_id": "file_1"}), [Part("file", name="file_1")]),
    (user({"type": "search_result", "title": "T", "source": "S", "content": [TEXT]}),
     [Part("text", "T\nS"), Part("text", "words")]),
    (assistant(THINKING), [Part("thinking", "hm", data_bytes=4)]),
    (assistant({"type": "redacted_thinking", "data": "AAAA"}), [Part("opaque", data_bytes=4)]),
    (assistant(USE), [Part("call", '{"at":"x"}', name="look", id="toolu_1")]),
    (user(RESULT), [Part("result", "seen", id="toolu_1")]),
    (user({**RESULT, "content": [TEXT, IMAGE, TEXT]}), [Part("result", "words\nwords", id="toolu_1"), IMAGE_PART]),
    (user({**RESULT, "content": [{"type": "tool_reference", "tool_name": "t"}]}),
     [Part("result", '{"type":"tool_reference","tool_name":"t"}', id="toolu_1")]),
    (user({"type": "tool_result", "tool_use_id": "toolu_1"}), [Part("result", id="toolu_1")]),
    (assistant(SEARCH), [Part("call", '{"query":"q"}', name="web_search", id="srv_1")]),
    (assistant(FOUND), [Part("result", '{"type":"web_search_result","title":"t","encrypted_content":""}', id="srv_1"),
                        Part("opaque", data_bytes=600)]),
    (assistant({"type": "code_execution_tool_result", "tool_use_id": "srv_1",
                "content": {"type": "code_execution_result", "stdout": "4", "return_code": 0}}),
     [Part("result", '{"type":"code_execution_result","stdout":"4","return_code":0}', id="srv_1")]),
    (assistant({"type": "web_fetch_tool_result", "tool_use_id": "srv_1",
                "content": {"type": "web_fetch_result", "url": "u", "content":
                            {"type": "document", "source": {"type": "text", "data": "page"}}}}),
     [Part("result", "u\npage", id="srv_1")]),
    (assistant({"type": "mcp_tool_result", "tool_use_id": "mcp_1", "content": [TEXT]}),
     [Part("result", "words", id="mcp_1")]),
    (assistant({"type": "compaction", "content": "so far", "encrypted_content": "AAAA"}),
     [Part("opaque", "so far", data_bytes=4)]),
    (user({"type": "holo", "n": 1}, 7), [Part("json", '{"type":"holo","n":1}'), Part("json", "7")]),
    ({"role": "oracle", "content": "x"}, [Part("json", '{"role":"oracle","content":"x"}')]),
    ({"role": "user", "content": {"type": "text"}}, [Part("json", '{"role":"user","content":{"type":"text"}}')]),
    ({"role": "user"}, [Part("json", '{"role":"user"}')]),
]  # fmt: skip


@pytest.mark.parametrize(("item", "parts"), PARTS)
def test_parts(item, parts):
    assert list(messages.parts(item)) == parts


def test_base64_of_an_unknown_block_is_no_text_but_is_counted():
    words, payload = messages.parts(user({"type": "holo", "source": {"type": "base64", "data": PNG}}))
    assert words == Part("json", '{"type":"holo","source":{"type":"base64","data":""}}')
    assert payload == Part("opaque", data_bytes=len(PNG))


CACHED = {"cache_control": {"type": "ephemeral"}}
EQUAL = [
    ({"role": "user", "content": "words"}, user(TEXT)),
    (user({**TEXT, **CACHED}), {"role": "user", "content": "words"}),
    ({**user(TEXT), **CACHED}, user(TEXT)),
    (assistant({**USE, **CACHED}), assistant(USE)),
    (user({**RESULT, **CACHED}), user(RESULT)),
    (user(RESULT), user({**RESULT, "content": [{"type": "text", "text": "seen"}]})),
    (user({**RESULT, "content": [{"type": "text", "text": "seen", **CACHED}]}), user(RESULT)),
    (
        user({"type": "mcp_tool_result", "tool_use_id": "m", "content": [{**TEXT, **CACHED}]}),
        user({"type": "mcp_tool_result", "tool_use_id": "m", "content": "words"}),
    ),
    (user({"tool_use_id": "toolu_1", "content": "seen", "type": "tool_result"}), user(RESULT)),
]
DIFFERENT = [
    ({"role": "user", "content": "words"}, {"role": "assistant", "content": "words"}),
    (user(TEXT, TEXT), {"role": "user", "content": "wordswords"}),
    (user({**TEXT, "citations": []}), user(TEXT)),
    (user({**RESULT, "is_error": False}), user(RESULT)),
    (assistant({**USE, "input": {"at": "x", **CACHED}}), assistant(USE)),
    (
        user({**RESULT, "content": [{"type": "holo", "json": {"n": 1, **CACHED}}]}),
        user({**RESULT, "content": [{"type": "holo", "json": {"n": 1}}]}),
    ),
    (
        user({**RESULT, "type": "code_execution_tool_result", "content": {"stdout": "", **CACHED}}),
        user({**RESULT, "type": "code_execution_tool_result", "content": {"stdout": ""}}),
    ),
    (assistant({**THINKING, "signature": "x"}), assistant(THINKING)),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_spellings_of_the_same_message_are_equal(one, other):
    assert canonical_dumps(messages.canonical(one)) == canonical_dumps(messages.canonical(other))


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_messages_are_not(one, other):
    assert canonical_dumps(messages.canonical(one)) != canonical_dumps(messages.canonical(other))


def test_the_conversation_tells_system_tools_schema_and_limit():
    body = {"model": "m", "max_tokens": 7, "system": [TEXT], "tools": [USE], "output_config": {"format": 1}}
    read = messages.read(dumps({**body, "messages": [{"role": "user", "content": "x"}]}))
    assert (read.system, read.tools, read.schema) == (dumps([TEXT]), dumps([USE]), b'{"format":1}')
    assert (read.output_limit, read.stream, read.lead, read.server_held) == (7, False, 0, False)


@pytest.mark.parametrize(("thread", "held"), [({"type": "create"}, True), (None, False)])
def test_a_thread_is_held_by_the_server(thread, held):
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "thread": thread}
    assert messages.read(dumps(body)).server_held is held


PREPENDED = [
    ({"role": "user", "content": "b"}, {"role": "user", "content": "a\n\nb"}),
    (user(IMAGE), user({"type": "text", "text": "a"}, IMAGE)),
    (user({**TEXT, **CACHED}), user({"type": "text", "text": "a"}, {**TEXT, **CACHED})),
    (user(RESULT), None),
    (user(RESULT, TEXT), None),
    (user({"type": "compaction", "content": "so far"}, TEXT), None),
    (assistant(TEXT), None),
    ({"role": "user", "content": None}, None),
]


@pytest.mark.parametrize(("item", "result"), PREPENDED)
def test_words_are_put_before_a_user_message(item, result):
    got = messages.prepend_text(item, "a")
    assert (None if got is None else loads(got)) == result


REDACTED = {"type": "redacted_thinking", "data": "AAAA"}
THOUGHTLESS = [
    (assistant(THINKING, TEXT, REDACTED, USE), assistant(TEXT, USE)),
    (assistant(TEXT), assistant(TEXT)),
    (assistant(THINKING, REDACTED), None),
    ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a"}),
]


@pytest.mark.parametrize(("item", "result"), THOUGHTLESS)
def test_thinking_blocks_are_dropped_whole(item, result):
    got = messages.drop_thinking(item)
    assert (None if got is None else loads(got)) == result


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_text_item_reads_back(role):
    item = loads(messages.text_item(role, "wörds"))
    assert messages.facts(item).role == role
    assert list(messages.parts(item)) == [Part("text", "wörds")]


def test_there_is_no_text_item_of_a_tool():
    with pytest.raises(ValueError):
        messages.text_item("tool", "x")


def test_a_plain_request():
    asked = {"model": "m", "system": "s", "prompt": "p", "max_output": 9, "stream": True}
    assert loads(messages.text_request(**asked)) == {
        "model": "m",
        "max_tokens": 9,
        "system": "s",
        "messages": [{"role": "user", "content": "p"}],
        "stream": True,
    }
    bare = loads(messages.text_request(**{**asked, "system": "", "max_output": None}, extra={"x": 1, "stream": None}))
    assert bare == {"model": "m", "max_tokens": 4096, "messages": [{"role": "user", "content": "p"}], "x": 1}
