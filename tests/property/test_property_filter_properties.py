"""Compiled filters beside their slow twin, and expressions written out and read again."""

from __future__ import annotations

import pytest
import sql_oracle
from hypothesis import given
from hypothesis import strategies as st

from iotmq.broker.filters.property_filter import PropertyFilter
from iotmq.broker.filters.sql import parse_sql
from iotmq.broker.filters.sql_tree import (
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Node,
    Not,
    Or,
    Property,
    Sample,
    Search,
)
from iotmq.errors import RequestError
from iotmq.message.properties import decode_properties, encode_properties
from iotmq.message.records.record import encode_record

NAMES = ["a", "b", "ab", "TAGS", "_x$1"]
TEXTS = st.one_of(
    st.sampled_from(
        ["", "x", "xy", "5", "5.0", "-5", "+5", ".5", "5.", "1e3", "1e", "true", "True", "t", "'"]
    ),
    st.sampled_from(
        ["9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e400", "٣", "nan"]
    ),
    st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=6),
    st.from_regex(r"\A[+-]?\d{1,20}(\.\d{0,3})?(e[+-]?\d{1,3})?\Z"),
    st.integers(10**62, 10**66).map(str),
)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-10, 10),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.5, 5.0, 1e3]),
)
PROPERTIES = st.dictionaries(st.sampled_from([*NAMES, "c"]), TEXTS, max_size=6)

names = st.sampled_from(NAMES)
numeric = st.one_of(names.map(Property), NUMBERS.map(Constant))


def parsed(text: str) -> Node | None:
    """None for what the language refuses, with a reason."""
    try:
        return parse_sql(text)
    except RequestError as error:
        return None if error.code == 23 and str(error) else pytest.fail(repr(error))


def equals(left: Node, right: Node) -> Node | None:
    return parsed(sql_oracle.write(Compare("=", left, right)))


leaves = st.one_of(
    st.booleans().map(Constant),
    st.builds(Compare, st.sampled_from([">", ">=", "<", "<="]), numeric, numeric),
    st.builds(Compare, st.just("="), names.map(Property), TEXTS.map(Constant)),
    st.builds(equals, st.one_of(numeric, TEXTS.map(Constant)), numeric).filter(bool),
    st.builds(Compare, st.just("="), names.map(Property), st.booleans().map(Constant)),
    st.builds(IsNull, names.map(Property)),
    st.builds(Sample, st.sampled_from([1, 88, 89, 100, 0.25, 1e-12])),
    st.builds(In, names, st.lists(TEXTS, min_size=1, max_size=4).map(tuple)),
    st.builds(Search, st.sampled_from(["contains", "startswith", "endswith"]), names, TEXTS),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=2, max_size=4).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=4).map(tuple)),
        st.builds(Compare, st.just("="), inner, names.map(Property)),
        st.builds(IsNull, inner),
    ),
    max_leaves=12,
)


@given(trees, PROPERTIES)
def test_compiled_filters_say_what_the_slow_twin_says(tree: Node, properties: dict[str, str]) -> None:
    raw = encode_properties(properties)
    expected = sql_oracle.evaluate(tree, properties)
    compiled = PropertyFilter(tree)
    assert compiled.evaluate(raw) is expected
    record = encode_record(topic="T", body=b"body", properties=raw)
    assert compiled.matches(record) is (expected is True)


@given(st.integers(0, 2**63 - 1), st.floats(0, 100, exclude_min=True))
def test_a_sample_is_chosen_by_the_position(position: int, percent: float) -> None:
    compiled = PropertyFilter(parse_sql(f"SAMPLE({percent!r}) AND SAMPLE(100)"))
    record = encode_record(topic="T", body=b"", position=position)
    assert compiled.matches(record) is sql_oracle.is_sampled(position, percent)


@given(trees)
def test_an_expression_written_out_is_read_as_the_same_tree(tree: Node) -> None:
    assert parse_sql(sql_oracle.write(tree)) == tree


@given(st.binary(max_size=60))
def test_raw_properties_of_any_bytes_are_read_as_everywhere_else(raw: bytes) -> None:
    found = decode_properties(raw)
    for name in ("a", "TAGS"):
        # A name may hold \x01 nowhere, so both read the first one as its end.
        expected = name in {key for key in found if "\ufffd" not in key}
        assert PropertyFilter(parse_sql(f"{name} IS NOT NULL")).evaluate(raw) is expected


@given(st.text("aB5 '=<>()+-.,*/;%eE\n", max_size=40) | st.text(max_size=40))
def test_any_text_is_a_tree_or_refused_with_a_reason(text: str) -> None:
    tree = parsed(text)
    if tree is not None:
        PropertyFilter(tree).evaluate(b"")


WORDS = "a B5 TAGS SAMPLE = <> > >= < <= ( ) , 'x' '' 5 -7 1.5 NOT and OR between IN is NULL TRUE contains"


@given(st.lists(st.sampled_from(sorted(WORDS.split())), max_size=14))
def test_any_words_of_the_language_are_a_tree_or_refused(words: list[str]) -> None:
    tree = parsed(" ".join(words))
    if tree is not None:
        compiled = PropertyFilter(tree).evaluate(b"a\x015\x02B5\x01x\x02")
        assert compiled is sql_oracle.evaluate(tree, {"a": "5", "B5": "x"})
