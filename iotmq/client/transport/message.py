"""Messages to send, the results of sends, and received messages."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import ClientError, MessageRefusedError
from iotmq.limits import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from iotmq.message.bodies import inflate_body
from iotmq.message.hosts import decode_host
from iotmq.message.message_ids import offset_message_id
from iotmq.message.properties import (
    DELAY,
    KEYS,
    RETRY_TOPIC,
    TAGS,
    TIME_TO_LIVE_MS,
    TIMER_DELAY_MS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    WAIT,
    decode_properties,
    encode_properties,
)
from iotmq.message.records.record import Record, property_value

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"

_LEGAL_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_OWN_PREFIXES: Final = ("rmq_sys_", "iotmq_sys_")


class _Content(msgspec.Struct, eq=False):
    """The fields of a message that need no name."""

    topic: str
    """The topic to send it to."""
    body: bytes
    """The bytes to send."""


class Message(_Content, eq=False, kw_only=True):
    """A message to send. `key` decides the queue (same key, same queue, so order per key)."""

    key: str = ""
    """Also stored as the first of the KEYS, so that the message can be looked up by it."""
    tags: str = ""
    """One word that consumers may filter by."""
    keys: Iterable[str] = ()
    """More words to look the message up by; they do not decide the queue."""
    properties: Mapping[str, str] | None = None
    """The application's own names and values."""
    delay_level: int = 0
    """0 delivers at once, 1 to 18 after 1 s to 2 h. At most one of this and the next two is given."""
    delay_ms: int = 0
    """Delivers so many milliseconds after the broker has stored it; there is no maximum."""
    deliver_at_ms: int = 0
    """Delivers at a time, milliseconds since 1970 by the broker's clock; a past one delivers at once."""
    ttl_ms: int = 0
    """Milliseconds, from its storing on, after which consumers and devices do not get it; 0 for never.
    Brokers of iotmq know it."""
    flag: int = 0
    """A number of the application's, stored as it is."""
    wait_stored: bool = True
    """False answers before the broker's flush and replication promise is kept."""

    @property
    def is_delayed(self) -> bool:
        """Return whether the message waits at the broker before its delivery."""
        return bool(self.delay_level or self.delay_ms or self.deliver_at_ms)

    @property
    def is_timed(self) -> bool:
        """Return whether it waits for a time of its own, not for a delay level."""
        return bool(self.delay_ms or self.deliver_at_ms)

    def encoded_properties(self, unique_key: str) -> bytes:
        """Encode all properties as they are stored; MessageRefusedError for a property that cannot be
        stored."""
        pairs = dict(self.properties) if self.properties else {}
        if isinstance(self.keys, str):
            raise MessageRefusedError(f"keys is a list of words, such as [{self.keys!r}], and not one text")
        keys = " ".join((self.key, *self.keys) if self.key else self.keys)
        if keys:
            pairs[KEYS] = keys
        if self.tags:
            pairs[TAGS] = self.tags
        if unique_key:
            pairs[UNIQ_KEY] = unique_key
        if self.is_delayed:
            self._check_delay()
            if self.delay_level:
                pairs[DELAY] = str(self.delay_level)
            elif self.delay_ms:
                pairs[TIMER_DELAY_MS] = str(self.delay_ms)
            else:
                pairs[TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.ttl_ms:
            if self.ttl_ms < 0:
                raise MessageRefusedError(f"a time to live of {self.ttl_ms} ms: it must be positive")
            pairs[TIME_TO_LIVE_MS] = str(self.ttl_ms)
        if not self.wait_stored:
            pairs[WAIT] = "false"
        try:
            encoded = encode_properties(pairs)
        except ValueError as error:
            raise MessageRefusedError(f"a property cannot be stored: {error}") from error
        if len(encoded) > PROPERTIES_BYTES_MAX:
            raise MessageRefusedError(
                f"properties, keys and tags take {len(encoded)} bytes, a record has room for "
                f"{PROPERTIES_BYTES_MAX}: put large values in the body"
            )
        return encoded

    def _check_delay(self) -> None:
        given = [value for value in (self.delay_level, self.delay_ms, self.deliver_at_ms) if value]
        if len(given) > 1:
            raise MessageRefusedError("give one of delay_level, delay_ms and deliver_at_ms, not several")
        if given[0] < 0:
            raise MessageRefusedError(f"a delay or time of {given[0]}: it must be positive")

    def __repr__(self) -> str:
        return f"<Message {self.topic!r} key {self.key!r} body {len(self.body)} B>"


def check_topic(topic: str) -> None:
    """Raise MessageRefusedError unless brokers accept `topic` as a name."""
    if len(topic) > TOPIC_BYTES_MAX or _LEGAL_NAME.fullmatch(topic) is None:
        raise MessageRefusedError(
            f"invalid topic name {topic!r}: use 1 to {TOPIC_BYTES_MAX} of the characters a-z A-Z 0-9 _ - % |"
        )


def is_own_topic(topic: str) -> bool:
    """Return whether a broker topic is the gateway's own: audit records, bans, sessions, timers."""
    return topic.lower().startswith(_OWN_PREFIXES)


def check_group(group: str) -> None:
    """Raise MessageRefusedError unless brokers accept `group` as a name."""
    # The group's own topics are %RETRY%group and %DLQ%group, and must be topic names themselves.
    if len(group) > TOPIC_BYTES_MAX - len(RETRY_PREFIX) or _LEGAL_NAME.fullmatch(group) is None:
        raise MessageRefusedError(
            f"invalid group name {group!r}: use 1 to {TOPIC_BYTES_MAX - len(RETRY_PREFIX)} of the "
            "characters a-z A-Z 0-9 _ - % |"
        )


class SendStatus(enum.Enum):
    """Name the broker's promises about a stored message; in every case it is stored."""

    SEND_OK = 0
    """Stored, and flushed or copied as far as the broker's settings ask for."""
    FLUSH_DISK_TIMEOUT = 10
    """Stored, but the synchronous flush did not end in time."""
    SLAVE_NOT_AVAILABLE = 11
    """Stored, but no slave was there to copy it to."""
    FLUSH_SLAVE_TIMEOUT = 12
    """Stored, but the slave did not confirm in time."""


class SendResult(msgspec.Struct, eq=False, gc=False):
    """The result of a send: the queue and offset of the message, or of the messages of a batch."""

    status: SendStatus
    """How safe the messages are."""
    queue: MessageQueue
    """Their queue; its id is the broker's choice where the request left it open."""
    queue_offset: int
    """Offset of the first message; the others of a batch follow without gaps. -1 when an idempotent producer
    hears that an earlier try has stored it."""
    count: int
    """Messages stored by this request."""
    message_id: str
    """The unique key given to the (first) message; empty for batches encoded elsewhere."""
    joined_message_ids: str
    """`offset_message_ids` as one text, separated by commas."""
    recall_handle: str = ""
    """Takes the message back with `Producer.recall`, when it waits for a time of its own; else empty."""

    @property
    def offset_message_ids(self) -> list[str]:
        """Return an id per message that names its broker and position in the log."""
        return self.joined_message_ids.split(",") if self.joined_message_ids else []

    def __repr__(self) -> str:
        return (
            f"SendResult({self.status.name}, {self.queue.topic} {self.queue.broker_name} queue "
            f"{self.queue.queue_id} offset {self.queue_offset}, count {self.count})"
        )


class Settlement(NamedTuple):
    """A listener's decision about one message."""

    kind: Literal["ack", "nak", "term"]
    delay_ms: int | None = None


class Delivery(Protocol):
    """Define what a message needs of the listener call that it was handed over by."""

    def settle(self, message: ReceivedMessage, settlement: Settlement) -> None:
        """Note the listener's decision."""

    def in_progress(self) -> None:
        """Give the listener its whole time again."""


class StoredMessage:
    """A message as a broker has stored it; properties and body are decoded when they are asked for."""

    __slots__ = ("_body", "_properties", "queue", "record")

    def __init__(self, queue: MessageQueue, record: Record) -> None:
        self.queue = queue
        """The queue it was read from; for a redelivered message that may be one of the retry topic's."""
        self.record = record
        """All fields as stored."""
        self._properties: dict[str, str] | None = None
        self._body: bytes | None = None

    @property
    def topic(self) -> str:
        """Return the topic it was sent to, also when it is redelivered through the group's retry topic."""
        if self.record.topic.startswith(RETRY_PREFIX):
            return self.properties.get(RETRY_TOPIC, self.record.topic)
        return self.record.topic

    @property
    def body(self) -> bytes:
        """Return the body as it was sent; MessageFormatError when it cannot be decompressed."""
        if self._body is None:
            self._body = inflate_body(self.record.body, self.record.sys_flag)
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """Return all properties, the system's included."""
        if self._properties is None:
            self._properties = decode_properties(self.record.properties)
        return self._properties

    @property
    def keys(self) -> list[str]:
        """Return the keys to look it up by; the sender's `key` is the first."""
        value = property_value(self.record.properties, b"KEYS")
        return value.decode("utf-8", "replace").split() if value else []

    @property
    def tags(self) -> str:
        """Return the tag that consumers filter by, or an empty text."""
        value = property_value(self.record.properties, b"TAGS")
        return value.decode("utf-8", "replace") if value else ""

    @property
    def message_id(self) -> str:
        """Return the sender's unique key; the same for every redelivery."""
        value = property_value(self.record.properties, b"UNIQ_KEY")
        return value.decode("utf-8", "replace") if value else self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Return the id that names the broker's address and the position in its log."""
        host, port = decode_host(self.record.store_host)
        return offset_message_id(host, port, self.record.position)

    @property
    def queue_offset(self) -> int:
        """Return the message's offset in `queue`."""
        return self.record.queue_offset

    @property
    def flag(self) -> int:
        """Return the application's own number."""
        return self.record.flag

    @property
    def born_timestamp_ms(self) -> int:
        """Return the time of its send, by the sender's clock."""
        return self.record.born_timestamp_ms

    @property
    def store_timestamp_ms(self) -> int:
        """Return the time it was stored, by the broker's clock."""
        return self.record.store_timestamp_ms

    @property
    def redeliveries(self) -> int:
        """Return how often this group has given it back; 0 at the first delivery."""
        return self.record.reconsume_times

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.topic!r} queue {self.queue.queue_id} offset {self.queue_offset}>"
        )


class ReceivedMessage(StoredMessage):
    """A received message; properties and body are decoded when they are asked for."""

    __slots__ = ("delivery",)

    def __init__(self, queue: MessageQueue, record: Record) -> None:
        super().__init__(queue, record)
        self.delivery: Delivery | None = None
        """The call of a listener that it was handed over by; None for who asked for it."""

    def ack(self) -> None:
        """Count the message as consumed, whatever the listener returns or raises. Only while it runs, as the
        next three; ClientError otherwise."""
        self._delivered().settle(self, Settlement("ack"))

    def nak(self, delay_ms: int | None = None) -> None:
        """Fail the message. It comes again after the delay, rounded up to the broker's delay levels, or after
        the pause that failed messages have."""
        if delay_ms is not None and delay_ms < 0:
            raise ClientError(f"a delay of {delay_ms} ms: it must not be negative")
        self._delivered().settle(self, Settlement("nak", delay_ms))

    def term(self) -> None:
        """Fail the message for good: it goes to the dead letters of the group now."""
        self._delivered().settle(self, Settlement("term"))

    def in_progress(self) -> None:
        """Give the listener `listener_timeout_ms` from now on, for all messages of its call."""
        self._delivered().in_progress()

    def _delivered(self) -> Delivery:
        if self.delivery is None:
            raise ClientError("the message was not handed over by a push consumer: commit() settles it")
        return self.delivery
