"""The faults of one run: drawn from its seed before it begins, so that any of them can be left out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from sim_cluster import BrokerNode
from sim_load import Devices, ServiceNode
from sim_members import MemberNode

if TYPE_CHECKING:
    from sim_run import Site

KINDS: Final = (
    *("kill", "kill", "power", "restart", "partition", "one way", "slow", "resets", "half open"),
    *("pause", "clock", "sync error", "full disk"),
)
# Of a replicated broker.
HAND_OVERS: Final = ("hand over", "hand over")


class Fault(NamedTuple):
    """Something that happens to a node at a time, and for a time."""

    at_s: float
    kind: str
    node: str
    other: str
    lasts_s: float
    share: float

    def __str__(self) -> str:
        return f"{self.at_s:.2f} {self.kind} {self.node} {self.other} {self.lasts_s:.2f} {self.share:.2f}"


def draw_faults(
    seed: object, nodes: Sequence[str], kinds: Sequence[str], *, until_s: float, has_power_cuts: bool
) -> list[Fault]:
    """What happens until then."""
    source = random.Random(f"faults {seed}")
    kinds = [kind for kind in kinds if has_power_cuts or kind not in ("power", "sync error")]
    mean_s = source.choice((0.5, 1.5, 4.0))
    faults, at_s = [], 1.0
    while (at_s := at_s + source.expovariate(1 / mean_s)) < until_s:
        faults.append(
            Fault(
                at_s,
                source.choice(kinds),
                source.choice(nodes),
                source.choice(nodes),
                source.choice((0.05, 0.5, 1.5, 6.0)),
                source.random(),
            )
        )
    return faults


def begin(site: Site, fault: Fault) -> None:
    """Have it happen now; what it needs to be over is done later."""
    world, network = site.world, site.world.network
    node, other = site.node(fault.node), site.node(fault.other)
    world.note("fault", str(fault))
    host, other_host = node.machine.host, other.machine.host
    is_device = isinstance(node, Devices)

    def start() -> None:
        node.power_on()
        if node.process is None:
            node.start()

    if fault.kind in ("kill", "power") and not is_device and node.process is not None:
        node.kill(is_power_cut=fault.kind == "power")
        world.later(fault.lasts_s, start)
    elif fault.kind == "restart" and not is_device and not isinstance(node, ServiceNode):
        node.stop_and(lambda: world.later(fault.lasts_s, start))
    elif fault.kind in ("partition", "one way") and host != other_host:
        pairs = {(host, other_host)}
        if fault.kind == "partition":
            pairs.add((other_host, host))
        pairs -= network.blocked
        network.blocked |= pairs
        world.later(fault.lasts_s, lambda: site.unblock(pairs))
    elif fault.kind == "slow":
        network.delay_s_max = 0.3 * fault.share
        world.later(fault.lasts_s, lambda: setattr(network, "delay_s_max", 0.002))
    elif fault.kind in ("resets", "half open"):
        later_s = 0.0 if fault.kind == "resets" else fault.lasts_s * 3
        for connection in list(network.connections.values()):
            if world.random.random() < fault.share:
                connection.reset(connection.ends[world.random.random() < 0.5], later_s)
    elif fault.kind == "pause" and node.process is not None:
        node.process.paused_until_s = world.now_s + fault.lasts_s
    elif fault.kind == "clock":
        node.machine.clock.step(round((fault.share - 0.5) * site.clock_step_ms_max * 2))
    elif fault.kind == "hand over" and isinstance(node, MemberNode) and node.process is not None:
        node.process.soon(lambda: node.run.driver.hand_over() if node.epoch else None)
    elif fault.kind == "sync error" and isinstance(node, BrokerNode):
        node.fail_next_sync()

        def restart() -> None:
            if node.store is not None and node.store.failure is not None:
                node.kill()
                world.later(0.2, start)

        world.later(fault.lasts_s + 1, restart)
    elif fault.kind == "full disk" and isinstance(node, BrokerNode):
        node.is_disk_full = True
        world.later(fault.lasts_s + 1, lambda: setattr(node, "is_disk_full", False))
