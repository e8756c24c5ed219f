"""Ingress: batches per queue, one under way, acknowledgement only after the broker's word, bounded memory."""

from __future__ import annotations

from typing import Any

import pytest
from fake_gateway import FakeLoop, FakeTransport, Front, Handed, ScriptedGateway, receive, split_output

from iotmq import limits
from iotmq.client.transport.routes import queue_of_key
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.topics.reply import REPLY_PREFIX, ReplyAddress, reply_token
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.connection.device_calls import DeviceSession
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.routing.routes import Router
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.routes import RouteSettings
from iotmq.remoting.codes import ResponseCode
from iotmq.supervised import FAILURES

RETRY_S = 0.5
BUSY = ResponseCode.SERVICE_NOT_AVAILABLE


class Bench:
    """An ingress between devices and a scripted gateway."""

    def __init__(
        self, *, queues: int = 1, routes: list[dict[str, Any]] | None = None, **settings: Any
    ) -> None:
        self.gateway = ScriptedGateway(
            queues=queues, record_bytes_max=settings.pop("record_bytes_max", 100_000)
        )
        self.gateway.may_lose_answers = settings.pop("may_lose_answers", False)
        self.loop = FakeLoop()
        self.router = Router([RouteSettings(**route) for route in routes or []], default_topic="mqtt")
        defaults = {"batch_bytes_max": 64 * 1024, "pending_bytes_max": 1 << 20, "retry_interval_s": RETRY_S}
        limits = MqttSettings(**(defaults | settings))
        self.ingress = Ingress(self.router, self.gateway, self.loop, limits)  # type: ignore[arg-type]
        self.front = Front(self.ingress, loop=self.loop, packet_bytes_max=1 << 20)
        self.group = self.ingress.group = self.front.group

    def connect(self, client_id: str = "d") -> tuple[Device, FakeTransport]:
        return self.front.connect(client_id)

    @property
    def handed(self) -> list[Handed]:
        return self.gateway.handed


def publish(*numbers: int, topic: str = "t", qos: int = 1, payload: bytes | None = None) -> bytes:
    """A PUBLISH per number, which is its packet id and its payload."""
    return b"".join(
        packets.encode_publish(
            topic, b"%d" % number if payload is None else payload, qos=qos, packet_id=number
        )
        for number in numbers
    )


def acknowledged(transport: FakeTransport, packet_type: int = packets.PUBACK) -> list[int]:
    found = []
    for first, body in split_output(transport.take()):
        assert first >> 4 == packet_type
        found.append(int.from_bytes(body, "big"))
    return found


def test_messages_of_a_turn_are_one_batch_and_are_acknowledged_when_it_is_stored() -> None:
    bench = Bench()
    (one, one_out), (two, two_out) = bench.connect("one"), bench.connect("two")
    receive(one, publish(1, 2))
    receive(two, publish(7))
    receive(one, publish(3))
    assert not bench.handed, "nothing is handed over before the turn ends"
    bench.loop.run()
    [batch] = bench.handed
    assert (batch.topic, batch.queue_id, batch.is_stored) == ("mqtt", 0, True)
    assert batch.payloads == [b"1", b"2", b"7", b"3"]
    assert not one_out.written
    assert not two_out.written
    batch.answer(0, "")
    assert not one_out.written, "answers leave together, at the end of the turn"
    bench.loop.run()
    assert acknowledged(one_out) == [1, 2, 3]
    assert acknowledged(two_out) == [7]
    assert bench.ingress.is_idle
    assert (bench.ingress.messages, bench.ingress.message_bytes, bench.ingress.batches) == (4, 4, 1)


def test_records_carry_topic_key_tags_client_qos_and_retain() -> None:
    bench = Bench(routes=[{"filter": "devices/+/#", "topic": "telemetry", "key": "{1}", "tags": "{2}"}])
    device, _ = bench.connect("client-é")
    receive(device, packets.encode_publish("devices/42/temperature", b"21", qos=1, packet_id=1, retain=True))
    receive(device, packets.encode_publish("devices/42", b"", qos=0))
    receive(device, packets.encode_publish("other", b"x", qos=2, packet_id=1))
    bench.loop.run()
    routed, other = bench.handed
    assert (routed.topic, other.topic) == ("telemetry", "mqtt")
    assert [message.properties for message in routed.messages] == [
        {
            "MQTT_TOPIC": "devices/42/temperature",
            "KEYS": "42",
            "TAGS": "temperature",
            "MQTT_CLIENT_ID": "client-é",
            "MQTT_QOS": "1",
            "MQTT_RETAIN": "1",
        },
        {"MQTT_TOPIC": "devices/42", "KEYS": "42", "MQTT_CLIENT_ID": "client-é", "MQTT_QOS": "0"},
    ]
    assert other.messages[0].properties["MQTT_QOS"] == "2"


def test_messages_of_one_key_go_to_one_queue() -> None:
    bench = Bench(queues=8)
    device, _ = bench.connect()
    for number in range(50):
        receive(device, publish(number + 1, topic=f"t/{number % 10}"))
    bench.loop.run()
    for batch in bench.handed:
        assert {queue_of_key(message.topic, 8) for message in batch.messages} == {batch.queue_id}
    assert sum(batch.count for batch in bench.handed) == 50
    assert len({batch.queue_id for batch in bench.handed}) == len(bench.handed) > 1


def test_one_batch_of_a_queue_is_under_way_and_the_next_holds_what_came_meanwhile() -> None:
    bench = Bench()
    device, out = bench.connect()
    for number in range(1, 6):
        receive(device, publish(number))
        bench.loop.run()
    assert [batch.payloads for batch in bench.handed] == [[b"1"]]
    bench.handed[0].answer(0, "")
    bench.loop.run()
    assert [batch.payloads for batch in bench.handed] == [[b"1"], [b"2", b"3", b"4", b"5"]]
    assert acknowledged(out) == [1]
    bench.handed[1].answer(0, "")
    bench.loop.run()
    assert acknowledged(out) == [2, 3, 4, 5]


def test_queues_do_not_wait_for_each_other_but_a_device_gets_its_answers_in_order() -> None:
    bench = Bench(queues=2)
    topics = sorted((f"t{number}" for number in range(20)), key=lambda name: queue_of_key(name, 2))
    device, out = bench.connect()
    receive(device, publish(1, topic=topics[0]) + publish(2, topic=topics[-1]) + publish(3, topic=topics[0]))
    bench.loop.run()
    first, second = sorted(bench.handed, key=lambda batch: batch.queue_id)
    second.answer(0, "")
    bench.loop.run()
    assert acknowledged(out) == [], "packet 1 was published before packet 2 [MQTT-4.6.0-2]"
    first.answer(0, "")
    bench.loop.run()
    assert acknowledged(out) == [1, 2, 3]


# Of the last three a broker has it, and says so when it is asked again: it is not stored twice.
@pytest.mark.parametrize(
    "code",
    [
        BUSY,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ],
)
def test_a_batch_that_is_not_confirmed_is_asked_for_again_as_a_repeat_and_is_not_overtaken(code: int) -> None:
    bench = Bench()
    device, out = bench.connect()
    receive(device, publish(1))
    bench.loop.run()
    receive(device, publish(2))
    bench.loop.run()
    for attempt in range(3):
        bench.handed[attempt].answer(code, "not now")
        bench.loop.run()
        assert [delay for delay, _ in bench.loop.timers] == [RETRY_S]
        assert len(bench.handed) == attempt + 1
        bench.loop.fire()
        assert bench.handed[-1].body == bench.handed[0].body
    assert not out.written
    assert device.close_reason is None
    assert bench.ingress.retries == 3
    bench.gateway.automatic = 0
    bench.handed[-1].answer(0, "")
    bench.loop.run()
    assert [batch.payloads for batch in bench.handed] == [[b"1"]] * 4 + [[b"2"]]
    assert [batch.is_repeat for batch in bench.handed] == [False, True, True, True, False]
    assert acknowledged(out) == [1, 2]


def test_a_batch_can_be_found_again_where_answers_get_lost_and_costs_nothing_elsewhere() -> None:
    bench = Bench(may_lose_answers=True)
    device, _ = bench.connect()
    bench.gateway.automatic = 0
    for numbers in [(1, 2), (3,)]:
        receive(device, publish(*numbers))
        bench.loop.run()
    keys = [[message.properties.get("UNIQ_KEY") for message in batch.messages] for batch in bench.handed]
    assert keys[0][0] != keys[1][0]
    assert keys == [[keys[0][0], None], [keys[1][0]]]
    assert all(len(batch[0] or "") == 32 for batch in keys)
    plain = Bench()
    device, _ = plain.connect()
    receive(device, publish(1))
    plain.loop.run()
    assert "UNIQ_KEY" not in plain.handed[0].messages[0].properties


def test_a_waiter_that_fails_leaves_the_others_answered_and_the_queue_going(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    (bad, _), (good, good_out) = bench.connect("bad"), bench.connect("good")
    receive(bad, publish(1))
    receive(good, publish(1))
    bench.loop.run()
    # What the batch knows of it does not hold any more.
    bad.acknowledge_published(0)
    before = FAILURES.count("answers to devices")
    bench.handed[0].answer(0, "")
    assert FAILURES.count("answers to devices") == before + 1
    assert "not outstanding" in caplog.text
    bench.loop.run()
    assert acknowledged(good_out) == [1]
    receive(good, publish(2))
    bench.loop.run()
    assert [batch.payloads for batch in bench.handed] == [[b"1", b"1"], [b"2"]]


def test_a_broker_that_fails_at_a_batch_is_offered_it_again_and_other_queues_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(routes=[{"filter": "bad", "topic": "bad"}, {"filter": "good", "topic": "good"}])
    device, out = bench.connect()
    append = bench.gateway.append
    is_failing = True

    def failing(topic: str, *arguments: Any, **fields: Any) -> None:
        if topic == "bad" and is_failing:
            raise OSError("no")
        append(topic, *arguments, **fields)

    bench.gateway.append = failing  # type: ignore[method-assign]
    receive(device, publish(1, topic="bad") + publish(2, topic="good"))
    bench.loop.run()
    assert "OSError: no" in caplog.text
    [batch] = bench.handed
    assert batch.payloads == [b"2"]
    is_failing = False
    bench.loop.fire()
    bench.loop.run()
    assert [batch.payloads for batch in bench.handed] == [[b"2"], [b"1"]]
    for batch in bench.handed:
        batch.answer(0, "")
    bench.loop.run()
    assert acknowledged(out) == [1, 2]
    receive(device, publish(3, topic="bad"))
    bench.loop.run()
    assert bench.handed[2].payloads == [b"3"]


# QoS 2 of kept sessions


class KeptSession(DeviceSession):
    """A session that outlives its connection, as far as publishing asks."""


def connect_kept(
    bench: Bench, client_id: str = "d", *, is_resumed: bool = False
) -> tuple[Device, FakeTransport]:
    device, out = bench.connect(client_id)
    device.session = KeptSession()
    device.is_resumed = is_resumed
    return device, out


def pubrel(packet_id: int) -> bytes:
    return packets.encode_acknowledgement(packets.PUBREL, packet_id)


def test_packet_ids_of_qos_2_go_with_the_messages_of_kept_sessions_alone() -> None:
    bench = Bench(may_lose_answers=True)
    kept, _ = connect_kept(bench)
    clean, _ = bench.connect("clean")
    receive(kept, packets.encode_publish("t", b"again", qos=2, packet_id=3, dup=True))
    receive(kept, publish(4, qos=2) + publish(5))
    receive(clean, publish(6, qos=2))
    bench.loop.run()
    [batch] = bench.handed
    assert batch.has_packet_ids
    assert [message.properties.get("MQTT_PACKET_ID") for message in batch.messages] == ["3", "4", None, None]
    assert ["UNIQ_KEY" in message.properties for message in batch.messages] == [True, False, False, False]
    batch.answer(0, "")
    receive(clean, publish(7, qos=2))
    bench.loop.run()
    assert not bench.handed[1].has_packet_ids


def test_a_release_is_with_its_broker_before_it_is_answered() -> None:
    bench = Bench()
    bench.gateway.releases_at_once = False
    (one, one_out), (two, two_out) = connect_kept(bench, "one"), connect_kept(bench, "two")
    receive(one, publish(1, 2, qos=2))
    receive(two, publish(1, qos=2))
    bench.loop.run()
    bench.handed[0].answer(0, "")
    bench.loop.run()
    assert acknowledged(one_out, packets.PUBREC) == [1, 2]
    assert acknowledged(two_out, packets.PUBREC) == [1]
    receive(one, pubrel(1) + pubrel(2))
    receive(two, pubrel(1))
    bench.loop.run()
    [(broker, body, done)] = bench.gateway.released
    assert (broker, body) == ("broker-0", b"\0\3one\0\1\0\3one\0\2\0\3two\0\1")
    assert not one_out.written
    assert not bench.ingress.is_idle
    done(BUSY, "")
    bench.loop.fire()
    assert bench.gateway.released[1][:2] == (broker, body)
    bench.gateway.released[1][2](0, "")
    bench.loop.run()
    assert acknowledged(one_out, packets.PUBCOMP) == [1, 2]
    assert acknowledged(two_out, packets.PUBCOMP) == [1]
    assert bench.ingress.is_idle


def test_a_packet_id_of_an_earlier_connection_is_released_at_every_broker() -> None:
    bench = Bench()
    resumed, resumed_out = connect_kept(bench, "resumed", is_resumed=True)
    fresh, fresh_out = connect_kept(bench, "fresh")
    receive(resumed, pubrel(9))
    receive(fresh, pubrel(9))
    bench.loop.run()
    assert [released[:2] for released in bench.gateway.released] == [(None, b"\0\7resumed\0\x09")]
    assert acknowledged(resumed_out, packets.PUBCOMP) == [9]
    assert acknowledged(fresh_out, packets.PUBCOMP) == [9]


def test_nobody_is_told_of_a_release_whose_devices_have_gone() -> None:
    bench = Bench()
    bench.gateway.releases_at_once = False
    device, _ = connect_kept(bench, is_resumed=True)
    receive(device, pubrel(9))
    bench.loop.run()
    device.close(reason_codes.SERVER_SHUTTING_DOWN)
    bench.gateway.released[0][2](BUSY, "")
    bench.loop.fire()
    assert len(bench.gateway.released) == 1
    assert bench.ingress.is_idle


def test_a_release_that_is_repeated_names_nobody_who_has_gone() -> None:
    """Who has gone may have been answered elsewhere, and use the packet id for another message."""
    bench = Bench()
    bench.gateway.releases_at_once = False
    (gone, _), (left, left_out) = (
        connect_kept(bench, "gone", is_resumed=True),
        connect_kept(bench, "left", is_resumed=True),
    )
    receive(gone, pubrel(7))
    receive(left, pubrel(9))
    bench.loop.run()
    [(_, body, done)] = bench.gateway.released
    assert body == b"\0\4gone\0\7\0\4left\0\x09"
    gone.close(reason_codes.SERVER_SHUTTING_DOWN)
    done(BUSY, "")
    bench.loop.fire()
    assert bench.gateway.released[1][1] == b"\0\4left\0\x09"
    bench.gateway.released[1][2](0, "")
    bench.loop.run()
    assert acknowledged(left_out, packets.PUBCOMP) == [9]
    assert bench.ingress.is_idle


def test_releases_of_one_request_at_their_limit_and_past_it() -> None:
    bench = Bench(pending_bytes_max=1 << 30)
    client_id = "c" * limits.MQTT_CLIENT_ID_BYTES_MAX
    device, _ = connect_kept(bench, client_id, is_resumed=True)
    count = limits.RELEASED_BODY_BYTES_MAX // (len(client_id) + 4) + 1
    receive(device, b"".join(pubrel(number % 65_535 + 1) for number in range(count)))
    bench.loop.run()
    sizes = [len(body) for _, body, _ in bench.gateway.released]
    assert sum(sizes) == count * (len(client_id) + 4) > limits.RELEASED_BODY_BYTES_MAX
    assert max(sizes) <= limits.RELEASED_BODY_BYTES_MAX


def test_nothing_is_offered_again_once_the_ingress_is_closed() -> None:
    bench = Bench()
    device, out = bench.connect()
    receive(device, publish(1))
    bench.loop.run()
    bench.handed[0].answer(BUSY, "")
    bench.ingress.close()
    bench.loop.fire()
    assert len(bench.handed) == 1
    assert not bench.loop.timers
    assert not out.written


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION])
def test_a_refusal_for_good_closes_the_device_and_is_never_acknowledged(code: int) -> None:
    bench = Bench(queues=2)
    topics = sorted((f"t{number}" for number in range(20)), key=lambda name: queue_of_key(name, 2))
    (bad, bad_out), (good, good_out) = bench.connect("bad"), bench.connect("good")
    receive(bad, publish(1, 2, topic=topics[0]))
    receive(good, publish(1, topic=topics[-1]))
    bench.loop.run()
    for batch in bench.handed:
        batch.answer(code if batch.queue_id == queue_of_key(topics[0], 2) else 0, "no")
    bench.loop.run()
    assert bad.close_reason == reason_codes.NOT_STORED
    assert bad.close_detail == "no"
    assert bad_out.is_closed
    assert not bad_out.written
    assert bench.ingress.not_stored == 2
    assert acknowledged(good_out) == [1]
    assert good.close_reason is None
    assert bench.ingress.is_idle


def test_a_batch_cannot_be_answered_twice() -> None:
    bench = Bench()
    device, _ = bench.connect()
    receive(device, publish(1))
    bench.loop.run()
    bench.handed[0].answer(0, "")
    with pytest.raises(RuntimeError, match="twice"):
        bench.handed[0].answer(0, "")


def test_answers_may_come_before_append_returns() -> None:
    bench = Bench(batch_bytes_max=1_000)
    bench.gateway.automatic = 0
    device, out = bench.connect()
    for start in range(1, 1_000, 100):
        receive(device, publish(*range(start, start + 100)))
        bench.loop.run()
    assert acknowledged(out) == list(range(1, 1_001))
    assert [payload for batch in bench.handed for payload in batch.payloads] == [
        b"%d" % n for n in range(1, 1_001)
    ]
    assert bench.ingress.is_idle


def test_a_refusal_may_come_while_the_device_is_being_read() -> None:
    bench = Bench(batch_bytes_max=1_000)
    bench.gateway.automatic = ResponseCode.MESSAGE_ILLEGAL
    device, out = bench.connect()
    receive(device, publish(*range(1, 101)) + packets.PINGREQ_PACKET)
    bench.loop.run()
    assert device.close_reason == reason_codes.NOT_STORED
    assert not out.written
    assert bench.ingress.is_idle


def element_bytes(payload_bytes: int, *, client_id: str = "d", topic: str = "t") -> int:
    """Size of a QoS 1 message in batch encoding."""
    properties = f"MQTT_TOPIC\1{topic}\2KEYS\1{topic}\2MQTT_CLIENT_ID\1{client_id}\2MQTT_QOS\0011\2".encode()
    return 22 + payload_bytes + len(properties)


@pytest.mark.parametrize(("extra", "batches"), [(0, 1), (-1, 2)])
def test_batch_size_at_its_limit_and_past_it(extra: int, batches: int) -> None:
    size = 3 * element_bytes(100)
    bench = Bench(batch_bytes_max=size + extra)
    device, out = bench.connect()
    receive(device, publish(1, 2, 3, payload=bytes(100)))
    bench.loop.run()
    assert [batch.count for batch in bench.handed] == ([3] if batches == 1 else [2])
    assert len(bench.handed[0].body) == size if batches == 1 else 2 * element_bytes(100)
    bench.gateway.automatic = 0
    bench.handed[0].answer(0, "")
    bench.loop.run()
    assert len(bench.handed) == batches
    assert acknowledged(out) == [1, 2, 3]


def test_a_batch_that_is_full_is_handed_over_within_the_turn() -> None:
    bench = Bench(batch_bytes_max=64 * 1024)
    device, _ = bench.connect()
    receive(device, publish(*range(1, 50), payload=bytes(2_000)))
    assert [batch.count for batch in bench.handed] == [64 * 1024 // element_bytes(2_000)]


def test_a_message_larger_than_a_batch_goes_alone() -> None:
    bench = Bench(batch_bytes_max=1_000)
    bench.gateway.automatic = 0
    device, out = bench.connect()
    receive(device, publish(1) + publish(2, payload=bytes(5_000)) + publish(3))
    bench.loop.run()
    assert [batch.count for batch in bench.handed] == [1, 1, 1]
    assert acknowledged(out) == [1, 2, 3]


@pytest.mark.slow
def test_records_of_one_batch_at_their_limit_and_past_it() -> None:
    bench = Bench(batch_bytes_max=64 << 20, pending_bytes_max=64 << 20)
    bench.gateway.automatic = 0
    device, _ = bench.connect()
    receive(device, publish(*[0] * (limits.BATCH_RECORDS_MAX), qos=0, payload=b""))
    bench.ingress.flush()
    # A device has a share of each turn, so the messages above came in several batches; now in one.
    assert sum(batch.count for batch in bench.handed) == limits.BATCH_RECORDS_MAX
    assert max(batch.count for batch in bench.handed) <= limits.BATCH_RECORDS_MAX
    bench.handed.clear()
    receive(device, publish(*[0] * (limits.BATCH_RECORDS_MAX + 1), qos=0, payload=b""))
    assert [batch.count for batch in bench.handed] == [limits.BATCH_RECORDS_MAX]
    bench.loop.run()
    assert [batch.count for batch in bench.handed] == [limits.BATCH_RECORDS_MAX, 1]


RECORD_MAX = 10_000
# Ours leaves room for the fixed part of a record and the longest topic.
PAYLOAD_MAX = RECORD_MAX - 91 - 255 - element_bytes(0)


@pytest.mark.parametrize("qos", [0, 1])
def test_record_size_at_its_limit_and_past_it(qos: int) -> None:
    bench = Bench(record_bytes_max=RECORD_MAX)
    (fits, fits_out), (past, past_out) = bench.connect("a"), bench.connect("b")
    bench.gateway.automatic = 0
    receive(fits, publish(1, qos=qos, payload=bytes(PAYLOAD_MAX)))
    receive(past, publish(1, qos=qos, payload=bytes(PAYLOAD_MAX + 1)))
    bench.loop.run()
    assert [batch.payloads for batch in bench.handed] == [[bytes(PAYLOAD_MAX)]]
    assert fits.close_reason is None
    assert acknowledged(fits_out) == ([1] if qos else [])
    assert past.close_reason == reason_codes.PACKET_TOO_LARGE
    assert "store.record_bytes_max" in past.close_detail
    assert past_out.is_closed
    assert not past_out.written


def test_properties_that_no_record_can_hold_close_the_device() -> None:
    bench = Bench(routes=[{"filter": "#", "topic": "T", "key": "{topic}" * 100}])
    device, _ = bench.connect()
    bench.gateway.automatic = 0
    receive(device, publish(1, topic="x" * 290))
    bench.loop.run()
    assert device.close_reason is None
    receive(device, publish(2, topic="x" * 400))
    bench.loop.run()
    assert device.close_reason == reason_codes.TOPIC_NAME_INVALID
    assert sum(batch.count for batch in bench.handed) == 1


def test_an_illegal_topic_closes_the_device_and_nobody_else() -> None:
    bench = Bench()
    bench.gateway.automatic = 0
    (bad, _), (good, good_out) = bench.connect("bad"), bench.connect("good")
    receive(bad, publish(1, topic="a/+") + publish(2, topic="a"))
    receive(good, publish(1))
    bench.loop.run()
    assert bad.close_reason == reason_codes.TOPIC_NAME_INVALID
    assert acknowledged(good_out) == [1]
    assert [batch.payloads for batch in bench.handed] == [[b"1"]]


def test_publishers_are_not_read_while_too_much_waits_and_are_when_half_of_it_is_gone() -> None:
    size = element_bytes(1_000)
    bench = Bench(pending_bytes_max=10 * size, batch_bytes_max=4 * size)
    (one, one_out), (_, idle_out) = bench.connect("d"), bench.connect("e")
    receive(one, publish(*range(1, 11), payload=bytes(1_000)))
    assert one_out.is_reading, "as much as is allowed waits, but no more"
    assert bench.ingress.pending_bytes == 10 * size
    receive(one, publish(11, payload=bytes(1_000)))
    assert bench.group.is_congested
    assert not one_out.is_reading
    assert idle_out.is_reading, "those who send nothing do not matter"
    assert bench.group.paused_count == 1
    bench.loop.run()
    bench.handed[0].answer(0, "")
    bench.loop.run()
    assert not one_out.is_reading
    bench.handed[1].answer(0, "")
    bench.loop.run()
    assert one_out.is_reading
    assert bench.group.paused_count == 0
    assert not bench.group.is_congested
    assert bench.ingress.pending_bytes == 3 * size


def test_a_device_that_was_held_back_can_end() -> None:
    bench = Bench(pending_bytes_max=1)
    device, out = bench.connect()
    receive(device, publish(1))
    bench.loop.run()
    assert not out.is_reading
    device.connection_lost(None)
    assert bench.group.paused_count == 0
    bench.handed[0].answer(0, "")
    bench.loop.run()
    assert bench.ingress.is_idle
    assert not out.written


def test_devices_stay_paused_when_the_group_is_ending() -> None:
    bench = Bench(pending_bytes_max=1)
    device, out = bench.connect()
    bench.group.read_no_more()
    receive(device, publish(1))
    bench.loop.run()
    bench.handed[0].answer(0, "")
    bench.loop.run()
    assert acknowledged(out) == [1]
    assert not out.is_reading


def test_wills_are_stored_and_nobody_waits_for_them() -> None:
    bench = Bench()
    device, out = bench.connect("gone")
    device.connection_lost(None)
    bench.ingress.publish_will(device, Will("w/t", b"bye", 1, True))
    bench.loop.run()
    [batch] = bench.handed
    assert batch.messages[0].properties == {
        "MQTT_TOPIC": "w/t",
        "KEYS": "w/t",
        "MQTT_CLIENT_ID": "gone",
        "MQTT_QOS": "1",
        "MQTT_RETAIN": "1",
    }
    batch.answer(0, "")
    bench.loop.run()
    assert bench.ingress.is_idle
    assert not out.written


@pytest.mark.parametrize("will", [Will("w", bytes(RECORD_MAX), 0, False), Will("x" * 400, b"", 0, False)])
def test_a_will_that_is_past_a_limit_is_dropped_and_counted(will: Will) -> None:
    bench = Bench(record_bytes_max=RECORD_MAX, routes=[{"filter": "#", "topic": "T", "key": "{topic}" * 100}])
    device, _ = bench.connect()
    bench.ingress.publish_will(device, will)
    bench.loop.run()
    assert not bench.handed
    assert bench.ingress.not_stored == 1


def test_routes_that_do_not_store_have_batches_of_their_own() -> None:
    bench = Bench(routes=[{"filter": "live/#", "topic": "mqtt", "store": False}])
    device, _ = bench.connect()
    receive(device, publish(1, topic="live/x") + publish(2, topic="t"))
    bench.loop.run()
    assert sorted((batch.is_stored, batch.payloads) for batch in bench.handed) == [
        (False, [b"1"]),
        (True, [b"2"]),
    ]


def test_a_delayed_message_goes_the_way_of_its_topic_in_batches_of_its_own() -> None:
    bench = Bench(
        routes=[
            {"filter": "live/#", "topic": "L", "key": "{1}", "tags": "tag", "store": False},
            {"filter": "$delayed/#", "topic": "wrong"},
        ]
    )
    device, transport = bench.connect("dev")
    receive(device, publish(1, topic="$delayed/7/live/x") + publish(2, topic="$delayed/0/live/x"))
    receive(device, publish(3, topic="$delayed/9/live/x") + publish(4, topic="live/x"))
    bench.loop.run()
    later, now = sorted(bench.handed, key=lambda batch: not batch.is_delayed)
    assert (later.topic, later.payloads) == ("L", [b"1", b"3"])
    assert [message.properties for message in later.messages] == [
        {
            "MQTT_TOPIC": "live/x",
            "KEYS": "x",
            "TAGS": "tag",
            "TIMER_DELAY_SEC": seconds,
            "MQTT_CLIENT_ID": "dev",
            "MQTT_QOS": "1",
        }
        for seconds in ("7", "9")
    ]
    assert (now.topic, now.payloads, now.is_stored) == ("L", [b"2", b"4"], False)
    assert "TIMER_DELAY_SEC" not in now.messages[0].properties
    now.answer(0, "")
    assert acknowledged(transport) == []
    later.answer(0, "")
    bench.loop.run()
    assert acknowledged(transport) == [1, 2, 3, 4]


@pytest.mark.parametrize("topic", ["$delayed/x/a", "$delayed/5", "$delayed/99999999999/a"])
def test_a_delay_that_is_none_ends_the_connection(topic: str) -> None:
    bench = Bench()
    device, transport = bench.connect()
    receive(device, publish(1, topic=topic))
    bench.loop.run()
    assert device.close_reason is reason_codes.TOPIC_NAME_INVALID
    assert "$delayed" in device.close_detail
    assert not bench.handed
    assert transport.is_closed


def test_when_too_many_messages_wait_their_devices_are_told_and_others_go_on() -> None:
    bench = Bench()
    device, transport = bench.connect()
    other, others = bench.connect("other")
    receive(device, publish(1, topic="$delayed/5/a"))
    receive(other, publish(1, topic="a"))
    bench.loop.run()
    for batch in bench.handed:
        batch.answer(ResponseCode.TOO_MANY_WAITING if batch.is_delayed else 0, "too many")
    bench.loop.run()
    assert device.close_reason is reason_codes.NOT_STORED
    assert transport.is_closed
    assert acknowledged(others) == [1]
    assert (bench.ingress.not_stored, bench.ingress.retries) == (1, 0)


def test_a_delayed_message_at_the_limit_of_a_record_and_past_it() -> None:
    bench = Bench(record_bytes_max=RECORD_MAX)
    bench.gateway.automatic = 0
    sizes = []
    for topic in ("a", "$delayed/5/a"):
        device, _ = bench.connect()
        fitting = 0
        while device.close_reason is None:
            receive(device, publish(1, topic=topic, payload=bytes(fitting)))
            bench.loop.run()
            fitting += 1
        assert device.close_reason is reason_codes.PACKET_TOO_LARGE
        sizes.append(fitting)
    delay_bytes = len("TIMER_DELAY_SEC..5.") - 1
    assert sizes[0] - sizes[1] == 384 + delay_bytes, "room for where it goes, and when"


def test_a_will_that_waits() -> None:
    bench = Bench()
    device, _ = bench.connect("gone")
    will = bench.ingress.encode_will(device, Will("$delayed/5/w", b"bye", 1, False))
    assert will is not None
    assert (will.topic, will.is_stored, will.is_delayed) == ("mqtt", True, True)
    assert b"TIMER_DELAY_SEC\x015\x02" in will.elements
    bench.ingress.publish_will(device, Will("$delayed/5/w", b"bye", 1, False))
    bench.loop.run()
    assert [(batch.is_delayed, batch.payloads) for batch in bench.handed] == [(True, [b"bye"])]


REPLY_TOPIC = REPLY_PREFIX + reply_token(ReplyAddress("broker-b", "asker", "c1"))


@pytest.mark.parametrize(("qos", "answer"), [(0, None), (1, packets.PUBACK), (2, packets.PUBREC)])
def test_an_answer_to_a_request_is_handed_over_and_acknowledged_at_once(qos: int, answer: int | None) -> None:
    bench = Bench()
    device, transport = bench.connect("dev")
    receive(device, publish(1, topic="a"))
    receive(device, publish(2, topic=REPLY_TOPIC, qos=qos, payload=b"yes"))
    if qos == 2:
        # Sent again before its PUBREL, it is not handed over again.
        receive(device, publish(2, topic=REPLY_TOPIC, qos=2, payload=b"yes"))
    bench.loop.run()
    assert bench.gateway.replies == [("broker-b", REPLY_TOPIC, "dev", b"yes")]
    assert bench.ingress.replies == 1
    assert [batch.payloads for batch in bench.handed] == [[b"1"]]
    assert not transport.written, "acknowledgements keep their order"
    bench.handed[0].answer(0, "")
    bench.loop.run()
    kinds = [first & 0xF0 for first, _ in split_output(transport.take())]
    assert kinds[:2] == [packets.PUBACK << 4, *([] if answer is None else [answer << 4])]


@pytest.mark.parametrize(
    "topic", ["$reply/", "$reply/nobody", REPLY_TOPIC + "/x", f"$delayed/5/{REPLY_TOPIC}"]
)
def test_an_answer_to_nothing_ends_the_connection(topic: str) -> None:
    bench = Bench()
    device, _ = bench.connect()
    receive(device, publish(1, topic=topic))
    assert device.close_reason is reason_codes.TOPIC_NAME_INVALID
    assert not bench.gateway.replies


def test_an_answer_at_the_limit_of_a_record_and_past_it() -> None:
    bench = Bench(record_bytes_max=RECORD_MAX)
    room = RECORD_MAX - 91 - 255 - 2 * len(REPLY_TOPIC)
    device, _ = bench.connect()
    receive(device, publish(1, topic=REPLY_TOPIC, payload=bytes(room)))
    assert device.close_reason is None
    receive(device, publish(2, topic=REPLY_TOPIC, payload=bytes(room + 1)))
    assert device.close_reason is reason_codes.PACKET_TOO_LARGE
    assert len(bench.gateway.replies) == 1


def test_a_will_is_no_answer() -> None:
    bench = Bench()
    device, _ = bench.connect()
    bench.ingress.publish_will(device, Will(REPLY_TOPIC, b"bye", 1, False))
    assert (bench.ingress.not_stored, bench.gateway.replies) == (1, [])


def test_topics_that_only_begin_like_a_reply_topic_are_topics() -> None:
    bench = Bench()
    device, _ = bench.connect()
    receive(
        device, publish(1, topic="$reply") + publish(2, topic="$replyx/a") + publish(3, topic="x/$reply/a")
    )
    bench.loop.run()
    assert bench.handed[0].payloads == [b"1", b"2", b"3"]


@pytest.mark.slow
def test_more_topics_than_the_cache_holds() -> None:
    bench = Bench(queues=4, pending_bytes_max=1 << 30)
    bench.gateway.automatic = 0
    device, _ = bench.connect()
    count = 65_536 + 100
    for start in range(0, count, 1_000):
        receive(
            device,
            b"".join(publish(1, topic=f"t/{n}", qos=0) for n in range(start, min(count, start + 1_000))),
        )
    receive(device, publish(1, topic="t/0", qos=0))
    bench.loop.run()
    found = [message.topic for batch in bench.handed for message in batch.messages]
    assert len(found) == count + 1
    assert set(found) == {f"t/{n}" for n in range(count)}
    for batch in bench.handed:
        assert all(queue_of_key(message.topic, 4) == batch.queue_id for message in batch.messages)


def test_topics_are_resolved_anew_when_routes_are_forgotten() -> None:
    bench = Bench(queues=1)
    bench.gateway.automatic = 0
    device, _ = bench.connect()
    names = [f"t/{n}" for n in range(8)]
    for queues in (1, 4):
        bench.gateway.queues = queues
        bench.ingress.forget_routes()
        bench.handed.clear()
        for name in names:
            receive(device, publish(1, topic=name, qos=0))
        bench.loop.run()
        assert {batch.queue_id for batch in bench.handed} == {queue_of_key(name, queues) for name in names}


def test_routes_may_be_forgotten_while_a_message_is_being_added() -> None:
    bench = Bench(batch_bytes_max=1_000)
    bench.gateway.automatic = 0
    append = bench.gateway.append

    def forgetting(*arguments: Any, **fields: Any) -> None:
        bench.ingress.forget_routes()
        append(*arguments, **fields)

    bench.gateway.append = forgetting  # type: ignore[method-assign]
    device, out = bench.connect()
    receive(device, publish(*range(1, 200)))
    bench.loop.run()
    assert acknowledged(out) == list(range(1, 200))
    assert {message.topic for batch in bench.handed for message in batch.messages} == {"t"}


def test_qos_2_is_stored_once_and_answered_with_pubrec() -> None:
    bench = Bench()
    device, out = bench.connect()
    again = packets.encode_publish("t", b"5", qos=2, packet_id=5, dup=True)
    receive(device, publish(5, qos=2) + again)
    bench.loop.run()
    assert not out.written
    bench.handed[0].answer(0, "")
    bench.loop.run()
    assert acknowledged(out, packets.PUBREC) == [5, 5]
    assert [batch.payloads for batch in bench.handed] == [[b"5"]]


def test_a_device_that_sends_without_pause_waits_for_the_next_turn() -> None:
    bench = Bench(pending_bytes_max=1 << 30, batch_bytes_max=1 << 20)
    device, out = bench.connect()
    share = len(device.get_buffer(-1))
    receive(device, publish(*range(1, 2 + share // 1_000), qos=0, payload=bytes(1_000)))
    assert not out.is_reading
    bench.loop.run()
    assert out.is_reading
    assert bench.group.paused_count == 0


def test_releases_that_are_not_answered_stop_the_reading_from_devices() -> None:
    bench = Bench(pending_bytes_max=1 << 20)
    bench.gateway.releases_at_once = False
    device, _ = connect_kept(bench, "c", is_resumed=True)
    count = 0
    while not device.group.is_congested:
        assert bench.ingress.pending_bytes <= 1 << 20
        receive(device, pubrel(count % 65_535 + 1))
        bench.loop.run()
        count += 1
    assert (1 << 20) < bench.ingress.pending_bytes < (1 << 20) + 1_000
    for _, _, done in bench.gateway.released:
        done(0, "")
    assert not device.group.is_congested


def test_lanes_of_routes_that_were_removed_are_forgotten_once_they_are_empty() -> None:
    bench = Bench()
    device, out = bench.connect()
    lane_count = lambda: sum(lane is not None for lane in bench.ingress.lanes)  # noqa: E731
    for number in range(1, 200):
        receive(device, publish(number))
        bench.loop.run()
        bench.handed[-1].answer(0, "")
        settings = [RouteSettings(filter="t", topic=f"topic-{number}")]
        bench.router.replace(bench.router.prepared(settings))
        bench.ingress.forget_routes()
    assert lane_count() == 0
    receive(device, publish(200, 201))
    bench.loop.run()
    assert bench.handed[-1].topic == "topic-199"
    bench.ingress.forget_routes()
    assert lane_count() == 1, "one waits for the broker"
    bench.router.replace(bench.router.prepared([RouteSettings(filter="t", topic="other")]))
    bench.ingress.forget_routes()
    receive(device, publish(202))
    bench.loop.run()
    assert not bench.ingress.when_settled(device, lambda: None)
    for handed in bench.handed[-2:]:
        handed.answer(0, "")
    bench.loop.run()
    assert acknowledged(out)[-3:] == [200, 201, 202]
    assert bench.ingress.waited_s == 0
    assert len(bench.ingress.lanes) == 2, "places are used again"
