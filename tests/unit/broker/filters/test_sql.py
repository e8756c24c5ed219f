"""SQL92 subscription expressions: what they mean, what is refused and where, how large they may be."""

from __future__ import annotations

import sys

import pytest

from iotmq import limits
from iotmq.broker.filters.property_filter import PropertyFilter
from iotmq.broker.filters.sql import parse_sql
from iotmq.broker.filters.sql_tree import Compare, Constant, Not, Property, property_names
from iotmq.errors import RequestError
from iotmq.message.properties import encode_properties


def truth(expression: str, **properties: str) -> bool | None:
    return PropertyFilter(parse_sql(expression)).evaluate(encode_properties(properties))


def refusal(expression: str) -> str:
    with pytest.raises(RequestError) as caught:
        parse_sql(expression)
    assert caught.value.code == 23
    return str(caught.value)


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        ("a > 5", {"a": "6"}, True),
        ("a > 5", {"a": "5"}, False),
        ("a > 5", {"a": "5.5"}, True),
        ("a >= 5 AND a <= 5", {"a": "5"}, True),
        ("a <> 5", {"a": "5.0"}, False),
        ("a = '5'", {"a": "5.0"}, False),
        ("a = b", {"a": "x", "b": "x"}, True),
        ("a > b", {"a": "10", "b": "9"}, True),
        ("5 < a", {"a": "6"}, True),
        ("a = -5", {"a": "-5"}, True),
        ("a = - -5", {"a": "5"}, True),
        ("a between 1 and 3", {"a": "3"}, True),
        ("a NOT BETWEEN 1 AND 3", {"a": "4"}, True),
        ("a between 1 and 3 and b = 'x'", {"a": "2", "b": "x"}, True),
        ("TAGS in ('red', 'it''s')", {"TAGS": "it's"}, True),
        ("TAGS not in ('red')", {"TAGS": "blue"}, True),
        ("a IS NULL", {}, True),
        ("a is not null", {}, False),
        ("a CONTAINS 'b'", {"a": "abc"}, True),
        ("a not contains 'b'", {"a": "abc"}, False),
        ("a StartsWith 'ab' and a endswith 'bc'", {"a": "abc"}, True),
        ("a = TRUE", {"a": "True"}, True),
        ("a = false", {"a": "yes"}, True),
        ("a", {"a": "true"}, True),
        ("NOT a", {"a": "false"}, True),
        ("(a > 1) = TRUE", {"a": "2"}, True),
        ("sample > 5 AND SAMPLE = '6'", {"sample": "6", "SAMPLE": "6"}, True),
        ("sample(100) AND NOT Sample ( 0.001 )", {}, True),
        ("(SAMPLE(100)) = TRUE AND SAMPLE(1) IS NOT NULL", {}, True),
        ("a > 5 -- the limit\n AND /* of the\n device */ b = 1", {"a": "6", "b": "1"}, True),
    ],
)  # fmt: skip
def test_expressions_mean_what_the_dialect_says(
    expression: str, properties: dict[str, str], expected: bool | None
) -> None:
    assert truth(expression, **properties) is expected


def test_names_are_taken_as_they_are_written_and_keywords_in_any_case() -> None:
    assert truth("A = 1 aNd a = 2", A="1", a="2") is True
    assert truth("inner = 1 or order = 1", inner="1") is True


def test_not_binds_closer_than_and_and_less_close_than_a_comparison() -> None:
    assert parse_sql("NOT a = 5") == Not(Compare("=", Property("a"), Constant(5)))
    assert truth("NOT a = 1 AND b = 2", a="2", b="2") is True
    assert truth("a = 1 OR b = 1 AND c = 1", a="1") is True


@pytest.mark.parametrize(
    "expression",
    ["a > 1", "a = 1", "a <> 'x'", "NOT a > 1", "a IN ('x')", "a NOT IN ('x')", "a CONTAINS 'x'", "a = b"],
)
def test_what_is_missing_makes_a_comparison_unknown(expression: str) -> None:
    assert truth(expression) is None


def test_unknown_counts_only_where_it_decides() -> None:
    assert truth("a > 1 OR b = 1", b="1") is True
    assert truth("a > 1 AND b = 1", b="2") is False
    assert truth("a > 1 AND b = 1", b="1") is None
    assert truth("NOT (a > 1 OR b = 1)", b="2") is None
    assert truth("(a > 1) IS NULL") is True


@pytest.mark.parametrize("text", ["x", "", "5 ", " 5", "5x", "0x5", "1e", "nan", "inf", "٣", "1_0", "+", "."])
def test_a_text_that_is_no_number_is_neither_more_nor_less_than_one(text: str) -> None:
    assert truth("a > 1 OR a <= 1", a=text) is None


def test_numbers_have_a_longest_text() -> None:
    assert truth("a > 1", a="1" * 64) is True
    assert truth("a > 1", a="1" * 65) is None


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("a >", "ends too early"),
        ("(a = 1", "ends too early"),
        ("a = 1)", "')' at character 6 is not expected"),
        ("a ! 5", "'!' at character 3"),
        ("a == 5", "'=' at character 4 is not expected"),
        ("a LIKE 'x%'", "'LIKE' at character 3 is not expected"),
        ("a + 1 = 2", "'+' at character 3 is not expected"),
        ("a in (1)", "'1' at character 7 is not expected: a 'text' may stand there"),
        ("a > 'x'", "has no order"),
        ("a > TRUE", "has no order"),
        ("(a > 1) > 2", "has no order"),
        ("a between 3 and 1", "is empty"),
        ("a between 'x' and 'y'", "has no order"),
        ("a = NULL", "IS NULL"),
        ("NULL <> a", "IS NULL"),
        ("5", "not a condition"),
        ("a = 1 AND 'x'", "not a condition"),
        ("5 IN ('x')", "needs the name of a property"),
        ("(a > 1) CONTAINS 'x'", "needs the name of a property"),
        ("1 = 'x'", "a text constant"),
        ("(a > 1) = 5", "cannot be compared with a condition"),
        ("a = 9223372036854775808", "does not fit 64 bits"),
        ("a = 1e999", "does not fit a double"),
        ("SAMPLE(0)", "SAMPLE(0): it is a percentage"),
        ("SAMPLE(-1)", "percentage"),
        ("SAMPLE(100.1)", "percentage"),
        ("SAMPLE('5')", "not expected"),
        ("SAMPLE(5", "ends too early"),
        ("SAMPLE(5) > 3", "has no order"),
        ("", "is empty"),
        (" \t", "is empty"),
        ("*", "no word begins with '*' at character 1"),
        ("größe = 1", r"no word begins with '\xf6' at character 3"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(expression: str, words: str) -> None:
    assert words in refusal(expression)


def test_numbers_reach_to_the_ends_of_a_long() -> None:
    assert truth("a = -9223372036854775808", a="-9223372036854775808") is True
    assert truth("a = 9223372036854775807L", a="9223372036854775807") is True


def test_an_expression_may_have_so_many_bytes() -> None:
    fill = limits.FILTER_EXPRESSION_BYTES_MAX - len("a = ''")
    parse_sql(f"a = '{'x' * fill}'")
    assert f"{limits.FILTER_EXPRESSION_BYTES_MAX + 1} bytes" in refusal(f"a = '{'x' * (fill + 1)}'")


def test_an_expression_may_be_so_deep() -> None:
    # A comparison and its operands are two levels.
    parse_sql("NOT " * (limits.FILTER_DEPTH_MAX - 2) + "a = 1")
    assert "levels" in refusal("NOT " * (limits.FILTER_DEPTH_MAX - 1) + "a = 1")
    depth = limits.FILTER_DEPTH_MAX
    assert parse_sql("(" * depth + "a = 1" + ")" * depth) == parse_sql("a = 1")
    assert "levels" in refusal("(" * (depth + 1) + "a = 1" + ")" * (depth + 1))


def test_an_expression_may_have_so_many_parts() -> None:
    texts = ["'x'"] * (limits.FILTER_NODES_MAX - 1)
    parse_sql(f"a IN ({','.join(texts)})")
    assert "operators, names and constants" in refusal(f"a IN ({','.join([*texts, *texts[:1]])})")


def _calls(expression: str) -> int:
    """How many functions of Python are called for an expression, whatever becomes of it."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        parse_sql(expression)
    except RequestError:
        pass
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "part",
    ["a=1 OR ", "a OR ", "(", "NOT ", "a=(", "a=1 AND NOT(", "1<1OR ", "a IN('')OR ", "a in(" + "''," * 2_720,
     "- ", "a=-1 OR ", "/**/"],
)  # fmt: skip
def test_what_is_refused_takes_no_more_work_than_what_is_allowed(part: str) -> None:
    comparisons = limits.FILTER_NODES_MAX // 3
    allowed = _calls(" AND ".join(["a=1"] * comparisons))
    longest = part * (limits.FILTER_EXPRESSION_BYTES_MAX // len(part))
    assert _calls(longest) <= 2 * allowed < 40 * limits.FILTER_NODES_MAX


def test_an_expression_may_name_so_many_properties() -> None:
    def naming(count: int) -> str:
        return " OR ".join(f"p{number} = 1" for number in range(count))

    tree = parse_sql(naming(limits.FILTER_PROPERTIES_MAX))
    assert len(property_names(tree)) == limits.FILTER_PROPERTIES_MAX
    last = f"p{limits.FILTER_PROPERTIES_MAX - 1}"
    assert PropertyFilter(tree).evaluate(f"{last}\x011".encode()) is True
    assert "properties" in refusal(naming(limits.FILTER_PROPERTIES_MAX + 1))


def test_an_expression_may_search_so_many_times() -> None:
    def searching(count: int) -> str:
        return " OR ".join(["a CONTAINS 'x'"] * count)

    parse_sql(searching(limits.FILTER_SEARCHES_MAX))
    assert "searches in texts" in refusal(searching(limits.FILTER_SEARCHES_MAX + 1))


def test_the_work_of_a_filter_grows_with_what_it_looks_at() -> None:
    properties = encode_properties({"a": "x" * 1_000})
    plain, searching = (PropertyFilter(parse_sql(text)) for text in ("a = 'y'", "a contains 'y'"))
    plain.evaluate(properties)
    searching.evaluate(properties)
    assert len(properties) <= plain.work_done < 1_100
    assert searching.work_done >= plain.work_done + 900
