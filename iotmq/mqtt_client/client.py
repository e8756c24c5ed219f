"""An MQTT client for asyncio that stays connected.

    async with MqttClient(MqttClientSettings(address=Address(host="broker"))) as client:
        await client.subscribe(("devices/+/telemetry", 1))
        await client.publish("devices/7/command", b"open", qos=1)
        async for message in client.messages():
            print(message.topic, message.payload)

It connects again with growing pauses when a connection is lost, subscribes again where the server has no
session, and sends again what was not acknowledged. Messages come in batches and are acknowledged when the
next batch is asked for; when nobody asks, the server is not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Self, TypeAlias

from iotmq.backoff import Backoff
from iotmq.errors import (
    ClientClosedError,
    ClientError,
    ConnectionClosedError,
    IotmqError,
    MessageRefusedError,
    SubscriptionError,
)
from iotmq.mqtt.client.connection import ClientConnection
from iotmq.mqtt.client.events import (
    Acknowledged,
    Challenged,
    ClientEvent,
    Connected,
    ConnectRefused,
    Ending,
    Subscribed,
    Unsubscribed,
)
from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.client.server_packets import ServerAuth
from iotmq.mqtt.client.session import ClientSession, OutgoingMessage
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_3_1
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.reason_codes import (
    CONTINUE_AUTHENTICATION,
    FIRST_ERROR,
    SERVER_MOVED,
    USE_ANOTHER_SERVER,
    reason_text,
)
from iotmq.mqtt_client.address import Address, parse_references
from iotmq.mqtt_client.connection import MqttConnection
from iotmq.mqtt_client.errors import PublishRefusedError, ServerRefusedError, error_of, is_final
from iotmq.mqtt_client.links import open_link
from iotmq.mqtt_client.settings import Authenticator, MqttClientSettings
from iotmq.mqtt_client.tls import tls_context
from iotmq.mqtt_client.unread import UnreadMessages

# A connection that lasted this long was a good one: the next pause is the shortest again.
_STABLE_S: Final = 5.0
# Filters in one SUBSCRIBE when a client subscribes again.
_FILTERS_PER_PACKET: Final = 100

# A filter that is to be there after a reconnect, with its options and properties.
_Subscribed: TypeAlias = tuple[str, tuple[int, Properties]]


class MqttClient:
    """An MQTT client that reconnects by itself; `async with` connects and closes it.

    `on_change` is called with a text when the connection is lost or made again.
    """

    def __init__(
        self,
        settings: MqttClientSettings | None = None,
        *,
        on_change: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings if settings is not None else MqttClientSettings()
        # What the server's last CONNACK said.
        self.connected_with = Connected(False, self.settings.client_id)
        self._on_change = on_change
        self._session = ClientSession()
        self._address = self.settings.address
        self._context = tls_context(self.settings.tls) if self._address.is_secure else None
        # The connection whose CONNACK is there; None while there is none.
        self._connection: MqttConnection | None = None
        # The connection that is being made, and what is done with its CONNACK; None while there is none.
        self._opening: tuple[MqttConnection, asyncio.Future[None]] | None = None
        self._authenticator: Authenticator | None = None
        self._keeper: asyncio.Task[None] | None = None
        # Why there will be no further connection; None while there may be one.
        self._failure: IotmqError | None = None
        self._is_first = True
        # Filters that are to be there after a reconnect, with options and properties.
        self._subscriptions: dict[str, tuple[int, Properties]] = {}
        self._asked: dict[int, asyncio.Future[tuple[int, ...]]] = {}
        # What waits for an acknowledgement in `publish`.
        self._publishing: set[asyncio.Future[Acknowledged]] = set()
        self._unread = UnreadMessages(self.settings.unread_bytes_max)
        # Those who wait for something to change; all look again whenever something did.
        self._waiting: list[asyncio.Future[None]] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    async def start(self) -> None:
        """Connect; raises ServerRefusedError, ConnectionClosedError or ClientError when that fails."""
        await self._connect()
        self._is_first = False
        self._keeper = asyncio.create_task(self._keep_connected())

    async def close(self) -> None:
        """Disconnect; messages that are not acknowledged by then fail with ClientClosedError."""
        keeper, self._keeper = self._keeper, None
        self._fail(ClientClosedError("the client is closed"))
        try:
            if keeper is not None:
                keeper.cancel()
                # Unlike `await keeper`, this tells the keeper's cancellation from one of the caller.
                await asyncio.wait([keeper])
                if not keeper.cancelled():
                    keeper.result()
            if self._connection is not None:
                expiry_s = 0 if self.settings.ends_session and self.settings.session_expiry_s else None
                await self._connection.leave(session_expiry_s=expiry_s)
        except asyncio.CancelledError:
            if self._connection is not None:
                self._connection.abort()
            raise

    # Publishing ------------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Publish a message; returns when the server has acknowledged it, with QoS 0 when it was written.

        Raises MessageRefusedError or ServerRefusedError for a message that is refused here or there.
        """
        await self.room()
        raw_topic = topic.encode()
        if not qos:
            self.send(OutgoingMessage(raw_topic, payload, qos=0, retain=retain, properties=properties))
            return
        done: asyncio.Future[Acknowledged] = asyncio.get_running_loop().create_future()

        def finish(acknowledged: Acknowledged) -> None:
            if not done.done():
                done.set_result(acknowledged)

        self._publishing.add(done)
        try:
            self.send(
                OutgoingMessage(
                    raw_topic,
                    payload,
                    qos=qos,
                    retain=retain,
                    properties=properties,
                    token=finish,
                )
            )
            acknowledged = await done
        finally:
            self._publishing.discard(done)
        if acknowledged.code:
            raise PublishRefusedError(acknowledged.code, f"{topic}: {acknowledged.reason}")

    def send(self, message: OutgoingMessage) -> None:
        """Send without waiting, for callers that wait for `room` first.

        The message's token, if any, is a function that is called when a message of QoS 1 or 2 is done.
        """
        self._check_alive()
        if not message.topic or b"+" in message.topic or b"#" in message.topic:
            raise MessageRefusedError(f"invalid topic to publish to: {message.topic.decode()!r}")
        if len(message.topic) > 65_535:
            raise MessageRefusedError("a topic has at most 65,535 bytes")
        connection = self._connection
        if connection is not None:
            connection.core.publish(message)
            connection.send_soon()
        elif message.qos:
            self._session.waiting.append(message)
        else:
            raise ConnectionClosedError("a message of QoS 0 needs a connection")

    @property
    def has_room(self) -> bool:
        """Return whether a message would leave at once."""
        connection = self._connection
        return connection is not None and not connection.is_writing_paused and not self._session.waiting

    async def room(self) -> None:
        """Wait until a message would leave at once: connected, with room in window and write buffer."""
        while not self.has_room:
            self._check_alive()
            await self._wait_for_change()
        self._check_alive()

    async def drain(self) -> None:
        """Wait until every message of QoS 1 and 2 is acknowledged and the write buffer is empty enough."""
        while self._session.unfinished_count or (
            self._connection is not None and self._connection.is_writing_paused
        ):
            self._check_alive()
            await self._wait_for_change()

    # Subscribing -----------------------------------------------------------------------------------------

    async def subscribe(
        self, *subscriptions: tuple[str, int], properties: Properties = NO_PROPERTIES
    ) -> tuple[int, ...]:
        """Subscribe to (filter, options) pairs, where the options of a plain subscription are its QoS.

        Returns the server's code for each: the granted QoS. SubscriptionError names those that were refused.
        """
        codes = await self._ask(lambda core: core.subscribe(subscriptions, properties))
        refused = []
        for (topic_filter, options), code in zip(subscriptions, codes, strict=True):
            if code < FIRST_ERROR:
                self._subscriptions[topic_filter] = (options, properties)
            else:
                refused.append(f"{topic_filter}: {reason_text(code)}")
        if refused:
            raise SubscriptionError(", ".join(refused))
        return codes

    async def unsubscribe(self, *filters: str, properties: Properties = NO_PROPERTIES) -> tuple[int, ...]:
        """Unsubscribe from filters; returns the server's reason codes, none before MQTT 5."""
        for topic_filter in filters:
            self._subscriptions.pop(topic_filter, None)
        return await self._ask(lambda core: core.unsubscribe(filters, properties))

    async def next_batch(self, count_max: int | None = None) -> list[ReceivedMessage]:
        """Wait for messages, one at least and `count_max` at most; acknowledges the batch before."""
        self._unread.acknowledge()
        while not self._unread:
            self._check_alive()
            await self._wait_for_change()
        return self._unread.take(count_max)

    def acknowledge(self) -> None:
        """Acknowledge the messages of the last batch without asking for others."""
        self._unread.acknowledge()

    async def messages(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages without end; a batch is acknowledged when its last one was taken."""
        while True:
            for message in await self.next_batch():
                yield message

    # The connection --------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Try to connect once; returns with the CONNACK."""
        settings = self.settings
        address = self._address
        authenticator = settings.authenticator() if settings.authenticator is not None else None
        self._authenticator = authenticator
        core = ClientConnection(
            self._session,
            settings.connect_packet(
                is_first=self._is_first,
                client_id=self.connected_with.client_id,
                authenticator=authenticator,
            ),
            asyncio.get_running_loop().time(),
            in_flight_max=settings.window,
            gives_aliases=settings.gives_aliases,
            answer_timeout_s=settings.connect_timeout_s,
        )
        connection = MqttConnection(core, self)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening = (connection, opened)
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                connection.begin(await open_link(address, connection, self._context))
                await opened
        except TimeoutError:
            connection.abort()
            raise ConnectionClosedError(
                f"{address}: no connection within {settings.connect_timeout_s:g} s"
            ) from None
        except OSError as error:
            raise ConnectionClosedError(f"{address}: {error.strerror or error}") from None
        except BaseException:
            connection.abort()
            raise
        finally:
            self._opening = None
            opened.cancel()

    async def _keep_connected(self) -> None:
        """Connect again whenever the connection is lost, until that makes no sense any more."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(min_s=self.settings.reconnect_min_s, max_s=self.settings.reconnect_max_s)
        try:
            while True:
                began_s = loop.time()
                while self._connection is not None:
                    await self._wait_for_change()
                if self._failure is not None:
                    return
                if loop.time() - began_s >= _STABLE_S:
                    backoff.reset()
                while self._connection is None:
                    await asyncio.sleep(backoff.next_s())
                    try:
                        await self._connect()
                    except (ConnectionClosedError, ServerRefusedError) as error:
                        self._say(str(error))
                    if self._failure is not None:
                        return
                self._say("connected again")
                await self._subscribe_again()
        except IotmqError as error:
            self._fail(error)

    async def _subscribe_again(self) -> None:
        """Subscribe again if the server has lost the session; with MQTT 3.1 it does not say so."""
        if self.connected_with.is_session_present and self.settings.protocol_level != PROTOCOL_LEVEL_3_1:
            return
        by_properties: dict[int, tuple[Properties, list[_Subscribed]]] = {}
        for entry in self._subscriptions.items():
            properties = entry[1][1]
            by_properties.setdefault(id(properties), (properties, []))[1].append(entry)
        for properties, entries in by_properties.values():
            for at in range(0, len(entries), _FILTERS_PER_PACKET):
                with suppress(ConnectionClosedError):
                    await self._ask_once(entries[at : at + _FILTERS_PER_PACKET], properties)

    async def _ask_once(self, entries: Sequence[_Subscribed], properties: Properties) -> None:
        """Subscribe on this connection only; the next one subscribes again by itself."""
        connection = self._connection
        if connection is None:
            raise ConnectionClosedError("the connection is lost")
        # Some may have been unsubscribed, or subscribed with other options, since this connection was made.
        entries = [entry for entry in entries if self._subscriptions.get(entry[0]) is entry[1]]
        if not entries:
            return
        try:
            packet_id = connection.core.subscribe([(name, kept[0]) for name, kept in entries], properties)
        except SubscriptionError as error:
            # The server takes smaller packets than it did, or not every kind of filter.
            if len(entries) == 1:
                self._say(f"{entries[0][0]}: {error}")
                return
            half = len(entries) // 2
            await self._ask_once(entries[:half], properties)
            await self._ask_once(entries[half:], properties)
            return
        codes = await self._send_question(connection, packet_id)
        for (topic_filter, _kept), code in zip(entries, codes, strict=True):
            if code >= FIRST_ERROR:
                self._say(f"{topic_filter}: {reason_text(code)}")

    async def _ask(self, send: Callable[[ClientConnection], int]) -> tuple[int, ...]:
        """Ask the server until it answers, over as many connections as it takes."""
        while True:
            while self._connection is None:
                self._check_alive()
                await self._wait_for_change()
            self._check_alive()
            connection = self._connection
            with suppress(ConnectionClosedError):
                return await self._send_question(connection, send(connection.core))

    def _send_question(self, connection: MqttConnection, packet_id: int) -> asyncio.Future[tuple[int, ...]]:
        answer: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        self._asked[packet_id] = answer
        connection.send_soon()
        return answer

    # What a connection tells -----------------------------------------------------------------------------

    def events_came(self, connection: MqttConnection, events: list[ClientEvent], size: int) -> None:
        messages: list[ReceivedMessage] = []
        for event in events:
            if type(event) is ReceivedMessage:
                messages.append(event)
            elif type(event) is Acknowledged:
                if event.token is not None:
                    event.token(event)  # type: ignore[operator]
            else:
                self._handle_rare(connection, event)
        if messages:
            self._unread.add(connection, messages, size)
        self._changed()

    def room_changed(self) -> None:
        self._changed()

    def connection_ended(self, connection: MqttConnection, ending: Ending) -> None:
        error = error_of(ending)
        if self._opening is not None and connection is self._opening[0]:
            self._redirect(ending)
            self._not_opened(error)
            if not self._is_first and is_final(ending):
                self._fail(error)
        if connection is not self._connection:
            return
        self._connection = None
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionClosedError("the connection is lost"))
        self._asked.clear()
        if is_final(ending) or not (self.settings.reconnects or ending.is_ours):
            self._fail(error)
        elif not ending.is_ours:
            self._redirect(ending)
            self._say(f"{ending.text}; connecting again")
        self._changed()

    def _handle_rare(self, connection: MqttConnection, event: ClientEvent) -> None:
        if isinstance(event, Connected):
            self._handle_connected(connection, event)
        elif isinstance(event, Subscribed | Unsubscribed):
            answer = self._asked.pop(event.answers.packet_id, None)
            if answer is not None and not answer.done():
                answer.set_result(event.answers.codes)
        elif isinstance(event, Challenged):
            self._handle_challenge(connection, event.auth)
        else:
            # The connection says why when it ends, which is next.
            assert isinstance(event, ConnectRefused)

    def _handle_connected(self, connection: MqttConnection, event: Connected) -> None:
        try:
            if self._authenticator is not None:
                self._authenticator.finish(event.properties.authentication_data or b"")
        except ClientError as error:
            self._not_opened(error)
            return
        connection.core.trust()
        self.connected_with = event
        self._connection = connection
        if self._opening is not None and not self._opening[1].done():
            self._opening[1].set_result(None)

    def _handle_challenge(self, connection: MqttConnection, auth: ServerAuth) -> None:
        authenticator = self._authenticator
        if authenticator is None or auth.code != CONTINUE_AUTHENTICATION:
            return
        try:
            data = authenticator.answer(auth.properties.authentication_data or b"")
        except ClientError as error:
            self._not_opened(error)
            return
        connection.core.authenticate(data)

    def _not_opened(self, error: IotmqError) -> None:
        if self._opening is not None and not self._opening[1].done():
            self._opening[1].set_exception(error)

    def _redirect(self, ending: Ending) -> None:
        """Follow the server's redirection [section 4.11]; a temporary one holds for the next try only."""
        references = parse_references(ending.properties.server_reference or "", self.settings.address)
        moved: Address = self.settings.address
        if references and ending.code in (USE_ANOTHER_SERVER.v5_code, SERVER_MOVED.v5_code):
            moved = references[0]
            self._say(f"the server sends us to {moved}")
        if ending.code == SERVER_MOVED.v5_code and references:
            self.settings = replace(self.settings, address=moved)
        self._address = moved

    # Waiting ---------------------------------------------------------------------------------------------

    def _fail(self, error: IotmqError) -> None:
        """Rule out further connections: all waiting calls raise the error."""
        if self._failure is None:
            self._failure = error
        waiting: list[asyncio.Future[Any]] = [*self._asked.values(), *self._publishing]
        for future in waiting:
            if not future.done():
                future.set_exception(self._failure)
        self._asked.clear()
        self._changed()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _changed(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for change in waiting:
                if not change.done():
                    change.set_result(None)

    async def _wait_for_change(self) -> None:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(change)
        await change

    def _say(self, text: str) -> None:
        if self._on_change is not None:
            self._on_change(text)
