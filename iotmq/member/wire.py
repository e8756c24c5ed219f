"""Messages between members as commands of the native protocol (requests 30090 to 30095).

Every message is a oneway request MEMBER_MESSAGE. The field `kind` names it, its numbers are fields, the bytes
of the log are the body; the body of `open` is JSON, because it has a list. A follower sends on the connection
it has made to its master, and the master answers on the same. Besides the messages of the state machine there
are `table`, whose body is a piece of one of the master's tables, `tables`, with the number of pieces that a
follower with whole tables has taken on this connection, and `refused`, whose field `text` says why a
member is not taken as a follower.
"""

from __future__ import annotations

from typing import Final

import msgspec

from iotmq import limits
from iotmq.errors import RequestError
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Body, Command
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

FORMAT: Final = 1


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """State what must be the same for two logs to be copies of each other."""

    format: int = FORMAT
    cluster: str
    broker: str
    segment_bytes: int


class _Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `open`."""

    introduction: Introduction
    identity: Identity
    promised_epoch: int
    oldest: int
    end: int
    confirmed: int
    epochs: tuple[EpochStart, ...]


class _CopyWanted(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the request that begins a copy."""

    introduction: Introduction
    identity: Identity


_COPY_WANTED_DECODER: Final = msgspec.json.Decoder(_CopyWanted)
_DECODER: Final = msgspec.json.Decoder(_Opening)


def encode_open(message: Open, introduction: Introduction) -> Command:
    """Encode the first message of a follower."""
    body = msgspec.json.encode(
        _Opening(
            introduction=introduction,
            identity=message.identity,
            promised_epoch=message.promised_epoch,
            oldest=message.oldest,
            end=message.end,
            confirmed=message.confirmed,
            epochs=tuple(message.epochs)[-limits.REPLICATION_EPOCHS_MAX :],
        )
    )
    return Command.request(RequestCode.MEMBER_MESSAGE, {"kind": "open"}, body)


def decode_open(request: Command) -> tuple[Introduction, Open]:
    """Decode the first message of a follower. RequestError when it cannot be one."""
    try:
        opening = _DECODER.decode(request.body_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"invalid open message: {error}") from None
    introduction, identity, epochs = opening.introduction, opening.identity, opening.epochs
    positions = [start.position for start in epochs]
    if (
        not 1 <= identity.member <= limits.REPLICATION_MEMBER_MAX
        or len(identity.incarnation) > limits.REPLICATION_INCARNATION_CHARACTERS_MAX
        or max(len(introduction.cluster), len(introduction.broker)) > limits.TOPIC_BYTES_MAX
        or not 0 <= opening.oldest <= opening.end < 2**62
        or not 0 <= opening.promised_epoch < 2**62
        or len(epochs) > limits.REPLICATION_EPOCHS_MAX
        or [start.epoch for start in epochs] != sorted({start.epoch for start in epochs})
        or positions != sorted(set(positions))
        or (positions and not 0 <= positions[0] <= positions[-1] <= opening.end)
    ):
        raise RequestError(ResponseCode.SYSTEM_ERROR, "invalid open message: its numbers cannot be")
    return introduction, Open(
        identity, opening.promised_epoch, opening.oldest, opening.end, opening.confirmed, epochs
    )


def encode_table(piece: bytes) -> Command:
    """Encode a piece of a table."""
    return Command.request(RequestCode.MEMBER_MESSAGE, {"kind": "table"}, piece)


def encode_tables_taken(count: int) -> Command:
    """Encode how many pieces of tables a follower has taken on this connection; its tables are whole."""
    return Command.request(RequestCode.MEMBER_MESSAGE, {"kind": "tables", "count": str(count)})


def decode_tables_taken(request: Command) -> int:
    """Decode a number of pieces. RequestError when it cannot be one."""
    return _number(request, "count")


def encode_refusal(text: str) -> Command:
    """Encode why a member is not taken as a follower."""
    return Command.request(RequestCode.MEMBER_MESSAGE, {"kind": "refused", "text": text})


def encode_begin_copy(identity: Identity, introduction: Introduction) -> Command:
    """Encode the request of a member that begins a copy."""
    body = msgspec.json.encode(_CopyWanted(introduction=introduction, identity=identity))
    return Command.request(RequestCode.BEGIN_COPY, None, body)


def decode_begin_copy(request: Command) -> tuple[Introduction, Identity]:
    """Decode the request that begins a copy. RequestError when it cannot be one."""
    try:
        wanted = _COPY_WANTED_DECODER.decode(request.body_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"invalid request for a copy: {error}") from None
    return wanted.introduction, wanted.identity


def encode(message: Message, content: Body = b"") -> Command:
    """Encode any other message; `content` are the bytes of the log of a Data."""
    if isinstance(message, Data):
        fields = {
            "kind": "data",
            "epoch": str(message.epoch),
            "position": str(message.position),
            "end": str(message.end),
            "confirmed": str(message.confirmed),
            "oldest": str(message.oldest),
        }
    elif isinstance(message, Ack):
        fields = {
            "kind": "ack",
            "epoch": str(message.epoch),
            "received": str(message.received),
            "flushed": str(message.flushed),
        }
    elif isinstance(message, FollowFrom):
        fields = {
            "kind": "follow",
            "epoch": str(message.epoch),
            "position": str(message.position),
            "forced": "true" if message.is_forced else "false",
        }
    elif isinstance(message, CopyNeeded):
        fields = {"kind": "copy", "epoch": str(message.epoch)}
    elif isinstance(message, Released):
        fields = {"kind": "released", "epoch": str(message.epoch)}
    else:
        assert isinstance(message, HandedOver)
        fields = {"kind": "handed over", "epoch": str(message.epoch)}
    return Command.request(RequestCode.MEMBER_MESSAGE, fields, content)


def decode(request: Command) -> Message:
    """Decode a message that is no Open. RequestError when it cannot be one."""
    kind = request.text("kind")
    number = _number(request, "epoch")
    if kind == "data":
        position, end = _number(request, "position"), _number(request, "end")
        body = request.body
        content = body if isinstance(body, memoryview | bytes) else b"".join(body)
        if end - position != len(content):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"invalid data message: {len(content)} bytes from {position} to {end}",
            )
        oldest = request.integer("oldest", 0, minimum=0, maximum=2**62 - 1)
        return Data(number, position, end, _number(request, "confirmed"), content, oldest)
    if kind == "ack":
        return Ack(number, _number(request, "received"), _number(request, "flushed"))
    if kind == "follow":
        return FollowFrom(number, _number(request, "position"), request.boolean("forced"))
    if kind == "copy":
        return CopyNeeded(number)
    if kind == "released":
        return Released(number)
    if kind == "handed over":
        return HandedOver(number)
    raise RequestError(ResponseCode.SYSTEM_ERROR, f"unknown kind of message between members: {kind[:40]!r}")


def _number(request: Command, name: str) -> int:
    return request.integer(name, minimum=0, maximum=2**62 - 1)
