"""The tree an expression of type SQL92 becomes, and what it looks at. `sql.py` makes it of a text."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

SQL_EXPRESSION: Final = "SQL92"

Comparison: TypeAlias = Literal["=", ">", ">=", "<", "<="]
SearchKind: TypeAlias = Literal["contains", "startswith", "endswith"]


class Property(NamedTuple):
    """The value of a property: a text, or unknown when the record has none of the name."""

    name: str


class Constant(NamedTuple):
    """A number, a text, TRUE or FALSE; None is NULL, which stands only for an unknown truth."""

    value: str | int | float | bool | None


class Compare(NamedTuple):
    """Both sides are properties, constants or, with `=`, truths."""

    operator: Comparison
    left: Node
    right: Node


class IsNull(NamedTuple):
    operand: Node


class In(NamedTuple):
    name: str
    texts: tuple[str, ...]


class Search(NamedTuple):
    kind: SearchKind
    name: str
    text: str


class Sample(NamedTuple):
    """True for so many percent of all records, chosen by their positions in the log."""

    percent: int | float


class Not(NamedTuple):
    operand: Node


class And(NamedTuple):
    operands: tuple[Node, ...]


class Or(NamedTuple):
    operands: tuple[Node, ...]


Node: TypeAlias = "Property | Constant | Compare | IsNull | In | Search | Sample | Not | And | Or"


def property_names(node: Node) -> list[str]:
    """Return the properties an expression looks at, each once, in the order they appear."""
    names: dict[str, None] = {}
    waiting = [node]
    while waiting:
        at = waiting.pop()
        if isinstance(at, Property | In | Search):
            names[at.name] = None
        waiting += reversed(children(at))
    return list(names)


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes right below."""
    if isinstance(node, And | Or):
        return node.operands
    if isinstance(node, Not | IsNull):
        return (node.operand,)
    if isinstance(node, Compare):
        return (node.left, node.right)
    return ()
