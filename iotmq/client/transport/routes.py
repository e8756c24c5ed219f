"""Decode a registry's route of a topic, and choose queues of it. RocketMQ's write numbers as keys of JSON."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from iotmq import limits
from iotmq.errors import BrokerError, RequestError
from iotmq.remoting import lenient_json

PERMISSION_READ = 4
PERMISSION_WRITE = 2
PERMISSION_INHERIT = 1
MASTER_ID = 0


class MessageQueue(NamedTuple):
    """One queue of one broker; sorts the way all clients of a group must agree on."""

    topic: str
    """The topic, with the prefix of a retry or dead-letter topic where it is one."""
    broker_name: str
    """The `broker.name` of the broker that has the queue."""
    queue_id: int
    """The queue's number among those of its topic on that broker, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    """The queues of one topic and the addresses of the brokers that have them; never changes."""

    topic: str
    """The topic's name."""
    readable: tuple[MessageQueue, ...]
    """Queues that may hold messages, sorted."""
    writable: tuple[MessageQueue, ...]
    """Queues of brokers with a master that take messages, sorted."""
    addresses: dict[str, dict[int, str]] = field(hash=False)
    """Broker name -> broker id -> HOST:PORT."""
    away: tuple[MessageQueue, ...] = ()
    """Readable queues of brokers that have left, sorted; registries name them on request."""
    without_master: tuple[MessageQueue, ...] = ()
    """Queues that would take messages, of brokers that have no master now or have left, sorted."""
    is_provisional: bool = False
    """True when the topic does not exist yet and the template's route stands in for it."""

    def master(self, broker_name: str) -> str | None:
        """Return HOST:PORT of the broker's master; None while it has none."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return HOST:PORT to pull from: the broker asked for, else the master, else any slave."""
        by_id = self.addresses.get(broker_name)
        if not by_id:
            return None
        return by_id.get(broker_id) or by_id.get(MASTER_ID) or by_id[min(by_id)]

    def with_master(self, broker_name: str, address: str) -> TopicRoute:
        """Return the route with the master of a broker, which has one, at another address."""
        by_id = {
            number: known
            for number, known in self.addresses[broker_name].items()
            if number != MASTER_ID and known != address
        }
        return replace(self, addresses={**self.addresses, broker_name: {MASTER_ID: address, **by_id}})

    def with_queues_of(self, other: TopicRoute, broker_name: str) -> TopicRoute:
        """Return the route with the queues and the master that another route has of a broker."""

        def merged(
            own: tuple[MessageQueue, ...], others: tuple[MessageQueue, ...]
        ) -> tuple[MessageQueue, ...]:
            return tuple(sorted({*own, *(queue for queue in others if queue.broker_name == broker_name)}))

        by_id = {**other.addresses[broker_name], **self.addresses.get(broker_name, {})}
        return replace(
            self,
            readable=merged(self.readable, other.readable),
            writable=merged(self.writable, other.writable),
            addresses={**self.addresses, broker_name: by_id},
            away=tuple(queue for queue in self.away if queue.broker_name != broker_name),
            without_master=tuple(queue for queue in self.without_master if queue.broker_name != broker_name),
        )


class _QueueData(msgspec.Struct, rename="camel"):
    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    frozen_queues: frozenset[int] = frozenset()


class _BrokerData(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[str, str]
    cluster: str = ""


class _TopicRouteData(msgspec.Struct, rename="camel"):
    queue_datas: list[_QueueData] = []
    broker_datas: list[_BrokerData] = []


class _ClusterInfo(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _BrokerData] = {}


class _TopicList(msgspec.Struct, rename="camel"):
    topic_list: list[str] = []


def parse_route(topic: str, body: bytes) -> TopicRoute:
    """Decode the route in the answer to request 105; BrokerError for an invalid body."""
    try:
        data = lenient_json.decode(body, _TopicRouteData)
        addresses = {
            broker.broker_name: {int(number): address for number, address in broker.broker_addrs.items()}
            for broker in data.broker_datas
        }
    except (RequestError, ValueError) as error:
        raise BrokerError(1, f"the registry's route of topic {topic} cannot be read: {error}") from error
    count = sum(max(0, each.read_queue_nums) + max(0, each.write_queue_nums) for each in data.queue_datas)
    if count > limits.ROUTE_QUEUES_MAX:
        maximum = limits.ROUTE_QUEUES_MAX
        raise BrokerError(1, f"the registry's route of topic {topic} has {count} queues, more than {maximum}")
    readable: list[MessageQueue] = []
    writable: list[MessageQueue] = []
    away: list[MessageQueue] = []
    without_master: list[MessageQueue] = []
    for queues in data.queue_datas:
        name = queues.broker_name
        if queues.perm & PERMISSION_READ:
            found = readable if addresses.get(name) else away
            found += [MessageQueue(topic, name, number) for number in range(queues.read_queue_nums)]
        if queues.perm & PERMISSION_WRITE:
            found = writable if MASTER_ID in addresses.get(name, {}) else without_master
            found += [
                MessageQueue(topic, name, number)
                for number in range(queues.write_queue_nums)
                if number not in queues.frozen_queues
            ]
    return TopicRoute(
        topic=topic,
        readable=tuple(sorted(readable)),
        writable=tuple(sorted(writable)),
        addresses=addresses,
        away=tuple(sorted(away)),
        without_master=tuple(sorted(without_master)),
    )


def parse_cluster(body: bytes) -> dict[str, dict[int, str]]:
    """Decode the answer to request 106: broker name -> broker id -> HOST:PORT."""
    try:
        return {
            name: {int(number): address for number, address in broker.broker_addrs.items()}
            for name, broker in lenient_json.decode(body, _ClusterInfo).broker_addr_table.items()
        }
    except (RequestError, ValueError) as error:
        raise BrokerError(1, f"the registry's list of brokers cannot be read: {error}") from error


def parse_topics(body: bytes) -> list[str]:
    """Decode the topic names in the answer to request 206."""
    try:
        return lenient_json.decode(body, _TopicList).topic_list
    except RequestError as error:
        raise BrokerError(1, f"the registry's list of topics cannot be read: {error}") from error


def route_from_template(topic: str, template: TopicRoute, queues_max: int) -> TopicRoute:
    """Predict the route of a topic that its first message will create, from the template topic's."""
    return TopicRoute(
        topic=topic,
        readable=(),
        writable=tuple(
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in template.writable
            if queue.queue_id < queues_max
        ),
        addresses=template.addresses,
        is_provisional=True,
    )


def queue_of_key(key: str | bytes, queue_count: int) -> int:
    """Return the index of a key's queue among `queue_count` sorted ones: CRC-32 of its UTF-8 bytes, modulo.

    The same in every process and release; a different number of queues moves keys.
    """
    data = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    return zlib.crc32(data) % queue_count
