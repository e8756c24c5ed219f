"""Ingress under any order of publishes, answers and ends: nothing lost, doubled or acknowledged early."""

from __future__ import annotations

from fake_gateway import FakeLoop, FakeTransport, Front, Handed, ScriptedGateway, receive, split_output
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.routing.routes import Router
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.remoting.codes import ResponseCode

DEVICES = st.integers(0, 2)
REFUSALS = st.sampled_from([ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION])
TROUBLES = st.sampled_from([ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR, 10])


class Publisher:
    """A device and what it is owed: its QoS 1 messages in order, each unsettled, stored or given up."""

    def __init__(self, front: Front, name: str) -> None:
        self.name = name
        self.device: Device
        self.transport: FakeTransport
        self.device, self.transport = front.connect(name)
        self.sent: list[bytes] = []
        self.acknowledged = 0


class IngressMachine(RuleBasedStateMachine):
    """Small batches and little room, so that overflow and congestion happen all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.gateway = ScriptedGateway(queues=2)
        self.loop = FakeLoop()
        self.ingress = Ingress(
            Router([], default_topic="mqtt"),
            self.gateway,
            self.loop,  # type: ignore[arg-type]
            MqttSettings(batch_bytes_max=400, pending_bytes_max=2_000, retry_interval_s=1.0),
        )
        self.front = Front(self.ingress, loop=self.loop)
        self.ingress.group = self.front.group
        self.open: dict[int, Publisher] = {}
        self.count = 0
        self.seen = 0
        self.under_way: list[Handed] = []
        self.waiting_for_retry: set[int] = set()
        self.stored: dict[int, list[bytes]] = {0: [], 1: []}
        self.sent_to: dict[bytes, str] = {}
        self.refused: set[bytes] = set()

    def publisher(self, place: int) -> Publisher:
        if place not in self.open:
            self.count += 1
            self.open[place] = Publisher(self.front, f"d{self.count}")
        return self.open[place]

    def notice(self) -> None:
        """Look at what was handed over: at most one batch of a queue is under way."""
        for handed in self.gateway.handed[self.seen :]:
            assert all(other.queue_id != handed.queue_id for other in self.under_way)
            self.under_way.append(handed)
        self.seen = len(self.gateway.handed)

    @rule(
        place=DEVICES,
        topic=st.sampled_from(["a", "b", "c"]),
        size=st.integers(0, 300),
        count=st.integers(1, 6),
    )
    def publish(self, place: int, topic: str, size: int, count: int) -> None:
        publisher = self.publisher(place)
        if not publisher.transport.is_reading:
            return
        stream = b""
        for _ in range(count):
            self.count += 1
            payload = b"%d:" % self.count + bytes(size)
            self.sent_to[payload] = topic
            publisher.sent.append(payload)
            packet_id = (len(publisher.sent) - 1) % 65_535 + 1
            stream += packets.encode_publish(topic, payload, qos=1, packet_id=packet_id)
        receive(publisher.device, stream)
        self.notice()

    @rule()
    def turn(self) -> None:
        self.loop.run()
        self.notice()

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        handed = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.stored[handed.queue_id] += handed.payloads
        handed.answer(0, "")
        self.turn()

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), code=TROUBLES)
    def trouble(self, data: st.DataObject, code: int) -> None:
        handed = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        before = len(self.gateway.handed)
        handed.answer(code, "")
        self.loop.run()
        assert all(other.queue_id != handed.queue_id for other in self.gateway.handed[before:])
        self.loop.fire()
        [again] = [other for other in self.gateway.handed[before:] if other.queue_id == handed.queue_id]
        assert again.body == handed.body
        self.notice()

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), code=REFUSALS)
    def refuse(self, data: st.DataObject, code: int) -> None:
        handed = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.refused.update(handed.payloads)
        handed.answer(code, "")
        self.turn()
        for place, publisher in list(self.open.items()):
            if self.refused.intersection(publisher.sent):
                assert publisher.device.close_reason == reason_codes.NOT_STORED
                assert publisher.transport.is_closed
                self.end(place)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.open))))

    def end(self, place: int) -> None:
        publisher = self.open.pop(place)
        self.read(publisher)
        publisher.device.connection_lost(None)

    @rule()
    def forget_routes(self) -> None:
        self.ingress.forget_routes()

    def read(self, publisher: Publisher) -> None:
        stored = {payload for queue in self.stored.values() for payload in queue}
        for first, body in split_output(publisher.transport.take()):
            assert first >> 4 == packets.PUBACK
            assert int.from_bytes(body, "big") == publisher.acknowledged % 65_535 + 1
            assert publisher.sent[publisher.acknowledged] in stored
            publisher.acknowledged += 1

    @invariant()
    def acknowledges_in_order_what_is_stored(self) -> None:
        for publisher in self.open.values():
            self.read(publisher)

    @invariant()
    def holds_devices_back_while_too_much_waits(self) -> None:
        if self.ingress.pending_bytes * 2 <= 2_000:
            assert not self.front.group.is_congested
            assert self.front.group.paused_count == 0
        if self.ingress.pending_bytes > 2_000:
            assert self.front.group.is_congested

    def teardown(self) -> None:
        self.loop.run()
        self.notice()
        while self.under_way:
            handed = self.under_way.pop()
            self.stored[handed.queue_id] += handed.payloads
            handed.answer(0, "")
            self.loop.run()
            self.notice()
        assert self.ingress.is_idle
        for publisher in self.open.values():
            self.read(publisher)
            assert publisher.acknowledged == len(publisher.sent)
            assert publisher.transport.is_reading
        stored = [payload for queue in self.stored.values() for payload in queue]
        assert len(stored) == len(set(stored))
        assert set(stored) | self.refused == self.sent_to.keys()
        for queue in self.stored.values():
            for topic in "abc":
                numbers = [int(payload.split(b":")[0]) for payload in queue if self.sent_to[payload] == topic]
                assert numbers == sorted(numbers)


TestIngress = IngressMachine.TestCase
TestIngress.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
