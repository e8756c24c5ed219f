"""Messages between members: every one comes back as it was, and nothing else is taken."""

from __future__ import annotations

import msgspec
import pytest

from iotmq import limits
from iotmq.errors import RequestError
from iotmq.member.wire import (
    Introduction,
    decode,
    decode_begin_copy,
    decode_open,
    encode,
    encode_open,
)
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader
from iotmq.remoting.frames.frame import encode as frame
from iotmq.replication.cluster_state import Identity
from iotmq.replication.epochs import EpochStart
from iotmq.replication.messages import (
    Ack,
    CopyNeeded,
    Data,
    FollowFrom,
    HandedOver,
    Message,
    Open,
    Released,
)
from iotmq.store.settings import StoreSettings

INTRODUCTION = Introduction(cluster="factory", broker="a", segment_bytes=4096)


def over_the_wire(command: Command) -> Command:
    reader = FrameReader()
    reader.receive_data(b"".join(bytes(part) for part in frame(command)))
    (found,) = reader.items_received()
    assert isinstance(found, Command)
    return found


def opening(**changes: object) -> Command:
    fields: dict[str, object] = {
        "introduction": INTRODUCTION,
        "identity": (2, "abc"),
        "promised_epoch": 3,
        "oldest": 0,
        "end": 100,
        "confirmed": 50,
        "epochs": [(1, 0), (3, 60)],
        **changes,
    }
    return Command.request(RequestCode.MEMBER_MESSAGE, {"kind": "open"}, msgspec.json.encode(fields))


@pytest.mark.parametrize(
    "message",
    [
        Data(7, 100, 100, 90),
        Data(7, 100, 100, 90, oldest=40),
        Ack(7, 2**62 - 1, 5),
        FollowFrom(7, 0, True),
        FollowFrom(7, 12, False),
        CopyNeeded(1),
        Released(9),
        HandedOver(10),
    ],
)
def test_a_message_comes_back(message: Message) -> None:
    found = decode(over_the_wire(encode(message)))
    assert type(found) is type(message)
    assert found[:4] == message[:4]


def test_the_bytes_of_the_log_come_back() -> None:
    found = decode(over_the_wire(encode(Data(7, 100, 105, 90), memoryview(b"bytes"))))
    assert isinstance(found, Data)
    assert bytes(found.content) == b"bytes"  # type: ignore[call-overload]


def test_the_largest_record_that_the_settings_allow_fits_a_message() -> None:
    """Or a master could never send it to anybody, and would begin anew each time it tries."""
    size = limits.FRAMED_RECORD_BYTES_MAX
    settings = msgspec.convert({"record_bytes_max": size}, StoreSettings)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"record_bytes_max": size + 1}, StoreSettings)
    end = 2**62 - 1
    message = Data(2**62 - 1, end - size, end, end, oldest=end)
    found = decode(over_the_wire(encode(message, memoryview(bytes(settings.record_bytes_max)))))
    assert found[:4] == message[:4]


def test_an_open_comes_back() -> None:
    message = Open(Identity(2, "abc"), 3, 0, 100, 50, (EpochStart(1, 0), EpochStart(3, 60)))
    assert decode_open(over_the_wire(encode_open(message, INTRODUCTION))) == (INTRODUCTION, message)


def test_of_too_many_epochs_the_newest_are_told() -> None:
    epochs = tuple(EpochStart(number, number) for number in range(limits.REPLICATION_EPOCHS_MAX + 1))
    message = Open(Identity(2, "abc"), 3, 0, 2_000, 50, epochs)
    _, found = decode_open(encode_open(message, INTRODUCTION))
    assert found.epochs == epochs[1:]


@pytest.mark.parametrize(
    "changes",
    [
        {"identity": (0, "abc")},
        {"identity": (limits.REPLICATION_MEMBER_MAX + 1, "abc")},
        {"identity": (2, "x" * (limits.REPLICATION_INCARNATION_CHARACTERS_MAX + 1))},
        {"oldest": 101},
        {"oldest": -1},
        {"end": 2**62},
        {"promised_epoch": -1},
        {"epochs": [(3, 0), (1, 60)]},
        {"epochs": [(1, 60), (3, 0)]},
        {"epochs": [(1, 0), (2, 0)]},
        {"epochs": [(1, 101)]},
        {"epochs": [(1, -1)]},
        {"epochs": [(n, n) for n in range(limits.REPLICATION_EPOCHS_MAX + 1)], "end": 2_000},
        {"epochs": 1},
        {"introduction": {}},
        {"introduction": {"cluster": "c" * (limits.TOPIC_BYTES_MAX + 1), "broker": "b", "segment_bytes": 1}},
        {"introduction": {"cluster": "c", "broker": "b" * (limits.TOPIC_BYTES_MAX + 1), "segment_bytes": 1}},
    ],
)
def test_an_open_whose_numbers_cannot_be_is_refused(changes: dict[str, object]) -> None:
    decode_open(opening())
    decode_open(opening(identity=(2, "x" * limits.REPLICATION_INCARNATION_CHARACTERS_MAX)))
    name = "n" * limits.TOPIC_BYTES_MAX
    decode_open(opening(introduction={"cluster": name, "broker": name, "segment_bytes": 1}))
    with pytest.raises(RequestError, match="invalid open message"):
        decode_open(opening(**changes))


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"kind": "data", "epoch": "1", "position": "5", "end": "9", "confirmed": "0"}, b"123"),
        ({"kind": "data", "epoch": "1", "position": "9", "end": "5", "confirmed": "0"}, b""),
        ({"kind": "data", "epoch": "1", "position": "5"}, b""),
        ({"kind": "ack", "epoch": "-1", "received": "0", "flushed": "0"}, b""),
        ({"kind": "ack", "epoch": "1", "received": str(2**62), "flushed": "0"}, b""),
        ({"kind": "ack", "epoch": "x", "received": "0", "flushed": "0"}, b""),
        ({"kind": "anything", "epoch": "1"}, b""),
        ({"epoch": "1"}, b""),
    ],
)
def test_a_message_that_cannot_be_is_refused(fields: dict[str, str], body: bytes) -> None:
    with pytest.raises(RequestError):
        decode(Command.request(RequestCode.MEMBER_MESSAGE, fields, body))


@pytest.mark.parametrize(
    "body", [b'{"introduction": {"cluster": "\xff"}}', b'{"x": ' + b"[" * 100_000], ids=["no text", "deep"]
)
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    request = Command.request(RequestCode.MEMBER_MESSAGE, {"kind": "open"}, body)
    for decode_body in (decode_open, decode_begin_copy):
        with pytest.raises(RequestError):
            decode_body(request)
