"""What an MQTT front end asks of a broker about sessions.

As with `client.ports`, the all-in-one process plugs in the broker's own object and separate processes one
that speaks the native protocol. A broker keeps, for each client id, who is connected and, for durable
sessions, the subscriptions and how far each has come; the messages wait in one light queue per filter and
broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
from typing_extensions import Buffer

NEVER_EXPIRES_S = 0xFFFFFFFF
"""A session that lasts until somebody ends it."""


class Will(msgspec.Struct, frozen=True, array_like=True):
    """The message to publish for a client that vanishes: where it goes and what it is."""

    topic: str
    queue_id: int
    # A batch of one element (docs/formats.md).
    elements: bytes
    is_stored: bool
    delay_s: int = 0


class InFlight(msgspec.Struct, frozen=True, array_like=True):
    """A message that was sent with a packet id and is not done."""

    packet_id: int
    queue_id: int
    position: int
    # PUBREC came: PUBREL is what is repeated.
    is_released: bool


class SessionSubscription(NamedTuple):
    """One filter of a durable session at one broker, or several of the same filter for several brokers.

    `options` as in SUBSCRIBE. The session is done with records before `cursor`, and was sent those before
    `sent`.
    """

    topic_filter: str
    options: int
    queue_id: int
    cursor: int
    sent: int


class OpenedSession(NamedTuple):
    """A session that belongs to the caller now. Everything said about it later names its `epoch`."""

    epoch: int
    is_present: bool
    subscriptions: list[SessionSubscription]
    # Packet ids of QoS 2 that were received and not released.
    received: list[int]
    in_flight: list[InFlight]
    # (queue id, position) of records past a cursor that the session is done with.
    done: Sequence[tuple[int, int]] = ()


class Refused(NamedTuple):
    """Why a request about a session was not done. `code` is a response code of the native protocol."""

    code: int
    remark: str


class SessionProgress(msgspec.Struct, frozen=True, array_like=True):
    """How far a session has come: (queue id, cursor, sent) as in SessionSubscription.

    `done` are (queue id, position) past the cursors that the session is done with all the same, because an
    older message is still in flight; it replaces what was known. `received` and `in_flight` do, too, unless
    they are None.
    """

    client_id: str
    epoch: int
    cursors: list[tuple[int, int, int]]
    received: list[int] | None = None
    in_flight: list[InFlight] | None = None
    done: list[tuple[int, int]] = []


class QueueRecords(NamedTuple):
    """Records of a light queue: everything before `next_position` is in it, or was before.

    `is_end`: there was nothing more, and what comes later is pushed.
    """

    records: Sequence[Buffer]
    next_position: int
    is_end: bool


class RetainedRecords(NamedTuple):
    """Some of the retained records that match a filter; `after` goes on behind them, None at the end."""

    records: Sequence[Buffer]
    after: str | None


class SessionReceiver(Protocol):
    """Where a broker tells a front end about its sessions."""

    def deliver_queued(self, records: Buffer, pushes: Buffer) -> None:
        """Take records of light queues; both buffers may be reused once this returns.

        `records` holds whole records, `pushes` is a run of u32 place of a record in `records`, u32 queue id,
        big-endian, in the order of the log.
        """

    def missed(self, queue_ids: Sequence[int]) -> None:
        """Records of these queues were not pushed: they have to be read."""

    def fenced(self, client_id: str, epoch: int, reason: str) -> None:
        """The session belongs to somebody else, or nobody, soon: hang up, and close it with what is known."""


class SessionPort(Protocol):
    """One front end's sessions at its brokers. `done` is called once, possibly before the call returns."""

    async def start(self, receiver: SessionReceiver) -> None:
        """Tell `receiver` about the sessions that are opened from now on."""

    async def stop(self) -> None:
        """Give up the sessions that were not closed."""

    def open_session(
        self,
        client_id: str,
        *,
        is_clean: bool,
        expiry_s: int,
        will: Will | None,
        done: Callable[[OpenedSession | Refused], None],
    ) -> None:
        """Take the session of a client over, from whoever has it; `expiry_s` 0 is one that is not kept."""

    def subscribe(
        self,
        client_id: str,
        epoch: int,
        subscriptions: Sequence[tuple[str, int]],
        done: Callable[[list[SessionSubscription] | Refused], None],
    ) -> None:
        """Add filters, or give those known other options. The records of all are pushed from then on."""

    def unsubscribe(
        self, client_id: str, epoch: int, filters: Sequence[str], done: Callable[[Refused | None], None]
    ) -> None:
        """Take filters back; unknown ones are ignored."""

    def progress(self, changes: Sequence[SessionProgress], done: Callable[[Refused | None], None]) -> None:
        """Say how far sessions have come. What is said in a former epoch is not heard."""

    def close_session(self, client_id: str, epoch: int, *, expiry_s: int, drops_will: bool) -> None:
        """The client is gone. The session ends `expiry_s` later; its will is published unless dropped."""

    def read_queue(
        self,
        queue_id: int,
        position: int,
        *,
        records_max: int,
        bytes_max: int,
        done: Callable[[QueueRecords | Refused], None],
    ) -> None:
        """Read a queue from a position on."""

    def read_retained(
        self,
        topic_filter: str,
        *,
        after: str | None,
        records_max: int,
        bytes_max: int,
        done: Callable[[RetainedRecords | Refused], None],
    ) -> None:
        """Retained messages that match a filter, some at a time; `after` is None for the first."""
