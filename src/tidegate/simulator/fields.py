"""Which fields and types the strict APIs know: anything else is refused as unknown.

Data, from the public request schemas (late 2026). Read by the rule modules.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CHAT_BODY = _names(
    "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages "
    "metadata modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key "
    "prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier "
    "stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity "
    "web_search_options"
)
RESPONSES_BODY = _names(
    "access_programs background background_options client_metadata context_management conversation image include input "
    "instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls previous_response_id "
    "prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier "
    "store stream stream_options temperature text tool_choice tools top_logprobs top_p truncation user"
)
RESPONSES_COUNT_BODY = _names(
    "conversation input instructions model parallel_tool_calls personality previous_response_id reasoning text "
    "tool_choice tools truncation"
)
RESPONSES_COMPACT_BODY = _names(
    "image input instructions model previous_response_id prompt_cache_key prompt_cache_options prompt_cache_retention "
    "service_tier "
    # Not in the schema, and let through all the same.
    "parallel_tool_calls reasoning text tools"
)
MESSAGES_BODY = _names(
    "billing_policy cache_control compaction container context_management diagnostics fallback_credit_token fallbacks "
    "inference_geo max_tokens mcp_servers messages metadata model output_config service_tier speed stop_sequences "
    "stream system temperature thinking thread tool_choice tools top_k top_p user_profile_id workspace_id"
)
MESSAGES_COUNT_BODY = MESSAGES_BODY - _names(
    "container diagnostics fallback_credit_token fallbacks inference_geo max_tokens metadata service_tier "
    "stop_sequences stream temperature top_k top_p"
)

CHAT_PARTS = ("text", "image_url", "input_audio", "refusal", "audio", "file")

_ITEM = "id status type internal_chat_message_metadata_passthrough "
RESPONSES_ITEMS: dict[str, frozenset[str]] = {
    kind: _names(_ITEM + more)
    for kind, more in {
        "message": "content phase role",
        "file_search_call": "queries results",
        "computer_call": "action actions call_id pending_safety_checks",
        "computer_call_output": "acknowledged_safety_checks call_id output",
        "web_search_call": "action",
        "function_call": "arguments async call_id caller name namespace",
        "function_call_output": "call_id caller name namespace output",
        "tool_search_call": "arguments call_id execution",
        "tool_search_output": "call_id execution tools",
        "additional_tools": "role tools",
        "configuration_update": "reasoning text",
        "reasoning": "content encrypted_content summary",
        "compaction": "encrypted_content",
        "image_generation_call": "action background error output_format quality result revised_prompt size svg_usage",
        "code_interpreter_call": "code container_id outputs",
        "local_shell_call": "action call_id",
        "local_shell_call_output": "call_id output",
        "shell_call": "action call_id caller environment",
        "shell_call_output": "call_id caller max_output_length output",
        "apply_patch_call": "call_id caller operation",
        "apply_patch_call_output": "call_id caller output",
        "mcp_list_tools": "error server_label tools",
        "mcp_approval_request": "arguments name server_label",
        "mcp_approval_response": "approval_request_id approve reason",
        "mcp_call": "approval_request_id arguments error name output server_label",
        "custom_tool_call": "async call_id caller input name namespace",
        "custom_tool_call_output": "call_id caller name output",
        "item_reference": "",
        "program": "call_id code fingerprint",
        "program_output": "call_id result",
    }.items()
}
# A reasoning item has no status on the way in: other makers' items that carry one are refused.
RESPONSES_ITEMS["reasoning"] -= {"status"}

RESPONSES_PREFIXES: dict[str, tuple[str, ...]] = {
    "message": ("msg",),
    "function_call": ("fc",),
    "reasoning": ("rs",),
    "compaction": ("cmp",),
    "custom_tool_call": ("ctc",),
    "web_search_call": ("ws",),
    "file_search_call": ("fs",),
    "code_interpreter_call": ("ci",),
    "mcp_call": ("mcp",),
}

RESPONSES_PARTS: dict[str, tuple[str, ...]] = {
    "assistant": ("output_text", "refusal"),
    "user": ("input_text", "input_image", "input_file", "input_audio"),
}

_CACHED = "cache_control type "
MESSAGES_BLOCKS: dict[str, frozenset[str]] = {
    kind: _names(_CACHED + more)
    for kind, more in {
        "text": "citations text",
        "image": "source transformations",
        "document": "citations context source title",
        "search_result": "citations content source title",
        "tool_use": "caller id input name toolset_name",
        "tool_result": "content is_error tool_use_id toolset_name",
        "server_tool_use": "caller id input name",
        "web_search_tool_result": "caller content tool_use_id",
        "web_fetch_tool_result": "caller content tool_use_id",
        "advisor_tool_result": "content tool_use_id",
        "code_execution_tool_result": "content tool_use_id",
        "bash_code_execution_tool_result": "content tool_use_id",
        "text_editor_code_execution_tool_result": "content tool_use_id",
        "tool_search_tool_result": "content tool_use_id",
        "mcp_tool_use": "id input name server_name",
        "mcp_tool_result": "content is_error tool_use_id",
        "container_upload": "file_id",
        "tool_addition": "tool",
        "tool_removal": "tool",
        "compaction": "content encrypted_content signature tool_changes",
    }.items()
} | {
    "thinking": _names("signature thinking type"),
    "redacted_thinking": _names("data type"),
    "mcp_tool_listing": _names("mcp_server_name tools type"),
    "fallback": _names("from to trigger type"),
}
