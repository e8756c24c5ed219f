"""Define what an MQTT front end asks of a broker about sessions.

As with `ports.gateway`, the all-in-one process plugs in the broker's own object and separate processes one
that speaks the native protocol. A broker keeps, for each client id, who is connected and, for durable
sessions, the subscriptions and how far each has come; the messages wait in one light queue per filter and
broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec import Meta
from typing_extensions import Buffer

from iotmq import limits
from iotmq.ports.inspections import InspectionDone

_U32_MAX = (1 << 32) - 1

# What is checked of the parts of a request that a peer sends.
ClientId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_CLIENT_ID_BYTES_MAX)]
Filter: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
# The byte as in SUBSCRIBE, and above it the subscription identifier of MQTT 5, 0 for none.
Options: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 36) - 1)]
Epoch: TypeAlias = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Seconds: TypeAlias = Annotated[int, Meta(ge=0, le=_U32_MAX)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 48)]
Position: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]

NEVER_EXPIRES_S = 0xFFFFFFFF
"""A session that lasts until somebody ends it."""


class Will(msgspec.Struct, frozen=True, array_like=True):
    """The message to publish for a client that vanishes: where it goes and what it is."""

    topic: str
    queue_id: int
    # A batch of one element (docs/reference/formats.md).
    elements: bytes
    is_stored: bool
    delay_s: int = 0
    # The element waits for a time once it is published (`$delayed/...`); it has TIMER_DELAY_SEC.
    is_delayed: bool = False


QUEUE_ID_BITS: Final = 24
"""Queue ids of one broker have so many; above them a front end has the number it gave the broker."""

NO_QUEUE_ID: Final = (1 << QUEUE_ID_BITS) - 1
"""Stands for the queue of a filter that is not subscribed any more."""


class InFlight(msgspec.Struct, frozen=True, array_like=True):
    """A message that was sent with a packet id and is not done.

    Of a filter that was unsubscribed meanwhile (NO_QUEUE_ID) only the packet id is kept, to be released: no
    other message may have it before the client is done with it [MQTT-3.10.4-3].
    """

    packet_id: int
    queue_id: int
    position: int
    # PUBREC came: PUBREL is what is repeated.
    is_released: bool


class SessionSubscription(msgspec.Struct, frozen=True, array_like=True):
    """One filter of a durable session at one broker, or several of the same filter for several brokers.

    `options` is the byte as in SUBSCRIBE, with the subscription identifier (0: none) << 8. The session is
    done with records before `cursor`, and was sent those before `sent`.
    """

    topic_filter: str
    options: int
    queue_id: int
    cursor: int
    sent: int


class OpenedSession(msgspec.Struct, frozen=True, array_like=True):
    """A session that belongs to the caller now. Everything said about it later names its `epoch`."""

    epoch: int
    is_present: bool
    subscriptions: list[SessionSubscription]
    # Packet ids of QoS 2 that were received and not released.
    received: list[int]
    in_flight: list[InFlight]
    # (queue id, position) of records past a cursor that the session is done with.
    done: Sequence[tuple[int, int]] = ()
    # Where packet ids for new messages begin; 0 when it does not matter.
    packet_ids_from: int = 0


class OpenRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A client that connects; `expiry_s` 0 is a session that is not kept.

    `is_known`: another broker has the session, so the client goes on with the packet ids it has used.
    """

    client_id: ClientId
    is_clean: bool
    expiry_s: Seconds
    will: Will | None
    is_known: bool = False


class SubscribeRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Filters, with options as in SUBSCRIBE, that a durable session gets, or gets other options for."""

    client_id: ClientId
    epoch: Epoch
    subscriptions: Annotated[
        list[tuple[Filter, Options]], Meta(max_length=limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)
    ]


class UnsubscribeRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Filters a durable session no longer has; unknown ones are ignored."""

    client_id: ClientId
    epoch: Epoch
    filters: Annotated[list[Filter], Meta(max_length=limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)]


class CloseRequest(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A client that is gone: its session ends `expiry_s` later, its will is published unless dropped.

    Said again of a session that is closed, it drops the will that waits.
    """

    client_id: ClientId
    epoch: Epoch
    expiry_s: Seconds
    drops_will: bool


class QueueRead(msgspec.Struct, frozen=True, kw_only=True):
    """Records of a light queue from a position on, without those a session of `client_id` is not to get."""

    queue_id: int
    position: int
    records_max: int
    bytes_max: int
    # Empty: all of them.
    client_id: str = ""


class RetainedRead(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for a page of the retained records of a filter; `after` comes from the former page, or is None."""

    topic_filter: str
    after: str | None
    records_max: int
    bytes_max: int


class ShareJoin(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A client that takes part in a shared subscription from now on, or again after a lost connection.

    `member` is the front end's number for this client and filter. It takes `credit` messages more than those
    at the positions `held`, which it still has.
    """

    client_id: ClientId
    epoch: Epoch
    topic_filter: Filter
    member: Annotated[int, Meta(ge=0, le=_U32_MAX)]
    credit: Annotated[int, Meta(ge=0, le=limits.SHARE_CREDIT_MAX)]
    held: Annotated[list[Position], Meta(max_length=limits.SHARE_REPORT_POSITIONS_MAX)]


class ExclusiveClaim(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Filters that a session is about to subscribe exclusively, or has so."""

    client_id: ClientId
    epoch: Epoch
    filters: Annotated[list[Filter], Meta(max_length=limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)]


#: Why a device is not to come again after it was disconnected: another connection has its session, or an
#: operator ended it.
TAKEN_OVER: Final = "taken over"
ENDED_BY_OPERATOR: Final = "administrative action"
FENCED_FOR_GOOD: Final = frozenset({TAKEN_OVER, ENDED_BY_OPERATOR})
EXCLUSIVE: Final = 0x40
"""Of the options of a subscription: the session has its filter to itself. Nothing in SUBSCRIBE is there."""


class ShareReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Report what a group's member has acknowledged, and how many messages it takes since it joined."""

    member: Annotated[int, Meta(ge=0, le=_U32_MAX)]
    limit: Annotated[int, Meta(ge=0, le=2**62)]
    done: Annotated[list[Position], Meta(max_length=limits.SHARE_REPORT_POSITIONS_MAX)]


class DrainOrder(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Whether a front end takes no devices, and lets go of those it has, so many a second.

    `server_reference` says where they are sent, empty for what the front end's settings say, `has_moved` that
    it is for good.
    """

    is_draining: bool
    per_second: Annotated[int, Meta(ge=1, le=limits.DRAINED_PER_SECOND_MAX)] = 1
    server_reference: Annotated[str, Meta(max_length=limits.MQTT_SERVER_REFERENCE_CHARACTERS_MAX)] = ""
    has_moved: bool = False


class ClientCounts(NamedTuple):
    """How much a front end counted of the devices whose client ids begin alike, since it told last."""

    prefix: Annotated[str, Meta(max_length=limits.STATISTICS_NAME_BYTES_MAX // 4)]
    published: Count
    published_bytes: Count
    delivered: Count
    delivered_bytes: Count
    connections: Count


class Refused(NamedTuple):
    """Why a request about a session was not done. `code` is a response code of the native protocol."""

    code: int
    remark: str


class RefusedByBrokers(Refused):
    """By some of several brokers: those whose numbers, of the queues' ids, are in `brokers`."""

    def __new__(cls, code: int, remark: str, brokers: frozenset[int]) -> RefusedByBrokers:
        refused = super().__new__(cls, code, remark)
        refused.brokers = brokers
        return refused

    brokers: frozenset[int]


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
    """Hold a page of the retained records of a filter; `after` asks for the next page, None at the end."""

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
        """The session belongs to somebody else, or nobody, soon: hang up, and close it with what is known.

        For other reasons than those of `FENCED_FOR_GOOD` the device itself is to come again.
        """

    def drain(self, order: DrainOrder) -> None:
        """An operator wants devices to be sent elsewhere, or not any more; each broker may say so."""

    def inspect(self, name: str, body: bytes, done: InspectionDone) -> None:
        """Answer an operator's question about this front end (`inspections.Inspections.ask`)."""


class ShareReceiver(Protocol):
    """Where brokers hand out the messages of shared subscriptions. `source` is the number of a broker."""

    def hand_out(self, source: int, handouts: Sequence[tuple[int, int]], records: Sequence[Buffer]) -> None:
        """Take records, each for the (member, flags) at its place; HANDOUT_REPEATED is a flag.

        The records may be reused once this returns. Each is reported when the member is done with it.
        """

    def withdraw(self, source: int, positions: Sequence[tuple[int, int]]) -> None:
        """(member, position) of what was held too long, and is for somebody else now."""

    def rejoin(self, source: int, client_id: str | None) -> None:
        """The broker has lost what it knew of the members of a client (None: of all): they join again."""


HANDOUT_REPEATED = 1
"""The client was sent the message before."""


class ShareOutlet(Protocol):
    """The way to a front end for what its members get."""

    @property
    def is_congested(self) -> bool:
        """Return whether it does not take what it was sent."""

    def call_when_drained(self, callback: Callable[[], None]) -> None:
        """Once it takes again what it is sent."""

    def hand_out(self, handouts: Sequence[tuple[int, int]], records: Sequence[memoryview]) -> None:
        """Records, each for the (member, flags) at its place; as `ShareReceiver.hand_out`."""

    def withdraw(self, positions: Sequence[tuple[int, int]]) -> None:
        """(member, position) of what is for somebody else now."""


class SharePort(Protocol):
    """One front end's part in shared subscriptions."""

    def serve_shares(self, receiver: ShareReceiver) -> None:
        """Tell `receiver` what is for the members that join from now on; before `SessionPort.start`."""

    def join_shares(
        self, source: int | None, joins: Sequence[ShareJoin], done: Callable[[list[Refused | None]], None]
    ) -> None:
        """Take part in groups at one broker or, with None, at all; an outcome for each of `joins`.

        A client leaves by `SessionPort.unsubscribe`, or with its session.
        """

    def report_shares(
        self, source: int, reports: Sequence[ShareReport], done: Callable[[Refused | None], None]
    ) -> None:
        """Say what members are done with."""


class SessionPort(SharePort, Protocol):
    """One front end's sessions at its brokers. `done` is called once, possibly before the call returns.

    A request is one value from the front end to the broker, on the wire as well. Whoever passes one on does
    not take it apart, so that what is added to it arrives.
    """

    async def start(self, receiver: SessionReceiver) -> None:
        """Tell `receiver` about the sessions that are opened from now on."""

    async def stop(self) -> None:
        """Give up the sessions that were not closed."""

    def open_session(self, request: OpenRequest, done: Callable[[OpenedSession | Refused], None]) -> None:
        """Take the session of a client over, from whoever has it."""

    def subscribe(
        self, request: SubscribeRequest, done: Callable[[list[SessionSubscription] | Refused], None]
    ) -> None:
        """Add filters, or give those known other options. The records of all are pushed from then on."""

    def unsubscribe(self, request: UnsubscribeRequest, done: Callable[[Refused | None], None]) -> None:
        """Take filters back."""

    def claim_exclusive(self, request: ExclusiveClaim, done: Callable[[list[Refused | None]], None]) -> None:
        """Have filters for a session alone, before it subscribes them; an outcome for each.

        They are given back by `unsubscribe`, for sessions that are not kept as well, or with the session.
        """

    def report_draining(self, *, is_draining: bool) -> None:
        """Say whether devices are sent elsewhere, for operators who ask brokers."""

    def report_clients(self, counts: Sequence[ClientCounts], done: Callable[[Refused | None], None]) -> None:
        """Have one of the brokers count these in its statistics; at most CLIENT_PREFIXES_MAX and one."""

    def progress(self, changes: Sequence[SessionProgress], done: Callable[[Refused | None], None]) -> None:
        """Say how far sessions have come. What is said in a former epoch is not heard.

        Refused by some brokers (RefusedByBrokers), the others know what is theirs of it.
        """

    def close_session(self, request: CloseRequest) -> None:
        """The client is gone."""

    def read_queue(self, request: QueueRead, done: Callable[[QueueRecords | Refused], None]) -> None:
        """Read a queue from a position on."""

    def read_retained(self, request: RetainedRead, done: Callable[[RetainedRecords | Refused], None]) -> None:
        """Retained messages that match a filter, some at a time."""
