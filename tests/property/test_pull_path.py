"""The fast path of plain pulls does what the general path does: same answers, same offsets kept, same counts.

Two brokers get the same bytes, one of them without the fast paths; programs are random from fixed seeds.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from short_and_general import Side, check_alike

from iotmq.broker.handlers.native.pull import _maxima, _read_header
from iotmq.broker.tables.topics import TopicConfig
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode, Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, encode
from iotmq.remoting.frames.pull_frames import PullFrame, read_pull

TAGS = ("A", "B")
PLAIN = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
}


class Program:
    """Random pulls among sends, heartbeats and changes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.opaque = 0
        self.version = 0

    def request(self) -> bytes:
        roll = self.random.random()
        if roll < 0.15:
            return self.send()
        if roll < 0.25:
            return self.heartbeat()
        return self.pull()

    def send(self) -> bytes:
        elements = encode_batch(
            [
                (self.random.randbytes(self.random.choice([10, 500])), self.random.choice(PROPERTIES), 0)
                for _ in range(self.random.choice([1, 5, 7]))
            ]
        )
        values = ["p", "T", "TBW102", "4", str(self.random.randrange(2)), "0", "1700000000000", "0"]
        ext = {**dict(zip("abcdefgh", values, strict=True)), "m": "true"}
        return self.frame(RequestCode.SEND_BATCH_MESSAGE, ext, elements)

    def heartbeat(self) -> bytes:
        choice = self.random.choice
        self.version += choice([0, 1])
        subscription = {
            "topic": "T",
            "subString": choice(["*", "A", "A || B"]),
            "subVersion": self.version,
            "expressionType": choice(["TAG", "TAG", "SQL92"]),
        }
        group = {
            "groupName": choice(["g", "h"]),
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": choice(["CLUSTERING", "CLUSTERING", "BROADCASTING"]),
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [subscription],
        }
        return self.frame(34, {}, json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode())

    def pull(self) -> bytes:
        choice = self.random.choice
        ext = {
            **PLAIN,
            "consumerGroup": choice(["g", "g", "h"]),
            "queueId": choice(["0", "0", "1"]),
            "queueOffset": str(self.random.randrange(self.random.choice([1, 5, 40]))),
            "maxMsgNums": choice(["1", "8", "32", "1024"]),
            "sysFlag": choice(["4", "5", "0", "1", "6", "7", "2", "3"]),
            "suspendTimeoutMillis": choice(["0", "30", "60000"]),
            "commitOffset": choice(["0", "7", "-1", "9999"]),
            "subscription": choice(["*", "A", "A || B", ""]),
            "subVersion": str(choice([0, self.version])),
        }
        if self.random.random() < 0.2:
            ext["maxMsgBytes"] = choice(["1", "500", "100000", "0", "x"])
        if self.random.random() < 0.1:
            # Readers with offsets of their own.
            ext[choice(["tellGaps", "generation"])] = choice(["true", "", "1-0"])
        if self.random.random() < 0.2:
            ext[choice(list(ext))] = choice(["", "-1", "T", "none", "99999999999", "SQL92", "ü", "1e3"])
        if self.random.random() < 0.1:
            ext.pop(choice(list(ext)))
        return self.frame(RequestCode.PULL_MESSAGE, ext, flag=2 if self.random.random() < 0.05 else 0)

    def frame(self, code: int, ext: dict[str, str], body: bytes = b"", flag: int = 0) -> bytes:
        self.opaque += 1
        serialize = self.random.choice([Serialize.JSON, Serialize.BINARY])
        return b"".join(encode(Command(code, self.opaque, flag, 0, 409, None, ext, body, serialize)))


PROPERTIES = [b"", b"TAGS\x01A\x02", b"TAGS\x01B\x02", b"TAGS\x01C\x02"]


def change(source: random.Random, sides: Iterable[Side]) -> None:
    roll = source.random()
    perm = source.choice([6, 6, 6, 2])
    for side in sides:
        if roll < 0.4:
            side.topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2, perm=perm))
        elif roll < 0.7:
            groups = side.broker.subscription_groups
            config = groups.find_or_create("g")
            assert config is not None
            groups.put(msgspec.structs.replace(config, consume_enable=perm == 6))
        else:
            side.broker.parts.changed_settings.change({"brokerPermission": str(perm)}, 0)


def kept_offsets(side: Side) -> dict[str, dict[int, int]]:
    return {group: dict(side.broker.offsets.of_topic(group, "T")) for group in ("g", "h")}


def statistics_of(side: Side) -> dict[Any, Any]:
    """Without the time that pulls took."""
    counters = side.broker.statistics.counters
    return {
        key: (counts[0], counts[1][:3])
        for table in (counters.group_gets, counters.queue_gets)
        for key in table.all_keys()
        if (counts := table.totals(key)) is not None
    }


@pytest.fixture
async def sides(tmp_path: Path) -> AsyncIterator[tuple[Side, Side]]:
    pair = (
        Side(tmp_path / "short", is_short=True, flush="async", peer="127.0.0.1"),
        Side(tmp_path / "general", is_short=False, flush="async", peer="127.0.0.1"),
    )
    for side in pair:
        await side.start()
        side.topics.ensure("T", queues=2)
    yield pair
    for side in pair:
        await side.stop()


@pytest.mark.parametrize("seed", range(8))
async def test_random_pulls_end_alike(sides: tuple[Side, Side], seed: int) -> None:
    short, general = sides
    program = Program(seed)
    source = random.Random(seed)
    for number in range(60):
        data = b"".join(program.request() for _ in range(source.choice([1, 3, 10])))
        place = source.randrange(len(data) + 1)
        for side in sides:
            side.play(data[:place], seed=number)
            side.play(data[place:], seed=number)
        if source.random() < 0.2:
            change(source, sides)
        for side in sides:
            # Parked pulls wake, and some of those that find nothing are over.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            side.clock.advance(0.010)
            side.broker.expire()
    for side in sides:
        side.clock.advance(60)
        side.broker.expire()
        await asyncio.sleep(0)
    check_alike(short, general)
    assert kept_offsets(short) == kept_offsets(general)
    assert statistics_of(short) == statistics_of(general)
    assert short.pulls_taken >= 3


@pytest.mark.parametrize("records_max", ["32", "1024"])
async def test_plain_pulls_go_the_short_way(sides: tuple[Side, Side], records_max: str) -> None:
    short, general = sides
    elements = encode_batch([(bytes(1_000), b"TAGS\x01A\x02", 0)] * 3)
    values = ["p", "T", "TBW102", "4", "0", "0", "1", "0"]
    send = Command(320, 0, 2, 0, 409, None, dict(zip("abcdefgh", values, strict=True)), elements, 0)
    ext = {**PLAIN, "maxMsgNums": records_max, "maxMsgBytes": "4000000"}
    program = Program(1)
    pulls = b"".join(program.frame(RequestCode.PULL_MESSAGE, ext) for _ in range(4))
    for side in sides:
        side.play(b"".join(encode(send)) * 10 + pulls, seed=0)
        await side.settle()
    check_alike(short, general)
    assert short.pulls_taken == 4


def test_a_pull_that_is_read_means_what_the_general_decoder_says() -> None:
    program = Program(7)
    read = 0
    for _ in range(1_000):
        data = program.pull()
        frame = read_pull(data, 0)
        if frame is None:
            continue
        read += 1
        assert isinstance(frame, PullFrame)
        reader = FrameReader()
        reader.receive_data(data)
        (command,) = reader.commands_received()
        header = _read_header(command)
        facts = frame.facts()
        assert (facts["opaque"], facts["flag"]) == (command.opaque, command.flag)
        assert facts["is_binary"] == (command.serialize == Serialize.BINARY)
        assert (
            facts["group"], facts["topic"], facts["queue_id"], facts["offset"], facts["records_max"],
            facts["sys_flag"], facts["commit_offset"], facts["suspend_ms"], facts["subscription_version"],
        ) == tuple(header)  # fmt: skip
        assert facts["subscription"] == command.ext.get("subscription")
        assert facts["expression_type"] == command.ext.get("expressionType")
        assert _maxima(command, header)[1] == min(int(str(facts["bytes_max"])) or 256 * 1024, 4 << 20)
    assert read > 600


async def test_a_parked_plain_pull_is_woken_the_short_way(sides: tuple[Side, Side]) -> None:
    short, general = sides
    ext = {**PLAIN, "sysFlag": "7", "suspendTimeoutMillis": "15000", "commitOffset": "0"}
    program = Program(3)
    pulls = b"".join(
        program.frame(RequestCode.PULL_MESSAGE, {**ext, "subscription": tag}) for tag in ("*", "A", "B")
    )
    values = ["p", "T", "TBW102", "4", "0", "0", "1", "0", "TAGS\x01A\x02"]
    send = Command(310, 99, 0, 0, 409, None, dict(zip("abcdefghi", values, strict=True)), b"hello", 0)
    for side in sides:
        # The queue has to be there for a pull to be plain.
        side.play(b"".join(encode(send)), seed=0)
        await side.settle()
        side.play(pulls.replace(b'"queueOffset":"0"', b'"queueOffset":"1"'), seed=0)
        side.transport.written.clear()
        side.play(b"".join(encode(send)), seed=0)
        await side.settle()
    check_alike(short, general)
    # The one for B waits on.
    assert len(short.answers()) in (2, 3)
    assert len(short.broker.native.parked_pulls) == len(general.broker.native.parked_pulls)
