"""The MQTT front end over scripted brokers and real sockets; on uvloop, which it is made for."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from eventually import STOP_S, soon
from fake_gateway import RawClient, connect_packet, split_output
from front_site import Site, running, tick_quickly
from loop_turns import LoopTurns, turn_s_max

from iotmq import limits
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt_front import server
from iotmq.mqtt_front.sessions.subscriptions import _Granted
from iotmq.mqtt_front.settings.routes import RouteSettings
from iotmq.remoting.codes import ResponseCode
from iotmq.supervised import FAILURES


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_quickly(monkeypatch)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running() as site:
        yield site


def publish(packet_id: int, payload: bytes = b"x", topic: str = "t") -> bytes:
    return packets.encode_publish(topic, payload, qos=1, packet_id=packet_id)


# Sessions


async def test_connect_ping_and_disconnect(site: Site) -> None:
    client = await site.connect("device-1")
    await client.ping()
    assert site.number("iotmq_mqtt_connections") == site.number("iotmq_mqtt_sessions") == 1
    client.send(packets.DISCONNECT_PACKET)
    assert await client.rest() == b""
    await site.gone("normal")
    assert site.number("iotmq_mqtt_connections") == site.number("iotmq_mqtt_sessions") == 0
    assert site.number("iotmq_mqtt_accepted_total") == 1


async def test_a_client_without_an_id_gets_one_of_its_own(site: Site) -> None:
    site.gateway.automatic = 0
    clients = [await site.connect("") for _ in range(2)]
    for client in clients:
        client.send(publish(1))
        assert await client.puback() == 1
    names = {
        message.properties["MQTT_CLIENT_ID"] for handed in site.gateway.handed for message in handed.messages
    }
    assert len(names) == 2
    assert all(name.startswith("iotmq-") for name in names)
    assert site.number("iotmq_mqtt_sessions") == 2


async def test_the_same_client_id_takes_the_session_over(site: Site) -> None:
    site.gateway.automatic = 0
    former = await site.connect("one", will=Will("w", b"former", 1, False))
    assert await former.subscribe(("a", 1)) == [1]
    latter = await site.connect("one")
    assert await former.rest() == b""
    await site.gone("session_taken_over")
    await latter.ping()
    assert site.number("iotmq_mqtt_sessions") == site.number("iotmq_mqtt_connections") == 1
    assert site.number("iotmq_mqtt_subscriptions") == 0, "a clean session starts without"
    assert not site.gateway.filters
    [handed] = await site.handed()
    assert handed.payloads == [b"former"], "it did not say goodbye"
    third = await site.connect("one")
    assert await latter.rest() == b""
    await third.ping()


async def test_packets_behind_connect_are_handled_in_order(site: Site) -> None:
    site.gateway.automatic = 0
    client = await site.dial()
    client.send(
        connect_packet("d"), publish(1), packets.encode_subscribe(2, [("a", 0)]), packets.PINGREQ_PACKET
    )
    found = [await client.packet() for _ in range(4)]
    assert found[0] == (packets.CONNACK << 4, b"\0\0")
    assert sorted(found[1:]) == [
        (packets.PUBACK << 4, b"\0\1"),
        (packets.SUBACK << 4, b"\0\2\0"),
        (packets.PINGRESP << 4, b""),
    ]
    hasty = await site.dial()
    hasty.send(connect_packet("e", will=Will("w", b"", 0, False)), publish(1), packets.DISCONNECT_PACKET)
    assert split_output(await hasty.rest())[0] == (packets.CONNACK << 4, b"\0\0")
    await site.gone("normal")
    assert [handed.payloads for handed in site.gateway.handed] == [[b"x"], [b"x"]], "and no will"


async def test_refused_connects_are_told_why(site: Site) -> None:
    client = await site.dial()
    body = b"\0\4MQTT\2\2\0\0\0\1d"
    client.send(packets.encode_packet(packets.CONNECT, 0, body))
    assert await client.rest() == bytes([0x20, 2, 0, 1])
    await site.gone("unsupported_protocol_version")


# Publishing


async def test_puback_comes_when_the_broker_has_promised_and_not_before(site: Site) -> None:
    client = await site.connect("d")
    client.send(publish(1, b"one"))
    [handed] = await site.handed()
    client.send(publish(2, b"two"))
    await client.ping()
    handed.answer(0, "")
    assert await client.puback() == 1
    await client.ping()
    [_, second] = await site.handed(2)
    second.answer(ResponseCode.SERVICE_NOT_AVAILABLE, "full")
    [_, _, again] = await site.handed(3)
    assert again.payloads == [b"two"]
    await client.ping()
    again.answer(0, "")
    assert await client.puback() == 2


async def test_a_refused_message_ends_the_connection_without_puback(site: Site) -> None:
    client = await site.connect("d")
    client.send(publish(1))
    [handed] = await site.handed()
    handed.answer(ResponseCode.MESSAGE_ILLEGAL, "no")
    assert await client.rest() == b""
    await site.gone("not_stored")
    assert site.number("iotmq_mqtt_not_stored_total") == 1


async def test_publishers_wait_while_the_broker_does_and_are_not_late_meanwhile() -> None:
    async with running(pending_bytes_max=1024 * 1024, keep_alive_s_max=10) as site:
        client = await site.connect("d", keep_alive_s=10)
        other = await site.connect("e", keep_alive_s=10)
        payload = bytes(1000)
        client.send(*(publish(1 + number, payload) for number in range(3_000)))
        await soon(lambda: site.number("iotmq_mqtt_paused_connections") == 1, "publisher paused")
        assert site.number("iotmq_mqtt_pending_bytes") < 1024 * 1024 + 1024 * 300
        site.clock.advance(20)
        assert await other.rest() == b"", "this one had nothing to wait for"
        site.gateway.automatic = 0
        for handed in list(site.gateway.handed):
            handed.answer(0, "")
        for number in range(3_000):
            assert await client.puback() == 1 + number
        assert site.number("iotmq_mqtt_paused_connections") == 0
        assert site.number("iotmq_mqtt_pending_bytes") == 0
        await client.ping()


async def test_changed_queues_move_topics() -> None:
    async with running(queues=1) as site:
        site.gateway.automatic = 0
        client = await site.connect("d")
        for queues in (1, 64):
            site.gateway.queues = queues
            site.gateway.queues_changed()
            client.send(*(publish(1 + number, topic=f"t/{number}") for number in range(20)))
            for number in range(20):
                assert await client.puback() == 1 + number
        assert len({handed.queue_id for handed in site.gateway.handed}) > 5


# Wills


async def test_a_will_is_stored_when_the_connection_is_lost_and_not_after_disconnect(site: Site) -> None:
    site.gateway.automatic = 0
    lost, polite, rude = [
        await site.connect(name, will=Will(f"w/{name}", b"", 1, True)) for name in ("lost", "polite", "rude")
    ]
    polite.send(packets.DISCONNECT_PACKET)
    assert await polite.rest() == b""
    await site.gone("normal")
    lost.abort()
    await site.gone("connection_lost")
    rude.send(b"\xf0\0")
    assert await rude.rest() == b""
    await site.gone("protocol_error")
    await site.handed(2)
    topics = [message.topic for handed in site.gateway.handed for message in handed.messages]
    assert topics == ["w/lost", "w/rude"]


async def test_a_will_that_cannot_be_stored_harms_nothing() -> None:
    async with running(routes=(RouteSettings(filter="#", topic="T", key="{topic}" * 140),)) as site:
        client = await site.connect("d", will=Will("x" * 1_000, b"", 0, False))
        assert await client.subscribe(("a", 0)) == [0]
        client.abort()
        await site.gone("connection_lost")
        assert site.number("iotmq_mqtt_subscriptions") == site.number("iotmq_mqtt_sessions") == 0
        assert not site.gateway.filters
        assert site.number("iotmq_mqtt_not_stored_total") == 1


# Subscriptions


async def test_subscribe_deliver_unsubscribe(site: Site) -> None:
    client = await site.connect("d")
    assert await client.subscribe(("a/+", 0), ("b", 1), ("c", 2), ("b", 0)) == [0, 1, 2, 0]
    assert sorted(site.gateway.filters.values()) == ["a/+", "b", "c"]
    assert site.number("iotmq_mqtt_subscriptions") == site.number("iotmq_mqtt_filters") == 3
    site.gateway.push("a/x", b"1", "a/+")
    site.gateway.push("b", b"2", "b")
    site.gateway.push("c", b"3", "c", qos=2)
    assert [await client.publish_received() for _ in range(3)] == [
        ("a/x", b"1", 0),
        ("b", b"2", 0),
        ("c", b"3", 2),
    ]
    client.send(packets.encode_unsubscribe(9, ["a/+", "never", "c", "c"]))
    assert await client.packet() == (packets.UNSUBACK << 4, b"\0\x09")
    assert sorted(site.gateway.filters.values()) == ["b"]
    assert site.number("iotmq_mqtt_subscriptions") == 1
    site.gateway.push("c", b"4", "c")
    await client.ping()


async def test_unsubscribe_without_any_subscription_is_answered(site: Site) -> None:
    """[MQTT-3.10.4-5]"""
    client = await site.connect("d")
    client.send(packets.encode_unsubscribe(4, ["a", "b/#"]))
    assert await client.packet() == (packets.UNSUBACK << 4, b"\0\4")


def _many_subscribes(count: int) -> bytes:
    return b"".join(packets.encode_subscribe(n + 1, [(f"storm/{n}", 0)]) for n in range(count))


async def test_a_storm_of_subscribes_leaves_every_turn_room_for_others(site: Site) -> None:
    storm = await site.connect("storm")
    storm.send(_many_subscribes(300))
    counts = [0.0]
    while counts[-1] < 300:
        await asyncio.sleep(0)
        counts.append(site.number("iotmq_mqtt_subscriptions"))
    # 2 in a turn of the loop; this task may see two of them as one.
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 4
    for number in range(300):
        assert await storm.packet() == (packets.SUBACK << 4, (number + 1).to_bytes(2, "big") + b"\0")
    await storm.ping()


async def test_a_disconnect_behind_a_storm_of_subscribes_still_drops_the_will(site: Site) -> None:
    storm = await site.connect("storm", will=Will("w", b"", 1, False))
    storm.send(_many_subscribes(200), packets.DISCONNECT_PACKET)
    await site.gone("normal")
    assert not site.gateway.handed
    await soon(lambda: not site.gateway.filters, "its filters go")
    assert site.number("iotmq_mqtt_subscriptions") == site.number("iotmq_mqtt_sessions") == 0


async def test_what_comes_behind_a_storm_of_subscribes_waits_its_turn(site: Site) -> None:
    storm = await site.connect("storm")
    storm.send(_many_subscribes(100), packets.encode_publish("a/1", b"x", qos=1, packet_id=7))
    for number in range(100):
        assert await storm.packet() == (packets.SUBACK << 4, (number + 1).to_bytes(2, "big") + b"\0")
    [handed] = await site.handed()
    handed.answer(0, "")
    assert await storm.packet() == (packets.PUBACK << 4, b"\0\7")
    storm.send(_many_subscribes(100), packets.encode_publish("a/2", b"y"))
    storm.close()
    await site.gone("connection_lost")
    [_, last] = await site.handed(2)
    assert last.payloads == [b"y"]


async def test_the_filters_of_a_lost_device_go_in_several_turns(site: Site) -> None:
    many = await site.connect("many")
    assert len(await many.subscribe(*((f"many/{number}", 0) for number in range(100)))) == 100
    other = await site.connect("other")
    assert await other.subscribe(("many/99", 0)) == [0]
    many.abort()
    counts = [101.0]
    while counts[-1] > 1:
        await asyncio.sleep(0)
        counts.append(site.number("iotmq_mqtt_subscriptions"))
    # 8 in a turn of the loop; this task may see two of them as one.
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 16
    assert list(site.gateway.filters.values()) == ["many/99"]
    site.gateway.push("many/99", b"1", "many/99")
    assert await other.publish_received() == ("many/99", b"1", 0)


async def test_a_storm_that_breaks_off_leaves_nothing_behind(site: Site) -> None:
    storm = await site.connect("storm")
    storm.send(_many_subscribes(300))
    await soon(lambda: site.number("iotmq_mqtt_subscriptions") > 0, "the first are there", step_s=0)
    storm.abort()
    await site.gone("connection_lost")
    await soon(lambda: not site.gateway.filters, "its filters go")
    assert site.number("iotmq_mqtt_subscriptions") == 0
    other = await site.connect("other")
    assert await other.subscribe(("a", 0)) == [0]


async def test_more_devices_than_a_turn_has_room_for_all_get_in(site: Site) -> None:
    clients = [await site.dial() for _ in range(100)]
    for number, client in enumerate(clients):
        client.send(connect_packet(f"d{number}"), packets.encode_subscribe(1, [(f"own/{number}", 0)]))
    for client in clients:
        assert (await client.packet())[0] == packets.CONNACK << 4
        assert (await client.packet())[0] == packets.SUBACK << 4
    assert site.number("iotmq_mqtt_subscriptions") == 100


async def test_a_filter_is_attached_once_and_detached_with_its_last_subscriber(site: Site) -> None:
    one, two = await site.connect("one"), await site.connect("two")
    assert await one.subscribe(("a", 1)) == [1]
    ids = set(site.gateway.filters)
    assert await two.subscribe(("a", 0)) == [0]
    assert set(site.gateway.filters) == ids
    one.abort()
    await site.gone("connection_lost")
    assert set(site.gateway.filters) == ids
    site.gateway.push("a", b"x", "a")
    assert await two.publish_received() == ("a", b"x", 0)
    two.send(packets.DISCONNECT_PACKET)
    await site.gone("normal")
    assert not site.gateway.filters


async def test_the_suback_waits_for_the_broker_and_other_packets_do_not(site: Site) -> None:
    site.gateway.takes_filters = None
    client = await site.connect("d")
    client.send(packets.encode_subscribe(3, [("a", 1), ("b", 1)]))
    await client.ping()
    site.gateway.attaching[0](True)
    assert await client.packet() == (packets.SUBACK << 4, b"\0\3\1\1")


async def test_what_is_behind_a_subscribe_waits_for_its_answer_and_so_does_its_deadline(site: Site) -> None:
    site.gateway.takes_filters = None
    client = await site.connect("d", keep_alive_s=10)
    client.send(packets.encode_subscribe(3, [("a", 1)]))
    await client.ping()
    client.send(publish(1), packets.encode_subscribe(4, [("b", 1)]), packets.PINGREQ_PACKET)
    await soon(lambda: site.number("iotmq_mqtt_paused_connections") == 1, "not read")
    for _ in range(3):
        await site.advance(15)
    assert site.gateway.handed == []
    assert len(site.gateway.attaching) == 1
    site.gateway.automatic = 0
    site.gateway.attaching[0](True)
    assert await client.packet() == (packets.SUBACK << 4, b"\0\3\1")
    await soon(lambda: len(site.gateway.attaching) == 2, "the next one is asked for")
    site.gateway.attaching[1](True)
    found = sorted([await client.packet() for _ in range(3)])
    assert [first >> 4 for first, _ in found] == [packets.PUBACK, packets.SUBACK, packets.PINGRESP]
    assert site.number("iotmq_mqtt_paused_connections") == 0


async def test_a_subscribe_that_no_broker_answers_ends_the_connection_that_waits_for_it(site: Site) -> None:
    site.gateway.takes_filters = None
    client = await site.connect("d", keep_alive_s=10)
    client.send(packets.encode_subscribe(3, [("a", 1)]), publish(1))
    await soon(lambda: site.number("iotmq_mqtt_paused_connections") == 1, "not read")
    await site.advance(limits.MQTT_ANSWER_TIMEOUT_S - 2)
    assert site.number("iotmq_mqtt_sessions") == 1
    site.clock.advance(12)
    assert await client.rest() == b""
    await site.gone("server_unavailable")
    site.gateway.attaching[0](True)
    assert site.gateway.handed == []


async def test_what_waits_behind_a_subscribe_is_left_in_the_kernel(site: Site) -> None:
    site.gateway.takes_filters = None
    client = await site.connect("d")
    client.send(packets.encode_subscribe(3, [("a", 1)]), *(publish(1, bytes(1_000)) for _ in range(4_000)))
    await soon(lambda: site.number("iotmq_mqtt_paused_connections") == 1, "not read")
    await (await site.connect("other")).ping()
    assert site.number("iotmq_mqtt_received_bytes_total") < 1_000_000
    assert site.gateway.handed == []


async def test_a_subscribe_waits_until_what_was_published_before_is_stored(site: Site) -> None:
    client, other = await site.connect("d"), await site.connect("other")
    client.send(publish(1), packets.encode_subscribe(3, [("a", 1)]))
    [handed] = await site.handed()
    assert await other.subscribe(("b", 1)) == [1], "who has published nothing does not wait"
    assert set(site.gateway.filters.values()) == {"b"}
    handed.answer(0, "")
    assert await client.puback() == 1
    assert await client.packet() == (packets.SUBACK << 4, b"\0\3\1")


async def test_those_who_wait_for_one_batch_subscribe_over_several_turns(site: Site) -> None:
    clients = [await site.connect(f"d{number}") for number in range(100)]
    first, *others = clients
    first.send(publish(1))
    [handed] = await site.handed()
    for number, client in enumerate(others):
        # All in the batch behind the one under way.
        client.send(publish(1), packets.encode_subscribe(3, [(f"a/{number}", 1)]))
    for client in others:
        await client.ping()
    site.gateway.automatic = 0
    handed.answer(0, "")
    counts = [0.0]
    async with asyncio.timeout(STOP_S):
        while counts[-1] < 99:
            await asyncio.sleep(0)
            counts.append(site.number("iotmq_mqtt_subscriptions"))
    # This task may see two turns as one.
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 16
    for client in others:
        found = sorted([await client.packet() for _ in range(2)])
        assert found == [(packets.PUBACK << 4, b"\0\1"), (packets.SUBACK << 4, b"\0\3\1")]


async def test_filters_the_broker_refuses_fail_and_leave_nothing_behind(site: Site) -> None:
    client = await site.connect("d")
    assert await client.subscribe(("known", 1)) == [1]
    site.gateway.takes_filters = False
    assert await client.subscribe(("new", 1), ("known", 0), packet_id=2) == [0x80, 0]
    assert sorted(site.gateway.filters.values()) == ["known"]
    assert site.number("iotmq_mqtt_subscriptions") == 1
    site.gateway.takes_filters = True
    assert await client.subscribe(("new", 1), packet_id=3) == [1]


@pytest.mark.parametrize("is_taken", [True, False])
@pytest.mark.parametrize("has_left", [False, True])
async def test_who_subscribes_a_filter_that_is_being_attached_waits_for_the_same_answer(
    site: Site, is_taken: bool, has_left: bool
) -> None:
    site.gateway.takes_filters = None
    one, two = await site.connect("one"), await site.connect("two")
    one.send(packets.encode_subscribe(3, [("a", 1)]))
    await one.ping()
    two.send(packets.encode_subscribe(4, [("a", 0), ("b", 1)]))
    await two.ping()
    [first, second] = site.gateway.attaching
    if has_left:
        one.abort()
        await site.gone("connection_lost")
    second(True)
    await two.ping()
    first(is_taken)
    assert await two.packet() == (packets.SUBACK << 4, b"\0\4\0\1" if is_taken else b"\0\4\x80\1")
    if not has_left:
        assert await one.packet() == (packets.SUBACK << 4, b"\0\3\1" if is_taken else b"\0\3\x80")
    assert set(site.gateway.filters.values()) == ({"a", "b"} if is_taken else {"b"})
    three = await site.connect("three")
    three.send(packets.encode_subscribe(5, [("a", 1)]))
    if not is_taken:
        await soon(lambda: len(site.gateway.attaching) == 3, "it is asked for again")
        site.gateway.attaching[2](True)
    assert await three.packet() == (packets.SUBACK << 4, b"\0\5\1")


async def test_those_who_wait_for_one_filter_are_answered_over_several_turns(site: Site) -> None:
    site.gateway.takes_filters = None
    clients = [await site.connect(f"d{number}") for number in range(40)]
    for client in clients:
        client.send(packets.encode_subscribe(3, [("a", 1)]))
        await client.ping()
    [attached] = site.gateway.attaching
    attached(False)
    late = await site.connect("late")
    late.send(packets.encode_subscribe(3, [("a", 1)]))
    for client in clients:
        assert await client.packet() == (packets.SUBACK << 4, b"\0\3\x80")
    await soon(lambda: len(site.gateway.attaching) == 2, "it is asked for again")
    site.gateway.attaching[1](True)
    assert await late.packet() == (packets.SUBACK << 4, b"\0\3\1")
    assert site.number("iotmq_mqtt_subscriptions") == 1


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_device_may_go_before_its_filters_are_attached(site: Site, is_taken: bool) -> None:
    site.gateway.takes_filters = None
    client = await site.connect("d")
    client.send(packets.encode_subscribe(3, [("a", 1)]))
    await client.ping()
    client.abort()
    await site.gone("connection_lost")
    site.gateway.attaching[0](is_taken)
    assert not site.gateway.filters
    assert site.number("iotmq_mqtt_subscriptions") == 0


async def test_subscriptions_at_their_limit_and_past_it() -> None:
    async with running(subscriptions_max=3) as site:
        client, other = await site.connect("d"), await site.connect("e")
        filters = [("a", 0), ("b", 1), ("c", 1), ("d", 0)]
        assert await client.subscribe(*filters) == [0, 1, 1, 0x80]
        assert await client.subscribe(("b", 0), ("e", 0), packet_id=2) == [0, 0x80]
        assert await other.subscribe(("e", 1)) == [1], "each session has its own"
        client.send(packets.encode_unsubscribe(3, ["a"]))
        assert await client.packet() == (packets.UNSUBACK << 4, b"\0\3")
        assert await client.subscribe(("e", 1), ("f", 1), packet_id=4) == [1, 0x80]
        assert site.number("iotmq_mqtt_subscriptions") == 4


async def test_filters_with_wildcards_have_levels_up_to_their_limit(site: Site) -> None:
    client = await site.connect("d")
    deepest = "/".join("+" * limits.MQTT_WILDCARD_LEVELS_MAX)
    plain = "/".join("a" * limits.MQTT_TOPIC_LEVELS_MAX)
    assert await client.subscribe((deepest, 1), (deepest + "/#", 1), (plain, 1)) == [1, 0x80, 1]
    assert site.number("iotmq_mqtt_subscriptions") == 2


async def test_ever_new_topics_of_a_device_are_looked_up_over_several_turns(site: Site) -> None:
    site.gateway.automatic = 0
    count = 10_000
    client, other = await site.connect("d"), await site.connect("e")
    messages = [packets.encode_publish(f"{number}", b"%d" % number, qos=0) for number in range(count)]
    with LoopTurns() as turns:
        client.send(*messages, publish(1, b"last"))
        await other.ping()
        assert await client.puback() == 1
    assert turns.longest_s < turn_s_max()
    payloads = [payload for handed in site.gateway.handed for payload in handed.payloads]
    assert payloads == [*(b"%d" % number for number in range(count)), b"last"]
    # Known ones need no turns of their own, and the device is read again.
    client.send(*messages[-1_000:], publish(2, b"again"))
    assert await client.puback() == 2
    await client.ping()


async def test_new_topics_of_a_device_that_has_left_are_not_lost(site: Site) -> None:
    site.gateway.automatic = 0
    count = 3_000
    client = await site.connect("d")
    client.send(*(packets.encode_publish(f"{number}", b"x", qos=0) for number in range(count)))
    client.close()
    await site.gone("connection_lost")
    await soon(lambda: sum(len(handed.payloads) for handed in site.gateway.handed) == count, "all came")


def test_very_many_filters_are_refused_at_once() -> None:
    names = [f"{number:0>1000}" for number in range(limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)]
    granted = _Granted([1] * len(names), dict.fromkeys(names, 1), dict.fromkeys(names[:7], 1))
    event = packets.Subscribe(1, tuple((f"{number:0>1000}", 1) for number in range(len(names))))
    began_s = time.thread_time()
    granted.take_back(event, set(names[1:]), 0x97)
    assert time.thread_time() - began_s < turn_s_max() / 2
    assert granted.codes == [1] + [0x97] * (len(names) - 1)
    assert list(granted.filters) == list(granted.retained) == names[:1]


async def test_shapes_of_filters_at_their_limit_and_past_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FILTER_SHAPES_MAX", 2)
    one, two = await site.connect("one"), await site.connect("two")
    assert await one.subscribe(("+/a", 1), ("b/+/#", 1), ("a", 1)) == [1, 1, 1]
    assert await two.subscribe(("+/b", 1), ("c/+/#", 1), ("+", 1), ("b/c/d", 0)) == [1, 1, 0x80, 0]
    assert site.number("iotmq_mqtt_filter_shapes") == 2
    assert site.number("iotmq_mqtt_filter_shapes_refused_total") == 1
    assert site.number("iotmq_mqtt_subscriptions") == 6
    assert "+" not in site.gateway.filters.values()
    for client, filters in ((one, ["+/a"]), (two, ["+/b"])):
        client.send(packets.encode_unsubscribe(2, filters))
        assert (await client.packet())[0] == packets.UNSUBACK << 4
    assert await two.subscribe(("+", 1), ("+/+", 1), packet_id=3) == [1, 0x80]
    two.abort()
    await site.gone("connection_lost")
    assert site.number("iotmq_mqtt_filter_shapes") == 1


def filter_of_shape(number: int, end: str = "x") -> str:
    """A filter whose wildcards are at other levels than those of each other number."""
    return "/".join("+" if number >> bit & 1 else "a" for bit in range(8)) + f"/{end}/#"


async def test_shapes_of_one_session_at_their_limit_and_past_it(site: Site) -> None:
    count = limits.MQTT_SHAPES_PER_SESSION_MAX
    one, two = await site.connect("one"), await site.connect("two")
    wanted = [(filter_of_shape(number), 1) for number in range(count)]
    assert await one.subscribe(*wanted[: count // 2]) == [1] * (count // 2)
    more = [*wanted[count // 2 :], (filter_of_shape(count), 1), ("a", 0), (filter_of_shape(1, "y"), 1)]
    assert await one.subscribe(*more) == [*[1] * (count // 2), 0x80, 0, 1]
    assert await one.subscribe((filter_of_shape(count), 1)) == [0x80]
    assert site.number("iotmq_mqtt_filter_shapes_refused_total") == 2
    # It is one session's limit, and what it has no more leaves room.
    assert await two.subscribe((filter_of_shape(count), 1)) == [1]
    one.send(packets.encode_unsubscribe(2, [filter_of_shape(1)]))
    assert (await one.packet())[0] == packets.UNSUBACK << 4
    assert await one.subscribe((filter_of_shape(count), 1)) == [0x80], "another filter has the shape"
    one.send(packets.encode_unsubscribe(2, [filter_of_shape(1, "y")]))
    assert (await one.packet())[0] == packets.UNSUBACK << 4
    assert await one.subscribe((filter_of_shape(count), 1), (filter_of_shape(count + 1), 1)) == [1, 0x80]
    one.abort()
    await site.gone("connection_lost")
    assert not site.front.parts.subscriptions.shapes._of_sessions


async def test_bytes_of_filters_of_one_session_at_their_limit_and_past_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = limits.MQTT_SHAPES_PER_SESSION_MAX
    monkeypatch.setattr(limits, "MQTT_FILTER_BYTES_PER_SESSION_MAX", 4 * (few + 2))
    one, two = await site.connect("one"), await site.connect("two")
    # As many as need not be counted, whatever they are.
    assert await one.subscribe(*((f"{number:04}", 0) for number in range(few))) == [0] * few
    assert await one.subscribe(("aaaa", 0), ("b\u00e4b", 0), ("c", 0)) == [0, 0, 0x80]
    assert await two.subscribe(("c", 0)) == [0]
    one.send(packets.encode_unsubscribe(2, ["aaaa"]))
    assert (await one.packet())[0] == packets.UNSUBACK << 4
    assert await one.subscribe(("ccccc", 0), ("cccc", 0), ("c", 0)) == [0x80, 0, 0x80]
    assert await one.subscribe(("cccc", 1)) == [1], "it is there"
    assert site.number("iotmq_mqtt_filter_shapes_refused_total") == 3


async def test_who_subscribes_what_the_server_says_of_itself_and_goes_is_forgotten(site: Site) -> None:
    site.gateway.takes_filters = None
    client = await site.connect("d")
    client.send(packets.encode_subscribe(3, [("$SYS/#", 1)]))
    await client.ping()
    client.abort()
    await site.gone("connection_lost")
    site.gateway.attaching[0](True)
    assert site.front.parts.sys_topics is not None
    site.front.parts.sys_topics.check_invariants()
    assert not site.front.parts.sys_topics._subscribers


async def test_a_subscriber_that_never_reads_does_not_stop_the_others() -> None:
    async with running(queued_bytes_max=64 * 1024) as site:
        deaf_socket = socket.socket()
        deaf_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf_socket.setblocking(False)
        await asyncio.get_running_loop().sock_connect(deaf_socket, ("127.0.0.1", site.front.port))
        deaf_socket.send(connect_packet("deaf") + packets.encode_subscribe(1, [("a", 0), ("b", 1)]))
        client = await site.connect("d")
        assert await client.subscribe(("a", 0)) == [0]
        await soon(lambda: site.number("iotmq_mqtt_subscriptions") == 3, "both subscribed")
        payload = bytes(60_000)
        for _ in range(300):
            site.gateway.push("a", payload, "a")
            assert await client.publish_received() == ("a", payload, 0)
        assert site.number("iotmq_mqtt_delivered_total") >= 301
        assert site.number("iotmq_mqtt_dropped_total") > 100
        await client.ping()
        deaf_socket.close()
        await site.gone("connection_lost")


async def test_a_slow_subscriber_gets_what_was_kept_for_it_when_it_reads_again() -> None:
    async with running(queued_bytes_max=1 << 20) as site:
        client = await site.connect("d")
        assert await client.subscribe(("a", 1)) == [1]
        for number in range(100):
            site.gateway.push("a", b"%d" % number + bytes(5_000), "a")
        for number in range(100):
            _, payload, _ = await client.publish_received()
            assert payload.startswith(b"%d\0" % number)
        assert site.number("iotmq_mqtt_dropped_total") == 0


# Time


async def test_a_connection_without_connect_has_its_time_and_no_more() -> None:
    async with running(connect_timeout_s=5) as site:
        silent, slow = await site.dial(), await site.dial()
        slow.send(connect_packet("d")[:5])
        quick = await site.connect("e")
        await soon(lambda: site.number("iotmq_mqtt_connections") == 3, "three connections")
        await site.advance(4)
        await quick.ping()
        slow.send(connect_packet("d")[5:6])
        site.clock.advance(3)
        assert await silent.rest() == await slow.rest() == b""
        await site.gone("connect_timeout", 2)
        site.clock.advance(1_000)
        await quick.ping()


async def test_keep_alive(site: Site) -> None:
    site.gateway.automatic = 0
    silent = await site.connect("silent", keep_alive_s=10, will=Will("w", b"late", 1, False))
    active = await site.connect("active", keep_alive_s=10)
    unlimited = await site.connect("unlimited", keep_alive_s=0)
    for _ in range(2):
        await site.advance(7)
        await active.ping()
    assert site.number("iotmq_mqtt_sessions") == 3
    site.clock.advance(3)
    assert await silent.rest() == b""
    await site.gone("keep_alive_timeout")
    [handed] = await site.handed()
    assert handed.payloads == [b"late"]
    await active.ping()
    await unlimited.ping()


async def test_a_device_never_has_less_than_one_and_a_half_keep_alive_times(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices are stamped once per tick, and a whole tick may lie between the stamp and their packet."""
    monkeypatch.setattr(server, "_TICK_S", 1.0)

    def tick() -> None:
        site.front._tick()
        assert site.front._ticker is not None
        site.front._ticker.cancel()

    client = await site.connect("d", keep_alive_s=2)
    tick()
    site.clock.advance(0.99)
    await client.ping()
    for seconds in (0.01, 1.0, 1.0, 0.9):
        site.clock.advance(seconds)
        tick()
    await client.ping()  # 2.91 s after the last one
    for _ in range(5):
        site.clock.advance(1.0)
        tick()
    assert await client.rest() == b""
    await site.gone("keep_alive_timeout")


async def test_a_tick_that_fails_is_counted_and_the_next_one_comes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One device that cannot be ended leaves the others to be ended, and time goes on."""
    monkeypatch.setattr(server, "_TICK_S", 1.0)
    failures = FAILURES.count("end of late devices")
    ended: list[str | None] = []
    end_late = site.front._end_late

    def fail_once(device: Any, now_s: float) -> None:
        ended.append(device.client_id)
        if len(ended) == 1:
            raise KeyError("nobody expected this")
        end_late(device, now_s)

    monkeypatch.setattr(site.front, "_end_late", fail_once)
    clients = [await site.connect(name, keep_alive_s=1) for name in "ab"]
    for _ in range(4):
        site.clock.advance(1.0)
        former = site.front._ticker
        site.front._tick()
        assert site.front._ticker is not former
    assert sorted(map(str, ended)) == ["a", "b"]
    assert FAILURES.count("end of late devices") == failures + 1
    assert await clients["ab".index(str(ended[1]))].rest() == b""


async def test_nobody_is_late_because_the_loop_was_busy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What devices sent meanwhile is read before they are judged."""
    client = await site.connect("d", keep_alive_s=10)
    await client.ping()
    monkeypatch.setattr(server, "_TICK_S", 1.0)
    client.send(packets.PINGREQ_PACKET)
    site.clock.advance(100)
    site.front._tick()
    assert await client.packet() == (packets.PINGRESP << 4, b"")
    site.front._tick()
    await client.ping()


async def test_the_longest_keep_alive_that_is_honoured() -> None:
    async with running(keep_alive_s_max=20) as site:
        clients = {
            seconds: await site.connect(f"d{seconds}", keep_alive_s=seconds) for seconds in (0, 20, 100)
        }
        brief = await site.connect("brief", keep_alive_s=10)
        await site.advance(16)
        assert await brief.rest() == b""
        for client in clients.values():
            await client.ping()
        site.clock.advance(31)
        for client in clients.values():
            assert await client.rest() == b""
        await site.gone("keep_alive_timeout", 4)


# Limits and bad input


async def test_connections_at_their_limit_and_past_it() -> None:
    async with running(connections_max=2) as site:
        one, two = await site.connect("one"), await site.connect("two")
        past = await site.dial()
        past.send(connect_packet("past"))
        assert await past.packet() == (packets.CONNACK << 4, b"\0\3")
        assert await past.rest() == b""
        await site.gone("server_busy")
        assert site.number("iotmq_mqtt_refused_total") == 1
        await one.ping()
        one.send(packets.DISCONNECT_PACKET)
        await site.gone("normal")
        await (await site.connect("three")).ping()
        await two.ping()


async def test_a_packet_past_the_limit_closes_its_connection_only() -> None:
    async with running(packet_bytes_max=1_000) as site:
        site.gateway.automatic = 0
        good, bad = await site.connect("good"), await site.connect("bad")
        fitting = publish(1, bytes(1_000 - 5))
        good.send(fitting)
        assert await good.puback() == 1
        bad.send(publish(1, bytes(1_000 - 4)))
        assert await bad.rest() == b""
        await site.gone("packet_too_large")
        await good.ping()
        assert site.number("iotmq_mqtt_connections") == 1


async def test_bad_input_is_one_line_in_the_log_and_a_number(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    good = await site.connect("good")
    with caplog.at_level(logging.INFO):
        for garbage in (b"GET / HTTP/1.1\r\n\r\n" + bytes(100), b"\0\0", b"\x10\xff\xff\xff\xff\x7f"):
            client = await site.dial()
            client.send(garbage)
            assert await client.rest() == b""
        await site.gone("protocol_error", 2)
        await site.gone("malformed_packet")
    lines = [record for record in caplog.records if record.name == "iotmq.mqtt"]
    assert len(lines) == 3
    assert all(record.exc_info is None for record in lines)
    assert not [record for record in caplog.records if record.name == "asyncio"]
    await good.ping()


# Start and stop


async def test_metrics_and_readiness_include_the_way_to_the_brokers(site: Site) -> None:
    assert site.front.not_ready_reason is None
    site.gateway.not_ready_reason = "no broker"
    assert site.front.not_ready_reason == "no broker"
    assert site.number("scripted_gateway_batches") == 0
    names = [(metric.name, metric.labels) for metric in site.front.metrics()]
    assert len(names) == len(set(names))
    for metric in site.front.metrics():
        assert metric.name.endswith("_total") == (metric.kind == "counter")
    await site.stop()
    assert site.front.not_ready_reason is not None


async def test_a_port_that_is_taken_is_an_error_and_leaves_no_gateway_behind(site: Site) -> None:
    second = Site(listen_port=site.front.port)
    with pytest.raises(OSError, match="in use"):
        await second.front.start()
    assert second.gateway.stopped == 1


async def stop_in_time(site: Site) -> None:
    async with asyncio.timeout(STOP_S):
        await site.stop()


async def test_a_stop_acknowledges_what_is_stored(site: Site) -> None:
    port = site.front.port
    client = await site.connect("d")
    client.send(publish(1))
    [handed] = await site.handed()
    stopping = asyncio.ensure_future(stop_in_time(site))
    await asyncio.sleep(0)
    handed.answer(0, "")
    await stopping
    assert await client.rest() == packets.encode_acknowledgement(packets.PUBACK, 1)
    assert site.gateway.stopped == 1
    with pytest.raises(ConnectionError):
        await RawClient.dial(port)


async def test_a_stop_does_not_wait_for_ever_and_acknowledges_nothing_that_is_not_stored(site: Site) -> None:
    client = await site.connect("d")
    client.send(publish(1))
    [handed] = await site.handed()
    handed.answer(ResponseCode.SERVICE_NOT_AVAILABLE, "")
    await stop_in_time(site)
    assert await client.rest() == b""


async def test_a_stop_ends_connections_in_every_state(site: Site) -> None:
    silent, half, taken_over = await site.dial(), await site.dial(), await site.connect("one")
    half.send(connect_packet("two")[:4])
    deaf = socket.create_connection(("127.0.0.1", site.front.port))
    deaf.send(connect_packet("three"))
    latter = await site.connect("one")
    await soon(lambda: site.number("iotmq_mqtt_sessions") == 2, "two sessions")
    await stop_in_time(site)
    for client in (silent, half, taken_over, latter):
        assert await client.rest() == b""
    deaf.close()
    assert site.number("iotmq_mqtt_connections") == 0


async def test_a_stop_does_not_lose_wills(site: Site) -> None:
    site.gateway.automatic = 0
    await site.connect("d", will=Will("w", b"stopping", 1, False))
    await stop_in_time(site)
    assert [handed.payloads for handed in site.gateway.handed] == [[b"stopping"]]


async def test_a_stop_ends_a_connection_that_never_reads() -> None:
    async with running(queued_bytes_max=16 << 20) as site:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        await asyncio.get_running_loop().sock_connect(deaf, ("127.0.0.1", site.front.port))
        deaf.send(connect_packet("deaf") + packets.encode_subscribe(1, [("a", 0)]))
        await soon(lambda: site.number("iotmq_mqtt_subscriptions") == 1, "subscribed")
        for _ in range(200):
            site.gateway.push("a", bytes(60_000), "a")
        await stop_in_time(site)
        assert site.number("iotmq_mqtt_connections") == 0
        deaf.close()


async def test_publishers_that_go_on_cannot_hold_up_a_stop(site: Site) -> None:
    site.gateway.automatic = 0
    clients = [await site.connect(f"d{number}") for number in range(3)]
    is_over = False

    async def flood(client: RawClient) -> None:
        while not is_over:
            client.send(packets.encode_publish("t", bytes(100)))
            await asyncio.sleep(0)

    floods = [asyncio.ensure_future(flood(client)) for client in clients]
    await site.handed()
    await stop_in_time(site)
    is_over = True
    await asyncio.gather(*floods)


async def test_what_a_bridge_says_about_itself_is_no_message(site: Site) -> None:
    topic = "$SYS/broker/connection/bridge/state"
    client = await site.connect("bridge", will=Will(topic, b"0", 1, True))
    client.send(packets.encode_publish(topic, b"1", qos=1, retain=True, packet_id=7))
    assert await client.packet() == (packets.PUBACK << 4, b"\0\7")
    client.send(packets.encode_publish("a", b"x"))
    await client.ping()
    assert site.number("iotmq_mqtt_bridge_connected", bridge="bridge") == 1
    client.abort()
    await site.gone("connection_lost")
    assert [message.payloads for message in await site.handed()] == [[b"x"]], "no will, and no state"
    assert site.number("iotmq_mqtt_bridge_connected", bridge="bridge") == 0
    assert site.number("iotmq_mqtt_bridge_notifications_total") == 0
    assert site.number("iotmq_mqtt_not_stored_total") == 0
    other = await site.connect("other")
    other.send(packets.encode_publish("$SYS/broker/uptime", b"1"))
    assert await other.rest() == b""


async def test_what_is_held_for_devices_that_are_not_connected_is_bounded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers have sizes that are powers of two: two of 64 KiB are at the limit, a few bytes more past it."""
    monkeypatch.setattr(limits, "MQTT_UNOPENED_BYTES_MAX", 2 * 65_536)
    part = b"\x10" + b"\xff\xff\x0f" + bytes(40_000)
    hoarders = [await site.dial() for _ in range(2)]
    for hoarder in hoarders:
        hoarder.send(part)
    held = "iotmq_mqtt_unopened_bytes"
    await soon(lambda: site.number(held) == 2 * 65_536, "both are held")
    late = await site.dial()
    late.send(part[:10])
    assert await late.rest() == bytes([packets.CONNACK << 4, 2, 0, 3])
    await site.gone("server_busy")
    client = await site.connect("d")
    assert site.number(held) == 2 * 65_536, "a CONNECT that comes whole needs nothing"
    hoarders[0].abort()
    await soon(lambda: site.number(held) == 65_536, "its buffer is free")
    slow = await site.dial()
    packet = connect_packet("slow")
    slow.send(packet[:10])
    await soon(lambda: site.number(held) > 65_536, "a part of a CONNECT")
    slow.send(packet[10:])
    assert (await slow.packet())[0] == packets.CONNACK << 4
    assert site.number(held) == 65_536
    await client.ping()
