"""Random lives of devices over two front ends and one or two brokers, against what MQTT promises.

A reference of sessions in a few lines of Python says what each device has to have at the end: with QoS 1
every message at least once, with QoS 2 exactly once, each topic in the order of its publisher, nothing it did
not subscribe. IOTMQ_SESSION_PROGRAMS says how many programs are run, IOTMQ_SESSION_SEED which is the first.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
import uvloop
from eventually import soon
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq.mqtt.topics import matches

PROGRAMS = int(os.environ.get("IOTMQ_SESSION_PROGRAMS", "12"))
SEED = int(os.environ.get("IOTMQ_SESSION_SEED", "1"))
STEPS = 60
FRONTS = ("one", "two")
FILTERS = ("t/0", "t/1", "t/+", "#", "u/#", "+/2")
TOPICS = ("t/0", "t/1", "t/2", "u/0", "u/2")


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()


class Expected:
    """What MQTT 3.1.1 promises one device: by filter, the messages it has to get."""

    def __init__(self) -> None:
        self.qos: dict[str, int] = {}
        self.wanted: dict[str, list[tuple[str, bytes]]] = {}
        # Subscribed at some time: may come, need not.
        self.allowed: set[tuple[str, bytes]] = set()
        # Published with QoS 2 for one filter, which was subscribed with it.
        self.once: dict[tuple[str, bytes], str] = {}
        # Filters that were ever subscribed with QoS 1.
        self.loose: set[str] = set()

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.wanted.setdefault(topic_filter, [])
        self.qos[topic_filter] = qos
        if qos == 1:
            self.loose.add(topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        self.wanted.pop(topic_filter, None)
        self.qos.pop(topic_filter, None)

    def publish(self, topic: str, body: bytes, qos: int) -> None:
        matching = [topic_filter for topic_filter in self.wanted if matches(topic_filter, topic)]
        for topic_filter in matching:
            self.wanted[topic_filter].append((topic, body))
            self.allowed.add((topic, body))
        if qos == 2 and len(matching) == 1:
            self.once[topic, body] = matching[0]


class Program:
    """One life, from a seed."""

    def __init__(self, site: MqttSite, seed: int) -> None:
        self.site = site
        self.random = random.Random(seed)
        self.devices = [SessionDevice(f"d{number}") for number in range(3)]
        self.expected = [Expected() for _ in self.devices]
        self.publisher = SessionDevice("publisher")
        self.published = 0
        # Messages that wait: when they are due, in the order of publishing, and what is to come of them.
        self.delayed: list[tuple[int, int, str, bytes, int]] = []
        self.was_restarted = False
        self.log: list[str] = []

    async def run(self) -> None:
        await self.connect_publisher()
        for number in range(len(self.devices)):
            await self.connect(number)
        steps = [
            (self.publish, 40),
            (self.publish_delayed, 5),
            (self.subscribe, 10),
            (self.unsubscribe, 3),
            (self.connect, 8),
            (self.disconnect, 4),
            (self.drop, 4),
            (self.hold, 5),
            (self.answer, 8),
            (self.pass_time, 4),
            (self.kill_front, 2),
            (self.restart_broker, 1),
        ]
        if self.site.registry is not None:
            steps.append((self.restart_one_broker, 2))
        for _ in range(STEPS):
            step = self.random.choices([step for step, _ in steps], [weight for _, weight in steps])[0]
            number = self.random.randrange(len(self.devices))
            self.log.append(f"{step.__name__} {number}")
            await step(number)
        await self.finish()

    async def connect_publisher(self) -> None:
        await self.publisher.connect(self.front(), clean_session=True)

    def front(self):  # type: ignore[no-untyped-def]
        return self.site.fronts[self.random.choice(FRONTS)]

    async def publish(self, number: int) -> None:
        if not self.publisher.is_connected:
            await self.connect_publisher()
        topic, body = self.random.choice(TOPICS), b"%d" % self.published
        qos = self.random.choice((1, 2))
        self.published += 1
        for expected in self.expected:
            expected.publish(topic, body, qos)
        await self.publisher.publish(topic, body, qos)

    async def publish_delayed(self, number: int) -> None:
        if not self.publisher.is_connected:
            await self.connect_publisher()
        topic, body = self.random.choice(TOPICS), b"later %d" % self.published
        qos, seconds = self.random.choice((1, 2)), self.random.choice((1, 4, 10))
        self.published += 1
        due_ms = self.site.bench.clock.now_ms() + seconds * 1000
        self.delayed.append((due_ms, self.published, topic, body, qos))
        await self.publisher.publish(f"$delayed/{seconds}/{topic}", body, qos)

    async def subscribe(self, number: int) -> None:
        device = self.devices[number]
        if device.is_connected:
            topic_filter, qos = self.random.choice(FILTERS), self.random.choice((1, 2))
            assert await device.subscribe((topic_filter, qos)) == [qos]
            self.expected[number].subscribe(topic_filter, qos)

    async def unsubscribe(self, number: int) -> None:
        device = self.devices[number]
        if device.is_connected:
            topic_filter = self.random.choice(FILTERS)
            await device.unsubscribe(topic_filter)
            self.expected[number].unsubscribe(topic_filter)

    async def connect(self, number: int) -> None:
        device = self.devices[number]
        is_clean = self.random.random() < 0.1
        if is_clean:
            await device.connect(self.front(), clean_session=True)
            self.expected[number] = Expected()
            await device.disconnect()
            device.got.clear()
        await device.connect(self.front())
        assert device.is_present or not self.expected[number].wanted, "the session was forgotten"

    async def disconnect(self, number: int) -> None:
        await self.devices[number].disconnect()

    async def drop(self, number: int) -> None:
        await self.devices[number].drop()

    async def hold(self, number: int) -> None:
        self.devices[number].is_acknowledging = False

    async def answer(self, number: int) -> None:
        device = self.devices[number]
        if device.is_connected:
            device.acknowledge(self.random.choice((1, 3, None)))
        device.is_acknowledging = self.random.random() < 0.7

    async def pass_time(self, number: int) -> None:
        seconds = self.random.choice((0.5, 3.0, 12.0))
        for bench in self.site.benches:
            bench.pass_time(seconds)
            bench.broker.timers.deliver()
        now_ms = self.site.bench.clock.now_ms()
        for due in sorted(due for due in self.delayed if due[0] <= now_ms):
            self.delayed.remove(due)
            for expected in self.expected:
                expected.publish(*due[2:])
        await asyncio.sleep(0)

    async def kill_front(self, number: int) -> None:
        await self.site.kill_front(self.random.choice(FRONTS))
        # The clients see it.
        for device in (*self.devices, self.publisher):
            if device.is_connected:
                for bench in self.site.benches:
                    bench.pass_time(0)
                await device.drop()

    async def restart_broker(self, number: int) -> None:
        for device in (*self.devices, self.publisher):
            await device.drop()
        await self.site.restart_broker()

    async def restart_one_broker(self, number: int) -> None:
        """Devices stay connected."""
        self.was_restarted = True
        await self.site.restart_one_broker(self.random.choice(self.site.benches))

    async def finish(self) -> None:
        """Everybody comes back, takes everything, and is asked what it got."""
        for number, device in enumerate(self.devices):
            device.is_acknowledging = True
            await device.connect(self.front())
            expected = self.expected[number]
            wanted = {message for messages in expected.wanted.values() for message in messages}
            got = device.got
            await soon(lambda wanted=wanted, got=got: wanted <= set(got), f"all messages of d{number}")
            assert not set(got) - expected.allowed, "messages nobody subscribed"
            for message, topic_filter in expected.once.items():
                if message in wanted and topic_filter not in expected.loose:
                    assert got.count(message) == 1, message
            for topic in TOPICS:
                self.check_order(topic, [body for name, body in got if name == topic], wanted)
        for bench in self.site.benches:
            assert bench.broker.sessions._projection.malformed_records == 0

    def check_order(self, topic: str, bodies: list[bytes], wanted: set[tuple[str, bytes]]) -> None:
        """Each message comes in the order of publishing, where one filter brings it.

        While a broker is away its topics may go to the other one, and two brokers have no common order.
        """
        at_once = [body for body in bodies if body.isdigit() and (topic, body) in wanted]
        firsts = list(dict.fromkeys(int(body) for body in at_once))
        filters = sum(matches(topic_filter, topic) for topic_filter in FILTERS)
        if filters == 1 and not (self.was_restarted and len(self.site.benches) > 1):
            assert firsts == sorted(firsts), topic


@pytest.mark.parametrize("seed", range(SEED, SEED + PROGRAMS))
@pytest.mark.parametrize("brokers", [0, 1, 2])
async def test_devices_get_what_they_were_promised(tmp_path: Path, seed: int, brokers: int) -> None:
    """With 0 brokers of their own, front ends are in the broker's process.

    In every second program filters become wide, and narrow again, all the time.
    """
    switching = {"wide_filter_percent": 20, "wide_filter_window_records": 10} if seed % 2 else {}
    site = await open_site(
        tmp_path,
        *FRONTS,
        in_flight_max=3,
        is_remote=brokers > 0,
        brokers=max(1, brokers),
        broker_settings=switching,
    )
    program = Program(site, seed)
    try:
        await asyncio.wait_for(program.run(), 60)
    except BaseException:
        print("seed", seed, *program.log, sep="\n")
        raise
    finally:
        for device in (*program.devices, program.publisher):
            await device.drop()
        await site.close()
