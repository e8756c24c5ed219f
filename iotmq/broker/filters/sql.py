"""Subscription expressions of type SQL92: the grammar, and how a text becomes a tree.

The dialect is RocketMQ's: properties, numbers, texts in single quotes, TRUE and FALSE; `=  <>  >  >=  <  <=`,
BETWEEN, IN, IS NULL, CONTAINS, STARTSWITH and ENDSWITH with their NOT forms; NOT, AND, OR, brackets, SQL
comments. Keywords are known in any case, names of properties are taken as they are written. Ours is
SAMPLE(percent), where RocketMQ allows nothing: a property may have that name.

    disjunction: conjunction (OR conjunction)*
    conjunction: negation (AND negation)*
    negation: NOT negation | predicate
    predicate: value | value (= | <> | > | >= | < | <=) value | value IS [NOT] NULL
        | value [NOT] BETWEEN value AND value | value [NOT] IN (text, ...) | value [NOT] CONTAINS text ...
    value: property | text | sign* number | TRUE | FALSE | NULL | (disjunction) | SAMPLE(number)

Whoever subscribes has the event loop for the parsing: a method per rule, a few µs a word. Values and depth
are counted while it runs, so that what is refused costs no more than what is allowed.
"""

from __future__ import annotations

import re
from typing import Any, Final

from iotmq import limits
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
    children,
    property_names,
)
from iotmq.errors import RequestError
from iotmq.remoting.codes import ResponseCode

_SKIPPED: Final = re.compile(r"(?>[ \t\r\n\f]+|--[^\n\r]*|/\*(?s:.*?)\*/)*+")
_WORD: Final = re.compile(
    r"""(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)
    | (?P<REAL>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    | (?P<INTEGER>[0-9]+[lL]?)
    | (?P<TEXT>'[^']*(?:''[^']*)*')
    | (?P<SYMBOL><>|[=(),])
    | (?P<ORDER>>=|<=|>|<)
    | (?P<SIGN>[+-])
    | (?P<END>\Z)""",
    re.VERBOSE,
)
_KEYWORDS: Final = {
    **{word: word for word in ("OR", "AND", "NOT", "IS", "NULL", "BETWEEN", "IN", "TRUE", "FALSE")},
    **dict.fromkeys(("CONTAINS", "STARTSWITH", "ENDSWITH"), "SEARCH"),
}
_CONSTANTS: Final[dict[str, Node]] = {
    "TRUE": Constant(True),
    "FALSE": Constant(False),
    "NULL": Constant(None),
}

# What may stand where something else does, for who reads why an expression is refused.
_VALUES: Final = "a property, a 'text', a number, TRUE, FALSE, NULL, ("
_NEGATED: Final = "BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH"
_OPERATORS: Final = f"=, <>, < or >, IS, NOT, {_NEGATED}, AND, OR"

# Words that make a node each.
_COUNTED: Final = frozenset({"NAME", "TEXT", "INTEGER", "REAL", *_CONSTANTS})

_INT64_MAX: Final = 2**63 - 1
_SHOWN_CHARACTERS: Final = 40
_REFUSED: Final = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class _WrongError(Exception):
    """Refuse a text that is no expression; does not leave this module."""


def parse_sql(expression: str) -> Node:
    """The tree of an expression. Raises RequestError (23) that says what is wrong, and where in the text."""
    size = len(expression.encode("utf-8", "replace"))
    if size > limits.FILTER_EXPRESSION_BYTES_MAX:
        raise RequestError(
            _REFUSED,
            f"the SQL92 expression has {size} bytes; {limits.FILTER_EXPRESSION_BYTES_MAX} are the maximum",
        )
    if not expression.strip():
        raise RequestError(_REFUSED, "the SQL92 expression is empty: write a condition, or subscribe to '*'")
    try:
        (node,) = _truths((_Parser(expression).whole(),))
        _check_size(node)
    except _WrongError as error:
        raise RequestError(_REFUSED, f"SQL92: {error}") from None
    return node


class _Parser:
    """One look at a text, from left to right: `kind` and `word` are the word that comes next."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._end = 0
        self._brackets = 0
        self._values = 0
        self.kind = self.word = ""
        self._advance()

    def whole(self) -> Node:
        node = self._disjunction()
        if self.kind != "END":
            raise self._unexpected("AND, OR")
        return node

    def _disjunction(self) -> Node:
        operands = [self._conjunction()]
        while self._takes("OR"):
            operands.append(self._conjunction())
        return operands[0] if len(operands) == 1 else Or(_truths(tuple(operands)))

    def _conjunction(self) -> Node:
        operands = [self._negation()]
        while self._takes("AND"):
            operands.append(self._negation())
        return operands[0] if len(operands) == 1 else And(_truths(tuple(operands)))

    def _negation(self) -> Node:
        count = 0
        while self._takes("NOT"):
            count += 1
            _check_depth(count)
        node = self._predicate()
        for _ in range(count):
            node = Not(*_truths((node,)))
        return node

    def _predicate(self) -> Node:
        left = self._value()
        if self._takes("="):
            return _equal(left, self._value())
        if self._takes("<>"):
            return Not(_equal(left, self._value()))
        if self.kind == "ORDER":
            operator = self.word
            self._advance()
            return _ordered(operator, left, self._value())
        if self._takes("IS"):
            is_negated = self._takes("NOT")
            self._expect("NULL", "NULL" if is_negated else "NULL, NOT")
            return Not(IsNull(left)) if is_negated else IsNull(left)
        is_negated = self._takes("NOT")
        if self._takes("BETWEEN"):
            return self._between(left, is_negated=is_negated)
        if self._takes("IN"):
            node: Node = In(_name(left, "NOT IN" if is_negated else "IN"), self._texts())
        elif self.kind == "SEARCH":
            kind: Any = self.word.lower()
            self._advance()
            node = Search(kind, _name(left, kind.upper()), self._expect_text())
        elif is_negated:
            raise self._unexpected(_NEGATED)
        elif self.kind in ("END", ")", "AND", "OR"):
            return left
        else:
            raise self._unexpected(_OPERATORS)
        return Not(node) if is_negated else node

    def _between(self, value: Node, *, is_negated: bool) -> Node:
        low = self._value()
        self._expect("AND", "AND")
        high = self._value()
        if is_negated:
            return Or((_ordered("<", value, low), _ordered(">", value, high)))
        if isinstance(low, Constant) and isinstance(high, Constant):
            lowest, highest = _number(low), _number(high)
            if lowest > highest:
                raise _WrongError(f"BETWEEN {lowest} AND {highest} is empty: the smaller number comes first")
        return And((_ordered(">=", value, low), _ordered("<=", value, high)))

    def _value(self) -> Node:
        kind, word = self.kind, self.word
        if kind == "NAME":
            self._advance()
            if word.upper() == "SAMPLE" and self._takes("("):
                return self._sample()
            return Property(word)
        if kind == "TEXT":
            return Constant(self._expect_text())
        if kind in _CONSTANTS:
            self._advance()
            return _CONSTANTS[kind]
        if self._takes("("):
            self._brackets += 1
            _check_depth(self._brackets)
            node = self._disjunction()
            self._expect(")", "), AND, OR")
            self._brackets -= 1
            return node
        return self._number()

    def _sample(self) -> Node:
        percent = _number(self._number())
        if not 0 < percent <= 100:
            raise _WrongError(f"SAMPLE({percent}): it is a percentage, more than 0 and at most 100")
        self._expect(")", ")")
        return Sample(percent)

    def _number(self) -> Node:
        sign = 1
        is_signed = self.kind == "SIGN"
        while self.kind == "SIGN":
            sign = -sign if self.word == "-" else sign
            self._advance()
        kind, word = self.kind, self.word
        if kind not in ("INTEGER", "REAL"):
            raise self._unexpected("a number, a sign" if is_signed else _VALUES)
        self._advance()
        if kind == "REAL":
            real = sign * float(word)
            if real in (float("inf"), float("-inf")):
                raise _WrongError(f"the number {_shown(word)} does not fit a double")
            return Constant(real)
        digits = word.rstrip("lL")
        # More digits than a long has are refused before int() spends time on them.
        number = sign * int(digits) if len(digits.lstrip("0")) <= 19 else _INT64_MAX + 1
        if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
            raise _WrongError(f"the number {_shown(digits)} does not fit 64 bits")
        return Constant(number)

    def _texts(self) -> tuple[str, ...]:
        self._expect("(", "(")
        texts = [self._expect_text()]
        while self._takes(","):
            texts.append(self._expect_text())
        self._expect(")", "), ,")
        return tuple(texts)

    # Words

    def _advance(self) -> None:
        """Look at the next word."""
        skipped = _SKIPPED.match(self._text, self._end)
        start = self._end if skipped is None else skipped.end()
        found = _WORD.match(self._text, start)
        if found is None:
            raise _WrongError(f"no word begins with {_shown(self._text[start])} at character {start + 1}")
        kind = found.lastgroup or ""
        self._end, self.word = found.end(), found.group()
        if kind == "NAME":
            kind = _KEYWORDS.get(self.word.upper(), kind)
        elif kind == "SYMBOL":
            kind = self.word
        self.kind = kind
        if kind in _COUNTED:
            self._values += 1
            if self._values > limits.FILTER_NODES_MAX:
                raise _too_many("operators, names and constants", limits.FILTER_NODES_MAX)

    def _takes(self, kind: str) -> bool:
        """Return whether a word of the kind comes next; it is passed."""
        if self.kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str, wanted: str) -> None:
        if not self._takes(kind):
            raise self._unexpected(wanted)

    def _expect_text(self) -> str:
        word = self.word
        self._expect("TEXT", "a 'text'")
        return word[1:-1].replace("''", "'")

    def _unexpected(self, wanted: str) -> _WrongError:
        if self.kind == "END":
            return _WrongError(f"the expression ends too early: {wanted} may stand there")
        at = self._end - len(self.word) + 1
        return _WrongError(f"{_shown(self.word)} at character {at} is not expected: {wanted} may stand there")


def _truths(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Parse an operand of NOT, AND and OR: a condition, or a property that is true when it is `true`."""
    for node in nodes:
        if isinstance(node, Constant) and not isinstance(node.value, bool) and node.value is not None:
            raise _WrongError(f"{_shown(str(node.value))} is not a condition")
    return tuple([_equal(node, Constant(True)) if isinstance(node, Property) else node for node in nodes])


def _equal(left: Node, right: Node) -> Node:
    for side in (left, right):
        if isinstance(side, Constant) and side.value is None:
            raise _WrongError("nothing equals NULL: write IS NULL")
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Constant) and not isinstance(one.value, bool) and _is_truth(other):
            raise _WrongError(f"{_shown(str(one.value))} cannot be compared with a condition")
    if isinstance(left, Constant) and isinstance(right, Constant):
        kinds = {isinstance(side.value, str) for side in (left, right)}
        if len(kinds) == 2:
            raise _WrongError("a text constant cannot be compared with a number or a truth")
    return Compare("=", left, right)


def _ordered(operator: str, left: Node, right: Node) -> Node:
    for side in (left, right):
        if not isinstance(side, Property):
            _number(side)
    word: Any = operator
    return Compare(word, left, right)


def _is_truth(node: Node) -> bool:
    return not isinstance(node, Property | Constant) or (
        isinstance(node, Constant) and isinstance(node.value, bool)
    )


def _number(node: Node) -> int | float:
    if not isinstance(node, Constant) or isinstance(node.value, bool | str) or node.value is None:
        what = _shown(str(node.value)) if isinstance(node, Constant) else "a condition"
        raise _WrongError(f"{what} has no order: >, >=, <, <= and BETWEEN are for numbers")
    return node.value


def _name(node: Node, word: str) -> str:
    if not isinstance(node, Property):
        raise _WrongError(f"{word} needs the name of a property on its left")
    return node.name


def _check_size(node: Node) -> None:
    """Keep what one record can cost within bounds, whoever wrote the expression."""
    nodes = searches = 0
    level = [node]
    depth = 0
    while level:
        depth += 1
        nodes += sum(1 + (len(at.texts) if isinstance(at, In) else 0) for at in level)
        searches += sum(isinstance(at, Search) for at in level)
        level = [child for at in level for child in children(at)]
    for count, maximum, what in (
        (depth, limits.FILTER_DEPTH_MAX, "levels of brackets and operators"),
        (nodes, limits.FILTER_NODES_MAX, "operators, names and constants"),
        (searches, limits.FILTER_SEARCHES_MAX, "searches in texts"),
        (len(property_names(node)), limits.FILTER_PROPERTIES_MAX, "properties"),
    ):
        if count > maximum:
            raise _too_many(what, maximum)


def _check_depth(depth: int) -> None:
    if depth > limits.FILTER_DEPTH_MAX:
        raise _too_many("levels of brackets and operators", limits.FILTER_DEPTH_MAX)


def _too_many(what: str, maximum: int) -> _WrongError:
    return _WrongError(f"the expression has more than {maximum} {what}")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")
