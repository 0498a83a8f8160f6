"""Splicing: what is replaced is replaced, and every other byte stays."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_bodies import hostile_items, spelled, texts, values

from tidegate.wire import REQUESTS, read
from tidegate.wire.conversation import UnreadableBody
from tidegate.wire.jsontext import dumps, loads, object_spans

quick = settings(max_examples=40, deadline=None)

BODY = b' {"model" : "m",\n "messages":[ {"role":"system","content":"s"} , {"n":1},\t{"n":2} ,{"n":3}], "x":1 }\n'
ONE, TWO = b'{"new": 1}', b'{"new":2}'

SPLICES = [
    ([], 1, BODY),
    ([ONE], 1, BODY.replace(b'{"n":1}', b'{"new": 1},{"n":1}')),
    ([], 2, BODY.replace(b'{"n":1},\t', b"")),
    ([ONE, TWO], 2, BODY.replace(b'{"n":1},\t', b'{"new": 1},{"new":2},')),
    ([ONE], 3, BODY.replace(b'{"n":1},\t{"n":2} ,', b'{"new": 1},')),
    ([ONE], 4, BODY.replace(b' , {"n":1},\t{"n":2} ,{"n":3}', b',{"new": 1}')),
    ([], 4, BODY.replace(b' , {"n":1},\t{"n":2} ,{"n":3}', b"")),
]


@pytest.mark.parametrize(("items", "keep_from", "spliced"), SPLICES)
def test_items_are_replaced_in_place(items, keep_from, spliced):
    assert read("chat", BODY).replace_items(items, keep_from=keep_from) == spliced


def test_without_leading_system_items_the_list_may_be_replaced_whole_but_not_emptied():
    conversation = read("chat", b'{"model":"m","messages":[ {"n":1}, {"n":2} ]}')
    assert conversation.replace_items([ONE], keep_from=2) == b'{"model":"m","messages":[ {"new": 1} ]}'
    with pytest.raises(ValueError, match="at least one item"):
        conversation.replace_items([], keep_from=2)


@pytest.mark.parametrize("keep_from", [-1, 0, 5])
def test_leading_system_items_and_items_that_are_not_there_cannot_be_replaced(keep_from):
    with pytest.raises(ValueError, match="between 1 and 4"):
        read("chat", BODY).replace_items([ONE], keep_from=keep_from)


def test_a_string_input_is_one_user_message_and_becomes_a_list_when_something_is_put_before_it():
    raw = rb'{"input" : "h\u00e9llo", "model":"m"}'
    conversation = read("responses", raw)
    (item,) = conversation.items
    assert loads(item.raw) == {"role": "user", "content": "héllo"}
    assert (item.start, item.end) == (0, 0)
    assert conversation.replace_items([], keep_from=0) == raw
    assert conversation.replace_items([ONE], keep_from=1) == b'{"input" : [{"new": 1}], "model":"m"}'
    spliced = rb'{"input" : [{"new": 1},{"role":"user","content":"h\u00e9llo"}], "model":"m"}'
    assert conversation.replace_items([ONE], keep_from=0) == spliced
    with pytest.raises(ValueError, match="at least one item"):
        conversation.replace_items([], keep_from=1)


FIELDS = b'{ "a":1 , "model":"m", "b" : [2] ,"messages":[{}]}'
FIELD_CASES = [
    ({}, FIELDS),
    ({"b": b"[3]"}, FIELDS.replace(b"[2]", b"[3]")),
    ({"a": None}, b'{ "model":"m", "b" : [2] ,"messages":[{}]}'),
    ({"b": None}, b'{ "a":1 , "model":"m" ,"messages":[{}]}'),
    ({"messages": None}, b'{ "a":1 , "model":"m", "b" : [2]}'),
    ({"a": None, "model": None, "messages": None}, b'{ "b" : [2]}'),
    ({"new": b"7"}, FIELDS.replace(b"[{}]", b'[{}],"new":7')),
    ({"messages": None, "new": b"7"}, b'{ "a":1 , "model":"m", "b" : [2],"new":7}'),
    ({"gone": None}, FIELDS),
    ({"a": None, "model": None, "b": None, "messages": None, "n": b"0"}, b'{"n":0}'),
]


@pytest.mark.parametrize(("changes", "spliced"), FIELD_CASES)
def test_fields_are_replaced_removed_and_appended(changes, spliced):
    assert read("chat", FIELDS).replace_fields(changes) == spliced


def test_fields_hold_the_raw_json_of_every_key_in_order():
    fields = read("chat", FIELDS).fields
    assert dict(fields) == {"a": b"1", "model": b'"m"', "b": b"[2]", "messages": b"[{}]"}
    assert list(fields) == ["a", "model", "b", "messages"]
    assert len(fields) == 4


@st.composite
def bodies(draw):
    """A dialect's name, a body of it with hostile items, and how many items it has."""
    dialect = draw(st.sampled_from(["chat", "responses", "messages"]))
    items = draw(st.lists(hostile_items, max_size=5))
    fields = draw(st.dictionaries(texts, values, max_size=3))
    fields["model"] = draw(texts)
    fields["input" if dialect == "responses" else "messages"] = items
    order = draw(st.permutations(list(fields)))
    return dialect, draw(spelled({key: fields[key] for key in order})), items


@quick
@given(bodies())
def test_a_body_is_read_into_its_items_and_back_into_its_bytes(body):
    dialect, raw, items = body
    conversation = read(dialect, raw)
    assert [loads(item.raw) for item in conversation.items] == items
    assert all(raw[item.start : item.end] == item.raw for item in conversation.items)
    assert conversation.replace_items([], keep_from=conversation.lead) == raw
    assert conversation.replace_fields({}) == raw


@quick
@given(bodies(), st.lists(hostile_items.map(dumps), max_size=3), st.data())
def test_kept_items_keep_their_bytes_and_order(body, new, data):
    dialect, raw, _items = body
    before = read(dialect, raw)
    keep_from = data.draw(st.integers(before.lead, len(before.items)))
    if not before.lead and not new and keep_from == len(before.items) > 0:
        return
    after = read(dialect, before.replace_items(new, keep_from=keep_from))
    kept = [item.raw for item in before.items]
    assert [item.raw for item in after.items] == kept[: before.lead] + new + kept[keep_from:]
    assert {**after.fields, before.items_key: b""} == {**before.fields, before.items_key: b""}
    assert list(after.fields) == list(before.fields)


@quick
@given(bodies(), st.data())
def test_fields_that_are_not_named_keep_their_bytes(body, data):
    dialect, raw, _items = body
    before = read(dialect, raw)
    names = st.sampled_from(sorted(before.fields)) | texts
    changes = data.draw(st.dictionaries(names, st.none() | values.map(dumps), max_size=4))
    spliced = before.replace_fields(changes)
    after = {key: spliced[start:end] for key, (start, end) in object_spans(spliced).items()}
    assert after == {key: value for key, value in ({**before.fields, **changes}).items() if value is not None}


UNREADABLE = [
    ("chat", b'{"messages":[]}', "`model`"),
    ("chat", b'{"model":1,"messages":[]}', "`model`"),
    ("chat", b'{"model":"m"}', "`messages` is missing"),
    ("chat", b'{"model":"m","messages":"secret"}', "`messages` must be a list"),
    ("chat", b'{"model":"m","messages":null}', "`messages` must be a list"),
    ("chat", b'{"model":"m","messages":[{},"secret"]}', "`messages` must hold objects"),
    ("chat", rb'{"model":"\ud800x","messages":["\ud800"]}', "`messages` must hold objects"),
    ("messages", b'{"model":"m","messages":{}}', "`messages` must be a list"),
    ("messages", b'{"model":["secret"],"messages":[]}', "`model`"),
    ("responses", b'{"model":"m","messages":[]}', "`input` is missing"),
    ("responses", b'{"model":"m","input":null}', "`input` must be a list"),
    ("responses", b'{"model":"m","input":[[]]}', "`input` must hold objects"),
    ("responses", b'{"model":"m","input":[],"input":[]}', "twice"),
    ("responses", b"secret", "not a JSON object"),
]


@pytest.mark.parametrize(("dialect", "raw", "told"), UNREADABLE)
def test_what_is_no_conversation_says_which_key_is_at_fault_and_quotes_nothing(dialect, raw, told):
    with pytest.raises(UnreadableBody, match=told) as caught:
        read(dialect, raw)
    assert "secret" not in str(caught.value)


def test_odd_values_of_optional_fields_are_absences():
    for dialect, key in itertools.product(["chat", "responses", "messages"], ["max_tokens", "max_output_tokens"]):
        for odd in [None, True, 0, -5, 1.5, "many", [1]]:
            body = {"model": "m", "messages": [], "input": [], key: odd, "stream": odd, "tools": []}
            conversation = read(dialect, dumps(body))
            assert conversation.output_limit is None
            assert conversation.stream is (odd is True)
            assert conversation.tools == b""


def test_an_item_whose_value_cannot_be_built_ends_the_leading_ones_and_no_more():
    raw = b'{"model":"m","messages":[{"role":"system"},{"role":"system","n":1e999},{"role":"system"}]}'
    conversation = read("chat", raw)
    assert (conversation.lead, len(conversation.items)) == (1, 3)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["chat", "responses", "messages"]), hostile_items)
def test_no_item_is_too_odd_to_be_looked_at(dialect, item):
    module = REQUESTS[dialect]
    facts = module.facts(item)
    assert all(isinstance(name, str) for name in (*facts.calls, *facts.results, *facts.ids, *facts.mentions))
    for part in module.parts(item):
        assert isinstance(part.text, str)
        assert isinstance(part.name, str)
        assert isinstance(part.id, str)
    assert module.canonical(module.canonical(item)) == module.canonical(item)
    module.prepend_text(item, "words")
    dropped = module.drop_thinking(item)
    assert dropped is None or isinstance(loads(dropped), dict)


@quick
@given(st.sampled_from(["chat", "responses", "messages"]), hostile_items)
def test_reading_an_item_never_changes_it(dialect, item):
    before = dumps(item)
    module = REQUESTS[dialect]
    module.facts(item), list(module.parts(item)), module.canonical(item)
    module.prepend_text(item, "words"), module.drop_thinking(item)
    assert dumps(item) == before


def test_nothing_of_a_conversation_shows_in_its_printed_form():
    raw = b'{"model":"m","system":"SECRET","tools":["SECRET"],"messages":[{"role":"user","content":"SECRET"}]}'
    conversation = read("messages", raw)
    (part,) = REQUESTS["messages"].parts({"role": "user", "content": "SECRET"})
    assert "SECRET" not in f"{conversation!r} {conversation.items[0]!r} {part!r}"


@quick
@given(bodies(), texts)
def test_another_model_s_name_changes_nothing_else(body, name):
    dialect, raw, _items = body
    before = read(dialect, raw)
    after = before.with_model(name)
    assert after == read(dialect, before.replace_fields({"model": dumps(name)}))
    assert list(after.items) == list(read(dialect, after.raw).items)


@quick
@given(bodies(), st.lists(hostile_items.map(dumps), min_size=1, max_size=3), st.data())
def test_items_and_fields_are_replaced_at_once_as_one_after_the_other(body, new, data):
    dialect, raw, _items = body
    before = read(dialect, raw)
    keep_from = data.draw(st.integers(before.lead, len(before.items)))
    names = st.sampled_from(sorted(before.fields)) | texts
    fields = data.draw(
        st.dictionaries(
            names.filter(lambda name: name not in (before.items_key, "model")), values.map(dumps), max_size=3
        )
    )
    twice = read(dialect, before.replace_items(new, keep_from=keep_from)).replace_fields(fields)
    assert before.replace(new, keep_from=keep_from, fields=fields) == twice


def test_conversations_are_equal_where_they_say_the_same_in_the_same_bytes():
    assert read("chat", BODY) == read("chat", BODY)
    assert read("chat", BODY) != read("chat", BODY.replace(b'"x":1', b'"x":2'))
    assert read("chat", FIELDS) != read("messages", FIELDS)
    assert read("chat", BODY) != BODY
