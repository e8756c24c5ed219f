"""Check passwords against hashes that other systems made, beside those that users files have.

    $argon2id$v=19$m=65536,t=3,p=4$SALT$HASH          Argon2 (RFC 9106)
    $2b$12$SALTANDHASH                                bcrypt; $2a$ and $2y$ too
    $pbkdf2-sha256$29000$SALT$HASH                    PBKDF2 as passlib writes it; sha512 too
    pbkdf2_sha256$870000$SALT$HASH                    PBKDF2 as Django writes it
    $7$101$SALT$HASH                                  PBKDF2-SHA512 as mosquitto_passwd writes it
    SCRAM-SHA-256$4096:SALT$STOREDKEY:SERVERKEY       as PostgreSQL and `iotmq users` keep it

A hash says itself what it costs, so one that asks for more than our limits is refused before it is computed:
who may write hashes would otherwise hold up everybody's logins.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final

from iotmq import limits
from iotmq.credentials.argon2 import ARGON2
from iotmq.errors import IotmqError
from iotmq.mqtt.auth.scram import METHOD
from iotmq.mqtt_front.access.kept_passwords import check_kept, is_password_of
from iotmq.mqtt_front.access.scram import can_be_password

# It looks at no more of a password, and version 5 of the library refuses longer ones.
_BCRYPT_PASSWORD_BYTES_MAX: Final = 72

_PASSLIB: Final = re.compile(r"\$pbkdf2-(sha256|sha512)\$(\d{1,9})\$([^$]+)\$([^$]+)", re.ASCII)
_DJANGO: Final = re.compile(r"pbkdf2_(sha256)\$(\d{1,9})\$([^$]+)\$([^$]+)", re.ASCII)
_MOSQUITTO: Final = re.compile(r"\$7\$(\d{1,9})\$([^$]+)\$([^$]+)", re.ASCII)
_BCRYPT: Final = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}", re.ASCII)


class PasswordHashError(IotmqError):
    """A hash has a form that is unknown here, or costs too much to look at."""


def is_password(kept: str, password: bytes) -> bool:
    """Return whether this is the password. Takes milliseconds, and lets other threads run meanwhile.

    PasswordHashError when it cannot be told. Wrong passwords take as long as right ones.
    """
    if len(kept) > limits.PASSWORD_HASH_CHARACTERS_MAX:
        raise PasswordHashError(f"it has {len(kept)} characters")
    if not can_be_password(password):
        return False
    for mark, check in _CHECKS:
        if kept.startswith(mark):
            return check(kept, password)
    raise PasswordHashError("its form is none of argon2id, bcrypt, PBKDF2 and SCRAM-SHA-256")


def _is_own(kept: str, password: bytes) -> bool:
    from argon2.exceptions import VerificationError

    try:
        check_kept(kept)
        return is_password_of(kept, password)
    except (ValueError, VerificationError) as error:
        raise PasswordHashError(str(error)) from error


def _is_bcrypt(kept: str, password: bytes) -> bool:
    try:
        import bcrypt
    except ImportError:
        raise PasswordHashError("bcrypt is not installed: pip install bcrypt") from None
    found = _BCRYPT.fullmatch(kept)
    if found is None:
        raise PasswordHashError("it is not $2b$COST$ and 53 characters")
    if int(found[1]) > limits.BCRYPT_COST_MAX:
        raise PasswordHashError(f"bcrypt of cost {int(found[1])}; up to {limits.BCRYPT_COST_MAX} is allowed")
    if len(password) > _BCRYPT_PASSWORD_BYTES_MAX:
        return False
    try:
        return bcrypt.checkpw(password, kept.encode())
    except ValueError as error:
        raise PasswordHashError(f"bcrypt: {error}") from None


def _is_passlib(kept: str, password: bytes) -> bool:
    found = _matched(_PASSLIB, kept)
    # Its own base64: . for +, and no padding.
    salt, digest = (_decoded(found[at].replace(".", "+"), pads=True) for at in (3, 4))
    return _is_pbkdf2(found[1], int(found[2]), salt, digest, password)


def _is_django(kept: str, password: bytes) -> bool:
    found = _matched(_DJANGO, kept)
    return _is_pbkdf2(found[1], int(found[2]), found[3].encode(), _decoded(found[4]), password)


def _is_mosquitto(kept: str, password: bytes) -> bool:
    found = _matched(_MOSQUITTO, kept)
    return _is_pbkdf2("sha512", int(found[1]), _decoded(found[2]), _decoded(found[3]), password)


def _matched(pattern: re.Pattern[str], kept: str) -> re.Match[str]:
    found = pattern.fullmatch(kept)
    if found is None:
        raise PasswordHashError("it begins as PBKDF2 and goes on as something else")
    return found


def _decoded(text: str, *, pads: bool = False) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4 if pads else 0), validate=True)
    except (binascii.Error, ValueError):
        raise PasswordHashError("a part of it is not base64") from None


def _is_pbkdf2(name: str, iterations: int, salt: bytes, digest: bytes, password: bytes) -> bool:
    if not 0 < iterations <= limits.PBKDF2_ITERATIONS_MAX:
        raise PasswordHashError(
            f"PBKDF2 with {iterations} iterations; 1 to {limits.PBKDF2_ITERATIONS_MAX} are allowed"
        )
    if len(digest) != hashlib.new(name).digest_size:
        raise PasswordHashError(f"a PBKDF2-{name} digest of {len(digest)} bytes")
    made = hashlib.pbkdf2_hmac(name, password, salt, iterations)
    return hmac.compare_digest(made, digest)


_CHECKS: Final[tuple[tuple[str, Callable[[str, bytes], bool]], ...]] = (
    (ARGON2, _is_own),
    ("$2", _is_bcrypt),
    ("$pbkdf2-", _is_passlib),
    ("pbkdf2_", _is_django),
    ("$7$", _is_mosquitto),
    (f"{METHOD}$", _is_own),
)
