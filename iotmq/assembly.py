"""Puts the roles of one process together, starts them from the back and stops them from the front."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

import iotmq
from iotmq.addresses import address_text, reachable_address
from iotmq.broker.settings import BrokerSettings
from iotmq.clock import Clock, SystemClock
from iotmq.config.config import Config
from iotmq.cycles import rare_collections, short_collections
from iotmq.errors import IotmqError, StoreError
from iotmq.history.questions import HISTORY
from iotmq.metrics import Metric, MetricSource, SourceReader
from iotmq.mqtt_front.settings.listeners import TCP_NAME, websocket_places
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.device_access import DeviceAccess
from iotmq.ports.inspections import LOCAL_FRONT_END
from iotmq.ports.publishing import PublishPlaces
from iotmq.ports.websockets import WebSocketPlace
from iotmq.service_manager import ServiceManager
from iotmq.supervised import FAILURES
from iotmq.telemetry.loop_lag import LoopLag

# What a role needs is imported when it starts: half of what a process costs at first are modules.
if TYPE_CHECKING:
    from iotmq.alarms.role import AlarmsRole, SysTopics
    from iotmq.broker.broker import Broker
    from iotmq.client.client import IotmqClient
    from iotmq.client.transport.settings import ClientSettings
    from iotmq.front_port.gateway import RemoteGateway
    from iotmq.history.sampler import MetricHistory
    from iotmq.master_slave.master import MasterBroker
    from iotmq.master_slave.slave import SlaveBroker
    from iotmq.ports.gateway import GatewayPort
    from iotmq.ports.sessions import SessionPort
    from iotmq.store.store import Store
    from iotmq.telemetry.role import TelemetryRole
    from iotmq.workers.supervisor import WorkerSupervisor

logger = logging.getLogger("iotmq")

RoleName = Literal["serve", "registry", "broker", "mqtt", "bridges"]

# Listeners and connections have this long to end, all together; the log is closed after that and to the
# end, because cutting it short would be a crash. In all a stop takes less than two seconds.
_CONNECTIONS_STOP_S: Final = 1.5
# Workers do that in processes of their own, which then have to be gone.
_WORKERS_STOP_S: Final = 1.8
# A master hands over first.
_MEMBER_STOP_S: Final = 4.0
_ROLE_STOP_S_MIN: Final = 0.05
# The address is taken, not one of this machine's, or not for this user.
_ADDRESS_ERRORS: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
# Half a megabyte of the kernel's memory.
_OPEN_FILES_AT_ONCE: Final = 65_536
_OWN_REGISTRY_S: Final = 5.0
# How long a log may take to open before the HTTP port opens beside it.
_OPEN_AT_ONCE_S: Final = 0.1


class StartError(IotmqError):
    """A role could not start; the text names it and says why."""


class Role(Protocol):
    """Run one role: `start` returns when it serves, `stop` when nothing of it is left."""

    async def start(self) -> None:
        """Begin to serve."""

    async def stop(self) -> None:
        """End; allowed once, after `start` returned."""


class Process:
    """The roles of one process: "serve" has all of them, every other name one; all have the HTTP port.

    "mqtt" with more than one worker has processes that serve devices, and looks after them. `is_worker` is
    one of those: it shares its MQTT port with the others, and has no HTTP port.
    """

    def __init__(self, config: Config, role: RoleName, *, is_worker: bool = False) -> None:
        self._config = config
        self._role = role
        self._is_worker = is_worker
        self._workers = _workers(config) if _has_workers(config, role) and not is_worker else None
        self._clock: Clock = SystemClock()
        # Gets its port while starting when the setting asks for any free one.
        self._broker_settings = config.broker
        self._is_member = config.replication.mode == "elected" and role in ("serve", "broker")
        self._started: list[tuple[str, Role]] = []
        # The log being opened, from the start to the stop of a process that has the broker.
        self._opening: asyncio.Future[Store] | None = None
        self._loop_lag = LoopLag(self._clock)
        self._telemetry: TelemetryRole | None = None
        self.sources: list[MetricSource] = [FAILURES, self._loop_lag]
        self._reader = SourceReader(self.sources)
        """Sources of metrics."""
        self.history: MetricHistory | None = None
        """The history of its metrics; made by `start`, unless it is switched off."""
        self._checks: dict[str, Callable[[], str | None]] = {"process": lambda: "starting"}
        # Set while there is a front end in this process that has such topics.
        self.sys_topics: SysTopics | None = None
        self.addresses: dict[str, str] = {}
        """Role -> HOST:PORT it listens on; filled while starting."""

    async def start(self) -> None:
        """Start every role. When one fails, those before it are stopped.

        StartError names the role; StoreError, StoreLockedError among them, says why the log cannot be opened.
        """
        if self._role == "bridges" and not self._config.bridges:
            raise StartError("bridges: there are none in the settings: [[bridges]] is missing")
        self._loop_lag.start()
        try:
            self._start_telemetry()
            if self._role in ("serve", "broker") and not self._is_member:
                await self._begin_opening_store()
            if self._config.history.enabled:
                await self._start_history()
            if not self._is_worker:
                # Before the others: they show why a process that recovers a long log is not ready yet.
                alarms = self._alarms() if self._config.alarms.enabled else None
                await self._start_http(alarms)
                if alarms is not None:
                    await self._start("alarms", alarms)
                    self._watch("alarms", alarms)
            if self._role in ("serve", "registry"):
                await self._start_registry()
            broker = None
            if self._role in ("serve", "broker"):
                if self._is_member:
                    await self._start_member()
                else:
                    broker = await self._start_store_and_broker()
            if self._workers is not None:
                await self._start_mqtt_workers(self._workers)
            elif self._role in ("serve", "mqtt"):
                await self._start_mqtt_front(broker)
            if self._config.bridges and self._role in ("serve", "bridges"):
                await self._start_bridges(broker)
        except BaseException:
            await self.stop()
            raise
        del self._checks["process"]

    async def stop(self) -> None:
        """Stop what was started, the last one first, and close the log. What goes wrong is logged."""
        self._checks["process"] = lambda: "stopping"
        if self._telemetry is not None:
            # The last numbers; parts that have ended have none.
            self._telemetry.give_metrics()
        loop = asyncio.get_running_loop()
        stop_s = _CONNECTIONS_STOP_S if self._workers is None else _WORKERS_STOP_S
        deadline_s = loop.time() + (_MEMBER_STOP_S if self._is_member else stop_s)
        # What ends from now on is no alarm.
        self._started.sort(key=lambda started: started[0] == "alarms")
        while self._started:
            name, role = self._started.pop()
            try:
                async with asyncio.timeout_at(max(deadline_s, loop.time() + _ROLE_STOP_S_MIN)):
                    await role.stop()
            except TimeoutError:
                logger.warning("%s did not stop in time", name)
            except Exception:
                logger.exception("%s failed while stopping", name)
        opening, self._opening = self._opening, None
        if opening is not None:
            try:
                # A thread that still recovers cannot be told to end, and an open log has to be closed.
                # Nobody else calls into the store any more, so closing it may block.
                (await opening).close()
            except StoreError as error:
                logger.debug("the log was not open: %s", error)
            except Exception:
                logger.exception("the log could not be closed")
        self._loop_lag.stop()
        telemetry, self._telemetry = self._telemetry, None
        if telemetry is not None:
            await telemetry.stop()

    def readiness(self) -> Mapping[str, str | None]:
        """Part -> why it is not ready, None when it is."""
        return {name: check() for name, check in self._checks.items()}

    async def status(self) -> str:
        """Ask the workers, too, and return in one line why parts are not ready, or "ready"."""
        states = await self.states()
        reasons = [f"{part}: {reason}" for part, reason in states.items() if reason is not None]
        return "; ".join(reasons) or "ready"

    async def states(self) -> Mapping[str, str | None]:
        """Part -> why it is not ready, None when it is; workers are asked, and their numbers are from now."""
        workers = self._workers
        if workers is not None:
            await workers.refresh()
        return {**self.readiness(), **({} if workers is None else workers.worker_states())}

    def metrics(self) -> Iterable[Metric]:
        """The numbers of all parts; those of one that cannot be read are left out, and the log says why."""
        return self._reader.samples()

    # One method per role ------------------------------------------------------------------------------

    async def _start_history(self) -> None:
        from iotmq.history.sampler import MetricHistory

        self.history = MetricHistory(
            self.sources,
            self._config.history,
            self._clock,
            refresh=None if self._workers is None else self._workers.refresh,
        )
        await self._start("history", self.history)
        self._watch("history", self.history)

    def _start_telemetry(self) -> None:
        """Before the roles, which look whether messages are traced."""
        if self._config.telemetry.endpoint:
            from iotmq.telemetry.role import TelemetryRole

            # The supervisor exports the metrics of its workers.
            metrics = None if self._is_worker else self.metrics
            self._telemetry = TelemetryRole(
                self._config.telemetry,
                metrics,
                refresh=None if self._workers is None else self._workers.refresh,
                instance=self._config.mqtt.name or f"{socket.gethostname()}:{self._role}:{os.getpid()}",
            )
            self.sources.append(self._telemetry)
            self._telemetry.start()

    def _alarms(self) -> AlarmsRole:
        from iotmq.alarms.role import AlarmsRole, ProcessView

        settings = self._config.alarms
        workers = self._workers
        view = ProcessView(
            settings.process_name or f"{socket.gethostname()}-{self._role}",
            self.sources,
            lambda: {**self.readiness(), **({} if workers is None else workers.worker_states())},
            refresh=None if workers is None else workers.refresh,
            sys_topics=lambda: self.sys_topics,
        )
        directory = settings.directory
        if not directory and self._role in ("serve", "broker", "registry"):
            directory = str(Path(self._config.data) / "alarms")
        # Registries are few, and live longer than brokers.
        watches = self._role in ("serve", "registry") and settings.cluster_interval_s > 0
        try:
            return AlarmsRole(
                settings,
                view,
                self._clock,
                make_client=self._cluster_client if watches else self._api_client,
                watches_cluster=watches,
                file=Path(directory) / f"{self._role}.json" if directory else None,
            )
        except OSError as error:
            raise StartError(f"alarms cannot start: {error}") from error

    async def _start_http(self, alarms: AlarmsRole | None) -> None:
        from iotmq.console.pages import Pages
        from iotmq.console.server.port import HttpPort

        settings = self._config.http
        api = access = None
        directory = Path(self._config.data) if self._role in ("serve", "broker", "registry") else None
        if settings.has_callers(has_data=directory is not None):
            from iotmq.console.access.access import Access
            from iotmq.console.api.role import ApiRole

            access = Access(settings, directory, self._clock)
            source = f"http {self._role}"
            api = ApiRole(access, self._api_client, self._clock, own=self, source=source, alarms=alarms)
            await self._start("http_api", api)
            self._watch("http_api", api)
        pages = Pages(settings, sources=self.sources, checks=self._checks, elsewhere=self._workers, api=api)
        http = HttpPort(settings, pages)
        await self._start("http", http)
        self._watch("http", http)
        self._listens("http", settings.listen_host, http.port)
        if access is not None:
            scheme = "https" if settings.tls_certificate_file else "http"
            access.announce(f"{scheme}://{reachable_address(self.addresses['http'])}")

    async def _start_registry(self) -> None:
        from iotmq.registry.server import Registry

        settings = self._config.registry
        accounts = None
        if settings.acl_file:
            from iotmq.broker.access.acl import AccessControl

            accounts = AccessControl(Path(settings.acl_file), asked_by="registry.acl_file is set")
        registry = Registry(
            settings, directory=Path(self._config.data) / "registry", clock=self._clock, accounts=accounts
        )
        await self._start("registry", registry)
        self._watch("registry", registry)
        self._listens("registry", settings.listen_host, registry.port)

    async def _start_store_and_broker(self) -> Broker | None:
        """Return the broker for a front end of this process: None for a slave, which MQTT does not use."""
        assert self._opening is not None
        began_s = self._clock.monotonic_s()
        self._checks["store"] = lambda: (
            f"the log is being opened, for {self._clock.monotonic_s() - began_s:.0f} s so far; "
            "after a crash it is recovered"
        )
        store = await asyncio.shield(self._opening)
        self.sources.append(store)
        self._checks["store"] = lambda: store.failure or store.refusal
        settings = self._registering(self._broker_settings)
        directory, replication = Path(self._config.data), self._config.replication
        if replication.mode == "static" and replication.role == "slave":
            from iotmq.master_slave.slave import SlaveBroker

            slave = SlaveBroker(settings, store, replication, directory=directory, clock=self._clock)
            await self._start_broker(slave, settings)
            return None
        if replication.mode == "static":
            from iotmq.master_slave.master import MasterBroker

            master = MasterBroker(settings, store, replication, directory=directory, clock=self._clock)
            await self._start_broker(master, settings)
            self._listens("replication", settings.listen_host, master.ha.port)
            broker = master.broker
        else:
            from iotmq.broker.broker import Broker

            broker = Broker(settings, store, directory=directory, clock=self._clock)
            await self._start_broker(broker, settings)
        if self._role == "serve":
            # The registry is in this process: ready means that clients find the topics.
            await broker.wait_registered(_OWN_REGISTRY_S)
        return broker

    async def _start_broker(
        self, broker: Broker | MasterBroker | SlaveBroker, settings: BrokerSettings
    ) -> None:
        # Before it has started: a new slave waits for its master then, and says so.
        self._checks["broker"] = lambda: broker.not_ready_reason
        if self.history is not None:
            broker.add_inspection(HISTORY, self.history.answer)
        await self._start("broker", broker)
        self._watch("broker", broker)
        self._listens("broker", settings.listen_host, broker.port)

    async def _start_member(self) -> None:
        """Start a broker that may be master; a front end of this process finds the master like others."""
        from iotmq.member.replicated_broker import ReplicatedBroker

        settings = self._registering(self._broker_settings)
        member = ReplicatedBroker(
            settings,
            self._config.store,
            self._config.replication,
            directory=Path(self._config.data),
            clock=self._clock,
        )
        if self.history is not None:
            member.add_inspection(HISTORY, self.history.answer)
        await self._start("broker", member)
        self._watch("broker", member)
        self._listens("broker", settings.listen_host, member.port)

    async def _start_mqtt_front(self, broker: Broker | None) -> None:
        from iotmq.mqtt_front.server import MqttFront

        settings = self._config.mqtt
        if self._role == "serve":
            copies = Path(self._config.data) / "token-keys"
            authentication = settings.authentication.keeping_copies(copies)
            settings = msgspec.structs.replace(settings, authentication=authentication)
        port: GatewayPort
        sessions: SessionPort
        # The one difference between the all-in-one process and separate ones.
        if broker is not None:
            port, sessions = broker.local_gateway(), broker.local_sessions(LOCAL_FRONT_END)
        else:
            from iotmq.front_port.session_gateway import RemoteSessions

            if self._is_member and self._role == "serve":
                # A member's front end finds the master where the members register.
                settings = msgspec.structs.replace(settings, registries=self._registries_of_members())
            port = gateway = _remote_gateway(settings)
            sessions = remote = RemoteSessions(gateway, name=settings.name or _front_end_name())
            self._watch("mqtt_sessions", remote)
        front = MqttFront(settings, port, sessions=sessions, clock=self._clock, shares_port=self._is_worker)
        if self.history is not None:
            front.inspections.add(HISTORY, self.history.answer)
        await self._start("mqtt", front)
        self._watch("mqtt", front)
        self.sys_topics = front.parts.sys_topics
        self._listens_for_mqtt(front.addresses)

    async def _start_bridges(self, broker: Broker | None) -> None:
        from iotmq.mqtt_bridge.bridges import Bridges

        if self._is_member:
            raise StartError(
                "bridges: a member of a replicated broker has none, or each would send; start "
                "`iotmq bridges run` once"
            )
        settings = self._config.mqtt
        client = _client_settings(settings)
        if self._role == "serve":
            own = (reachable_address(self.addresses["registry"]),)
            client = msgspec.structs.replace(client, registries=own)
            settings = msgspec.structs.replace(settings, registries=own)
        bridges = Bridges(
            self._config.bridges,
            settings,
            client=client,
            port=lambda: _remote_gateway(settings) if broker is None else broker.local_gateway(),
            clock=self._clock,
        )
        await self._start("bridges", bridges)
        self._watch("bridges", bridges)

    async def _start_mqtt_workers(self, workers: WorkerSupervisor) -> None:
        self._watch("mqtt", workers)
        await self._start("mqtt", workers)
        self.sys_topics = workers
        self._listens_for_mqtt(workers.addresses)

    # Helpers ------------------------------------------------------------------------------------------

    def places(self) -> PublishPlaces:
        """Make what says where messages go that the HTTP API publishes: where a front end would send them."""
        from iotmq.mqtt_front.publish.places import Places

        return Places(self._config.mqtt)

    def websockets(self) -> list[WebSocketPlace]:
        """Return the listeners of this process for MQTT in WebSockets."""
        return websocket_places(self._config.mqtt.listeners, self.addresses)

    def device_access(self) -> DeviceAccess:
        """Make what says who devices are, and what they may do."""
        from iotmq.mqtt_front.publish.access_trial import ConfiguredAccess

        return ConfiguredAccess(self._config.mqtt)

    def _api_client(self) -> IotmqClient:
        """Make the client that the HTTP API asks brokers with; it has the account of the front end."""
        from iotmq.client.client import IotmqClient
        from iotmq.errors import ConnectionClosedError

        settings = _client_settings(self._config.mqtt)
        if self._role == "serve":
            registry = self.addresses.get("registry")
            if registry is None:
                raise ConnectionClosedError("the registry of this process is not started yet")
            settings = msgspec.structs.replace(settings, registries=(reachable_address(registry),))
        elif self._role == "broker" and settings.registries == MqttSettings().registries:
            settings = msgspec.structs.replace(settings, registries=self._broker_settings.registries)
        return IotmqClient(settings)

    def _cluster_client(self) -> IotmqClient:
        """Make the client that alarms look at the cluster with: it knows the other registries, too."""
        from iotmq.client.client import IotmqClient
        from iotmq.errors import ConnectionClosedError

        settings = _client_settings(self._config.mqtt)
        registry = self.addresses.get("registry")
        if registry is None:
            raise ConnectionClosedError("the registry of this process is not started yet")
        others = () if settings.registries == MqttSettings().registries else settings.registries
        registries = tuple(dict.fromkeys((reachable_address(registry), *others)))
        return IotmqClient(msgspec.structs.replace(settings, registries=registries))

    async def _begin_opening_store(self) -> None:
        """Open the log in a thread, because recovery after a crash reads for a while.

        Waits a moment, so that a directory that cannot be opened is what the operator is told of first.
        """
        from iotmq.broker.registration.advertised_address import resolve_store_host
        from iotmq.store.store import Store

        if self._broker_settings.listen_port == 0:
            # Records carry the broker's port, so a free one has to be known before the log is opened.
            port = _free_port(self._broker_settings.listen_host)
            self._broker_settings = msgspec.structs.replace(self._broker_settings, listen_port=port)
        host = self._broker_settings.advertised_host
        try:
            store_host = resolve_store_host(self._broker_settings)
        except OSError as error:
            # Not a wrong setting: while a machine boots, its resolver may not answer yet.
            raise StartError(f"broker.advertised_host {host!r} cannot be resolved: {error}") from error
        self._opening = asyncio.ensure_future(
            asyncio.to_thread(
                Store.open,
                Path(self._config.data),
                self._config.store,
                store_host=store_host,
                clock=self._clock,
            )
        )
        done, _ = await asyncio.wait((self._opening,), timeout=_OPEN_AT_ONCE_S)
        for opened in done:
            opened.result()

    def _registries_of_members(self) -> tuple[str, ...]:
        """Return the registries where the members of an all-in-one process register, and further ones."""
        further = self._config.mqtt.registries
        others = () if further == MqttSettings().registries else further
        return tuple(dict.fromkeys((*self._registering(self._broker_settings).registries, *others)))

    def _registering(self, settings: BrokerSettings) -> BrokerSettings:
        """In the all-in-one process the broker registers with the registry beside it, whatever its port."""
        if self._role != "serve":
            return settings
        own = reachable_address(self.addresses["registry"])
        others = () if settings.registries == BrokerSettings().registries else settings.registries
        return msgspec.structs.replace(settings, registries=tuple(dict.fromkeys((own, *others))))

    async def _start(self, name: str, role: Role) -> None:
        try:
            await role.start()
        except (OSError, ValueError) as error:
            raise StartError(f"{name} cannot start: {error}{_settings_of(name, error)}") from error
        self._started.append((name, role))

    def _watch(self, name: str, part: MetricSource) -> None:
        """Show a part's numbers, and why it is not ready when it has a way to say so."""
        self.sources.append(part)
        if hasattr(part, "not_ready_reason"):
            self._checks[name] = lambda: part.not_ready_reason

    def _listens(self, name: str, host: str, port: int) -> None:
        self.addresses[name] = address_text(host, port)

    def _listens_for_mqtt(self, addresses: Mapping[str, str]) -> None:
        for name, address in addresses.items():
            self.addresses["mqtt" if name == TCP_NAME else f"mqtt.{name}"] = address


def _settings_of(name: str, error: Exception) -> str:
    """Return which settings choose the address that a role could not have; nothing for another error."""
    if not isinstance(error, OSError) or error.errno not in _ADDRESS_ERRORS:
        return ""
    more = ", [[mqtt.listeners]]" if name == "mqtt" else ""
    return f" (settings: {name}.listen_host, {name}.listen_port{more})"


async def run(config: Config, role: RoleName) -> None:
    """Run the roles until SIGTERM or SIGINT; a second signal ends the process at once.

    A service manager is told of it. Raises StartError or StoreError when they cannot start.
    """
    async with ServiceManager.taken_from(os.environ) as manager:
        process = Process(config, role)
        manager.report(process.status)
        await run_process(
            process,
            asyncio.Event(),
            fields=_ready_fields(config, role),
            on_ready=manager.ready,
            on_stop=manager.stopping,
        )


async def run_process(
    process: Process,
    stop_asked: asyncio.Event,
    *,
    fields: Mapping[str, str],
    on_ready: Callable[[], None] = lambda: None,
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """As `run`; `stop_asked` stops it, too. `fields` stand in the line that says it is ready.

    `on_stop` is called before anything is stopped.
    """
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        logger.debug("stop asked by signal %d", number)
        stop_asked.set()
        for other in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    allow_open_files()

    starting = asyncio.ensure_future(process.start())
    asking = asyncio.ensure_future(stop_asked.wait())
    try:
        with rare_collections():
            await asyncio.wait((starting, asking), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            on_stop()
            starting.cancel()
            await asyncio.wait((starting,))
            return
        starting.result()
        with short_collections():
            logger.info("iotmq %s is ready", iotmq.__version__, extra={**fields, **process.addresses})
            on_ready()
            await asking
            began_s = loop.time()
            on_stop()
            await process.stop()
        logger.info("stopped", extra={"took_ms": round((loop.time() - began_s) * 1000)})
    finally:
        asking.cancel()


def allow_open_files() -> None:
    """Raise the soft limit on open files to the hard one: every connection is one.

    The kernel's table of them is made as large as it may soon have to be. Each time it doubles in a process
    with threads, `accept` waits for a grace period of RCU, 5 to 15 ms, and with it all devices.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            logger.debug("the limit of %d open files stays: %s", soft, error)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull, "rb") as file:
        count = _OPEN_FILES_AT_ONCE if soft == resource.RLIM_INFINITY else min(soft, _OPEN_FILES_AT_ONCE)
        try:
            os.close(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, count - 1))
        except OSError as error:
            logger.debug("the table of open files grows when it has to: %s", error)


def _ready_fields(config: Config, role: RoleName) -> dict[str, str]:
    has_data = role in ("serve", "broker")
    return {"role": role, **({"data": str(Path(config.data).absolute())} if has_data else {})}


def _has_workers(config: Config, role: RoleName) -> bool:
    return role == "mqtt" and config.mqtt.workers > 1


def _workers(config: Config) -> WorkerSupervisor:
    from iotmq.workers.supervisor import WorkerSupervisor

    return WorkerSupervisor(config)


def _client_settings(settings: MqttSettings) -> ClientSettings:
    """Settings of a client of the brokers that a front end uses."""
    from iotmq.client.transport.settings import ClientSettings

    return ClientSettings(
        registries=settings.registries,
        access_key=settings.broker_access_key,
        secret_key=settings.broker_secret_key,
        tls_enabled=settings.broker_tls_enabled,
        tls_ca_file=settings.broker_tls_ca_file,
        tls_certificate_file=settings.broker_tls_certificate_file,
        tls_key_file=settings.broker_tls_key_file,
    )


def _remote_gateway(settings: MqttSettings) -> RemoteGateway:
    from iotmq.front_port.gateway import RemoteGateway

    return RemoteGateway(settings.registries, settings=_client_settings(settings))


def _front_end_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise StartError(f"broker cannot listen on {host}: {error}") from error
        return int(probe.getsockname()[1])
