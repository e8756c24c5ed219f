"""Replicated brokers of a simulated gateway: their members, and the etcd that those share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from fake_etcd import FakeEtcd, FakeEtcdData
from sim_cluster import BROKER_PORT, BrokerNode, BrokerPlan, Node, let_go
from sim_threads import running_process
from sim_world import BrokenPromiseError, Clock, Process, World

import iotmq.member.replicated_broker as replicated_broker_module
from iotmq.broker.broker import Broker
from iotmq.member.driver import MemberDriver
from iotmq.member.replicated_broker import ReplicatedBroker
from iotmq.replicated.member_store import MemberStore, open_member_store
from iotmq.replication.consensus.settings import EtcdSettings
from iotmq.replication.settings import ReplicationSettings
from iotmq.store.store import Store

if TYPE_CHECKING:
    from iotmq.replication.cluster_state import Identity

ETCD_PORT: Final = 2379


class EtcdNode(Node):
    """An etcd that loses nothing."""

    kind = "etcd"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._data = FakeEtcdData(Clock(world))

    @property
    def url(self) -> str:
        return f"http://{self.machine.host}:{ETCD_PORT}"

    async def serve(self, process: Process) -> None:
        self._data.watches.clear()
        server = self.role = FakeEtcd(self._data)
        server.host, server.port = self.machine.host, ETCD_PORT
        await server.__aenter__()

    async def stop(self, process: Process) -> None:
        await self.role.__aexit__()


class MemberNode(BrokerNode):
    """A member of a replicated broker."""

    kind = "member"

    def __init__(self, world: World, name: str, members: Members, number: int) -> None:
        super().__init__(world, name, members.plan)
        self.number = number
        self._members = members

    async def serve(self, process: Process) -> None:
        process.store_options = {
            **self.watch_disk(process),
            "boot_id": f"{self.machine.name} {self.machine.clock.ahead_s}",
        }
        self.role = _Member(self._members, self, process)
        await self.role.start()

    async def stop(self, process: Process) -> None:
        await self.role.stop()

    @property
    def run(self) -> Any:
        """What it does since it has opened its log the last time."""
        return None if self.role is None else self.role._run

    @property
    def opened(self) -> MemberStore | None:
        return None if self.run is None else self.run.opened

    @property
    def store(self) -> Store | None:  # type: ignore[override]
        return None if self.opened is None else self.opened.store

    @store.setter
    def store(self, store: None) -> None:
        pass

    @property
    def epoch(self) -> int:
        """The epoch in which it serves; 0 for none."""
        is_serving = self.is_ready and self.role.broker is not None
        leading = self.run.driver.member.leading if is_serving else None
        return 0 if leading is None else leading.epoch


class Members:
    """All members of one replicated broker."""

    def __init__(self, world: World, plan: BrokerPlan, etcd: EtcdNode, count: int) -> None:
        self.plan = plan
        self.etcd = etcd
        self.nodes = [
            MemberNode(world, f"{plan.name}-{number}", self, number) for number in range(1, count + 1)
        ]
        # Epoch -> who has begun it.
        self.writers: dict[int, str] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"{node.number}={node.machine.host}:{BROKER_PORT}" for node in self.nodes)

    @property
    def master(self) -> MemberNode:
        """The one that serves, and knows of no later one."""
        return max(self.nodes, key=lambda node: node.epoch)

    @property
    def is_ready(self) -> bool:
        return self.master.epoch > 0

    @property
    def role(self) -> Broker | None:
        """The broker that serves."""
        broker: Broker | None = self.master.role.broker if self.is_ready else None
        return broker

    @property
    def store(self) -> Store | None:
        return self.master.store

    def note_writer(self, epoch: int, process: Process) -> None:
        """At most one writes in an epoch, and in one life."""
        writer = self.writers.setdefault(epoch, process.name)
        if writer != process.name:
            process.world.problems.append(f"epoch {epoch} has two writers, {writer} and {process.name}")

    def check_replicas(self) -> None:
        """What members show is the same, byte for byte."""
        opened = [(node.name, node.opened) for node in self.nodes if node.opened is not None]
        for at, (name, one) in enumerate(opened):
            for other_name, other in opened[at + 1 :]:
                begin = max(one.log.oldest, other.log.oldest)
                end = min(one.store.confirmed_position, other.store.confirmed_position)
                if begin < end and _bytes_of(one, begin, end) != _bytes_of(other, begin, end):
                    raise BrokenPromiseError(f"{name} and {other_name} differ between {begin} and {end}")


class _Member(ReplicatedBroker):
    """Of which is seen who begins an epoch."""

    def __init__(self, members: Members, node: MemberNode, process: Process) -> None:
        self._members = members
        self._process = process
        super().__init__(
            members.plan.broker_settings(process.host),
            members.plan.store_settings,
            ReplicationSettings(
                mode="elected",
                member=node.number,
                members=members.addresses,
                etcd=EtcdSettings(endpoints=(members.etcd.url,), timeout_ms=1_000),
            ),
            directory=node.machine.disk.directory,
            clock=process.clock,
        )

    def make_broker(self, opened: MemberStore, run: Any) -> Broker:
        broker = super().make_broker(opened, run)
        self._members.plan.make_groups(broker)
        return broker

    def make_driver(self, opened: MemberStore, *others: Any) -> MemberDriver:
        append_epoch = opened.log.append_epoch

        def append(epoch: int, identity: Identity) -> None:
            self._members.note_writer(epoch, self._process)
            append_epoch(epoch, identity)

        opened.log.append_epoch = append  # type: ignore[method-assign]
        return super().make_driver(opened, *others)


def watched_disks() -> AbstractContextManager[Any]:
    """While it lasts, members open their stores over the disks of their machines."""
    return mock.patch.object(replicated_broker_module, "open_member_store", _open_watched)


def _open_watched(*arguments: Any, **options: Any) -> MemberStore:
    process = running_process()
    opened = open_member_store(*arguments, **{**options, **process.store_options})
    process.on_killed.append(partial(let_go, opened.store))
    return opened


def _bytes_of(opened: MemberStore, position: int, end: int) -> bytes:
    data = b""
    while position < end:
        view = opened.store.read_raw(position, end - position, end_position=end)
        data += view
        position += len(view)
    return data
