"""Sends read in one pass mean what the general decoder says they mean, and what it refuses is never read."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iotmq.broker.handlers.native.send import _LONG_NAMES, _SHORT_NAMES, _read_header
from iotmq.errors import RequestError
from iotmq.remoting.codes import Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, encode
from iotmq.remoting.frames.send_frames import SendRun, read_sends

LETTERS = "abcdefghijklmn"
LONG = [*_LONG_NAMES[:-1], "unitMode", "batch", "bname"]
BORN, TAGS = "1700000000000", "TAGS\x01A\x02"
GOOD = ["g", "T", "TBW102", "4", "0", "0", BORN, "7", TAGS, "0", "false", "16", "true", "b"]

numbers = st.one_of(
    st.integers(-(2**33), 2**64).map(str),
    st.sampled_from(["0", "-0", "007", "+1", " 1", "1_0", "", "1e3", "1.0", "٣", "2147483647", "2147483648"]),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = st.sampled_from(["true", "false", "1", "T", "%RETRY%g", "TAGS\x01A\x02WAIT\x01false\x02"])
values = st.one_of(numbers, texts, words)
# As clients in other languages write JSON: numbers, booleans and null without quotes.
loose_values = values | st.integers(-(2**70), 2**70) | st.booleans() | st.none() | st.floats(allow_nan=False)


@st.composite
def fields(draw: st.DrawFn, code: int) -> dict[str, object]:
    """A good header, or one with some fields changed, left away or added."""
    names = LONG if code == 10 else LETTERS
    ext: dict[str, object] = dict(zip(names, GOOD, strict=False))
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from([*names, "AccessKey", "extra"]))
        if draw(st.booleans()):
            ext[name] = draw(loose_values)
        else:
            ext.pop(name, None)
    if draw(st.booleans()):
        ext = dict(draw(st.permutations(list(ext.items()))))
    return ext


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    code = draw(st.sampled_from([10, 310, 320, 310, 11]))
    ext = draw(fields(code))
    body = draw(st.binary(max_size=20))
    opaque = draw(st.integers(-(2**31), 2**31 - 1))
    flag = draw(st.sampled_from([0, 0, 2, 1, 3]))
    if draw(st.booleans()):
        text_ext = {name: str(value) for name, value in ext.items()}
        command = Command(code, opaque, flag, 0, 409, None, text_ext, body, Serialize.BINARY)
        return b"".join(encode(command))
    header: dict[str, object] = {
        "code": code,
        "extFields": ext,
        "flag": flag,
        "language": draw(st.sampled_from(["JAVA", "CPP", "ü", ""])),
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 409,
    }
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from([*header, "remark", "x"]))
        if draw(st.booleans()):
            header[name] = draw(loose_values)
        else:
            header.pop(name, None)
    spaces = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r\n")]))
    text = json.dumps(header, ensure_ascii=draw(st.booleans()), separators=spaces)
    text += draw(st.sampled_from(["", "\n", " "]))
    return framed(text.encode("utf-8", "surrogatepass"), body)


def framed(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def meaning(command: Command) -> dict[str, object]:
    """What the general path reads out of a send; RequestError when it refuses it."""
    is_short = command.code != 10
    names = _SHORT_NAMES if is_short else _LONG_NAMES
    header = _read_header(command, names)
    times = 0
    if names.reconsume_times in command.ext:
        times = command.integer(names.reconsume_times, 0, minimum=0, maximum=2**31 - 1)
    return {
        "code": command.code,
        "opaque": command.opaque,
        "flag": command.flag,
        "version": command.version,
        "is_binary": command.serialize == Serialize.BINARY,
        "is_batch": command.code == 320 or command.ext.get("m" if is_short else "batch") in ("true", "1"),
        "group": header.producer_group.encode(),
        "topic": header.topic.encode(),
        "queue_id": header.queue_id,
        "sys_flag": header.sys_flag,
        "born_timestamp_ms": header.born_timestamp_ms,
        "message_flag": header.flag,
        "reconsume_times": times,
        "properties": header.properties.encode(),
        "body": command.body_bytes(),
    }


def check(data: bytes) -> int:
    """Compare both readers on a stream; how many sends were read in runs."""
    general = FrameReader()
    general.receive_data(data)
    commands = iter(general.commands_received())
    reader = FrameReader(takes_runs=True)
    reader.receive_data(data)
    taken = 0
    for item in reader.items_received():
        if not isinstance(item, SendRun):
            assert repr(item) == repr(next(commands))
            continue
        for number in range(item.count):
            assert item.facts(number) == meaning(next(commands))
        taken += item.count
    assert next(commands, None) is None
    assert (reader.reason, reader.frames_ignored, reader.pending_size) == (
        general.reason,
        general.frames_ignored,
        general.pending_size,
    )
    return taken


@given(st.lists(frames(), max_size=6))
def test_runs_mean_what_the_general_decoder_says(parts: list[bytes]) -> None:
    check(b"".join(parts))


@given(frames(), st.data())
def test_damaged_frames_too(frame: bytes, data: st.DataObject) -> None:
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(8, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255) | st.sampled_from(list(b'"\\,:{}[]0u-\x80\xed')))
    check(bytes(damaged))


@given(st.lists(frames(), min_size=1, max_size=4), st.integers(0, 400))
def test_what_is_cut_off_is_left_for_later(parts: list[bytes], place: int) -> None:
    data = b"".join(parts)
    check(data[: place % (len(data) + 1)])


def good(code: int = 310, *, serialize: int = Serialize.JSON, **changed: str) -> bytes:
    ext = {**dict(zip(LONG if code == 10 else LETTERS, GOOD, strict=False)), **changed}
    return b"".join(encode(Command(code, 5, 0, 0, 409, None, ext, b"hello", serialize)))


@pytest.mark.parametrize("serialize", [Serialize.JSON, Serialize.BINARY])
@pytest.mark.parametrize("code", [10, 310, 320])
def test_usual_sends_are_read_in_runs(code: int, serialize: int) -> None:
    assert check(good(code, serialize=serialize) * 40) == 40


def test_a_run_ends_before_anything_else_and_goes_on_behind_it() -> None:
    pull = b"".join(encode(Command.request(11, {"topic": "T"})))
    assert check(good() * 2 + pull + good() + framed(b"") + good()) == 4


@pytest.mark.parametrize(
    "properties",
    [
        "T\\u0001A\\u0002",
        '\\"\\\\\\/\\b\\f\\n\\r\\t',
        "\\u00e9\\u20ac",
        "é€😀",
        "\\ud83d\\ude00",
        "a\\u0000b",
    ],
)
def test_escapes_and_letters_of_all_kinds_in_properties(properties: str) -> None:
    fields = ",".join(f'"{letter}":"{value}"' for letter, value in zip("abcdefgh", GOOD[:8], strict=True))
    header = f'{{"code":310,"extFields":{{{fields},"i":"{properties}"}}}}'.encode()
    # A character of two halves is left to the general decoder.
    assert check(framed(header, b"x")) == ("ud83d" not in properties)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{}",
        b'{"code":310}',
        b'{"code":310,"code":10}',
        b'{"code":310,"extFields":null}',
        b'{"code":310,"extFields":{}}',
        b'{"extFields":{"a":"g"},"code":310}',
        b'{"code":310,"extFields":{"a":"g","a":"h"}}',
        b'{"code":310.0}',
        b'{"code":0310}',
        b'{"code":310} {',
        b'{"code":310,"flag":99999999999999999999}',
        b'{"code":310,"language":"\xff"}',
    ],
)
def test_unusual_headers_are_left_to_the_general_decoder(header: bytes) -> None:
    assert check(framed(header)) == 0


def test_places_outside_the_bytes() -> None:
    assert read_sends(b"", 0) is None
    assert read_sends(b"abc", 10) is None
    with pytest.raises(ValueError, match="before"):
        read_sends(b"abc", -1)
    run = read_sends(good(), 0)
    assert run is not None
    with pytest.raises(IndexError):
        run.start_of(1)
    with pytest.raises(IndexError):
        run.facts(-1)


@example("2147483648")
@given(numbers)
def test_a_number_field_is_read_only_when_it_is_one(text: str) -> None:
    for letter in "defghj":
        frame = good(**{letter: text})
        try:
            reader = FrameReader()
            reader.receive_data(frame)
            meaning(reader.commands_received()[0])
        except RequestError:
            assert check_unread(frame)
        else:
            check(frame)


def check_unread(frame: bytes) -> bool:
    return read_sends(frame, 0) is None
