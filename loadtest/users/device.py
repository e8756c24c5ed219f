"""Keep one device connected, on the loop's thread: what it publishes, asks and receives.

Everything in here runs on the loop's thread. Results go to the greenlets through `Reports`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from iotmq.backoff import Backoff
from iotmq.errors import IotmqError
from iotmq.mqtt.client.connection import ClientConnection
from iotmq.mqtt.client.events import Acknowledged, ClientEvent, Connected, Ending, Subscribed, Unsubscribed
from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.client.session import ClientSession, OutgoingMessage
from iotmq.mqtt.reason_codes import FIRST_ERROR
from iotmq.mqtt.topics import topics
from iotmq.mqtt_client.connection import MqttConnection
from iotmq.mqtt_client.errors import is_final
from iotmq.mqtt_client.links import open_link
from iotmq.mqtt_client.settings import MqttClientSettings
from loadtest.users.faults import (
    NO_ANSWER,
    NO_CONNECTION,
    REPEATED,
    TOO_MANY_WAIT,
    Fault,
    fault_of,
    fault_of_code,
    fault_of_ending,
)
from loadtest.users.sequences import Scope, SequenceCheck, stamp_of

# Messages of QoS 1 and 2 that wait for a connection.
WAITING_MAX: Final = 1_000
# A connection that lasted this long was a good one: the next pause is the shortest again.
_STABLE_S: Final = 5.0


class Request(Protocol):
    """A PUBLISH, SUBSCRIBE or UNSUBSCRIBE that was asked for, and when."""

    action: str
    qos: int
    topic: str
    started_ns: int
    size: int
    is_done: bool

    def finish(self, fault: Fault | None) -> None:
        """Say how it ended; from the loop's thread, once."""


class Reports(Protocol):
    """What a device tells; called on the loop's thread."""

    def connected(self, elapsed_ms: float, fault: Fault | None) -> None:
        """Tell of an attempt to connect."""

    def disconnected(self, elapsed_ms: float, fault: Fault | None) -> None:
        """Tell of the end of a connection."""

    def received(self, message: ReceivedMessage, latency_ms: float | None, fault: Fault | None) -> None:
        """Tell of a message."""

    def received_row(self, topic: str, qos: int) -> tuple[str, str]:
        """Return type and name of the row of a topic's messages."""

    @property
    def has_room(self) -> bool:
        """Return whether the greenlets keep up."""


class Device:
    """One device; `open` begins to connect."""

    def __init__(
        self,
        settings: MqttClientSettings,
        context: ssl.SSLContext | None,
        reports: Reports,
        check: SequenceCheck | None,
    ) -> None:
        self.settings = settings
        # Greenlets read it, too.
        self.is_connected = False
        self._context = context
        self._reports = reports
        self._check = check
        self._scope: Scope | None = None
        self._session = ClientSession()
        self._connection: MqttConnection | None = None
        # The latest connection, made or being made, with its CONNACK and its end.
        self._latest: tuple[MqttConnection, asyncio.Future[None], asyncio.Future[Ending]] | None = None
        # When the latest connection was begun.
        self._began_s = 0.0
        self._is_first = True
        self._keeper: asyncio.Task[None] | None = None
        self._is_leaving = False
        # Whether the latest attempt to connect has failed, or the latest connection was lost.
        self._has_failed = False
        # Whether we have cut the connection ourselves.
        self._is_dropped = False
        self._filters: dict[str, int] = {}
        self._asked: dict[int, tuple[Request, Sequence[tuple[str, int]]]] = {}
        self._requests: deque[Request] = deque()
        self._is_paused = False

    @property
    def unfinished_count(self) -> int:
        """Return how many messages the server has not acknowledged."""
        return self._session.unfinished_count

    @property
    def is_settled(self) -> bool:
        """Return whether it is connected, or will not be soon."""
        return self.is_connected or self._has_failed or self._keeper is None or self._keeper.done()

    # What greenlets post ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, and stay connected."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep_connected())

    def publish(self, request: Request, message: OutgoingMessage) -> None:
        """Send a message; `request` is its token."""
        connection = self._connection
        try:
            if connection is not None:
                connection.core.publish(message)
                connection.send_soon()
            elif not message.qos:
                raise Fault(NO_CONNECTION)
            elif len(self._session.waiting) >= WAITING_MAX:
                raise Fault(TOO_MANY_WAIT)
            else:
                self._session.waiting.append(message)
        except (Fault, IotmqError) as error:
            self._finish(request, fault_of(error))
            return
        if message.qos:
            self._requests.append(request)
        else:
            self._finish(request, None)

    def subscribe(self, request: Request, subscriptions: Sequence[tuple[str, int]]) -> None:
        """Subscribe to filters with options; they are asked for again where the server has lost them."""
        for topic_filter, options in subscriptions:
            self._filters[topic_filter] = options
        self._requests.append(request)
        if self._connection is not None:
            self._ask(self._connection, request, subscriptions)

    def unsubscribe(self, request: Request, filters: Sequence[str]) -> None:
        """Unsubscribe from filters."""
        for topic_filter in filters:
            self._filters.pop(topic_filter, None)
            if self._scope is not None:
                self._scope.filters.pop(topic_filter, None)
        connection = self._connection
        if connection is None:
            self._finish(request, Fault(NO_CONNECTION))
            return
        self._requests.append(request)
        packet_id = connection.core.unsubscribe(filters)
        self._asked[packet_id] = (request, ())
        connection.send_soon()

    def drop(self) -> None:
        """Lose the connection as a device does whose network goes: without a DISCONNECT."""
        if self._connection is not None:
            self._is_dropped = True
            self._connection.abort()

    async def leave(self, deadline_s: float) -> None:
        """Wait for acknowledgements until the deadline, then disconnect."""
        loop = asyncio.get_running_loop()
        while self.is_connected and self._session.unfinished_count and loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        self._is_leaving = True
        while self._requests:
            self._finish(self._requests.popleft(), Fault(NO_ANSWER if self.is_connected else NO_CONNECTION))
        connection, keeper = self._connection, self._keeper
        self._keeper = None
        if connection is not None:
            began_s = loop.time()
            is_kept = not self.settings.ends_session
            await connection.leave(session_expiry_s=None if is_kept else 0)
            self._reports.disconnected((loop.time() - began_s) * 1e3, None)
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if self._check is not None and self._scope is not None and not self._scope.is_shared:
            self._check.forget(self._scope)

    def look(self, now_ns: int) -> None:
        """Give up what the server does not answer; called every now and then."""
        limit_ns = now_ns - int(self.settings.connect_timeout_s * 1e9)
        requests = self._requests
        while requests and (requests[0].is_done or requests[0].started_ns < limit_ns):
            self._finish(requests.popleft(), Fault(NO_ANSWER if self.is_connected else NO_CONNECTION))
        if self._is_paused and self._connection is not None and self._reports.has_room:
            self._is_paused = False
            self._connection.resume_reading()

    # Connecting ------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self.settings
        backoff = Backoff(min_s=settings.reconnect_min_s, max_s=settings.reconnect_max_s)
        while True:
            began_s = loop.time()
            ending: Ending | None = None
            try:
                await self._connect()
            except (OSError, IotmqError, Fault) as error:
                self._has_failed = True
                self._reports.connected((loop.time() - began_s) * 1e3, fault_of(error))
            else:
                assert self._latest is not None
                ending = await self._latest[2]
                if self._is_leaving:
                    return
                fault = None if self._is_dropped else fault_of_ending(ending)
                self._has_failed = fault is not None
                self._is_dropped = False
                self._reports.disconnected(0.0, fault)
                if loop.time() - began_s >= _STABLE_S:
                    backoff.reset()
            if not settings.reconnects or (ending is not None and is_final(ending)):
                return
            await asyncio.sleep(backoff.next_s())

    async def _connect(self) -> None:
        """Connect once; returns with the CONNACK."""
        loop = asyncio.get_running_loop()
        settings = self.settings
        began_s = loop.time()
        core = ClientConnection(
            self._session,
            settings.connect_packet(
                is_first=self._is_first, client_id=settings.client_id, authenticator=None
            ),
            began_s,
            in_flight_max=settings.window,
            gives_aliases=settings.gives_aliases,
            answer_timeout_s=settings.connect_timeout_s,
        )
        connection = MqttConnection(core, self)
        opened: asyncio.Future[None] = loop.create_future()
        self._latest = (connection, opened, loop.create_future())
        self._began_s = began_s
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                connection.begin(await open_link(settings.address, connection, self._context))
                await opened
        except BaseException:
            connection.abort()
            if not opened.cancel() and not opened.cancelled():
                opened.exception()
            raise

    def _take_connected(self, connection: MqttConnection, event: Connected) -> None:
        """Go on at once: what is published from now on is for this connection."""
        assert self._latest is not None
        if connection is not self._latest[0] or self._latest[1].done():
            return
        self._reports.connected((asyncio.get_running_loop().time() - self._began_s) * 1e3, None)
        self._is_first = self._has_failed = False
        self._connection, self.is_connected = connection, True
        self._latest[1].set_result(None)
        self._subscribe_again(connection, has_session=event.is_session_present)

    def _subscribe_again(self, connection: MqttConnection, *, has_session: bool) -> None:
        """Ask for the filters that this server has not, and for those nobody has asked it for yet."""
        waiting = {
            request for request in self._requests if request.action == "subscribe" and not request.is_done
        }
        if (
            not has_session
            and self._check is not None
            and self._scope is not None
            and not self._scope.is_shared
        ):
            self._check.went_away(self._scope)
        asked: set[str] = set()
        for request in waiting:
            if request.topic in self._filters:
                asked.add(request.topic)
                self._ask(connection, request, [(request.topic, self._filters[request.topic])])
        if not has_session:
            for topic_filter, options in self._filters.items():
                if topic_filter not in asked:
                    self._ask(connection, None, [(topic_filter, options)])

    def _ask(
        self, connection: MqttConnection, request: Request | None, subscriptions: Sequence[tuple[str, int]]
    ) -> None:
        try:
            packet_id = connection.core.subscribe(subscriptions)
        except IotmqError as error:
            if request is not None:
                self._finish(request, fault_of(error))
            return
        if request is not None:
            self._asked[packet_id] = (request, subscriptions)
        connection.send_soon()

    # What a connection tells -----------------------------------------------------------------------------

    def events_came(self, connection: MqttConnection, events: list[ClientEvent], size: int) -> None:
        now_ns = time.monotonic_ns()
        for event in events:
            if type(event) is ReceivedMessage:
                self._receive(connection, event, now_ns)
            elif type(event) is Acknowledged:
                token = event.token
                if token is not None:
                    self._finish(token, fault_of_code(event.code) if event.code else None)  # type: ignore[arg-type]
            elif isinstance(event, Connected):
                self._take_connected(connection, event)
            elif isinstance(event, Subscribed | Unsubscribed):
                self._take_answer(event, now_ns)
        connection.send_soon()
        if not self._reports.has_room and not self._is_paused:
            self._is_paused = True
            connection.pause_reading()

    def room_changed(self) -> None:
        """Nothing waits here for room: a load that a socket does not take shows in its latencies."""

    def connection_ended(self, connection: MqttConnection, ending: Ending) -> None:
        if self._latest is None or connection is not self._latest[0]:
            return
        self.is_connected = False
        self._connection = None
        self._is_paused = False
        self._asked.clear()
        _connection, opened, ended = self._latest
        if not opened.done():
            opened.set_exception(fault_of_ending(ending))
        ended.set_result(ending)

    def _receive(self, connection: MqttConnection, message: ReceivedMessage, now_ns: int) -> None:
        connection.core.acknowledge(message)
        one = stamp_of(message.payload, message.properties.user_properties)
        latency_ms, fault = None, None
        if self._check is not None and one is not None and not self._check.is_of_this_run(one):
            one = None
        if one is not None and not message.is_retained:
            latency_ms = (now_ns - one.time_ns) / 1e6
            if self._check is not None and self._scope is not None:
                is_new = self._check.received(self._scope, one, message.topic, message.qos, now_ns / 1e9)
                # At least once: after a lost connection a server may send again, and says so.
                is_fair = is_new or (message.qos == 1 and message.is_duplicate)
                fault = None if is_fair else Fault(REPEATED)
        self._reports.received(message, latency_ms, fault)

    def _take_answer(self, event: Subscribed | Unsubscribed, now_ns: int) -> None:
        request, subscriptions = self._asked.pop(event.answers.packet_id, (None, ()))
        if request is None:
            return
        codes = event.answers.codes
        refused = [code for code in codes if code >= FIRST_ERROR]
        for (topic_filter, _options), code in zip(subscriptions, codes, strict=False):
            if code < FIRST_ERROR:
                self._granted(topic_filter, code, now_ns)
            else:
                self._filters.pop(topic_filter, None)
        self._finish(request, fault_of_code(refused[0]) if refused else None)

    def _granted(self, topic_filter: str, qos: int, now_ns: int) -> None:
        check = self._check
        if check is None:
            return
        is_shared = topics.is_shared(topic_filter)
        if self._scope is None and (check.follows_groups or not is_shared):
            self._scope = (
                check.group(topic_filter, self._reports) if is_shared else check.scope(self._reports)
            )
            self._scope.qos = qos
        if self._scope is not None:
            # A group began with its first member.
            self._scope.filters.setdefault(topic_filter, now_ns)

    def _finish(self, request: Request, fault: Fault | None) -> None:
        if not request.is_done:
            request.is_done = True
            request.finish(fault)
