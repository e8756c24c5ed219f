"""Encode what became of messages as RocketMQ's clients do, whose tools read it from the trace topic.

A trace message has any number of entries; its keys are the ids and keys of their messages. Fields of an entry
are separated by 0x01, and it ends with 0x02.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final

import msgspec

from iotmq.addresses import address_text
from iotmq.client.transport.interceptors import Consuming, Sending
from iotmq.client.transport.message import Message, SendResult, SendStatus, StoredMessage
from iotmq.message.errors import MessageFormatError
from iotmq.message.message_ids import parse_offset_message_id
from iotmq.message.properties import TRANSACTION_PREPARED

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
_REGION: Final = "DefaultRegion"
_FIELD_END: Final = "\x01"
_ENTRY_END: Final = "\x02"

_NORMAL: Final = 0
_HALF: Final = 1
_DELAYED: Final = 3

_CONSUMED: Final = 0
_TIMED_OUT: Final = 1
_RAISED: Final = 2
_FAILED: Final = 4

# A message has room for 32,767 bytes of properties.
_KEYS_BYTES_MAX: Final = 16_000
_BODY_BYTES_MAX: Final = 128_000


class Entry(msgspec.Struct, frozen=True):
    """One entry, encoded, and the keys that it is found by."""

    data: bytes
    keys: tuple[str, ...]
    keys_size: int
    """Bytes of the keys, with a separator each."""

    @property
    def size(self) -> int:
        """Return the bytes that it takes."""
        return len(self.data) + self.keys_size


def sent_entries(sending: Sending, *, cost_ms: int, now_ms: int) -> Iterator[Entry]:
    """Encode the messages of a send whose ids are known."""
    places = chain.from_iterable(map(_places, sending.results)) if sending.results else repeat(("", True))
    for message, message_id, (offset_id, is_success) in zip(
        sending.messages, sending.message_ids, places, strict=False
    ):
        keys = (message.key, *message.keys) if message.key else tuple(message.keys)
        fields = (
            "Pub",
            now_ms - cost_ms,
            _REGION,
            sending.group,
            message.topic,
            message_id,
            message.tags,
            " ".join(keys),
            _address(offset_id),
            len(message.body),
            cost_ms,
            _kind(message),
            offset_id,
            _word(is_success),
        )
        yield _entry(fields, message_id, keys)


def call_id() -> str:
    """Return an id for a call of a listener, which joins what is said before and after it."""
    return uuid.uuid4().hex.upper()


def taken_entries(consuming: Consuming, call: str, *, now_ms: int) -> Iterator[Entry]:
    """Encode the messages of a listener's call before it."""
    for message in consuming.messages:
        keys = message.keys
        fields = (
            "SubBefore",
            now_ms,
            _REGION,
            consuming.group,
            call,
            message.message_id,
            message.redeliveries,
            # The last field must not be empty: RocketMQ's reader would miss it.
            " ".join(keys) or "null",
        )
        yield _entry(fields, message.message_id, keys)


def consumed_entries(consuming: Consuming, call: str, *, cost_ms: int, now_ms: int) -> Iterator[Entry]:
    """Encode the messages of a listener's call after it."""
    failed = set(consuming.failed)
    # As RocketMQ does, of the average message.
    each_ms = cost_ms // max(1, len(consuming.messages))
    for message in consuming.messages:
        has_failed = message in failed
        keys = message.keys
        fields = (
            "SubAfter",
            call,
            message.message_id,
            each_ms,
            _word(not has_failed),
            " ".join(keys),
            _code(consuming.error) if has_failed else _CONSUMED,
            now_ms,
            consuming.group,
        )
        yield _entry(fields, message.message_id, keys)


def trace_messages(entries: Iterable[Entry], topic: str) -> Iterator[tuple[Message, int]]:
    """Pack entries into messages; yields how many each has, too."""
    packed: list[Entry] = []
    keys_size = size = 0
    for entry in entries:
        if packed and (
            keys_size + entry.keys_size > _KEYS_BYTES_MAX or size + len(entry.data) > _BODY_BYTES_MAX
        ):
            yield _packed(packed, topic), len(packed)
            packed, keys_size, size = [], 0, 0
        packed.append(entry)
        keys_size += entry.keys_size
        size += len(entry.data)
    if packed:
        yield _packed(packed, topic), len(packed)


def _packed(entries: Sequence[Entry], topic: str) -> Message:
    keys = dict.fromkeys(chain.from_iterable(entry.keys for entry in entries))
    return Message(topic, b"".join([entry.data for entry in entries]), keys=tuple(keys))


def _entry(fields: tuple[object, ...], message_id: str, keys: Sequence[str]) -> Entry:
    data = (_FIELD_END.join(map(str, fields)) + _ENTRY_END).encode("utf-8", "replace")
    found_by = (message_id, *keys)
    size = sum(len(key.encode("utf-8", "replace")) + 1 for key in found_by)
    if size > _KEYS_BYTES_MAX:
        found_by, size = (message_id,), len(message_id) + 1
    return Entry(data, found_by, size)


def _places(result: SendResult) -> Iterator[tuple[str, bool]]:
    """Yield the offset message id of each message of a request, and whether all is well with it."""
    ids = result.offset_message_ids
    is_success = result.status is SendStatus.SEND_OK
    for number in range(result.count):
        yield ids[number] if number < len(ids) else "", is_success


def _address(offset_id: str) -> str:
    try:
        return address_text(*parse_offset_message_id(offset_id)[:2])
    except MessageFormatError:
        return ""


def _kind(message: Message) -> int:
    if TRANSACTION_PREPARED in (message.properties or ()):
        return _HALF
    return _DELAYED if message.is_delayed else _NORMAL


def _code(error: BaseException | None) -> int:
    if error is None:
        return _FAILED
    return _TIMED_OUT if isinstance(error, TimeoutError | asyncio.CancelledError) else _RAISED


def _word(value: bool) -> str:
    return "true" if value else "false"


def is_of_topic(messages: Sequence[Message] | Sequence[StoredMessage], topic: str) -> bool:
    """Return whether a call is about messages of a topic."""
    return bool(messages) and messages[0].topic == topic
