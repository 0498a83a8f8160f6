"""Bodies and items for property tests: any JSON, hostile items, and writers of every legal spelling of JSON."""

import json

from hypothesis import strategies as st

# Lone surrogates are what JavaScript clients send when they cut a text; st.text() alone leaves them out.
texts = st.text(alphabet=st.characters(codec=None), max_size=12) | st.sampled_from(
    ["", "\ud800", "a\udc00b", "é", "漢字", "😀", 'quote"back\\slash', "\x00\n\t", "</transcript>", "x" * 600]
)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)

KEYS = [
    "type", "role", "content", "text", "id", "call_id", "tool_use_id", "tool_call_id", "tool_calls", "function",
    "function_call", "name", "arguments", "input", "output", "summary", "encrypted_content", "thinking", "signature",
    "data", "source", "media_type", "image_url", "url", "file", "file_data", "input_audio", "cache_control", "action",
    "outputs", "results", "result", "caller", "caller_id", "custom", "audio", "refusal", "reasoning_details", "title",
    "context", "approval_request_id", "tools", "error", "reasoning_content", "item",
]  # fmt: skip
WORDS = [
    "message", "text", "input_text", "output_text", "image", "image_url", "input_image", "input_file", "file",
    "document", "refusal", "input_audio", "tool_use", "tool_result", "server_tool_use",
    "web_search_tool_result", "mcp_tool_use", "mcp_tool_result", "thinking", "redacted_thinking", "compaction",
    "search_result", "container_upload", "base64", "content", "url", "web_fetch_result", "reasoning",
    "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "local_shell_call",
    "local_shell_call_output", "shell_call", "computer_call", "computer_call_output", "computer_screenshot",
    "apply_patch_call", "mcp_call", "mcp_approval_request", "mcp_approval_response", "mcp_list_tools",
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "tool_search_call",
    "tool_search_output", "item_reference", "compaction_trigger", "user", "assistant", "system", "developer",
    "tool", "function", "program", "program_output", "unheard_of", "data:image/png;base64,iVBORw0KGgo=",
    "application/pdf", "JVBERi0xLjQK", "additional_tools",
]  # fmt: skip

hostile_values = st.recursive(
    st.none() | st.booleans() | numbers | texts | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)
hostile_items = st.dictionaries(st.sampled_from(KEYS) | texts, hostile_values, max_size=8)


@st.composite
def spelled(draw, value):
    """JSON text of a value with whitespace, key order and escapes as some client might write them."""
    return _spell(value, draw(st.randoms(use_true_random=False)), draw(st.booleans())).encode()


def _spell(value, random, ascii_only):
    def space():
        return random.choice(["", "", " ", "\n", "\t ", "\r\n  "])

    if isinstance(value, dict):
        pairs = [
            f"{space()}{_text(key, ascii_only)}{space()}:{space()}{_spell(part, random, ascii_only)}{space()}"
            for key, part in value.items()
        ]
        return "{" + (",".join(pairs) or space()) + "}"
    if isinstance(value, list):
        parts = [f"{space()}{_spell(part, random, ascii_only)}{space()}" for part in value]
        return "[" + (",".join(parts) or space()) + "]"
    return _text(value, ascii_only) if isinstance(value, str) else json.dumps(value)


def _text(text, ascii_only):
    lone = any("\ud800" <= letter <= "\udfff" for letter in text)
    return json.dumps(text, ensure_ascii=ascii_only or lone)
