"""SCRAM-SHA-256 on the server's side (RFC 5802, RFC 7677): what is kept of a password, and the exchange.

    client  n,,n=NAME,r=NONCE
    server  r=NONCE+OURS,s=SALT,i=ITERATIONS
    client  c=biws,r=NONCE+OURS,p=PROOF
    server  v=SIGNATURE

The password itself never leaves the client. A user who is not there is asked as one who is, with a salt that
is the same each time, so that nobody learns which names exist.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.mqtt.auth.saslprep import saslprep
from iotmq.mqtt.auth.scram import METHOD, derive_keys, mask, sign

SALT_BYTES: Final = 16
_SALT_BYTES_MIN: Final = 8
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 24
# ASCII without the comma (RFC 5802 section 7).
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_KEPT: Final = re.compile(r"SCRAM-SHA-256\$(\d{1,9}):([^$:]*)\$([^$:]*):([^$:]*)", re.ASCII)


class ScramError(Exception):
    """The client's message breaks the form of RFC 5802, or proves nothing. The text is for the operator."""


class Verifier(NamedTuple):
    """Hold the stored form of a password (RFC 5803): it checks a password without telling it."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __str__(self) -> str:
        """SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY, as PostgreSQL keeps it."""
        salt, stored, server = (base64.b64encode(part).decode() for part in self[1:])
        return f"{METHOD}${self.iterations}:{salt}${stored}:{server}"


def parse_verifier(text: str) -> Verifier:
    """Parse what `str` writes. ValueError says what is wrong."""
    found = _KEPT.fullmatch(text)
    if found is None:
        raise ValueError(f"it is not {METHOD}$ITERATIONS:SALT$STOREDKEY:SERVERKEY")
    iterations = int(found[1])
    least, most = limits.SCRAM_ITERATIONS_MIN, limits.SCRAM_ITERATIONS_MAX
    if not least <= iterations <= most:
        raise ValueError(f"{iterations} iterations; {least} to {most} are allowed")
    salt, stored_key, server_key = (_from_base64(found[at]) for at in (2, 3, 4))
    if not _SALT_BYTES_MIN <= len(salt) <= limits.SCRAM_SALT_BYTES_MAX:
        raise ValueError(
            f"a salt of {len(salt)} bytes; {_SALT_BYTES_MIN} to {limits.SCRAM_SALT_BYTES_MAX} are allowed"
        )
    if len(stored_key) != _KEY_BYTES or len(server_key) != _KEY_BYTES:
        raise ValueError(f"StoredKey and ServerKey have {_KEY_BYTES} bytes each")
    return Verifier(iterations, salt, stored_key, server_key)


def make_verifier(password: bytes, *, iterations: int, salt: bytes | None = None) -> Verifier:
    """Derive the stored form of a password. Takes milliseconds, and lets other threads run meanwhile."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    client_key, server_key = derive_keys(password, salt, iterations)
    return Verifier(iterations, salt, hashlib.sha256(client_key).digest(), server_key)


def is_password_of(verifier: Verifier, password: bytes) -> bool:
    """Return whether this is the password; a wrong one takes as long as the right one."""
    made = make_verifier(password, iterations=verifier.iterations, salt=verifier.salt)
    return hmac.compare_digest(made.stored_key, verifier.stored_key)


def can_be_password(password: bytes) -> bool:
    """Return whether somebody may have it.

    With NUL at its end it would pass for another one: HMAC pads with it.
    """
    return 0 < len(password) <= limits.MQTT_PASSWORD_BYTES_MAX and b"\0" not in password


class UnknownUsers:
    """Verifiers for users who are not there, which no password proves."""

    def __init__(self, secret: bytes = b"") -> None:
        """Front ends with the same secret pretend the same salts; empty: one of this process's own."""
        self._secret = hashlib.sha256(secret).digest() if secret else secrets.token_bytes(_KEY_BYTES)

    def verifier(self, name: str, *, iterations: int) -> Verifier:
        salt = sign(self._secret, name.encode())[:SALT_BYTES]
        return Verifier(iterations, salt, secrets.token_bytes(_KEY_BYTES), secrets.token_bytes(_KEY_BYTES))


class ScramExchange:
    """One client's way through the exchange: `first` answers the first message, `final` the second."""

    __slots__ = ("_first_bare", "_gs2", "_nonce", "_our_nonce", "_server_first", "_verifier", "user")

    def __init__(self, *, nonce: str | None = None) -> None:
        self._our_nonce = nonce if nonce is not None else secrets.token_urlsafe(_NONCE_BYTES)
        self.user: str | None = None
        """The name the client says it has; set by `first`, and proved when `final` has returned."""
        self._gs2 = self._nonce = self._first_bare = self._server_first = ""
        self._verifier: Verifier | None = None

    def first(self, message: bytes, verifier_of: Callable[[str], Verifier]) -> bytes:
        """Take the client's first message. ScramError when it is none."""
        text = _text(message)
        flag, comma, rest = text.partition(",")
        authorization, second_comma, bare = rest.partition(",")
        if not comma or not second_comma:
            raise ScramError("the client's first message has no GS2 header")
        if flag.startswith("p="):
            raise ScramError("the client asks for channel binding, which is not offered")
        if flag not in ("n", "y"):
            raise ScramError("the client's first message has no channel binding flag")
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
            # Among them m=, an extension that must be understood.
            raise ScramError("the client's first message is not n=NAME,r=NONCE")
        name = _name(fields[0][2:])
        if authorization and authorization != f"a={fields[0][2:]}":
            raise ScramError("the client asks to act for another user")
        client_nonce = fields[1][2:]
        if _NONCE.fullmatch(client_nonce) is None:
            raise ScramError("the client's nonce has a character that is not allowed")
        verifier = verifier_of(name)
        self.user = name
        self._verifier = verifier
        self._gs2 = f"{flag},{authorization},"
        self._nonce = client_nonce + self._our_nonce
        self._first_bare = bare
        salt = base64.b64encode(verifier.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        return self._server_first.encode()

    def final(self, message: bytes) -> bytes:
        """Take the client's second message. ScramError when it does not prove that it has the password."""
        verifier = self._verifier
        assert verifier is not None, "first() comes first"
        text = _text(message)
        without_proof, separator, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        is_complete = len(fields) >= 2 and fields[0].startswith("c=") and fields[1].startswith("r=")
        if not separator or not is_complete:
            raise ScramError("the client's second message is not c=BINDING,r=NONCE,p=PROOF")
        if fields[0][2:] != base64.b64encode(self._gs2.encode()).decode():
            raise ScramError("the client's channel binding is not that of its first message")
        if not hmac.compare_digest(fields[1][2:].encode(), self._nonce.encode()):
            raise ScramError("the client's nonce is not that of this exchange")
        try:
            proof = _from_base64(proof_text)
        except ValueError:
            raise ScramError("the client's proof is not base64") from None
        if len(proof) != _KEY_BYTES:
            raise ScramError(f"the client's proof has {len(proof)} bytes")
        signed = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        client_key = mask(proof, sign(verifier.stored_key, signed))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key):
            raise ScramError("the client's proof is wrong")
        return b"v=" + base64.b64encode(sign(verifier.server_key, signed))


def _name(escaped: str) -> str:
    """A user name with =2C for a comma and =3D for an equals sign."""
    if re.search("=(?!2C|3D)", escaped):
        raise ScramError("the client's name has an equals sign that escapes nothing")
    try:
        name = saslprep(escaped.replace("=2C", ",").replace("=3D", "="), allows_unassigned=True)
    except ValueError as error:
        raise ScramError(f"the client's name is not allowed: {error}") from None
    if not name or len(name.encode()) > limits.MQTT_USER_NAME_BYTES_MAX:
        raise ScramError(
            f"the client's name is empty or has more than {limits.MQTT_USER_NAME_BYTES_MAX} bytes"
        )
    return name


def _text(message: bytes) -> str:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise ScramError("the client's message is not UTF-8") from None
    if "\0" in text:
        raise ScramError("the client's message has a NUL")
    return text


def _from_base64(text: str) -> bytes:
    """Return the bytes of base64 in its one form; ValueError for any other."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text[:16]!a} is not base64") from error
    if base64.b64encode(data).decode() != text:
        raise ValueError(f"{text[:16]!a} is not base64 in its usual form")
    return data
