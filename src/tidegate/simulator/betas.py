"""Anthropic's beta headers: which a request asks for, and which a model can do.

Knows the headers' form and the models' generations. Called by the app, the rule modules and the model list.
"""

from __future__ import annotations

import re

from tidegate.simulator.context_settings import KNOWN_BETAS, ON_DEMAND, THRESHOLD, ContextManagement
from tidegate.simulator.jsontext import JsonValue

COMPACTING = frozenset({ON_DEMAND, THRESHOLD})

_OLD = re.compile(r"claude-(\d|instant|v\d)")
_VERSION = re.compile(r"claude-(?P<line>[a-z]+)-(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)")


def asked(header: str, in_body: JsonValue = None) -> frozenset[str]:
    """The betas named in an `anthropic-beta` header (a comma list) or in Bedrock's `anthropic_beta` body field."""
    names = {name.strip() for name in header.split(",") if name.strip()}
    if isinstance(in_body, list):
        names |= {name for name in in_body if isinstance(name, str)}
    return frozenset(names)


def of_model(model: str, settings: ContextManagement) -> frozenset[str]:
    """The betas that a model can do: by its name, unless the settings say.

    Compaction: the models from 4.6 on, Haiku from 5.5 on (the list on the compaction page, late 2026); another maker's
    name can do everything.
    """
    told = settings.model_betas.get(model)
    if told is not None:
        return frozenset(told)
    found = _VERSION.search(model)
    if found is None:
        return KNOWN_BETAS - COMPACTING if _OLD.search(model) else KNOWN_BETAS
    least = (5, 5) if found["line"] == "haiku" else (4, 6)
    version = (int(found["major"]), int(found["minor"] or 0))
    return KNOWN_BETAS if version >= least else KNOWN_BETAS - COMPACTING
