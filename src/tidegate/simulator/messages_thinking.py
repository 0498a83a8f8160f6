"""What may become of thinking once the model has thought: signatures, the newest tool round, preserved thinking.

Knows Anthropic's rules on thinking and on the end of a conversation. Called by `messages`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tidegate.simulator.context_settings import BINDING
from tidegate.simulator.jsontext import JsonObject, JsonValue, as_object
from tidegate.simulator.messages_rules import Block, Spoken, text_blocks
from tidegate.simulator.messages_window import THINKING, Window, base_hash, chain
from tidegate.simulator.refusals import refuse
from tidegate.simulator.world import Desk, World

KINDS = THINKING
_VERSION = re.compile(r"claude-(?P<line>[a-z]+)-(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)")
_DATE = re.compile(r"(-\d{8}|-latest|@.*)$")
_PRESERVING = re.compile(r"[-.]5[-.]5(\D|$)")


def family(model: str) -> str:
    """The model that a signature is valid for: its name without a date."""
    return _DATE.sub("", model)


def version(model: str) -> tuple[int, int]:
    """The generation in a Claude model's name, (0, 0) for other names."""
    found = _VERSION.search(model)
    return (int(found["major"]), int(found["minor"] or 0)) if found else (0, 0)


def preserves(model: str, world: World) -> bool:
    """Whether signatures bind thinking to all that came before it: the 5.5 models, Fable and Mythos since 5.1."""
    if world.settings.preserved_thinking is not None:
        return world.settings.preserved_thinking
    found = _VERSION.search(model)
    least = (5, 1) if found and found["line"] in ("fable", "mythos") else (5, 5)
    return version(model) >= least or bool(_PRESERVING.search(model))


def asks(body: JsonObject) -> bool:
    """Whether the request wants thinking."""
    config = body.get("thinking")
    return isinstance(config, dict) and config.get("type") in ("enabled", "adaptive", "between_tools")


def prefix_hash(body: JsonObject, messages: Iterable[JsonObject]) -> str:
    """Hash of what precedes an answer: system, tools (deferred ones aside) and the messages before it."""
    turns: list[Spoken] = []
    for position, message in enumerate(messages):
        blocks = tuple(Block(position, index, value) for index, value in enumerate(text_blocks(message["content"])))
        if turns and turns[-1].role == message["role"]:
            turns[-1] = Spoken(turns[-1].role, turns[-1].blocks + blocks)
        else:
            turns.append(Spoken(message["role"], blocks))
    return chain(base_hash(body), turns)


def check(body: JsonObject, window: Window, desk: Desk, *, compacting: bool = False) -> list[JsonObject]:
    """Raises `Refusal`; gives the transformations that the API made (thinking dropped because the request agreed)."""
    config = body.get("thinking")
    if isinstance(config, dict):
        _config(body, config, desk)
    _latest_round(body, window, desk)
    dropped = _signatures(body, window, desk)
    if window.spoken and not compacting:
        _ending(body, window.spoken)
    return dropped


def _config(body: JsonObject, config: JsonObject, desk: Desk) -> None:
    if config.get("block_binding") is not None and BINDING not in desk.betas and desk.strict:
        kind = config.get("type")
        refuse(f"thinking.{kind}.block_binding: Extra inputs are not permitted", rule="unknown-field")
    budget = config.get("budget_tokens")
    if config.get("type") == "enabled":
        if not isinstance(budget, int):
            refuse("thinking.enabled.budget_tokens: Field required", rule="thinking-budget")
        if budget < 1024:
            text = "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
            refuse(text, rule="thinking-budget")
        if isinstance(body.get("max_tokens"), int) and body["max_tokens"] <= budget:
            refuse("`max_tokens` must be greater than `thinking.budget_tokens`.", rule="thinking-budget")
    choice = body.get("tool_choice")
    if asks(body) and isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        refuse("Thinking may not be enabled when tool_choice forces tool use.", rule="thinking-forced-tool")


def _latest_round(body: JsonObject, window: Window, desk: Desk) -> None:
    """In an open tool round, the newest assistant message must come back with its thinking as it was."""
    spoken = window.spoken
    if len(spoken) < 2 or not any(block.kind == "tool_result" for block in spoken[-1].blocks):
        return
    latest = spoken[-2]
    uses = [block for block in latest.blocks if block.kind == "tool_use"]
    made: list[JsonObject] = []
    for use in uses:
        made += [block for block in desk.world.thinking.get(str(use.value["id"])) or [] if block not in made]
    got = [block for block in latest.blocks if block.kind in KINDS]
    same = [_essence(block.value) for block in got] == [_essence(block) for block in made]
    if made and not same and (got or not _may_leave_out(body, made, window, desk)):
        at = got[0].at if got else latest.blocks[0].at
        text = (
            f"{at}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These "
            "blocks must remain as they were in the original response."
        )
        refuse(text, rule="latest-thinking")
    old = version(body["model"]) < (4, 6) and as_object(body.get("thinking")).get("type") == "enabled"
    if uses and old and latest.blocks[0].kind not in KINDS:
        text = (
            f"{latest.blocks[0].at}.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{latest.blocks[0].kind}`. When `thinking` is enabled, a final `assistant` message must start with a "
            "thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
        )
        refuse(text, rule="thinking-first")


def _may_leave_out(body: JsonObject, made: list[JsonObject], window: Window, desk: Desk) -> bool:
    """Thinking may be gone where the request wants none, or where it would be refused as another conversation's."""
    if not asks(body):
        return True
    if not preserves(body["model"], desk.world):
        return False
    here = window.prefixes()[-3]
    return any(_bound(block, body["model"], desk) not in ("", here) for block in made)


def _bound(block: JsonObject, model: str, desk: Desk) -> str | None:
    """The prefix hash a thinking block is bound to, empty for none; None where it is forged."""
    mint = desk.world.mint
    if block.get("type") == "redacted_thinking":
        payload = mint.unseal("redacted", str(block.get("data")))
        if payload is None or payload.get("family") != family(model):
            return None
        return str(payload.get("bound", ""))
    return mint.signature_bound(family(model), str(block.get("thinking")), str(block.get("signature")))


def _signatures(body: JsonObject, window: Window, desk: Desk) -> list[JsonObject]:
    """Each thinking block was signed here; on preserving models, after just this conversation."""
    preserving = preserves(body["model"], desk.world)
    binding = as_object(as_object(body.get("thinking")).get("block_binding"))
    dropping = binding.get("prefix_mismatch_behavior") == "drop_block"
    dropped: list[JsonObject] = []
    for position, turn in enumerate(window.spoken):
        fails = False
        for block in turn.blocks:
            if block.kind not in KINDS:
                fails = False
                continue
            field = "data" if block.kind == "redacted_thinking" else "signature"
            bound = _bound(block.value, body["model"], desk)
            if bound is None:
                refuse(f"{block.at}: Invalid `{field}` in `{block.kind}` block", rule="signature")
            # The thinking that directly follows a block which fails goes with it.
            fails = fails or (preserving and bound not in ("", window.prefixes()[position]))
            if not fails:
                continue
            if not dropping:
                text = (
                    f"{block.at}: Invalid `{field}` in `{block.kind}` block. The block is bound to a different "
                    "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
                    '"drop_block".'
                )
                refuse(text, rule="thinking-bound")
            dropped.append({"type": "thinking_dropped", "path": block.at, "reason": "prefix_binding_mismatch"})
    return dropped


def _essence(block: JsonObject) -> tuple[JsonValue, ...]:
    return tuple(block.get(name) for name in ("type", "thinking", "signature", "data"))


def _ending(body: JsonObject, spoken: list[Spoken]) -> None:
    """An answer already begun by the client: not on models without prefill, not with thinking on."""
    last = spoken[-1]
    if last.role != "assistant":
        return
    if version(body["model"]) >= (4, 6):
        text = "This model does not support assistant message prefill. The conversation must end with a user message."
        refuse(text, rule="prefill")
    if as_object(body.get("thinking")).get("type") == "enabled":
        text = (
            f"messages.{last.message}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{last.blocks[0].kind}`."
        )
        refuse(text, rule="thinking-first")
    words = last.blocks[-1].value.get("text")
    if isinstance(words, str) and words != words.rstrip():
        refuse("messages: final assistant content cannot end with trailing whitespace", rule="trailing-whitespace")
