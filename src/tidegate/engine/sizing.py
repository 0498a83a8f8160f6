"""How large a view of a history is, and how large it may be.

Knows estimates, reports and windows; decides only whether a compaction is due. Called by the exchange.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from tidegate.context.budget import Budget, Counts, Policy, budget
from tidegate.context.calibration import measure
from tidegate.context.measured import Baseline, Measured
from tidegate.engine.checkpoint import Report
from tidegate.engine.request import Kit, Request
from tidegate.engine.router import ELIDE
from tidegate.engine.view import History, View
from tidegate.overflow.verdict import Sent

_KEPT: Final = 1_024
_budgets: Final[dict[tuple[int, int | None, int | None, int | None, bool], tuple[Policy, Budget]]] = {}
"""Few differ: they hang on a window, a policy and the output that a client asks for. Exact arithmetic is slow."""


def _budget(
    policy: Policy, window: int | None, input_limit: int | None, output_limit: int | None, counts_output: bool
) -> Budget:
    key = (id(policy), window, input_limit, output_limit, counts_output)
    known = _budgets.get(key)
    if known is not None and known[0] is policy:
        return known[1]
    made = budget(
        policy, window=window, input_limit=input_limit, output_limit=output_limit, counts_output=counts_output
    )
    if len(_budgets) >= _KEPT:
        _budgets.clear()
    _budgets[key] = policy, made
    return made


def limits_of(request: Request, kit: Kit) -> Budget:
    """Window, threshold and target of a request, as far as they are known by now.

    What was learned comes first, then what the target says: the user's figures, the provider's file, its API, litellm's
    table. `overflow.learned.effective` has the rule.
    """
    target = request.target
    window, input_limit = kit.windows.within(target.endpoint, target.model, target, now=request.now)
    policy = kit.policy_for(target)
    if policy.windows and not target.own_window:
        window = policy.window_for(target.model, window)
    return _budget(policy, window, input_limit, request.conversation.output_limit, target.counts_output)


class Sizing:
    """The sizes of one request. Those of a view are found once."""

    __slots__ = ("_as_of", "_limits", "_sizes", "history", "kit", "observed", "policy", "reports", "request", "shown")

    def __init__(
        self, request: Request, kit: Kit, history: History, reports: tuple[Report, ...] = (), observed: float = 1.0
    ) -> None:
        self.request, self.kit, self.history = request, kit, history
        self.policy = kit.policy_for(request.target)
        self.reports = reports
        """What the store knows of earlier sendings of this history."""
        self.observed = observed
        """Real tokens per estimated token, as far as a refusal of this request has shown; at least 1."""
        self.shown: list[Budget] = []
        """The limits that the diagnostics told: the decision before sending is made by the same ones."""
        self._sizes: list[tuple[View, Measured]] = []
        self._limits: Budget | None = None
        self._as_of = 0

    def __repr__(self) -> str:
        """What may be shown of it: no words."""
        return f"Sizing(history={self.history!r}, observed={self.observed})"

    def told(self, reports: tuple[Report, ...]) -> Sizing:
        """With what the store knows."""
        return Sizing(self.request, self.kit, self.history, reports, self.observed) if reports else self

    def limits(self) -> Budget:
        """See `limits_of`. Found anew where something was learned since."""
        changes = self.kit.windows.changes
        limits = self._limits
        if limits is None or changes != self._as_of:
            limits = self._limits = limits_of(self.request, self.kit)
            self._as_of = changes
        return limits

    def measured(self, view: View) -> Measured:
        """The calibrated size of a view: reports count only for the very same view at the same place."""
        for known, size in self._sizes:
            if known is view:
                return size
        size = measure(
            self.history.past.sums,
            overhead=self.history.overhead,
            artifact_tokens=view.artifact_tokens,
            covered=view.covered,
            baselines=self.baselines(view) if self.reports else (),
            window=self.limits().window if self.reports else None,
            ratio_max=self.history.past.estimator.ratio_max,
        )
        if self.policy.counts != "larger":
            size = _counted(self.policy.counts, size)
        if self.observed > 1:
            tokens = max(size.tokens, ceil(size.local * self.observed))
            size = Measured(tokens, size.local, size.baseline, max(size.ratio, self.observed))
        self._sizes.append((view, size))
        return size

    def refused(self, view: View, input_tokens: int | None) -> Sizing:
        """With what a refusal has shown: the input tokens the provider counted in a view."""
        local = self.measured(view).local
        if not input_tokens or not local:
            return self
        observed = min(self.history.past.estimator.ratio_max, max(self.observed, input_tokens / local))
        return Sizing(self.request, self.kit, self.history, self.reports, observed)

    def sent(self, view: View, freed: int = 0) -> Sent:
        """What is known of a request that was sent with this view; `freed`: tokens that the provider leaves out."""
        return Sent(
            tokens=self.measured(view).tokens - freed,
            window=self.limits().window,
            bytes=len(view.body),
            output_limit=self.request.conversation.output_limit,
        )

    def not_due(self, view: View) -> str:
        """Why no compaction is due before sending, empty where one is."""
        if not self.policy.automatic:
            return "disabled"
        threshold = (self.shown[-1] if self.shown else self.limits()).threshold
        if threshold is None:
            return "unknown_window"
        return "below_threshold" if self.measured(view).tokens < threshold else ""

    def fixed_part_fills(self) -> bool:
        """Whether tools, instructions and schema alone take what fits: then nothing done to the history would help."""
        limit = self.limits().limit
        return limit is not None and self.history.overhead * self.observed >= limit

    def elides(self) -> bool:
        """Whether old tool results are to be left out as soon as that is worth it, before anything is due."""
        return self.request.target.wanted.names[:1] == (ELIDE,) and not self.policy.elides_enough

    def figures(self, view: View) -> dict[str, int | None]:
        """The line of diagnostics for a measured view."""
        size, limits = self.measured(view), self.limits()
        self.shown.append(limits)
        return {
            "tokens": size.tokens,
            "estimate": size.local,
            "baseline": size.baseline,
            "items": len(self.history.past),
            "covered": view.covered,
            "window": limits.window,
            "threshold": limits.threshold,
            "target": limits.target,
        }

    def baselines(self, view: View) -> list[Baseline]:
        """What a provider has counted for beginnings of this very view."""
        target, history, found = self.request.target, self.history, []
        count = len(history.past)
        for report in self.reports:
            if (
                report.length <= count
                and history.chain.link(report.length) == report.chain
                and report.checkpoint == view.chain
                and report.head == history.head
                and report.endpoint == target.endpoint
                and report.model == target.model
            ):
                found.append(Baseline(report.length, report.input_tokens))
        return found


def _counted(counts: Counts, size: Measured) -> Measured:
    """A size by a policy's own choice of the two counts, where it does not take the larger."""
    if counts == "estimate":
        return Measured(size.local, size.local, None, 1.0)
    return size if size.baseline is None else Measured(size.baseline, size.local, size.baseline, size.ratio)
