"""The fast path of plain sends does what the general path does: same answers, same bytes stored, same counts.

Two brokers' send handlers get the same bytes in the same chunks, one of them without the fast path. Programs
are random from fixed seeds; clocks stand still and both draw the same random queues.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from short_and_general import RECORD_BYTES_MAX, Side, check_alike

from iotmq.broker.tables.topics import TopicConfig
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, encode

LETTERS = "abcdefghijklm"
LONG = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
    "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
)  # fmt: skip


class Program:
    """Random requests, most of them plain sends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.opaque = 0

    def chunk(self) -> bytes:
        return b"".join(self.request() for _ in range(self.random.choice([1, 2, 5, 20])))

    def request(self) -> bytes:
        choice = self.random.choice
        self.opaque += 1
        flag = 2 if self.random.random() < 0.1 else 0
        serialize = choice([Serialize.JSON, Serialize.BINARY])
        if self.random.random() < 0.05:
            return self.frame(choice([34, 9_999]), {}, b"", flag, serialize)
        code = choice([10, 310, 310, 320])
        is_batch = code == 320 or self.random.random() < 0.1
        values = [
            choice(["pg", "other"]),
            choice(["T", "T", "T", "U"]),
            "TBW102",
            "4",
            str(self.random.randrange(4)),
            choice(["0", "0", "1", "17", "0"]) if not is_batch else "0",
            str(self.random.randrange(1 << 40)),
            str(self.random.randrange(-5, 5)),
            choice(
                [
                    "",
                    "TAGS\x01A\x02",
                    "KEYS\x01k\x02WAIT\x01true",
                    "WAIT\x01false\x02",
                    "ü\x01€\x02",
                    "WAIT\x01true\x02TAGS\x01A",
                    "AWAIT\x01x\x02",
                ]
            ),
            choice(["0", "3"]),
            "false",
            "16",
            "true" if is_batch else "false",
        ]
        if self.random.random() < 0.3:
            self.spoil(values)
        ext = dict(zip(LONG if code == 10 else LETTERS, values, strict=True))
        if self.random.random() < 0.1:
            ext.pop(choice(list(ext)))
        return self.frame(code, ext, self.batch() if is_batch else self.body(), flag, serialize)

    def spoil(self, values: list[str]) -> None:
        """Ask for something that is not plain, or not allowed."""
        choice = self.random.choice
        place, value = choice([
            (1, choice(["new", "a b", "", "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "x" * 128, "R"])),
            (0, "x" * choice([255, 256])),
            (2, choice(["T", "none", "x" * 127, "x" * 128])),
            (4, choice(["-1", "4", "99", "", "1e3"])),
            (5, choice(["4", "8", "12", "1", "2147483648"])),
            (8, choice(["DELAY\x011\x02", "TRAN_MSG\x01true\x02", "TIMER\x01x", "\x02", "x" * 5_000])),
            (8, "k\x01" + "v" * 33_000),
            (9, choice(["", "-1", "x"])),
        ])  # fmt: skip
        values[place] = value

    def body(self) -> bytes:
        return self.random.randbytes(self.random.choice([0, 1, 100, 100, 2_000, RECORD_BYTES_MAX + 1]))

    def batch(self) -> bytes:
        choice = self.random.choice
        elements = encode_batch(
            [
                (
                    self.random.randbytes(self.random.randrange(50)),
                    choice([b"", b"a\x01b", b"a\x01DEL\x02"]),
                    7,
                )
                for _ in range(choice([1, 3, 30]))
            ]
        )
        if self.random.random() < 0.1:
            delivery_time = choice(
                [
                    b"DELAY\x012",
                    b"DELAY\x010",
                    b"a\x01b\x02TIMER_DELAY_MS\x015",
                    b"DELAY\x01x",
                    b"WAIT\x01false",
                ]
            )
            elements += encode_batch([(b"", delivery_time, 0)])
        kind = self.random.random()
        if kind < 0.1:
            return elements[:-1]
        if kind < 0.15:
            return b""
        return zlib.compress(elements) if kind < 0.2 else elements

    def frame(self, code: int, ext: dict[str, str], body: bytes, flag: int, serialize: int) -> bytes:
        return b"".join(encode(Command(code, self.opaque, flag, 0, 409, None, ext, body, serialize)))


def change_topics(source: random.Random, sides: Iterable[Side]) -> None:
    queues, perm = source.choice([1, 2, 4]), source.choice([6, 6, 2, 4])
    for side in sides:
        if queues == 1:
            side.topics.delete("U")
        side.topics.put(
            TopicConfig(topic_name="T", read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        )


@pytest.fixture
async def sides(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Side, Side]]:
    flush, peer = request.param
    pair = (
        Side(tmp_path / "short", is_short=True, flush=flush, peer=peer),
        Side(tmp_path / "general", is_short=False, flush=flush, peer=peer),
    )
    for side in pair:
        await side.start()
    yield pair
    for side in pair:
        await side.stop()


BOTH_PROMISES = pytest.mark.parametrize(
    "sides", [("async", "127.0.0.1"), ("sync", "127.0.0.1"), ("async", "::1")], indirect=True
)


@BOTH_PROMISES
@pytest.mark.parametrize("seed", range(6))
async def test_random_requests_end_alike(sides: tuple[Side, Side], seed: int) -> None:
    short, general = sides
    program = Program(seed)
    source = random.Random(seed)
    for number in range(25):
        data = program.chunk()
        # Cut anywhere, so that frames and runs end in the middle of chunks.
        place = source.randrange(len(data) + 1)
        for side in sides:
            side.play(data[:place], seed=number)
            side.play(data[place:], seed=number)
        if source.random() < 0.2:
            change_topics(source, sides)
        for side in sides:
            await side.settle()
            side.clock.advance(0.010)
    check_alike(short, general)
    assert short.taken >= 20


@BOTH_PROMISES
async def test_plain_sends_all_go_the_short_way(sides: tuple[Side, Side]) -> None:
    short, general = sides
    kinds = [(10, LONG, Serialize.JSON), (310, LETTERS, Serialize.JSON), (310, LETTERS, Serialize.BINARY)]
    frames = [
        plain(code, names, opaque=opaque, serialize=serialize)
        for opaque, (code, names, serialize) in enumerate(kinds * 10)
    ]
    for side in sides:
        side.play(b"".join(frames), seed=0)
        await side.settle()
    check_alike(short, general)
    assert short.taken == len(frames)
    assert len(short.answers()) == len(frames)


BORN, TAGS = "1700000000000", "TAGS\x01A\x02"
PLAIN = ["pg", "T", "TBW102", "4", "1", "0", BORN, "0", TAGS, "0", "false", "16", "false"]


def plain(
    code: int, names: Iterable[str], *, opaque: int = 1, flag: int = 0, serialize: int = Serialize.JSON
) -> bytes:
    ext = dict(zip(names, PLAIN, strict=True))
    return b"".join(encode(Command(code, opaque, flag, 0, 409, None, ext, b"hello", serialize)))


@pytest.mark.parametrize("sides", [("async", "127.0.0.1")], indirect=True)
async def test_what_was_answered_is_there_for_the_next_request_of_the_same_turn(
    sides: tuple[Side, Side],
) -> None:
    short, general = sides
    queue = {"topic": "T", "queueId": "1"}
    max_offset = Command(30, 2, 0, 0, 409, None, queue, b"", Serialize.JSON)
    pulled = {
        "consumerGroup": "g", **queue, "queueOffset": "1", "maxMsgNums": "32", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    pull = Command(11, 4, 0, 0, 409, None, pulled, b"", Serialize.JSON)
    for side in sides:
        side.play(plain(310, LETTERS, opaque=1), seed=0)
        side.play(b"".join(encode(max_offset)), seed=0)
        side.play(plain(310, LETTERS, opaque=3), seed=0)
        side.play(b"".join(encode(pull)), seed=0)
        answers = side.answers()
        assert b'"offset":"1"' in answers[2]
        assert b"hello" in answers[4]
        await side.settle()
    check_alike(short, general)
    assert (short.taken, short.pulls_taken) == (2, 1)


@BOTH_PROMISES
async def test_changed_settings_hold_for_the_next_send(sides: tuple[Side, Side]) -> None:
    short, general = sides
    for side in sides:
        side.play(plain(310, LETTERS, opaque=1), seed=0)
        settings = side.broker.parts.changed_settings
        settings.change({"broker.is_writable": "false"}, now_ms=0)
        side.play(plain(310, LETTERS, opaque=2), seed=0)
        settings.change({"broker.is_writable": "true", "broker.is_tracing_allowed": "false"}, now_ms=0)
        side.play(plain(310, LETTERS, opaque=3), seed=0)
        await side.settle()
    check_alike(short, general)
    assert short.taken == 2


@BOTH_PROMISES
async def test_a_full_disk_refuses_sends_alike_and_takes_them_again(sides: tuple[Side, Side]) -> None:
    short, general = sides
    frame = plain(310, LETTERS, flag=2)
    for side in sides:
        side.play(frame * 3, seed=0)
        side.writer.close("the disk is full")
        side.play(frame * 3, seed=0)
        side.writer.open()
        side.writer._refused_until_s = 0.0
        side.play(frame * 3, seed=0)
        await side.settle()
    check_alike(short, general)
    assert short.taken == 6


async def test_a_batch_whose_ids_fit_no_header_is_answered_alike(tmp_path: Path) -> None:
    elements = encode_batch([(b"", b"", 0)] * 33_000)
    ext = dict(zip(LETTERS, PLAIN, strict=True))
    data = b"".join(encode(Command(320, 1, 0, 0, 409, None, ext, elements, Serialize.JSON)))
    pair = []
    for name in ("short", "general"):
        side = Side(
            tmp_path / name,
            is_short=name == "short",
            flush="async",
            peer="127.0.0.1",
            record_bytes_max=1 << 20,
        )
        await side.start()
        side.play(data, seed=0)
        await side.settle()
        pair.append(side)
    check_alike(*pair)
    for side in pair:
        reader = FrameReader()
        reader.receive_data(bytes(side.transport.written))
        (answer,) = reader.commands_received()
        assert answer.code == 0
        # The first record's alone.
        assert len(answer.ext["msgId"]) == 32
        await side.stop()
