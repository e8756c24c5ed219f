"""Questions and answers about connected clients (`inspections`), in MessagePack.

A list has an order of its own: by what it is sorted by, cut to 64 characters where that is a text, then by
the client id in the same way, then by a hash of it. So a place in it is short, whatever clients call
themselves, and front ends agree on what comes behind it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.errors import RefusedError

# `sessions.EXCLUSIVE`.
_EXCLUSIVE: Final = 0x40

CONNECTIONS: Final = "connections"
CONNECTION: Final = "connection"
SUBSCRIPTIONS: Final = "subscriptions"
REFUSED: Final = "refused"
SESSION_QUEUE: Final = "session_queue"

TEXT_COLUMNS: Final = ("client_id", "user", "address", "listener")
NUMBER_COLUMNS: Final = (
    "version",
    "keep_alive_s",
    "connected_ms",
    "subscriptions",
    "in_flight",
    "queued",
    "queued_bytes",
    "unsent_bytes",
    "dropped",
    "latency_ms",
    "messages_received",
    "messages_sent",
    "bytes_received",
    "bytes_sent",
    "messages_received_per_s",
    "messages_sent_per_s",
    "bytes_received_per_s",
    "bytes_sent_per_s",
)
CLIENT_COLUMNS: Final = (*TEXT_COLUMNS, *NUMBER_COLUMNS)
"""Lists of clients can be sorted by these."""

ORDER_CHARACTERS: Final = 64
"""The part of a text that counts for the order; the hash of a longer name does beside it."""

PROTOCOL_LEVELS: Final = {"3.1": 3, "3.1.1": 4, "5": 5}

Pattern: TypeAlias = Annotated[str, Meta(max_length=limits.CLIENT_PATTERN_CHARACTERS_MAX)]
"""The text itself, or a part of it where `*` stands for the rest: at the beginning, at the end, or both."""
Order: TypeAlias = tuple[str | float, str, int]
"""The place of a client in a list."""
SubscriptionOrder: TypeAlias = tuple[str, int, str, int]
"""The place of a subscription: client id and filter, each cut and with its hash."""
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=limits.CONNECTIONS_LISTED_MAX)]


class ClientFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The clients that are meant: those that fit all of it. An empty pattern fits every text."""

    client_id: Pattern = ""
    user: Pattern = ""
    address: Pattern = ""
    listener: Pattern = ""
    is_kept: bool | None = None
    """Whether their sessions outlive their connections."""
    least: dict[str, float] = {}
    """Number columns with the least values that are meant."""
    most: dict[str, float] = {}

    def texts(self) -> list[tuple[str, str]]:
        """Return the columns with patterns."""
        return [(column, pattern) for column in TEXT_COLUMNS if (pattern := getattr(self, column))]

    def bounds(self) -> list[tuple[str, float | None, float | None]]:
        """Return the columns with bounds; RefusedError for one that is no column of numbers."""
        unknown = sorted((self.least.keys() | self.most.keys()) - set(NUMBER_COLUMNS))
        if unknown:
            raise RefusedError(f"{unknown[0][:40]!r} is no column of numbers: {', '.join(NUMBER_COLUMNS)}")
        return [
            (column, self.least.get(column), self.most.get(column))
            for column in NUMBER_COLUMNS
            if column in self.least or column in self.most
        ]


class ClientsQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ask for the first clients of a list, or for those behind a place in it."""

    wanted: ClientFilter = ClientFilter()
    sort_by: str = "client_id"
    is_descending: bool = False
    limit: Limit = 100
    behind: Order | None = None


class ClientRow(msgspec.Struct, kw_only=True):
    """A connected client. Texts but its id are cut to 256 characters."""

    client_id: str
    front_end: str = ""
    """The front end that it is connected to; filled in by who asked it."""
    user: str = ""
    address: str = ""
    listener: str = ""
    certificate: str = ""
    """The name in its certificate."""
    version: str
    """3.1, 3.1.1 or 5."""
    keep_alive_s: int
    connected_ms: int
    """When it connected, in milliseconds since 1970."""
    is_kept: bool
    """Whether the session outlives the connection."""
    subscriptions: int
    in_flight: int
    """Messages it was sent and has not acknowledged."""
    queued: int
    """Messages that wait because it has not acknowledged enough; those of a kept session wait at brokers."""
    queued_bytes: int
    unsent_bytes: int
    """Bytes that its socket does not take yet."""
    dropped: int
    """Messages it did not get because it was too slow."""
    latency_ms: float
    """How long its acknowledgement of a message takes, or how long it is overdue; 0 while it is not known."""
    messages_received: int
    """Of it, since it connected."""
    messages_sent: int
    bytes_received: int
    bytes_sent: int
    messages_received_per_s: float
    """Between two looks at it, of five seconds at least; at the first one, since it connected."""
    messages_sent_per_s: float
    bytes_received_per_s: float
    bytes_sent_per_s: float


class ClientsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list at one front end, with the place of each in it."""

    rows: list[msgspec.Raw]
    """Each is a ClientRow: a whole page takes too long to encode, or to decode, at once."""
    orders: list[Order]
    matched: int
    """Those of the front end that are meant, on the page or not."""
    connected: int
    has_more: bool


class ClientSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription of a client."""

    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    """The subscription identifier; 0: none."""
    is_exclusive: bool = False


class ClientDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One connected client."""

    row: ClientRow
    idle_s: float
    """How long ago it has sent something."""
    session_expiry_s: int = 0
    """How long its session outlives the connection."""
    is_resumed: bool = False
    """Whether the session was there before it connected."""
    is_bridge: bool = False
    is_write_paused: bool = False
    """Whether the socket takes nothing at the moment."""
    server_name: str = ""
    """The host it asked a proxy for."""
    will_topic: str = ""
    subscriptions: list[ClientSubscription] = []
    """A thousand of them at most."""


class KickQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Disconnect clients: those named, or else those that fit."""

    client_ids: Annotated[list[str], Meta(max_length=limits.KICKED_NAMES_MAX)] | None = None
    wanted: ClientFilter | None = None
    limit: Annotated[int, Meta(ge=0, le=limits.KICKED_CLIENTS_MAX)]
    is_dry_run: bool = False


class KickAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The clients of one front end that were disconnected, or would be."""

    matched: int
    kicked: int
    client_ids: list[str]
    """The first of them."""


class SubscriptionsQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ask for subscriptions, by client id and filter."""

    client_id: Pattern = ""
    topic_filter: Annotated[str, Meta(max_length=limits.MQTT_TOPIC_BYTES_MAX)] = ""
    """A pattern, as of client ids; `+` and `#` are characters like others in it."""
    topic: Annotated[str, Meta(max_length=limits.MQTT_TOPIC_BYTES_MAX)] = ""
    """Only filters that this topic matches."""
    limit: Limit = 100
    behind: SubscriptionOrder | None = None


class SubscriptionRow(msgspec.Struct, kw_only=True):
    """A subscription of a client that is connected, or whose session is kept."""

    client_id: str
    front_end: str = ""
    """The front end that the client is connected to; empty while it is away."""
    topic_filter: str
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    is_exclusive: bool = False


class SubscriptionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the list at one process."""

    rows: list[SubscriptionRow]
    orders: list[SubscriptionOrder]
    has_more: bool


class QueueQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ask for messages that a kept session is not done with, of one of its filters at one broker."""

    client_id: str
    topic_filter: str
    limit: Annotated[int, Meta(ge=1, le=limits.SESSION_QUEUE_LISTED_MAX)] = 20
    position: Annotated[int, Meta(ge=0, le=2**62)] = 0
    """Messages from there on; those that its client is done with are none."""


class QueueAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The first of the messages, as they are stored."""

    records: list[bytes]
    left_out: int
    """Messages among them that are too large for an answer."""
    next_position: int
    is_end: bool
    behind: int
    """Messages of the filter that the client is not done with, from the first on."""
    in_flight: list[int] = []
    """Positions in the log of those among them that the client was sent, and has not acknowledged."""
    done: list[int] = []
    """Positions of records among them that the client is done with, before an older one."""


class RefusedQuestion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Ask for the refusals that a process remembers, the last first."""

    client_id: Pattern = ""
    user: Pattern = ""
    address: Pattern = ""
    reason: Pattern = ""
    limit: Limit = 100


class Refusal(msgspec.Struct, kw_only=True):
    """One who was not let in: a device by a front end, a native client by a broker."""

    time_ms: int
    source: str = ""
    """The process that refused it; filled in by who asked it."""
    client_id: str = ""
    user: str = ""
    account: str = ""
    address: str = ""
    listener: str = ""
    certificate: str = ""
    request: str = ""
    """The request of a native client."""
    reason: str = ""
    detail: str = ""


class RefusedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The refusals that are meant; `remembered` are all that there are."""

    refusals: list[Refusal]
    remembered: int


def name_order(name: str) -> tuple[str, int]:
    """Return what stands for a client id or filter in the place in a list."""
    if len(name) <= ORDER_CHARACTERS:
        return name, 0
    return name[:ORDER_CHARACTERS], zlib.crc32(name.encode("utf-8", "surrogatepass"))


class SubscriptionPage:
    """Collects a page of subscriptions, of many in any order. `matches` gets a filter and a topic."""

    def __init__(self, asked: SubscriptionsQuestion, matches: Callable[[str, str], bool]) -> None:
        self._asked = asked
        self._matches = matches
        # What is behind it is on no page of this size.
        self._last: SubscriptionOrder | None = None
        self._found: list[tuple[SubscriptionOrder, str, str, int]] = []

    def may_have(self, client_id: str) -> bool:
        """Return whether subscriptions of a client may be on the page."""
        behind, client = self._asked.behind, name_order(client_id)
        return (
            (behind is None or client >= behind[:2])
            and not self.is_behind(client_id)
            and (not self._asked.client_id or fits_pattern(self._asked.client_id, client_id))
        )

    def is_behind(self, client_id: str) -> bool:
        """Return whether a client comes behind all of the page."""
        return self._last is not None and name_order(client_id) > self._last[:2]

    def offer(self, client_id: str, topic_filter: str, options: int) -> None:
        """Take a subscription, with options as in `sessions.SessionSubscription`."""
        asked = self._asked
        if asked.topic_filter and not fits_pattern(asked.topic_filter, topic_filter):
            return
        if asked.topic and not self._matches(topic_filter, asked.topic):
            return
        order = (*name_order(client_id), *name_order(topic_filter))
        if asked.behind is not None and order <= asked.behind:
            return
        if self._last is not None and order > self._last:
            return
        self._found.append((order, client_id, topic_filter, options))
        if len(self._found) > 2 * asked.limit + 64:
            self._cut()

    def answer(self, bytes_max: int) -> SubscriptionsAnswer:
        """Return the page, or as much of it as the bytes allow."""
        self._cut()
        rows: list[SubscriptionRow] = []
        orders: list[SubscriptionOrder] = []
        size = 0
        for order, client_id, topic_filter, options in self._found[: self._asked.limit]:
            row = SubscriptionRow(client_id=client_id, **subscription_facts(topic_filter, options))
            size += len(msgspec.msgpack.encode(row)) + len(msgspec.msgpack.encode(order))
            if size > bytes_max:
                break
            rows.append(row)
            orders.append(order)
        return SubscriptionsAnswer(rows=rows, orders=orders, has_more=len(rows) < len(self._found))

    def _cut(self) -> None:
        self._found.sort()
        # One more tells that there is more.
        del self._found[self._asked.limit + 1 :]
        if len(self._found) > self._asked.limit:
            self._last = self._found[-1][0]


def subscription_facts(topic_filter: str, options: int) -> dict[str, Any]:
    """Return the fields of a subscription, of options as in `sessions.SessionSubscription`."""
    return {
        "topic_filter": topic_filter,
        "qos": options & 3,
        "no_local": bool(options & 4),
        "retain_as_published": bool(options & 8),
        "identifier": options >> 8,
        "is_exclusive": bool(options & _EXCLUSIVE),
    }


def fits_pattern(pattern: str, text: str) -> bool:
    """Return whether a text fits a pattern that is not empty."""
    is_open_before = pattern.startswith("*")
    is_open_behind = len(pattern) > 1 and pattern.endswith("*")
    part = pattern[is_open_before : len(pattern) - is_open_behind]
    if is_open_before and is_open_behind:
        return part in text
    if is_open_before:
        return text.endswith(part)
    return text.startswith(part) if is_open_behind else text == part
