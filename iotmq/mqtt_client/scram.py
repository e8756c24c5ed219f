"""SCRAM-SHA-256 on the client's side (RFC 5802, RFC 7677): the password stays, the server proves itself."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

from iotmq import limits
from iotmq.errors import ClientError
from iotmq.mqtt.auth.saslprep import saslprep
from iotmq.mqtt.auth.scram import METHOD, derive_keys, mask, sign

_NONCE_BYTES: Final = 18
# No channel binding, in base64 as the second message has it.
_GS2: Final = "n,,"
_BINDING: Final = base64.b64encode(_GS2.encode()).decode()


class ScramAuthenticator:
    """One exchange of SCRAM-SHA-256 (an `Authenticator`)."""

    method = METHOD

    def __init__(self, user_name: str, password: bytes, *, nonce: str | None = None) -> None:
        """Begin an exchange; ClientError for a name that SASLprep does not allow."""
        try:
            name = saslprep(user_name)
        except ValueError as error:
            raise ClientError(f"the user name cannot be used with {METHOD}: {error}") from None
        self._password = password
        self._nonce = nonce if nonce is not None else secrets.token_urlsafe(_NONCE_BYTES)
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={self._nonce}"
        # What the server has to say last; set by `answer`.
        self._signature: bytes | None = None

    def first(self) -> bytes:
        return (_GS2 + self._first_bare).encode()

    def answer(self, data: bytes) -> bytes:
        """Compute the proof for the server's salt."""
        server_first = _text(data)
        nonce, salt, iterations = self._challenge(server_first)
        client_key, server_key = derive_keys(self._password, salt, iterations)
        without_proof = f"c={_BINDING},r={nonce}"
        signed = f"{self._first_bare},{server_first},{without_proof}".encode()
        proof = mask(client_key, sign(hashlib.sha256(client_key).digest(), signed))
        self._signature = sign(server_key, signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def finish(self, data: bytes) -> None:
        """Check the server's proof that it knows the password; ClientError when it is wrong."""
        expected = b"v=" + base64.b64encode(self._signature or b"")
        if self._signature is None or not hmac.compare_digest(data, expected):
            raise ClientError(f"the server has not proved by {METHOD} that it knows the password")

    def _challenge(self, text: str) -> tuple[str, bytes, int]:
        """Parse nonce, salt and iterations from the server's message."""
        fields = text.split(",")
        if len(fields) < 3 or [field[:2] for field in fields[:3]] != ["r=", "s=", "i="]:
            raise ClientError(f"the server's {METHOD} message is not r=NONCE,s=SALT,i=ITERATIONS")
        nonce = fields[0][2:]
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ClientError("the server's nonce does not begin with ours")
        try:
            salt = base64.b64decode(fields[1][2:], validate=True)
        except binascii.Error:
            raise ClientError("the server's salt is not base64") from None
        number = fields[2][2:]
        is_number = number.isascii() and number.isdigit() and len(number) < 10
        iterations = int(number) if is_number else 0
        # Fewer would make the proof a gift to who listens, more would keep us busy.
        least, most = limits.SCRAM_ITERATIONS_MIN, limits.SCRAM_ITERATIONS_MAX
        if not salt or not least <= iterations <= most:
            raise ClientError(f"the server asks for {number[:16]} iterations; {least} to {most} are allowed")
        return nonce, salt, iterations


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ClientError(f"the server's {METHOD} message is not UTF-8") from None
