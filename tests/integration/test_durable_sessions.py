"""Durable sessions end to end: devices, front ends and a broker over real sockets and files."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from mqtt5_device import Device5
from mqtt5_reading import read_publish5
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq import limits
from iotmq.broker.sessions.sessions import OWNER_GRACE_S
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_front.sessions import reports as session_reports

pytestmark = pytest.mark.uvloop


@pytest.fixture(params=["in the broker's process", "in processes of their own"])
async def site(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[MqttSite]:
    is_remote = request.param == "in processes of their own"
    made = await open_site(tmp_path, "one", "two", in_flight_max=4, is_remote=is_remote)
    yield made
    made.check_sessions()
    await made.close()


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def publisher(site: MqttSite, front: str = "two") -> SessionDevice:
    device = SessionDevice("publisher")
    await device.connect(site.fronts[front], clean_session=True)
    return device


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("returns_to", ["one", "two"])
async def test_what_came_while_a_device_was_away_is_sent_when_it_comes_back_anywhere(
    site: MqttSite, qos: int, returns_to: str
) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    assert not device.is_present
    assert await device.subscribe(("dev/d/#", qos)) == [qos]
    await sender.publish("dev/d/a", b"there", qos)
    await device.receives(1)
    await device.disconnect()
    for body in bodies(20):
        await sender.publish("dev/d/a", body, qos)
    await sender.publish("dev/other", b"not for it", qos)
    await device.connect(site.fronts[returns_to])
    assert device.is_present
    got = await device.receives(21)
    assert got == [("dev/d/a", body) for body in (b"there", *bodies(20))]
    await sender.publish("dev/d/b", b"and on", qos)
    assert (await device.receives(22))[-1] == ("dev/d/b", b"and on")


async def test_a_session_survives_the_broker(site: MqttSite) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("a", 1), ("b/+", 2))
    await device.drop()
    await sender.publish("a", b"1")
    await site.restart_broker()
    sender = await publisher(site)
    await sender.publish("b/x", b"2", 2)
    await device.connect(site.fronts["two"])
    assert sorted(await device.receives(2)) == [("a", b"1"), ("b/x", b"2")]


async def test_what_was_not_acknowledged_is_sent_again_and_what_was_is_not(site: MqttSite) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t", 1))
    device.is_acknowledging = False
    for body in bodies(4):
        await sender.publish("t", body)
    await device.receives(4)
    device.acknowledge(2)
    # They have arrived when what is subscribed behind them is answered.
    await device.subscribe(("never", 0))
    await device.drop()
    device.is_acknowledging = True
    device.got.clear()
    await device.connect(site.fronts["two"])
    assert await device.receives(2) == [("t", body) for body in bodies(2, 2)]
    assert device.duplicates == 2
    await sender.publish("t", b"next")
    assert (await device.receives(3))[2:] == [("t", b"next")]


@pytest.mark.parametrize("ends", ["politely", "with its front end", "with its front end and the broker"])
async def test_a_packet_id_of_an_unsubscribed_filter_is_released_before_it_means_something_else(
    site: MqttSite, ends: str
) -> None:
    """[MQTT-3.10.4-3]: the device has taken the message, and would drop another one of that packet id."""
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("gone", 2), ("kept", 2))
    device.is_acknowledging = False
    for body in bodies(3):
        await sender.publish("gone", body, 2)
    await device.receives(3)
    await device.unsubscribe("gone")
    if ends == "politely":
        await device.drop()
    else:
        await site.kill_front("one")
        await device.drop()
    if ends == "with its front end and the broker":
        await site.restart_broker()
        sender = await publisher(site)
    device.is_acknowledging = True
    for _ in range(2):
        await device.connect(site.fronts["two"])
        assert device.is_present
        for body in bodies(4):
            await sender.publish("kept", body, 2)
        got = await device.receives(7)
        assert got[3:] == [("kept", body) for body in bodies(4)]
        del device.got[3:]


async def test_what_was_acknowledged_behind_something_that_was_not_is_not_sent_again(site: MqttSite) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t", 2))
    device.is_acknowledging = False
    await sender.publish("t", b"unanswered")
    await device.receives(1)
    device.is_acknowledging = True
    await sender.publish("t", b"1")
    await sender.publish("t", b"2", 2)
    await device.receives(3)
    await soon(lambda: not device.taken, "the end of the exchange")
    await device.subscribe(("never", 0))
    for front in ("two", "one"):
        device.got.clear()
        device.is_acknowledging = False
        await device.connect(site.fronts[front])
        await sender.publish("t", front.encode())
        device.is_acknowledging = front == "one"
        assert await device.receives(2 if front == "two" else 3) == [
            ("t", body) for body in (b"unanswered", b"two", b"one")[: 2 if front == "two" else 3]
        ]


async def test_a_message_of_qos_2_is_received_once_wherever_its_connection_broke(site: MqttSite) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t", 2))
    device.is_acknowledging = False
    await sender.publish("t", b"1", 2)
    await device.receives(1)
    await device.connect(site.fronts["two"])  # PUBREC was never sent: PUBLISH comes again, with its packet id
    await soon(lambda: device.duplicates == 1, "PUBLISH again")
    device.acknowledge()
    await soon(lambda: not device.taken, "PUBREL")
    await device.connect(site.fronts["one"])
    device.is_acknowledging = True
    await sender.publish("t", b"2", 2)
    assert await device.receives(2) == [("t", b"1"), ("t", b"2")]


async def test_a_device_that_acknowledges_nothing_has_no_more_than_its_window(site: MqttSite) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t", 1))
    device.is_acknowledging = False
    for body in bodies(30):
        await sender.publish("t", body)
    await device.receives(4)
    await device.subscribe(("never", 0))
    assert len(device.got) == 4
    device.is_acknowledging = True
    device.acknowledge()
    assert await device.receives(30) == [("t", body) for body in bodies(30)]


async def test_a_clean_session_leaves_nothing_of_the_one_before(site: MqttSite) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t", 1))
    await device.disconnect()
    await device.connect(site.fronts["two"], clean_session=True)
    assert not device.is_present
    await sender.publish("t", b"1")
    await device.disconnect()
    await device.connect(site.fronts["one"])
    assert not device.is_present
    await device.subscribe(("t", 1))
    await sender.publish("t", b"2")
    assert await device.receives(1) == [("t", b"2")]


async def test_the_same_client_id_elsewhere_ends_the_first_connection_and_goes_on(site: MqttSite) -> None:
    sender = await publisher(site)
    first, second = SessionDevice("d"), SessionDevice("d")
    await first.connect(site.fronts["one"])
    await first.subscribe(("t", 1))
    first.is_acknowledging = False
    for body in bodies(6):
        await sender.publish("t", body)
    await first.receives(4)
    await second.connect(site.fronts["two"])
    await soon(lambda: not first.is_connected, "the end of the first connection")
    assert second.is_present
    assert await second.receives(6) == [("t", body) for body in bodies(6)]
    third = SessionDevice("d")
    await third.connect(site.fronts["two"], clean_session=True)
    await soon(lambda: not second.is_connected, "the end of the second connection")


async def test_a_dead_front_end_loses_nothing_and_its_wills_are_published(site: MqttSite) -> None:
    sender, watcher, device = await publisher(site), SessionDevice("w"), SessionDevice("d")
    await watcher.connect(site.fronts["two"])
    await watcher.subscribe(("will/+", 1))
    await device.connect(site.fronts["one"], will=Will("will/d", b"gone", 1, False))
    await device.subscribe(("t", 1))
    device.is_acknowledging = False
    for body in bodies(3):
        await sender.publish("t", body)
    await device.receives(3)
    await site.kill_front("one")
    await sender.publish("t", b"3")
    site.bench.pass_time(OWNER_GRACE_S + 0.1)
    assert await watcher.receives(1) == [("will/d", b"gone")]
    device.is_acknowledging = True
    device.got.clear()
    await device.connect(site.fronts["two"])
    assert device.is_present
    assert await device.receives(4) == [("t", body) for body in bodies(4)]


async def test_unsubscribed_filters_are_quiet_and_others_go_on(site: MqttSite) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("a", 1), ("b", 1), ("c", 0))
    await device.unsubscribe("a", "never")
    for topic in ("a", "b", "c"):
        await sender.publish(topic, topic.encode())
    assert sorted(await device.receives(2)) == [("b", b"b"), ("c", b"c")]
    await device.connect(site.fronts["two"])
    await sender.publish("a", b"a")
    await sender.publish("b", b"b")
    assert (await device.receives(3))[-1] == ("b", b"b")
    assert site.bench.broker.sessions.projection.queues.id_of("a") is None


async def test_the_broker_is_told_how_far_a_session_came_without_its_end(
    site: MqttSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_reports, "PROGRESS_INTERVAL_S", 0.01)
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t", 1))
    for body in bodies(5):
        await sender.publish("t", body)
    await device.receives(5)
    projection = site.bench.broker.sessions.projection
    queue_id = projection.queues.id_of("t")
    assert queue_id is not None
    await soon(
        lambda: projection.backlog(queue_id, projection.cursor(queue_id, "d")[0]) == 0,
        "progress at the broker",
    )
    await site.kill_front("one")
    device.got.clear()
    await device.connect(site.fronts["two"])
    await sender.publish("t", b"new")
    assert await device.receives(1) == [("t", b"new")]


@pytest.fixture
async def quiet_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MqttSite]:
    """One front end that does not tell progress by itself."""
    monkeypatch.setattr(session_reports, "PROGRESS_INTERVAL_S", 3600)
    made = await open_site(tmp_path, "one")
    yield made
    await made.close()


def sizes_told(site: MqttSite, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sessions each call tells the progress of, from now on."""
    sizes: list[int] = []
    progress = site.bench.broker.sessions.progress

    def counted(*arguments: Any) -> None:
        sizes.append(len(arguments[1]))
        progress(*arguments)

    monkeypatch.setattr(site.bench.broker.sessions, "progress", counted)
    return sizes


@pytest.mark.parametrize(("count", "told"), [(64, [64]), (65, [64, 1]), (150, [64, 64, 22])])
async def test_the_progress_of_many_sessions_is_told_over_several_turns(
    quiet_site: MqttSite, monkeypatch: pytest.MonkeyPatch, count: int, told: list[int]
) -> None:
    sender = await publisher(quiet_site, "one")
    devices = [SessionDevice(f"d{number}") for number in range(count)]
    for device in devices:
        await device.connect(quiet_site.fronts["one"])
        await device.subscribe((f"dev/{device.client_id}", 1))
    for device in devices:
        await sender.publish(f"dev/{device.client_id}", b"x")
    for device in devices:
        await device.receives(1)
    sizes = sizes_told(quiet_site, monkeypatch)
    parts = quiet_site.fronts["one"].mqtt.parts
    assert parts.durable is not None
    parts.durable.tell_progress()
    assert sizes == [64]
    await soon(lambda: sum(sizes) == count, "all are told")
    assert sizes == told


async def test_a_session_of_many_filters_that_comes_back_reads_some_of_them_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200
    site = await open_site(tmp_path, "one")
    loop = asyncio.get_running_loop()
    read: Counter[int] = Counter()
    turn, is_over = 0, False

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if not is_over:
            loop.call_soon(next_turn)

    read_queue = site.bench.broker.sessions.read_queue

    def counted(*arguments: Any) -> None:
        read[turn] += 1
        read_queue(*arguments)

    try:
        sender, device = await publisher(site, "one"), SessionDevice("d")
        await device.connect(site.fronts["one"])
        await device.subscribe(*((f"t/{number}", 1) for number in range(count)))
        await device.drop()
        # Nothing came for the first, which are read all the same.
        for number in range(count - 5, count):
            for body in bodies(30):
                await sender.publish(f"t/{number}", body)
        monkeypatch.setattr(site.bench.broker.sessions, "read_queue", counted)
        next_turn()
        await device.connect(site.fronts["one"])
        got = await device.receives(5 * 30)
        is_over = True
        assert max(read.values()) == 64
        for number in range(count - 5, count):
            assert [body for topic, body in got if topic == f"t/{number}"] == bodies(30)
        site.check_sessions()
    finally:
        await site.close()


@pytest.mark.parametrize(("count", "told"), [(256, [256]), (257, [256, 1])])
async def test_a_message_of_qos_2_for_very_many_sessions_waits_for_them_over_several_turns(
    quiet_site: MqttSite, monkeypatch: pytest.MonkeyPatch, count: int, told: list[int]
) -> None:
    sender = await publisher(quiet_site, "one")
    devices = [SessionDevice(f"d{number}") for number in range(count)]
    for device in devices:
        await device.connect(quiet_site.fronts["one"])
        device.is_acknowledging = False
        await device.subscribe(("all", 2))
    parts = quiet_site.fronts["one"].mqtt.parts
    kept = [device.session for device in parts.sessions.devices() if device.session is not None]
    await soon(lambda: not any(session.behind_count for session in kept), "all are up to date")
    sizes = sizes_told(quiet_site, monkeypatch)
    await sender.publish("all", b"x", 2)
    await soon(lambda: all(device.unanswered for device in devices), "all have it")
    assert sizes == told


async def test_many_devices_on_one_filter_cost_one_entry_a_message(site: MqttSite) -> None:
    sender = await publisher(site)
    devices = [SessionDevice(f"d{number}") for number in range(50)]
    for number, device in enumerate(devices):
        await device.connect(site.fronts["one" if number % 2 else "two"])
        await device.subscribe(("all/#", 1))
        if number % 5 == 0:
            await device.disconnect()
    for body in bodies(10):
        await sender.publish("all/x", body)
    for device in devices:
        if not device.is_connected:
            await device.connect(site.fronts["one"])
        assert await device.receives(10) == [("all/x", body) for body in bodies(10)]
    queues = site.bench.broker.sessions.projection.queues
    queue_id = queues.id_of("all/#")
    assert queue_id is not None
    assert queues.next_sequence(queue_id) == 10
    for device in devices:
        await device.drop()


@pytest.mark.parametrize("clean_session", [True, False])
async def test_retained_messages_come_with_the_flag_to_who_subscribes_later(
    site: MqttSite, clean_session: bool
) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    await device.connect(site.fronts["one"], clean_session=clean_session)
    await device.subscribe(("state/1", 1))
    for number in range(20):
        await sender.publish(f"state/{number}", b"old", is_retained=True)
        await sender.publish(f"state/{number}", b"%d" % number, is_retained=True)
    await sender.publish("state/3", b"", is_retained=True)
    assert await device.receives(2) == [("state/1", b"old"), ("state/1", b"1")]
    assert device.retained == 0, "subscribed before"
    device.got.clear()
    await device.subscribe(("state/+", 1))
    got = await device.receives(19)
    assert sorted(got) == sorted((f"state/{number}", b"%d" % number) for number in range(20) if number != 3)
    assert device.retained == 19
    await site.restart_broker()
    late = SessionDevice("late")
    await late.connect(site.fronts["two"], clean_session=clean_session)
    await late.subscribe(("state/7", 0), ("state/3", 1))
    assert await late.receives(1) == [("state/7", b"7")]
    assert late.retained == 1


@pytest.mark.parametrize("end", ["one", "two"])
async def test_the_packet_id_of_a_retained_message_is_given_to_no_other_before_its_release(
    site: MqttSite, end: str
) -> None:
    """A device that has seen a packet id of QoS 2 takes the next message with it for the same one."""
    sender, device = await publisher(site), SessionDevice("d")
    await sender.publish("state", b"retained", 2, is_retained=True)
    await device.connect(site.fronts["one"])
    device.is_acknowledging = False
    assert await device.subscribe(("state", 2), ("live", 2)) == [2, 2]
    assert await device.receives(1) == [("state", b"retained")]
    await device.drop()
    await sender.publish("live", b"1", 2)
    device.is_acknowledging = True
    await device.connect(site.fronts[end])
    await sender.publish("live", b"2", 2)
    assert (await device.receives(3))[1:] == [("live", b"1"), ("live", b"2")]
    await device.drop()


async def test_many_retained_messages_of_qos_2_come_to_a_kept_session(site: MqttSite) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    for number in range(50):
        await sender.publish(f"r/{number}", b"%d" % number, is_retained=True, qos=2)
    await device.connect(site.fronts["one"])
    assert await device.subscribe(("r/#", 2)) == [2]
    got = await device.receives(50)
    assert sorted(got) == sorted((f"r/{number}", b"%d" % number) for number in range(50))
    assert device.retained == 50
    await device.disconnect()


async def test_a_front_end_dies_with_a_retained_message_in_flight(site: MqttSite) -> None:
    sender, device = SessionDevice("sender"), SessionDevice("d")
    await sender.connect(site.fronts["two"])
    await sender.publish("state", b"retained", 2, is_retained=True)
    await device.connect(site.fronts["one"])
    device.is_acknowledging = False
    await device.subscribe(("state", 2), ("live", 2))
    await device.receives(1)
    await site.fronts["one"].kill()
    await sender.publish("live", b"1", 2)
    device.is_acknowledging = True
    await device.connect(site.fronts["two"])
    assert (await device.receives(2))[1:] == [("live", b"1")]
    await device.drop()


async def test_a_wide_filter_over_retained_messages_waits_for_a_slow_device(site: MqttSite) -> None:
    sender, device = await publisher(site), SessionDevice("d")
    for number in range(150):
        await sender.publish(f"r/{number}", b"x" * 100, is_retained=True)
    device.is_acknowledging = False
    await device.connect(site.fronts["one"], clean_session=True)
    await device.subscribe(("r/#", 1))
    await device.receives(4)
    await device.subscribe(("never", 0))
    assert len(device.got) == 4, "its window is full"
    device.is_acknowledging = True
    device.acknowledge()
    assert len({topic for topic, _ in await device.receives(150)}) == 150


async def acknowledge_all_but_the_first(device: SessionDevice) -> None:
    """Whatever comes, as long as the task lives."""
    while True:
        first, device.unanswered = device.unanswered[:1], device.unanswered[1:]
        device.acknowledge()
        device.unanswered = first + device.unanswered
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(("window", "rest"), [(1_000, 20_000), (4, 1_000)])
@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_device_gets_so_far_ahead_of_one_acknowledgement_that_does_not_come(
    tmp_path: Path, is_remote: bool, window: int, rest: int
) -> None:
    """A sliding window: what is done behind it is remembered, and bounded."""
    site = await open_site(tmp_path, "one", in_flight_max=window, is_remote=is_remote)
    reports: list[int] = []
    device = SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t", 1))
    durable = site.fronts["one"].mqtt.parts.durable
    sessions: Any = site.fronts["one"].sessions
    tell = sessions.progress

    def progress(changes: Any, done: Any) -> None:
        reports.extend(len(change.done) for change in changes)
        tell(changes, done)

    sessions.progress = progress
    device.is_acknowledging = False
    site.bench.publish("t", *bodies(limits.MQTT_FLIGHTS_MAX + 1))
    answering = asyncio.ensure_future(acknowledge_all_but_the_first(device))
    await device.receives(limits.MQTT_FLIGHTS_MAX)
    site.bench.publish("t", *bodies(rest, start=limits.MQTT_FLIGHTS_MAX + 1))
    await soon(lambda: len(device.unanswered) == 1, "all are acknowledged but the first")
    durable.tell_progress()
    await soon(lambda: reports[-1:] == [limits.MQTT_FLIGHTS_MAX - 1], "the report has what is done")
    assert len(device.got) == limits.MQTT_FLIGHTS_MAX, "and no more is sent"
    answering.cancel()
    device.is_acknowledging = True
    device.acknowledge()
    site.check_sessions()
    await device.receives(limits.MQTT_FLIGHTS_MAX + rest + 1)
    assert [body for _, body in device.got] == bodies(limits.MQTT_FLIGHTS_MAX + rest + 1)
    assert max(reports) < limits.MQTT_FLIGHTS_MAX
    await device.disconnect()
    await site.close()


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_resumed_session_is_sent_no_more_than_the_receive_maximum(site: MqttSite, qos: int) -> None:
    """[MQTT-3.3.4-9]: what is sent again counts, and comes first and in its order."""
    device = await Device5.connect(site, is_clean=False, expiry_s=60)
    await device.subscribe(("t", qos))
    site.bench.publish("t", *bodies(6))
    first = [read_publish5(await device.client.packet()) for _ in range(4)]
    device.client.abort()
    device = await Device5.connect(
        site, is_clean=False, front="two", properties=Properties(session_expiry_s=60, receive_max=2)
    )
    assert device.is_present
    got = []
    for number in range(6):
        if number < 2:
            got.append(read_publish5(await device.client.packet()))
            continue
        device.client.send(packets.PINGREQ_PACKET)
        assert await device.client.packet() == (packets.PINGRESP_PACKET[0], b""), "two are not answered"
        packet_id = got[number - 2].packet_id
        if qos == 1:
            device.client.send(packets.encode_acknowledgement(packets.PUBACK, packet_id))
        else:
            device.client.send(packets.encode_acknowledgement(packets.PUBREC, packet_id))
            assert (await device.client.packet())[0] >> 4 == packets.PUBREL
            device.client.send(packets.encode_acknowledgement(packets.PUBCOMP, packet_id))
        got.append(read_publish5(await device.client.packet()))
    assert [message.payload for message in got] == bodies(6)
    assert [message.packet_id for message in got[:4]] == [message.packet_id for message in first]
    device.client.abort()


async def test_a_window_of_qos_2_costs_one_round_trip_to_the_broker(site: MqttSite) -> None:
    """The packet ids of all that there is room for are told at once."""
    device = SessionDevice("d")
    await device.connect(site.fronts["one"])
    await device.subscribe(("t", 2))
    await device.disconnect()
    site.bench.publish("t", *bodies(4))
    told: list[int] = []
    sessions: Any = site.fronts["two"].sessions
    tell = sessions.progress

    def progress(changes: Any, done: Any) -> None:
        told.extend(len(change.in_flight) for change in changes if change.in_flight)
        tell(changes, done)

    sessions.progress = progress
    device.is_acknowledging = False
    await device.connect(site.fronts["two"])
    assert [body for _, body in await device.receives(4)] == bodies(4)
    assert told[0] == 4
    device.is_acknowledging = True
    device.acknowledge()
    await soon(lambda: not device.taken, "the end of the exchanges")
    await device.disconnect()
