"""One message as a batch of one, for those that come alone (wire document 6.5)."""

from __future__ import annotations

import struct

# Up to the body: total size, magic 0, CRC 0, flag, body size.
_HEAD = struct.Struct(">iiiii")
_PROPERTIES_SIZE = struct.Struct(">h")
_FIXED_BYTES = _HEAD.size + _PROPERTIES_SIZE.size


def encode_element(body: bytes | memoryview, properties: bytes, flag: int) -> bytes:
    """A batch of one element. The caller has checked that properties fit 16 bits."""
    body_size = len(body)
    return b"".join(
        (
            _HEAD.pack(_FIXED_BYTES + body_size + len(properties), 0, 0, flag, body_size),
            body,
            _PROPERTIES_SIZE.pack(len(properties)),
            properties,
        )
    )
