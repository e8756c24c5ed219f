"""Sign requests with a secret, and check signatures (wire document 15).

The header carries the fields AccessKey, Signature and, rarely, SecurityToken. The signature is the Base64 of
HMAC-SHA1, keyed with the secret, over the values of all header fields but the signature itself, in the order
of the fields' names, followed by the body. It covers neither the request code nor the time: a signed request
that somebody overhears can be sent again, so untrusted networks need TLS as well.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final, NamedTuple

from iotmq.remoting.codes import Version
from iotmq.remoting.command import Command

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
# Java clients up to 4.9.3 add this field to a query after they have signed it.
_UNSIGNED_FIELD: Final = "_UNIQUE_KEY_QUERY"


class Credentials(NamedTuple):
    """A name and the secret that goes with it."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        # Never in a log.
        return f"<Credentials {self.access_key}>"


def sign(request: Command, credentials: Credentials) -> None:
    """Put the sender's name and the signature into the request's fields; call again after a change."""
    ext = request.ext
    ext[ACCESS_KEY] = credentials.access_key
    ext[SIGNATURE] = _signature(request, credentials.secret_key.encode()).decode()


def is_signed_with(request: Command, secret_key: bytes) -> bool:
    """Return whether the request's signature was made with the secret.

    Takes as long whatever is wrong with it.
    """
    claimed = request.ext.get(SIGNATURE, "").encode("utf-8", "replace")
    if hmac.compare_digest(claimed, _signature(request, secret_key)):
        return True
    if _UNSIGNED_FIELD in request.ext and request.version < Version.STANDARD_JSON:
        return hmac.compare_digest(claimed, _signature(request, secret_key, without=_UNSIGNED_FIELD))
    return False


def is_signature_of(claimed: bytes, content: bytes, secret_key: bytes) -> bool:
    """Return whether a signature was made with the secret over what was signed."""
    return hmac.compare_digest(claimed, base64.b64encode(hmac.digest(secret_key, content, "sha1")))


def _signature(request: Command, secret_key: bytes, *, without: str = SIGNATURE) -> bytes:
    ext = request.ext
    content = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE and name != without]).encode(
        "utf-8", "surrogatepass"
    )
    body = request.body
    if isinstance(body, bytes) and not body:
        digest = hmac.digest(secret_key, content, "sha1")
    else:
        mac = hmac.new(secret_key, content, "sha1")
        for piece in body if isinstance(body, list) else (body,):
            mac.update(piece)
        digest = mac.digest()
    return base64.b64encode(digest)
