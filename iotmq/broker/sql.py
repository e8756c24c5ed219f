"""Subscription expressions of type SQL92: the grammar, and how a text becomes a tree.

The dialect is RocketMQ's: properties, numbers, texts in single quotes, TRUE and FALSE; `=  <>  >  >=  <  <=`,
BETWEEN, IN, IS NULL, CONTAINS, STARTSWITH and ENDSWITH with their NOT forms; NOT, AND, OR, brackets, SQL
comments. Keywords are known in any case, names of properties are taken as they are written.

Parsing costs about 20 µs a word, on the event loop: a text, its nodes and its depth have maxima.
"""

from __future__ import annotations

from typing import Any, Final

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken, VisitError

from iotmq import limits
from iotmq.broker.sql_tree import (
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Node,
    Not,
    Or,
    Property,
    Search,
    children,
    property_names,
)
from iotmq.errors import RequestError
from iotmq.remoting.codes import ResponseCode

_GRAMMAR: Final = r"""
?start: disjunction
disjunction: conjunction ("OR"i conjunction)*
conjunction: negation ("AND"i negation)*
?negation: "NOT"i negation -> negated
    | predicate
?predicate: value
    | value "=" value -> equal
    | value "<>" value -> unequal
    | value ORDER value -> ordered
    | value "IS"i "NULL"i -> is_null
    | value "IS"i "NOT"i "NULL"i -> is_not_null
    | value "BETWEEN"i value "AND"i value -> between
    | value "NOT"i "BETWEEN"i value "AND"i value -> not_between
    | value "IN"i "(" text ("," text)* ")" -> among
    | value "NOT"i "IN"i "(" text ("," text)* ")" -> not_among
    | value SEARCH text -> search
    | value "NOT"i SEARCH text -> no_search
?value: NAME -> property
    | text -> constant
    | SIGN* INTEGER -> integer
    | SIGN* REAL -> real
    | "TRUE"i -> true
    | "FALSE"i -> false
    | "NULL"i -> null
    | "(" disjunction ")"
text: TEXT

ORDER: />=|<=|>|<(?!>)/
SEARCH.1: /(contains|startswith|endswith)(?![a-z0-9_$])/i
SIGN: "+" | "-"
REAL.1: /(\d+\.\d*|\.\d+)(e[+-]?\d+)?|\d+e[+-]?\d+/i
INTEGER: /\d+l?/i
TEXT: /'(''|[^'])*'/
NAME: /[a-z_$][a-z0-9_$]*/i
COMMENT: /--[^\n\r]*/ | /\/\*(\*(?!\/)|[^*])*\*\//

%ignore /[ \t\r\n\f]+/
%ignore COMMENT
"""

_INT64_MAX: Final = 2**63 - 1
_SHOWN_CHARACTERS: Final = 40
_WORDS_SHOWN: Final = 6
_REFUSED: Final = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class _RuleError(Exception):
    """A text that the grammar takes and the rules do not; does not leave this module."""


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
        parsed: Any = _parser().parse(expression)
        (node,) = _truths((parsed,))
        _check_size(node)
    except UnexpectedEOF as error:
        raise RequestError(_REFUSED, f"the SQL92 expression ends too early: {_wanted(error)}") from None
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise RequestError(_REFUSED, f"the SQL92 expression ends too early: {_wanted(error)}") from None
        at = (error.pos_in_stream or 0) + 1
        raise RequestError(
            _REFUSED, f"SQL92: {_shown(str(error.token))} at character {at} is not expected: {_wanted(error)}"
        ) from None
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise RequestError(
            _REFUSED, f"SQL92: no word begins with {_shown(expression[at])} at character {at + 1}"
        ) from None
    except VisitError as error:
        if not isinstance(error.orig_exc, _RuleError):
            raise
        raise RequestError(_REFUSED, f"SQL92: {error.orig_exc}") from None
    except _RuleError as error:
        raise RequestError(_REFUSED, f"SQL92: {error}") from None
    return node


@v_args(inline=True)
class _Builder(Transformer[Token, Node]):
    """Makes the tree while the parser runs, so that nothing recurses over a tree of unknown depth."""

    def disjunction(self, *operands: Node) -> Node:
        return operands[0] if len(operands) == 1 else Or(_truths(operands))

    def conjunction(self, *operands: Node) -> Node:
        return operands[0] if len(operands) == 1 else And(_truths(operands))

    def negated(self, operand: Node) -> Node:
        return Not(*_truths((operand,)))

    def property(self, name: Token) -> Node:
        return Property(str(name))

    def constant(self, value: str) -> Node:
        return Constant(value)

    def text(self, token: Token) -> str:
        return token[1:-1].replace("''", "'")

    def integer(self, *words: Token) -> Node:
        digits = words[-1].rstrip("lL")
        # More digits than a long has are refused before int() spends time on them.
        number = _sign(words[:-1]) * int(digits) if len(digits.lstrip("0")) <= 19 else _INT64_MAX + 1
        if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
            raise _RuleError(f"the number {_shown(digits)} does not fit 64 bits")
        return Constant(number)

    def real(self, *words: Token) -> Node:
        number = _sign(words[:-1]) * float(words[-1])
        if number in (float("inf"), float("-inf")):
            raise _RuleError(f"the number {_shown(words[-1])} does not fit a double")
        return Constant(number)

    def true(self) -> Node:
        return Constant(True)

    def false(self) -> Node:
        return Constant(False)

    def null(self) -> Node:
        return Constant(None)

    def equal(self, left: Node, right: Node) -> Node:
        return _equal(left, right)

    def unequal(self, left: Node, right: Node) -> Node:
        return Not(_equal(left, right))

    def ordered(self, left: Node, operator: Token, right: Node) -> Node:
        return _ordered(str(operator), left, right)

    def is_null(self, operand: Node) -> Node:
        return IsNull(operand)

    def is_not_null(self, operand: Node) -> Node:
        return Not(IsNull(operand))

    def between(self, value: Node, low: Node, high: Node) -> Node:
        if isinstance(low, Constant) and isinstance(high, Constant):
            lowest, highest = _number(low), _number(high)
            if lowest > highest:
                raise _RuleError(f"BETWEEN {lowest} AND {highest} is empty: the smaller number comes first")
        return And((_ordered(">=", value, low), _ordered("<=", value, high)))

    def not_between(self, value: Node, low: Node, high: Node) -> Node:
        return Or((_ordered("<", value, low), _ordered(">", value, high)))

    def among(self, value: Node, *texts: str) -> Node:
        return In(_name(value, "IN"), texts)

    def not_among(self, value: Node, *texts: str) -> Node:
        return Not(In(_name(value, "NOT IN"), texts))

    def search(self, value: Node, kind: Token, text: str) -> Node:
        word: Any = kind.lower()
        return Search(word, _name(value, kind.upper()), text)

    def no_search(self, value: Node, kind: Token, text: str) -> Node:
        return Not(self.search(value, kind, text))


_built: list[Lark] = []


def _parser() -> Lark:
    # Made when it is first needed: a broker without such a subscription does not pay for it.
    if not _built:
        _built.append(Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder()))
    return _built[0]


def _truths(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """What NOT, AND and OR take: conditions, and properties, which are true when their text is `true`."""
    for node in nodes:
        if isinstance(node, Constant) and not isinstance(node.value, bool) and node.value is not None:
            raise _RuleError(f"{_shown(str(node.value))} is no condition")
    return tuple([_equal(node, Constant(True)) if isinstance(node, Property) else node for node in nodes])


def _equal(left: Node, right: Node) -> Node:
    for side in (left, right):
        if isinstance(side, Constant) and side.value is None:
            raise _RuleError("nothing equals NULL: write IS NULL")
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Constant) and not isinstance(one.value, bool) and _is_truth(other):
            raise _RuleError(f"{_shown(str(one.value))} cannot be compared with a condition")
    if isinstance(left, Constant) and isinstance(right, Constant):
        kinds = {isinstance(side.value, str) for side in (left, right)}
        if len(kinds) == 2:
            raise _RuleError("a text constant cannot be compared with a number or a truth")
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
        raise _RuleError(f"{what} has no order: >, >=, <, <= and BETWEEN are for numbers")
    return node.value


def _name(node: Node, word: str) -> str:
    if not isinstance(node, Property):
        raise _RuleError(f"{word} needs the name of a property on its left")
    return node.name


def _sign(words: tuple[Token, ...]) -> int:
    return -1 if sum(word == "-" for word in words) % 2 else 1


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
            raise _RuleError(f"the expression has {count} {what}; {maximum} are the maximum")


def _wanted(error: UnexpectedToken | UnexpectedEOF) -> str:
    """What could stand there, in words of the language."""
    names = error.accepts or error.expected if isinstance(error, UnexpectedToken) else error.expected
    words = sorted(_WORDS.get(name, name) for name in names if name != "$END")
    shown = ", ".join(dict.fromkeys(words[:_WORDS_SHOWN]))
    return f"{shown}{', ...' if len(words) > _WORDS_SHOWN else ''} may stand there"


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")


_WORDS: Final = {
    "EQUAL": "=",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": ",",
    "ORDER": "< or >",
    "SEARCH": "CONTAINS",
    "NAME": "a property",
    "TEXT": "a 'text'",
    "INTEGER": "a number",
    "REAL": "a number",
    "SIGN": "a sign",
    "__ANON_0": "<>",
}
