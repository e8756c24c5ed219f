"""Routes that ask something of each message: what is stored, what the device hears, what is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_gateway import FakeLoop, FakeTransport, Front, Message, ScriptedGateway, receive, split_output
from hypothesis import given, settings
from hypothesis import strategies as st

from iotmq import limits
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.connection.device_calls import DeviceSession
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.routing.device_names import DeviceNames
from iotmq.mqtt_front.routing.routes import Router
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.routes import ChecksumSettings, RouteSettings

MODBUS = bytes.fromhex("010300000002c40b")
BAD = b"\2" + MODBUS[1:]
CHECKED = {
    "filter": "meters/+",
    "topic": "Meters",
    "checksum": ChecksumSettings(algorithm="modbus"),
    "key": "{1}",
}


class Bench:
    def __init__(self, *routes: dict[str, Any], queues: int = 1) -> None:
        self.gateway = ScriptedGateway(queues=queues, record_bytes_max=100_000)
        self.loop = FakeLoop()
        self.router = Router([RouteSettings(**route) for route in routes], default_topic="mqtt")
        self.ingress = Ingress(
            self.router,
            self.gateway,
            self.loop,  # type: ignore[arg-type]
            MqttSettings(batch_bytes_max=64 * 1024, pending_bytes_max=1 << 20, retry_interval_s=1),
        )
        self.front = Front(self.ingress, loop=self.loop, packet_bytes_max=1 << 20)
        self.ingress.group = self.front.group

    def connect(self, client_id: str = "d", level: int = 5) -> tuple[Device, FakeTransport]:
        return self.front.connect(client_id, properties=NO_PROPERTIES if level == 5 else None)

    def stored(self) -> list[tuple[str, Message]]:
        """(broker topic, message) of what was handed over since the last call, all of it stored."""
        self.loop.run()
        handed, self.gateway.handed = self.gateway.handed, []
        for batch in handed:
            batch.answer(0, "")
        self.loop.run()
        return [(batch.topic, message) for batch in handed for message in batch.messages]


def publish(topic: str, payload: bytes = b"x", *, qos: int = 0, number: int = 1, **values: Any) -> bytes:
    retain = values.pop("retain", False)
    is_older = values.pop("is_older", False)
    properties = None if is_older else Properties(**values)
    return packets.encode_publish(
        topic, payload, qos=qos, packet_id=number, retain=retain, properties=properties
    )


def answers(transport: FakeTransport) -> list[tuple[int, int, int]]:
    """(packet type, packet id, reason code) of what the device was sent."""
    return [
        (first >> 4, int.from_bytes(body[:2]), body[2] if len(body) > 2 else 0)
        for first, body in split_output(transport.take())
    ]


def test_a_message_takes_the_route_of_its_payload_with_key_tags_and_properties() -> None:
    bench = Bench(
        {
            "filter": "d/+", "topic": "Alarms", "when": ("{json:t} > 30",), "key": "{json:id}", "tags": "hot",
            "properties": {"site": "{property:site}", "kind": "{content_type}"},
        },
        {"filter": "d/+", "topic": "Rest", "key": "{1}"},
    )  # fmt: skip
    device, _ = bench.connect()
    receive(
        device, publish("d/1", b'{"t": 31, "id": "p-7"}', content_type="j", user_properties=(("site", "n"),))
    )
    receive(device, publish("d/1", b'{"t": 30, "id": "p-7"}'))
    receive(device, publish("d/1", b"{"))
    (topic, alarm), *rest = bench.stored()
    assert topic == "Alarms"
    assert alarm.properties == {
        "MQTT_TOPIC": "d/1",
        "KEYS": "p-7",
        "TAGS": "hot",
        "site": "n",
        "kind": "j",
        "MQTT_CLIENT_ID": "d",
        "MQTT_QOS": "0",
        "MQTT_CONTENT_TYPE": "j",
        "MQTT_USER.site": "n",
    }
    assert [(topic, message.properties["KEYS"]) for topic, message in rest] == [("Rest", "1")] * 2


def test_names_of_the_device_choose_its_route_once() -> None:
    bench = Bench({"filter": "#", "topic": "Ann", "when": ("{user} = 'ann'",), "key": "{client_id}"})
    one, two = bench.connect("one")[0], bench.connect("two")[0]
    one.names = DeviceNames("one", "ann").key()
    two.names = DeviceNames("two", "bob").key()
    for device in (one, two, one, two):
        receive(device, publish("a"))
    assert sorted((topic, message.properties["KEYS"]) for topic, message in bench.stored()) == [
        ("Ann", "one"), ("Ann", "one"), ("mqtt", "a"), ("mqtt", "a"),
    ]  # fmt: skip


def test_a_device_whose_names_were_not_kept_has_those_it_proved() -> None:
    bench = Bench({"filter": "#", "topic": "T", "key": "{client_id}{user}"})
    device, _ = bench.connect("one")
    assert device.names is None
    receive(device, publish("a"))
    [(_, message)] = bench.stored()
    assert message.properties["KEYS"] == "one"


@pytest.mark.parametrize("level", [4, 5])
def test_a_frame_with_a_wrong_checksum_goes_into_quarantine(level: int) -> None:
    bench = Bench(CHECKED)
    device, out = bench.connect(level=level)
    for number, payload in enumerate((MODBUS, BAD, b"x", MODBUS), start=1):
        receive(device, publish("meters/7", payload, qos=1, number=number, retain=True, is_older=level == 4))
    good, bad = [], []
    for topic, message in bench.stored():
        (good if topic == "Meters" else bad).append((topic, message))
    assert [message.payload for _, message in good] == [MODBUS, MODBUS]
    assert all(message.properties["MQTT_RETAIN"] == "1" for _, message in good)
    assert [(topic, message.payload) for topic, message in bad] == [
        ("mqtt-quarantine", BAD),
        ("mqtt-quarantine", b"x"),
    ]
    properties = bad[0][1].properties
    assert "checksum modbus" in properties.pop("MQTT_QUARANTINE_REASON")
    assert properties == {
        "MQTT_QUARANTINED_TOPIC": "meters/7",
        "MQTT_QUARANTINE_ROUTE": "mqtt.routes[0]",
        "KEYS": "7",
        "MQTT_CLIENT_ID": "d",
        "MQTT_QOS": "1",
    }, "no MQTT_TOPIC and not retained: no device gets it"
    assert [(packet_id, code) for _, packet_id, code in answers(out)] == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert bench.ingress.targets.put_aside == 2


def test_the_deletion_of_a_retained_message_has_nothing_to_be_checked() -> None:
    bench = Bench(CHECKED, {"filter": "json", "topic": "Json", "invalid_json": "quarantine"})
    device, _ = bench.connect()
    receive(device, publish("meters/7", b"", retain=True) + publish("json", b"", retain=True))
    receive(device, publish("meters/7", b"") + publish("json", b""))
    assert [topic for topic, _ in bench.stored()] == ["Meters", "Json", "mqtt-quarantine", "mqtt-quarantine"]


def test_a_device_of_mqtt_5_hears_that_its_payload_is_not_valid() -> None:
    bench = Bench({**CHECKED, "quarantine_answer": "refuse", "quarantine_topic": "Bad"})
    device, out = bench.connect()
    receive(device, publish("meters/7", BAD, qos=1, number=1))
    receive(device, publish("meters/7", BAD, qos=2, number=2))
    receive(device, publish("meters/7", BAD, qos=0))
    receive(device, publish("meters/7", MODBUS, qos=1, number=3))
    assert sorted(topic for topic, _ in bench.stored()) == ["Bad", "Bad", "Bad", "Meters"]
    assert answers(out) == [(packets.PUBACK, 1, 0x99), (packets.PUBREC, 2, 0x99), (packets.PUBACK, 3, 0)]
    assert device.close_reason is None
    assert bench.ingress.is_idle


def test_an_older_device_hears_success_when_the_frame_is_stored() -> None:
    bench = Bench({**CHECKED, "quarantine_answer": "refuse"})
    device, out = bench.connect(level=4)
    receive(device, publish("meters/7", BAD, qos=1, is_older=True))
    bench.loop.run()
    assert not out.written
    assert [topic for topic, _ in bench.stored()] == ["mqtt-quarantine"]
    assert answers(out) == [(packets.PUBACK, 1, 0)]


def test_the_log_names_the_route_of_the_first_frame_that_is_put_aside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench({**CHECKED, "name": "meters"})
    device, _ = bench.connect()
    for _ in range(3):
        receive(device, publish("meters/7", BAD))
    records = [record for record in caplog.records if record.message == "message put aside"]
    assert [(vars(record)["route"], vars(record)["count"]) for record in records] == [("meters", 1)]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_dropped_messages_are_acknowledged_and_go_nowhere(qos: int) -> None:
    bench = Bench({"filter": "noise/#", "drop": True})
    device, out = bench.connect()
    receive(device, publish("noise/a", qos=qos))
    assert bench.stored() == []
    assert [code for _, _, code in answers(out)] == [0] * (qos > 0)
    assert bench.ingress.targets.route_dropped == 1
    if qos == 2:
        receive(device, packets.encode_acknowledgement(packets.PUBREL, 1))
        bench.loop.run()
        assert answers(out) == [(packets.PUBCOMP, 1, 0)]


def test_a_sample_by_count_and_one_by_key() -> None:
    bench = Bench(
        {"filter": "c/#", "topic": "C", "sample_one_in": 3},
        {"filter": "k/+", "topic": "K", "sample_one_in": 5, "sample_by": "key", "key": "{1}"},
    )
    device, out = bench.connect()
    for number in range(1, 8):
        receive(device, publish(f"c/{number % 2}", b"%d" % number, qos=1, number=number))
    assert [message.payload for _, message in bench.stored()] == [b"1", b"4", b"7"]
    assert [packet_id for _, packet_id, _ in answers(out)] == [1, 2, 3, 4, 5, 6, 7], "in order"
    keys = []
    for _ in range(2):
        for number in range(50):
            receive(device, publish(f"k/{number}"))
        keys.append([message.properties["KEYS"] for _, message in bench.stored()])
    assert keys[0] == keys[1]
    assert 0 < len(keys[0]) < 25
    assert bench.ingress.targets.left_out == 4 + 2 * (50 - len(keys[0]))


def test_the_highest_qos_and_the_expiry_of_what_goes_on() -> None:
    bench = Bench({"filter": "#", "topic": "T", "qos_max": 1, "expiry_s_max": 60})
    device, out = bench.connect()
    receive(device, publish("a", qos=2, number=1, message_expiry_s=600))
    receive(device, publish("a", qos=1, number=2, message_expiry_s=6))
    receive(device, publish("a", qos=0))
    found = [
        (message.properties["MQTT_QOS"], message.properties["MSG_TTL_MS"]) for _, message in bench.stored()
    ]
    assert found == [("1", "60000"), ("1", "6000"), ("0", "60000")]
    assert [(kind, packet_id) for kind, packet_id, _ in answers(out)] == [
        (packets.PUBREC, 1),
        (packets.PUBACK, 2),
    ]


def test_expiry_for_a_device_before_mqtt_5() -> None:
    bench = Bench({"filter": "#", "topic": "T", "expiry_s": 5})
    device, _ = bench.connect(level=4)
    receive(device, publish("a", is_older=True))
    [(_, message)] = bench.stored()
    assert message.properties["MSG_TTL_MS"] == "5000"


def test_a_message_of_qos_2_of_a_kept_session_is_marked_unless_it_is_put_aside() -> None:
    bench = Bench(CHECKED)
    device, _ = bench.connect()
    device.session = DeviceSession()
    receive(device, publish("meters/7", MODBUS, qos=2, number=9))
    receive(device, publish("meters/7", BAD, qos=2, number=10))
    marks = {topic: message.properties.get("MQTT_PACKET_ID") for topic, message in bench.stored()}
    assert marks == {"Meters": "9", "mqtt-quarantine": None}


def test_a_delayed_message_takes_its_route_and_is_put_aside_at_once() -> None:
    bench = Bench(CHECKED, {"filter": "d", "topic": "D", "when": ("{json:a} = 1",)})
    device, _ = bench.connect()
    receive(device, publish("$delayed/5/meters/7", MODBUS))
    receive(device, publish("$delayed/5/meters/7", BAD))
    receive(device, publish("$delayed/5/d", b'{"a": 1}'))
    bench.loop.run()
    assert [(batch.topic, batch.is_delayed) for batch in bench.gateway.handed] == [
        ("Meters", True), ("mqtt-quarantine", False), ("D", True),
    ]  # fmt: skip
    assert bench.gateway.handed[2].messages[0].properties["TIMER_DELAY_SEC"] == "5"


def test_wills_take_the_routes_of_messages() -> None:
    bench = Bench(
        CHECKED,
        {"filter": "drop/#", "drop": True},
        {"filter": "w", "topic": "W", "qos_max": 0, "key": "{json:id}", "expiry_s": 7},
    )
    device, _ = bench.connect()
    kept = bench.ingress.encode_will(device, Will("w", b'{"id": "7"}', 1, True))
    assert kept is not None
    assert kept.topic == "W"
    assert b"KEYS\x017\x02" in kept.elements
    assert b"MQTT_QOS\x010\x02" in kept.elements
    assert b"MSG_TTL_MS\x017000\x02" in kept.elements
    bad = bench.ingress.encode_will(device, Will("meters/1", BAD, 1, True))
    assert bad is not None
    assert bad.topic == "mqtt-quarantine"
    assert bench.ingress.encode_will(device, Will("drop/1", b"", 1, True)) is None
    bench.ingress.publish_will(device, Will("meters/1", MODBUS, 1, False))
    bench.ingress.publish_will(device, Will("drop/1", b"", 1, False))
    assert [topic for topic, _ in bench.stored()] == ["Meters"]
    assert (bench.ingress.not_stored, bench.ingress.targets.route_dropped) == (0, 2)


def test_other_routes_are_in_use_when_the_former_ones_are_forgotten() -> None:
    bench = Bench({"filter": "#", "topic": "Old", "when": ("{json:a} exists",)})
    device, _ = bench.connect()
    receive(device, publish("a", b'{"a": 1}'))
    bench.router.replace(bench.router.prepared([RouteSettings(filter="#", topic="New", qos_max=1)]))
    receive(device, publish("a", b'{"a": 1}'))
    bench.ingress.forget_routes()
    receive(device, publish("a", b'{"a": 1}'))
    assert sorted(topic for topic, _ in bench.stored()) == ["New", "Old", "Old"]


def test_more_topics_with_questions_than_the_cache_holds() -> None:
    """The bytes of what is kept of them count, too: MQTT_TOPIC_CACHE_BYTES_MAX."""
    bench = Bench({"filter": "#", "topic": "T", "when": ("{json:a} missing",)})
    bench.gateway.automatic = 0
    device, _ = bench.connect()
    deep = "/".join(["l"] * limits.MQTT_TOPIC_LEVELS_MAX)
    for number in range(3_000):
        receive(device, publish(f"{number}{deep[4:]}"))
        if number % 200 == 0:
            bench.loop.run()
    bench.loop.run()
    assert bench.ingress.messages == 3_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), JSON.map(_dumped))))
def test_no_payload_harms_this_or_another_device(payloads: list[bytes]) -> None:
    bench = Bench(
        {"filter": "a", "topic": "A", "when": ("{json:a.0} > 1",), "key": "{json:a.b}", "tags": "{json:c}"},
        {**CHECKED, "filter": "a", "topic": "B", "when": ("{json:b} exists", "{json:c} != 'x'")},
        {"filter": "a", "topic": "C", "properties": {"v": "{json:a}"}, "invalid_json": "quarantine"},
    )
    device, _ = bench.connect("one")
    other, _ = bench.connect("other")
    for payload in payloads:
        receive(device, publish("a", payload, qos=1))
        stored = bench.stored()
        assert [message.payload for _, message in stored] == [payload]
        assert stored[0][0] in ("A", "B", "C", "mqtt-quarantine")
    receive(other, publish("a", b'{"b": 1}'))
    assert len(bench.stored()) == 1
    assert device.close_reason is None, device.close_detail
