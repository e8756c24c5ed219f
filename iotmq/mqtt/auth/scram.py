"""Derive and check the keys of SCRAM-SHA-256, for the server and the client (RFC 5802, RFC 7677).

It is our own code because the library scramp is five times slower for the server's side (148 us, not 29) and
200 times for SASLprep of ASCII passwords, and refuses short salts and passwords that are not UTF-8.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from iotmq.mqtt.auth.method_names import SCRAM_METHOD
from iotmq.mqtt.auth.saslprep import saslprep

METHOD: Final = SCRAM_METHOD


def derive_keys(password: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """Return (ClientKey, ServerKey). It takes milliseconds, and lets other threads run meanwhile."""
    salted = hashlib.pbkdf2_hmac("sha256", prepare_password(password), salt, iterations)
    return sign(salted, b"Client Key"), sign(salted, b"Server Key")


def prepare_password(password: bytes) -> bytes:
    """Return its SASLprep form; bytes that have none are taken as they are, as PostgreSQL does."""
    try:
        return saslprep(password.decode()).encode()
    except ValueError:
        return password


def sign(key: bytes, data: bytes) -> bytes:
    """Make the HMAC-SHA-256 of `data`."""
    return hmac.digest(key, data, "sha256")


def mask(key: bytes, signature: bytes) -> bytes:
    """Turn a ClientKey into a ClientProof, or back."""
    return bytes(a ^ b for a, b in zip(key, signature, strict=True))
