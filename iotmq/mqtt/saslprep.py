"""SASLprep (RFC 4013): one form for user names and passwords that look alike but have other code points."""

from __future__ import annotations

import stringprep
import unicodedata
from typing import Final

# RFC 4013 section 2.3.
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str, *, allows_unassigned: bool = False) -> str:
    """The prepared form. ValueError for text that has none.

    `allows_unassigned` is for what is looked up; what is stored has assigned code points only (RFC 3454
    section 7).
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    # The tables are those of Unicode 3.2, as the RFC wants.
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for character in prepared:
        if any(is_prohibited(character) for is_prohibited in _PROHIBITED):
            raise ValueError(f"it has the character U+{ord(character):04X}")
        if not allows_unassigned and stringprep.in_table_a1(character):
            raise ValueError(f"it has the unassigned character U+{ord(character):04X}")
    _check_directions(prepared)
    return prepared


def _check_directions(text: str) -> None:
    """RFC 3454 section 6: right-to-left text is that from its first to its last character."""
    if not any(map(stringprep.in_table_d1, text)):
        return
    if any(map(stringprep.in_table_d2, text)):
        raise ValueError("it mixes left-to-right and right-to-left text")
    if not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
        raise ValueError("right-to-left text has to begin and end with a right-to-left character")
