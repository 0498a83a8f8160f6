"""What a rule or an answer may look at besides the request: settings, what was minted, what is stored.

One per simulator. Made by the app, passed to the dialect modules.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidegate.simulator.context_settings import Habits
from tidegate.simulator.jsontext import JsonObject
from tidegate.simulator.minting import Mint
from tidegate.simulator.profiles import CompactPath, Profile, Support
from tidegate.simulator.refusals import Refusal
from tidegate.simulator.settings import SimulatorSettings

T = TypeVar("T")
_KEPT = 20_000


class Recent(Generic[T]):
    """A dictionary of the newest entries."""

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._entries: OrderedDict[str, T] = OrderedDict()

    def put(self, key: str, value: T) -> None:
        """Keeps an entry as the newest."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def get(self, key: str) -> T | None:
        """The entry, None where there is none or it was let go."""
        return self._entries.get(key)

    def drop(self, key: str) -> None:
        """Lets go of an entry."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()


@dataclass(slots=True)
class Kept:
    """A stored response or conversation: its items so far, whose it is, and the object as it was handed out."""

    items: list[JsonObject] = field(repr=False)
    org: str
    whole: JsonObject = field(repr=False)


@dataclass(slots=True)
class World:
    """Shared between the requests of one simulator."""

    settings: SimulatorSettings
    mint: Mint
    responses: Recent[Kept] = field(default_factory=lambda: Recent(2000))
    """Stored responses: id to the items up to and including their output."""
    conversations: Recent[Kept] = field(default_factory=lambda: Recent(2000))
    stored_items: Recent[JsonObject] = field(default_factory=Recent)
    """Stored output items by their id."""
    partners: Recent[str] = field(default_factory=Recent)
    """Output item id to the id of the reasoning item made beside it."""
    thinking: Recent[list[JsonObject]] = field(default_factory=Recent)
    """Anthropic tool use id to the thinking blocks of the answer that made it."""
    prefixes: Recent[int] = field(default_factory=Recent)
    """Hashes of conversation beginnings that were seen, for prompt caching, to their size in tokens."""

    def clear(self) -> None:
        """Forgets everything but what its seed makes."""
        stored = (self.responses, self.conversations, self.stored_items)
        for kept in (*stored, self.partners, self.thinking, self.prefixes):
            kept.clear()


@dataclass(frozen=True, slots=True)
class Desk:
    """Where one request is judged: the world, and the profile it is judged by."""

    world: World
    profile: Profile
    org: str = ""
    """The caller's organisation."""
    key: str = field(default="", repr=False)
    betas: frozenset[str] = frozenset()
    """Betas that the request asks for and this provider serves."""

    @property
    def habits(self) -> Habits:
        """What this provider does about context on the Messages API."""
        return self.world.settings.context.habits(self.profile.name)

    def owns(self, kept: Kept) -> bool:
        """Whether something stored is the caller's."""
        return kept.org == self.org

    @property
    def compact_path(self) -> CompactPath:
        """Whether there is a `/responses/compact`."""
        chosen = self.world.settings.responses_compaction.path
        return self.profile.compact_path if chosen is None else chosen

    @property
    def trigger(self) -> Support:
        """What becomes of a `compaction_trigger`."""
        chosen = self.world.settings.responses_compaction.trigger
        return self.profile.trigger if chosen is None else chosen

    @property
    def in_band(self) -> Support:
        """What becomes of `context_management` on Responses."""
        chosen = self.world.settings.responses_compaction.in_band
        return self.profile.in_band if chosen is None else chosen

    @property
    def strict(self) -> bool:
        """Whether unknown fields are refused."""
        chosen = self.world.settings.strict_fields
        return self.profile.strict_fields if chosen is None else chosen

    def check_model(self, model: str) -> None:
        """Raises the provider's refusal of a model that does not exist."""
        known = self.world.settings.models
        if not known or model in known:
            return
        if self.profile.name == "anthropic":
            raise Refusal(f"model: {model}", rule="model", status=404, type="not_found_error")
        message = f"The model `{model}` does not exist or you do not have access to it."
        raise Refusal(message, rule="model", status=404, code="model_not_found")
