"""Whatever way a byte stream is cut, it holds the same commands; garbage is only ever refused."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from iotmq.errors import MalformedFrameError
from iotmq.remoting.codes import Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import REASONS, FrameReader, encode

Facts = tuple[object, ...]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int32s = st.integers(-(2**31), 2**31 - 1)
bodies = st.one_of(st.binary(max_size=50), st.binary(min_size=1020, max_size=1030))


@st.composite
def commands(draw: st.DrawFn) -> Command:
    serialize = draw(st.sampled_from([Serialize.JSON, Serialize.BINARY]))
    small = st.integers(-(2**15), 2**15 - 1)
    return Command(
        draw(int32s if serialize == Serialize.JSON else small),
        draw(int32s),
        draw(st.integers(0, 3)),
        draw(st.integers(0, 13)),
        draw(small),
        draw(st.none() | texts.filter(bool)),
        draw(st.dictionaries(texts, texts, max_size=5)),
        draw(bodies),
        serialize,
    )


def facts(command: Command) -> Facts:
    return (
        command.code, command.opaque, command.flag, command.language, command.version, command.remark,
        command.ext, command.body_bytes(), command.serialize,
    )  # fmt: skip


def read(pieces: list[bytes]) -> tuple[list[Facts], str | None, int]:
    reader = FrameReader()
    found: list[Facts] = []
    for piece in pieces:
        reader.receive_data(piece)
        found += [facts(command) for command in reader.commands_received()]
    reader.receive_eof()
    assert reader.error is None or type(reader.error) is MalformedFrameError
    assert reader.reason is None or reader.reason in REASONS
    return found, reader.reason, reader.frames_ignored


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


places_to_cut = st.lists(st.integers(0, 10_000), max_size=12)


@given(st.lists(commands(), max_size=5), places_to_cut)
def test_any_chunking_gives_the_same_commands(sent: list[Command], places: list[int]) -> None:
    data = b"".join([b"".join(encode(command)) for command in sent])
    assert read(cut(data, places)) == ([facts(command) for command in sent], None, 0)


@given(st.lists(commands(), max_size=3), st.binary(max_size=60), places_to_cut)
def test_any_chunking_refuses_the_same_garbage(
    sent: list[Command], garbage: bytes, places: list[int]
) -> None:
    data = b"".join([b"".join(encode(command)) for command in sent]) + garbage
    assert read(cut(data, places)) == read([data])


@given(
    st.integers(0, 5) | st.integers(0, 255),
    st.binary(max_size=80) | st.text('{}[]":,0123456789truenlcodeopaqextFids', max_size=80).map(str.encode),
    st.binary(max_size=10),
)
def test_any_header_is_read_ignored_or_refused(serialize: int, header: bytes, body: bytes) -> None:
    data = struct.pack(">iI", 4 + len(header) + len(body), serialize << 24 | len(header)) + header + body
    found, reason, ignored = read([data])
    if data[0] != 0x16:
        assert len(found) + (reason is not None) + ignored == 1


@given(st.lists(commands(), min_size=1, max_size=2), st.lists(st.tuples(st.integers(0), st.integers(0, 255))))
def test_damaged_frames_are_never_more_than_refused(
    sent: list[Command], damage: list[tuple[int, int]]
) -> None:
    data = bytearray(b"".join([b"".join(encode(command)) for command in sent]))
    for place, value in damage:
        data[place % len(data)] = value
    whole = bytes(data)
    assert read([whole]) == read([whole[at : at + 1] for at in range(len(whole))])
