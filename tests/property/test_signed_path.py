"""The fast path of signed requests does what the general path does: same answers, records and refusals.

Two brokers with access control get the same bytes, one of them without the fast path. Programs are random
from fixed seeds: sends and pulls of several accounts, some changed after they were signed.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from short_and_general import Side, check_alike

from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import encode
from iotmq.remoting.frames.signed_frames import read_signed
from iotmq.remoting.signature import Credentials, sign

ACCOUNTS = """
globalWhiteRemoteAddresses: [10.9.8.*]
accounts:
  - {accessKey: producer, secretKey: abcdefgh, topicPerms: [T=PUB]}
  - {accessKey: consumer, secretKey: bcdefghi, topicPerms: [T=SUB, U=PUB|SUB], groupPerms: [g=SUB]}
  - {accessKey: devices, secretKey: cdefghij, topicPerms: [T=PUB, MQTT_TOPIC=PUB]}
  - {accessKey: forbidden, secretKey: defghijk, defaultTopicPerm: PUB|SUB, topicPerms: [T=DENY],
     groupPerms: [g=DENY]}
  - {accessKey: operator, secretKey: efghijkl, admin: true}
  - {accessKey: homebody, secretKey: fghijklm, whiteRemoteAddress: 127.0.0.*}
"""
KEYS = {
    "producer": "abcdefgh", "consumer": "bcdefghi", "devices": "cdefghij", "forbidden": "defghijk",
    "operator": "efghijkl", "homebody": "fghijklm",
}  # fmt: skip
SEND = {
    "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": "TAGS\x01A\x02", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
LONG = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes",
    "k": "unitMode", "m": "batch",
}  # fmt: skip
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "1", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip
FOR_DEVICES = "MQTT_TOPIC\x01a/b\x02"


def signed(
    code: int,
    ext: dict[str, str],
    body: bytes = b"",
    *,
    account: str = "producer",
    secret: str | None = None,
    opaque: int = 1,
    serialize: int = Serialize.JSON,
    version: int = 409,
    spoil: Callable[[Command], None] | None = None,
) -> bytes:
    """A frame; `spoil` changes the command after it was signed."""
    command = Command(code, opaque, 0, 0, version, None, dict(ext), body, serialize)
    sign(command, Credentials(account, KEYS.get(account, "unknown1") if secret is None else secret))
    if spoil is not None:
        spoil(command)
    return b"".join(encode(command))


class Program:
    """Random signed requests."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.opaque = 0

    def chunk(self) -> bytes:
        return b"".join(self.request() for _ in range(self.random.choice([1, 2, 5, 20])))

    def request(self) -> bytes:
        choice, roll = self.random.choice, self.random.random
        self.opaque += 1
        code, ext, body = self.pull() if roll() < 0.25 else self.send()
        frame = signed(
            code,
            ext,
            body,
            account=choice(
                [*KEYS, "producer", "producer", "consumer", "nobody1"] if code != 11 else [*KEYS, "consumer"]
            ),
            secret="wrong-one" if roll() < 0.05 else None,
            opaque=self.opaque,
            serialize=choice([Serialize.JSON, Serialize.BINARY]),
            version=choice([300, 409]),
            spoil=self.spoil if roll() < 0.2 else None,
        )
        if roll() < 0.1:
            # A second field of a name: the last counts.
            extra = choice([b'"b":"U"', b'"AccessKey":"operator"', b'"Signature":"x"', b'"i":"A\\u0001b"'])
            at = frame.find(b'"extFields":{')
            if at >= 0:
                header = frame[8 : 8 + int.from_bytes(frame[5:8], "big")]
                body = frame[8 + len(header) :]
                begin, end = header.split(b'"extFields":{', 1)
                cut = end.index(b"}")
                end = choice([extra + b"," + end, end[:cut] + b"," + extra + end[cut:]])
                header = begin + b'"extFields":{' + end
                frame = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
                frame += header + body
        return frame

    def send(self) -> tuple[int, dict[str, str], bytes]:
        choice, roll = self.random.choice, self.random.random
        ext, body = dict(SEND), self.random.randbytes(choice([0, 10, 300]))
        if roll() < 0.4:
            return 310, ext, body
        ext["b"] = choice(["T", "T", "T", "U", "new", "%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC"])
        ext["e"] = choice(["0", "0", "1", "9"])
        ext["i"] = choice(
            ["", "TAGS\x01A\x02", "ü\x01€😀\x02", 'q\x01"\\\n\x02', FOR_DEVICES, "x\x01MQTT_TOPIC\x02"]
        )
        ext["f"] = choice(["0", "0", "0", "1"])
        code = choice([310, 310, 10, 320])
        if code == 320 or roll() < 0.1:
            ext["m"], ext["f"] = "true", choice(["0", "1"])
            body = encode_batch([(b"a", b"k\x01v", 0), (b"b", choice([b"", FOR_DEVICES.encode()]), 0)])
            body = zlib.compress(body) if ext["f"] == "1" else body
        elif roll() < 0.1:
            ext["m"] = choice(["maybe", "True", "1", "0", "", "FALSE"])
        if roll() < 0.1:
            ext["_UNIQUE_KEY_QUERY"] = "true"
        return code, {LONG.get(name, name): value for name, value in ext.items()} if code == 10 else ext, body

    def pull(self) -> tuple[int, dict[str, str], bytes]:
        choice = self.random.choice
        topic, group = choice(["T", "T", "U", "%RETRY%g", "none"]), choice(["g", "g", "h"])
        return 11, {**PULL, "topic": topic, "consumerGroup": group}, b""

    def spoil(self, command: Command) -> None:
        choice = self.random.choice
        name = choice([*command.ext, "AccessKey", "Signature", "new"])
        if self.random.random() < 0.3:
            command.ext.pop(name, None)
        elif self.random.random() < 0.2:
            command.body = b"another"
        else:
            values = ["", "T", "U", "1", "operator", "x" * 300, "ä", command.ext.get("a", "z")]
            command.ext[name] = choice(values)


@pytest.fixture
async def sides(tmp_path: Path) -> AsyncIterator[tuple[Side, Side]]:
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    pair = (
        Side(tmp_path / "short", is_short=True, flush="async", peer="127.0.0.1", accounts=accounts),
        Side(tmp_path / "general", is_short=False, flush="async", peer="127.0.0.1", accounts=accounts),
    )
    for side in pair:
        await side.start()
    yield pair
    for side in pair:
        await side.stop()


@pytest.mark.parametrize("seed", range(12))
async def test_random_signed_requests_end_alike(sides: tuple[Side, Side], seed: int) -> None:
    short, general = sides
    program = Program(seed)
    for number in range(30):
        data = program.chunk()
        place = program.random.randrange(len(data) + 1)
        for side in sides:
            side.play(data[:place], seed=number)
            side.play(data[place:], seed=number)
        for side in sides:
            await side.settle()
            side.clock.advance(0.010)
    check_alike(short, general)
    assert short.taken >= 15
    assert short.pulls_taken >= 1
    assert sum(general.access.refused.values()) >= 15  # type: ignore[union-attr]


@pytest.mark.parametrize("serialize", [Serialize.JSON, Serialize.BINARY])
async def test_signed_sends_and_pulls_go_the_short_way(sides: tuple[Side, Side], serialize: int) -> None:
    short, general = sides
    long_ext = {LONG[name]: value for name, value in SEND.items()}
    batch = encode_batch([(b"a", b"", 0), (b"b", b"", 0)])
    data = b"".join(
        [
            signed(310, SEND, b"one", opaque=1, serialize=serialize),
            signed(10, long_ext, b"two", opaque=2, serialize=serialize),
            signed(320, {**SEND, "m": "true"}, batch, opaque=3, serialize=serialize),
            signed(310, SEND, b"home", opaque=4, account="homebody", secret="wrong", serialize=serialize),
        ]
    )
    for side in sides:
        side.play(data, seed=0)
        side.play(signed(11, PULL, account="consumer", opaque=5, serialize=serialize), seed=0)
        await side.settle()
    check_alike(short, general)
    assert (short.taken, short.pulls_taken) == (4, 1)
    assert not any(short.access.refused.values())  # type: ignore[union-attr]


async def test_sends_behind_a_refused_one_are_each_looked_at(sides: tuple[Side, Side]) -> None:
    short, general = sides
    forged = signed(310, SEND, b"forged", secret="wrong-one", opaque=2)
    data = signed(310, SEND, opaque=1) + forged + signed(310, SEND, opaque=3)
    for side in sides:
        side.play(data, seed=0)
        await side.settle()
    check_alike(short, general)
    assert short.taken == 2
    assert short.access.refused["signature"] == 1  # type: ignore[union-attr]
    assert b"forged" not in short.stored()


async def test_a_send_is_looked_at_once_by_the_short_way(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every other send has to wait for a time, so the general path takes it and the run goes on behind it.
    short, _ = sides
    asked: list[int] = []
    allowed = short.access.is_allowed  # type: ignore[union-attr]

    def is_allowed(data: bytes, at: int, address: str) -> bool:
        asked.append(at)
        return allowed(data, at, address)

    monkeypatch.setattr(short.access, "is_allowed", is_allowed)
    sends = [{**SEND, "i": "DELAY\x011\x02" if number % 2 else ""} for number in range(20)]
    short.play(b"".join(signed(310, ext, opaque=number) for number, ext in enumerate(sends)), seed=0)
    await short.settle()
    assert len(asked) == len(set(asked)) == 20
    assert short.taken == 10


def test_what_was_signed_is_read_as_it_is_meant() -> None:
    frame = signed(310, {**SEND, "i": 'ü\x01"\\\n😀\x02'}, b"body")
    request = read_signed(frame, 0)
    assert request is not None
    assert (request.access_key, request.topic, request.group) == ("producer", "T", None)
    assert request.content == (
        "producer" "pg" "T" "TBW102" "4" "1" "0" "1700000000000" "0"
        'ü\x01"\\\n😀\x02' "0" "false" "false" "body"
    ).encode()  # fmt: skip


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (34, {}),
        (310, {"b": ""}),
        (310, {"b": "x" * 128}),
        (310, {"m": "maybe"}),
        (310, {"m": "true", "f": "1"}),
        (320, {"f": "1"}),
        (11, {"topic": "T"}),
    ],
)
def test_what_is_unusual_is_left_to_the_general_way(code: int, change: dict[str, str]) -> None:
    assert read_signed(signed(code, {**SEND, **change}), 0) is None


def test_a_frame_with_as_many_fields_as_are_read_and_one_more() -> None:
    most = {**SEND, **{f"x{number}": "" for number in range(64 - len(SEND) - 2)}}
    assert read_signed(signed(310, most), 0) is not None
    assert read_signed(signed(310, {**most, "one": ""}), 0) is None
    with pytest.raises(ValueError, match="before the first"):
        read_signed(b"", -1)
