"""What MQTT 5 adds to a message, from a PUBLISH through the record to subscribers of every version."""

from __future__ import annotations

import pytest
from fake_gateway import Front, ScriptedGateway, matches_of, read_publish, receive, split_output
from hypothesis import given, settings
from hypothesis import strategies as st
from mqtt5_corpus import EVERYTHING, publish
from mqtt5_reading import read_all5

from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_record
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.server.publish_sink import CollectingSink
from iotmq.mqtt_front.deliver.egress import Egress
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.routing.routes import Router
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.remoting.codes import ResponseCode

NO_LOCAL, RETAIN_AS_PUBLISHED = 4, 8


class Site:
    """Devices over an ingress to a scripted gateway, and an egress that gets what is pushed."""

    def __init__(self) -> None:
        self.gateway = ScriptedGateway()
        self.gateway.automatic = 0
        loop_front = Front(CollectingSink())
        self.ingress = Ingress(
            Router([], default_topic="mqtt"),
            self.gateway,
            loop_front.loop,  # type: ignore[arg-type]
            MqttSettings(batch_bytes_max=1 << 20, pending_bytes_max=1 << 22, retry_interval_s=0.5),
        )
        self.front = Front(self.ingress, loop=loop_front.loop)
        self.ingress.group = self.front.group
        self.egress = Egress(self.front.group)

    def stored(self, packet: bytes, client_id: str = "publisher") -> dict[str, str]:
        """Publish, and see the properties of the record."""
        device, _ = self.front.connect(client_id, properties=NO_PROPERTIES)
        receive(device, packet)
        self.front.loop.run()
        assert device.close_reason is None, device.close_detail
        return self.gateway.handed[-1].messages[-1].properties

    def push(self, named: dict[str, str], *filter_ids: int, age_s: float = 0.0) -> None:
        """Deliver a record with these properties that was stored a while ago."""
        record = encode_record(
            topic="mqtt",
            body=b"x",
            properties=encode_properties({"MQTT_TOPIC": "a", "MQTT_QOS": "1"} | named),
            store_timestamp_ms=self.front.clock.now_ms() - round(age_s * 1000),
        )
        self.egress.deliver(record, matches_of((0, list(filter_ids))))
        self.front.loop.run()


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_record_has_the_properties_of_its_publish_by_name(site: Site) -> None:
    properties = site.stored(publish(EVERYTHING, qos=1))
    assert properties["MQTT_PAYLOAD_FORMAT"] == "1"
    assert properties["MSG_TTL_MS"] == "3600000"
    assert properties["MQTT_CONTENT_TYPE"] == "text/plain"
    assert properties["MQTT_RESPONSE_TOPIC"] == "answers/1"
    assert properties["MQTT_CORRELATION_DATA"] == "AAH/"
    assert properties["MQTT_USER.site"] == "2", "the last of two, for readers of mappings"
    assert properties["MQTT_USER."] == ""
    assert properties["MQTT_QOS"] == "1"


def test_an_alias_is_no_property_of_the_message(site: Site) -> None:
    plain = site.stored(publish(NO_PROPERTIES))
    aliased = site.stored(publish(b"\x23\0\1"))
    assert aliased == plain


def test_a_will_has_its_properties(site: Site) -> None:
    device, _ = site.front.connect("d", properties=NO_PROPERTIES)
    will = packets.Will("a", b"gone", 0, False, Properties(will_delay_s=9, content_type="t"))
    site.ingress.publish_will(device, will)
    site.front.loop.run()
    assert site.gateway.handed[-1].messages[-1].properties["MQTT_CONTENT_TYPE"] == "t"
    kept = site.ingress.encode_will(device, will)
    assert kept is not None
    assert kept.delay_s == 9
    assert b"MQTT_CONTENT_TYPE\x01t\x02" in kept.elements
    plain = packets.encode_publish("a", b"x", properties=NO_PROPERTIES)
    assert "MQTT_CONTENT_TYPE" not in site.stored(plain, "other"), "nothing is left of it"


VALUE = st.text(st.characters(exclude_characters="\0\x01\x02", exclude_categories=["Cs"]), max_size=10)


@settings(max_examples=150)
@given(
    st.builds(
        Properties,
        payload_format=st.one_of(st.none(), st.integers(0, 1)),
        message_expiry_s=st.one_of(st.none(), st.integers(1, 0xFFFFFFFF)),
        content_type=st.one_of(st.none(), VALUE),
        response_topic=st.one_of(st.none(), VALUE.filter(lambda text: text and not {"+", "#"} & set(text))),
        correlation_data=st.one_of(st.none(), st.binary(max_size=40)),
        user_properties=st.lists(st.tuples(VALUE, VALUE), max_size=5).map(tuple),
    )
)
def test_a_subscriber_gets_what_was_published(properties: Properties) -> None:
    site = Site()
    device, _ = site.front.connect("publisher", properties=NO_PROPERTIES)
    receive(device, publish(properties, qos=1))
    site.front.loop.run()
    subscriber, out = site.front.connect("subscriber", properties=NO_PROPERTIES)
    filter_id = site.egress.subscribe("a", subscriber, 1)
    assert filter_id is not None
    raw = site.gateway.handed[-1].raw_properties[-1]
    record = encode_record(
        topic="mqtt", body=b"x", properties=raw, store_timestamp_ms=site.front.clock.now_ms()
    )
    site.egress.deliver(record, matches_of((0, [filter_id])))
    site.front.loop.run()
    (received,) = read_all5(out.take())
    assert received.properties == properties


def test_a_subscriber_of_mqtt_3_1_1_gets_the_message_alone(site: Site) -> None:
    (old, old_out), (new, new_out) = (
        site.front.connect("old"),
        site.front.connect("new", properties=NO_PROPERTIES),
    )
    filter_id = site.egress.subscribe("a", old, 1 | 7 << 8) or 0
    site.egress.subscribe("a", new, 1)
    site.push({"MQTT_CONTENT_TYPE": "t"}, filter_id)
    assert [read_publish(packet) for packet in split_output(old_out.take())] == [("a", b"x", 1)]
    assert read_all5(new_out.take())[0].properties == Properties(content_type="t")


@pytest.mark.parametrize(
    "named",
    [
        {"MQTT_PAYLOAD_FORMAT": "2"},
        {"MQTT_PAYLOAD_FORMAT": ""},
        {"MQTT_RESPONSE_TOPIC": "a/#"},
        {"MQTT_RESPONSE_TOPIC": ""},
        {"MQTT_CORRELATION_DATA": "no base64"},
        {"MQTT_CORRELATION_DATA": "AAA"},
        {"MQTT_CORRELATION_DATA": "=AAA"},
        {"MQTT_CONTENT_TYPE": "nul\0"},
        {"MQTT_OTHER": "x"},
        {"MSG_TTL_MS": "soon"},
        {"MSG_TTL_MS": "1" * 16},
        {"KEYS": "MQTT_CONTENT_TYPE"},
    ],
)
def test_what_a_native_producer_set_wrong_is_left_out(site: Site, named: dict[str, str]) -> None:
    device, out = site.front.connect("d", properties=NO_PROPERTIES)
    site.push(named, site.egress.subscribe("a", device, 1) or 0)
    assert [one.properties for one in read_all5(out.take())] == [NO_PROPERTIES]


def test_what_is_left_of_the_lifetime_is_forwarded_and_then_nothing(site: Site) -> None:
    """[MQTT-3.3.2-5], [MQTT-3.3.2-6], for subscribers of every version."""
    (new, new_out), (old, old_out) = (
        site.front.connect("new", properties=NO_PROPERTIES),
        site.front.connect("old"),
    )
    filter_id = site.egress.subscribe("a", new, 1) or 0
    site.egress.subscribe("a", old, 1)
    for age_s, left_s in ((0.0, 10), (3.2, 7), (9.999, 1)):
        site.push({"MSG_TTL_MS": "10000"}, filter_id, age_s=age_s)
        (received,) = read_all5(new_out.take())
        assert received.properties.message_expiry_s == left_s
        assert len(split_output(old_out.take())) == 1
    for age_s in (10.0, 11.0):
        site.push({"MSG_TTL_MS": "10000"}, filter_id, age_s=age_s)
        assert not new_out.take()
        assert not old_out.take()
    assert site.front.group.expired == 4


def test_no_local_keeps_a_device_from_what_it_published(site: Site) -> None:
    """[MQTT-3.8.3-3]"""
    (one, one_out), (two, two_out) = (
        site.front.connect(name, properties=NO_PROPERTIES) for name in ("one", "two")
    )
    filter_id = site.egress.subscribe("a", one, 1 | NO_LOCAL) or 0
    site.egress.subscribe("a", two, 1 | NO_LOCAL)
    site.push({"MQTT_CLIENT_ID": "one"}, filter_id)
    assert not one_out.take()
    assert len(read_all5(two_out.take())) == 1
    other_id = site.egress.subscribe("#", one, 0 | 5 << 8) or 0
    site.push({"MQTT_CLIENT_ID": "one"}, filter_id, other_id)
    (received,) = read_all5(one_out.take())
    assert (received.qos, received.properties.subscription_identifiers) == (0, (5,)), "by the other one alone"


def test_retain_as_published_keeps_the_flag(site: Site) -> None:
    """[MQTT-3.3.1-12], [MQTT-3.3.1-13]"""
    (plain, plain_out), (kept, kept_out) = (
        site.front.connect(name, properties=NO_PROPERTIES) for name in ("plain", "kept")
    )
    filter_id = site.egress.subscribe("a", plain, 1) or 0
    site.egress.subscribe("a", kept, 1 | RETAIN_AS_PUBLISHED)
    site.push({"MQTT_RETAIN": "1"}, filter_id)
    site.push({}, filter_id)
    assert [one.is_retained for one in read_all5(plain_out.take())] == [False, False]
    assert [one.is_retained for one in read_all5(kept_out.take())] == [True, False]


def test_overlapping_subscriptions_make_one_copy_with_all_identifiers(site: Site) -> None:
    """[MQTT-3.3.4-3], [MQTT-3.3.4-4]"""
    device, out = site.front.connect("d", properties=NO_PROPERTIES)
    ids = [
        site.egress.subscribe(name, device, options) or 0
        for name, options in (("a", 0 | 1 << 8), ("+", 1), ("#", 0 | RETAIN_AS_PUBLISHED | 268_435_455 << 8))
    ]
    site.push({"MQTT_RETAIN": "1"}, *ids)
    (received,) = read_all5(out.take())
    assert received.qos == 1
    assert received.is_retained
    assert sorted(received.properties.subscription_identifiers) == [1, 268_435_455]
    site.push({}, ids[1])
    assert read_all5(out.take())[0].properties == NO_PROPERTIES


def test_a_message_larger_than_the_device_takes_is_counted(site: Site) -> None:
    device, out = site.front.connect("d", properties=Properties(packet_bytes_max=20))
    filter_id = site.egress.subscribe("a", device, 1) or 0
    site.push({"MQTT_CONTENT_TYPE": "x" * 20}, filter_id)
    assert not out.take()
    assert site.front.group.too_large == 1
    site.push({}, filter_id)
    assert len(read_all5(out.take())) == 1


def test_a_retained_message_comes_with_its_flag_and_identifier(site: Site) -> None:
    """Section 3.3.1.3."""
    device, out = site.front.connect("d", properties=NO_PROPERTIES)
    record = encode_record(topic="mqtt", body=b"x", properties=encode_properties({"MQTT_TOPIC": "a"}))
    assert device.send_record(record, 0 | 9 << 8, is_retained=True) is True
    site.front.loop.run()
    (received,) = read_all5(out.take())
    assert received.is_retained
    assert received.properties.subscription_identifiers == (9,)
    expired = encode_record(
        topic="mqtt", body=b"x", properties=encode_properties({"MQTT_TOPIC": "a", "MSG_TTL_MS": "5"})
    )
    assert device.send_record(expired, 0, is_retained=True) is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, 0x80),
        (ResponseCode.NO_PERMISSION, 0x87),
        (ResponseCode.TOO_MANY_WAITING, 0x97),
    ],
)
def test_what_the_broker_refuses_is_said_in_the_acknowledgement(site: Site, code: int, reason: int) -> None:
    """MQTT 3.1.1 has no such code, and ends the connection."""
    site.gateway.automatic = code
    device, out = site.front.connect("d", properties=NO_PROPERTIES)
    receive(device, publish(NO_PROPERTIES, qos=1, packet_id=7) + publish(NO_PROPERTIES, qos=2, packet_id=8))
    site.front.loop.run()
    assert split_output(out.take()) == [(0x40, bytes([0, 7, reason])), (0x50, bytes([0, 8, reason]))]
    assert device.close_reason is None
    site.gateway.automatic = 0
    receive(device, publish(NO_PROPERTIES, qos=2, packet_id=8))
    site.front.loop.run()
    assert split_output(out.take()) == [(0x50, b"\0\x08")], "a new message, which is stored"


def test_a_message_sent_again_before_it_was_refused_is_refused_twice(site: Site) -> None:
    site.gateway.automatic = ResponseCode.NO_PERMISSION
    device, out = site.front.connect("d", properties=NO_PROPERTIES)
    again = publish(NO_PROPERTIES, qos=2, packet_id=8)
    receive(device, again + bytes([again[0] | 8]) + again[1:])
    site.front.loop.run()
    answers = split_output(out.take())
    assert [first for first, _ in answers] == [0x50, 0x50]
    assert answers[0][1] == answers[1][1]
    assert answers[0][1][2] >= 0x80


def test_properties_are_within_those_of_a_record(site: Site) -> None:
    largest = publish(Properties(correlation_data=bytes(12 * 1024 - 3)), qos=1)
    assert len(site.stored(largest)["MQTT_CORRELATION_DATA"]) == 16 * 1024 - 4
