"""A look at a cluster, whose answers the test gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.alarms import watch as watch_module
from iotmq.alarms.book import Missed
from iotmq.alarms.cluster_conditions import (
    BROKER_GONE,
    CONDITIONS,
    DEAD_LETTERS,
    DEVICES_SILENT,
    FRONT_END_GONE,
    GROUP_AGE,
    GROUP_ALONE,
    GROUP_BEHIND,
    GROUP_STUCK,
    REGISTRY_GONE,
)
from iotmq.alarms.lease import FORBIDDEN_S
from iotmq.alarms.measures import Measures
from iotmq.alarms.settings import DeviceWatch
from iotmq.alarms.watch import Watch, silent_share
from iotmq.client.admin.brokers import BrokerProgress, QueueContent
from iotmq.client.admin.groups import ConsumerConnections, GroupProgress, QueueLag, QueueTimes
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import BrokerError, ConnectionClosedError, IotmqError, RouteNotFoundError
from iotmq.ports.session_pages import FrontEndSummary, SessionSummary
from iotmq.remoting.codes import ResponseCode


class Cluster:
    """What brokers and registries answer."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ("127.0.0.1:1",)
        self.dead_registries: set[str] = set()
        self.brokers: dict[str, dict[int, str]] = {"a": {0: "x"}, "b": {0: "y"}}
        self.front_end_names = ["local", "edge-1", "host:123", "host:123-2"]
        # Group -> topic -> (end, consumed).
        self.groups: dict[str, dict[str, tuple[int, int]]] = {}
        self.members: dict[str, bool] = {}
        self.delays_ms: dict[tuple[str, str], int] = {}
        self.dead_letters: dict[str, int] = {}
        self.sessions: list[SessionSummary] = []
        self.error: IotmqError | None = None
        self.asked: list[tuple[str, ...]] = []
        self.registries = self
        self.configurations = self.statistics = self

    # Registries

    async def cluster(self) -> dict[str, dict[int, str]]:
        if self.error is not None:
            raise self.error
        return self.brokers

    async def ask(self, _client: object, address: str, *_: object, **__: object) -> None:
        if address in self.dead_registries:
            raise ConnectionClosedError("gone")

    # Admin: `groups` is both what configurations are asked for and the part that knows members.

    async def topics(self) -> list[str]:
        return [*self.dead_letters, "orders"]

    async def progress(self, broker: str) -> BrokerProgress:
        return BrokerProgress(
            {
                group: [
                    GroupProgress(
                        queues={
                            MessageQueue(topic, broker, 0): QueueLag(
                                broker_offset=end, consumer_offset=consumed, last_timestamp=end
                            )
                        },
                        consume_tps=0,
                    )
                    for topic, (end, consumed) in topics.items()
                ]
                for group, topics in self.groups.items()
                if broker == "a"
            },
            0,
        )

    async def topic_content(self, topic: str) -> dict[MessageQueue, QueueContent]:
        self.asked.append(("content", topic))
        queue = MessageQueue(topic, "a", 0)
        return {queue: QueueContent(min_offset=0, max_offset=self.dead_letters[topic])}

    async def connections(self, group: str) -> ConsumerConnections | None:
        self.asked.append(("members", group))
        return ConsumerConnections() if self.members.get(group) else None

    async def times(self, group: str, topic: str) -> dict[MessageQueue, QueueTimes]:
        self.asked.append(("times", group, topic))
        if topic == "deleted":
            raise RouteNotFoundError("no broker has it")
        delay_ms = self.delays_ms.get((group, topic), 0)
        times = QueueTimes(min_time_ms=0, max_time_ms=0, consume_time_ms=0, delay_ms=delay_ms)
        return {MessageQueue(topic, "a", 0): times}

    # Front ends and sessions

    async def front_ends(self) -> dict[str, FrontEndSummary]:
        return {
            name: FrontEndSummary(name=name, clients=1, is_draining=False) for name in self.front_end_names
        }

    async def kept(self, *, prefix: str) -> AsyncIterator[SessionSummary]:
        self.asked.append(("sessions", prefix))
        for session in self.sessions:
            if session.client_id.startswith(prefix):
                yield session


class _Groups:
    """`await configurations.groups()` and `groups.times(...)` have one name in two places."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def __call__(self) -> dict[str, object]:
        return dict.fromkeys(self._cluster.brokers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


class Bench:
    def __init__(self, devices: Sequence[DeviceWatch] = ()) -> None:
        self.cluster = Cluster()
        self.clock = ManualClock()
        self.missed = Missed()
        self.watch = Watch(devices, self.missed, self.clock)

    async def look(self) -> dict[str, dict[str, float]]:
        """Source -> value of the one label -> number."""
        found = await self.watch.look(self.cluster)  # type: ignore[arg-type]
        return {source: {labels[0][1]: value for labels, value in rows} for source, rows in found.items()}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    patch(monkeypatch, made.cluster)
    return made


def patch(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    groups = _Groups(cluster)
    admin = SimpleNamespace(
        configurations=SimpleNamespace(groups=groups),
        statistics=cluster,
        groups=groups,
        topics=cluster.topics,
    )
    monkeypatch.setattr(watch_module, "Admin", lambda _client: admin)
    monkeypatch.setattr(watch_module, "FrontEndAdmin", lambda _client: cluster)
    monkeypatch.setattr(watch_module, "SessionAdmin", lambda _client: cluster)
    monkeypatch.setattr(watch_module, "ask", cluster.ask)


async def test_what_was_there_is_missed_when_it_is_gone(bench: Bench) -> None:
    found = await bench.look()
    assert found[BROKER_GONE] == {"a": 0, "b": 0}
    assert found[REGISTRY_GONE] == {"127.0.0.1:1": 0}
    # One without a name of its own has another one after each start.
    assert found[FRONT_END_GONE] == {"edge-1": 0}
    bench.cluster.brokers = {"b": {1: "z"}, "a": {0: "x"}}
    bench.cluster.front_end_names = []
    bench.cluster.dead_registries = {"127.0.0.1:1"}
    found = await bench.look()
    assert found[BROKER_GONE] == {"a": 0, "b": 1}
    assert found[FRONT_END_GONE] == {"edge-1": 1}
    assert found[REGISTRY_GONE] == {"127.0.0.1:1": 1}
    bench.missed.brokers.discard("b")
    assert (await bench.look())[BROKER_GONE] == {"a": 0}


async def test_so_many_are_missed(bench: Bench) -> None:
    bench.cluster.brokers = {f"b{number:05}": {0: "x"} for number in range(limits.ALARM_KNOWN_MAX)}
    assert len((await bench.look())[BROKER_GONE]) == limits.ALARM_KNOWN_MAX
    bench.cluster.brokers["c"] = {0: "x"}
    found = await bench.look()
    assert len(found[BROKER_GONE]) == limits.ALARM_KNOWN_MAX
    assert "c" not in found[BROKER_GONE]


async def test_groups_are_behind_by_messages_and_by_age(bench: Bench) -> None:
    bench.cluster.groups = {
        "late": {"orders": (10, 4), "bills": (5, 4)},
        "done": {"orders": (10, 10)},
        "TOOLS_CONSUMER": {"orders": (10, 0)},
        "RESEND_late": {"orders": (10, 0)},
        "odd": {"deleted": (10, 9)},
    }
    bench.cluster.delays_ms = {("late", "orders"): 90_000, ("late", "bills"): 120_000}
    found = await bench.look()
    assert found[GROUP_BEHIND] == {"late": 7, "odd": 1}
    assert found[GROUP_AGE] == {"late": 120, "odd": 0}


async def test_a_group_that_consumes_nothing_is_stuck_or_has_no_client(bench: Bench) -> None:
    bench.cluster.groups = {
        "stuck": {"orders": (10, 4)},
        "alone": {"orders": (10, 4)},
        "busy": {"orders": (10, 4)},
    }
    bench.cluster.members = {"stuck": True, "busy": True}
    found = await bench.look()
    assert found[GROUP_STUCK] == found[GROUP_ALONE] == {}
    bench.clock.advance(30)
    bench.cluster.groups["busy"] = {"orders": (20, 5)}
    found = await bench.look()
    assert (found[GROUP_STUCK], found[GROUP_ALONE]) == ({"stuck": 30}, {"alone": 6})
    bench.clock.advance(30)
    bench.cluster.groups["stuck"] = {"orders": (12, 4)}
    assert (await bench.look())[GROUP_STUCK] == {"stuck": 60, "busy": 30}
    # What waits was taken, so it is not stuck; and it is new when it stands still again.
    bench.cluster.groups["stuck"] = {"orders": (12, 12)}
    assert "stuck" not in (await bench.look())[GROUP_STUCK]
    bench.cluster.groups["stuck"] = {"orders": (13, 12)}
    assert "stuck" not in (await bench.look())[GROUP_STUCK]


async def test_so_many_groups_are_looked_at(bench: Bench) -> None:
    bench.cluster.groups = {
        f"g{number:05}": {"orders": (number + 2, 1)} for number in range(limits.ALARM_GROUPS_MAX + 1)
    }
    await bench.look()
    bench.clock.advance(30)
    bench.cluster.asked.clear()
    found = await bench.look()
    assert len(found[GROUP_BEHIND]) == limits.ALARM_GROUPS_MAX
    assert "g00000" not in found[GROUP_BEHIND], "the one that is behind least"
    assert len(found[GROUP_ALONE]) == limits.ALARM_GROUPS_ASKED_MAX
    asked = [kind for kind, *_ in bench.cluster.asked]
    assert asked.count("times") == asked.count("members") == limits.ALARM_GROUPS_ASKED_MAX


async def test_dead_letters_are_counted(bench: Bench) -> None:
    bench.cluster.dead_letters = {"%DLQ%orders": 4}
    assert (await bench.look())[DEAD_LETTERS] == {"orders": 4}
    bench.cluster.dead_letters = {
        f"%DLQ%{number}": 1 for number in range(limits.ALARM_DEAD_LETTER_TOPICS_MAX + 1)
    }
    assert len((await bench.look())[DEAD_LETTERS]) == limits.ALARM_DEAD_LETTER_TOPICS_MAX


async def test_dead_letters_of_a_broker_that_was_away_are_no_new_ones(bench: Bench) -> None:
    growth = Measures(
        [each for each in CONDITIONS if each.sources == (DEAD_LETTERS,)], counts_from_start=False
    )

    async def grown() -> list[float]:
        found = await bench.watch.look(bench.cluster)  # type: ignore[arg-type]
        bench.clock.advance(30)
        readings, _ = growth.read(found, bench.clock.now_ms())
        return [reading.value for reading in readings]

    bench.cluster.dead_letters = {"%DLQ%orders": 100}
    assert await grown() == [0]
    bench.cluster.dead_letters = {}
    assert await grown() == [0]
    bench.cluster.dead_letters = {"%DLQ%orders": 100}
    assert await grown() == [0]
    bench.cluster.dead_letters = {"%DLQ%orders": 101, "%DLQ%new": 1}
    assert await grown() == [1, 1]


async def test_what_cannot_be_asked_is_left_out(bench: Bench) -> None:
    bench.cluster.error = ConnectionClosedError("gone")
    found = await bench.look()
    assert BROKER_GONE not in found
    assert FRONT_END_GONE in found
    assert bench.watch.failures == {"brokers": "gone"}
    bench.cluster.error = None
    assert BROKER_GONE in await bench.look()
    assert bench.watch.failures == {}


async def test_what_the_account_may_not_ask_is_asked_seldom(bench: Bench) -> None:
    bench.cluster.error = BrokerError(ResponseCode.NO_PERMISSION, "who are you?")
    assert BROKER_GONE not in await bench.look()
    bench.cluster.error = None
    bench.clock.advance(FORBIDDEN_S - 1)
    assert BROKER_GONE not in await bench.look()
    assert list(bench.watch.failures) == ["brokers"]
    bench.clock.advance(1)
    assert BROKER_GONE in await bench.look()
    assert bench.watch.failures == {}


def session(client_id: str, *, closed_ms: int = 0) -> SessionSummary:
    return SessionSummary(client_id=client_id, front_end="" if closed_ms else "edge-1", closed_ms=closed_ms)


PUMPS = DeviceWatch(name="pumps", client_prefix="pump-", silent_s=100, share=0.5)


@pytest.mark.parametrize(
    ("closed_s", "expected", "share"),
    [
        ([], 0, 0),
        ([], 4, 1),
        ([None], 0, 0),
        ([None, 50], 0, 0),
        ([None, 150], 0, 0.5),
        ([150, 150], 0, 1),
        ([None], 4, 0.75),
        ([None, None], 1, 0),
    ],
)
def test_a_device_is_silent_when_it_was_away_for_long_enough(
    closed_s: list[int | None], expected: int, share: float
) -> None:
    now_ms = 1_000_000
    sessions = [session("pump-1", closed_ms=0 if each is None else now_ms - each * 1000) for each in closed_s]
    watch = DeviceWatch(name="pumps", client_prefix="pump-", silent_s=100, expected=expected)
    assert silent_share(watch, sessions, now_ms) == share


async def test_devices_are_looked_at_less_often_the_longer_they_may_be_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench([PUMPS])
    patch(monkeypatch, bench.cluster)
    bench.cluster.sessions = [session("pump-1"), session("fan-1", closed_ms=1)]
    assert (await bench.look())[DEVICES_SILENT] == {"pumps": 0}
    bench.cluster.sessions = [session("pump-1", closed_ms=1)]
    bench.clock.advance(9)
    assert (await bench.look())[DEVICES_SILENT] == {"pumps": 0}
    bench.clock.advance(1)
    assert (await bench.look())[DEVICES_SILENT] == {"pumps": 1}
    assert bench.cluster.asked.count(("sessions", "pump-")) == 2


async def test_so_many_sessions_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ALARM_SESSIONS_MAX", 3)
    bench = Bench([PUMPS])
    patch(monkeypatch, bench.cluster)
    bench.cluster.sessions = [session(f"pump-{number}", closed_ms=1) for number in range(3)]
    assert (await bench.look())[DEVICES_SILENT] == {"pumps": 1}
    # Past the limit no more are read, and what is beyond it counts for nothing.
    bench.cluster.sessions.append(session("pump-9"))
    bench.clock.advance(10)
    assert (await bench.look())[DEVICES_SILENT] == {"pumps": 1}
