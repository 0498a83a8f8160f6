"""JSON as bytes: strict in, deterministic out, and the place of every value."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_bodies import spelled, texts, values

from tidegate.wire.jsontext import (
    UnreadableBody,
    array_spans,
    canonical_dumps,
    dumps,
    loads,
    object_spans,
)

quick = settings(max_examples=60, deadline=None)

NOT_JSON = [
    b"", b" ", b"{", b"nul", b"{'a':1}", b'{"a":1}x', b"[1,]", b'{"a":01}', b"NaN", b"-Infinity", b'{"a":NaN}',
    b'"\xff"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf{}", b'"\x01"', b"1e999", b'["\\ud800", 1e999]', b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("raw", NOT_JSON, ids=lambda raw: repr(raw[:20]))
def test_what_is_no_json_is_refused(raw):
    with pytest.raises(ValueError):
        loads(raw)


def test_nesting_too_deep_to_write_is_refused():
    value = []
    for _ in range(100_000):
        value = [value]
    for write in (dumps, canonical_dumps):
        with pytest.raises(ValueError, match="nested"):
            write(value)


def test_a_lone_surrogate_is_kept():
    assert loads(rb'{"a":"cut \ud83d"}') == {"a": "cut \ud83d"}
    assert dumps({"a": "cut \ud83d"}) == rb'{"a":"cut \ud83d"}'
    assert canonical_dumps({"b": "é", "a": "\ud83d"}) == rb'{"a":"\ud83d","b":"\u00e9"}'


def test_words_stay_utf8_where_they_can():
    assert dumps({"b": "é漢", "a": 1}) == '{"b":"é漢","a":1}'.encode()


@quick
@given(values)
def test_dumps_and_loads_are_inverse(value):
    assert loads(dumps(value)) == value
    assert loads(canonical_dumps(value)) == value


@quick
@given(st.data())
def test_equal_values_have_one_canonical_form_however_they_were_written(data):
    value = data.draw(values)
    one, other = data.draw(spelled(value)), data.draw(spelled(_reversed(value)))
    assert canonical_dumps(loads(one)) == canonical_dumps(loads(other))


def _reversed(value):
    if isinstance(value, dict):
        return {key: _reversed(part) for key, part in reversed(value.items())}
    return [_reversed(part) for part in value] if isinstance(value, list) else value


@quick
@given(st.data())
def test_object_spans_are_where_the_values_stand(data):
    value = data.draw(st.dictionaries(texts, values, max_size=5))
    raw = data.draw(spelled(value))
    spans = object_spans(raw)
    assert list(spans) == list(value)
    assert {key: json.loads(raw[a:b]) for key, (a, b) in spans.items()} == value
    assert all(raw[a:b] == raw[a:b].strip(b" \t\r\n") for a, b in spans.values())


@quick
@given(st.data())
def test_array_spans_are_where_the_values_stand(data):
    value = data.draw(st.lists(values, max_size=5))
    raw = data.draw(spelled({"before": data.draw(texts), "here": value, "after": 1}))
    start, end = object_spans(raw)["here"]
    spans = array_spans(raw, start, end)
    assert [json.loads(raw[a:b]) for a, b in spans] == value
    assert all(raw[a:b] == raw[a:b].strip(b" \t\r\n") for a, b in spans)


@pytest.mark.parametrize(
    "raw",
    [
        b"[]", b'"a"', b"null", b"{", b'{"a":1,}', b'{"a":1} x', b'{"a":"\xff"}', b"{" * 100_000,
        b'{"a":1,"a":2}', b'{"a":1,"b":2,"a":1}', b'{"a":1,"\\u0061":1}', b'{"a":"x","b":2,"a":"yy"}',
        rb'{"a":"\ud800","a":1}', rb'{"a":"\ud800",}', rb'{"a":"\ud800"} x', rb'["\ud800"]', rb'{"a":"\ud800"',
        rb'{"a" "\ud800"}', rb'{"\ud800" 1}', rb'{1:"\ud800"}', rb'{"a":"\ud800","b":NaN}',
    ],
)  # fmt: skip
def test_a_body_that_two_readers_could_read_differently_is_unreadable(raw):
    with pytest.raises(UnreadableBody):
        object_spans(raw)


@pytest.mark.parametrize("raw", [b"{}", b'"x"', b"[1,]", b"[1", rb'{"a":"\ud800"}', rb'["\ud800",]'])
def test_what_is_no_array_has_no_spans(raw):
    with pytest.raises(UnreadableBody):
        array_spans(raw, 0, len(raw))


@pytest.mark.parametrize(("raw", "key"), [(rb'{"\u0061b" : 1}', "ab"), (rb'{ "a\"b":1}', 'a"b'), (b'{"":1}', "")])
def test_keys_may_be_escaped(raw, key):
    assert list(object_spans(raw)) == [key]


@pytest.mark.parametrize("big", [b"1e999", b"1" * 5000])
def test_half_a_surrogate_pair_in_one_value_changes_nothing_for_another(big):
    raw = rb'{"cut":"\ud83d","pair":"\ud83d\ude00","text":"\\ud83d","list":[ "\ud83d", %s ]}' % big
    spans = object_spans(raw)
    assert [raw[a:b] for a, b in spans.values()][:3] == [rb'"\ud83d"', rb'"\ud83d\ude00"', rb'"\\ud83d"']
    assert [raw[a:b] for a, b in array_spans(raw, *spans["list"])] == [rb'"\ud83d"', big]


def test_keys_that_are_cut_differently_are_two():
    assert list(object_spans(rb'{"\ud800":1,"\ud801":"\ud802"}')) == ["\ud800", "\ud801"]
