"""Responses: what a request says, item by item."""

import pytest
from wire_media import b64, pdf, png

from tidegate.wire import responses
from tidegate.wire.conversation import Facts, Part
from tidegate.wire.jsontext import canonical_dumps, dumps, loads

PNG = b64(png(640, 480))
PNG_URL = f"data:image/png;base64,{PNG}"
PDF = b64(pdf(2))

FACTS = [
    ({"role": "user", "content": "hi"}, Facts("message", "user", human=True)),
    ({"type": "message", "role": "user", "content": ""}, Facts("message", "user")),
    ({"type": "message", "role": "developer", "content": [], "id": "msg_1"},
     Facts("message", "system", ids=("msg_1",))),
    ({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
     Facts("message", "assistant", ids=("msg_1",))),
    ({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
     Facts("reasoning", "assistant", ids=("rs_1",), leans_on_next=True)),
    ({"type": "function_call", "id": "fc_1", "call_id": "c", "name": "look", "arguments": "{}"},
     Facts("function_call", "assistant", calls=("c",), ids=("fc_1",))),
    ({"type": "function_call_output", "call_id": "c", "output": "x", "id": "fco_1"},
     Facts("function_call_output", "tool", results=("c",), ids=("fco_1",))),
    ({"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"},
     Facts("custom_tool_call", "assistant", calls=("c",))),
    ({"type": "custom_tool_call_output", "call_id": "c"}, Facts("custom_tool_call_output", "tool", results=("c",))),
    ({"type": "local_shell_call", "id": "ls_1", "call_id": "c"},
     Facts("local_shell_call", "assistant", calls=("c",), ids=("ls_1",))),
    ({"type": "local_shell_call_output", "id": "c"},
     Facts("local_shell_call_output", "tool", results=("c",), ids=("c",), mentions=("c",))),
    ({"type": "shell_call", "call_id": "c"}, Facts("shell_call", "assistant", calls=("c",))),
    ({"type": "shell_call_output", "call_id": "c"}, Facts("shell_call_output", "tool", results=("c",))),
    ({"type": "apply_patch_call", "call_id": "c"}, Facts("apply_patch_call", "assistant", calls=("c",))),
    ({"type": "apply_patch_call_output", "call_id": "c"}, Facts("apply_patch_call_output", "tool", results=("c",))),
    ({"type": "computer_call", "id": "cu_1", "call_id": "c"},
     Facts("computer_call", "assistant", calls=("c",), ids=("cu_1",))),
    ({"type": "computer_call_output", "call_id": "c"}, Facts("computer_call_output", "tool", results=("c",))),
    ({"type": "tool_search_call", "call_id": "c"}, Facts("tool_search_call", "assistant", calls=("c",))),
    ({"type": "tool_search_output", "call_id": "c"}, Facts("tool_search_output", "tool", results=("c",))),
    ({"type": "tool_search_call", "call_id": None, "execution": "server"},
     Facts("tool_search_call", "assistant", calls=("tool_search",))),
    ({"type": "tool_search_output", "call_id": None}, Facts("tool_search_output", "tool", results=("tool_search",))),
    ({"type": "mcp_approval_request", "id": "mcpr_1"},
     Facts("mcp_approval_request", "assistant", calls=("mcpr_1",), ids=("mcpr_1",))),
    ({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
     Facts("mcp_approval_response", "tool", results=("mcpr_1",))),
    ({"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1"},
     Facts("mcp_call", "assistant", ids=("mcp_1",), mentions=("mcpr_1",))),
    ({"type": "mcp_list_tools", "id": "mcpl_1"}, Facts("mcp_list_tools", "assistant", ids=("mcpl_1",))),
    ({"type": "web_search_call", "id": "ws_1"}, Facts("web_search_call", "assistant", ids=("ws_1",))),
    ({"type": "file_search_call", "id": "fs_1"}, Facts("file_search_call", "assistant", ids=("fs_1",))),
    ({"type": "code_interpreter_call", "id": "ci_1"}, Facts("code_interpreter_call", "assistant", ids=("ci_1",))),
    ({"type": "image_generation_call", "id": "ig_1"}, Facts("image_generation_call", "assistant", ids=("ig_1",))),
    ({"type": "program", "id": "p_1", "call_id": "c"}, Facts("program", "assistant", calls=("c",), ids=("p_1",))),
    ({"type": "program_output", "id": "po_1", "call_id": "c"},
     Facts("program_output", "tool", results=("c",), ids=("po_1",))),
    ({"type": "function_call", "call_id": "d", "caller": {"type": "program", "caller_id": "c"}},
     Facts("function_call", "assistant", calls=("d",), mentions=("c",))),
    ({"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
     Facts("compaction", "other", ids=("cmp_1",), opaque=True)),
    ({"type": "compaction_summary", "encrypted_content": "x"}, Facts("compaction_summary", "other", opaque=True)),
    ({"type": "context_compaction", "encrypted_content": "x"}, Facts("context_compaction", "other", opaque=True)),
    ({"type": "compaction_trigger"}, Facts("compaction_trigger", "other")),
    ({"type": "item_reference", "id": "msg_1"},
     Facts("item_reference", "other", ids=("msg_1",), mentions=("msg_1",), reference=True)),
    ({"id": "msg_1"}, Facts("item_reference", "other", ids=("msg_1",), mentions=("msg_1",), reference=True)),
]  # fmt: skip


@pytest.mark.parametrize(("item", "facts"), FACTS)
def test_facts(item, facts):
    assert responses.facts(item) == facts


@pytest.mark.parametrize("kind", ["additional_tools", "configuration_update"])
def test_items_that_govern_what_follows_count_as_system(kind):
    assert responses.facts({"type": kind, "id": "x"}).role == "system"


@pytest.mark.parametrize(
    ("kind", "role"), [("dream_call", "assistant"), ("dream_call_output", "tool"), ("dream", "other")]
)
def test_an_unknown_item_bears_its_ids_and_mentions_all_it_could_mean(kind, role):
    facts = responses.facts({"type": kind, "id": "d_1", "call_id": "c", "of": ["rs_1", "two words"]})
    assert (facts.role, facts.ids, facts.calls, facts.results) == (role, ("d_1", "c"), (), ())
    assert {"d_1", "c", "rs_1"} <= set(facts.mentions)
    assert "two words" not in facts.mentions


def test_an_unknown_part_mentions_all_it_could_mean():
    facts = responses.facts({"role": "user", "content": [{"type": "holo", "of": "rs_1"}]})
    assert "rs_1" in facts.mentions
    assert facts.human


PARTS = [
    ({"role": "user", "content": "hi"}, [Part("text", "hi")]),
    ({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"},
                                                           {"type": "refusal", "refusal": "b"}]},
     [Part("text", "a"), Part("text", "b")]),
    ({"role": "user", "content": [{"type": "input_text", "text": "a"},
                                  {"type": "input_image", "image_url": PNG_URL, "detail": "low"}]},
     [Part("text", "a"), Part("image", name="image/png", width=640, height=480, detail="low", data_bytes=len(PNG))]),
    ({"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}, [Part("image", name="file-1")]),
    ({"role": "user", "content": [{"type": "input_file", "filename": "a.pdf",
                                    "file_data": f"data:application/pdf;base64,{PDF}"}]},
     [Part("file", name="a.pdf", pages=2, data_bytes=len(PDF))]),
    ({"role": "user", "content": [{"type": "input_file", "file_data": PDF}]},
     [Part("file", name="application/pdf", pages=2, data_bytes=len(PDF))]),
    ({"role": "user", "content": [{"type": "input_file", "file_url": "https://example.org/a.pdf"}]},
     [Part("file", name="https://example.org/a.pdf")]),
    ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}]},
     [Part("audio", name="mp3", data_bytes=4)]),
    ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}],
      "content": [{"type": "reasoning_text", "text": "b"}], "encrypted_content": "gAAA"},
     [Part("thinking", "a\nb"), Part("opaque", data_bytes=4)]),
    ({"type": "reasoning", "summary": [], "content": None}, []),
    ({"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"a":1}'},
     [Part("call", '{"a":1}', name="look", id="c")]),
    ({"type": "function_call_output", "call_id": "c", "output": "seen"}, [Part("result", "seen", id="c")]),
    ({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"},
                                                                  {"type": "input_image", "image_url": PNG_URL}]},
     [Part("result", "a", id="c"), Part("image", name="image/png", width=640, height=480, data_bytes=len(PNG))]),
    ({"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"}, [Part("call", "x", name="p", id="c")]),
    ({"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
     [Part("call", '{"command":["ls"]}', name="local_shell_call", id="c")]),
    ({"type": "local_shell_call_output", "id": "c", "output": "out"}, [Part("result", "out", id="c")]),
    ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]},
     [Part("result", '{"stdout":"a","stderr":""}', id="c")]),
    ({"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "x"}},
     [Part("call", '{"type":"delete_file","path":"x"}', name="apply_patch_call", id="c")]),
    ({"type": "computer_call", "call_id": "c", "actions": [{"type": "wait"}]},
     [Part("call", '[{"type":"wait"}]', name="computer_call", id="c")]),
    ({"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": PNG_URL}},
     [Part("result", id="c"), Part("image", name="image/png", width=640, height=480, data_bytes=len(PNG))]),
    ({"type": "mcp_approval_request", "id": "r", "name": "look", "arguments": "{}"},
     [Part("call", "{}", name="look", id="r")]),
    ({"type": "mcp_approval_response", "approval_request_id": "r", "approve": False, "reason": "no"},
     [Part("result", "false\nno", id="r")]),
    ({"type": "mcp_call", "id": "m", "name": "look", "arguments": "{}", "output": "seen", "error": None},
     [Part("call", "{}", name="look", id="m"), Part("result", "seen", name="look", id="m")]),
    ({"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}},
     [Part("call", '{"type":"search","query":"q"}', name="web_search_call", id="w")]),
    ({"type": "file_search_call", "id": "f", "queries": ["q"], "results": [{"text": "t"}]},
     [Part("call", '["q"]', name="file_search_call", id="f"),
      Part("result", '{"text":"t"}', name="file_search_call", id="f")]),
    ({"type": "code_interpreter_call", "id": "i", "code": "1+1", "outputs": [{"type": "image", "url": PNG_URL}]},
     [Part("call", "1+1", name="code_interpreter_call", id="i"), Part("result", name="code_interpreter_call", id="i"),
      Part("image", name="image/png", width=640, height=480, data_bytes=len(PNG))]),
    ({"type": "image_generation_call", "id": "g", "revised_prompt": "a boat", "result": PNG},
     [Part("call", "a boat", name="image_generation_call", id="g"),
      Part("image", name="image/png", width=640, height=480, data_bytes=len(PNG))]),
    ({"type": "tool_search_output", "call_id": "c", "tools": [{"name": "t"}]},
     [Part("result", '{"name":"t"}', id="c")]),
    ({"type": "compaction", "encrypted_content": "gAAA"}, [Part("opaque", data_bytes=4)]),
    ({"type": "item_reference", "id": "msg_1"}, [Part("json", '{"type":"item_reference","id":"msg_1"}')]),
    ({"type": "dream", "n": 1}, [Part("json", '{"type":"dream","n":1}')]),
    ({"role": "user", "content": [{"type": "holo", "n": 1}]}, [Part("json", '{"type":"holo","n":1}')]),
]  # fmt: skip


@pytest.mark.parametrize(("item", "parts"), PARTS)
def test_parts(item, parts):
    assert list(responses.parts(item)) == parts


def test_base64_of_an_unknown_item_is_no_text_but_is_counted():
    words, payload = responses.parts({"type": "dream", "result": PNG, "n": 1})
    assert words == Part("json", '{"type":"dream","result":"","n":1}')
    assert payload == Part("opaque", data_bytes=len(PNG))


EQUAL = [
    ({"role": "user", "content": "hi"}, {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
    ({"role": "developer", "content": "hi"}, {"role": "developer", "content": [{"type": "input_text", "text": "hi"}]}),
    ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": [{"text": "a", "type": "output_text"}]}),
    (
        {"role": "user", "content": [{"type": "input_text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "a"},
    ),
]
DIFFERENT = [
    ({"role": "user", "content": "hi"}, {"type": "message", "role": "user", "content": "hi"}),
    ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi", "id": "msg_1"}),
    ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": [{"text": "a", "type": "input_text"}]}),
    ({"type": "function_call", "arguments": '{"a":1}'}, {"type": "function_call", "arguments": '{"a": 1}'}),
    (
        {"type": "local_shell_call", "action": {"cache_control": 1}},
        {"type": "local_shell_call", "action": {}},
    ),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_spellings_of_the_same_item_are_equal(one, other):
    assert canonical_dumps(responses.canonical(one)) == canonical_dumps(responses.canonical(other))


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_items_are_not(one, other):
    assert canonical_dumps(responses.canonical(one)) != canonical_dumps(responses.canonical(other))


def _read(**fields):
    return responses.read(dumps({"model": "m", "input": "hi", **fields}))


def test_the_conversation_tells_instructions_tools_schema_and_limit():
    read = _read(instructions="be", tools=[1], text={"v": 1}, max_output_tokens=7, stream=True)
    assert (read.system, read.tools, read.schema) == (b'"be"', b"[1]", b'{"v":1}')
    assert (read.output_limit, read.stream, read.items_key, read.lead) == (7, True, "input", 0)


def test_leading_developer_items_are_counted():
    items = [
        {"type": "message", "role": "developer", "content": "a"},
        {"type": "additional_tools", "role": "developer"},
    ]
    assert _read(input=[*items, {"role": "user", "content": "x"}, {"role": "system", "content": "y"}]).lead == 2


HELD = [
    ({"previous_response_id": "resp_1"}, True),
    ({"previous_response_id": None, "conversation": None}, False),
    ({"conversation": "conv_1"}, True),
    ({"conversation": {"id": "conv_1"}}, True),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, True),
    ({"input": [{"role": "user", "content": "x"}, {"id": "msg_1"}]}, True),
    ({"input": [{"id": "msg_1", "type": None}]}, True),
    ({"input": [{"role": "user", "content": "what is an item_reference?"}]}, False),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x", "id": None}]}, False),
]


@pytest.mark.parametrize(("fields", "held"), HELD)
def test_history_that_the_server_holds_is_known(fields, held):
    assert _read(**fields).server_held is held


PREPENDED = [
    ({"role": "user", "content": "b"}, {"role": "user", "content": "a\n\nb"}),
    (
        {"type": "message", "role": "user", "content": [{"type": "input_image"}], "id": "msg_1"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_image"}],
            "id": "msg_1",
        },
    ),
    ({"role": "assistant", "content": "b"}, None),
    ({"type": "function_call_output", "call_id": "c", "output": "b"}, None),
    ({"role": "user", "content": 7}, None),
]


@pytest.mark.parametrize(("item", "result"), PREPENDED)
def test_words_are_put_before_a_user_message(item, result):
    got = responses.prepend_text(item, "a")
    assert (None if got is None else loads(got)) == result


def test_a_reasoning_item_is_thinking_as_a_whole():
    assert responses.drop_thinking({"type": "reasoning", "id": "rs_1"}) is None
    message = {"role": "assistant", "content": "a"}
    assert loads(responses.drop_thinking(message)) == message


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_text_item_reads_back(role):
    item = loads(responses.text_item(role, "wörds"))
    assert responses.facts(item).role == role
    assert list(responses.parts(item)) == [Part("text", "wörds")]
    assert responses.canonical(item) == item


def test_there_is_no_text_item_of_a_tool():
    with pytest.raises(ValueError):
        responses.text_item("tool", "x")


def test_a_plain_request():
    asked = {"model": "m", "system": "s", "prompt": "p", "max_output": 9, "stream": True}
    assert loads(responses.text_request(**asked)) == {
        "model": "m",
        "instructions": "s",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "p"}]}],
        "max_output_tokens": 9,
        "store": False,
        "stream": True,
    }
    bare = loads(responses.text_request(**{**asked, "system": "", "max_output": None}, extra={"store": None, "x": 1}))
    assert set(bare) == {"model", "input", "stream", "x"}
