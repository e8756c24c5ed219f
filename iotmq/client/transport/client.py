"""Hold what producers and consumers of one process share: connections, routes and heartbeats."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeAlias

from iotmq.addresses import parse_address
from iotmq.client.transport.connection_events import ConnectionEvents, ConnectionListener
from iotmq.client.transport.connections import ConnectionCallbacks, Connections
from iotmq.client.transport.interceptors import Interceptor, Interceptors
from iotmq.client.transport.lifetime import Lifetime
from iotmq.client.transport.master_watch import MasterCallbacks, MasterWatch, OnBack, OnMoved
from iotmq.client.transport.registries import Registries, Routes
from iotmq.client.transport.routes import MASTER_ID
from iotmq.client.transport.settings import ClientSettings
from iotmq.client.transport.subscriptions import ConsumerData, encode_heartbeat
from iotmq.clock import Clock, SystemClock
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConfigError,
    ConnectionClosedError,
    NotMasterError,
    NotSupportedError,
    RequestTimeoutError,
)
from iotmq.message.compression import Compression
from iotmq.remoting.codes import (
    BATCH_COMPRESSION_FIELD,
    IS_MASTER_FIELD,
    LanguageCode,
    RequestCode,
    ResponseCode,
    Version,
)
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)
_instances = itertools.count(1)

RequestHandler: TypeAlias = Callable[[ClientConnection, Command], Command | None]
"""Answers a request of a broker's own; the next one is asked when it has no answer, or not SUCCESS."""
ANSWERED_LATER: Final = Command.request(0)
"""Returned by a handler that will answer by itself (`connection.reply`)."""


class GroupConsumer(Protocol):
    """Define the calls a client makes to a consumer of a group."""

    @property
    def group(self) -> str:
        """Return the consumer group's name."""

    def heartbeat(self) -> ConsumerData:
        """Return the consumer's part of the heartbeat."""

    def members_changed(self) -> None:
        """Handle a broker's notice that members or subscriptions of the group changed."""

    def route_changed(self, topic: str) -> None:
        """Handle a change of the queues of `topic`."""


class ClientTransport(Lifetime):
    """The connections, routes and heartbeats that producers and consumers share."""

    def __init__(
        self,
        settings: ClientSettings | None = None,
        *,
        clock: Clock | None = None,
        interceptors: Iterable[Interceptor] = (),
    ) -> None:
        self.settings = settings or ClientSettings()
        self.clock: Clock = clock or SystemClock()
        for address in self.settings.registries:
            try:
                parse_address(address)
            except ValueError as error:
                raise ConfigError(f"registries: {error}") from error
        self.client_id = self.settings.client_id or _unique_client_id()
        self.interceptors = Interceptors(interceptors)
        """The interceptors of the application; producers and consumers ask for them when they are made."""
        self.request_timeout_s = self.settings.request_timeout_ms / 1000
        self.connection_events = ConnectionEvents(self._broker_at)
        """Tells the application what becomes of connections."""
        callbacks = ConnectionCallbacks(
            requested=self._requested,
            connected=self._connected,
            lost=self._lost,
            events=self.connection_events,
        )
        self.connections = Connections(self.settings, callbacks, clock=self.clock)
        """The connections, one per address."""
        self.registries = Registries(
            self.settings.registries, self.connections, timeout_s=self.request_timeout_s
        )
        """The registries, one asked at a time."""
        self.masters = MasterWatch(
            self.settings.registries,
            self.connections,
            clock=self.clock,
            timeout_s=self.request_timeout_s,
            ask=self.registries.cluster,
            callbacks=MasterCallbacks(moved=self._master_moved, back=self._master_back),
        )
        """Follows the masters of the brokers in use."""
        self._moved_listeners: list[OnMoved] = []
        self._back_listeners: list[OnBack] = []
        self.routes = Routes(
            self.registries,
            refresh_s=self.settings.route_refresh_ms / 1000,
            missing_refresh_s=self.settings.missing_route_refresh_ms / 1000,
            on_changed=self._route_changed,
            review=self.masters.review,
        )
        """The routes of the topics in use."""
        self._producers: dict[str, int] = {}
        self._consumers: dict[str, GroupConsumer] = {}
        self._introduced: dict[str, ClientConnection] = {}
        """Address -> the connection on which its broker has had a heartbeat."""
        self._with_timers: set[str] = set()
        """The addresses of brokers with a connection that are known to deliver messages at any time."""
        self._batch_compression: dict[str, str] = {}
        """Address -> how its broker has said that batches may be compressed, while there is a connection."""
        self._request_handlers: dict[int, list[RequestHandler]] = {}
        self._heartbeater: asyncio.Task[None] | None = None
        self._recoveries: dict[str, asyncio.Task[None]] = {}
        """Address -> the task that makes its lost connection again, for the consumers."""
        self._is_running = False

    @property
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
        return self._is_running

    async def start(self) -> None:
        """Begin background work; connections are made when they are needed."""
        if self._is_running:
            return
        if self.connections.is_closed:
            raise ClientClosedError("the client was stopped: make another one")
        self._is_running = True
        self.connection_events.start()
        self.routes.start()
        self.masters.start()
        self._heartbeater = supervise("heartbeats", self._heartbeat_forever)
        started: list[Interceptor] = []
        try:
            for interceptor in self.interceptors.all:
                await interceptor.start(self)
                started.append(interceptor)
        except BaseException:
            for interceptor in started:
                await interceptor.stop()
            await ClientTransport.stop(self)
            raise

    async def stop(self) -> None:
        """End background work and close the connections. Stop producers and consumers first."""
        if not self._is_running:
            return
        self._is_running = False
        tasks = [*self._recoveries.values()]
        if self._heartbeater is not None:
            tasks.append(self._heartbeater)
        await end(tasks)
        await self.routes.stop()
        await self.masters.stop()
        await self.connections.close()
        await self.connection_events.stop()

    def on_connection(self, call: ConnectionListener) -> None:
        """Call a plain or a coroutine function about each event of the connections, one after the other.

        What it raises is counted and logged. While it is at work 1,024 events wait, the latest ones.
        """
        if not callable(call):
            raise ConfigError(f"on_connection takes a function, not {call!r}")
        self.connection_events.listen(call)

    async def request(self, address: str, command: Command, *, timeout_s: float | None = None) -> Command:
        """Ask the broker at HOST:PORT; returns its answer, whatever the response code.

        ConnectionClosedError when it cannot be reached, RequestTimeoutError when it does not answer.
        """
        connection = await self.connections.get(address)
        return await connection.request(
            command, timeout_s=self.request_timeout_s if timeout_s is None else timeout_s
        )

    def add_producer(self, group: str) -> None:
        """Name a producer group in heartbeats from now on; brokers we are connected to hear of it at once."""
        self.check_running()
        before = self._producers.get(group, 0)
        self._producers[group] = before + 1
        if before:
            return
        for address in self._broker_addresses(masters_only=True):
            connection = self.connections.ready(address)
            if connection is not None:
                self._introduce(address, connection)

    async def remove_producer(self, group: str) -> None:
        """Undo one `add_producer`; the last one tells the brokers."""
        left = self._producers.get(group, 0) - 1
        if left > 0:
            self._producers[group] = left
        elif self._producers.pop(group, None) is not None:
            await self._unregister("producerGroup", group)

    def add_consumer(self, consumer: GroupConsumer) -> None:
        """Name a consumer in heartbeats; ClientError when this client has one of that group."""
        self.check_running()
        if consumer.group in self._consumers:
            raise ClientError(
                f"this client has a consumer of group {consumer.group} already: one client is one member; "
                "use another IotmqClient for another member"
            )
        self._consumers[consumer.group] = consumer

    def find_consumer(self, group: str) -> GroupConsumer | None:
        """Return the consumer of a group that heartbeats name."""
        return self._consumers.get(group)

    async def remove_consumer(self, consumer: GroupConsumer) -> None:
        """Tell the brokers that this client leaves the group."""
        if self._consumers.get(consumer.group) is consumer:
            del self._consumers[consumer.group]
            await self._unregister("consumerGroup", consumer.group)

    def add_request_handler(self, code: int, handler: RequestHandler) -> None:
        """Have `handler` asked for an answer when a broker sends a request with this code."""
        self._request_handlers.setdefault(code, []).append(handler)

    def remove_request_handler(self, code: int, handler: RequestHandler) -> None:
        """Undo `add_request_handler`."""
        self._request_handlers[code].remove(handler)

    def may_lack_timers(self, address: str) -> bool:
        """Return whether `check_timers` has to be asked before a message with a time of its own is sent."""
        return address not in self._with_timers

    def opens_batches(self, address: str, method: Compression) -> bool:
        """Return whether a broker has said that it opens batches that are compressed as a whole."""
        return method in self._batch_compression.get(address, "").split(",")

    async def check_timers(self, broker_name: str, address: str) -> None:
        """Raise NotSupportedError when a broker would deliver at once what has a time of its own.

        Those of RocketMQ 4 do, and their answer to a send does not say so.
        """
        answer = await self.request(address, self._heartbeat_command())
        if answer.language == LanguageCode.JAVA and answer.version < Version.HAS_TIMERS:
            raise NotSupportedError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"broker {broker_name} is one of RocketMQ 4 and delivers at no time of a message's own "
                "(delay_ms, deliver_at_ms): use delay_level. The message is not sent",
            )
        if self.connections.ready(address) is not None:
            self._with_timers.add(address)

    def on_master_moved(self, call: OnMoved) -> None:
        """Call with a broker's name, former and present address when its master is another one."""
        self._moved_listeners.append(call)

    def on_master_back(self, call: OnBack) -> None:
        """Call with a broker's name when its master is back where it was, and whether its epoch is later."""
        self._back_listeners.append(call)

    async def heartbeat(self) -> None:
        """Tell every broker in use now; returns when each has answered or failed."""
        await asyncio.gather(*(self._heartbeat_to(address) for address in self._heartbeat_addresses()))

    def check_running(self) -> None:
        """Raise ClientClosedError unless the client is started."""
        if not self._is_running:
            raise ClientClosedError(
                "the client is not started, or was stopped: use `async with iotmq.connect(...) as client`, "
                "or start()"
            )

    def _broker_addresses(self, *, masters_only: bool = False) -> set[str]:
        return {
            address
            for route in self.routes.all_known()
            for by_id in route.addresses.values()
            for broker_id, address in by_id.items()
            if broker_id == MASTER_ID or not masters_only
        }

    def _broker_at(self, address: str) -> str:
        for route in self.routes.all_known():
            for name, by_id in route.addresses.items():
                if address in by_id.values():
                    return name
        return ""

    def _heartbeat_addresses(self) -> set[str]:
        # A producer needs no connection to a broker it does not send to.
        if self._consumers:
            return self._broker_addresses()
        if self._producers:
            return self._broker_addresses(masters_only=True) & set(self.connections.open_addresses())
        return set()

    def _heartbeat_command(self) -> Command:
        body = encode_heartbeat(
            self.client_id, self._producers, [consumer.heartbeat() for consumer in self._consumers.values()]
        )
        return Command.request(RequestCode.HEART_BEAT, {}, body)

    async def _heartbeat_to(self, address: str) -> None:
        try:
            response = await self.request(address, self._heartbeat_command())
        except (ConnectionClosedError, RequestTimeoutError, ClientClosedError) as error:
            _log.debug("heartbeat to %s: %s", address, error)
            return
        if response.code != ResponseCode.SUCCESS:
            _log.warning("broker %s refuses the heartbeat: %s", address, response.remark)

    async def _heartbeat_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat_ms / 1000)
            await self.heartbeat()

    async def _unregister(self, kind: str, group: str) -> None:
        async def one(address: str) -> None:
            command = Command.request(
                RequestCode.UNREGISTER_CLIENT, {"clientID": self.client_id, kind: group}
            )
            try:
                await self.request(address, command)
            except (ConnectionClosedError, RequestTimeoutError, ClientClosedError) as error:
                _log.debug("leaving group %s at %s: %s", group, address, error)

        addresses = self._broker_addresses() & set(self.connections.open_addresses())
        await asyncio.gather(*(one(address) for address in addresses))

    def _connected(self, address: str, connection: ClientConnection) -> None:
        # The broker must know the groups before it sees a pull or a question about members on this
        # connection; requests of one connection are handled in order.
        if (self._consumers or self._producers) and address in self._broker_addresses():
            self._introduce(address, connection)
            for consumer in self._consumers.values():
                consumer.members_changed()

    def _introduce(self, address: str, connection: ClientConnection) -> None:
        """Send a heartbeat without waiting for its answer."""
        self._introduced[address] = connection
        answer = connection.request_nowait(self._heartbeat_command())
        answer.add_done_callback(partial(self._introduction_answered, address, connection))

    def _introduction_answered(
        self, address: str, connection: ClientConnection, answer: asyncio.Future[Command]
    ) -> None:
        # A lost connection is made again, and this with it.
        if answer.cancelled() or answer.exception() is not None:
            return
        if self._introduced.get(address) is connection:
            self._batch_compression[address] = answer.result().ext.get(BATCH_COMPRESSION_FIELD, "")

    def _lost(self, address: str) -> None:
        self._introduced.pop(address, None)
        self._batch_compression.pop(address, None)
        self._with_timers.discard(address)
        if self._is_running:
            self.masters.lost(address)
            self._connect_again(address)

    def _connect_again(self, address: str) -> None:
        if not self._is_asked or address in self._recoveries:
            return
        if address in self._broker_addresses():
            task = asyncio.ensure_future(self._recover(address))
            self._recoveries[address] = task
            task.add_done_callback(lambda _: self._recoveries.pop(address, None))

    async def _recover(self, address: str) -> None:
        """Reconnect a lost connection while consumers or request handlers depend on it."""
        while self._is_asked and address in self._broker_addresses():
            await self.masters.moved_within(self.connections.rest_s(address) + 0.001)
            try:
                await self.connections.get(address)
                return
            except ConnectionClosedError:
                continue

    @property
    def _is_asked(self) -> bool:
        """Return whether brokers send requests to this client: to consumers or request handlers."""
        return bool(self._consumers) or any(self._request_handlers.values())

    def _route_changed(self, topic: str) -> None:
        self._introduce_where_new()
        for consumer in self._consumers.values():
            consumer.route_changed(topic)

    def _master_moved(self, name: str, former: str, address: str) -> None:
        """Send everything that is for a broker to its present master, also what the former did not answer."""
        self.connection_events.note_master(name, former, address)
        topics = self.routes.move_master(name, address)
        self._introduce_where_new()
        if former not in self._broker_addresses():
            self.connections.drop(former)
            self._batch_compression.pop(former, None)
            self._with_timers.discard(former)
        for consumer in self._consumers.values():
            for topic in topics:
                consumer.route_changed(topic)
        for call in self._moved_listeners:
            call(name, former, address)

    def _master_back(self, name: str, is_renewed: bool) -> None:
        """Connect again to a master that is back."""
        for address in {route.master(name) or "" for route in self.routes.all_known()}:
            if self.connections.ready(address) is None:
                self._connect_again(address)
        for call in self._back_listeners:
            call(name, is_renewed)

    def _introduce_where_new(self) -> None:
        # The connection may be older than the route: that of a client which asked as an operator before.
        for address in self._heartbeat_addresses():
            connection = self.connections.ready(address)
            if connection is not None and self._introduced.get(address) is not connection:
                self._introduce(address, connection)

    def _requested(self, connection: ClientConnection, command: Command) -> Command | None:
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            consumer = self._consumers.get(command.ext.get("consumerGroup", ""))
            if consumer is not None:
                consumer.members_changed()
            return None if command.is_oneway else command.reply(ResponseCode.SUCCESS)
        answer = None
        for handler in self._request_handlers.get(command.code, ()):
            answer = handler(connection, command) or answer
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                break
        if command.is_oneway or answer is ANSWERED_LATER:
            return None
        return answer or command.not_supported()


def expect_success(response: Command, doing: str) -> Command:
    """Return the response; BrokerError, naming the action, when it is not success."""
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NotSupportedError(
            response.code, f"{doing}: not supported there, by a server of RocketMQ or an older one of iotmq's"
        )
    if response.code != ResponseCode.SUCCESS:
        kind = NotMasterError if response.ext.get(IS_MASTER_FIELD) == "false" else BrokerError
        raise kind(response.code, f"{doing}: {response.remark or 'refused without a reason'}")
    return response


def _unique_client_id() -> str:
    # Host names may hold @, which Java tools split client ids at.
    host = socket.gethostname().replace("@", "-")[:128]
    return f"{host}@{os.getpid()}#{time.monotonic_ns():x}{next(_instances)}"
