"""Regular expressions of the operator's that are applied to text of devices.

The engine tries every way in which a pattern can match. With a repetition of what can itself match in several
ways, such as (a+)+ or (a|ab)*, these are so many that forty characters of a device would keep it busy for
good. Each other repetition multiplies them by the length of the text, each choice by what there is to choose;
only one that ends with its level of a topic, such as [^/]+ before a slash, or with the pattern, such as .+ at
its end, is done in one way. Patterns with too many ways are refused; whoever asks bounds the text.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# Ways to match a text, of which the engine tries some tens of millions a second.
WAYS_MAX: Final = 1 << 18

_COUNT: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")
# What is repeated within a level, and what stands behind it.
_IN_LEVEL: Final = re.compile(r"(\[\^/\]|\\d|\\w)$")
_LEVEL_ENDS: Final = re.compile(r"\)*(/|\$|$)")
# The same of what takes all that is left.
_ANYTHING: Final = re.compile(r"(?<!\\)\.$")
_PATTERN_ENDS: Final = re.compile(r"\)*\$?$")


def compile_pattern(pattern: str, *, text_characters_max: int) -> re.Pattern[str]:
    """A pattern that takes a bounded time for texts so long; ValueError says what is wrong with others."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error or type(error).__name__}") from None
    if re.search(r"\\[1-9]|\(\?P=", pattern):
        raise ValueError("references to groups within the pattern are not supported")
    if _ways(pattern, text_characters_max) > WAYS_MAX:
        raise ValueError(
            "it can match in too many ways: it may have two repetitions such as (.+), and one at its end, "
            "but only one when it does not begin with ^, and few choices; of ([^/]+), for a level, any number"
        )
    return compiled


class _Repetition(NamedTuple):
    least: int
    # None: without an end.
    most: int | None
    size: int


def _ways(pattern: str, text_characters_max: int) -> int:
    """In how many ways a pattern that compiles can match a text, at most; ValueError for more than that."""
    is_anchored = pattern.startswith("^")
    ways = 1
    # Of each group around the place: it can match in several ways.
    ambiguous = [False]
    # What the next repetition repeats.
    is_ambiguous = False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        repetition = _repetition(pattern, at)
        if repetition is not None:
            start, at = at, at + repetition.size
            is_possessive = pattern[at : at + 1] == "+"
            at += pattern[at : at + 1] in ("+", "?")
            if repetition.most != 1 and is_ambiguous and not is_possessive:
                raise ValueError(
                    "a repetition of something that can match in several ways, such as (a+)+ or (a|ab)*, may "
                    "take for ever; make the inner repetition possessive, as in (?:[^/]++/)+, or do without"
                )
            most = (
                text_characters_max if repetition.most is None else min(repetition.most, text_characters_max)
            )
            choices = 1 + max(0, most - repetition.least)
            if not is_possessive and not _is_done_in_one_way(pattern, start, at):
                ways *= choices
            is_ambiguous = (choices > 1 or is_ambiguous) and not is_possessive
            ambiguous[-1] |= is_ambiguous
            continue
        is_ambiguous = False
        if char == "\\":
            at += 1
        elif char == "[":
            at = _end_of_class(pattern, at)
        elif char == "(":
            ambiguous.append(False)
            # What (?: and the like say of the group is no repetition.
            at += pattern[at + 1 : at + 2] == "?"
        elif char == ")":
            is_ambiguous = ambiguous.pop()
            ambiguous[-1] |= is_ambiguous
        elif char == "|":
            is_anchored = is_anchored and len(ambiguous) > 1
            ambiguous[-1] = True
            ways *= 2
        at += 1
    return ways if is_anchored else ways * text_characters_max


def _is_done_in_one_way(pattern: str, start: int, end: int) -> bool:
    """Whether the repetition that stands between two places never has to be tried with another count."""
    if _IN_LEVEL.search(pattern, 0, start):
        return _LEVEL_ENDS.match(pattern, end) is not None
    return _ANYTHING.search(pattern, 0, start) is not None and _PATTERN_ENDS.match(pattern, end) is not None


def _repetition(pattern: str, at: int) -> _Repetition | None:
    """The repetition that stands at a place."""
    if pattern[at] in "*+?":
        return _Repetition(int(pattern[at] == "+"), 1 if pattern[at] == "?" else None, 1)
    found = _COUNT.match(pattern, at)
    if found is None or not (found[1] or found[2]):
        return None
    most = found[3] if found[2] else found[1]
    return _Repetition(int(found[1] or 0), int(most) if most else None, len(found[0]))


def _end_of_class(pattern: str, at: int) -> int:
    """Where the bracket stands that closes the class that begins at `at`."""
    at += 1
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at
