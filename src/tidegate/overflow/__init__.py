"""What a provider's refusal means, and what windows refusals and successes have taught. Pure."""

from tidegate.overflow.answered import judge_success
from tidegate.overflow.classify import classify
from tidegate.overflow.rules import Rules
from tidegate.overflow.verdict import Action, Evidence, Kind, Refusal, Sent, Verdict
from tidegate.overflow.window import Windows

__all__ = ["Action", "Evidence", "Kind", "Refusal", "Rules", "Sent", "Verdict", "Windows", "classify", "judge_success"]
