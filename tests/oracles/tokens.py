"""Tokens and the keys that sign them, for tests."""

from __future__ import annotations

import base64
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

SECRET = b"a secret of thirty-two bytes or more"


class SigningKey:
    """A private key and what is published of it."""

    def __init__(self, algorithm: str, kid: str | None = None, *, bits: int = 2_048) -> None:
        self.algorithm = algorithm
        self.kid = kid
        self.private: Any
        if algorithm.startswith("ES"):
            curve = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}[algorithm]
            self.private = ec.generate_private_key(curve())
        elif algorithm == "EdDSA":
            self.private = ed25519.Ed25519PrivateKey.generate()
        else:
            self.private = rsa.generate_private_key(public_exponent=65_537, key_size=bits)

    @property
    def pem(self) -> bytes:
        return self.private.public_key().public_bytes(  # type: ignore[no-any-return]
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    @property
    def jwk(self) -> dict[str, Any]:
        shown = get_default_algorithms()[self.algorithm].to_jwk(self.private.public_key(), as_dict=True)
        named = {"kid": self.kid} if self.kid is not None else {}
        return {**shown, **named, "use": "sig"}

    def token(self, claims: dict[str, Any] | None = None, **headers: Any) -> bytes:
        """A token with these claims beside `sub` and `exp`; None takes one of them away."""
        if self.kid is not None:
            headers.setdefault("kid", self.kid)
        return jwt.encode(claims_of(claims), self.private, self.algorithm, headers=headers or None).encode()

    def pem_file(self, directory: Path, name: str = "key.pem") -> str:
        path = directory / name
        path.write_bytes(self.pem)
        return str(path)


@cache
def key_of(algorithm: str, kid: str | None = None) -> SigningKey:
    """One of this name, the same for all tests of a process."""
    return SigningKey(algorithm, kid)


def claims_of(claims: dict[str, Any] | None) -> dict[str, Any]:
    whole = {"sub": "pump", "exp": round(time.time()) + 600} | (claims or {})
    return {name: value for name, value in whole.items() if value is not None}


def hmac_token(
    claims: dict[str, Any] | None = None, secret: bytes = SECRET, algorithm: str = "HS256"
) -> bytes:
    return jwt.encode(claims_of(claims), secret, algorithm).encode()


def raw_token(header: object, claims: object, signature: bytes = b"") -> bytes:
    """One that no library would make."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def jwks(*keys: SigningKey) -> dict[str, Any]:
    return {"keys": [key.jwk for key in keys]}
