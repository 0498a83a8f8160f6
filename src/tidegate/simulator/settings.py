"""Everything about a simulated provider that can be chosen.

Values with their allowed ranges. Made by the CLI and by tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidegate.simulator.compaction_settings import ResponsesCompaction
from tidegate.simulator.context_settings import ContextManagement
from tidegate.simulator.profiles import PROFILE_NAMES
from tidegate.simulator.script import Step

Forgetful: TypeAlias = Literal[False, True, "half"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """A simulated provider. Sizes in tokens, times in seconds.

    Raises `ValueError` that names the setting and what is allowed.
    """

    window: int = 8000
    """Context window: more input than this is refused the profile's way."""
    profile: str = "auto"
    """Whose wording and quirks; `auto` is OpenAI's on chat and responses, Anthropic's on messages."""
    max_output: int | None = None
    """Largest output limit a request may ask for; None: any."""
    counts_output: bool | None = None
    """Whether input plus asked-for output must fit the window; None: as the profile does."""
    silent_truncation: bool | None = None
    """Whether too long a prompt loses its beginning without a word; None: as the profile does (Ollama)."""
    usage_factor: float = 1.0
    """Real tokens per estimated one: how wrong a client's own ruler is."""
    forgetful: Forgetful = False
    """The summarizer keeps no fact (True) or every other one (`half`)."""
    script: tuple[Step, ...] = ()
    delay: float = 0.0
    """Wait before the first byte of an answer."""
    gap: float = 0.0
    """Wait between two events of a stream."""
    heartbeat: float = 0.0
    """In a stream, send headers at once and a heartbeat this often while waiting; 0: silence."""
    chunk_bytes: int = 0
    """Break streams into pieces of 1 to so many bytes wherever that falls; 0: one event a piece."""
    crlf: bool = False
    """End stream lines with CR LF."""
    delta_chars: int = 48
    """Characters of text or arguments in a stream event."""
    overflow_in_stream: bool = False
    """A streamed request over the window gets 200 and an error event instead of a 400."""
    behaviour: Literal["agent", "echo"] = "agent"
    tool_rounds: int = 2
    """Tool calls the agent makes after a human message before it answers in words."""
    parallel_calls: int = 1
    """Tool calls the agent makes at once."""
    answer_tokens: int = 0
    """Length of the agent's answers in words; 0: a short sentence."""
    redact_thinking: bool = False
    """Anthropic thinking comes as `redacted_thinking`."""
    preserved_thinking: bool | None = None
    """Whether signatures bind thinking to all that came before it; None: by the model's name."""
    context: ContextManagement = field(default_factory=ContextManagement)
    """Anthropic's compaction and context editing."""
    prompt_cache: bool = False
    """Report the part of the input that an earlier request began with as cached."""
    strict_fields: bool | None = None
    """Whether unknown fields are refused; None: as the profile does."""
    models: tuple[str, ...] = ()
    """Models that exist; empty: every name does."""
    keys: frozenset[str] = frozenset()
    """Keys that are let in; empty: every key is."""
    orgs: Mapping[str, str] = field(default_factory=dict)
    """Organisation of a key, or `organisation/project`: what one seals no other can read. Keys that aren't named
    share one."""
    responses_compaction: ResponsesCompaction = field(default_factory=ResponsesCompaction)
    """How `/responses/compact`, triggers and `context_management` behave."""
    max_body: int = 64 * 1024 * 1024
    """Bytes of a request body, decompressed, above which it is refused with 413."""
    keep_requests: int = 5000
    """Requests remembered for `/__sim/state`."""
    keep_bytes: int = 256 * 1024 * 1024
    """Bytes of request bodies remembered; the oldest go first."""
    seed: int = 0
    """Ids, signatures and broken pieces follow from it."""

    def __post_init__(self) -> None:
        """Checks names and ranges."""
        if self.profile not in PROFILE_NAMES:
            raise ValueError(f"profile: {self.profile!r} is not one of {', '.join(PROFILE_NAMES)}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: {value} is less than {least}")
        if self.usage_factor <= 0:
            raise ValueError(f"usage_factor: {self.usage_factor} is not above 0")
        if self.behaviour not in ("agent", "echo"):
            raise ValueError(f"behaviour: {self.behaviour!r} is not one of agent, echo")
        if self.forgetful not in (False, True, "half"):
            raise ValueError(f"forgetful: {self.forgetful!r} is not one of false, true, half")


_LEAST = {
    "window": 1,
    "max_output": 1,
    "delay": 0,
    "gap": 0,
    "heartbeat": 0,
    "chunk_bytes": 0,
    "delta_chars": 1,
    "tool_rounds": 0,
    "parallel_calls": 1,
    "answer_tokens": 0,
    "max_body": 1,
    "keep_requests": 1,
    "keep_bytes": 0,
}
