"""Read and write settings as RocketMQ's tools send them: lines of ``name=value``."""

from __future__ import annotations

from collections.abc import Mapping

from iotmq.errors import RequestError
from iotmq.limits import SETTINGS_TEXT_BYTES_MAX
from iotmq.remoting.codes import ResponseCode


def parse_properties(body: bytes) -> dict[str, str]:
    """Parse names and values; empty lines and those that begin with # or ! are left out.

    RequestError (1) for a body that is too long, not UTF-8, or has a line without =.
    """
    if len(body) > SETTINGS_TEXT_BYTES_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the body has {len(body)} bytes, more than {SETTINGS_TEXT_BYTES_MAX}",
        )
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "the body is not UTF-8") from None
    pairs: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not name or name[0] in "#!":
            continue
        if not equals:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body has a line without =: {line[:60]!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def properties_text(pairs: Mapping[str, str]) -> bytes:
    """Write the lines."""
    return "".join([f"{name}={value}\n" for name, value in pairs.items()]).encode()
