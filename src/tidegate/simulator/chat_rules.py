"""What a chat completions request must look like.

Knows OpenAI's rules and the stricter ones of chat templates; not how answers look. Called by `chat`.
"""

from __future__ import annotations

import re

from tidegate.simulator.fields import CHAT_BODY, CHAT_PARTS
from tidegate.simulator.jsontext import JsonObject, JsonValue, objects
from tidegate.simulator.profiles import Profile
from tidegate.simulator.refusals import Refusal, refuse
from tidegate.simulator.world import Desk

_MAX_CALLS = 128
_REASONING_MODEL = re.compile(r"(o[134]|gpt-[5-9])\b")


def check(body: JsonObject, desk: Desk) -> list[JsonObject]:
    """The messages of a request that breaks no rule. Raises `Refusal` with the first one it breaks."""
    if not isinstance(body.get("model"), str) or not body["model"]:
        refuse("you must provide a model parameter", rule="model")
    desk.check_model(body["model"])
    messages = _messages(body)
    if desk.strict:
        for name in body:
            if name not in CHAT_BODY:
                refuse(f"Unrecognized request argument supplied: {name}", rule="unknown-field")
    for position, message in enumerate(messages):
        _message(position, message, desk.profile)
    _pairs(messages)
    if desk.profile.alternates:
        _alternation(messages, desk.profile)
    if desk.profile.name in ("openai", "groq"):
        _companions(body)
    if desk.profile.name == "openai":
        _limit_name(body)
    return messages


def output_limit(body: JsonObject) -> int | None:
    """The asked-for output limit in tokens. Raises `Refusal` where it is no positive number."""
    for name in ("max_completion_tokens", "max_tokens"):
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            refuse(f"Invalid type for '{name}': expected an integer.", rule="type", param=name, code="invalid_type")
        if value < 1:
            text = f"Invalid '{name}': integer below minimum value. Expected a value >= 1, but got {value} instead."
            refuse(text, rule="output-limit", param=name, code="integer_below_min_value")
        return value
    return None


def _messages(body: JsonObject) -> list[JsonObject]:
    messages = body.get("messages")
    if messages is None:
        text = "Missing required parameter: 'messages'."
        refuse(text, rule="required", param="messages", code="missing_required_parameter")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        text = "Invalid type for 'messages': expected an array of objects."
        refuse(text, rule="type", param="messages", code="invalid_type")
    if not messages:
        _empty_array("messages")
    return messages


def _empty_array(name: str) -> None:
    text = f"Invalid '{name}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    refuse(text, rule="empty", param=name, code="empty_array")


def _message(position: int, message: JsonObject, profile: Profile) -> None:
    role = message.get("role")
    at = f"messages[{position}]"
    if not isinstance(role, str) or role not in profile.roles:
        if profile.name == "deepseek":
            text = (
                f"Failed to deserialize the JSON body into the target type: {at}.role: unknown variant `{role}`, "
                "expected one of `system`, `user`, `assistant`, `tool`"
            )
            refuse(text, rule="role", status=422)
        known = ", ".join(f"'{name}'" for name in sorted(profile.roles))
        refuse(
            f"Invalid value: '{role}'. Supported values are: {known}.",
            rule="role",
            param=f"{at}.role",
            code="invalid_value",
        )
    _content(at, message, role)
    calls = message.get("tool_calls")
    if role == "assistant" and calls is not None:
        _calls(at, calls)
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        text = f"Missing required parameter: '{at}.tool_call_id'."
        refuse(text, rule="required", param=f"{at}.tool_call_id", code="missing_required_parameter")


def _content(at: str, message: JsonObject, role: JsonValue) -> None:
    content = message.get("content")
    if content is None:
        spoken = any(message.get(name) for name in ("tool_calls", "function_call", "refusal", "audio"))
        if role == "function" or (role == "assistant" and spoken):
            return
        text = "Invalid value for 'content': expected a string, got null."
        refuse(text, rule="content", param=f"{at.replace('[', '.[')}.content")
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        text = f"Invalid type for '{at}.content': expected one of a string or array of objects."
        refuse(text, rule="type", param=f"{at}.content", code="invalid_type")
    if not content:
        _empty_array(f"{at}.content")
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else part
        if kind not in CHAT_PARTS:
            known = ", ".join(f"'{name}'" for name in CHAT_PARTS)
            text = f"Invalid value: '{kind}'. Supported values are: {known}."
            refuse(text, rule="part-type", param=f"{at}.content[{index}].type", code="invalid_value")


def _calls(at: str, calls: JsonValue) -> None:
    name = f"{at}.tool_calls"
    if not isinstance(calls, list):
        refuse(
            f"Invalid type for '{name}': expected an array of objects.", rule="type", param=name, code="invalid_type"
        )
    if not calls:
        _empty_array(name)
    if len(calls) > _MAX_CALLS:
        text = (
            f"Invalid '{name}': array too long. Expected an array with maximum length {_MAX_CALLS}, but got an array "
            f"with length {len(calls)} instead."
        )
        refuse(text, rule="too-many-calls", param=name, code="array_above_max_length")
    for index, call in enumerate(calls):
        here = f"{name}[{index}]"
        if not isinstance(call, dict) or not isinstance(call.get("id"), str):
            text = f"Missing required parameter: '{here}.id'."
            refuse(text, rule="required", param=f"{here}.id", code="missing_required_parameter")
        body = call.get("function", call.get("custom"))
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            text = f"Missing required parameter: '{here}.function.name'."
            refuse(text, rule="required", param=f"{here}.function.name", code="missing_required_parameter")
        words = body.get("arguments", body.get("input"))
        if not isinstance(words, str):
            text = f"Invalid type for '{here}.function.arguments': expected a string."
            refuse(text, rule="type", param=f"{here}.function.arguments", code="invalid_type")


def _pairs(messages: list[JsonObject]) -> None:
    """Every call answered at once by tool messages, every tool message an answer."""
    open_calls: list[str] = []
    in_round = False
    for position, message in enumerate(messages):
        where = f"messages.[{position}]"
        if message["role"] == "tool":
            if not in_round:
                text = (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                    "'tool_calls'."
                )
                refuse(text, rule="result-without-call", param=f"{where}.role")
            answered = message["tool_call_id"]
            if answered not in open_calls:
                text = (
                    f"Invalid parameter: 'tool_call_id' of '{answered}' not found in 'tool_calls' of previous message."
                )
                refuse(text, rule="result-without-call", param=f"{where}.tool_call_id")
            open_calls.remove(answered)
            continue
        if open_calls:
            _unanswered(open_calls, where)
        open_calls = [call["id"] for call in _made_calls(message)]
        in_round = bool(open_calls)
    if open_calls:
        _unanswered(open_calls, f"messages.[{len(messages)}]")


def _made_calls(message: JsonObject) -> list[JsonObject]:
    return objects(message.get("tool_calls")) if message["role"] == "assistant" else []


def _unanswered(calls: list[str], where: str) -> None:
    text = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(calls)}"
    )
    refuse(text, rule="call-without-result", param=f"{where}.role")


def _alternation(messages: list[JsonObject], profile: Profile) -> None:
    """The rule of strict chat templates: after one optional system message, user and assistant take turns, tool
    rounds not counted, and the user begins."""
    spoken = messages[1:] if messages[0]["role"] in ("system", "developer") else messages
    expected = "user"
    before = "system" if len(spoken) < len(messages) else "start"
    for message in spoken:
        role = message["role"]
        if role in ("tool", "function") or _made_calls(message):
            before = role
            continue
        if role != expected:
            _out_of_turn(role, before, profile)
        expected = "assistant" if role == "user" else "user"
        before = role
    if profile.name == "mistral" and messages[-1]["role"] not in ("user", "tool") and not messages[-1].get("prefix"):
        text = "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
        raise Refusal(text, rule="last-role", type="invalid_request_message_order", code="3230")


def _out_of_turn(role: str, before: str, profile: Profile) -> None:
    if profile.name == "mistral":
        text = f"Unexpected role '{role}' after role '{before}'"
        raise Refusal(text, rule="alternation", type="invalid_request_message_order", code="3230")
    text = (
        "After the optional system message, conversation roles must alternate user and assistant roles except for tool "
        "calls and results."
    )
    raise Refusal(text, rule="alternation", status=500, type="server_error")


def _companions(body: JsonObject) -> None:
    """Fields that need another field beside them."""
    if body.get("tools") == []:
        _empty_array("tools")
    for name in ("tool_choice", "parallel_tool_calls"):
        if body.get(name) is not None and not body.get("tools"):
            text = f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified."
            refuse(text, rule="companion", param=name)
    if body.get("stream_options") is not None and not body.get("stream"):
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        refuse(text, rule="companion", param="stream_options")


def _limit_name(body: JsonObject) -> None:
    """Reasoning models know only the newer name of the output limit."""
    if body.get("max_tokens") is not None and _REASONING_MODEL.match(body["model"]):
        text = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
        refuse(text, rule="output-limit-name", param="max_tokens", code="unsupported_parameter")
