"""The registry role: brokers register, clients ask for the routes of topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from iotmq.addresses import parse_address
from iotmq.clock import Clock, SystemClock
from iotmq.errors import RequestError
from iotmq.limits import (
    REGISTRATION_AT_ONCE_BYTES_MAX,
    REGISTRATION_BYTES_MAX,
    REGISTRATIONS_WAITING_BYTES_MAX,
    REGISTRATIONS_WAITING_MAX,
    REGISTRY_NAME_BYTES_MAX,
)
from iotmq.metrics import Metric, samples, samples_by
from iotmq.registry.access import RegistryAccess, RegistryAccounts
from iotmq.registry.changed_settings import ChangedSettingsFile, changed, setting_texts
from iotmq.registry.kv import ORDER_TOPIC_NAMESPACE, KeyValueFile, KeyValues, check_texts
from iotmq.registry.registration import Registration, decode_registration
from iotmq.registry.routes import (
    BrokerGroup,
    BrokerIdentity,
    DataVersion,
    RouteTable,
    TopicQueues,
    TopicRoute,
)
from iotmq.registry.settings import RegistrySettings
from iotmq.registry.watches import MasterWatches
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode, Version
from iotmq.remoting.command import Command
from iotmq.remoting.properties_text import parse_properties, properties_text
from iotmq.remoting.server import Listening, RemotingServer, ServerConnection
from iotmq.remoting.tls.files import server_tls
from iotmq.supervised import end, supervise, surviving

logger = logging.getLogger("iotmq.registry")

KV_FILE_NAME: Final = "kvConfig.json"
SETTINGS_FILE_NAME: Final = "registrySettings.json"
_FIRST_SCAN_S: Final = 5.0
_ACCOUNTS_INTERVAL_S: Final = 1.0
_CHANGES_WAITING_MAX: Final = 256
_LISTS_WAITING_MAX: Final = 256
_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2

_Handle: TypeAlias = Callable[[ServerConnection, Command], Command | None]
# Without an answer of its own it is SUCCESS.
_Change: TypeAlias = Callable[[], Awaitable[Command | None]]
_Changes: TypeAlias = asyncio.Queue[tuple[ServerConnection, Command, _Change]]


class Registry:
    """Routes in memory, rebuilt by the brokers' registrations; key-value settings in a file.

    Registries know nothing of each other: brokers register with all of them.
    """

    def __init__(
        self,
        settings: RegistrySettings,
        *,
        directory: Path | None = None,
        clock: Clock | None = None,
        accounts: RegistryAccounts | None = None,
    ) -> None:
        """`directory` gets kvConfig.json and registrySettings.json; without one what they would hold lasts as
        long as the process. `accounts` are those of the settings' acl_file."""
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self.watches = MasterWatches(lambda: self.routes.masters())
        self.routes = RouteTable(masters_changed=self.watches.changed)
        self.values = KeyValues()
        self._file = None if directory is None else KeyValueFile(directory / KV_FILE_NAME)
        self._settings_file = (
            None if directory is None else ChangedSettingsFile(directory / SETTINGS_FILE_NAME, settings)
        )
        # Changes of settings and key-value settings, applied one after the other.
        self._changes: _Changes = asyncio.Queue(_CHANGES_WAITING_MAX)
        # Lists of topics that were asked for, made one after the other.
        self._lists: _Changes = asyncio.Queue(_LISTS_WAITING_MAX)
        # Registrations that take long to decode, and what came behind them; the bytes and the number of those
        # not applied yet.
        self._late: _Changes = asyncio.Queue()
        self._late_size = 0
        self._late_count = 0
        # Both are set from start() to stop().
        self._changers: list[asyncio.Task[None]] = []
        self._scan_timer: asyncio.TimerHandle | None = None
        self._registrations_count = 0
        self._topics_refused_count = 0
        self._brokers_lost = {"silent": 0, "disconnected": 0, "unregistered": 0}
        self._accounts = accounts
        self._access = None if settings.access == "open" else RegistryAccess(self, settings, accounts)
        self._server = RemotingServer(
            self._access or self,
            Listening(
                host=settings.listen_host,
                port=settings.listen_port,
                idle_s=settings.idle_timeout_s,
                connections_max=settings.connections_max,
                name="registry",
            ),
            clock=self._clock,
            tls=server_tls(settings, requires_client_certificate=settings.is_client_certificate_required),
        )
        self._handlers: dict[int, _Handle] = {
            RequestCode.PUT_KV_CONFIG: self._put_value,
            RequestCode.GET_KV_CONFIG: self._get_value,
            RequestCode.DELETE_KV_CONFIG: self._delete_value,
            RequestCode.GET_KV_LIST_BY_NAMESPACE: self._list_values,
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: self._unregister,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTE_INFO_BY_TOPIC: self._route,
            RequestCode.WATCH_MASTERS: self._watch_masters,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: partial(self._set_writable, False, "wipeTopicCount"),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: partial(self._set_writable, True, "addTopicCount"),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY: self._topics,
            RequestCode.DELETE_TOPIC_IN_REGISTRY: self._delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_REGISTRY: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: partial(self._topics_of_flags, _UNIT, _UNIT),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(
                self._topics_of_flags, _UNIT_SUBSCRIPTION, _UNIT_SUBSCRIPTION
            ),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(
                self._topics_of_flags, _UNIT | _UNIT_SUBSCRIPTION, _UNIT_SUBSCRIPTION
            ),
            RequestCode.GET_REGISTRY_CONFIG: self._config,
            RequestCode.UPDATE_REGISTRY_CONFIG: self._update_config,
        }

    @property
    def port(self) -> int:
        """Return the port listened on; the real one after start()."""
        return self._server.port

    async def start(self) -> None:
        """Read the changed and the key-value settings and listen. StoreCorruptError, OSError."""
        if self._file is not None:
            self.values = await asyncio.to_thread(self._file.load)
        if self._settings_file is not None:
            self._settings = await asyncio.to_thread(self._settings_file.load)
        self._changers = [
            supervise("changes of settings", partial(self._apply, self._changes)),
            supervise("lists of topics", partial(self._apply, self._lists)),
            supervise("registrations", partial(self._apply, self._late)),
        ]
        if self._accounts is not None:
            self._changers.append(
                supervise("accounts", partial(self._accounts.reload_repeatedly, _ACCOUNTS_INTERVAL_S))
            )
        await self._server.start()
        self._scan_after(min(_FIRST_SCAN_S, self._settings.scan_interval_s))

    async def stop(self) -> None:
        """Stop listening; changes already asked for are saved and answered.

        Registrations, and lists of topics, that still wait are not: the brokers are registered nowhere then.
        """
        if self._scan_timer is not None:
            self._scan_timer.cancel()
            self._scan_timer = None
        if self._changers:
            await self._changes.join()
            await end(self._changers)
            self._changers.clear()
        self.watches.stop()
        await self._server.stop()

    def metrics(self) -> Iterable[Metric]:
        yield from self._server.metrics()
        if self._access is not None:
            yield from self._access.metrics()
        text = "Topics of all brokers, each counted for each broker."
        yield from samples(
            ("brokers", "Registered brokers.", self.routes.broker_count),
            ("topics", text, self.routes.topic_count),
            ("kv_entries", "Key-value settings.", self.values.count),
            ("registrations_total", "Registrations taken.", self._registrations_count),
            (
                "topics_refused_total",
                "Topics left out of registrations for a bad name or bad numbers.",
                self._topics_refused_count,
            ),
            (
                "stale_registrations_total",
                "Registrations of masters refused because a later one is known.",
                self.routes.stale_count,
            ),
            ("master_watchers", "Clients that wait for another master.", self.watches.count),
            prefix="iotmq_registry_",
        )
        yield from samples_by(
            "reason",
            "iotmq_registry_brokers_lost_total",
            "Brokers taken out of the routes.",
            self._brokers_lost,
        )

    def drop_silent_brokers(self) -> None:
        """Take brokers out of the routes that were silent too long; runs by itself."""
        now_s = self._clock.monotonic_s()
        silent = self.routes.expire(now_s, self._settings.broker_timeout_s)
        self.routes.forget_away(now_s, self._settings.broker_memory_s)
        self._lost("silent", silent)

    # The listener's handler.

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        handler = self._handlers.get(request.code)
        return request.not_supported() if handler is None else handler(connection, request)

    def connection_lost(self, connection: ServerConnection) -> None:
        self.watches.forget(connection)
        self._lost("disconnected", self.routes.channel_lost(connection))

    def _scan_after(self, delay_s: float) -> None:
        def scan() -> None:
            with surviving("end of silent brokers"):
                self.drop_silent_brokers()
            self._scan_after(self._settings.scan_interval_s)

        self._scan_timer = asyncio.get_running_loop().call_later(delay_s, scan)

    def _lost(self, reason: str, brokers: list[BrokerIdentity]) -> None:
        self._brokers_lost[reason] += len(brokers)
        for broker in brokers:
            level = logging.INFO if reason == "unregistered" else logging.WARNING
            logger.log(
                level,
                "broker lost",
                extra={
                    "reason": reason,
                    "broker": broker.name,
                    "broker_id": broker.broker_id,
                    "address": broker.address,
                },
            )

    # Brokers.

    def _register(self, connection: ServerConnection, request: Command) -> Command | None:
        identity = _identity(request)
        ha_address = _name(request, "haServerAddr", "")
        body = request.body_bytes()
        is_compressed = request.boolean("compressed")
        decode = partial(
            decode_registration, body, is_compressed=is_compressed, crc=request.integer("bodyCrc32", 0)
        )
        if not self._late_count and not is_compressed and len(body) <= REGISTRATION_AT_ONCE_BYTES_MAX:
            return self._registered(connection, request, identity, ha_address, decode())

        async def register() -> Command | None:
            registration = await asyncio.to_thread(decode)
            if connection.is_closed:
                # Its broker has left meanwhile; nobody would end what it is given now.
                return None
            return self._registered(connection, request, identity, ha_address, registration)

        self._later(connection, request, register, len(body))
        return None

    def _later(self, connection: ServerConnection, request: Command, change: _Change, size: int) -> None:
        """Carry out a broker's request when those before it are done: what it says last is what counts."""
        if (
            self._late_count >= REGISTRATIONS_WAITING_MAX
            or self._late_size + size > REGISTRATIONS_WAITING_BYTES_MAX
        ):
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{self._late_count} registrations with {self._late_size} bytes wait to be decoded",
            )

        async def apply() -> Command | None:
            try:
                return await change()
            finally:
                self._late_count -= 1
                self._late_size -= size

        self._late_count += 1
        self._late_size += size
        self._late.put_nowait((connection, request, apply))

    def _registered(
        self,
        connection: ServerConnection,
        request: Command,
        identity: BrokerIdentity,
        ha_address: str,
        registration: Registration,
    ) -> Command:
        count_before = self.routes.broker_count
        master = self.routes.register(
            identity,
            ha_address=ha_address,
            data_version=registration.data_version,
            topics=registration.topics,
            is_whole=request.boolean("isWhole"),
            channel=connection,
            now_s=self._clock.monotonic_s(),
        )
        self._registrations_count += 1
        if registration.topics_refused:
            self._topics_refused_count += registration.topics_refused
            logger.warning(
                "topics refused", extra={"broker": identity.name, "count": registration.topics_refused}
            )
        if self.routes.broker_count > count_before:
            logger.info(
                "broker registered",
                extra={
                    "broker": identity.name,
                    "broker_id": identity.broker_id,
                    "address": identity.address,
                    "topics": len(registration.topics),
                },
            )
        ext = {}
        if master.address:
            ext = {"haServerAddr": master.ha_address, "masterAddr": master.address}
        table = {"table": self.values.namespace(ORDER_TOPIC_NAMESPACE)}
        return request.reply(ResponseCode.SUCCESS, ext=ext, body=lenient_json.encode(table))

    def _unregister(self, connection: ServerConnection, request: Command) -> Command | None:
        identity = _identity(request)

        async def unregister() -> None:
            self._unregistered(connection, identity)

        if self._late_count:
            self._later(connection, request, unregister, 0)
            return None
        self._unregistered(connection, identity)
        return request.reply(ResponseCode.SUCCESS)

    def _unregistered(self, connection: ServerConnection, identity: BrokerIdentity) -> None:
        if self.routes.unregister(identity, channel=connection):
            self._lost("unregistered", [identity])

    def _query_data_version(self, connection: ServerConnection, request: Command) -> Command:
        identity = _identity(request)
        asked = lenient_json.decode_request(request.body, DataVersion)
        known = self.routes.data_version(identity.address)
        is_changed = known is None or known != asked
        if not is_changed:
            self.routes.renew(identity.address, self._clock.monotonic_s())
        body = b""
        if known is not None:
            document = {"counter": known.counter, "timestamp": known.timestamp}
            if known.state_version:
                document["stateVersion"] = known.state_version
            body = lenient_json.encode(document)
        return request.reply(
            ResponseCode.SUCCESS, ext={"changed": "true" if is_changed else "false"}, body=body
        )

    # Clients.

    def _route(self, connection: ServerConnection, request: Command) -> Command:
        topic = request.text("topic")
        route = self.routes.route(topic, with_away=request.boolean("withAway"))
        if route is None:
            return request.reply(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"no broker has the topic {topic[:128]!a}"
            )
        document = _route_document(route, self.values.get(ORDER_TOPIC_NAMESPACE, topic))
        if request.version >= Version.STANDARD_JSON or request.boolean("acceptStandardJsonOnly"):
            return request.reply(ResponseCode.SUCCESS, body=lenient_json.encode_ascii(document))
        return request.reply(ResponseCode.SUCCESS, body=lenient_json.encode(document))

    def _watch_masters(self, connection: ServerConnection, request: Command) -> Command | None:
        # A connection on which nothing moves is closed: the answer comes before that.
        return self.watches.watch(connection, request, wait_s_max=self._settings.idle_timeout_s / 2)

    def _cluster_info(self, connection: ServerConnection, request: Command) -> Command:
        document = {
            "brokerAddrTable": {group.name: _broker_document(group) for group in self.routes.groups()},
            "clusterAddrTable": self.routes.clusters(),
        }
        return request.reply(ResponseCode.SUCCESS, body=lenient_json.encode(document))

    def _topics(self, connection: ServerConnection, request: Command) -> None:
        self._list(connection, request, self.routes.topics(with_away=request.boolean("withAway")))

    def _topics_of_cluster(self, connection: ServerConnection, request: Command) -> None:
        self._list(connection, request, self.routes.topics(request.text("cluster")))

    def _system_topics(self, connection: ServerConnection, request: Command) -> Command:
        names: list[str] = []
        for cluster, brokers in self.routes.clusters().items():
            names += [cluster, *brokers]
        groups = self.routes.groups()
        address = groups[0].addresses[min(groups[0].addresses)] if groups else None
        return _topic_list(request, list(dict.fromkeys(names)), address)

    def _topics_of_flags(self, mask: int, flags: int, connection: ServerConnection, request: Command) -> None:
        self._list(connection, request, self.routes.topics(mask=mask, flags=flags))

    def _list(
        self, connection: ServerConnection, request: Command, topics: Generator[None, None, list[str]]
    ) -> None:
        """Answer with the names, one list after the other, each step of them in a turn of the loop."""

        async def collect() -> Command:
            while True:
                try:
                    next(topics)
                except StopIteration as end:
                    answer = _topic_list(request, end.value)
                    if len(answer.body_bytes()) > REGISTRATION_BYTES_MAX:
                        raise RequestError(
                            ResponseCode.SYSTEM_ERROR,
                            f"the names of {len(end.value)} topics do not fit an answer; ask by cluster",
                        ) from None
                    return answer
                await asyncio.sleep(0)

        self._put(self._lists, connection, request, collect, "lists of topics wait")

    # Operators.

    def _set_writable(
        self, is_writable: bool, count_field: str, connection: ServerConnection, request: Command
    ) -> Command:
        count = self.routes.set_writable(request.text("brokerName"), is_writable)
        return request.reply(ResponseCode.SUCCESS, ext={count_field: str(count)})

    def _delete_topic(self, connection: ServerConnection, request: Command) -> Command:
        self.routes.delete_topic(request.text("topic"), request.ext.get("clusterName") or None)
        return request.reply(ResponseCode.SUCCESS)

    def _config(self, connection: ServerConnection, request: Command) -> Command:
        return request.reply(ResponseCode.SUCCESS, body=properties_text(setting_texts(self._settings)))

    def _update_config(self, connection: ServerConnection, request: Command) -> None:
        """All lines or none, and kept for the next start."""
        values = parse_properties(request.body_bytes())
        # What cannot be is refused at once.
        changed(self._settings, values)
        self._change(connection, request, partial(self._change_settings, values))

    async def _change_settings(self, values: Mapping[str, str]) -> None:
        fresh = changed(self._settings, values)
        if self._settings_file is not None and fresh != self._settings:
            await asyncio.to_thread(self._settings_file.save, fresh)
        self._settings = fresh
        if self._scan_timer is not None:
            self._scan_timer.cancel()
            self._scan_after(fresh.scan_interval_s)

    # Key-value settings.

    def _get_value(self, connection: ServerConnection, request: Command) -> Command:
        value = self.values.get(request.text("namespace"), request.text("key"))
        if value is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark="no value under this key")
        return request.reply(ResponseCode.SUCCESS, ext={"value": value})

    def _list_values(self, connection: ServerConnection, request: Command) -> Command:
        values = self.values.namespace(request.text("namespace"))
        if not values:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark="no values in this namespace")
        return request.reply(ResponseCode.SUCCESS, body=lenient_json.encode({"table": values}))

    def _put_value(self, connection: ServerConnection, request: Command) -> None:
        namespace, key, value = request.text("namespace"), request.text("key"), request.text("value")
        check_texts(namespace=namespace, key=key, value=value)
        self._change_values(connection, request, lambda values: values.put(namespace, key, value))

    def _delete_value(self, connection: ServerConnection, request: Command) -> None:
        namespace, key = request.text("namespace"), request.text("key")
        self._change_values(connection, request, lambda values: values.delete(namespace, key))

    def _change_values(
        self, connection: ServerConnection, request: Command, change: Callable[[KeyValues], KeyValues]
    ) -> None:
        async def apply() -> None:
            fresh = change(self.values)
            if self._file is not None and fresh is not self.values:
                await asyncio.to_thread(self._file.save, fresh)
            self.values = fresh

        self._change(connection, request, apply)

    def _change(self, connection: ServerConnection, request: Command, change: _Change) -> None:
        self._put(self._changes, connection, request, change, "changes wait for the disk")

    @staticmethod
    def _put(
        waiting: _Changes, connection: ServerConnection, request: Command, change: _Change, what: str
    ) -> None:
        try:
            waiting.put_nowait((connection, request, change))
        except asyncio.QueueFull:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{waiting.maxsize} {what}") from None

    async def _apply(self, changes: _Changes) -> None:
        """Save each change off the loop, or decode it there, then use it and answer.

        What was answered is on the disk.
        """
        while True:
            connection, request, change = await changes.get()
            try:
                response = await change() or request.reply(ResponseCode.SUCCESS)
            except RequestError as error:
                response = request.reply(error.code, remark=str(error))
            except OSError as error:
                logger.error("settings not saved", extra={"detail": str(error)})
                response = request.reply(
                    ResponseCode.SYSTEM_ERROR, remark=f"the value could not be saved: {error.strerror}"
                )
            except Exception as error:
                # A fault of ours must not end the one task that changes values.
                self._server.traffic.handler_failed(request.code, error)
                response = request.reply(ResponseCode.SYSTEM_ERROR, remark=type(error).__name__)
            finally:
                changes.task_done()
            connection.reply(response)


def _identity(request: Command) -> BrokerIdentity:
    return BrokerIdentity(
        _name(request, "clusterName"),
        _name(request, "brokerName"),
        _address(request),
        request.integer("brokerId", minimum=0),
    )


def _address(request: Command) -> str:
    """The address of a broker; one that nobody can connect to would stop tools that ask every broker."""
    address = _name(request, "brokerAddr")
    try:
        parse_address(address, port_min=0)
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the field brokerAddr: {error}") from None
    return address


def _name(request: Command, field: str, default: str | None = None) -> str:
    text = request.text(field, default)
    if (not text and default is None) or len(text.encode()) > REGISTRY_NAME_BYTES_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the field {field} must have 1 to {REGISTRY_NAME_BYTES_MAX} bytes"
        )
    return text


def _broker_document(group: BrokerGroup) -> dict[str, object]:
    return {
        "brokerAddrs": {str(broker_id): group.addresses[broker_id] for broker_id in sorted(group.addresses)},
        "brokerName": group.name,
        "cluster": group.cluster,
    }


def _route_document(route: TopicRoute, order: str | None) -> dict[str, object]:
    document: dict[str, object] = {
        "brokerDatas": [_broker_document(group) for group in route.brokers],
        "filterServerTable": {},
        "queueDatas": [_queues_document(name, queues) for name, queues in route.queues],
    }
    if order is not None:
        document["orderTopicConf"] = order
    return document


def _queues_document(name: str, queues: TopicQueues) -> dict[str, object]:
    document: dict[str, object] = {
        "brokerName": name,
        "perm": queues.permissions,
        "readQueueNums": queues.read_queue_count,
        # Clients before 4.6 read the misspelt name.
        "topicSynFlag": queues.sys_flag,
        "topicSysFlag": queues.sys_flag,
        "writeQueueNums": queues.write_queue_count,
    }
    if queues.frozen:
        # Ours; other clients pass it over.
        document["frozenQueues"] = queues.frozen
    return document


def _topic_list(request: Command, topics: list[str], address: str | None = None) -> Command:
    document: dict[str, object] = {"topicList": topics}
    if address is not None:
        document["brokerAddr"] = address
    return request.reply(ResponseCode.SUCCESS, body=lenient_json.encode(document))
