"""How many machines a number of devices needs, from what one of each thing was measured to cost.

Arithmetic only: `_scaling` has the measurements and writes the page.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

GIB: Final = 1024**3
DAY_S: Final = 86_400


class Costs(NamedTuple):
    """Hold what one thing costs: bytes of memory or log, microseconds of processor time."""

    worker_bytes: float
    """A front-end worker without devices."""
    bare_bytes: float
    """A connected device in its worker."""
    subscribed_bytes: float
    """The same with one subscription."""
    kernel_bytes: float
    """The server's end of a connection in the kernel."""
    broker_bytes: float
    """A broker without devices, its caches filled."""
    connected_bytes: float
    """A connected device without a kept session, at each broker."""
    filter_bytes: float
    """Its filter, at each broker that has it."""
    session_bytes: float
    """A kept session with one filter, at each broker."""
    kept_connected_bytes: float
    """What is added to that while its device is connected."""
    channel_bytes: float
    """A front end, at each broker."""
    channel_cores: float
    """The same, while nothing happens: share of a core."""
    connect_us: float
    """CONNECT and SUBSCRIBE, in the front end of one broker."""
    connect_more_us: float
    """What each further broker adds to that: all of them are asked."""
    connect_broker_us: float
    """The same at each broker."""
    ping_us: float
    stored_us: float
    """A message from a device to the log, in the front end."""
    stored_broker_us: float
    delivered_us: float
    """The same with its way to one device, in the front ends of both."""
    delivered_broker_us: float
    consumed_us: float
    """A stored message read by a service, in the broker."""
    record_bytes: float
    """A stored message in the log, beside its payload."""


class Load(NamedTuple):
    """Say what devices do."""

    name: str
    devices: int
    subscribed: float
    """Share of the devices that have a subscription."""
    kept: float
    """Share of the devices that have a kept session with one filter."""
    stored_per_s: float
    """Messages for services, or for nobody yet."""
    delivered_per_s: float
    """Messages for one device each, stored as well."""
    payload_bytes: int
    keep_alive_s: int
    exact: float = 1.0
    """Share of the filters without wildcards."""


class Rules(NamedTuple):
    """Say how machines are filled."""

    utilisation: float = 0.6
    """Of a core, at most: the rest is for bursts, and for what a lost machine had."""
    devices_each: int = 50_000
    """Devices of a worker, at most."""
    copies: int = 1
    """Members of a replicated broker."""
    copy_share: float = 0.5
    """Processor time of a follower, as a share of its master's."""
    retention_s: int = DAY_S
    hot_s: int = 60
    """The newest part of the log that is to be in memory."""
    exact_filters_everywhere: bool = True
    """Whether each broker has the filters without wildcards of all devices, or the one they belong to."""


class Deployment(NamedTuple):
    """Tell how many of everything, and what they take together."""

    workers: int
    brokers: int
    """Masters."""
    members: int
    """Masters and followers: the machines, or processes, with a log."""
    registries: int
    front_end_cores: float
    broker_cores: float
    front_end_gib: float
    kernel_gib: float
    broker_gib: float
    """Of all members."""
    broker_each_gib: float
    log_mb_per_s: float
    """Into each master's log."""
    disk_tb: float
    """Over all members, for as long as messages are kept."""
    return_s: float
    """How long it takes until all devices are back after all were gone, with as much of the processors."""
    is_return_limited_by_brokers: bool

    @property
    def cores(self) -> float:
        """Cores that are needed, with the room that the rules leave."""
        return self.front_end_cores + self.broker_cores

    @property
    def gib(self) -> float:
        """Memory over all roles."""
        return self.front_end_gib + self.kernel_gib + self.broker_gib


class TooLargeError(Exception):
    """No number of brokers is enough."""


def deployment(load: Load, costs: Costs, rules: Rules) -> Deployment:
    """What a load needs. TooLarge when each broker is full of what does not become less with more of them."""
    filters = load.devices * load.subscribed
    messages_per_s = load.stored_per_s + load.delivered_per_s
    # Devices send a PINGREQ when they have been silent for the keep-alive: those that publish are not.
    pings_per_s = max(0.0, load.devices / load.keep_alive_s - messages_per_s)
    front_end_us = (
        load.stored_per_s * costs.stored_us
        + load.delivered_per_s * costs.delivered_us
        + pings_per_s * costs.ping_us
    )
    workers = max(_for_cpu(front_end_us, rules), math.ceil(load.devices / rules.devices_each))
    brokers, channels = _brokers(load, costs, rules, workers)
    broker_us = _broker_us(load, costs) + brokers * channels * 1e6
    each_bytes = _broker_bytes(load, costs, rules, workers, brokers)
    log_per_s = _log_bytes_per_s(load, costs)
    members = brokers * rules.copies
    at_brokers_s = load.devices * costs.connect_broker_us / 1e6 / rules.utilisation
    connect_us = costs.connect_us + (brokers - 1) * costs.connect_more_us
    at_front_ends_s = load.devices * connect_us / 1e6 / rules.utilisation / workers
    return Deployment(
        workers=workers,
        brokers=brokers,
        members=members,
        registries=3 if brokers > 1 else 2,
        front_end_cores=front_end_us / 1e6 / rules.utilisation,
        broker_cores=broker_us / 1e6 / rules.utilisation * (1 + rules.copy_share * (rules.copies - 1)),
        front_end_gib=(
            workers * costs.worker_bytes
            + (load.devices - filters) * costs.bare_bytes
            + filters * costs.subscribed_bytes
        )
        / GIB,
        kernel_gib=load.devices * costs.kernel_bytes / GIB,
        broker_gib=each_bytes * members / GIB,
        broker_each_gib=each_bytes / GIB,
        log_mb_per_s=log_per_s / brokers / 1e6,
        disk_tb=log_per_s * rules.retention_s * rules.copies / 1e12,
        return_s=max(at_brokers_s, at_front_ends_s),
        is_return_limited_by_brokers=at_brokers_s > at_front_ends_s,
    )


def _for_cpu(microseconds: float, rules: Rules) -> int:
    """Processes of one core each for so much work a second."""
    return max(1, math.ceil(microseconds / 1e6 / rules.utilisation))


def _broker_us(load: Load, costs: Costs) -> float:
    return (
        load.stored_per_s * (costs.stored_broker_us + costs.consumed_us)
        + load.delivered_per_s * costs.delivered_broker_us
    )


def _log_bytes_per_s(load: Load, costs: Costs) -> float:
    return (load.stored_per_s + load.delivered_per_s) * (costs.record_bytes + load.payload_bytes)


def _brokers(load: Load, costs: Costs, rules: Rules, workers: int) -> tuple[int, float]:
    """How many masters, and the share of a core that each spends on its front ends alone.

    A broker stores with one core. What all front ends want of it while nothing happens does not become less
    with more brokers: each front end is connected to each broker.
    """
    channels = workers * costs.channel_cores
    left = rules.utilisation - channels
    if left <= 0:
        raise TooLargeError(f"{workers:,} front ends keep each broker busy: {channels:.2f} of a core")
    return max(1, math.ceil(_broker_us(load, costs) / 1e6 / left)), channels


def _broker_bytes(load: Load, costs: Costs, rules: Rules, workers: int, brokers: int) -> float:
    kept = load.devices * load.kept
    filters = load.devices * load.subscribed * (1 - load.kept)
    places = 1.0 if rules.exact_filters_everywhere else 1 / brokers
    return (
        costs.broker_bytes
        + workers * costs.channel_bytes
        + (load.devices - kept) * costs.connected_bytes
        + filters * (1 - load.exact + load.exact * places) * costs.filter_bytes
        + kept * (costs.session_bytes + costs.kept_connected_bytes)
        + _log_bytes_per_s(load, costs) * rules.hot_s / brokers
    )
