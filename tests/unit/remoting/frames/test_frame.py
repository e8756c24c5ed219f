"""Frames against the golden vectors, and a corpus run whole, byte by byte and with trailing bytes."""

from __future__ import annotations

import json
import struct

import pytest

from iotmq.errors import MalformedFrameError
from iotmq.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX, HEADER_FIELDS_MAX
from iotmq.remoting.codes import Flag, LanguageCode, RequestCode, ResponseCode, Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, encode

BINARY_CLUSTER_INFO = bytes.fromhex("0000001901000015006A00019900000007000000000000000000000000")
BINARY_ROUTE = bytes.fromhex(
    "000000250100002100690001990000000800000000000000000000000C0005746F7069630000000154"
)


def frame(header: bytes, body: bytes = b"", *, serialize: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), serialize << 24 | len(header)) + header + body


def json_frame(body: bytes = b"", **header: object) -> bytes:
    return frame(json.dumps(header).encode(), body)


def binary_header(
    code: int = 1, *, remark: bytes = b"", ext: bytes = b"", remark_size: int | None = None,
    ext_size: int | None = None, opaque: int = 5,
) -> bytes:  # fmt: skip
    return (
        struct.pack(">hbhiii", code, 0, 409, opaque, 0, len(remark) if remark_size is None else remark_size)
        + remark
        + struct.pack(">i", len(ext) if ext_size is None else ext_size)
        + ext
    )


def field(name: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value


def whole(data: bytes) -> FrameReader:
    reader = FrameReader()
    reader.receive_data(data)
    return reader


def one(data: bytes) -> Command:
    reader = whole(data)
    assert reader.error is None
    (command,) = reader.commands_received()
    return command


def facts(command: Command) -> tuple[object, ...]:
    return (
        command.code, command.opaque, command.flag, command.language, command.version, command.remark,
        command.ext, command.body_bytes(), command.serialize,
    )  # fmt: skip


# Name -> (bytes of whole frames, facts of the commands in them).
GOOD: dict[str, tuple[bytes, list[dict[str, object]]]] = {
    "binary without fields (golden)": (
        BINARY_CLUSTER_INFO,
        [{"code": 106, "language": 0, "version": 409, "opaque": 7, "ext": {}, "remark": None}],
    ),
    "binary with a field (golden)": (
        BINARY_ROUTE,
        [{"code": 105, "opaque": 8, "ext": {"topic": "T"}, "serialize": 1}],
    ),
    "binary with remark, fields and body": (
        frame(
            binary_header(remark="né".encode(), ext=field(b"a", b"") + field(b"b", b"2")),
            b"body",
            serialize=1,
        ),
        [{"remark": "né", "ext": {"a": "", "b": "2"}, "body": b"body"}],
    ),
    "binary with an unknown language": (
        frame(struct.pack(">hbhiiii", 1, 99, 1, 1, 0, 0, 0), serialize=1),
        [{"language": LanguageCode.OTHER}],
    ),
    "Java JSON": (
        json_frame(
            b"{}", code=34, flag=0, language="JAVA", opaque=3, serializeTypeCurrentRPC="JSON", version=409
        ),
        [{"code": 34, "language": 0, "opaque": 3, "version": 409, "body": b"{}", "ext": {}}],
    ),
    "C++ JSON: numbers in fields, trailing newline, empty remark": (
        frame(
            b'{"code":10,"extFields":{"queueId":3,"big":"9","batch":false,"k":1.5},"flag":0,'
            b'"language":"CPP","opaque":12,"remark":"","version":63}\n'
        ),
        [
            {
                "code": 10,
                "language": LanguageCode.CPP,
                "remark": "",
                "ext": {"queueId": "3", "big": "9", "batch": "false", "k": "1.5"},
            }
        ],
    ),
    "unknown keys, unknown language, any order": (
        json_frame(opaque=4, zebra=[1, {"a": None}], language="KLINGON", code=11),
        [{"code": 11, "opaque": 4, "language": LanguageCode.OTHER}],
    ),
    "no language, only a code": (json_frame(code=106), [{"code": 106, "opaque": 0, "flag": 0, "version": 0}]),
    "null fields and null remark": (
        json_frame(code=1, remark=None, extFields=None, language=None),
        [{"remark": None, "ext": {}, "language": LanguageCode.OTHER}],
    ),
    "null, nested and true values among the fields": (
        json_frame(code=1, extFields={"a": None, "b": True, "c": {"d": 1}, "e": [1, 2]}),
        [{"ext": {"b": "true", "c": '{"d":1}', "e": "[1,2]"}}],
    ),
    "numbers in quotes, language by number": (
        json_frame(code="105", opaque="-7", flag=2.0, language=1, remark=5),
        [{"code": 105, "opaque": -7, "flag": 2, "language": LanguageCode.CPP, "remark": "5"}],
    ),
    "a code past 16 bits": (json_frame(code=200_050), [{"code": 200_050}]),
    "a body of 64 KiB": (json_frame(b"x" * 65_536, code=1), [{"body": b"x" * 65_536}]),
    "three in a row": (
        BINARY_ROUTE + json_frame(b"b", code=2) + BINARY_CLUSTER_INFO,
        [{"code": 105}, {"code": 2, "body": b"b"}, {"code": 106}],
    ),
    "an empty header between two frames": (
        BINARY_ROUTE + frame(b"", b"0123456789abc", serialize=0x7B) + BINARY_CLUSTER_INFO,
        [{"code": 105}, {"code": 106}],
    ),
    "the 21-byte garbage of the C++ client": (frame(b"", b"x" * 13, serialize=5), []),
    "as many fields as allowed": (
        json_frame(code=1, extFields={str(number): "" for number in range(HEADER_FIELDS_MAX)}),
        [{"code": 1}],
    ),
    "as many binary fields as allowed": (
        frame(
            binary_header(ext=b"".join(field(b"%d" % number, b"") for number in range(HEADER_FIELDS_MAX))),
            serialize=1,
        ),
        [{"code": 1}],
    ),
}

# Name -> (bytes, why they are refused).
BAD: dict[str, tuple[bytes, str]] = {
    "TLS handshake": (bytes.fromhex("1603010200010001fc0303"), "tls"),
    "HTTP request": (b"GET / HTTP/1.1\r\n\r\n", "length"),
    "MQTT CONNECT": (bytes.fromhex("101300044d5154540402003c000764657669636531"), "length"),
    "negative length": (b"\xff\xff\xff\xff\x00\x00\x00\x00", "length"),
    "zero length": (b"\x00" * 8, "length"),
    "length below the header word": (struct.pack(">iI", 3, 0), "length"),
    "length past the maximum": (struct.pack(">iI", FRAME_BYTES_MAX - 3, 8), "length"),
    "header longer than the frame": (struct.pack(">iI", 10, 7) + b"123456", "length"),
    "header past the maximum": (struct.pack(">iI", HEADER_BYTES_MAX + 5, HEADER_BYTES_MAX + 1), "length"),
    "unknown header type": (frame(b"{}", serialize=2), "header"),
    "header that is not JSON": (frame(b"hello"), "header"),
    "header cut off": (frame(b'{"code":1,'), "header"),
    "header that is a list": (frame(b"[1]"), "header"),
    "header without a code": (frame(b"{}"), "header"),
    "code that is text": (json_frame(code="x"), "header"),
    "code that is an object": (json_frame(code={}), "header"),
    "code past 32 bits": (json_frame(code=2**31), "header"),
    "opaque past 32 bits": (json_frame(code=1, opaque=-(2**31) - 1), "header"),
    "opaque with many digits": (frame(b'{"code":1,"opaque":' + b"9" * 400 + b"}"), "header"),
    "opaque that is half a number": (json_frame(code=1, opaque=1.5), "header"),
    "opaque past any float": (frame(b'{"code":1,"opaque":1e999}'), "header"),
    "fields that are a list": (json_frame(code=1, extFields=[1]), "header"),
    "text that is not UTF-8": (frame(b'{"code":1,"remark":"\xff"}'), "header"),
    "half a surrogate pair": (frame(b'{"code":1,"remark":"\\ud800"}'), "header"),
    "nested past any stack": (frame(b'{"code":1,"x":' + b"[" * 100_000), "header"),
    "nested fields past any stack": (frame(b'{"code":"1","extFields":{"x":' + b"[" * 100_000), "header"),
    "too many fields": (
        json_frame(code=1, extFields={str(number): "" for number in range(HEADER_FIELDS_MAX + 1)}),
        "header",
    ),
    "too many coerced fields": (
        json_frame(code=1, extFields={str(number): number for number in range(HEADER_FIELDS_MAX + 1)}),
        "header",
    ),
    "too many binary fields": (
        frame(
            binary_header(
                ext=b"".join(field(b"%d" % number, b"") for number in range(HEADER_FIELDS_MAX + 1))
            ),
            serialize=1,
        ),
        "header",
    ),
    "binary header too short": (frame(binary_header()[:-1], serialize=1), "header"),
    "binary remark of negative size": (frame(binary_header(remark_size=-1), serialize=1), "header"),
    "binary remark past the header": (frame(binary_header(remark_size=1), serialize=1), "header"),
    "binary fields of negative size": (frame(binary_header(ext_size=-1), serialize=1), "header"),
    "binary fields past the header": (frame(binary_header(ext_size=1), serialize=1), "header"),
    "binary field cut off": (frame(binary_header(ext=b"\x00\x01a\x00"), serialize=1), "header"),
    "binary field name of negative size": (
        frame(binary_header(ext=b"\xff\xffabcdefgh"), serialize=1),
        "header",
    ),
    "binary field value past the header": (
        frame(binary_header(ext=b"\x00\x01a\x00\x00\x00\x02b"), serialize=1),
        "header",
    ),
    "binary text that is not UTF-8": (
        frame(binary_header(ext=field(b"\xff", b"")), serialize=1),
        "header",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_frame_is_read(name: str) -> None:
    data, expected = GOOD[name]
    reader = whole(data)
    commands = reader.commands_received()
    assert reader.error is None
    assert reader.pending_size == 0
    assert len(commands) == len(expected)
    for command, wanted in zip(commands, expected, strict=True):
        found = {key: command.body_bytes() if key == "body" else getattr(command, key) for key in wanted}
        assert found == wanted
    reader.receive_eof()
    assert reader.error is None


@pytest.mark.parametrize("name", [name for name in GOOD if "64 KiB" not in name])
def test_a_good_frame_byte_by_byte_is_the_same(name: str) -> None:
    data, _ = GOOD[name]
    reader = FrameReader()
    commands = []
    for at in range(len(data)):
        reader.receive_data(data[at : at + 1])
        commands += reader.commands_received()
    assert [facts(command) for command in commands] == [
        facts(command) for command in whole(data).commands_received()
    ]
    assert reader.error is None


@pytest.mark.parametrize("name", GOOD)
def test_bytes_after_a_good_frame_wait_for_the_rest(name: str) -> None:
    data, expected = GOOD[name]
    reader = whole(data + BINARY_ROUTE[:11])
    assert len(reader.commands_received()) == len(expected)
    assert reader.missing_size == len(BINARY_ROUTE) - 11
    reader.receive_data(BINARY_ROUTE[11:])
    (last,) = reader.commands_received()
    assert last.opaque == 8


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("trailing", [b"", BINARY_ROUTE], ids=["alone", "with trailing bytes"])
def test_a_bad_frame_is_refused(name: str, trailing: bytes) -> None:
    data, reason = BAD[name]
    reader = whole(data + trailing)
    assert reader.reason == reason
    assert type(reader.error) is MalformedFrameError
    assert reader.error.code == ResponseCode.SYSTEM_ERROR
    reader.receive_data(BINARY_ROUTE)
    assert reader.commands_received() == []


@pytest.mark.parametrize("name", [name for name in BAD if "stack" not in name])
def test_a_bad_frame_byte_by_byte_is_refused_for_the_same_reason(name: str) -> None:
    data, reason = BAD[name]
    reader = FrameReader()
    for at in range(len(data)):
        reader.receive_data(data[at : at + 1])
    assert reader.reason == reason


def test_commands_before_a_bad_frame_are_still_handed_out() -> None:
    reader = whole(BINARY_ROUTE + BINARY_CLUSTER_INFO + frame(b"hello") + BINARY_ROUTE)
    assert [command.code for command in reader.commands_received()] == [105, 106]
    assert reader.reason == "header"


def test_a_stream_that_ends_inside_a_frame_is_an_error() -> None:
    for end in range(1, len(BINARY_ROUTE)):
        reader = whole(BINARY_ROUTE[:end])
        assert reader.error is None
        reader.receive_eof()
        assert reader.reason == "truncated"


def test_a_huge_length_is_refused_before_its_bytes_arrive() -> None:
    reader = FrameReader()
    reader.receive_data(struct.pack(">i", FRAME_BYTES_MAX))
    assert reader.reason == "length"


def test_the_largest_frame_is_read_and_written() -> None:
    header_size = len(encode(Command.request(1))[0]) - 8
    body = bytes(FRAME_BYTES_MAX - 8 - header_size)
    buffers = encode(Command.request(1, body=body))
    assert sum(map(len, buffers)) == FRAME_BYTES_MAX
    reader = FrameReader()
    for buffer in buffers:
        reader.receive_data(bytes(buffer))
    (command,) = reader.commands_received()
    assert isinstance(command.body, memoryview)
    assert command.body.nbytes == len(body)
    with pytest.raises(ValueError, match="past the maximum"):
        encode(Command.request(1, body=[body, b"x"]))


def test_a_header_past_the_maximum_is_not_written() -> None:
    encode(Command.request(1, {"a": "x" * (HEADER_BYTES_MAX - 200)}))
    with pytest.raises(ValueError, match="header"):
        encode(Command.request(1, {"a": "x" * HEADER_BYTES_MAX}))


def test_a_large_body_is_a_read_only_view_of_the_received_chunk() -> None:
    data = json_frame(b"y" * 4096, code=1)
    body = one(data).body
    assert isinstance(body, memoryview)
    assert body.obj is data
    assert body.readonly
    assert isinstance(one(json_frame(b"y" * 10, code=1)).body, bytes)


def test_golden_binary_frames_are_written() -> None:
    cluster_info = Command(106, 7, 0, LanguageCode.JAVA, 409, None, {}, b"", Serialize.BINARY)
    assert encode(cluster_info) == [BINARY_CLUSTER_INFO]
    route = Command(105, 8, 0, LanguageCode.JAVA, 409, None, {"topic": "T"}, b"", Serialize.BINARY)
    assert encode(route) == [BINARY_ROUTE]


def test_a_json_header_is_written_as_java_does() -> None:
    request = Command(105, 8, 0, LanguageCode.JAVA, 409, None, {"topic": "T"}, b"", Serialize.JSON)
    (data,) = encode(request)
    assert data[8:] == (
        b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":8,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    )
    request.ext = {}
    request.remark = "né"
    assert b"extFields" not in encode(request)[0]
    assert one(bytes(encode(request)[0])).remark == "né"


def test_a_json_frame_with_a_header_of_97_bytes_starts_as_the_golden_one() -> None:
    (data,) = encode(Command.request(5))
    assert len(data) == 8 + 97
    assert data[:8].hex() == "0000006500000061"


def test_body_pieces_are_passed_on_without_copies() -> None:
    segment = bytearray(b"0123456789")
    pieces = [memoryview(segment)[2:4], b"ab", memoryview(segment)[5:]]
    buffers = encode(Command.request(1, body=pieces))
    assert buffers[1:] == pieces
    assert buffers[1] is pieces[0]
    assert one(b"".join(buffers)).body == b"23ab56789"


def test_a_view_of_wider_items_counts_its_bytes() -> None:
    view = memoryview(struct.pack(">4q", 1, 2, 3, 4)).cast("q")
    assert one(b"".join(encode(Command.request(1, body=view)))).body_bytes() == view.tobytes()
    assert one(b"".join(encode(Command.request(1, body=[view])))).body_bytes() == view.tobytes()


@pytest.mark.parametrize("serialize", [Serialize.JSON, Serialize.BINARY])
def test_a_reply_has_the_kind_of_header_of_its_request(serialize: int) -> None:
    request = Command.request(RequestCode.GET_MAX_OFFSET, {"topic": "T"}, serialize=serialize)
    request.opaque = 77
    response = one(bytes(encode(request.reply(0, ext={"offset": "3"}, body=b"x"))[0]))
    assert (response.serialize, response.opaque, response.flag) == (serialize, 77, Flag.RESPONSE)
    assert (response.language, response.version) == (LanguageCode.PYTHON, 409)
    assert response.ext == {"offset": "3"}


@pytest.mark.parametrize(
    "command",
    [
        Command.request(RequestCode.POP_MESSAGE, serialize=Serialize.BINARY),
        Command.request(1, {"k" * 32_768: ""}, serialize=Serialize.BINARY),
    ],
)
def test_what_a_binary_header_cannot_hold_is_refused(command: Command) -> None:
    with pytest.raises(ValueError, match="binary header"):
        encode(command)
