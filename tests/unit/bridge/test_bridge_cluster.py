"""Asking a cluster again, with patience measured by a clock that the test moves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq.bridge.cluster import Cluster, Retry, TopicMissingError
from iotmq.bridge.offsets import QueueBounds, QueueKey
from iotmq.errors import BrokerError, ConnectionClosedError, RequestTimeoutError
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

REGISTRY_A, REGISTRY_B = ("ra", 1), ("rb", 2)


def patient(timeout_s: float) -> tuple[Retry, list[float]]:
    """A Retry whose pauses only move its clock, and the pauses it made."""
    clock = ManualClock()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    return Retry(timeout_s, clock=clock, sleep=sleep, chance=lambda: 1.0), pauses


class Failing:
    """Fails with each of `failures`, then answers 5."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.asked = 0

    def __call__(self) -> int:
        self.asked += 1
        if self._failures:
            raise self._failures.pop(0)
        return 5


def test_passing_failures_are_asked_again_with_growing_pauses() -> None:
    retry, pauses = patient(10)
    ask = Failing(
        OSError("down"),
        ConnectionClosedError("gone"),
        RequestTimeoutError("slow"),
        BrokerError(ResponseCode.SYSTEM_BUSY, "busy"),
        BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, "starting"),
    )
    assert retry.call(ask, what="x") == 5
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8]


def test_refusals_are_not_asked_again() -> None:
    retry, pauses = patient(10)
    with pytest.raises(BrokerError, match="no such group"):
        retry.call(Failing(BrokerError(26, "no such group")), what="x")
    assert pauses == []


def test_patience_is_spent_exactly_and_the_last_failure_is_told() -> None:
    retry, pauses = patient(1)
    ask = Failing(*(OSError(f"failure {n}") for n in range(100)))
    with pytest.raises(ConnectionClosedError, match=r"offsets of t: .* 1 s .*retryTimeoutMs.*failure 5"):
        retry.call(ask, what="offsets of t")
    assert sum(pauses) == pytest.approx(1)
    assert ask.asked == len(pauses) + 1


def test_without_patience_there_is_one_try() -> None:
    retry, pauses = patient(0)
    ask = Failing(OSError("down"))
    with pytest.raises(ConnectionClosedError):
        retry.call(ask, what="x")
    assert (ask.asked, pauses) == (1, [])


class FakeConnection:
    def __init__(self, network: FakeNetwork, address: tuple[str, int]) -> None:
        self._network = network
        self._address = address
        self._answers: list[Command] = []

    def send(self, command: Command) -> int:
        self._network.requests.append((self._address, command.code))
        if self._address in self._network.stale:
            self._network.stale.discard(self._address)
            raise ConnectionClosedError("closed while idle")
        self._answers.append(self._network.answer(self._address, command))
        return len(self._answers) - 1

    def receive(self, opaque: int) -> Command:
        return self._answers[opaque]

    def wait(self, opaque: int, timeout_s: float) -> bool:
        if self._address in self._network.silent:
            self._network.clock.advance(timeout_s)
            return False
        return True

    def request(self, command: Command) -> Command:
        return self.receive(self.send(command))

    def close(self) -> None:
        self._network.closed += 1


class FakeNetwork:
    """Two registries and the brokers a and b with two queues each; `down` cannot be connected to."""

    def __init__(self) -> None:
        self.down: set[tuple[str, int]] = set()
        self.stale: set[tuple[str, int]] = set()
        self.requests: list[tuple[tuple[str, int], int]] = []
        self.addresses: dict[str, dict[str, str]] = {"a": {"0": "a:10"}, "b": {"2": "b:12", "1": "[::1]:11"}}
        self.moved: dict[str, str] = {}
        self.silent: set[tuple[str, int]] = set()
        self.clock = ManualClock()
        self.closed = 0
        self.plain: set[tuple[str, int]] = set()  # brokers of other software
        self.nonsense = False

    def cluster(self, retry: Retry, request_timeout_s: float = 1) -> Cluster:
        return Cluster(
            (REGISTRY_A, REGISTRY_B),
            request_timeout_s=request_timeout_s,
            retry=retry,
            connect=self.connect,
            clock=self.clock,
        )

    def connect(self, host: str, port: int, timeout_s: float) -> FakeConnection:
        if (host, port) in self.down:
            raise ConnectionClosedError(f"{host} is down")
        return FakeConnection(self, (host, port))

    def answer(self, address: tuple[str, int], command: Command) -> Command:
        if command.code == RequestCode.GET_ROUTE_INFO_BY_TOPIC:
            if command.ext["topic"] != "t":
                return command.reply(ResponseCode.TOPIC_NOT_EXIST, remark="unknown")
            route: dict[str, Any] = {
                "brokerDatas": [
                    {"brokerName": name, "brokerAddrs": of_id} for name, of_id in self.addresses.items()
                ],
                "queueDatas": [
                    {"brokerName": name, "perm": 6, "readQueueNums": 2, "writeQueueNums": 2}
                    for name in self.addresses
                ],
            }
            return command.reply(0, body=json.dumps(route).encode())
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = {
                name: {"brokerName": name, "brokerAddrs": of_id} for name, of_id in self.addresses.items()
            }
            # Its master has moved while it was asked.
            for name, address in self.moved.items():
                brokers[name]["brokerAddrs"] = {"0": address}
            return command.reply(0, body=json.dumps({"brokerAddrTable": brokers}).encode())
        base = 100 if address[0] == "a" else 200
        if command.code == RequestCode.GET_QUEUE_BOUNDS:
            if address in self.plain:
                return command.not_supported()
            queues = [
                {"queueId": n, "minOffset": base + 10 * n, "maxOffset": base + 10 * n + 5} for n in range(2)
            ]
            view = {"generation": f"{base}-0", "timeMs": base, "isDeleted": False, "queues": queues}
            return command.reply(0, body=json.dumps(view).encode() if not self.nonsense else b"[]")
        queue_id = int(command.ext["queueId"])
        offset = base + queue_id * 10 + (5 if command.code == RequestCode.GET_MAX_OFFSET else 0)
        return command.reply(0, ext={"offset": str(offset)})


def test_bounds_of_all_brokers_come_in_queue_order_from_masters_or_the_first_slave() -> None:
    network = FakeNetwork()
    found = network.cluster(patient(0)[0]).bounds("t", lambda key: key != QueueKey("t", "a", 1))
    expected = [
        (QueueKey("t", "a", 0), QueueBounds(100, 105)),
        (QueueKey("t", "b", 0), QueueBounds(200, 205)),
        (QueueKey("t", "b", 1), QueueBounds(210, 215)),
    ]
    assert list(found.held.bounds.items()) == expected
    assert found.addresses == {"a": ("a", 10), "b": ("::1", 11)}
    assert found.held.generations == {("t", "a"): "100-0", ("t", "b"): "200-0"}
    assert found.held.time_ms == 100, "the clock that is furthest behind"
    assert len(network.requests) == 3, "one for the route, and one for each broker"
    # Other software is asked queue by queue, once it has said that it does not know better.
    network.plain = {("a", 10)}
    cluster = network.cluster(patient(0)[0])
    for _ in range(2):
        found = cluster.bounds("t", lambda key: key != QueueKey("t", "a", 1))
        assert list(found.held.bounds.items()) == expected
        assert found.held.generations == {("t", "b"): "200-0"}
    assert network.requests.count((("a", 10), RequestCode.GET_QUEUE_BOUNDS)) == 2
    # After its connection has ended it is asked anew: it may have been upgraded.
    network.plain = set()
    cluster.drop(("a", 10))
    assert cluster.bounds("t", lambda key: True).held.generations == {
        ("t", "a"): "100-0",
        ("t", "b"): "200-0",
    }


def test_bounds_that_cannot_be_read_are_said() -> None:
    network = FakeNetwork()
    network.nonsense = True
    with pytest.raises(ConnectionClosedError, match="bounds of topic t at broker a cannot be read"):
        network.cluster(patient(0)[0]).bounds("t", lambda key: key.broker == "a")


def test_queues_off_the_route_are_told_apart_by_their_broker() -> None:
    network = FakeNetwork()
    network.down = {("::1", 11)}
    keys = [QueueKey("t", name, n) for name in ("a", "b", "z") for n in (1, 2)]
    held = network.cluster(patient(0)[0]).bounds_off_route(keys, since={}).held
    # The one is there, of the other its broker knows nothing, and of the rest nobody says anything.
    assert held.bounds == {QueueKey("t", "a", 1): QueueBounds(110, 115)}
    assert held.removed == {QueueKey("t", "a", 2): None}
    network.plain = {("a", 10)}
    held = network.cluster(patient(0)[0]).bounds_off_route(keys[:1], since={}).held
    assert held.removed == {QueueKey("t", "a", 1): QueueBounds(110, 115)}


def test_waiting_is_said_after_two_seconds_and_every_thirty(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    retry = Retry(100, clock=clock, sleep=clock.advance, chance=lambda: 1.0)
    with pytest.raises(ConnectionClosedError, match="x: no answer within 100 s"):
        retry.call(Failing(*[ConnectionClosedError("down")] * 1000), what="x")
    words = [record.getMessage() for record in caplog.records]
    assert len(words) == 4
    assert words[0].startswith("waiting, for 97 s more: x: down") or words[0].startswith("waiting, for 98")


def test_the_next_registry_is_asked_when_one_is_down() -> None:
    network = FakeNetwork()
    network.down = {REGISTRY_A}
    assert len(network.cluster(patient(0)[0]).route("t").queues) == 4
    network.down = {REGISTRY_A, REGISTRY_B}
    with pytest.raises(ConnectionClosedError, match="rb is down"):
        network.cluster(patient(0)[0]).route("t")


def test_an_unknown_topic_is_not_asked_for_again() -> None:
    retry, pauses = patient(10)
    with pytest.raises(TopicMissingError, match="'nope' does not exist: unknown"):
        FakeNetwork().cluster(retry).route("nope")
    assert pauses == []


def test_a_connection_that_was_closed_while_idle_costs_no_patience() -> None:
    network = FakeNetwork()
    cluster = network.cluster(patient(0)[0])
    cluster.route("t")
    network.stale = {REGISTRY_A}
    assert len(cluster.route("t").queues) == 4
    # A new connection that fails at once is a failure.
    other = network.cluster(patient(0)[0])
    network.stale = {REGISTRY_A, REGISTRY_B}
    with pytest.raises(ConnectionClosedError):
        other.route("t")


def test_closing_closes_every_connection() -> None:
    network = FakeNetwork()
    cluster = network.cluster(patient(0)[0])
    cluster.bounds("t", lambda _key: True)
    cluster.close()
    cluster.close()
    assert network.closed == 3


def test_a_silent_broker_is_given_up_when_its_master_is_another() -> None:
    network = FakeNetwork()
    network.silent = {("a", 10)}
    network.moved = {"a": "a:20"}
    with pytest.raises(ConnectionClosedError, match="broker a is not at a:10 any more"):
        network.cluster(patient(0)[0], request_timeout_s=30).bounds("t", lambda key: key.broker == "a")
    assert network.clock.monotonic_s() == pytest.approx(ManualClock().monotonic_s() + 1)
    assert [where for where, _ in network.requests].count(("a", 10)) == 1, "it is asked once"


def test_progress_is_not_waited_for_at_a_silent_broker_whose_master_is_another() -> None:
    network = FakeNetwork()
    network.silent = {("a", 10)}
    network.moved = {"a": "a:20"}
    request = Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, {"topic": "t", "queueId": "0"})
    with pytest.raises(ConnectionClosedError, match="broker a is not at a:10 any more"):
        network.cluster(patient(0)[0], request_timeout_s=30).ask_once("a", ("a", 10), [request])
    assert network.clock.monotonic_s() == pytest.approx(ManualClock().monotonic_s() + 1)


@pytest.mark.parametrize("down", [set(), {REGISTRY_A, REGISTRY_B}])
def test_a_silent_broker_that_is_nowhere_else_is_waited_for(down: set[tuple[str, int]]) -> None:
    network = FakeNetwork()
    cluster = network.cluster(patient(0)[0], request_timeout_s=30)
    network.silent = {("a", 10)}
    connection = cluster.connection(("a", 10))
    opaque = connection.send(Command.request(RequestCode.GET_MAX_OFFSET, {"topic": "t", "queueId": "0"}))
    network.down = down
    with pytest.raises(RequestTimeoutError):
        cluster.receive(connection, opaque, "a", ("a", 10))
    assert network.clock.monotonic_s() == pytest.approx(ManualClock().monotonic_s() + 30)
