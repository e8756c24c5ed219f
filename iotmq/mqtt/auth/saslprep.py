"""SASLprep (RFC 4013): one form for user names and passwords that look alike but have other code points."""

from __future__ import annotations

import re
import stringprep
import unicodedata
from typing import Final

from iotmq import limits

# RFC 4013 section 2.3, as the tables of RFC 3454 have them; written out, because a search is a hundred times
# as fast as asking nine tables about each character. One and the same character may be in several.
_PROHIBITED: Final = re.compile(
    "["
    "\xa0\u1680\u2000-\u200b\u202f\u205f\u3000"  # C.1.2: spaces
    "\0-\x1f\x7f-\x9f\u06dd\u070f\u180e\u200c\u200d\u2028\u2029"  # C.2: controls
    "\u2060-\u2063\u206a-\u206f\ufeff\ufff9-\ufffc\U0001d173-\U0001d17a"
    "\ue000-\uf8ff\U000f0000-\U000ffffd\U00100000-\U0010fffd"  # C.3: private use
    "\ufdd0-\ufdef"  # C.4: no characters
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17))
    + "\ud800-\udfff"  # C.5: surrogates
    "\ufffd\u2ff0-\u2ffb"  # C.6 and C.7: for descriptions
    "\u0340\u0341\u200e\u200f\u202a-\u202e"  # C.8: of looks and directions
    "\U000e0001\U000e0020-\U000e007f"  # C.9: tags
    "]"
)
# What is left out, and the spaces that become one of ASCII (RFC 4013 section 2.1). Both tables end there.
_SPACES: Final = (0xA0, 0x1680, *range(0x2000, 0x200C), 0x202F, 0x205F, 0x3000)
_MAPPED: Final[dict[int, str | None]] = {
    **dict.fromkeys(stringprep.b1_set),
    **dict.fromkeys(_SPACES, " "),
}


def saslprep(text: str, *, allows_unassigned: bool = False) -> str:
    """Return the prepared form of a text. ValueError for text that has none.

    `allows_unassigned` is for what is looked up; what is stored has assigned code points only (RFC 3454
    section 7).
    """
    if text.isascii() and text.isprintable():
        return text
    if len(text) > limits.SASLPREP_CHARACTERS_MAX:
        raise ValueError(f"it has {len(text)} characters")
    # The tables are those of Unicode 3.2, as the RFC wants.
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", text.translate(_MAPPED))
    # One character may become 18.
    if len(prepared) > limits.SASLPREP_CHARACTERS_MAX:
        raise ValueError(f"its prepared form has {len(prepared)} characters")
    found = _PROHIBITED.search(prepared)
    if found is not None:
        raise ValueError(f"it has the character U+{ord(found[0]):04X}")
    if not allows_unassigned:
        for character in filter(stringprep.in_table_a1, prepared):
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
