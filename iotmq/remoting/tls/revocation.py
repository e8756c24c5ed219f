"""Read from lists of revoked certificates (RFC 5280 section 5) until when they hold.

Only the way to this time is walked; what a list says otherwise is the business of OpenSSL.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

_LISTS: Final = re.compile(rb"-----BEGIN X509 CRL-----(.+?)-----END X509 CRL-----", re.DOTALL)
_INTEGER: Final = 0x02
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18


class _Element(NamedTuple):
    """An element of DER: its tag, where its content begins and ends."""

    tag: int
    begin: int
    end: int


def lists_expire_s(file: str) -> float | None:
    """Return when the first list of a PEM file is out of date, in seconds since 1970.

    None when that cannot be told; OSError when the file cannot be read.
    """
    found = [_next_update_s(each) for each in _LISTS.findall(Path(file).read_bytes())]
    return min((each for each in found if each is not None), default=None)


def _next_update_s(text: bytes) -> float | None:
    """Return the nextUpdate of a CertificateList; None without one, and where the text is no list."""
    try:
        der = base64.b64decode(text)
        at = _element(der, _element(der, 0).begin).begin
        element = _element(der, at)
        if element.tag == _INTEGER:
            # The version, which lists of version 1 do not have.
            element = _element(der, element.end)
        # The algorithm of the signature, the issuer, thisUpdate, nextUpdate.
        for _ in range(3):
            element = _element(der, element.end)
        return _time_s(element.tag, der[element.begin : element.end].decode("ascii"))
    except (IndexError, ValueError):
        return None


def _element(der: bytes, at: int) -> _Element:
    """Read the head of an element. IndexError past the end."""
    tag, size = der[at], der[at + 1]
    begin = at + 2
    if size & 0x80:
        # So many bytes of length follow.
        begin += size & 0x7F
        size = int.from_bytes(der[at + 2 : begin], "big")
    if begin + size > len(der):
        raise IndexError(at)
    return _Element(tag, begin, begin + size)


def _time_s(tag: int, text: str) -> float | None:
    if tag == _UTC_TIME:
        # Years of two digits are those from 1950 to 2049 [RFC 5280 section 4.1.2.5.1].
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        return None
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
