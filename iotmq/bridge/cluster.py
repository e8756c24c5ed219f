"""Ask a cluster for topics, queues, their bounds and the addresses of brokers; for planner and tasks.

Blocking, because Spark's Python workers are plain processes. Every question is asked again after a
failure until `retry_timeout_s` has passed, so that a broker may restart under a running stream.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from iotmq.addresses import address_text, parse_address
from iotmq.backoff import Backoff
from iotmq.bridge.offsets import QueueBounds, QueueKey
from iotmq.client.transport.routes import MASTER_ID, TopicRoute, parse_cluster, parse_route, parse_topics
from iotmq.clock import Clock, SystemClock
from iotmq.errors import BrokerError, ConfigError, ConnectionClosedError, IotmqError, RequestTimeoutError
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

Address = tuple[str, int]
Answer = TypeVar("Answer")

DEFAULT_BROKER_PORT: Final = 10911
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 2.0
_REQUESTS_AT_ONCE: Final = 256
# A broker that is silent for so long may have another master by now, which registries know.
_SILENT_S: Final = 1.0

# Topics that brokers make for themselves; those named like clusters and brokers are asked for.
_SYSTEM_TOPIC: Final = re.compile(
    "%(RETRY|DLQ|LMQ|SYS)%.*|rmq_sys_.*|RMQ_SYS_.*|.*_REPLY_TOPIC|TBW102|SELF_TEST_TOPIC|BenchmarkTest"
    "|OFFSET_MOVED_EVENT|SCHEDULE_TOPIC_XXXX|TRANS_CHECK_MAX_TIME_TOPIC"
)

# Answers that a moment later may be different ones: the broker is starting, stopping or overloaded.
_PASSING_CODES: Final = frozenset(
    (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
)


# Answers of a broker that has no such queue, however often it is asked.
_NO_QUEUE_CODES: Final = frozenset((ResponseCode.TOPIC_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND))


def is_system_topic(topic: str) -> bool:
    """Return whether brokers make such a topic for themselves; those named like clusters look like others."""
    return _SYSTEM_TOPIC.fullmatch(topic) is not None


class TopicMissingError(IotmqError):
    """No registry knows the topic."""


class BrokerMissingError(IotmqError):
    """A broker that holds a subscribed queue is away at the moment."""


class BrokerMovedError(ConnectionClosedError):
    """A registry has the broker at another address than the one that was asked, and that one is silent."""


class Connection(Protocol):
    """The part of BlockingConnection that is used here; tests bring their own."""

    def request(self, command: Command) -> Command: ...

    def send(self, command: Command) -> int: ...

    def receive(self, opaque: int) -> Command: ...

    def wait(self, opaque: int, timeout_s: float) -> bool: ...

    def close(self) -> None: ...


class Connector(Protocol):
    """Makes a connection; raises ConnectionClosedError or OSError when it cannot."""

    def __call__(self, host: str, port: int, timeout_s: float) -> Connection: ...


class Route(NamedTuple):
    """The readable queues of one topic, those of brokers that are away, and the address to read each at."""

    queues: tuple[QueueKey, ...]
    addresses: Mapping[str, Address]
    away: tuple[QueueKey, ...] = ()


class TopicBounds(NamedTuple):
    """Hold the offsets that brokers have of one topic at one moment, in queue order."""

    bounds: dict[QueueKey, QueueBounds]
    addresses: Mapping[str, Address]


class Retry:
    """Asks again after passing failures, with growing pauses, until the time allowed is used up."""

    def __init__(
        self,
        timeout_s: float,
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = SystemClock() if clock is None else clock
        self._sleep = sleep
        self._chance = chance

    def call(self, ask: Callable[[], Answer], *, what: str) -> Answer:
        """`ask()` until it answers; raises ConnectionClosedError with `what` and the last failure."""
        patience = self.patience()
        while True:
            try:
                return ask()
            except (OSError, ConnectionClosedError, RequestTimeoutError, BrokerMissingError) as error:
                failure: Exception = error
            except BrokerError as error:
                if error.code not in _PASSING_CODES:
                    raise
                failure = error
            if not patience.wait():
                raise ConnectionClosedError(
                    f"{what}: no answer within {self._timeout_s:g} s (option retryTimeoutMs); last: {failure}"
                ) from failure

    def patience(self) -> Patience:
        """A fresh allowance of time, for callers that have their own loop."""
        backoff = Backoff(min_s=_BACKOFF_FIRST_S, max_s=_BACKOFF_MAX_S, chance=self._chance)
        return Patience(self._timeout_s, self._clock, self._sleep, backoff)


class Patience:
    """One allowance of time to spend on waiting for something to get better."""

    def __init__(
        self, timeout_s: float, clock: Clock, sleep: Callable[[float], None], backoff: Backoff
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._deadline_s = clock.monotonic_s() + timeout_s
        self._backoff = backoff

    def wait(self) -> bool:
        """Pause before another try; False, without a pause, when the allowance is used up."""
        left_s = self._deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            return False
        self._sleep(min(self._backoff.next_s(), left_s))
        return True


class Cluster:
    """Connections to registries and brokers, made when needed and kept. Not for several threads."""

    def __init__(
        self,
        registries: tuple[Address, ...],
        *,
        request_timeout_s: float,
        retry: Retry,
        connect: Connector = BlockingConnection,
        clock: Clock | None = None,
    ) -> None:
        self._registries = registries
        self._request_timeout_s = request_timeout_s
        self._connect = connect
        self._connections: dict[Address, Connection] = {}
        self._clock = SystemClock() if clock is None else clock
        self.retry = retry

    def topics(self) -> list[str]:
        """All topics made for messages, sorted: without those of brokers' own affairs and of retries."""
        codes = (
            RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_REGISTRY,
        )
        known, own = (
            parse_topics(
                self.retry.call(
                    partial(self._ask_registry, Command.request(code, {"withAway": "true"})),
                    what="list of topics",
                ).body_bytes()
            )
            for code in codes
        )
        return sorted(name for name in set(known) - set(own) if not is_system_topic(name))

    def route(self, topic: str) -> Route:
        """Queues and brokers of `topic`; raises TopicMissingError when there is no such topic."""
        return self.retry.call(lambda: self.route_now(topic), what=f"route of topic {topic!r}")

    def route_now(self, topic: str) -> Route:
        """As `route`, asking each registry once and not again."""
        route = self._topic_route_now(topic)
        addresses = {
            name: _address_of(name, address)
            for name in route.addresses
            if (address := route.reader(name)) is not None
        }
        return Route(
            tuple(QueueKey(*queue) for queue in route.readable),
            addresses,
            tuple(QueueKey(*queue) for queue in route.away),
        )

    def topic_route(self, topic: str) -> TopicRoute:
        """As `route`, with the queues that take messages."""
        return self.retry.call(lambda: self._topic_route_now(topic), what=f"route of topic {topic!r}")

    def _topic_route_now(self, topic: str) -> TopicRoute:
        request = Command.request(
            RequestCode.GET_ROUTE_INFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true", "withAway": "true"},
        )
        try:
            answer = self._ask_registry(request)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise TopicMissingError(f"topic {topic!r} does not exist: {error.remark}") from None
            raise
        return parse_route(topic, answer.body_bytes())

    def bounds(self, topic: str, wanted: Callable[[QueueKey], bool]) -> TopicBounds:
        """Smallest and next offset of each queue of `topic` that is `wanted`, and the brokers' addresses.

        Waits for a broker that is away; raises ConnectionClosedError when it stays away.
        """
        return self.retry.call(lambda: self._bounds_now(topic, wanted), what=f"offsets of topic {topic!r}")

    def held_bounds(self, keys: Iterable[QueueKey]) -> dict[QueueKey, QueueBounds | None]:
        """Ask brokers for the offsets of queues that are in no route; None for an unknown queue.

        Queues of brokers that are not registered or do not answer now are left out: nobody can say.
        """
        addresses = self.retry.call(self._brokers_now, what="list of brokers")
        found: dict[QueueKey, QueueBounds | None] = {}
        for address, of_broker in _by_address(keys, addresses).items():
            try:
                found |= self._bounds_at(address, of_broker)
            except (OSError, ConnectionClosedError, RequestTimeoutError):
                continue
            except BrokerError as error:
                if error.code not in _PASSING_CODES:
                    raise
        return found

    def brokers(self, names: Collection[str]) -> dict[str, Address]:
        """Addresses of these brokers and maybe others; waits for those that are away."""

        def ask() -> dict[str, Address]:
            found = self._brokers_now()
            if missing := sorted(set(names) - found.keys()):
                raise BrokerMissingError(f"broker {', '.join(missing)} is away")
            return found

        return self.retry.call(ask, what="list of brokers")

    def masters(self) -> dict[str, Address]:
        """Return the addresses of all brokers that are there now."""
        return self.retry.call(self._brokers_now, what="list of brokers")

    def broker_now(self, name: str) -> Address | None:
        """Return where a broker is, asking each registry once; None for one that is away."""
        return self._brokers_now().get(name)

    def connection(self, address: Address) -> Connection:
        """Return the kept connection to `address`, made if there is none."""
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connect(address[0], address[1], self._request_timeout_s)
            self._connections[address] = connection
        return connection

    def receive(self, connection: Connection, opaque: int, broker: str, address: Address) -> Command:
        """Wait for the answer of a broker that was asked at `address`.

        BrokerMovedError as soon as it is silent and a registry has it elsewhere: a master whose host is gone
        leaves its connections open. RequestTimeoutError after the time of a request. After either the
        connection is of no use.
        """
        deadline_s = self._clock.monotonic_s() + self._request_timeout_s
        while not connection.wait(opaque, min(_SILENT_S, self._request_timeout_s)):
            where = address_text(*address)
            if self._is_elsewhere(broker, address):
                raise BrokerMovedError(f"broker {broker} is not at {where} any more")
            if self._clock.monotonic_s() >= deadline_s:
                raise RequestTimeoutError(f"no answer from {where} in time")
        return connection.receive(opaque)

    def drop(self, address: Address) -> None:
        """Close the connection to `address`, whatever state it is in."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections; they are made again when needed."""
        for address in list(self._connections):
            self.drop(address)

    def _bounds_now(self, topic: str, wanted: Callable[[QueueKey], bool]) -> TopicBounds:
        route = self.route_now(topic)
        away = sorted({key.broker for key in route.away if wanted(key)})
        if away:
            raise BrokerMissingError(f"broker {', '.join(away)} of topic {topic!r} is away")
        found: dict[QueueKey, QueueBounds | None] = {}
        for address, keys in _by_address(filter(wanted, route.queues), route.addresses).items():
            found |= self._bounds_at(address, keys)
        # A queue that its broker does not have any more is about to leave the route.
        held = {key: bounds for key, bounds in sorted(found.items()) if bounds is not None}
        return TopicBounds(held, route.addresses)

    def _bounds_at(self, address: Address, keys: Sequence[QueueKey]) -> dict[QueueKey, QueueBounds | None]:
        requests = [
            Command.request(code, {"topic": key.topic, "queueId": str(key.queue_id)})
            for key in keys
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        ]
        answers = self._answers(address, requests, broker=keys[0].broker)
        found: dict[QueueKey, QueueBounds | None] = {}
        for key, smallest, largest in zip(keys, answers[::2], answers[1::2], strict=True):
            if smallest.code in _NO_QUEUE_CODES or largest.code in _NO_QUEUE_CODES:
                found[key] = None
            else:
                found[key] = QueueBounds(_offset(_accepted(smallest)), _offset(_accepted(largest)))
        return found

    def _brokers_now(self) -> dict[str, Address]:
        answer = self._ask_registry(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO, {}))
        return {
            name: _address_of(name, by_id.get(MASTER_ID) or by_id[min(by_id)])
            for name, by_id in parse_cluster(answer.body_bytes()).items()
            if by_id
        }

    def _is_elsewhere(self, broker: str, address: Address) -> bool:
        """Return whether a registry has a broker at another address; False while nobody can say."""
        try:
            return self._brokers_now().get(broker, address) != address
        except (OSError, IotmqError):
            return False

    def _ask_registry(self, request: Command) -> Command:
        """Return the first registry's answer; the others are asked only when it cannot be reached."""
        failure: Exception = ConnectionClosedError("there is no registry")
        for address in self._registries:
            try:
                return _accepted(self._answers(address, [request])[0])
            except (OSError, ConnectionClosedError, RequestTimeoutError) as error:
                failure = error
        raise failure

    def _answers(
        self, address: Address, requests: Sequence[Command], *, broker: str | None = None
    ) -> list[Command]:
        """Answers to `requests`, sent ahead of each other, whatever their codes."""
        was_open = address in self._connections
        try:
            return self._exchange(address, requests, broker)
        except BrokerMovedError:
            raise
        except ConnectionClosedError:
            # A connection that was not used for a while has been closed by the other side.
            if not was_open:
                raise
            return self._exchange(address, requests, broker)

    def _exchange(self, address: Address, requests: Sequence[Command], broker: str | None) -> list[Command]:
        answers: list[Command] = []
        try:
            connection = self.connection(address)
            for at in range(0, len(requests), _REQUESTS_AT_ONCE):
                opaques = [connection.send(request) for request in requests[at : at + _REQUESTS_AT_ONCE]]
                answers += [
                    connection.receive(opaque)
                    if broker is None
                    else self.receive(connection, opaque, broker, address)
                    for opaque in opaques
                ]
        except (OSError, IotmqError) as error:
            self.drop(address)
            if isinstance(error, OSError):
                raise ConnectionClosedError(f"{address_text(*address)}: {error}") from error
            raise
        return answers


def _accepted(answer: Command) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.code, answer.remark or "refused without a remark")
    return answer


def _address_of(broker: str, text: str) -> Address:
    try:
        return parse_address(text, default_port=DEFAULT_BROKER_PORT)
    except ValueError as error:
        raise ConfigError(f"broker {broker}: {error}") from None


def _by_address(keys: Iterable[QueueKey], addresses: Mapping[str, Address]) -> dict[Address, list[QueueKey]]:
    """Return the queues of brokers that have an address, by it."""
    found: dict[Address, list[QueueKey]] = {}
    for key in keys:
        if key.broker in addresses:
            found.setdefault(addresses[key.broker], []).append(key)
    return found


def ext_number(answer: Command, name: str) -> int:
    """A number of the answer's header; raises BrokerError when it is not there."""
    text = answer.ext.get(name, "")
    try:
        return int(text)
    except ValueError:
        raise BrokerError(answer.code, f"the answer has no number {name} but {text!r}") from None


def _offset(answer: Command) -> int:
    return ext_number(answer, "offset")
