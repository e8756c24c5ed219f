"""The processes of a simulated gateway: registry, brokers, front ends, as `iotmq` starts them.

Each can be killed, lose its power, be stopped in good order, and starts again over what its disk has.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Final

import sim_threads
from sim_world import Machine, Process, World

from iotmq.broker.broker import Broker
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.front_port.gateway import RemoteGateway
from iotmq.front_port.session_gateway import RemoteSessions
from iotmq.message.hosts import encode_host
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.retention.decide import DiskUsage
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

REGISTRY_PORT: Final = 9876
BROKER_PORT: Final = 10911
MQTT_PORT: Final = 1883
# Delay levels that are soon over; failed messages come back at the third and later ones.
DELAY_LEVELS: Final = "1s 1s 1s 1s 2s 2s"
_START_AGAIN_S: Final = 1.0
_DISK_BYTES: Final = 1 << 40


class Node:
    """One role on a machine of its own."""

    kind = ""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.machine: Machine = world.machine(name)
        self.process: Process | None = None
        self.is_ready = False
        # The role, while its process runs and has made it.
        self.role: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether it is there, and everything that it needs."""
        return self.is_ready and getattr(self.role, "not_ready_reason", None) is None

    def start(self) -> None:
        """Begin a life; a start that fails is tried again, as a service manager does it."""
        assert self.process is None
        self.machine.disk.drop_former()
        process = self.process = Process(self.machine, self.kind)
        process.run(self._live(process))

    async def _live(self, process: Process) -> None:
        while process.is_alive:
            try:
                await self.serve(process)
            except Exception as error:
                self.world.note("start failed", process.name, repr(error))
                await asyncio.sleep(_START_AGAIN_S)
            else:
                self.is_ready = True
                return

    async def serve(self, process: Process) -> None:
        """Start the role in a process."""
        raise NotImplementedError

    def kill(self, *, is_power_cut: bool = False) -> None:
        """End the life now."""
        process, self.process = self.process, None
        if process is None:
            return
        self.is_ready = False
        self.role = None
        # What the dying process would still write is nothing its disk has.
        self.machine.disk.next_life(is_power_cut=is_power_cut)
        process.kill(is_silent=is_power_cut)
        if is_power_cut:
            self.world.dark_hosts.add(self.machine.host)

    def power_on(self) -> None:
        """The machine of a power cut runs again."""
        if self.machine.host in self.world.dark_hosts:
            self.world.dark_hosts.discard(self.machine.host)
            self.machine.clock.boot()
            self.world.network.host_is_back(self.machine.host)

    def stop_and(self, then: Any) -> None:
        """End the life in good order, and call `then`."""
        process = self.process
        if process is None or not self.is_ready:
            return
        self.is_ready = False

        async def stop() -> None:
            await self.stop(process)
            self.world.later(0.0, lambda: ended())

        def ended() -> None:
            if self.process is process:
                self.kill()
                then()

        process.run(stop())

    async def stop(self, process: Process) -> None:
        await self.role.stop()


class RegistryNode(Node):
    """The registry."""

    kind = "registry"

    async def serve(self, process: Process) -> None:
        self.role = Registry(
            RegistrySettings(listen_host=self.machine.host, listen_port=REGISTRY_PORT),
            directory=self.machine.disk.directory / "registry",
            clock=process.clock,
        )
        await self.role.start()

    @property
    def address(self) -> str:
        return f"{self.machine.host}:{REGISTRY_PORT}"


class BrokerPlan:
    """What brokers of a name are started with."""

    def __init__(self, name: str, registry: RegistryNode, *, is_synced: bool) -> None:
        self.name = name
        self.registry = registry
        self.is_synced = is_synced
        # Further settings, and groups with how often their messages come again.
        self.settings: dict[str, Any] = {}
        self.groups: dict[str, int] = {}
        self.retention_hours = 0

    def broker_settings(self, host: str) -> BrokerSettings:
        return BrokerSettings(
            name=self.name,
            listen_host=host,
            listen_port=BROKER_PORT,
            advertised_host=host,
            registries=(self.registry.address,),
            registration_interval_s=2.0,
            default_topic_queues=2,
            delay_levels=DELAY_LEVELS,
            offsets_interval_s=1.0,
            client_expiry_s=10.0,
            idle_s=30.0,
            **self.settings,
        )

    @property
    def store_settings(self) -> StoreSettings:
        return StoreSettings(
            flush="sync" if self.is_synced else "async",
            segment_bytes=256 * 1024,
            allocation_step_bytes=64 * 1024,
            queue_file_entries=64,
            index_slots=64,
            index_entries=512,
            checkpoint_interval_ms=2_000,
            retention_interval_ms=1_000,
            retention_hours=self.retention_hours,
        )

    def make_groups(self, broker: Broker) -> None:
        for name, retries_max in self.groups.items():
            broker.subscription_groups.put(
                SubscriptionGroupConfig(group_name=name, retry_max_times=retries_max)
            )


class BrokerNode(Node):
    """A broker over its store."""

    kind = "broker"

    def __init__(self, world: World, name: str, plan: BrokerPlan) -> None:
        super().__init__(world, name)
        self.plan = plan
        self.store: Store | None = None
        self.is_disk_full = False

    @property
    def nodes(self) -> list[BrokerNode]:
        """All brokers of this name."""
        return [self]

    def watch_disk(self, process: Process) -> dict[str, Any]:
        """See from now on what is done to the disk; returns what a store is opened with for that."""
        disk = self.machine.disk
        disk.stop_watching()
        return {
            "clock": process.clock,
            "sync_file": disk.watch(self._meanwhile),
            "read_usage": self._read_usage,
        }

    async def serve(self, process: Process) -> None:
        disk, host = self.machine.disk, self.machine.host
        options = self.watch_disk(process)

        def open_store() -> Store:
            with sim_threads.Turn(process):
                return Store.open(
                    disk.directory,
                    self.plan.store_settings,
                    store_host=encode_host(host, BROKER_PORT),
                    **options,
                )

        store = await asyncio.to_thread(open_store)
        self.store = store
        process.on_killed.append(lambda: let_go(store))
        broker = self.role = Broker(
            self.plan.broker_settings(host), store, directory=disk.directory, clock=process.clock
        )
        try:
            self.plan.make_groups(broker)
            await broker.start()
        except BaseException:
            store.close()
            raise

    async def stop(self, process: Process) -> None:
        assert self.store is not None
        await self.role.stop()
        self.store.close()

    def kill(self, *, is_power_cut: bool = False) -> None:
        super().kill(is_power_cut=is_power_cut)
        self.store = None

    def fail_next_sync(self) -> None:
        """The disk refuses once to take what is synced; the broker then needs a restart."""
        self.machine.disk.fail_next_sync()

    def _read_usage(self, path: Path) -> DiskUsage:
        used = _DISK_BYTES * 95 // 100 if self.is_disk_full else _DISK_BYTES // 10
        return DiskUsage(str(path), used, _DISK_BYTES)

    def _meanwhile(self) -> None:
        thread = sim_threads.VirtualThread.current()
        if thread is not None and thread.name == "iotmq-store-flush":
            thread.sleep(self.world.random.expovariate(300))


class FrontNode(Node):
    """An MQTT front end in a process of its own."""

    kind = "front"

    def __init__(self, world: World, name: str, registry: RegistryNode) -> None:
        super().__init__(world, name)
        self._registry = registry
        self._sessions: RemoteSessions | None = None

    def has_all(self, broker_count: int) -> bool:
        """Whether it is there and knows all brokers: one that started without some learns of them later."""
        sessions = self._sessions if self.is_ready else None
        return (
            sessions is not None
            and len(sessions.brokers.links) == broker_count
            and sessions.not_ready_reason is None
        )

    async def serve(self, process: Process) -> None:
        settings = MqttSettings(
            listen_host=self.machine.host,
            listen_port=MQTT_PORT,
            name=self.name,
            registries=(self._registry.address,),
            allow_anonymous_remote=True,
            retry_interval_s=0.2,
            in_flight_max=8,
        )
        gateway = RemoteGateway(settings.registries)
        self._sessions = RemoteSessions(gateway, name=self.name)
        self.role = MqttFront(settings, gateway, sessions=self._sessions, clock=process.clock)
        await self.role.start()

    @property
    def host(self) -> str:
        return self.machine.host


def let_go(store: Store) -> None:
    """Have the test's process give back what that of a broker held, and write nothing."""
    if store._is_closed:
        return
    with contextlib.suppress(Exception):
        key_values = store._projections._key_values
        if key_values is not None:
            key_values.close()
    for segment in store._log.segment_list():
        store._log.release_descriptor(segment)
    store._lock.release()
