"""Keep of a user's password what proves it: a verifier of SCRAM-SHA-256, or a hash of argon2id (RFC 9106).

    SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY
    $argon2id$v=19$m=MEMORY,t=ROUNDS,p=LANES$SALT$HASH

The first serves passwords and exchanges, the second passwords alone, whose guesses it makes dearer: each
takes MEMORY KiB. Both are text, and parts of a line of the file of users.
"""

from __future__ import annotations

from typing import Final

from iotmq.credentials import argon2
from iotmq.credentials.argon2 import ARGON2
from iotmq.mqtt.auth.scram import METHOD
from iotmq.mqtt_front.access import scram

FORMS: Final = (f"{METHOD}$", ARGON2)
"""The beginning of each."""


def check_kept(text: str) -> None:
    """Raise ValueError, which says what is wrong, unless this can be kept of a password."""
    if not text.startswith(ARGON2):
        scram.parse_verifier(text)
        return
    argon2.check(text)


def is_password_of(kept: str, password: bytes) -> bool:
    """Return whether this is the password; a wrong one takes as long as the right one. Milliseconds.

    Other threads run meanwhile.
    """
    if not kept.startswith(ARGON2):
        return scram.is_password_of(scram.parse_verifier(kept), password)
    return argon2.is_password_of(kept, password)


def cost_of(kept: str) -> str:
    """Return the part that says how much work a guess is, with the form in front."""
    return argon2.cost_of(kept) if kept.startswith(ARGON2) else kept.partition(":")[0]


def pretended(cost: str) -> str:
    """Return something of this cost that no password proves."""
    if cost.startswith(ARGON2):
        return argon2.pretended(cost)
    iterations = int(cost.partition("$")[2])
    return str(scram.UnknownUsers().verifier("", iterations=iterations))
