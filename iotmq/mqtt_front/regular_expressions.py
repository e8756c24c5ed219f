"""Regular expressions of the operator's that are applied to text of devices.

The engine tries every way in which a pattern can match. With a repetition of what can itself match in several
ways, such as (a+)+ or (a|ab)*, these are so many that forty characters of a device would keep it busy for
good. Each other repetition can multiply the work by the length of the text, but for one that ends with its
level of a topic, such as [^/]+ before a slash. Patterns with too many of either are refused; whoever asks
bounds the text.
"""

from __future__ import annotations

import re
from typing import Final

# Repetitions without an end that go over more than a level; not to begin with ^ counts as one.
REPETITIONS_MAX: Final = 3
# {n,m} up to here is no more than writing the same some times.
_SMALL_COUNT: Final = 8
_COUNT: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")
# What is repeated within a level, and what stands behind it.
_IN_LEVEL: Final = re.compile(r"(\[\^/\]|\\d|\\w)$")
_LEVEL_ENDS: Final = re.compile(r"\)*(/|\$|$)")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern that takes a bounded time; ValueError says what is wrong with others."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error or type(error).__name__}") from None
    if re.search(r"\\[1-9]|\(\?P=", pattern):
        raise ValueError("references to groups within the pattern are not supported")
    _check_repetitions(pattern)
    return compiled


def _check_repetitions(pattern: str) -> None:
    """Of a pattern that compiles: no repetition of something that can match in several ways, few others."""
    count = 0 if pattern.startswith("^") else 1
    # Of each group around the place: it can match in several ways.
    ambiguous = [False]
    # What the next repetition repeats.
    is_ambiguous = False
    at = 0
    while at < len(pattern):
        char = pattern[at]
        repetition = _repetition(pattern, at)
        if repetition is not None:
            is_endless, is_open, size = repetition
            is_in_level = _IN_LEVEL.search(pattern, 0, at) is not None
            at += size
            is_possessive = pattern[at : at + 1] == "+"
            at += pattern[at : at + 1] in ("+", "?")
            if is_endless and is_ambiguous and not is_possessive:
                raise ValueError(
                    "a repetition of something that can match in several ways, such as (a+)+ or (a|ab)*, may "
                    "take for ever; make the inner repetition possessive, as in (?:[^/]++/)+, or do without"
                )
            is_in_level = is_in_level and _LEVEL_ENDS.match(pattern, at) is not None
            count += is_endless and not is_in_level and not is_possessive
            is_ambiguous = (is_open or is_ambiguous) and not is_possessive
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
            ambiguous[-1] = True
        at += 1
    if count > REPETITIONS_MAX:
        raise ValueError(
            f"more than {REPETITIONS_MAX} repetitions such as (.+), of which not to begin with ^ counts as "
            "one; those within a level, such as ([^/]+), may be any number"
        )


def _repetition(pattern: str, at: int) -> tuple[bool, bool, int] | None:
    """Of the repetition at a place: whether it is long, whether its count is open, and its size."""
    if pattern[at] in "*+?":
        return pattern[at] != "?", True, 1
    found = _COUNT.match(pattern, at)
    if found is None or not (found[1] or found[2]):
        return None
    least, most = found[1] or "0", found[3] if found[2] else found[1]
    return not most or int(most) > _SMALL_COUNT, least != most, len(found[0])


def _end_of_class(pattern: str, at: int) -> int:
    """Where the bracket stands that closes the class that begins at `at`."""
    at += 1
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at
