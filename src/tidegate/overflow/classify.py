"""Judges a refusal: what it means, on what evidence, and what would help.

Knows the order of evidence; not the words (the rules have them), nor where they are wrapped (`unwrap`). Pure. Called by
the engine, the simulator's tests and `tidegate classify`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tidegate.overflow.answered import judge_success, plain
from tidegate.overflow.numbers import NONE, Numbers, Weighed, gather, near_window, weigh
from tidegate.overflow.pattern import Pattern, first_of
from tidegate.overflow.rules import Match, Reading, Rules, RuleSpec
from tidegate.overflow.sizes import sizes, stated_limit, summed
from tidegate.overflow.text import Text
from tidegate.overflow.unwrap import Said, unwrap
from tidegate.overflow.verdict import Action, Evidence, Kind, Refusal, Sent, Verdict
from tidegate.wire.conversation import FinishReason, Usage

ACTIONS: Mapping[Kind, Action] = {
    "overflow": "compact",
    "output_limit": "clamp_output",
    "payload_bytes": "shrink_bytes",
    "rate_limit": "wait",
    "stale_artifact": "drop_artifact",
}
"""What helps, by kind; nothing does for the others."""

_BY_STATUS: Mapping[int, Kind] = {
    401: "auth", 402: "quota", 403: "auth", 408: "server", 413: "payload_bytes", 424: "server", 429: "rate_limit",
    499: "server",
}  # fmt: skip
_SERVER_TYPES = frozenset({"server_error", "api_error", "internal_server_error", "timeout_error", "error"})
_NOT_BY_WORDS = frozenset({401, 402, 403, 429})
"""Statuses whose words are never an overflow, unless a rule names the status (or a code says so)."""
_BARE = frozenset({400, 413, 422})
"""Statuses whose empty answer is decided by what was sent."""
_MANY_BYTES = 20_000_000

_FINISHES: Mapping[str, FinishReason] = {
    "model_context_window_exceeded": "window", "length": "length", "max_tokens": "length",
    "max_output_tokens": "length", "network_error": "length", "content_filter": "filter", "sensitive": "filter",
    "safety": "filter", "prohibited_content": "filter", "refusal": "refusal", "error": "error",
}  # fmt: skip
"""Why an answer ended, where it is no ordinary end; a connection lost upstream cuts it as a length does."""

_ENDS = (". ", "! ", "? ", "; ", "\n", "。", "；", "！")
"""Of sentences."""
_LONGEST = 400
_STATED_WITHIN = 2000
_MAX_HITS = 8
_OUTPUT = re.compile(r"output|completion|max_tokens|generat")
_INPUT = re.compile(r"prompt|input|context|messages|conversation|window")
_ABOUT_SIZE = re.compile(
    r"token|length|too long|longer|[长長]|длин|токен|контекст|토큰|길이|깁|トークン|コンテキスト|jeton|longueur|"
    r"longitud|lunghezza|comprimento|länge|zu lang|trop long|largo|lungo|longo"
)
_LONGEST_WAIT = 366 * 86_400.0
_WAIT_WORDS = ("try again", "retry", "reset", "wait")
_WAIT = re.compile(
    r"(?:try again|retry|reset|wait)[a-z ]{0,16} (?:in|after|at least)? ?~?"
    r"(?:(\d{1,3}) ?h(?:r|ours?)? ?)?(?:(\d{1,4}) ?m(?:in|inutes?)? ?)?(?:(\d{1,6}(?:\.\d{1,12})?) ?s)?"
)


def classify(refusal: Refusal, rules: Rules | None = None, *, sent: Sent | None = None) -> Verdict:
    """What a refusal means and what helps. Never raises, on any bytes.

    `rules` come from the provider files (`tidegate.providers.load().rules(name)`); without them only the status and the
    way an answer ended are judged. `sent` is what is known of the request, and decides where the body can't.

    Order: structured codes, then types with their status, then the provider's own patterns, the shared ones and other
    providers'; then two of three of subject, relation and bound; then the status, with what was sent. Counter-evidence
    turns a rule off; numbers decide between a prompt that does not fit and an output that does not.
    """
    try:
        return _judge(refusal, rules or Rules(), sent)
    except Exception:  # a rule or a body of a kind nobody thought of must not fail the request
        kind = _by_status(refusal.status if isinstance(refusal.status, int) else 400)
        return Verdict(kind, ACTIONS.get(kind, "none"), certain=False, evidence=Evidence("unreadable", "classify"))


def _judge(refusal: Refusal, rules: Rules, sent: Sent | None) -> Verdict:
    said = unwrap(refusal)
    if not said.error:
        return _of_answer(said, sent)
    if refusal.status == 401:
        return plain("auth", "status-401", certain=True)
    reading = Reading(Text(said.text))
    match, runner_up = _decide(said, reading, rules)
    if match is None:
        return _of_status(refusal, said, reading.text, sent)
    if match.rule.kind == "overflow":
        return _of_overflow(match, said, reading, rules, sent, runner_up)
    return _of_other(match, refusal, said, reading.text, runner_up)


def _decide(said: Said, reading: Reading, rules: Rules) -> tuple[Match | None, Kind | None]:
    """The rule that decides, and the kind that comes second."""
    match = rules.by_code(said, reading) or rules.by_type(said, reading)
    if match is not None:
        return match, None
    first: Match | None = None
    for found in rules.by_pattern(said, reading):
        if found.rule.kind == "overflow" and words_barred(said, found.rule):
            continue
        if first is None:
            first = found
        elif found.rule.kind != first.rule.kind:
            return first, found.rule.kind
    if first is not None:
        return first, None
    return two_of_three(said, reading, rules), None


def words_barred(said: Said, rule: RuleSpec | None = None) -> bool:
    """Whether a status rules out that words mean an overflow."""
    barred = _NOT_BY_WORDS.intersection(said.statuses)
    return bool(barred) and not (rule and barred <= set(rule.status))


def two_of_three(said: Said, reading: Reading, rules: Rules, *, vetoed: bool = True) -> Match | None:
    """A sentence in which something exceeds a context's bound, or a prompt is too long, with nothing against it; for
    explanations also with something (`vetoed` false).
    """
    if vetoed and words_barred(said):
        return None
    text = reading.text.string
    stated = sizes(text) if reading.text.numbered else {}
    parts = rules.evidence(reading)
    if not (stated or parts["relation"]) or not (parts["bound"] or parts["subject"]):
        return None
    if vetoed and ((404 in said.statuses and not stated) or rules.generic_counter(reading, summed=summed(text))):
        return None
    for sentence in _sentences(text, parts["relation"], stated=bool(stated)):
        words = _evidence(sentence, parts)
        if words:
            return Match(_GENERIC, words, stated)
    of_output = _OUTPUT.search(text) and not _INPUT.search(text)
    if stated and not of_output and _ABOUT_SIZE.search(text) and first_of(parts["bound"], text):
        return Match(_GENERIC, "stated sizes", stated)
    return None


def _sentences(text: str, relation: tuple[Pattern, ...], *, stated: bool) -> Iterator[str]:
    """The sentences that may hold a relation, in order, 400 characters of each; with sizes stated, all the first."""
    starts = set()
    for anchor in {anchor for pattern in relation for anchor in pattern.anchors}:
        at = text.find(anchor)
        for _ in range(_MAX_HITS):
            if at < 0:
                break
            since = max(0, at - _LONGEST)
            starts.add(max(found + len(end) if (found := text.rfind(end, since, at)) >= 0 else since for end in _ENDS))
            at = text.find(anchor, at + 1)
    if stated:
        at = 0
        while at >= 0 and at < _STATED_WITHIN:
            starts.add(at)
            at = min((found + len(end) for end in _ENDS if (found := text.find(end, at)) >= 0), default=-1)
    for start in sorted(starts):
        stop = min((found for end in _ENDS if (found := text.find(end, start, start + _LONGEST)) >= 0), default=None)
        yield text[start : start + _LONGEST if stop is None else stop]


def _evidence(sentence: str, parts: Mapping[str, tuple[Pattern, ...]]) -> str:
    """The words of a sentence that make two of three, or nothing."""
    relation = first_of(parts["relation"], sentence)
    if not relation and sizes(sentence):
        relation = "stated sizes"
    if not relation or (_OUTPUT.search(sentence) and not _INPUT.search(sentence)):
        return ""
    bound = first_of(parts["bound"], sentence)
    if not bound and _ABOUT_SIZE.search(sentence):
        bound = first_of(parts["subject"], sentence)
    return f"{bound} … {relation}" if bound else ""


_GENERIC = RuleSpec(file="_shared.toml", id="two-of-three", kind="overflow", certain=False)


def _of_overflow(
    match: Match, said: Said, reading: Reading, rules: Rules, sent: Sent | None, runner_up: Kind | None
) -> Verdict:
    stated = match.numbers
    if len(stated) < 2 and reading.text.numbered:
        richer = rules.numbers(reading)
        stated = richer if len(richer) > len(stated) else stated or stated_limit(reading.text.string)
    if len(stated) == 1 and not said.numbers and not (match.rule.code or match.rule.type):
        stated = _with_input(stated, sizes(reading.text.string))
    numbers = gather(stated, said.numbers)
    weighed = weigh(numbers, sent, certain=match.rule.certain)
    if match.rule is _GENERIC:
        certain = weighed.certain and bool(numbers.bound and numbers.input)
        weighed = Weighed(weighed.kind, certain=certain, room=weighed.room)
    if _contradicted(numbers, sent):
        return _disbelieved(match, said)
    second = runner_up or ("overflow" if weighed.kind == "output_limit" else None)
    return _verdict(match, weighed.kind, numbers, certain=weighed.certain, room=weighed.room, runner_up=second)


def _with_input(stated: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    """A limit that a pattern read, with the input's size that stands beside the same limit in the text."""
    limit = stated.get("window") or stated.get("limit")
    same = limit and other.keys() == {"input", "limit"} and other["limit"] == limit
    return {**stated, "input": other["input"]} if same else stated


def _contradicted(numbers: Numbers, sent: Sent | None) -> bool:
    """Whether the size that is stated is so far above what was sent that it is of another request, or the user's words:
    not where the estimate may be of little worth, or what was sent may be over the limit all the same.
    """
    if sent is None or not sent.tokens or sent.media or numbers.input is None:
        return False
    bound = min(numbers.bound or numbers.input, sent.window or numbers.input)
    return numbers.input > _FAR * sent.tokens + _MARGIN and sent.tokens * _FAR < bound


def _disbelieved(match: Match, said: Said) -> Verdict:
    """A code is an overflow's whatever the numbers; words are not."""
    if match.rule.code or match.rule.type:
        return _verdict(match, "overflow", NONE, certain=False)
    status = said.statuses[0] if said.statuses else 400
    kind = _by_status(status)
    verdict = plain(kind, match.rule.id, certain=False, runner_up="overflow")
    evidence = Evidence(match.rule.id, match.rule.file, match.words[:120])
    return replace(verdict, action=ACTIONS.get(kind, "none"), evidence=evidence)


_FAR = 3
_MARGIN = 2_000


def _of_other(match: Match, refusal: Refusal, said: Said, text: Text, runner_up: Kind | None) -> Verdict:
    kind = match.rule.kind
    numbers = gather(match.numbers, {}) if match.numbers else NONE
    if kind not in ("rate_limit", "quota", "server"):
        return _verdict(match, kind, numbers, certain=match.rule.certain, room=numbers.cap, runner_up=runner_up)
    verdict = _verdict(
        match,
        kind,
        NONE,
        certain=match.rule.certain,
        runner_up=runner_up,
        retry_after=_retry_after(refusal, said, text),
    )
    over = _over_allowance(text) if kind == "rate_limit" else None
    return replace(verdict, admission=True, allowance=over[0], requested=over[1]) if over else verdict


def _verdict(
    match: Match,
    kind: Kind,
    numbers: Numbers,
    *,
    certain: bool,
    room: int | None = None,
    runner_up: Kind | None = None,
    retry_after: float | None = None,
) -> Verdict:
    return Verdict(
        kind=kind,
        action=match.rule.action or ACTIONS.get(kind, "none"),
        certain=certain,
        evidence=Evidence(match.rule.id, match.rule.file, match.words[:120]),
        input_tokens=numbers.input,
        window=numbers.window,
        input_limit=numbers.limit,
        output_requested=numbers.output,
        output_limit=room,
        retry_after=retry_after,
        runner_up=runner_up if runner_up != kind else None,
    )


def _of_status(refusal: Refusal, said: Said, text: Text, sent: Sent | None) -> Verdict:
    """No rule holds: the status decides, and what was sent where a bare answer could mean the window."""
    status = said.statuses[0] if said.statuses else 400
    inner = said.statuses[-1] if said.statuses else 400
    silent = len(text.string) < 30
    bare = status in _BARE or (status >= 500 and "bad request" in text.string)
    if bare and silent and near_window(sent):
        return plain("overflow", f"bare-{status}", certain=False, runner_up=_by_status(status))
    kind = _by_status(status if status >= 400 else inner)
    if kind in ("payload_bytes", "other_4xx") and _SERVER_TYPES.intersection(said.types) and not silent:
        kind = "server" if status in (200, 413) else kind
    if bare and silent and sent and (sent.bytes or 0) > _MANY_BYTES:
        kind = "payload_bytes"
    return Verdict(
        kind,
        ACTIONS.get(kind, "none"),
        certain=status not in _BARE,
        evidence=Evidence(f"status-{status}", "classify"),
        retry_after=_retry_after(refusal, said, text),
    )


def _of_answer(said: Said, sent: Sent | None) -> Verdict:
    """No error at all: an answer that was cut, or whose input was, or nothing out of order."""
    ended = said.finish if said.finish in _FINISHES else next((c for c in said.codes if c in _FINISHES), "")
    if not said.finish and not said.usage and not ended and near_window(sent):
        return plain("overflow", "empty-answer", certain=False)
    prompt = _usage(said, "prompt_tokens", "promptTokenCount", "prompt_eval_count") or _input(said) or 0
    output = _usage(said, "completion_tokens", "output_tokens", "candidatesTokenCount", "eval_count")
    finish = _FINISHES.get(ended)
    judged = judge_success(
        finish, Usage(prompt, output or 0), sent=sent, answered=output is None and finish != "window"
    )
    if judged is None:
        return plain("other_4xx", "no-error", certain=False)
    return replace(judged, evidence=replace(judged.evidence, matched=ended))


def _by_status(status: int) -> Kind:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return "server" if status >= 500 or status < 400 else "other_4xx"


def _usage(said: Said, *names: str) -> int | None:
    return next((said.usage[name] for name in names if name in said.usage), None)


def _input(said: Said) -> int | None:
    """Input tokens, cache reads and writes included, which Anthropic counts apart."""
    read = _usage(said, "input_tokens")
    if read is None:
        return None
    return read + said.usage.get("cache_read_input_tokens", 0) + said.usage.get("cache_creation_input_tokens", 0)


def _over_allowance(text: Text) -> tuple[int, int] | None:
    """(allowance, requested) of one request above the whole allowance: `Limit 8000, Requested 32979`."""
    found = _ALLOWANCE.search(text.string) if text.numbered and b"requested" in text.words else None
    if found is None:
        return None
    allowance, requested = (int(digits.replace(",", "")) for digits in found.groups())
    return (allowance, requested) if requested > allowance else None


_ALLOWANCE = re.compile(r"limit:? (\d[\d,]{0,14}),(?: used:? \d[\d,]{0,14},)? requested:? ~?(\d[\d,]{0,14})")


def _retry_after(refusal: Refusal, said: Said, text: Text) -> float | None:
    """Seconds to wait, from headers, fields or words."""
    headers = {name.lower(): value for name, value in refusal.headers.items()} if refusal.headers else {}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)) if headers else ():
        try:
            seconds = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds <= _LONGEST_WAIT:  # not what is no number, nor endless
            return seconds
    for name in ("resets_in_seconds", "retry_after", "retry_after_seconds") if said.numbers else ():
        if 0 <= said.numbers.get(name, -1) <= _LONGEST_WAIT:
            return float(said.numbers[name])
    for word in _WAIT_WORDS:
        at = text.string.find(word, 0, 4000)
        for _ in range(_MAX_HITS):
            if at < 0:
                break
            found = _WAIT.match(text.string, at)
            if found and any(found.groups()):
                hours, minutes, seconds = (float(part or 0) for part in found.groups())
                return hours * 3600 + minutes * 60 + seconds
            at = text.string.find(word, at + 1, 4000)
    return None
