"""A connection to another broker, over a fake socket: what is sent, what counts as sent, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from fake_gateway import FakeLoop, FakeTransport, ScriptedGateway, receive, split_output
from manual_clock import ManualClock

from iotmq.limits import BRIDGE_HOPS_BYTES_MAX
from iotmq.message.properties import decode_properties, encode_properties
from iotmq.message.records.record import encode_record
from iotmq.mqtt.client.server_packets import Connack, ServerPacketReader
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties, read_properties
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt_bridge.connection import (
    BridgeConnection,
    BridgeCounts,
    BridgeIngress,
    Progress,
    RefusingSink,
    SentTopics,
    stored_ms,
)
from iotmq.mqtt_bridge.identity import BridgeIdentity
from iotmq.mqtt_bridge.refusals import LeftOut, Refusal
from iotmq.mqtt_bridge.settings import ReceiveRuleSettings, SendRuleSettings
from iotmq.mqtt_bridge.topic_maps import ReceiveMap, SendMap
from iotmq.mqtt_front.connection.device import Device, DeviceGroup
from iotmq.mqtt_front.routing.routes import Router
from iotmq.mqtt_front.settings.mqtt import MqttSettings


class Far:
    """The other broker, as a script."""

    def __init__(
        self,
        *,
        level: int = 5,
        connack: Properties = NO_PROPERTIES,
        rules: Sequence[SendRuleSettings] = (SendRuleSettings(),),
        sink: Any = None,
        in_flight_max: int = 100,
        received: Sequence[int] = (),
        is_careful: bool = False,
        is_kept: bool = False,
        **identity: Any,
    ) -> None:
        fields = {
            "gateway": "here",
            "mark": "bridge:b",
            "adds_properties": True,
            "forwards_bridged": True,
            "drops_qos0_offline": False,
            "takes_any_record": False,
        } | identity
        self.clock = ManualClock()
        self.loop = FakeLoop()
        self.counts = BridgeCounts()
        self.events: list[object] = []
        self.lost: list[Device] = []
        self.sink = RefusingSink() if sink is None else sink(self)
        self.group = DeviceGroup(
            self.loop,  # type: ignore[arg-type]
            self.sink,
            self,
            now_s=self.clock.monotonic_s(),
            clock=self.clock,
        )
        if sink is not None:
            self.sink.group = self.group
        self.level = level
        self.begun = (received, is_careful)
        topics = SentTopics(SendMap(rules, gateway="here", where="bridges[b]").find)
        self.connection = BridgeConnection(
            self.group,
            ConnectionSettings(in_flight_max=in_flight_max),
            BridgeIdentity(**fields),  # type: ignore[arg-type]
            topics,
            self.counts,
        )
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.loop.run()
        ((first, _),) = split_output(self.transport.take())
        assert first == packets.CONNECT << 4
        self.say(
            packets.encode_connack(0, session_present=is_kept, properties=connack if level == 5 else None)
        )
        self.progress = Progress("mqtt/broker-a/0@", 0)

    def device_connected(self, device: Device) -> None:
        assert isinstance(device, BridgeConnection)
        device.begin(Connect("here-b", True, 30, None, None, None, self.level), *self.begun)

    def device_events(self, device: Device, events: Sequence[object]) -> None:
        self.events += events

    def device_lost(self, device: Device) -> None:
        self.lost.append(device)

    def say(self, data: bytes) -> None:
        receive(self.connection, data)
        self.loop.run()

    def acknowledge(self, *packet_ids: int, code: int = 0) -> None:
        self.say(b"".join(packets.encode_acknowledgement(packets.PUBACK, each, code) for each in packet_ids))

    def send(self, *records: bytes, count_max: int = 1_000) -> int:
        sent = self.connection.send_records(self.progress, b"".join(records), 0, count_max)
        self.loop.run()
        return sent

    def published(self) -> list[tuple[str, bytes, int, int, Properties]]:
        """Topic, payload, first byte, packet id and properties of what came since the last call."""
        found = []
        for first, body in split_output(self.transport.take()):
            if first >> 4 != packets.PUBLISH:
                continue
            reader = ServerPacketReader(body, "PUBLISH")
            topic = reader.binary().decode()
            packet_id = reader.packet_id() if first & 6 else 0
            properties = read_properties(reader, packets.PUBLISH) if self.level == 5 else NO_PROPERTIES
            found.append((topic, reader.rest(), first, packet_id, properties))
        return found

    def payloads(self) -> list[bytes]:
        return [payload for _, payload, *_ in self.published()]


def record(offset: int, payload: bytes = b"x", topic: str = "a/b", **properties: str) -> bytes:
    fields = {"MQTT_TOPIC": topic, "MQTT_CLIENT_ID": "device", "MQTT_QOS": "1"} | properties
    return encode_record(
        topic="mqtt",
        body=payload,
        properties=encode_properties({name: value for name, value in fields.items() if value}),
        queue_offset=offset,
        store_timestamp_ms=1_000 + offset,
    )


def test_records_go_in_order_and_count_when_they_are_acknowledged() -> None:
    far = Far()
    assert isinstance(far.events[0], Connack)
    records = [record(number, str(number).encode()) for number in range(5)]
    assert far.send(*records) == sum(map(len, records))
    sent = far.published()
    assert [payload for _, payload, *_ in sent] == [b"0", b"1", b"2", b"3", b"4"]
    assert [packet_id for *_, packet_id, _ in sent] == [1, 2, 3, 4, 5]
    assert (far.progress.acked, far.progress.sent, far.progress.in_flight) == (0, 5, 5)
    assert far.connection.oldest_ms == 1_000
    far.acknowledge(2, 3)
    assert far.progress.acked == 0, "the first is late"
    far.acknowledge(1)
    assert far.progress.acked == 3
    assert far.connection.oldest_ms == 1_003
    far.acknowledge(4, 5)
    assert (far.progress.acked, far.progress.in_flight) == (5, 0)
    assert far.connection.oldest_ms is None
    assert far.counts.acknowledged == far.counts.sent == 5


def test_the_window_of_the_other_broker_is_kept() -> None:
    far = Far(connack=Properties(receive_max=3))
    records = [record(number) for number in range(10)]
    at = far.send(*records)
    assert at == sum(map(len, records[:3]))
    assert len(far.payloads()) == 3
    assert not far.connection.can_send
    told: list[bool] = []
    far.connection.call_when_room(lambda: told.append(far.connection.can_send))
    far.acknowledge(1)
    assert told == [True]


def test_a_late_first_acknowledgement_holds_back_what_would_pass_the_ring() -> None:
    far = Far(in_flight_max=8)
    sent = 0
    for _ in range(20):
        far.connection.send_records(far.progress, b"".join(record(n) for n in range(sent, sent + 8)), 0, 8)
        far.loop.run()
        ids = [packet_id for *_, packet_id, _ in far.published()]
        sent = far.progress.sent
        far.acknowledge(*(each for each in ids if each != 1))
    assert far.progress.acked == 0
    assert not far.connection.can_send
    far.acknowledge(1)
    assert far.progress.acked == far.progress.sent == sent


def test_the_next_connection_sends_again_what_was_not_acknowledged() -> None:
    far = Far()
    records = [record(number, str(number).encode()) for number in range(4)]
    far.send(*records)
    far.acknowledge(1)
    far.progress.rewind()
    assert far.progress.sent == 1
    again = Far()
    again.progress = far.progress
    again.send(*records)
    assert again.payloads() == [b"1", b"2", b"3"], "the first is there"


def test_what_no_rule_is_for_is_passed_over_and_counts_as_done() -> None:
    far = Far(rules=[SendRuleSettings(filter="a/#", topic="x/{1:}")])
    far.send(record(0, topic="b"), record(1), record(2, topic=""), record(3, topic="b"))
    ((topic, *_),) = far.published()
    assert topic == "x/b"
    assert far.counts.skipped == 3
    assert far.progress.acked == 0 or far.progress.acked == 1
    far.acknowledge(1)
    assert far.progress.acked == 4


@pytest.mark.parametrize(
    ("rule", "published", "sent"),
    [
        ({}, 0, 0),
        ({}, 1, 1),
        ({}, 2, 1),
        ({"qos_min": 1}, 0, 1),
        ({"qos_max": 0}, 2, 0),
    ],
)
def test_the_rule_bounds_the_quality(rule: dict[str, Any], published: int, sent: int) -> None:
    far = Far(rules=[SendRuleSettings(**rule)])
    far.send(record(0, MQTT_QOS=str(published)))
    ((_, _, first, _, _),) = far.published()
    assert first >> 1 & 3 == sent
    assert far.progress.acked == (0 if sent else 1)


def test_retain_flags_are_kept_unless_the_rule_or_the_other_broker_has_none() -> None:
    for far, is_kept in (
        (Far(), True),
        (Far(rules=[SendRuleSettings(retain=False)]), False),
        (Far(connack=Properties(is_retain_available=0)), False),
    ):
        far.send(record(0, b"", MQTT_RETAIN="1"))
        ((_, payload, first, _, _),) = far.published()
        assert (payload, bool(first & 1)) == (b"", is_kept)


def test_properties_say_who_has_published_what_and_where_it_has_been() -> None:
    far = Far()
    far.send(
        record(
            7,
            MQTT_CONTENT_TYPE="text/plain",
            **{
                "MQTT_USER.colour": "red",
                "MQTT_USER.iotmq-hops": "before",
                "MQTT_USER.iotmq-client-id": "a lie",
                "MQTT_USER.iotmq-message": "old",
            },
        )
    )
    ((*_, properties),) = far.published()
    assert properties.content_type == "text/plain"
    assert dict(properties.user_properties) == {
        "colour": "red",
        "iotmq-hops": "before,here",
        "iotmq-client-id": "device",
        "iotmq-message": "mqtt/broker-a/0@7",
    }
    plain = Far(adds_properties=False)
    plain.send(record(7, **{"MQTT_USER.colour": "red"}))
    ((*_, properties),) = plain.published()
    assert properties.user_properties == (("colour", "red"),)
    old = Far(level=4)
    old.send(record(7))
    assert old.payloads() == [b"x"]


def test_a_message_does_not_go_where_it_has_been() -> None:
    far = Far(connack=Properties(user_properties=(("iotmq-gateway", "there"),)))
    assert far.connection.remote == "there"
    far.send(
        record(0, **{"MQTT_USER.iotmq-hops": "x,there,y"}),
        record(1, **{"MQTT_USER.iotmq-hops": "x,therefore"}),
        record(2, MQTT_BRIDGE="bridge:b"),
        record(3, MQTT_BRIDGE="bridge:other"),
    )
    assert len(far.payloads()) == 2
    assert far.counts.looped == 2
    alone = Far(forwards_bridged=False, level=4)
    alone.send(record(0, MQTT_BRIDGE="bridge:other"), record(1))
    assert (alone.counts.looped, alone.counts.not_forwarded) == (0, 1)


@pytest.mark.parametrize(
    ("size", "goes"), [(BRIDGE_HOPS_BYTES_MAX, True), (BRIDGE_HOPS_BYTES_MAX + 1, False)]
)
def test_a_message_that_has_passed_too_many_gateways_goes_no_further(size: int, goes: bool) -> None:
    far = Far()
    far.send(record(0, **{"MQTT_USER.iotmq-hops": "g" * size}))
    assert bool(far.payloads()) is goes
    assert far.counts.looped == (not goes)


def test_messages_of_qos_0_from_before_the_connection_are_left_out_where_that_is_set() -> None:
    far = Far(drops_qos0_offline=True)
    late = encode_record(
        topic="mqtt", body=b"live", queue_offset=2, store_timestamp_ms=far.clock.now_ms() + 1,
        properties=encode_properties({"MQTT_TOPIC": "a", "MQTT_QOS": "0"}),
    )  # fmt: skip
    far.send(record(0, b"late", MQTT_QOS="0"), record(1, b"kept"), late)
    assert far.payloads() == [b"kept", b"live"]
    assert far.counts.dropped == 1


def test_records_without_an_mqtt_topic_go_under_the_name_of_their_broker_topic() -> None:
    far = Far(takes_any_record=True)
    far.send(record(0, topic="", MQTT_QOS=""))
    ((topic, *_),) = far.published()
    assert topic == "mqtt"


def test_a_message_that_is_refused_for_good_is_left_out_and_told() -> None:
    far = Far()
    far.send(record(0), record(1))
    far.acknowledge(1, code=0x87)
    assert far.progress.acked == 1
    assert far.counts.refused == 1
    assert far.events[-1] == Refusal("mqtt/broker-a/0@0", 0x87, "", is_final=True, is_later=False)
    assert not far.lost


def test_a_message_that_is_not_taken_now_ends_the_connection_and_stays() -> None:
    far = Far()
    far.send(record(0), record(1))
    far.acknowledge(1, code=0x97)
    assert far.connection.close_reason is not None
    assert far.progress.acked == 0
    assert far.counts.refused == 0


def test_a_packet_that_is_too_large_for_the_other_broker_is_left_out() -> None:
    far = Far(connack=Properties(packet_bytes_max=200))
    far.send(record(0, b"x" * 500), record(1, b"y"))
    assert far.payloads() == [b"y"]
    assert far.counts.too_large == 1


def test_records_that_were_looked_at_before_are_passed_over() -> None:
    far = Far()
    far.send(record(0), record(1))
    far.send(record(0), record(1), record(2, b"new"))
    assert far.payloads() == [b"x", b"x", b"new"]


@pytest.mark.parametrize(
    "packet",
    [
        packets.PINGRESP_PACKET,
        packets.encode_publish("a", b"1", properties=NO_PROPERTIES),
        packets.encode_suback(1, [0], NO_PROPERTIES),
    ],
)
def test_the_first_packet_is_connack(packet: bytes) -> None:
    far = Far.__new__(Far)
    Far.__init__(far)
    fresh = BridgeConnection(
        far.group,
        ConnectionSettings(),
        BridgeIdentity("here", "m", True, True, False, False),
        SentTopics(SendMap([SendRuleSettings()], gateway="here", where="b").find),
        far.counts,
    )
    transport = FakeTransport(fresh)
    fresh.connection_made(transport)  # type: ignore[arg-type]
    far.loop.run()
    transport.take()
    receive(fresh, packet)
    far.loop.run()
    assert fresh.close_reason is not None
    assert transport.take() == b"", "before CONNACK there is nothing to say"


@pytest.mark.parametrize(
    "packet",
    [
        packets.encode_connect(Connect("x", True, 0, None, None, None, 5)),
        packets.encode_subscribe(1, [("a", 0)], NO_PROPERTIES),
        packets.encode_unsubscribe(1, ["a"], NO_PROPERTIES),
        packets.PINGREQ_PACKET,
        packets.encode_connack(0, session_present=False, properties=NO_PROPERTIES),
        packets.encode_publish("a", b"nobody subscribed", properties=NO_PROPERTIES),
        b"\xd1\x00",
    ],
)
def test_what_no_server_sends_ends_the_connection(packet: bytes) -> None:
    far = Far()
    far.say(packet)
    assert far.connection.close_reason is not None
    ((first, _),) = split_output(far.transport.take())
    assert first == packets.DISCONNECT << 4


def ingress_of(rules: Sequence[ReceiveRuleSettings]) -> Any:
    def made(far: Far) -> BridgeIngress:
        far.gateway = ScriptedGateway()  # type: ignore[attr-defined]
        return BridgeIngress(
            Router((), default_topic="mqtt"),
            far.gateway,  # type: ignore[attr-defined]
            far.loop,  # type: ignore[arg-type]
            MqttSettings(),
            ReceiveMap(rules, gateway="here", where="bridges[b]"),
            ("here", far.counts),
        )

    return made


def test_what_comes_is_stored_under_its_name_here_and_then_acknowledged() -> None:
    there = Properties(user_properties=(("iotmq-gateway", "there"),))
    far = Far(sink=ingress_of([ReceiveRuleSettings(filter="down/#", topic="{1:}")]), connack=there)
    properties = Properties(user_properties=(("iotmq-client-id", "service"), ("iotmq-hops", "x")))
    far.say(packets.encode_publish("down/a", b"1", qos=1, packet_id=9, properties=properties))
    (handed,) = far.gateway.handed  # type: ignore[attr-defined]
    (found,) = handed.messages
    assert (found.topic, found.payload) == ("a", b"1")
    assert found.properties["MQTT_CLIENT_ID"] == "service"
    assert found.properties["MQTT_BRIDGE"] == "bridge:b"
    assert b"MQTT_USER.iotmq-hops\x01there\x02" in handed.raw_properties[0], "and x behind it"
    assert not far.transport.take(), "it is not stored yet"
    handed.answer(0, "")
    far.loop.run()
    assert split_output(far.transport.take())[-1][0] == packets.PUBACK << 4


def test_what_has_been_here_is_acknowledged_and_not_stored() -> None:
    far = Far(sink=ingress_of([ReceiveRuleSettings(filter="#")]))
    properties = Properties(user_properties=(("iotmq-hops", "x,here"),))
    far.say(packets.encode_publish("a", b"1", qos=1, packet_id=9, properties=properties))
    assert not far.gateway.handed  # type: ignore[attr-defined]
    assert far.counts.looped == 1
    assert split_output(far.transport.take()) == [(packets.PUBACK << 4, b"\0\x09")]


def test_when_the_next_record_was_stored() -> None:
    data = record(0) + record(5)
    assert stored_ms(data, 0) == 1_000
    assert stored_ms(data, len(record(0))) == 1_005
    assert decode_properties(b"") == {}


@pytest.mark.parametrize(("count", "has_ours"), [(125, True), (126, False), (128, False)])
def test_a_message_with_as_many_user_properties_as_a_gateway_takes_goes_without_ours(
    count: int, has_ours: bool
) -> None:
    far = Far()
    far.send(record(0, **{f"MQTT_USER.p{number}": "v" for number in range(count)}))
    ((*_, properties),) = far.published()
    assert len(properties.user_properties) == count + 3 * has_ours


def again(far: Far, **options: Any) -> Far:
    """The next connection, for the same queue."""
    far.progress.rewind()
    following = Far(is_careful=far.progress.is_suspect, **options)
    following.progress = far.progress
    return following


@pytest.mark.parametrize("code", [0x80, 0x83])
def test_a_message_that_is_never_taken_is_left_out_after_some_tries_and_the_others_go_on(code: int) -> None:
    far = Far()
    records = [record(number, str(number).encode()) for number in range(4)]
    for tries in range(3):
        far.send(*records)
        sent = far.published()
        if tries:
            assert [payload for _, payload, *_ in sent] == [b"1"], "alone"
            far.acknowledge(1, code=code)
        else:
            far.acknowledge(1)
            far.acknowledge(2, code=code)
        assert far.events[-1] == Refusal("mqtt/broker-a/0@1", code, "", is_final=False, is_later=False)
        assert far.connection.close_reason is not None
        place = far.connection.blame(3)
        assert place == (None, None, "mqtt/broker-a/0@1")[tries]
        counts = far.counts
        far = again(far)
    assert counts.put_aside == 1
    assert not far.connection.is_careful
    far.send(*records)
    assert far.payloads() == [b"2", b"3"]
    far.acknowledge(1, 2)
    assert far.progress.acked == 4


def test_a_message_refused_behind_others_is_found_and_they_are_sent() -> None:
    far = Far()
    records = [record(number, str(number).encode()) for number in range(4)]
    far.send(*records)
    far.acknowledge(3, code=0x80)
    assert far.connection.blame(1) == "mqtt/broker-a/0@2"
    far = again(far)
    far.send(*records)
    assert far.payloads() == [b"0", b"1", b"3"]
    far.acknowledge(1, 2, 3)
    assert far.progress.acked == 4


def test_an_end_without_a_word_counts_against_a_message_that_was_sent_alone() -> None:
    far = Far(level=4)
    records = [record(number, str(number).encode()) for number in range(3)]
    far.send(*records)
    assert far.connection.blame(1) is None, "it may be any of three"
    far = again(far, level=4)
    assert far.connection.is_careful
    far.send(*records)
    assert far.payloads() == [b"0"]
    far.acknowledge(1)
    far.send(*records)
    assert far.payloads() == [b"1", b"2"], "one more with each that is acknowledged"
    assert far.connection.blame(1) is None
    far = again(far, level=4)
    far.send(*records)
    assert far.payloads() == [b"1"]
    assert far.connection.blame(1) == "mqtt/broker-a/0@1"
    far = again(far, level=4)
    far.send(*records)
    assert far.payloads() == [b"2"]
    assert far.connection.blame(2) is None, "the count begins anew"


def test_nothing_is_blamed_when_nothing_is_on_its_way() -> None:
    far = Far()
    assert far.connection.blame(1) is None
    far.send(record(0))
    far.acknowledge(1)
    assert far.connection.blame(1) is None
    assert not far.progress.is_suspect


def test_a_record_that_cannot_be_read_is_left_out_and_counted() -> None:
    far = Far()
    broken = bytearray(record(1))
    broken[84] ^= 0x40  # the size of its body
    assert stored_ms(broken, 0) is None
    far.send(record(0, b"0"), bytes(broken), record(2, b"2"))
    assert far.payloads() == [b"0", b"2"]
    assert far.counts.unreadable == 1
    assert far.connection.left_out == [LeftOut("mqtt/broker-a/0@1", "a record cannot be read")]
    far.acknowledge(1, 2)
    assert far.progress.acked == 3
    sizeless = b"\0" * 100
    far.send(record(3, b"3"), sizeless, record(4, b"4"))
    assert far.payloads() == [b"3"]
    assert far.counts.unreadable == 2
    assert far.connection.left_out[-1] == LeftOut("mqtt/broker-a/0@4", "records cannot be read from here on")


@pytest.mark.parametrize("count", [16, 17])
def test_so_many_messages_that_are_left_out_are_told_one_by_one(count: int) -> None:
    far = Far(connack=Properties(packet_bytes_max=200))
    far.send(*(record(number, b"x" * 500) for number in range(count)))
    assert (far.counts.too_large, len(far.connection.left_out)) == (count, 16)


def test_a_message_of_qos_2_goes_so_where_the_rule_says_it() -> None:
    far = Far(rules=[SendRuleSettings(qos_max=2)])
    far.send(record(0, MQTT_QOS="2"))
    ((_, _, first, packet_id, _),) = far.published()
    assert first >> 1 & 3 == 2
    far.say(packets.encode_acknowledgement(packets.PUBREC, packet_id))
    assert split_output(far.transport.take()) == [(packets.PUBREL << 4 | 2, packet_id.to_bytes(2))]
    assert far.progress.acked == 0
    far.say(packets.encode_acknowledgement(packets.PUBCOMP, packet_id))
    assert far.progress.acked == 1
    far.send(record(1, MQTT_QOS="2"))
    ((*_, packet_id, _),) = far.published()
    far.say(packets.encode_acknowledgement(packets.PUBREC, packet_id, 0x87))
    assert (far.progress.acked, far.counts.refused) == (2, 1)


@pytest.mark.parametrize(("is_kept", "is_stored_again"), [(True, False), (False, True)])
def test_a_message_of_qos_2_is_stored_once_when_the_connection_ends_before_its_release(
    is_kept: bool, is_stored_again: bool
) -> None:
    far = Far(sink=ingress_of([ReceiveRuleSettings(filter="#")]))
    far.say(packets.encode_publish("a", b"1", qos=2, packet_id=9, properties=NO_PROPERTIES))
    far.gateway.handed[0].answer(0, "")  # type: ignore[attr-defined]
    far.loop.run()
    assert split_output(far.transport.take())[-1] == (packets.PUBREC << 4, b"\0\x09")
    received = far.connection.received
    assert received == [9]
    following = Far(sink=ingress_of([ReceiveRuleSettings(filter="#")]), received=received, is_kept=is_kept)
    repeat = packets.encode_publish("a", b"1", qos=2, packet_id=9, dup=True, properties=NO_PROPERTIES)
    following.say(repeat)
    assert bool(following.gateway.handed) is is_stored_again  # type: ignore[attr-defined]
    if not is_stored_again:
        assert split_output(following.transport.take()) == [(packets.PUBREC << 4, b"\0\x09")]
        following.say(packets.encode_acknowledgement(packets.PUBREL, 9))
        assert split_output(following.transport.take()) == [(packets.PUBCOMP << 4, b"\0\x09")]
        assert following.connection.received == []


def test_what_comes_right_behind_connack_is_taken() -> None:
    far = Far(sink=ingress_of([ReceiveRuleSettings(filter="#")]))
    topics = SentTopics(SendMap([], gateway="here", where="b").find)
    identity = BridgeIdentity("here", "bridge:b", True, True, False, False)
    fresh = BridgeConnection(far.group, ConnectionSettings(), identity, topics, far.counts)
    fresh.connection_made(FakeTransport(fresh))  # type: ignore[arg-type]
    connack = packets.encode_connack(0, session_present=True, properties=NO_PROPERTIES)
    receive(
        fresh, connack + packets.encode_publish("a", b"kept", qos=1, packet_id=1, properties=NO_PROPERTIES)
    )
    far.loop.run()
    (handed,) = far.gateway.handed  # type: ignore[attr-defined]
    assert handed.payloads == [b"kept"]
