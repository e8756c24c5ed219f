"""Keys of TLS session tickets that several processes share, so that each can resume the sessions of all.

Python's ssl has no name for them. OpenSSL's own function is called on the context that a `ssl.SSLContext` of
CPython has first of all; where that is not to be had, every context keeps the key OpenSSL has made up for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import logging
import ssl
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

from iotmq.remoting.tls.context import ContextSettings

logger = logging.getLogger("iotmq.remoting")

# Of OpenSSL: numbers of SSL_CTX_ctrl; a name of 16 bytes, a key of HMAC and one of AES-256.
_GET_TICKET_KEYS: Final = 58
_SET_TICKET_KEYS: Final = 59
_KEYS_BYTES: Final = 80
# Before which a context is known to look as we take it to.
_PYTHON_UNKNOWN: Final = (3, 15)


def share_tickets(context: ssl.SSLContext, settings: ContextSettings, secret: str) -> bool:
    """Have the context's tickets encrypted by keys of the secret and of everything the settings say.

    So processes with the same secret, settings and files resume each other's sessions, and nobody those of
    another listener, or those from before a file changed. Returns whether it could be done.
    """
    control = _control()
    if control is None:
        logger.warning("TLS session tickets are not shared: this Python does not allow it")
        return False
    keys = ctypes.create_string_buffer(_ticket_keys(settings, secret), _KEYS_BYTES)
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    done = int(control(pointer, _SET_TICKET_KEYS, _KEYS_BYTES, keys))
    return done == 1


def ticket_keys_of(context: ssl.SSLContext) -> bytes:
    """Return the keys that a context has; for tests."""
    control = _control()
    assert control is not None
    keys = ctypes.create_string_buffer(_KEYS_BYTES)
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    control(pointer, _GET_TICKET_KEYS, _KEYS_BYTES, keys)
    return keys.raw


def _ticket_keys(settings: ContextSettings, secret: str) -> bytes:
    """OSError when a file cannot be read."""
    digest = hashlib.sha512(repr(settings).encode())
    for name in settings.files:
        content = Path(name).read_bytes()
        digest.update(len(content).to_bytes(8) + content)
    named = digest.digest()
    pieces = (hmac.digest(secret.encode(), named + bytes([number]), "sha512") for number in range(2))
    return b"".join(pieces)[:_KEYS_BYTES]


@cache
def _control() -> Any:
    """Return SSL_CTX_ctrl of the OpenSSL that Python's ssl uses; None where there is no way to it."""
    if sys.implementation.name != "cpython" or sys.version_info >= _PYTHON_UNKNOWN:
        return None
    import _ssl

    try:
        control = ctypes.CDLL(getattr(_ssl, "__file__", None)).SSL_CTX_ctrl
    except (OSError, AttributeError):
        return None
    control.restype = ctypes.c_long
    control.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p]
    return control
