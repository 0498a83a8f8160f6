"""What users of other gateways met, and no other test here would notice (`docs/failure-modes.md` lists them all)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playbook import Playbook, ok
from stage import body, history, kit, messages_of, request, target
from test_engine_native import FULL, carried_out, compacted, sent, start

from tidegate.engine.checkpoint import Found
from tidegate.engine.effects import Deliver, Save, Send
from tidegate.engine.exchange import exchange
from tidegate.engine.router import Wanted

Json = dict[str, Any]

# -- the provider's own ----------------------------------------------------------------------------------------------


def test_the_id_of_a_compaction_is_no_answer_to_go_on_from():
    """`/responses/compact` keeps nothing: its id as `previous_response_id` is refused."""
    play = start()
    carried_out(play, compacted())
    assert sent(play)
    forwarded = [play.expect(Send).body or b""]
    made = play.reply(ok()).expect(Save).record
    play.reply().expect(Deliver)
    forwarded.append(start(FULL, found=Found((made,))).expect(Send).body or b"")  # type: ignore[arg-type]
    for raw in forwarded:
        assert b"cmp_1" in raw
        assert b"resp_1" not in raw
        assert b"previous_response_id" not in raw


SIGNED: dict[str, Json] = {
    "on the call": {"extra_content": {"google": {"thought_signature": "c2lnbmVk" * 40}}},
    "named as Google does": {"thoughtSignature": "c2lnbmVk" * 40},
}


@pytest.mark.parametrize("names", [("summary",), ("elide",)], ids=["summed up", "elided"])
@pytest.mark.parametrize("where", list(SIGNED))
def test_what_gemini_signed_keeps_its_bytes_or_is_gone(where, names):
    messages = history(22)
    for message in messages:
        for one in message.get("tool_calls") or ():
            one.update(SIGNED[where])
    raw = body(messages)
    play = Playbook(exchange(request(raw, to=target(wanted=Wanted(names, "the test"))), kit())).reply(Found())
    if names == ("summary",):
        play.summarise()
    sent = play.expect(Send).body
    assert sent is not None
    assert len(sent) < len(raw)
    kept = [message for message in messages_of(sent) if message.get("tool_calls")]
    assert (0 < len(kept) < 22) if names == ("summary",) else len(kept) == 22
    for message in kept:
        assert json.dumps(message).encode() in raw
