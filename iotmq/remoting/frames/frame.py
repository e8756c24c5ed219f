"""Frames: bytes to commands and back, without I/O.

A frame is ``int32 size of what follows | int32 header word | header | body``, big-endian. The top byte of
the header word says how the header is written (0 JSON, 1 binary), the other three are its size.

The binary header is ``int16 code | int8 language | int16 version | int32 opaque | int32 flag |
int32 remark size + text | int32 ext size + (int16 key size + key, int32 value size + value)*``.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec

from iotmq.errors import MalformedFrameError
from iotmq.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX, HEADER_FIELDS_MAX
from iotmq.remoting.codes import LANGUAGE_NAMES, LANGUAGES, LanguageCode, ResponseCode, Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.pull_frames import PullFrame, read_pull
from iotmq.remoting.frames.send_frames import SendRun, read_sends

#: Why the bytes were refused: a TLS handshake on a plain port, an impossible length, a header that cannot
#: be read, or a stream that ended inside a frame.
Reason = Literal["tls", "length", "header", "truncated"]

#: What compiled code has read of usual requests: one or many, from `data`.
Run: TypeAlias = SendRun | PullFrame
Item: TypeAlias = Command | Run

REASONS: Final[tuple[Reason, ...]] = ("tls", "length", "header", "truncated")

_PREFIX: Final = struct.Struct(">iI")
_BINARY_FIXED: Final = struct.Struct(">hbhiii")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

# A body below this is copied: cheaper than a view, and it does not keep the received chunk alive.
_VIEW_BYTES_MIN: Final = 1024
_TLS_HANDSHAKE: Final = 0x16
_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1


def encode(command: Command) -> list[bytes | memoryview]:
    """Encode a frame as buffers to be written in order; body buffers are passed on, not copied.

    ValueError when a field does not fit the header or the frame is past `FRAME_BYTES_MAX`.
    """
    header = _encode_json(command) if command.serialize == Serialize.JSON else _encode_binary(command)
    header_size = len(header)
    if header_size > HEADER_BYTES_MAX:
        raise ValueError(f"a header of {header_size} bytes is past the maximum of {HEADER_BYTES_MAX}")
    body = command.body
    buffers: list[bytes | memoryview]
    if isinstance(body, list):
        body_size = sum([piece.nbytes if isinstance(piece, memoryview) else len(piece) for piece in body])
        buffers = [b"", *body]
    elif isinstance(body, bytes):
        body_size = len(body)
        if body_size < _VIEW_BYTES_MIN:
            size = 4 + header_size + body_size
            return [_PREFIX.pack(size, command.serialize << 24 | header_size) + header + body]
        buffers = [b"", body]
    else:
        body_size = body.nbytes
        buffers = [b"", body]
    size = 4 + header_size + body_size
    if size + 4 > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size + 4} bytes is past the maximum of {FRAME_BYTES_MAX}")
    buffers[0] = _PREFIX.pack(size, command.serialize << 24 | header_size) + header
    return buffers


class FrameReader:
    """Turns a byte stream, cut anywhere, into commands.

    After the first malformed frame `error` and `reason` are set, and everything that follows is ignored;
    the commands before it are still handed out. A reader that `takes_runs` hands out usual sends that come
    one behind the other as one SendRun, and usual pulls as PullFrames, by `items_received`.
    """

    __slots__ = (
        "_chunks",
        "_is_at_start",
        "_is_pulling",
        "_items",
        "_needed_size",
        "_takes_runs",
        "error",
        "frames_ignored",
        "pending_size",
        "reason",
    )

    def __init__(self, *, takes_runs: bool = False) -> None:
        self._takes_runs = takes_runs
        self._items: list[Item] = []
        # Bytes of a frame that is not whole yet, in order; joined once, when it is.
        self._chunks: list[bytes | memoryview] = []
        self.pending_size = 0
        # No frame can be finished before this many bytes are pending.
        self._needed_size = 4
        self._is_at_start = True
        # The last run was a pull.
        self._is_pulling = False
        # Frames with an empty header (old C++ clients send one now and then): skipped and counted.
        self.frames_ignored = 0
        # Set once, by the first malformed frame.
        self.error: MalformedFrameError | None = None
        self.reason: Reason | None = None

    def receive_data(self, data: bytes) -> None:
        """Take the next bytes of the stream; never raises."""
        if self.error is not None or not data:
            return
        if self._is_at_start:
            self._is_at_start = False
            if data[0] == _TLS_HANDSHAKE:
                self._fail("tls", "a TLS handshake on a port without TLS")
                return
        if self._chunks:
            self._chunks.append(data)
            self.pending_size += len(data)
            if self.pending_size < self._needed_size:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
            self.pending_size = 0
        try:
            end = self._read_frames(data)
        except _HeaderError as error:
            self._fail("header", str(error))
            return
        if end < len(data) and self.error is None:
            # A view, so that the tail of a large chunk is copied once, in the join.
            self._chunks.append(memoryview(data)[end:] if end else data)
            self.pending_size = len(data) - end

    def receive_eof(self) -> None:
        """End the stream; inside a frame that is an error."""
        if self.error is None and self.pending_size:
            self._fail("truncated", f"the stream ended {self.pending_size} bytes into a frame")

    def commands_received(self) -> list[Command]:
        """Return the commands completed since the last call, in order; for a reader that takes no runs."""
        assert not self._takes_runs
        return cast("list[Command]", self.items_received())

    def items_received(self) -> list[Item]:
        """Return the commands and runs of sends completed since the last call, in order."""
        items = self._items
        if items:
            self._items = []
        return items

    @property
    def missing_size(self) -> int:
        """Return how many bytes the frame being received lacks at least; 0 between frames."""
        return max(self._needed_size - self.pending_size, 0) if self.pending_size else 0

    def _read_frames(self, data: bytes) -> int:
        """Decode the whole frames of `data`; returns where the unfinished one begins."""
        at = 0
        size_available = len(data)
        items = self._items
        takes_runs = self._takes_runs
        while size_available - at >= 8:
            if takes_runs:
                # Whoever pulled pulls again, as a rule.
                run = (
                    read_pull(data, at) or read_sends(data, at)
                    if self._is_pulling
                    else read_sends(data, at) or read_pull(data, at)
                )
                if run is not None:
                    self._is_pulling = isinstance(run, PullFrame)
                    items.append(run)
                    at = run.end
                    continue
            size, word = _PREFIX.unpack_from(data, at)
            header_size = word & 0xFFFFFF
            # The header counts inside `size`, so this also refuses sizes below 4 and negative ones.
            if size + 4 > FRAME_BYTES_MAX or header_size + 4 > size or header_size > HEADER_BYTES_MAX:
                self._fail("length", f"a frame of {size} bytes with a header of {header_size}")
                return at
            end = at + 4 + size
            if end > size_available:
                self._needed_size = 4 + size
                return at
            if header_size == 0:
                self.frames_ignored += 1
            else:
                items.append(_decode(data, at, end, word))
            at = end
        # The size alone already shows garbage (a TLS or HTTP greeting reads as hundreds of megabytes).
        self._needed_size = 4
        if size_available - at >= 4:
            self._needed_size = 8
            (size,) = _INT32.unpack_from(data, at)
            if not 4 <= size <= FRAME_BYTES_MAX - 4:
                self._fail("length", f"a frame of {size} bytes")
        return at

    def _fail(self, reason: Reason, text: str) -> None:
        self.reason = reason
        self.error = MalformedFrameError(ResponseCode.SYSTEM_ERROR, text)
        self._chunks.clear()
        self.pending_size = 0


class _HeaderError(Exception):
    """A header that cannot be read; does not leave this module."""


def decode_one(data: bytes, at: int) -> Command:
    """Decode the command whose frame begins at `at`, which a reader has found whole and readable."""
    size, word = _PREFIX.unpack_from(data, at)
    return _decode(data, at, at + 4 + size, word)


def _decode(data: bytes, at: int, end: int, word: int) -> Command:
    header_end = at + 8 + (word & 0xFFFFFF)
    is_small = end - header_end < _VIEW_BYTES_MIN
    body = data[header_end:end] if is_small else memoryview(data)[header_end:end]
    serialize = word >> 24
    if serialize == Serialize.JSON:
        return _decode_json(data[at + 8 : header_end], body)
    if serialize == Serialize.BINARY:
        return _decode_binary(data[at + 8 : header_end], body)
    raise _HeaderError(f"header type {serialize} is unknown")


# --- JSON headers -----------------------------------------------------------------------------------


_Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class _JsonWritten(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """Keys in alphabetical order with absent ones left out, as Java writes them."""

    code: int
    ext_fields: dict[str, str] | None = msgspec.field(name="extFields", default=None)
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    serialize_type: str = msgspec.field(name="serializeTypeCurrentRPC")
    version: int


class _JsonRead(msgspec.Struct, gc=False):
    """A header whose fields have the types Java gives them."""

    code: _Int32
    opaque: _Int32 = 0
    flag: _Int32 = 0
    version: _Int32 = 0
    language: str = "OTHER"
    remark: str | None = None
    ext_fields: dict[str, str] | None = msgspec.field(name="extFields", default=None)


_encode_fields: Final = msgspec.json.Encoder().encode
_decode_fields: Final = msgspec.json.Decoder(_JsonRead).decode
_decode_any: Final = msgspec.json.Decoder().decode


def _encode_json(command: Command) -> bytes:
    return _encode_fields(
        _JsonWritten(
            code=command.code,
            ext_fields=command.ext or None,
            flag=command.flag,
            language=LANGUAGE_NAMES.get(command.language, "OTHER"),
            opaque=command.opaque,
            remark=command.remark,
            serialize_type="JSON",
            version=command.version,
        )
    )


def _decode_json(header: bytes, body: bytes | memoryview) -> Command:
    try:
        fields = _decode_fields(header)
    except msgspec.ValidationError:
        fields = _coerce(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _HeaderError(f"the JSON header cannot be read: {error}") from None
    ext = fields.ext_fields
    if ext is None:
        ext = {}
    elif len(ext) > HEADER_FIELDS_MAX:
        raise _HeaderError(f"{len(ext)} fields are past the maximum of {HEADER_FIELDS_MAX}")
    return Command(
        fields.code,
        fields.opaque,
        fields.flag,
        LANGUAGES.get(fields.language, LanguageCode.OTHER),
        fields.version,
        fields.remark,
        ext,
        body,
        Serialize.JSON,
    )


def _coerce(header: bytes) -> _JsonRead:
    """Read a header whose values have other JSON types, as clients in other languages write them."""
    try:
        document: Any = _decode_any(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _HeaderError(f"the JSON header cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise _HeaderError("the JSON header is not an object")
    remark = document.get("remark")
    language = document.get("language")
    ext = document.get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise _HeaderError("extFields is not an object")
    if isinstance(language, int):
        language = LANGUAGE_NAMES.get(language)
    return _JsonRead(
        code=_coerce_number(document, "code", None),
        opaque=_coerce_number(document, "opaque", 0),
        flag=_coerce_number(document, "flag", 0),
        version=_coerce_number(document, "version", 0),
        language=language if isinstance(language, str) else "OTHER",
        remark=None if remark is None else _coerce_text(remark),
        ext_fields=None
        if ext is None
        else {name: _coerce_text(value) for name, value in ext.items() if value is not None},
    )


def _coerce_number(document: dict[str, Any], name: str, default: int | None) -> int:
    value = document.get(name)
    if value is None:
        value = default
    if isinstance(value, str) and len(value) <= 11:
        try:
            value = int(value)
        except ValueError:
            value = None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not _INT32_MIN <= value <= _INT32_MAX:
        raise _HeaderError(f"{name} is not a 32-bit number")
    return int(value)


def _coerce_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return _encode_fields(value).decode()
    except (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeEncodeError):
        raise _HeaderError("a field of the JSON header has a value that cannot be read") from None


# --- binary headers ---------------------------------------------------------------------------------


def _encode_binary(command: Command) -> bytes:
    remark = command.remark.encode() if command.remark else b""
    pieces = []
    for name, value in command.ext.items():
        name_text = name.encode()
        value_text = value.encode()
        if len(name_text) > 0x7FFF:
            raise ValueError("a field name is longer than a binary header can say")
        pieces.append(_INT16.pack(len(name_text)) + name_text + _INT32.pack(len(value_text)) + value_text)
    ext = b"".join(pieces)
    try:
        fixed = _BINARY_FIXED.pack(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            len(remark),
        )
    except struct.error as error:
        raise ValueError(f"a field does not fit a binary header: {error}") from None
    return fixed + remark + _INT32.pack(len(ext)) + ext


def _decode_binary(header: bytes, body: bytes | memoryview) -> Command:
    size = len(header)
    if size < _BINARY_FIXED.size + 4:
        raise _HeaderError(f"a binary header of {size} bytes is too short")
    code, language, version, opaque, flag, remark_size = _BINARY_FIXED.unpack_from(header)
    at = _BINARY_FIXED.size
    if not 0 <= remark_size <= size - at - 4:
        raise _HeaderError(f"a remark of {remark_size} bytes in a header of {size}")
    try:
        remark = header[at : at + remark_size].decode() if remark_size else None
        at += remark_size
        (ext_size,) = _INT32.unpack_from(header, at)
        at += 4
        if not 0 <= ext_size <= size - at:
            raise _HeaderError(f"fields of {ext_size} bytes in a header of {size}")
        ext = _decode_ext(header, at, at + ext_size) if ext_size else {}
    except UnicodeDecodeError:
        raise _HeaderError("text in a binary header is not UTF-8") from None
    return Command(
        code,
        opaque,
        flag,
        language if language in LANGUAGE_NAMES else LanguageCode.OTHER,
        version,
        remark,
        ext,
        body,
        Serialize.BINARY,
    )


def _decode_ext(header: bytes, at: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    while at < end:
        if end - at < 6:
            raise _HeaderError("a field is cut off")
        (name_size,) = _INT16.unpack_from(header, at)
        at += 2
        if not 0 <= name_size <= end - at - 4:
            raise _HeaderError(f"a field name of {name_size} bytes")
        name = header[at : at + name_size].decode()
        at += name_size
        (value_size,) = _INT32.unpack_from(header, at)
        at += 4
        if not 0 <= value_size <= end - at:
            raise _HeaderError(f"a field value of {value_size} bytes")
        ext[name] = header[at : at + value_size].decode()
        at += value_size
        if len(ext) > HEADER_FIELDS_MAX:
            raise _HeaderError(f"more than {HEADER_FIELDS_MAX} fields")
    return ext
