"""One run of a simulated gateway: work and faults for a while, then everything mended, then the checks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from sim_checks import check_all, check_progress
from sim_cluster import BrokerNode, BrokerPlan, FrontNode, Node, RegistryNode
from sim_extras import (
    EXTRAS,
    POP_GROUP,
    POP_RETRIES_MAX,
    POPS,
    SHARES,
    TRANSACTIONS,
    WILLS,
    GroupDevices,
    JobSender,
    Mortal,
    Popped,
    Popper,
    Trader,
)
from sim_faults import HAND_OVERS, KINDS, Fault, begin, draw_faults
from sim_load import Devices, History, Reader, Sender, Worker
from sim_members import EtcdNode, Members, watched_disks
from sim_world import BrokenPromiseError, World, open_world

WORK_S = 12.0
# After all faults are over, everything has to be consumed within this time.
CALM_S = 120.0
_LOOK_S = 2.0
_PROGRESS_S = 2.5


class Site:
    """All nodes of one world."""

    def __init__(self, world: World, seed: int) -> None:
        source = random.Random(f"plan {seed}")
        self.world = world
        self.history = History()
        self.history.has_delays = seed % 4 != 1
        self.is_synced = source.random() < 0.7
        registry = RegistryNode(world, "registry")
        self.is_replicated = seed % 5 == 4
        servers: list[Node] = [registry]
        self.brokers: dict[str, BrokerNode | Members] = {}
        if self.is_replicated:
            etcd = EtcdNode(world, "etcd")
            servers.append(etcd)
            plan = BrokerPlan("broker-0", registry, is_synced=self.is_synced)
            self.brokers[plan.name] = Members(world, plan, etcd, source.choice((2, 3)))
        else:
            for number in range(source.choice((1, 1, 2))):
                plan = BrokerPlan(f"broker-{number}", registry, is_synced=self.is_synced)
                self.brokers[plan.name] = BrokerNode(world, plan.name, plan)
        self.broker_nodes = [node for broker in self.brokers.values() for node in broker.nodes]
        self.fronts = [
            FrontNode(world, f"front-{number}", registry) for number in range(source.choice((1, 2)))
        ]
        pause_s = source.choice((0.05, 0.1, 0.3))
        services: list[Node] = [
            *(
                Sender(world, f"sender-{number}", registry, self.history, pause_s=pause_s)
                for number in range(2)
            ),
            *(Worker(world, f"worker-{number}", registry, self.history) for number in range(2)),
            Reader(world, "reader", registry, self.history),
        ]
        services += self._extras(world, seed, registry)
        self.trace = ""
        self.devices = Devices(world, "devices", self.fronts, self.history)
        self.nodes: dict[str, Node] = {
            node.name: node for node in (*servers, *self.broker_nodes, *self.fronts, *services, self.devices)
        }
        # Each is there before the next is started: who subscribes reaches all brokers.
        self.stages = (servers, self.broker_nodes, self.fronts, [*services, self.devices])
        # What a new device is told at the end.
        self.retained: dict[str, list[bytes]] = {}
        # Within the time that a run is given at its end, or further: then no message waits for a wall time.
        self.clock_step_ms_max = 10_000 if self.history.has_delays else 600_000
        # What happens in this run.
        self.faults: Sequence[Fault] = ()

    def _extras(self, world: World, seed: int, registry: RegistryNode) -> list[Node]:
        """Every third seed has more work; the others stay the runs they were."""
        source = random.Random(f"extras {seed}")
        kinds = source.sample(EXTRAS, source.randint(1, len(EXTRAS))) if seed % 3 == 2 else ()
        nodes: list[Node] = []
        if SHARES in kinds:
            seen = History()
            seen.published = self.history.published
            nodes.append(GroupDevices(world, "group", self.fronts, seen))
        if WILLS in kinds:
            nodes += [
                Mortal(world, f"mortal-{number}", registry, self.history, self.fronts) for number in range(2)
            ]
        if TRANSACTIONS in kinds:
            nodes.append(Trader(world, "trader", registry, self.history))
            for broker in self.brokers.values():
                plan = broker.plan
                plan.settings |= {"transaction_timeout_s": 2.0, "transaction_check_interval_s": 2.0}
                plan.settings |= {"transaction_checks_max": 100}
                # No transaction is open for longer.
                plan.retention_hours = 1
        if POPS in kinds:
            nodes.append(JobSender(world, "employer", registry, self.history, pause_s=0.12))
            nodes += [Popper(world, f"popper-{number}", registry, self.history) for number in range(2)]
            for broker in self.brokers.values():
                broker.plan.groups[POP_GROUP] = POP_RETRIES_MAX
        return nodes

    def start(self) -> None:
        """Start everything."""
        for nodes in self.stages:
            for node in nodes:
                node.start()
            is_up = self.world.run_until(
                self.world.now_s + 30.0, lambda nodes=nodes: all(node.is_whole for node in nodes)
            )
            assert is_up, "the cluster does not start"

    def unblock(self, pairs: set[tuple[str, str]]) -> None:
        self.world.network.blocked -= pairs
        for connection in list(self.world.network.connections.values()):
            for end in connection.ends:
                end.flow()

    def mend(self) -> None:
        """All faults are over; what is not running is started."""
        self.world.network.delay_s_max = 0.002
        self.world.network.heal()
        for node in self.nodes.values():
            node.power_on()
            if isinstance(node, Mortal):
                # At the latest.
                node.kill()
            if isinstance(node, BrokerNode):
                node.is_disk_full = False
                if node.store is not None and node.store.failure is not None:
                    node.kill()
            if node.process is None:
                node.start()
            assert node.process is not None
            node.process.paused_until_s = 0.0

    def node(self, name: str) -> Node:
        """A node by its name, or by that of a replicated broker the one that is master now."""
        broker = self.brokers.get(name)
        return broker.master if isinstance(broker, Members) else self.nodes[name]

    def longest_ms(self, first_s: float, last_s: float) -> int:
        """The most milliseconds between two moments, by the clocks of brokers."""
        shown = [node.machine.clock.shown_ms(first_s, last_s) for node in self.broker_nodes]
        return max(latest for _, latest in shown) - min(earliest for earliest, _ in shown)

    def popped_s(self, pop: Popped) -> float | None:
        """The moment of a pop; None where a clock that was set has shown its time twice."""
        moments = {
            moment_s
            for node in self.brokers[pop.broker].nodes
            for moment_s in node.machine.clock.moments_s(pop.popped_ms, pop.asked_s, pop.at_s)
        }
        return moments.pop() if len(moments) == 1 else None

    @property
    def missing(self) -> list[str]:
        """Servers that are not there, or not whole."""
        return [node.name for node in self.broker_nodes if not node.is_whole] + [
            front.name for front in self.fronts if not front.has_all(len(self.brokers))
        ]

    @property
    def is_done(self) -> bool:
        """Everything that is stored has been consumed, and everything published has come."""
        if self.devices.unfinished or self.missing:
            return False
        try:
            check_all(self)
        except BrokenPromiseError:
            return False
        return True


def simulate(
    seed: int, directory: Path, *, faults: Sequence[Fault] | None = None, is_verbose: bool = False
) -> Site:
    """Run one gateway through the faults of its seed, or through others; raises BrokenPromiseError."""
    with open_world(seed, directory, is_verbose=is_verbose) as world, watched_disks():
        site = Site(world, seed)
        if faults is None:
            faults = faults_of(seed, site)
        site.faults = faults
        for broker in site.broker_nodes:
            broker.machine.disk.may_lose_power = any(
                fault.kind == "power" and fault.node in (broker.name, broker.plan.name) for fault in faults
            )
        site.start()
        started_s = world.now_s
        for fault in faults:
            world.at(started_s + fault.at_s, lambda fault=fault: begin(site, fault))
        while world.now_s < started_s + WORK_S:
            world.run_until(min(world.now_s + _PROGRESS_S, started_s + WORK_S))
            check_progress(site)
        site.mend()
        world.run_until(world.now_s + 3.0)
        site.history.is_over = True
        end_s = world.now_s + CALM_S
        while world.now_s < end_s and not site.is_done:
            world.run_until(world.now_s + _LOOK_S)
        if site.devices.unfinished:
            raise BrokenPromiseError(
                f"{site.devices.unfinished} devices wait for an acknowledgement for ever"
            )
        if site.missing:
            raise BrokenPromiseError(f"{site.missing} do not start, or do not find all brokers")
        assert site.devices.process is not None
        site.devices.process.run(site.devices.ask_retained(site.retained))
        if not world.run_until(world.now_s + CALM_S, lambda: site.devices.is_told):
            raise BrokenPromiseError("a new device cannot subscribe")
        world.run_until(world.now_s + 1.5)
        site.trace = world.trace
        check_all(site)
        return site


def planned_faults(seed: int, directory: Path) -> list[Fault]:
    """The faults of a seed, of which a run may leave some out."""
    with open_world(seed, directory) as world:
        return faults_of(seed, Site(world, seed))


def faults_of(seed: int, site: Site) -> list[Fault]:
    masters = [name for name, broker in site.brokers.items() if isinstance(broker, Members)]
    return draw_faults(
        seed,
        # Masters are where it hurts.
        [*site.nodes, *masters * 4],
        KINDS + HAND_OVERS * len(masters),
        until_s=WORK_S,
        has_power_cuts=site.is_synced,
    )
