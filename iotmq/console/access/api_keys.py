"""The file of API keys, with which programs ask, a line for each:

    # comments and empty lines are allowed
    NAME:ROLE:CREATED_MS:EXPIRES_MS:AREA,AREA:SALT$DIGEST

Times are milliseconds since 1970. DIGEST is the SHA-256 of salt and secret, in hex as the salt is: the secret
has 256 random bits, so that nobody guesses at it, and each request pays for a check. A key is shown once:

    iotmq-key.NAME.SECRET
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.console.access.console_users import ROLES, RoleName, checked_name
from iotmq.console.access.kept_file import KeptFile, parse_lines

PREFIX: Final = "iotmq-key."
"""The beginning of each, by which scanners for secrets find one that has got out."""
_FIRST_LINE: Final = "# API keys, NAME:ROLE:CREATED_MS:EXPIRES_MS:AREAS:SALT$DIGEST\n"
_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 16
_TIME: Final = re.compile(r"\d{1,16}", re.ASCII)
_AREA: Final = re.compile(r"[A-Za-z0-9 _-]{1,40}", re.ASCII)
_KEPT: Final = re.compile(r"([0-9a-f]{32})\$([0-9a-f]{64})", re.ASCII)


class ApiKey(NamedTuple):
    """One key, without its secret."""

    name: str
    role: RoleName
    created_ms: int
    expires_ms: int
    areas: frozenset[str]
    """Those of the API that it may use; empty: all."""
    kept: str


def keys_file(path: Path) -> KeptFile[ApiKey]:
    """Return the keys of a file."""
    return KeptFile(path, parse=parse_keys, encode=encode_keys, bytes_max=limits.CONSOLE_FILE_BYTES_MAX)


def parse_keys(data: bytes) -> dict[str, ApiKey]:
    """Return the keys that the bytes of a file say; KeptFileError names the lines that are wrong."""
    return parse_lines(data, _parsed, most=limits.CONSOLE_API_KEYS_MAX)


def encode_keys(keys: Mapping[str, ApiKey]) -> bytes:
    """Return the bytes of a file with these keys; comments that were there are gone."""
    lines = (
        f"{key.name}:{key.role}:{key.created_ms}:{key.expires_ms}:{','.join(sorted(key.areas))}:{key.kept}\n"
        for key in keys.values()
    )
    return (_FIRST_LINE + "".join(lines)).encode()


def make_secret(name: str) -> tuple[str, str]:
    """Return a new key as it is shown, and what is kept of it."""
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    salt = secrets.token_hex(_SALT_BYTES)
    return f"{PREFIX}{name}.{secret}", f"{salt}${_digest(salt, secret)}"


def find_key(keys: Mapping[str, ApiKey], token: str, now_ms: int) -> ApiKey | None:
    """Return the key that a token is; None for one that is none, or none any more."""
    name, _, secret = token.removeprefix(PREFIX).rpartition(".")
    key = keys.get(name)
    if key is None or now_ms >= key.expires_ms:
        return None
    salt, _, digest = key.kept.partition("$")
    return key if hmac.compare_digest(_digest(salt, secret), digest) else None


def _digest(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode("utf-8", "surrogateescape")).hexdigest()


def _parsed(line: str) -> tuple[str, ApiKey]:
    parts = line.split(":")
    if len(parts) != len(ApiKey._fields):
        raise ValueError(f"it has {len(parts)} parts and not {len(ApiKey._fields)}")
    name, role, created, expires, areas, kept = parts
    checked_name(name)
    if role not in ROLES:
        raise ValueError(f"the role of {name} is none of {', '.join(ROLES)}")
    if not _TIME.fullmatch(created) or not _TIME.fullmatch(expires):
        raise ValueError(f"a time of {name} is no number")
    names = frozenset(areas.split(",")) if areas else frozenset()
    if not all(_AREA.fullmatch(area) for area in names):
        raise ValueError(f"an area of {name} is none")
    if not _KEPT.fullmatch(kept):
        raise ValueError(f"the digest of {name} is none")
    return name, ApiKey(name, role, int(created), int(expires), names, kept)
