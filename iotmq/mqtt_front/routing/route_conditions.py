"""Conditions of routes (`when`): comparisons of one placeholder with a number, a text, true or false.

What is not there meets no condition but `missing`, and a value of another kind is different, but neither less
nor greater. A number is compared with numbers of JSON, and with texts of topics and properties that are one.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from iotmq.errors import ConfigError
from iotmq.mqtt_front.routing.route_fields import Placeholder, RoutedMessage, Value, placeholder

_CONDITION: Final = re.compile(r"\s*\{([^{}]+)\}\s*(==|=|!=|<=|>=|<|>|exists\b|missing\b)\s*(.*?)\s*", re.S)
_NUMBER: Final = re.compile(r"[+-]?(\d{1,300})(\.\d{1,300})?([eE][+-]?\d{1,3})?")
_NUMBERS: Final = frozenset({int, float})
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(NamedTuple):
    """One comparison."""

    text: str
    source: Placeholder
    operator: str
    constant: Value
    is_met: Callable[[RoutedMessage], bool]


def condition(text: str, where: str) -> Condition:
    """Read a condition; ConfigError, which begins with `where`, for what is none."""
    where = f"{where} = {text!r}"
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{where}: a condition is a placeholder, an operator (=, !=, <, <=, >, >=, exists, missing) and "
            "a value, such as {json:temperature} > 30"
        )
    name, sign, written = found.groups()
    source = placeholder(name, where)
    sign = "=" if sign == "==" else sign
    if sign in ("exists", "missing"):
        if written:
            raise ConfigError(f"{where}: nothing follows {sign}")
        return Condition(text, source, sign, None, _presence(source, is_there=sign == "exists"))
    constant = _constant(written, where)
    if isinstance(constant, bool) and sign not in ("=", "!="):
        raise ConfigError(f"{where}: true and false have no order")
    if isinstance(constant, bool) and not source.asks_json:
        constant = written
    meets = _comparison(sign, constant, is_text=not source.asks_json)
    return Condition(text, source, sign, constant, lambda message: meets(source.read(message)))


def _constant(written: str, where: str) -> str | float | bool:
    if written in ("true", "false"):
        return written == "true"
    if len(written) > 1 and written[0] == written[-1] and written[0] in "'\"":
        return written[1:-1]
    number = _number(written)
    if number is None:
        raise ConfigError(f"{where}: {written!r} is not a number, true, false, or a text in quotes")
    return number


def _number(text: str) -> float | None:
    """Return a text as a number, None when it is none."""
    if len(text) > 310 or _NUMBER.fullmatch(text) is None:
        return None
    number: float = int(text) if text.lstrip("+-").isdigit() else float(text)
    return number if math.isfinite(number) else None


def _presence(source: Placeholder, *, is_there: bool) -> Callable[[RoutedMessage], bool]:
    return lambda message: (source.read(message) is not None) is is_there


def _comparison(sign: str, constant: Value, *, is_text: bool) -> Callable[[Value], bool]:
    """Return the test of a value; `is_text`: the values are texts, which may be numbers."""
    compare = _OPERATORS[sign]
    # A value of another kind is different.
    of_others = sign == "!="
    kinds = _NUMBERS if type(constant) in _NUMBERS else frozenset({type(constant)})

    def meets(value: Value) -> bool:
        if type(value) in kinds:
            return compare(value, constant)
        return of_others and value is not None

    def meets_as_number(value: Value) -> bool:
        number = _number(value) if isinstance(value, str) else None
        return meets(value if number is None else number)

    return meets_as_number if is_text and kinds is _NUMBERS else meets


def contradiction(conditions: Iterable[Condition]) -> str | None:
    """Return in words which two conditions no message can meet both; None when none was found."""
    by_source: dict[str, list[Condition]] = {}
    for each in conditions:
        for other in by_source.setdefault(each.source.text, []):
            if _exclude(each, other) or _exclude(other, each):
                return f"no message meets both {other.text!r} and {each.text!r}"
        by_source[each.source.text].append(each)
    return None


def _exclude(one: Condition, other: Condition) -> bool:
    if one.operator == "missing":
        return other.operator != "missing"
    if one.operator == "=" and other.operator not in ("exists", "missing"):
        # The one value there may be, where it is of the kind that the other condition reads.
        shown = one.constant
        if not one.source.asks_json and isinstance(shown, int | float) and not isinstance(shown, bool):
            return type(other.constant) is not str and not _comparison(
                other.operator, other.constant, is_text=False
            )(shown)
        return not _comparison(other.operator, other.constant, is_text=not one.source.asks_json)(shown)
    if one.operator in (">", ">=") and other.operator in ("<", "<="):
        low, high = one.constant, other.constant
        if isinstance(low, str) is not isinstance(high, str):
            # A text of a topic or property may be a number, and be compared as both.
            return one.source.asks_json
        is_both_closed = one.operator == ">=" and other.operator == "<="
        return low > high or (low == high and not is_both_closed)  # type: ignore[operator]
    return False
