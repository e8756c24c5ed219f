"""Ask a cluster for topics, queues, their bounds and the addresses of brokers; for planner and tasks.

Blocking, because Spark's Python workers are plain processes. Every question is asked again after a
failure until `retry_timeout_s` has passed, so that a broker may restart under a running stream.
"""

from __future__ import annotations

import logging
import math
import random
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from iotmq.addresses import address_text, parse_address
from iotmq.backoff import Backoff
from iotmq.bridge.offsets import Generations, QueueBounds, QueueKey
from iotmq.bridge.plan import Held
from iotmq.bridge.topic_bounds import decode_topic_bounds
from iotmq.client.transport.routes import MASTER_ID, TopicRoute, parse_cluster, parse_route, parse_topics
from iotmq.clock import Clock, SystemClock
from iotmq.errors import BrokerError, ConfigError, ConnectionClosedError, IotmqError, RequestTimeoutError
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

Address = tuple[str, int]
Answer = TypeVar("Answer")

_log = logging.getLogger("iotmq.bridge")

DEFAULT_BROKER_PORT: Final = 10911
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 2.0
_REQUESTS_AT_ONCE: Final = 256
# A broker that is silent for so long may have another master by now, which registries know.
_SILENT_S: Final = 1.0
# When it is said what is waited for: not at once, because most waits are short, and then every so often.
_FIRST_WORD_S: Final = 2.0
_NEXT_WORD_S: Final = 30.0

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
    """Hold what brokers say of one topic at one moment, and where they are."""

    held: Held
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

    def call(self, ask: Callable[[], Answer], *, what: str, until_back: bool = False) -> Answer:
        """`ask()` until it answers; raises ConnectionClosedError with `what` and the last failure.

        With `until_back` there is no limit as long as it is a broker that is away: registries know it.
        """
        patience = self.patience()
        for_away = self.patience(timeout_s=math.inf) if until_back else patience
        while True:
            current = patience
            try:
                return ask()
            except BrokerMissingError as error:
                failure: Exception = error
                current = for_away
            except (OSError, ConnectionClosedError, RequestTimeoutError) as error:
                failure = error
            except BrokerError as error:
                if error.code not in _PASSING_CODES:
                    raise
                failure = error
            if not current.wait(f"{what}: {failure}"):
                raise ConnectionClosedError(
                    f"{what}: no answer within {self._timeout_s:g} s (option retryTimeoutMs); last: {failure}"
                ) from failure

    def patience(self, *, timeout_s: float | None = None) -> Patience:
        """A fresh allowance of time, for callers that have their own loop; by default that of the option."""
        backoff = Backoff(min_s=_BACKOFF_FIRST_S, max_s=_BACKOFF_MAX_S, chance=self._chance)
        allowed_s = self._timeout_s if timeout_s is None else timeout_s
        return Patience(allowed_s, self._clock, self._sleep, backoff)


class Patience:
    """One allowance of time to spend on waiting for something to get better. It says what it waits for."""

    def __init__(
        self, timeout_s: float, clock: Clock, sleep: Callable[[float], None], backoff: Backoff
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        now_s = clock.monotonic_s()
        self._deadline_s = now_s + timeout_s
        self._word_s = now_s + _FIRST_WORD_S
        self._backoff = backoff

    def wait(self, what: str) -> bool:
        """Pause before another try; False, without a pause, when the allowance is used up."""
        now_s = self._clock.monotonic_s()
        left_s = self._deadline_s - now_s
        if left_s <= 0:
            return False
        if now_s >= self._word_s:
            self._word_s = now_s + _NEXT_WORD_S
            limit = "" if left_s == math.inf else f", for {left_s:.0f} s more"
            _log.warning("waiting%s: %s", limit, what)
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
        waits_for_brokers: bool = False,
    ) -> None:
        """With `waits_for_brokers` a broker that is away is waited for as long as registries know it."""
        self._registries = registries
        self._waits_for_brokers = waits_for_brokers
        # Brokers that do not know request 30045: other software, or an older iotmq.
        self._plain: set[Address] = set()
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

    def bounds(
        self, topic: str, wanted: Callable[[QueueKey], bool], *, since: Generations = MappingProxyType({})
    ) -> TopicBounds:
        """Ask each broker of `topic` what it has of the queues that are `wanted`, and what became of them.

        `since` are the generations of which changes are to be told. Waits for a broker that is away; raises
        ConnectionClosedError when it stays away.
        """
        return self.retry.call(
            lambda: self._bounds_now(topic, wanted, since),
            what=f"offsets of topic {topic!r}",
            until_back=self._waits_for_brokers,
        )

    def bounds_off_route(self, keys: Iterable[QueueKey], *, since: Generations) -> TopicBounds:
        """Ask brokers for queues that are in no route.

        Those of brokers that are not registered or do not answer now are left out: nobody can say.
        """
        addresses = self.retry.call(self._brokers_now, what="list of brokers")
        held = Held({})
        for (topic, broker), of_topic in _by_topic_and_broker(keys).items():
            if broker not in addresses:
                continue
            try:
                found = self._held_at(
                    addresses[broker], of_topic, since.get((topic, broker), ""), is_routed=False
                )
            except (OSError, ConnectionClosedError, RequestTimeoutError):
                continue
            except BrokerError as error:
                if error.code not in _PASSING_CODES:
                    raise
                continue
            held = held.and_also(found)
        return TopicBounds(held, addresses)

    def brokers(self, names: Collection[str]) -> dict[str, Address]:
        """Addresses of these brokers and maybe others; waits for those that are away."""

        def ask() -> dict[str, Address]:
            found = self._brokers_now()
            if missing := sorted(set(names) - found.keys()):
                raise BrokerMissingError(f"broker {', '.join(missing)} is away")
            return found

        return self.retry.call(ask, what="list of brokers")

    def ask_once(self, broker: str, address: Address, requests: Sequence[Command]) -> list[Command]:
        """Return the answers of one broker, whatever their codes; its failure is the caller's matter.

        BrokerMovedError as soon as it is silent and a registry has it elsewhere.
        """
        return self._answers(address, requests, broker=broker)

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
        # Who answers there next may be a newer one.
        self._plain.discard(address)
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections; they are made again when needed."""
        for address in list(self._connections):
            self.drop(address)

    def _bounds_now(self, topic: str, wanted: Callable[[QueueKey], bool], since: Generations) -> TopicBounds:
        route = self.route_now(topic)
        away = sorted({key.broker for key in route.away if wanted(key)})
        if away:
            raise BrokerMissingError(f"broker {', '.join(away)} of topic {topic!r} is away")
        held = Held({})
        for (_, broker), keys in _by_topic_and_broker(filter(wanted, route.queues)).items():
            if broker in route.addresses:
                generation = since.get((topic, broker), "")
                held = held.and_also(self._held_at(route.addresses[broker], keys, generation))
        # A queue that its broker does not have any more is about to leave the route.
        there = {key: bounds for key in route.queues if (bounds := held.bounds.get(key)) is not None}
        return TopicBounds(held._replace(bounds=there), route.addresses)

    def _held_at(
        self, address: Address, keys: Sequence[QueueKey], since: str, *, is_routed: bool = True
    ) -> Held:
        """Return what a broker says of these queues of one topic, and of the removed ones of that topic.

        One that knows no better says of queues that are in no route where they begin and end.
        """
        topic, broker, _ = keys[0]
        if address not in self._plain:
            fields = {"topic": topic} | ({"generation": since} if since else {})
            request = Command.request(RequestCode.GET_QUEUE_BOUNDS, fields)
            (answer,) = self._answers(address, [request], broker=broker)
            if answer.code == ResponseCode.SUCCESS:
                held = decode_topic_bounds(answer.body_bytes(), topic, broker)
                there = {key: bounds for key in keys if (bounds := held.bounds.get(key)) is not None}
                unknown = {key: None for key in keys if key not in there and key not in held.removed}
                return held._replace(bounds=there, removed={**held.removed, **unknown})
            if answer.code in _NO_QUEUE_CODES:
                return Held({}, dict.fromkeys(keys))
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                _accepted(answer)
            self._plain.add(address)
        found = self._bounds_at(address, keys)
        there = {key: bounds for key, bounds in found.items() if bounds is not None and is_routed}
        return Held(there, {key: bounds for key, bounds in found.items() if key not in there})

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
        failures: list[str] = []
        for address in self._registries:
            try:
                answer = self._answers(address, [request])[0]
            except (OSError, ConnectionClosedError, RequestTimeoutError) as error:
                failures.append(str(error))
                continue
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ConfigError(
                    f"option iotmq.bootstrap.servers: {address_text(*address)} is no registry, maybe a "
                    "broker: registries have port 9876 where settings say nothing else"
                )
            return _accepted(answer)
        raise ConnectionClosedError(
            f"no registry (option iotmq.bootstrap.servers) answers: {'; '.join(failures)}"
        )

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
        remark = answer.remark or "refused without a remark"
        if answer.code == ResponseCode.NO_PERMISSION:
            remark += " (options accessKey and secretKey say which account it is)"
        raise BrokerError(answer.code, remark)
    return answer


def _address_of(broker: str, text: str) -> Address:
    try:
        return parse_address(text, default_port=DEFAULT_BROKER_PORT)
    except ValueError as error:
        raise ConfigError(f"broker {broker}: {error}") from None


def _by_topic_and_broker(keys: Iterable[QueueKey]) -> dict[tuple[str, str], list[QueueKey]]:
    found: dict[tuple[str, str], list[QueueKey]] = {}
    for key in keys:
        found.setdefault((key.topic, key.broker), []).append(key)
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
