"""Limits on real sockets: what is read late, what is sent late, and who is turned away."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import users_site
from eventually import until
from fake_gateway import RawClient, connect_packet
from front_site import Site, running, tick_quickly

from iotmq import limits
from iotmq.mqtt.bans import Ban
from iotmq.mqtt.codec import packets
from iotmq.mqtt.reason_codes import reason_text
from iotmq.mqtt_front.limiting import guard as guard_module
from iotmq.mqtt_front.limiting import overload
from iotmq.mqtt_front.settings.limiting import (
    FlappingSettings,
    LimitSettings,
    ListenerLimitSettings,
    OverloadSettings,
    PlaceLimitSettings,
    RateSettings,
    UserLimitSettings,
)
from iotmq.mqtt_front.settings.listeners import ListenerSettings

_OWN_PROCESS: Final = "IOTMQ_TEST_IN_OWN_PROCESS"


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_quickly(monkeypatch)


@asynccontextmanager
async def limited(**settings: Any) -> AsyncIterator[Site]:
    """A front end with these limits, whose broker takes everything at once."""
    async with running(device_limits=LimitSettings(**settings)) as site:
        site.gateway.automatic = 0
        yield site
        site.front.parts.guard.limiter.check_invariants()


def publish(number: int, qos: int = 0, size: int = 1) -> bytes:
    payload = str(number).encode().rjust(size, b".")
    return packets.encode_publish("t", payload, qos=qos, packet_id=number + 1 if qos else 0)


def published(site: Site) -> int:
    return int(site.number("iotmq_mqtt_published_total"))


async def pass_time(site: Site, seconds: float) -> None:
    """Time passes, and those that waited for tokens have been served."""
    site.clock.advance(seconds)
    tick = asyncio.Event()
    # Behind the tick of the wheel, which comes within 25 ms.
    asyncio.get_running_loop().call_later(0.06, tick.set)
    await tick.wait()


def waits(site: Site, limit: str) -> float:
    return site.number("iotmq_mqtt_limit_waits_total", limit=limit)


# From devices


@pytest.mark.parametrize("qos", [0, 1])
async def test_messages_past_the_burst_are_read_later_and_none_is_lost(
    qos: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited(client=RateSettings(messages_in_per_s=10, messages_in_burst=5)) as site:
        client = await site.connect("c")
        client.send(*(publish(number, qos) for number in range(12)))
        await until(lambda: published(site) == 5)
        await pass_time(site, 0.01)
        assert published(site) == 5
        assert waits(site, "client.messages_in_per_s") == 1
        assert site.number("iotmq_mqtt_paused_connections") == 1
        await pass_time(site, 0.5)
        await until(lambda: published(site) == 10)
        await pass_time(site, 0.5)
        await until(lambda: published(site) == 12)
        payloads = [payload for handed in site.gateway.handed for payload in handed.payloads]
        assert payloads == [str(number).encode() for number in range(12)]
        for number in range(12 if qos else 0):
            assert await client.packet() == (packets.PUBACK << 4, (number + 1).to_bytes(2, "big"))
    line = next(line for line in caplog.records if line.message == "a limit is reached")
    assert line.setting == "mqtt.device_limits.client.messages_in_per_s"  # type: ignore[attr-defined]
    assert line.client == "c"  # type: ignore[attr-defined]


async def test_at_the_limit_nothing_waits() -> None:
    async with limited(client=RateSettings(messages_in_per_s=10, messages_in_burst=5)) as site:
        client = await site.connect("c")
        for number in range(20):
            client.send(publish(number))
            await until(lambda count=number + 1: published(site) == count)  # type: ignore[misc]
            site.clock.advance(0.1)
        assert waits(site, "client.messages_in_per_s") <= 1


async def test_bytes_past_the_burst_are_read_later() -> None:
    async with limited(client=RateSettings(bytes_in_per_s=2_000, bytes_in_burst=4_000)) as site:
        client = await site.connect("c")
        client.send(*(publish(number, size=1_000) for number in range(20)))
        await until(lambda: waits(site, "client.bytes_in_per_s") == 1)
        before = published(site)
        assert 2 <= before <= 6
        await pass_time(site, 0.01)
        assert published(site) == before
        for _ in range(40):
            await pass_time(site, 0.5)
            if published(site) == 20:
                break
        assert published(site) == 20


async def test_a_device_that_is_held_may_leave_and_all_it_sent_counts() -> None:
    async with limited(client=RateSettings(messages_in_per_s=1, messages_in_burst=1)) as site:
        client = await site.connect("c")
        client.send(publish(0), publish(1))
        await until(lambda: waits(site, "client.messages_in_per_s") == 1)
        client.abort()
        # Nobody reads from it, so nobody sees it go until it is read again.
        for _ in range(3):
            await pass_time(site, 1)
        await until(lambda: site.number("iotmq_mqtt_connections") == 0)
        assert published(site) == 2


async def test_connections_of_an_address_share_its_tokens() -> None:
    async with limited(address=PlaceLimitSettings(messages_in_per_s=10, messages_in_burst=10)) as site:
        clients = [await site.connect(f"c{number}") for number in range(4)]
        for client in clients:
            client.send(*(publish(number) for number in range(10)))
        await until(lambda: waits(site, "address.messages_in_per_s") >= 1)
        await pass_time(site, 0.01)
        # Of each that had some, the message that found nothing left.
        assert 10 <= published(site) <= 14
        for _ in range(40):
            await pass_time(site, 0.25)
            if published(site) == 40:
                break
        assert published(site) == 40


async def test_a_client_that_comes_back_has_no_new_burst() -> None:
    async with limited(client=RateSettings(messages_in_per_s=1, messages_in_burst=5)) as site:
        client = await site.connect("c")
        client.send(*(publish(number) for number in range(4)))
        await until(lambda: published(site) == 4)
        client.abort()
        await until(lambda: site.number("iotmq_mqtt_connections") == 0)
        client = await site.connect("c")
        client.send(publish(9))
        await until(lambda: waits(site, "client.messages_in_per_s") >= 1)


# To devices


async def subscribed(site: Site, qos: int, client_id: str = "c") -> RawClient:
    client = await site.connect(client_id)
    client.send(packets.encode_subscribe(1, [("t", qos)]))
    assert (await client.packet())[0] == packets.SUBACK << 4
    return client


async def test_qos_0_past_the_limit_is_dropped_and_counted() -> None:
    async with limited(client=RateSettings(messages_out_per_s=10, messages_out_burst=5)) as site:
        client = await subscribed(site, 0)
        for number in range(12):
            site.gateway.push("t", str(number).encode(), "t")
        got = [(await client.publish_received())[1] for _ in range(5)]
        assert got == [b"0", b"1", b"2", b"3", b"4"]
        assert site.number("iotmq_mqtt_limit_dropped_total", scope="client") == 7
        assert waits(site, "client.messages_out_per_s") == 1
        await pass_time(site, 1)
        site.gateway.push("t", b"later", "t")
        assert (await client.publish_received())[1] == b"later"


async def test_qos_1_past_the_limit_waits_in_order() -> None:
    async with limited(client=RateSettings(messages_out_per_s=10, messages_out_burst=5)) as site:
        client = await subscribed(site, 1)
        for number in range(12):
            site.gateway.push("t", str(number).encode(), "t")
        got = [(await client.publish_received())[1] for _ in range(5)]
        await client.ping()
        for _ in range(40):
            await pass_time(site, 0.25)
            if site.number("iotmq_mqtt_sent_bytes_total") and len(got) >= 12:
                break
            if len(got) < 12:
                got.append((await client.publish_received())[1])
        assert got == [str(number).encode() for number in range(12)]
        assert site.number("iotmq_mqtt_limit_dropped_total") == 0


async def test_bytes_to_a_device_have_a_limit() -> None:
    async with limited(client=RateSettings(bytes_out_per_s=1_000, bytes_out_burst=1_000)) as site:
        client = await subscribed(site, 0)
        for _ in range(10):
            site.gateway.push("t", b"x" * 400, "t")
        for _ in range(3):
            await client.publish_received()
        assert site.number("iotmq_mqtt_limit_dropped_total", scope="client") == 7
        assert waits(site, "client.bytes_out_per_s") == 1


async def test_others_are_not_held_back_by_a_limited_subscriber() -> None:
    async with limited(client=RateSettings(messages_out_per_s=1, messages_out_burst=1)) as site:
        first, second = await subscribed(site, 0, "a"), await subscribed(site, 0, "b")
        for number in range(3):
            site.gateway.push("t", str(number).encode(), "t")
        assert (await first.publish_received())[1] == b"0"
        assert (await second.publish_received())[1] == b"0"


# Who may connect


async def is_closed(site: Site) -> bool:
    """Whether a new connection is closed before it has said anything."""
    client = await site.dial()
    client.send(connect_packet("late"))
    try:
        return await client.rest() == b""
    except ConnectionError:
        return True


async def test_connections_of_an_address_have_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    async with limited(address=PlaceLimitSettings(connections_max=2)) as site:
        first, second = await site.connect("a"), await site.connect("b")
        assert await is_closed(site)
        assert site.number("iotmq_mqtt_limit_refused_total", limit="address.connections_max") == 1
        await site.gone("quota_exceeded")
        first.abort()
        await until(lambda: site.number("iotmq_mqtt_connections") == 1)
        await site.connect("c")
        await second.ping()
    (line,) = [line for line in caplog.records if line.message == "a limit is reached"]
    assert line.setting == "mqtt.device_limits.address.connections_max"  # type: ignore[attr-defined]
    assert line.address == "127.0.0.1"  # type: ignore[attr-defined]


async def test_connections_of_a_listener_have_a_limit() -> None:
    async with limited(listener=PlaceLimitSettings(connections_max=1)) as site:
        client = await site.connect("a")
        assert await is_closed(site)
        await client.ping()
        assert site.number("iotmq_mqtt_limit_refused_total", limit="listener.connections_max") == 1


async def test_a_listener_has_limits_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    second = ListenerSettings(name="second", transport="tcp")
    own = ListenerLimitSettings(
        listener="second", connections_max=2, messages_in_per_s=1, messages_in_burst=1
    )
    device_limits = LimitSettings(listener=PlaceLimitSettings(connections_max=1), listeners=(own,))
    async with running(device_limits=device_limits, listeners=(second,)) as site:
        site.gateway.automatic = 0
        port = int(site.front.addresses["second"].rpartition(":")[2])
        first = await site.connect("a")
        assert await is_closed(site)
        clients = [await RawClient.connect(port, name) for name in ("b", "c")]
        late = await RawClient.dial(port)
        assert await late.rest() == b""
        assert site.number("iotmq_mqtt_limit_refused_total", limit="listener.connections_max") == 2
        # The other listener has no rate.
        first.send(*(publish(number, qos=1) for number in range(5)))
        for _ in range(5):
            assert (await first.packet())[0] == packets.PUBACK << 4
        clients[0].send(publish(0), publish(1))
        await until(lambda: waits(site, "listener.messages_in_per_s") == 1)
        site.front.parts.guard.limiter.check_invariants()
        clients[1].abort()
        await until(lambda: site.number("iotmq_mqtt_listener_connections", listener="second") == 1)
        site.front.parts.guard.limiter.check_invariants()
    lines = [vars(line) for line in caplog.records if line.message == "a limit is reached"]
    assert {(line["setting"], line["listener"]) for line in lines} == {
        ("mqtt.device_limits.listener.connections_max", "tcp"),
        ("mqtt.device_limits.listeners[0].connections_max", "second"),
        ("mqtt.device_limits.listeners[0].messages_in_per_s", "second"),
    }


@pytest.mark.parametrize("scope", ["address", "listener"])
async def test_connects_have_a_rate(scope: str) -> None:
    settings = PlaceLimitSettings(connects_per_s=10, connects_burst=3)
    async with limited(**{scope: settings}) as site:
        clients = [await site.connect(f"c{number}") for number in range(3)]
        assert await is_closed(site)
        assert site.number("iotmq_mqtt_limit_refused_total", limit=f"{scope}.connects_per_s") == 1
        await site.gone("connection_rate_exceeded")
        site.clock.advance(0.1)
        clients.append(await site.connect("later"))
        assert await is_closed(site)


async def test_a_client_that_flaps_is_banned_for_a_while() -> None:
    flapping = FlappingSettings(client_connects_max=2, window_s=60, ban_s=300)
    async with limited(flapping=flapping) as site:
        clients = [await site.connect("c") for _ in range(2)]
        client = await site.dial()
        client.send(connect_packet("c"))
        # 3.1.1 has one code for it: not authorized.
        assert await client.packet() == (packets.CONNACK << 4, b"\x00\x05")
        await site.connect("another")
        assert site.number("iotmq_mqtt_flapping_bans_total") == 1
        assert site.number("iotmq_mqtt_turned_away_total", cause="client") == 1
        # The ban ended what it had.
        await site.gone("administrative_action")
        assert await clients[1].rest() == b""
        site.clock.advance(301)
        await site.connect("c")


async def test_who_cannot_prove_a_client_id_has_nobody_banned(tmp_path: Path) -> None:
    """A CONNECT costs nothing and may name any client id: that of another device, too."""
    device_limits = {"flapping": {"client_connects_max": 2}}
    file = users_site.file_of_all(tmp_path)
    async with users_site.running(file, {"device_limits": device_limits}) as site:
        site.gateway.automatic = 0
        victim = await site.dial()
        victim.send(connect_packet("c", user_name="pump", password=b"pmup"))
        assert await victim.packet() == (packets.CONNACK << 4, b"\x00\x00")
        for _ in range(5):
            hostile = await site.dial()
            hostile.send(connect_packet("c", user_name="pump", password=b"guess"))
            assert (await hostile.packet())[1][1] == 4
        await victim.ping()
        assert site.number("iotmq_mqtt_flapping_bans_total") == 0
        for code in (0, 5):
            again = await site.dial()
            again.send(connect_packet("c", user_name="pump", password=b"pmup"))
            assert await again.packet() == (packets.CONNACK << 4, bytes([0, code]))
        assert site.number("iotmq_mqtt_flapping_bans_total") == 1


async def test_an_address_that_flaps_is_closed_at_the_door() -> None:
    async with limited(flapping=FlappingSettings(address_connects_max=3, ban_s=60)) as site:
        clients = [await site.connect(f"c{number}") for number in range(3)]
        assert await is_closed(site)
        assert await is_closed(site)
        assert site.number("iotmq_mqtt_turned_away_total", cause="address") == 2
        await site.gone("administrative_action", 3)
        assert await clients[0].rest() == b""


# Bans


@pytest.mark.parametrize(
    "ban",
    [
        Ban(kind="client", value="c"),
        Ban(kind="client-pattern", value="c.?"),
        Ban(kind="address", value="127.0.0.1"),
        Ban(kind="network", value="127.0.0.0/8"),
    ],
)
async def test_a_ban_ends_open_connections_and_refuses_new_ones(ban: Ban) -> None:
    async with limited() as site:
        clients = [await site.connect(name) for name in ("c", "other")]
        site.front.parts.guard.shared_bans.put(ban)
        count = 1 if ban.kind.startswith("client") else 2
        await site.gone("administrative_action", count)
        for client in clients[:count]:
            assert await client.rest() == b""
        assert site.number("iotmq_mqtt_banned_ended_total") == count
        if count == 2:
            assert await is_closed(site)
        else:
            client = await site.dial()
            client.send(connect_packet("c"))
            assert await client.packet() == (packets.CONNACK << 4, b"\x00\x05")
            await clients[1].ping()
        assert site.number("iotmq_mqtt_turned_away_total", cause=ban.kind) == 1
        site.front.parts.guard.bans.remove(ban.kind, ban.value)
        await site.connect("c")


async def test_a_device_of_mqtt_5_is_told_that_it_is_banned() -> None:
    async with limited() as site:
        site.front.parts.guard.shared_bans.put(Ban(kind="client", value="c", reason="it was rude"))
        client = await site.dial()
        client.send(connect_packet("c", protocol_level=5))
        first, body = await client.packet()
        assert first == packets.CONNACK << 4
        assert reason_text(body[1]) == "banned (0x8A)"
        assert b"it was rude" in body


async def test_a_banned_address_is_turned_away_before_it_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited() as site:
        client = await site.connect("c")
        seen: list[object] = []
        monkeypatch.setattr(site.front, "device_connected", seen.append)
        ban = Ban(kind="address", value="127.0.0.2")
        site.front.parts.guard.bans.put(ban)
        for count in (1, 2):
            with socket.socket() as banned:
                banned.bind(("127.0.0.2", 0))
                banned.setblocking(False)
                await asyncio.get_running_loop().sock_connect(banned, ("127.0.0.1", site.front.port))
                assert await asyncio.get_running_loop().sock_recv(banned, 100) == b""
            assert site.number("iotmq_mqtt_closed_total", reason="banned") == count
            assert site.number("iotmq_mqtt_accepted_total") == 1 + count
        assert not seen
        assert site.number("iotmq_mqtt_connections") == 1
        await client.ping()


async def test_a_door_that_fails_turns_one_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with limited() as site:
        client = await site.connect("c")

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as broken:
            broken.setattr(site.front.parts.guard, "refusal_of_place", fail)
            assert await (await site.dial()).rest() == b""
        assert "background work failed" in caplog.text
        await (await site.connect("d")).ping()
        await client.ping()


async def test_many_bans_are_looked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack brings many bans a second; one look is for all that came during the last."""
    monkeypatch.setattr(guard_module, "_LOOK_PAUSE_S", 0.01)
    async with limited() as site:
        guard = site.front.parts.guard
        looks, begin = 0, guard._front.devices

        def devices() -> Any:
            nonlocal looks
            looks += 1
            return begin()

        clients = [
            await site.connect(f"c{number}") for number in range(guard_module._LOOKED_AT_PER_TURN + 10)
        ]
        guard._front = guard._front._replace(devices=devices)
        guard.shared_bans.put(Ban(kind="client", value="c0"))
        await until(lambda: looks == 1)
        for number in range(1, 10):
            guard.shared_bans.put(Ban(kind="client", value=f"c{number}"))
        await site.gone("administrative_action", 10)
        assert looks == 2
        await clients[10].ping()


async def test_a_thousand_connections_are_looked_at_in_slices() -> None:
    async with limited() as site:
        guard = site.front.parts.guard
        clients = [await site.connect(f"c{number}") for number in range(200)]
        for number in range(0, 200, 2):
            guard.shared_bans.put(Ban(kind="client", value=f"c{number}"))
        await site.gone("administrative_action", 100)
        await clients[1].ping()
        assert site.number("iotmq_mqtt_connections") == 100


# Packets that do not come


async def test_a_packet_that_drips_is_closed_past_its_time() -> None:
    async with limited(packet_timeout_s=10, packet_bytes_per_s_min=100) as site:
        good, slow = await site.connect("good"), await site.connect("slow")
        slow.send(publish(0, size=1_000)[:500])
        await site.advance(0)
        for _ in range(14):
            slow.send(b"x")
            await site.advance(1)
            await good.ping()
        assert site.number("iotmq_mqtt_closed_total", reason="packet_timeout") == 0
        # Ten seconds, and five for 500 bytes.
        await site.advance(3)
        await site.gone("packet_timeout")
        await good.ping()


async def test_a_device_whose_packets_come_is_not_slow() -> None:
    async with limited(packet_timeout_s=10) as site:
        client = await site.connect("c")
        packet = publish(0, size=100)
        # Every piece ends in the middle of a packet.
        client.send(packet[:50])
        for _ in range(40):
            await site.advance(1)
            client.send(packet[50:] + packet[:50])
            await until(lambda: published(site) > 0)
        await site.advance(0)
        assert site.number("iotmq_mqtt_closed_total", reason="packet_timeout") == 0


async def test_large_packets_that_are_not_whole_have_a_limit_together() -> None:
    async with limited(unfinished_bytes_max=1024 * 1024) as site:
        clients = [await site.connect(f"c{number}") for number in range(9)]
        part = publish(0, size=200 * 1024)[: 100 * 1024]
        for number, client in enumerate(clients[:8]):
            client.send(part)
            held = (number + 1) * 128 * 1024
            await until(lambda held=held: site.number("iotmq_mqtt_unfinished_bytes") == held)  # type: ignore[misc]
        # At the limit nobody is closed, past it the one that sends more.
        clients[8].send(part)
        await site.gone("quota_exceeded")
        assert site.number("iotmq_mqtt_connections") == 8
        clients[0].abort()
        await until(lambda: site.number("iotmq_mqtt_unfinished_bytes") == 7 * 128 * 1024)


def test_the_default_of_unfinished_packets_is_that_of_the_limits() -> None:
    settings = LimitSettings()
    assert settings.unfinished_bytes_max == limits.MQTT_UNFINISHED_BYTES_MAX
    assert settings.packet_timeout_s == limits.MQTT_PACKET_TIMEOUT_S
    assert settings.packet_bytes_per_s_min == limits.MQTT_PACKET_BYTES_PER_S_MIN


# Overload


async def test_overload_refuses_devices_then_sheds_qos_0_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = OverloadSettings(
        refuse_loop_lag_ms=0, shed_loop_lag_ms=0, refuse_broker_latency_ms=400, shed_broker_latency_ms=1_200,
        calm_s=0,
    )  # fmt: skip
    async with running(device_limits=LimitSettings(overload=settings), sys_interval_s=0.01) as site:
        parts = site.front.parts
        client = await subscribed(site, 0)
        watching = await site.connect("watching")
        watching.send(packets.encode_subscribe(2, [("$SYS/broker/overload/#", 0)]))
        assert (await watching.packet())[0] == packets.SUBACK << 4
        assert site.front.not_ready_reason is None
        # A broker that does not answer.
        client.send(publish(0, qos=1))
        (handed,) = await site.handed()
        site.clock.advance(0.401)
        await until(lambda: parts.guard.overload.level == 1)
        assert "refuse_broker_latency_ms" in str(site.front.not_ready_reason)
        late = await site.dial()
        late.send(connect_packet("late"))
        assert await late.packet() == (packets.CONNACK << 4, b"\x00\x03")
        assert site.number("iotmq_mqtt_turned_away_total", cause="overload") == 1
        late = await site.dial()
        late.send(connect_packet("late", protocol_level=5))
        first, body = await late.packet()
        assert (first, body[1]) == (packets.CONNACK << 4, 0x89)
        assert site.number("iotmq_mqtt_overload_level") == 1
        client.send(publish(1), publish(1, qos=1))
        await until(lambda: published(site) == 3)

        site.clock.advance(0.8)
        await until(lambda: parts.guard.overload.level == 2)
        client.send(publish(2), publish(3, qos=1))
        await until(lambda: site.number("iotmq_mqtt_shed_published_total") == 1)
        await until(lambda: published(site) == 4)
        site.gateway.push("t", b"shed", "t")
        assert site.number("iotmq_mqtt_shed_deliveries_total") == 1
        site.clock.advance(1)
        told: dict[str, bytes] = {}
        while told.get("$SYS/broker/overload/messages/dropped") != b"2":
            topic, payload, _ = await watching.publish_received()
            told[topic] = payload
            site.clock.advance(0.1)
        assert told["$SYS/broker/overload/level"] == b"2"

        site.gateway.automatic = 0
        handed.answer(0, "")
        await until(lambda: parts.guard.overload.level == 0)
        assert site.front.not_ready_reason is None
        site.gateway.push("t", b"not shed", "t")
        await site.connect("welcome")
    lines = [line for line in caplog.records if line.name == "iotmq.mqtt" and "overload" in line.message]
    assert [line.levelno for line in lines] == [logging.WARNING] * len(lines)
    assert {line.setting for line in lines} >= {  # type: ignore[attr-defined]
        "mqtt.device_limits.overload.refuse_broker_latency_ms",
        "mqtt.device_limits.overload.shed_broker_latency_ms",
    }


async def test_memory_that_devices_use_up_is_an_overload_until_they_have_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Really used: subscribers that read nothing, and what is published for them.

    In a process of its own: what other tests have used is there to be used again, or keeps pages from being
    given back.
    """
    if _OWN_PROCESS not in os.environ:
        words = [*(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")]
        name = f"{__file__}::test_memory_that_devices_use_up_is_an_overload_until_they_have_gone"
        done = await asyncio.to_thread(
            subprocess.run,
            [*words, name],
            env={**os.environ, _OWN_PROCESS: "1"},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout
        return
    monkeypatch.setattr(overload, "MEASURE_S", 0.02)
    payload, before = bytes(64 * 1024), overload.memory_bytes()
    # Twice what is there without devices: a level is left at four fifths of its limit, and that has to be
    # well above what the process needs anyway, on every machine.
    settings = OverloadSettings(
        refuse_loop_lag_ms=0, shed_loop_lag_ms=0, refuse_broker_latency_ms=0,
        refuse_memory_bytes=2 * before, shed_memory_bytes=5 * before // 2, calm_s=0,
    )  # fmt: skip
    async with running(
        device_limits=LimitSettings(overload=settings), sys_interval_s=0.01, queued_bytes_max=16 << 20
    ) as site:
        site.gateway.automatic = 0
        guard = site.front.parts.guard
        watching = await site.connect("watching")
        watching.send(packets.encode_subscribe(2, [("$SYS/broker/overload/level", 0)]))
        assert (await watching.packet())[0] == packets.SUBACK << 4
        good = await subscribed(site, 0, "good")
        writer = await site.connect("writer")
        slow = [await subscribed(site, 1, f"slow{number}") for number in range(40)]

        async def fill_until(level: int) -> None:
            async with asyncio.timeout(30):
                while guard.overload.level < level:
                    site.gateway.push("t", payload, "t")
                    await asyncio.sleep(0)

        await fill_until(1)
        assert not site.front.parts.egress.sheds
        late = await site.dial()
        late.send(connect_packet("late"))
        assert await late.packet() == (packets.CONNACK << 4, b"\x00\x03")
        writer.send(publish(0))
        await until(lambda: published(site) == 1)
        await fill_until(2)
        writer.send(publish(1), publish(2, qos=1))
        await until(lambda: site.number("iotmq_mqtt_shed_published_total") == 1)
        await until(lambda: published(site) == 2)
        site.gateway.push("t", b"", "t")
        await until(lambda: site.number("iotmq_mqtt_shed_deliveries_total") > 0)
        assert site.number("iotmq_mqtt_overload_level") == 2
        told = b""
        while told != b"2":
            told = (await watching.publish_received())[1]
            site.clock.advance(0.1)
        for device in (good, *slow):
            device.abort()
        await until(lambda: guard.overload.level == 0)
        while told != b"0":
            site.clock.advance(0.1)
            told = (await watching.publish_received())[1]
        await site.connect("welcome")
    lines = [vars(line) for line in caplog.records if "overload" in line.message]
    assert [(line["message"], line["level"]) for line in lines if line["name"] == "iotmq.mqtt"][:2] == [
        ("overload", 1),
        ("overload", 2),
    ]
    assert lines[0]["setting"] == "mqtt.device_limits.overload.refuse_memory_bytes"
    assert lines[1]["setting"] == "mqtt.device_limits.overload.shed_memory_bytes"
    assert lines[-1]["message"] == "overload is over"


# Users


async def test_connections_of_a_user_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited(user=UserLimitSettings(connections_max=1)) as site:
        events = site.front.parts.authentication._events
        opens = opening_as("u", events.opens)
        monkeypatch.setattr(site.front.parts.authentication, "_events", replace(events, opens=opens))
        first = await site.connect("a")
        client = await site.dial()
        client.send(connect_packet("b"))
        assert await client.packet() == (packets.CONNACK << 4, b"\x00\x03")
        assert site.number("iotmq_mqtt_limit_refused_total", limit="user.connections_max") == 1
        await first.ping()


def opening_as(user: str, opens: Any) -> Any:
    def open_session(device: Any, connect: Any, client_id: str) -> None:
        device.user = user
        opens(device, connect, client_id)

    return open_session


async def test_hostile_sockets_do_not_stop_a_good_device() -> None:
    """Half open, silent, dripping and flooding ones beside one that publishes."""
    async with limited(
        client=RateSettings(messages_in_per_s=100, messages_in_burst=100),
        address=PlaceLimitSettings(connections_max=60),
    ) as site:
        good = await site.connect("good")
        sockets = []
        for number in range(50):
            hostile = socket.create_connection(("127.0.0.1", site.front.port))
            hostile.setblocking(False)
            sockets.append(hostile)
            if number % 3 == 0:
                hostile.send(connect_packet(f"h{number}") + publish(0) * 200)
            elif number % 3 == 1:
                hostile.send(connect_packet(f"h{number}")[:3])
        slowest_s = 0.0
        for number in range(20):
            began_s = time.monotonic()
            good.send(publish(number, qos=1))
            assert (await good.packet())[0] == packets.PUBACK << 4
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert slowest_s < 5
        for hostile in sockets:
            hostile.close()
        await until(lambda: site.number("iotmq_mqtt_connections") <= 20)
