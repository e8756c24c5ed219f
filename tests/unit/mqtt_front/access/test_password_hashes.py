"""Hashes of passwords as other systems write them."""

from __future__ import annotations

import base64
import hashlib

import bcrypt
import pytest
from argon2 import PasswordHasher
from argon2.low_level import Type

from iotmq import limits
from iotmq.mqtt_front.access.password_hashes import PasswordHashError, is_password
from iotmq.mqtt_front.access.scram import make_verifier

RIGHT = b"correct-horse"


def pbkdf2(name: str, iterations: int) -> tuple[bytes, bytes]:
    salt = b"sixteen bytes it"
    return salt, hashlib.pbkdf2_hmac(name, RIGHT, salt, iterations)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def passlib(name: str = "sha256", iterations: int = 1_000) -> str:
    parts = (text(part).rstrip("=").replace("+", ".") for part in pbkdf2(name, iterations))
    return "$".join(["", f"pbkdf2-{name}", str(iterations), *parts])


def django(iterations: int = 1_000) -> str:
    digest = hashlib.pbkdf2_hmac("sha256", RIGHT, b"PlainSalt", iterations)
    return f"pbkdf2_sha256${iterations}$PlainSalt${text(digest)}"


def mosquitto(iterations: int = 101) -> str:
    salt, digest = pbkdf2("sha512", iterations)
    return f"$7${iterations}${text(salt)}${text(digest)}"


def argon2(memory_kib: int = 1_024, passes: int = 1) -> str:
    return PasswordHasher(passes, memory_kib, 1).hash(RIGHT)


KINDS = {
    "argon2id": argon2(),
    "bcrypt": bcrypt.hashpw(RIGHT, bcrypt.gensalt(4)).decode(),
    "passlib sha256": passlib(),
    "passlib sha512": passlib("sha512"),
    "django": django(),
    "mosquitto": mosquitto(),
    "scram": str(make_verifier(RIGHT, iterations=4_096)),
}


@pytest.mark.parametrize("kept", KINDS.values(), ids=KINDS)
def test_the_right_password_is_told_from_wrong_ones(kept: str) -> None:
    assert is_password(kept, RIGHT)
    for wrong in (b"correct-hors", b"correct-horse ", b"\xff\xfe", b"x" * 100):
        assert not is_password(kept, wrong)


@pytest.mark.parametrize("kept", KINDS.values(), ids=KINDS)
def test_nobody_has_an_empty_password(kept: str) -> None:
    assert not is_password(kept, b"")
    assert not is_password(kept, RIGHT + b"\0")


@pytest.mark.parametrize("kept", KINDS.values(), ids=KINDS)
def test_a_hash_with_something_missing_is_an_error(kept: str) -> None:
    with pytest.raises(PasswordHashError):
        is_password(kept[: len(kept) // 2], RIGHT)


@pytest.mark.parametrize(
    "kept",
    [
        "",
        "correct-horse",
        "$1$salt$md5crypt",
        "$argon2i$v=19$m=1024,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNoaGFzaA",
        "$2b$04$" + "é" * 53,
        "$7$x$y$z",
        "$pbkdf2-sha1$1000$c2FsdA$aGFzaA",
        mosquitto().replace("$101$", "$0$"),
        passlib()[:-8],
    ],
)
def test_what_is_no_known_hash_is_an_error(kept: str) -> None:
    with pytest.raises(PasswordHashError):
        is_password(kept, RIGHT)


def test_a_part_of_a_digest_is_no_digest() -> None:
    """It would be right for many passwords, and an empty one for all."""
    for size in (0, 1, 31):
        digest = base64.b64encode(hashlib.pbkdf2_hmac("sha256", RIGHT, b"PlainSalt", 1_000)[:size]).decode()
        with pytest.raises(PasswordHashError):
            is_password(f"pbkdf2_sha256$1000$PlainSalt${digest}", RIGHT)


def test_a_hash_may_not_take_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PBKDF2_ITERATIONS_MAX", 1_000)
    monkeypatch.setattr(limits, "BCRYPT_COST_MAX", 4)
    assert is_password(django(1_000), RIGHT)
    assert is_password(KINDS["bcrypt"], RIGHT)
    for kept in (django(1_001), bcrypt.hashpw(RIGHT, bcrypt.gensalt(5)).decode()):
        with pytest.raises(PasswordHashError, match="allowed"):
            is_password(kept, RIGHT)


def test_an_argon2_hash_may_not_take_all_memory() -> None:
    """Refused by its text: nothing is hashed."""
    kept = argon2().replace("m=1024", f"m={limits.ARGON2_MEMORY_KIB_MAX + 1}")
    with pytest.raises(PasswordHashError, match="allowed"):
        is_password(kept, RIGHT)


def test_a_hash_has_a_longest_text() -> None:
    kept = KINDS["django"]
    longer = kept + "=" * (limits.PASSWORD_HASH_CHARACTERS_MAX - len(kept) + 1)
    with pytest.raises(PasswordHashError, match="characters"):
        is_password(longer, RIGHT)
    with pytest.raises(PasswordHashError, match="base64"):
        is_password(longer[:-1], RIGHT)


def test_argon2_hashes_of_other_systems_are_taken() -> None:
    """With the parameters of pwdlib and of the library itself."""
    kept = PasswordHasher(2, 19 * 1024, 1, type=Type.ID).hash("größe")
    assert is_password(kept, "größe".encode())
