"""Keep the routes of topics and the leases of brokers. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from typing import Final, NamedTuple

import msgspec

from iotmq.errors import RequestError
from iotmq.limits import BROKERS_MAX, EPOCH_MAX, REGISTRY_TOPICS_MAX
from iotmq.remoting.codes import ResponseCode

MASTER_ID: Final = 0
# Topics looked at in one step: a millisecond or two.
_STEP_TOPICS: Final = 10_000
_PERMISSION_WRITE: Final = 2


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """The state of a broker's topic table; any difference means that it changed."""

    counter: int = 0
    timestamp: int = 0
    # The epoch of the master of a replicated broker name; 0 without replication.
    state_version: int = 0


class BrokerIdentity(NamedTuple):
    """Identify the broker that registers."""

    cluster: str
    name: str
    address: str
    broker_id: int


class TopicQueues(NamedTuple):
    """Describe the queues of one topic at one broker."""

    read_queue_count: int
    write_queue_count: int
    permissions: int
    sys_flag: int = 0
    # Queues that take no more messages, for producers that know of it.
    frozen: tuple[int, ...] = ()


class MasterAddress(NamedTuple):
    """Hold the addresses of a slave's master; empty while there is none."""

    address: str = ""
    ha_address: str = ""


class Master(NamedTuple):
    """Hold the address of a broker name's master, and the epoch it has registered."""

    address: str
    epoch: int


class BrokerGroup:
    """The master and slaves of one broker name."""

    __slots__ = ("addresses", "cluster", "name")

    def __init__(self, name: str, cluster: str) -> None:
        self.name = name
        self.cluster = cluster
        # Never empty while the group is in a table.
        self.addresses: dict[int, str] = {}


class TopicRoute(NamedTuple):
    """A topic's queues and the addresses of their brokers, sorted by broker name."""

    queues: list[tuple[str, TopicQueues]]
    # Without those that are away.
    brokers: list[BrokerGroup]


class _Away(NamedTuple):
    """Remember the topics of a broker that has left, and when it was last heard of."""

    topics: dict[str, TopicQueues]
    heard_s: float


class _Lease:
    """One address that registered and was heard of lately."""

    __slots__ = ("channel", "data_version", "ha_address", "identity", "renewed_s")

    def __init__(
        self,
        identity: BrokerIdentity,
        *,
        ha_address: str,
        data_version: DataVersion | None,
        channel: Hashable,
        renewed_s: float,
    ) -> None:
        self.identity = identity
        self.ha_address = ha_address
        self.data_version = data_version
        # The connection of the latest registration; its end is the end of the lease.
        self.channel = channel
        self.renewed_s = renewed_s

    @property
    def epoch(self) -> int:
        return 0 if self.data_version is None else self.data_version.state_version


class RouteTable:
    """The soft state of one registry.

    An address holds at most one place (broker name and id), and a place at most one address; the later
    registration wins. The topics of a broker name are those its master has registered, and stay as long
    as any broker of that name lives. After that they are remembered for those who ask for what is away.

    The epoch of a master never goes back: who registers a lower one than the highest known for its name is
    refused, also while the master of that epoch is away, for as long as the name is remembered.

    Each broker's table is kept as it came, so that brokers of very many topics come and go in no time.
    """

    def __init__(
        self,
        *,
        brokers_max: int = BROKERS_MAX,
        topics_max: int = REGISTRY_TOPICS_MAX,
        masters_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`topics_max`: topics of all brokers, each counted for each broker.

        `masters_changed` is called whenever `masters` may have changed.
        """
        self._masters_changed = masters_changed
        self._brokers_max = brokers_max
        self._topics_max = topics_max
        self._leases: dict[str, _Lease] = {}
        self._groups: dict[str, BrokerGroup] = {}
        # Broker name -> its topics, and how many these are of all brokers.
        self._tables: dict[str, dict[str, TopicQueues]] = {}
        self.topic_count = 0
        # Broker name -> whether an operator has given or taken the write permission of all its topics.
        self._writable: dict[str, bool] = {}
        # Broker name -> what it had; those that left first come first. At most `brokers_max` names with
        # `topics_max` topics in all.
        self._away: dict[str, _Away] = {}
        # Broker name -> the master with the highest epoch so far, for names that are here or away.
        self._latest: dict[str, Master] = {}
        # Registrations refused because of their epoch.
        self.stale_count = 0

    # Brokers.

    def register(
        self,
        identity: BrokerIdentity,
        *,
        ha_address: str,
        data_version: DataVersion | None,
        topics: dict[str, TopicQueues],
        is_whole: bool,
        channel: Hashable,
        now_s: float,
    ) -> MasterAddress:
        """Take or renew a place, and change a master's topics when its data version changed.

        `topics` are all it has when it takes a place or `is_whole`, else some to add to those known: a Java
        broker tells of the one topic that is new. They are the table's from then on. RequestError when the
        registry is full, or a later master is known, and nothing has changed.
        """
        address = identity.address
        epoch = 0 if data_version is None else data_version.state_version
        if identity.broker_id == MASTER_ID:
            self._check_epoch(identity.name, epoch)
        before = self._master(identity.name)
        lease = self._leases.get(address)
        if lease is None and len(self._leases) >= self._brokers_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the registry is full: {self._brokers_max} brokers are registered"
            )
        is_new = lease is None or lease.identity != identity
        is_changed = identity.broker_id == MASTER_ID and (
            is_new or lease is None or lease.data_version is None or lease.data_version != data_version
        )
        if is_changed:
            if not is_new and not is_whole:
                topics = self._tables.get(identity.name, {}) | topics
            self._check_room(identity.name, topics)
        if is_new:
            if lease is not None:
                self._leave(lease.identity)
            self._take_place(identity)
        self._leases[address] = _Lease(
            identity, ha_address=ha_address, data_version=data_version, channel=channel, renewed_s=now_s
        )
        if is_changed:
            self._replace_topics(identity.name, topics)
        if identity.broker_id == MASTER_ID and epoch:
            self._latest[identity.name] = Master(address, epoch)
        if self._master(identity.name) != before:
            self._masters_changed()
        return MasterAddress() if identity.broker_id == MASTER_ID else self._master_of(identity.name)

    def unregister(self, identity: BrokerIdentity, *, channel: Hashable = None) -> bool:
        """Give up a place; False when that address does not hold it.

        Masters of several epochs may share an address that leads to the latest. Only the one whose connection
        this is may take it out.
        """
        lease = self._leases.get(identity.address)
        if lease is None or (lease.identity.name, lease.identity.broker_id) != (
            identity.name,
            identity.broker_id,
        ):
            return False
        if lease.epoch and lease.channel is not channel:
            return False
        self._leave(lease.identity)
        return True

    def channel_lost(self, channel: Hashable) -> list[BrokerIdentity]:
        """End the leases registered last through `channel`; returns who left."""
        lost = [lease.identity for lease in self._leases.values() if lease.channel is channel]
        for identity in lost:
            self._leave(identity)
        return lost

    def expire(self, now_s: float, timeout_s: float) -> list[BrokerIdentity]:
        """End the leases not renewed for `timeout_s`; returns who was dropped."""
        silent = [lease.identity for lease in self._leases.values() if now_s - lease.renewed_s >= timeout_s]
        for identity in silent:
            self._leave(identity)
        return silent

    def forget_away(self, now_s: float, memory_s: float) -> None:
        """Forget the brokers that were last heard of `memory_s` ago or before."""
        for name in [name for name, away in self._away.items() if now_s - away.heard_s >= memory_s]:
            self._forget(name)

    def data_version(self, address: str) -> DataVersion | None:
        """Return the version that the broker at `address` registered with last."""
        lease = self._leases.get(address)
        return None if lease is None else lease.data_version

    def renew(self, address: str, now_s: float) -> None:
        """Extend the lease of a broker that asked whether its version is known, and it is."""
        lease = self._leases.get(address)
        if lease is not None:
            lease.renewed_s = now_s

    # Questions.

    def route(self, topic: str, *, with_away: bool = False) -> TopicRoute | None:
        """Return the route of a topic; None when no live broker (`with_away`: nor one that left) has it."""
        queues = {name: table[topic] for name, table in self._tables.items() if topic in table}
        for name in queues.keys() & self._writable.keys():
            queues[name] = _with_write_permission(queues[name], self._writable[name])
        if with_away:
            left = {name: away.topics[topic] for name, away in self._away.items() if topic in away.topics}
            queues = left | queues
        if not queues:
            return None
        in_order = sorted(queues.items())
        return TopicRoute(in_order, [self._groups[name] for name, _ in in_order if name in self._groups])

    def groups(self) -> list[BrokerGroup]:
        """List all broker names, sorted."""
        return [self._groups[name] for name in sorted(self._groups)]

    def masters(self) -> dict[str, Master]:
        """Broker name -> its master; without names that have none now."""
        found = ((name, self._master(name)) for name in sorted(self._groups))
        return {name: master for name, master in found if master is not None}

    def clusters(self) -> dict[str, list[str]]:
        """Cluster name -> its broker names, both sorted."""
        clusters: dict[str, list[str]] = {}
        for group in self.groups():
            clusters.setdefault(group.cluster, []).append(group.name)
        return dict(sorted(clusters.items()))

    def topics(
        self, cluster: str | None = None, *, with_away: bool = False, mask: int = 0, flags: int = 0
    ) -> Generator[None, None, list[str]]:
        """The names of all topics (`with_away`: of brokers that have left, too), or a cluster's, in no order.

        With a `mask` those whose sys flags, of all brokers together, are `flags` under it, which are not 0. A
        generator, because there may be very many: each step is short, and what it returns is the list.
        """
        groups = self._groups.values()
        tables: list[dict[str, TopicQueues]] = [
            self._tables[group.name]
            for group in groups
            if cluster in (None, group.cluster) and group.name in self._tables
        ]
        if with_away:
            tables += [away.topics for away in self._away.values()]
        found: dict[str, int] = {}
        for table in tables:
            names = list(table)
            for start in range(0, len(names), _STEP_TOPICS):
                some = names[start : start + _STEP_TOPICS]
                if mask:
                    for topic in some:
                        queues = table.get(topic)
                        if queues is not None and queues.sys_flag:
                            found[topic] = found.get(topic, 0) | queues.sys_flag
                else:
                    found.update(dict.fromkeys(some, 0))
                yield
        return [topic for topic, joined in found.items() if joined & mask == flags] if mask else list(found)

    @property
    def broker_count(self) -> int:
        return len(self._leases)

    # Administration.

    def set_writable(self, broker_name: str, is_writable: bool) -> int:
        """Give or take the write permission of all topics of a broker; returns how many it has.

        Lasts until the broker registers with another data version.
        """
        if broker_name in self._tables:
            self._writable[broker_name] = is_writable
        return len(self._tables.get(broker_name, ()))

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, everywhere or in one cluster, until a broker registers it again."""
        for away in self._away.values():
            away.topics.pop(topic, None)
        for name, table in self._tables.items():
            if topic in table and cluster in (None, self._groups[name].cluster):
                del table[topic]
                self.topic_count -= 1

    def _master(self, name: str) -> Master | None:
        group = self._groups.get(name)
        address = None if group is None else group.addresses.get(MASTER_ID)
        return None if address is None else Master(address, self._leases[address].epoch)

    def _check_epoch(self, name: str, epoch: int) -> None:
        if not 0 <= epoch <= EPOCH_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the field stateVersion must be in 0..{EPOCH_MAX}: {epoch}"
            )
        latest = self._latest.get(name)
        if latest is not None and epoch < latest.epoch:
            self.stale_count += 1
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"epoch {epoch} is past: {latest.address} has registered as master of epoch {latest.epoch}",
            )

    def _check_room(self, name: str, topics: Mapping[str, TopicQueues]) -> None:
        if self.topic_count - len(self._tables.get(name, ())) + len(topics) > self._topics_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the registry is full: more than {self._topics_max} topics, each counted for each broker",
            )

    def _take_place(self, identity: BrokerIdentity) -> None:
        group = self._groups.get(identity.name)
        if group is None:
            group = self._groups[identity.name] = BrokerGroup(identity.name, identity.cluster)
        group.cluster = identity.cluster
        former = group.addresses.get(identity.broker_id)
        if former is not None:
            del self._leases[former]
        group.addresses[identity.broker_id] = identity.address

    def _leave(self, identity: BrokerIdentity) -> None:
        lease = self._leases.pop(identity.address)
        group = self._groups[identity.name]
        del group.addresses[identity.broker_id]
        if not group.addresses:
            del self._groups[identity.name]
            topics = self._take_table(identity.name)
            self._remember(identity.name, topics, lease.renewed_s)
        if identity.broker_id == MASTER_ID:
            self._masters_changed()

    def _take_table(self, name: str) -> dict[str, TopicQueues]:
        topics = self._tables.pop(name, {})
        self.topic_count -= len(topics)
        self._writable.pop(name, None)
        return topics

    def _remember(self, name: str, topics: dict[str, TopicQueues], heard_s: float) -> None:
        if not topics and name not in self._latest:
            return
        self._away[name] = _Away(topics, heard_s)
        room = self._topics_max - sum(len(away.topics) for away in self._away.values())
        while room < 0 or len(self._away) > self._brokers_max:
            room += len(self._forget(next(iter(self._away))).topics)

    def _forget(self, name: str) -> _Away:
        if name not in self._groups:
            self._latest.pop(name, None)
        return self._away.pop(name)

    def _replace_topics(self, name: str, topics: dict[str, TopicQueues]) -> None:
        self._take_table(name)
        self._tables[name] = topics
        self.topic_count += len(topics)
        self._away.pop(name, None)

    def _master_of(self, name: str) -> MasterAddress:
        address = self._groups[name].addresses.get(MASTER_ID)
        if address is None:
            return MasterAddress()
        return MasterAddress(address, self._leases[address].ha_address)

    def check(self) -> list[str]:
        """Return every inconsistency as a sentence; tests end with it."""
        problems = []
        places = {
            (name, broker_id): address
            for name, group in self._groups.items()
            for broker_id, address in group.addresses.items()
        }
        leased = {
            (lease.identity.name, lease.identity.broker_id): address
            for address, lease in self._leases.items()
        }
        if places != leased:
            problems.append(f"places {places} and leases {leased} differ")
        problems += [f"{name} has no address" for name, group in self._groups.items() if not group.addresses]
        count = sum(map(len, self._tables.values()))
        if count != self.topic_count:
            problems.append(f"{count} topics are counted as {self.topic_count}")
        problems += [
            f"the epoch of {name}, which nobody remembers"
            for name in self._latest.keys() - self._groups.keys() - self._away.keys()
        ]
        problems += [
            f"{name} has a master of epoch {master.epoch}, and epoch {self._latest[name].epoch} is known"
            for name, master in self.masters().items()
            if name in self._latest and master.epoch != self._latest[name].epoch
        ]
        problems += [f"{name} is both here and away" for name in self._away.keys() & self._tables.keys()]
        problems += [
            f"topics of {name}, which is not registered" for name in self._tables.keys() - self._groups
        ]
        problems += [
            f"a permission of {name}, which has no topics" for name in self._writable.keys() - self._tables
        ]
        return problems


def _with_write_permission(queues: TopicQueues, is_writable: bool) -> TopicQueues:
    permissions = queues.permissions & ~_PERMISSION_WRITE
    return queues._replace(permissions=permissions | _PERMISSION_WRITE if is_writable else permissions)
