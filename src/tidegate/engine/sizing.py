"""How large a view of a history is, and how large it may be.

Knows estimates, reports and windows; decides only whether a compaction is due. Called by the exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from tidegate.context.budget import Budget, budget
from tidegate.context.calibration import RATIO_MAX, Baseline, Measured, measure
from tidegate.engine.checkpoint import Report
from tidegate.engine.request import Kit, Request
from tidegate.engine.view import History, View
from tidegate.overflow.verdict import Sent


@dataclass(frozen=True, slots=True)
class Sizing:
    """The sizes of one request."""

    request: Request
    kit: Kit
    history: History
    reports: tuple[Report, ...] = ()
    """What the store knows of earlier sendings of this history."""
    observed: float = 1.0
    """Real tokens per estimated token, as far as a refusal of this request has shown; at least 1."""

    def limits(self) -> Budget:
        """Window, threshold and target, as far as they are known by now.

        What was learned comes first, then what the target says: the user's figures, the provider's file, its API,
        litellm's table. `overflow.learned.effective` has the rule.
        """
        target = self.request.target
        window, input_limit = self.kit.windows.within(target.endpoint, target.model, target, now=self.request.now)
        return budget(
            self.kit.policy,
            window=window,
            input_limit=input_limit,
            output_limit=self.request.conversation.output_limit,
            counts_output=target.counts_output,
        )

    def measured(self, view: View) -> Measured:
        """The calibrated size of a view: reports count only for the very same view at the same place."""
        size = measure(
            local=[entry.tokens for entry in self.history.entries],
            overhead=self.history.overhead,
            artifact_tokens=view.artifact_tokens,
            covered=view.covered,
            baselines=list(self.baselines(view)),
            window=self.request.target.window,
        )
        return replace(
            size, tokens=max(size.tokens, ceil(size.local * self.observed)), ratio=max(size.ratio, self.observed)
        )

    def refused(self, view: View, input_tokens: int | None) -> Sizing:
        """With what a refusal has shown: the input tokens the provider counted in a view."""
        local = self.measured(view).local
        if not input_tokens or not local:
            return self
        return replace(self, observed=min(RATIO_MAX, max(self.observed, input_tokens / local)))

    def sent(self, view: View) -> Sent:
        """What is known of a request that was sent with this view."""
        return Sent(
            tokens=self.measured(view).tokens,
            window=self.limits().window,
            bytes=len(view.body),
            output_limit=self.request.conversation.output_limit,
        )

    def not_due(self, view: View) -> str:
        """Why no compaction is due before sending, empty where one is."""
        threshold = self.limits().threshold
        if not self.kit.policy.enabled:
            return "disabled"
        if threshold is None:
            return "unknown_window"
        return "below_threshold" if self.measured(view).tokens < threshold else ""

    def figures(self, view: View) -> dict[str, int | None]:
        """The line of diagnostics for a measured view."""
        size, limits = self.measured(view), self.limits()
        return {
            "tokens": size.tokens,
            "estimate": size.local,
            "baseline": size.baseline,
            "items": len(self.history.entries),
            "covered": view.covered,
            "window": limits.window,
            "threshold": limits.threshold,
            "target": limits.target,
        }

    def baselines(self, view: View) -> Iterable[Baseline]:
        """What a provider has counted for beginnings of this very view."""
        target, history = self.request.target, self.history
        for report in self.reports:
            if (
                report.length <= len(history.entries)
                and history.chain.links[report.length] == report.chain
                and report.checkpoint == view.chain
                and report.head == history.head
                and report.endpoint == target.endpoint
                and report.model == target.model
            ):
                yield Baseline(report.length, report.input_tokens)
