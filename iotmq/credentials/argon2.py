"""Hash passwords with argon2id (RFC 9106), in the text form of its own tools.

    $argon2id$v=19$m=MEMORY,t=ROUNDS,p=LANES$SALT$HASH

A hash says itself what it costs, so one that asks for more than our limits is refused before it is computed.
"""

from __future__ import annotations

import base64
import re
import secrets
from typing import Final

from iotmq import limits

ARGON2: Final = "$argon2id$"
"""The beginning of each."""
DEFAULT_MEMORY_KIB: Final = 19 * 1024
DEFAULT_ROUNDS: Final = 2
# The second line of RFC 9106 section 4 asks for more memory than a gateway has for each of its threads; these
# are what OWASP names first.
_LANES: Final = 1
_SALT_BYTES: Final = 16
_HASH_BYTES: Final = 32
_MEMORY_KIB_MIN: Final = 8
_FORM: Final = re.compile(
    r"\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,9}),p=(\d{1,9})\$([A-Za-z0-9+/]{11,86})\$([A-Za-z0-9+/]{16,128})",
    re.ASCII,
)


def check(text: str) -> None:
    """Raise ValueError, which says what is wrong, unless this is a hash that may be computed."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"it is not {ARGON2}v=19$m=MEMORY,t=ROUNDS,p=LANES$SALT$HASH")
    memory_kib, rounds, lanes = (int(found[at]) for at in (1, 2, 3))
    for what, value, least, most in (
        ("KiB of memory", memory_kib, _MEMORY_KIB_MIN * max(1, lanes), limits.ARGON2_MEMORY_KIB_MAX),
        ("rounds", rounds, 1, limits.ARGON2_ROUNDS_MAX),
        ("lanes", lanes, 1, limits.ARGON2_LANES_MAX),
    ):
        if not least <= value <= most:
            raise ValueError(f"{value} {what}; {least} to {most} are allowed")


def is_password_of(kept: str, password: bytes) -> bool:
    """Return whether this is the password; a wrong one takes as long as the right one. Milliseconds.

    Other threads run meanwhile.
    """
    # Loaded where there is such a user.
    from argon2.exceptions import VerifyMismatchError
    from argon2.low_level import Type, verify_secret

    try:
        return verify_secret(kept.encode(), password, Type.ID)
    except VerifyMismatchError:
        return False


def make(password: bytes, *, memory_kib: int = DEFAULT_MEMORY_KIB, rounds: int = DEFAULT_ROUNDS) -> str:
    """Hash a password. Milliseconds; other threads run meanwhile."""
    from argon2.low_level import Type, hash_secret

    salt = secrets.token_bytes(_SALT_BYTES)
    made = hash_secret(password, salt, rounds, memory_kib, _LANES, _HASH_BYTES, Type.ID)
    return made.decode()


def cost_of(kept: str) -> str:
    """Return the part that says how much work a guess is, with the form in front."""
    return kept[: kept.index("$", len(ARGON2) + len("v=19$"))]


def pretended(cost: str = f"{ARGON2}v=19$m={DEFAULT_MEMORY_KIB},t={DEFAULT_ROUNDS},p={_LANES}") -> str:
    """Return something of this cost that no password proves."""
    salt, made = (
        base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=")
        for size in (_SALT_BYTES, _HASH_BYTES)
    )
    return f"{cost}${salt}${made}"
