"""Random lives of devices over two front ends and one or two brokers, against what MQTT promises.

A reference of sessions in plain Python says what each device has to have at the end: with QoS 1 every
message at least once, with QoS 2 exactly once, each topic in the order of its publisher, nothing it did not
subscribe; and where little may wait for a session, only what can have been too much or too old is missing.

IOTMQ_SESSION_PROGRAMS says how many programs are run, IOTMQ_SESSION_SEED which is the first.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from eventually import soon
from mqtt_site import MqttSite, SessionDevice, open_site
from session_oracle import RECORD_BYTES_MOST, Bounds, Expected

from iotmq.broker.sessions.queue_trim import RECORD_BYTES_MIN, waiting_count
from iotmq.broker.sessions.sessions import Sessions
from iotmq.mqtt.topics.topics import matches

pytestmark = pytest.mark.uvloop

PROGRAMS = int(os.environ.get("IOTMQ_SESSION_PROGRAMS", "12"))
SEED = int(os.environ.get("IOTMQ_SESSION_SEED", "1"))
STEPS = 60
FRONTS = ("one", "two")
FILTERS = ("t/0", "t/1", "t/+", "#", "u/#", "+/2")
SESSION_EXPIRY_S = 3600
TOPICS = ("t/0", "t/1", "t/2", "u/0", "u/2")


def bounds_of(seed: int) -> Bounds:
    """In every second program little may wait for a session."""
    chosen = random.Random(f"bounds {seed}")
    if seed % 2:
        return Bounds()
    return Bounds(
        messages_max=chosen.choice((0, 3, 8)),
        bytes_max=chosen.choice((0, 2, 6)) * RECORD_BYTES_MOST,
        age_s_max=chosen.choice((0, 0, 2, 10)),
        drops_oldest=chosen.random() < 0.5,
    )


class Program:
    """One life, from a seed."""

    def __init__(self, site: MqttSite, seed: int, bounds: Bounds) -> None:
        self.site = site
        self.bounds = bounds
        self.random = random.Random(seed)
        self.devices = [SessionDevice(f"d{number}") for number in range(3)]
        self.expected = [Expected(bounds) for _ in self.devices]
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
            (self.take_over, 3),
            (self.disconnect, 4),
            (self.drop, 4),
            (self.hold, 5),
            (self.answer, 8),
            (self.pass_time, 4),
            (self.expire, 1),
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
            self.check_books()
        await self.finish()
        self.check_books()

    def check_books(self) -> None:
        """What the parts of a broker, and of front ends, know of sessions agrees."""
        for bench in self.site.benches:
            sessions = bench.broker.sessions
            sessions.check_invariants()
            sessions.projection.check_invariants()
        self.site.check_sessions()

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
        self.expect(topic, body, qos)
        await self.publisher.publish(topic, body, qos)

    def expect(self, topic: str, body: bytes, qos: int) -> None:
        now_ms = self.now_ms()
        for device, expected in zip(self.devices, self.expected, strict=True):
            if self.bounds.is_any and not expected.messages() - set(device.got) and not self.waiting(device):
                expected.waits_for_nothing()
            expected.publish(topic, body, qos, now_ms)

    def now_ms(self) -> int:
        return self.site.bench.clock.now_ms()

    def waiting(self, device: SessionDevice) -> int:
        """How many messages the brokers are not done with."""
        return sum(
            bench.broker.sessions.behind(device.client_id, subscription.queue_id)[1]
            for bench in self.site.benches
            for session in (bench.broker.sessions.stored(device.client_id),)
            for subscription in (session.subscriptions.values() if session else ())
        )

    async def publish_delayed(self, number: int) -> None:
        if not self.publisher.is_connected:
            await self.connect_publisher()
        topic, body = self.random.choice(TOPICS), b"later %d" % self.published
        qos, seconds = self.random.choice((1, 2)), self.random.choice((1, 4, 10))
        self.published += 1
        due_ms = self.now_ms() + seconds * 1000
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
            self.expected[number] = Expected(self.bounds)
            await device.disconnect()
            device.got.clear()
        await device.connect(self.front())
        assert device.is_present or not self.expected[number].wanted, "the session was forgotten"

    async def take_over(self, number: int) -> None:
        """Another connection of the same client, and the server ends the first."""
        if self.devices[number].is_connected:
            await self.devices[number].take_over(self.front())
            assert self.devices[number].is_present

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
        self.advance(self.random.choice((0.5, 3.0, 12.0)))
        await asyncio.sleep(0)
        if self.bounds.messages_max or self.bounds.bytes_max:
            for bench in self.site.benches:
                await self.check_limits(bench.broker.sessions)

    async def check_limits(self, broker: Sessions) -> None:
        """What a broker has for those who are away is within the limits once it has looked."""

        def unsent(client_id: str) -> int:
            session = broker.stored(client_id)
            if session is None or session.owner:
                return 0
            places = [
                (place.queue_id, broker.limits._cursor(client_id, place.queue_id))
                for place in session.subscriptions.values()
            ]
            return sum(waiting_count(broker.limits._reader, *place) for place in places)

        def are_within() -> bool:
            broker.limits.sweep()
            most = max(unsent(device.client_id) for device in self.devices)
            return most <= (self.bounds.messages_max or most) and (
                not self.bounds.bytes_max or most * RECORD_BYTES_MIN <= self.bounds.bytes_max
            )

        await soon(are_within, "not too much waits")

    def advance(self, seconds: float) -> None:
        for bench in self.site.benches:
            bench.pass_time(seconds)
            bench.broker.timers.deliver()
        now_ms = self.now_ms()
        for due in sorted(due for due in self.delayed if due[0] <= now_ms):
            self.delayed.remove(due)
            self.expect(*due[2:])

    async def expire(self, number: int) -> None:
        """Nobody comes for so long that the sessions of those who are away end."""
        away = [(device, index) for index, device in enumerate(self.devices) if not device.is_connected]
        brokers = [bench.broker.sessions for bench in self.site.benches]

        def have_gone() -> bool:
            self.advance(1.0)
            stored = [broker.stored(device.client_id) for device, _ in away for broker in brokers]
            return not any(session is not None and session.owner for session in stored)

        await soon(have_gone, "the front ends have said that they are away")
        self.advance(SESSION_EXPIRY_S)
        for device, index in away:
            await soon(
                lambda device=device: not any(broker.stored(device.client_id) for broker in brokers),
                f"the session of {device.client_id} ends",
            )
            self.expected[index] = Expected(self.bounds)
            device.got.clear()

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
            wanted, promised = expected.messages(), expected.promised(self.now_ms())
            got = device.got
            await soon(lambda promised=promised, got=got: promised <= set(got), f"all messages of d{number}")
            assert not set(got) - expected.allowed, "messages nobody subscribed"
            if self.bounds.is_any:
                await soon(lambda device=device: not self.waiting(device), f"nothing waits for d{number}")
                assert len(wanted - set(got)) <= self.dropped(device), "some are missing and not counted"
            for message, topic_filter in expected.once.items():
                if message in wanted and topic_filter not in expected.loose:
                    assert got.count(message) == 1 or message not in promised | set(got), message
            for topic in TOPICS:
                self.check_order(topic, [body for name, body in got if name == topic], wanted)
        for bench in self.site.benches:
            assert bench.broker.sessions.projection.malformed_records == 0
            assert all(record.size <= RECORD_BYTES_MOST for record in bench.stored_records())

    def dropped(self, device: SessionDevice) -> int:
        """What the brokers count as kept from a session by its limits."""
        stored = [bench.broker.sessions.stored(device.client_id) for bench in self.site.benches]
        return sum(session.dropped for session in stored if session is not None)

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

    Where there are no limits, filters become wide, and narrow again, all the time.
    """
    bounds = bounds_of(seed)
    switching = {"wide_filter_percent": 20, "wide_filter_window_records": 10} if seed % 2 else {}
    site = await open_site(
        tmp_path,
        *FRONTS,
        in_flight_max=3,
        is_remote=brokers > 0,
        brokers=max(1, brokers),
        broker_settings=switching | bounds.settings(),
        mqtt_settings={"session_expiry_s_max": SESSION_EXPIRY_S},
    )
    program = Program(site, seed, bounds)
    try:
        await asyncio.wait_for(program.run(), 60)
    except BaseException:
        print("seed", seed, bounds, *program.log, sep="\n")
        raise
    finally:
        for device in (*program.devices, program.publisher):
            await device.drop()
        await site.close()
