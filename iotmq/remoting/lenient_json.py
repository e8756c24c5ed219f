"""Read and write JSON bodies as Java's fastjson does.

fastjson leaves map keys that are not strings unquoted: ``{0:"addr"}``, and writes a raw object as key:
``{{"brokerName":"b","queueId":0,"topic":"T"}:5}``. Both are made standard before decoding: a number becomes
a quoted number, an object key a string that holds the object's JSON text (which some clients send already).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from iotmq.errors import RequestError
from iotmq.limits import LENIENT_JSON_BYTES_MAX, LENIENT_REQUEST_BYTES_MAX
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Body

T = TypeVar("T")

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BARE_KEY: Final = re.compile(rb'[^\s:,{}\[\]"]+')
_PLAIN: Final = re.compile(rb'[^"{}\[\],]+')
_STRING_OR_BRACKET: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_SPACE: Final = b" \t\r\n"


def decode(body: Body, shape: type[T], *, lenient_bytes_max: int = LENIENT_JSON_BYTES_MAX) -> T:
    """Decode a body as `shape` (any type msgspec knows); numbers and booleans in quotes are understood.

    RequestError (code 1) when it is not JSON or has another shape. Up to `lenient_bytes_max` are put right
    when they are not standard JSON; give more only for files, because it takes up to 2 s per MiB.
    """
    data = b"".join(body) if isinstance(body, list) else body
    try:
        return msgspec.json.decode(data, type=shape, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    if len(data) > lenient_bytes_max:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the body is not standard JSON, and its {len(data)} bytes are past the maximum for another kind",
        )
    try:
        return msgspec.json.decode(standard_json(bytes(data)), type=shape, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body is not JSON: {error}") from None


def decode_request(body: Body, shape: type[T]) -> T:
    """Decode the body of a request from any peer, as `decode` does, with tighter limits on repairs."""
    return decode(body, shape, lenient_bytes_max=LENIENT_REQUEST_BYTES_MAX)


def encode(value: Any) -> bytes:
    """Encode `value` as standard JSON in UTF-8; integer keys are quoted, which every peer reads."""
    return msgspec.json.encode(value)


def encode_ascii(value: Any) -> bytes:
    """Encode `value` as standard JSON with sorted keys and everything beyond ASCII as ``\\uXXXX``."""
    plain = msgspec.to_builtins(value, str_keys=True)
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode("ascii")


def encode_object_map(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode a map whose keys are objects, from JSON texts, in the form every Java version wrote."""
    return b"{" + b",".join([key + b":" + value for key, value in entries]) + b"}"


def standard_json(data: bytes) -> bytes:
    """Quote every map key that is not quoted; the rest is left as it is, right or wrong.

    ValueError when a string or an object used as key does not end.
    """
    out: list[bytes] = []
    # One entry per open bracket: True for an object.
    is_object: list[bool] = []
    expects_key = False
    at = 0
    size = len(data)
    while at < size:
        byte = data[at : at + 1]
        if byte in _SPACE:
            at += 1
        elif byte == b'"':
            end = _match_end(_STRING, data, at)
            out.append(data[at:end])
            at = end
            expects_key = False
        elif byte in b"}]":
            if is_object:
                is_object.pop()
            out.append(byte)
            at += 1
            expects_key = False
        elif expects_key and byte not in b",:":
            end = _object_end(data, at) if byte in b"{[" else _match_end(_BARE_KEY, data, at)
            out.append(msgspec.json.encode(data[at:end].decode()))
            at = end
            expects_key = False
        elif byte in b"{[":
            expects_key = byte == b"{"
            is_object.append(expects_key)
            out.append(byte)
            at += 1
        elif byte == b",":
            expects_key = bool(is_object) and is_object[-1]
            out.append(byte)
            at += 1
        else:
            end = _match_end(_PLAIN, data, at)
            out.append(data[at:end])
            at = end
    return b"".join(out)


def _match_end(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    match = pattern.match(data, at)
    if match is None:
        raise ValueError(f"a string does not end (byte {at})")
    return match.end()


def _object_end(data: bytes, at: int) -> int:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data, at):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return match.end()
    raise ValueError(f"an object used as key does not end (byte {at})")
