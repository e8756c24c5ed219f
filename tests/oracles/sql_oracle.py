"""SQL92 filters the slow way: the tree walked over a dictionary of properties, and a tree written as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def evaluate(node: Node, properties: Mapping[str, str]) -> bool | None:
    """True, False, or None for unknown."""
    match node:
        case Constant(value):
            return value if isinstance(value, bool) else None
        case Sample(percent):
            return is_sampled(0, percent)
        case Not(operand):
            truth = evaluate(operand, properties)
            return None if truth is None else not truth
        case And(operands):
            return all_of([evaluate(each, properties) for each in operands])
        case Or(operands):
            truth = all_of([negate(evaluate(each, properties)) for each in operands])
            return negate(truth)
        case IsNull(operand):
            return value_of(operand, properties) is None
        case In(name, texts):
            return None if name not in properties else properties[name] in texts
        case Search(kind, name, text):
            if name not in properties:
                return None
            value = properties[name]
            if kind == "contains":
                return text in value
            return value.startswith(text) if kind == "startswith" else value.endswith(text)
        case Compare(operator, left, right):
            one, other = value_of(left, properties), value_of(right, properties)
            if one is None or other is None:
                return None
            return equal(one, other) if operator == "=" else ordered(operator, one, other)
    raise AssertionError(node)


def is_sampled(position: int, percent: float) -> bool:
    """Whether the record at a position is one of so many percent."""
    number = (position + 0x9E3779B97F4A7C15) % 2**64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ number >> 27) * 0x94D049BB133111EB % 2**64
    number ^= number >> 31
    return number / 2**64 < max(round(percent / 100 * 2**32), 1) / 2**32


def value_of(node: Node, properties: Mapping[str, str]) -> str | int | float | bool | None:
    if isinstance(node, Property):
        return properties.get(node.name)
    if isinstance(node, Constant):
        return node.value
    return evaluate(node, properties)


def equal(one: Any, other: Any) -> bool | None:
    if isinstance(one, bool) or isinstance(other, bool):
        return truth_of(one) == truth_of(other)
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    numbers = comparable(one, other)
    return None if numbers is None else numbers[0] == numbers[1]


def ordered(operator: str, one: Any, other: Any) -> bool | None:
    numbers = comparable(one, other)
    if numbers is None:
        return None
    left, right = numbers
    return {">": left > right, ">=": left >= right, "<": left < right, "<=": left <= right}[operator]


def comparable(one: Any, other: Any) -> tuple[Any, Any] | None:
    """Both as numbers, as doubles when one of them is; None when a text is no number."""
    left, right = number_of(one), number_of(other)
    if left is None or right is None:
        return None
    if isinstance(left, int) and isinstance(right, int):
        return left, right
    return float(left), float(right)


def number_of(value: Any) -> int | float | None:
    if not isinstance(value, str):
        return value
    if not NUMBER.fullmatch(value) or len(value.encode()) > 64:
        return None
    if re.fullmatch(r"[+-]?\d+", value, re.ASCII) and -(2**63) <= int(value) < 2**63:
        return int(value)
    return float(value)


def truth_of(value: Any) -> bool:
    return value if isinstance(value, bool) else value.lower() == "true" and value.isascii()


def all_of(truths: list[bool | None]) -> bool | None:
    if False in truths:
        return False
    return None if None in truths else True


def negate(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def write(node: Node) -> str:
    """The expression whose tree is `node`."""
    match node:
        case Property(name):
            return name
        case Constant(value):
            return literal(value)
        case Not(IsNull(operand)):
            return f"{bracketed(operand)} IS NOT NULL"
        case Not(operand):
            return f"NOT ({write(operand)})"
        case And(operands):
            return " AND ".join(f"({write(each)})" for each in operands)
        case Or(operands):
            return " or ".join(f"({write(each)})" for each in operands)
        case IsNull(operand):
            return f"{bracketed(operand)} is null"
        case In(name, texts):
            return f"{name} IN ({', '.join(map(literal, texts))})"
        case Search(kind, name, text):
            return f"{name} {kind.upper()} {literal(text)}"
        case Sample(percent):
            return f"sample({percent!r})"
        case Compare(operator, left, right):
            return f"{bracketed(left)} {operator} {bracketed(right)}"
    raise AssertionError(node)


def bracketed(node: Node) -> str:
    text = write(node)
    return text if isinstance(node, Property | Constant) else f"({text})"


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)
