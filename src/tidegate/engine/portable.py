"""A text beside what a provider has sealed: of the same items, made in the background, so that a change of model,
provider or key goes on with it and waits for nothing.

Decides when; the work is a driver's. Called by the exchange once the client has its answer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace

from tidegate.compactors.strategy import CompactionFailed
from tidegate.context.cut import Cut
from tidegate.engine.checkpoint import Checkpoint, StoreError
from tidegate.engine.compaction import checkpoint_of, compaction_of
from tidegate.engine.effects import Effect, Made, Notify, Prepare
from tidegate.engine.planning import Plan
from tidegate.engine.router import SUMMARY
from tidegate.engine.sizing import Sizing
from tidegate.engine.view import View, barred_cuts, plain, replaced, whole


def beside(
    sizing: Sizing, view: View, base: View | None, found: Iterable[Checkpoint]
) -> Generator[Effect, object, None]:
    """Begins a text of what a sealed artifact stands for in this view, where the store has none. `base` is the view of
    the longest text there is, which it carries on; `found` is what the store has for this history."""
    portable, sealed = sizing.kit.portable, view.checkpoint
    if portable is None or sealed is None or sealed.artifact.kind != "opaque":
        return
    if any(one.artifact.kind == "text" and one.length >= sealed.length for one in found):
        return
    chosen = _plan(sizing, view, sealed)
    if chosen is None or portable.begun(sealed):
        return
    start = whole(sizing.history, base or plain(sizing.history), sizing.request.target)
    work = compaction_of(sizing, start, chosen, "requested")
    save = portable.save

    def ended(ending: Made | CompactionFailed) -> Notify:
        if not isinstance(ending, Made):
            return Notify("prepare_failed", {"reason": ending.reason, "portable": True})
        text = checkpoint_of(sizing, chosen.cut.at, ending, sealed.tokens_before)
        after = sizing.measured(replaced(sizing.history, text, sizing.request.target)).tokens
        try:
            save(replace(text, tokens_after=after))
        except StoreError as error:
            return Notify("fault", {"where": "store", "error": str(error)})
        cost = ending.cost
        told = {"calls": cost.calls, "input_tokens": cost.input_tokens, "output_tokens": cost.output_tokens}
        return Notify("prepared", {"strategy": SUMMARY, "portable": True, **told})

    if (yield Prepare(work.key, work.strategy, work.work, ended)) is not True:
        portable.not_begun(sealed)


def _plan(sizing: Sizing, view: View, sealed: Checkpoint) -> Plan | None:
    """The same cut, for a text; None where a text can't stand there."""
    history, limits = sizing.history, sizing.limits()
    at = sealed.length
    if at >= len(history.past) or not history.past.safe(at) or at in barred_cuts(history, sizing.request.target):
        return None
    retained = history.past.words_before(at)
    tokens = sizing.measured(view).tokens
    room = sizing.policy.room(limits.window or tokens, limits.target or tokens)
    return Plan(Cut(at, retained, 0), room, limits.window, (SUMMARY,))
