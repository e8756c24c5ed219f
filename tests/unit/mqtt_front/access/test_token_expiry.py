"""Connections end with their token, and a token of before it extends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from chain_site import ChainSite, chained, reason_of, token_auth, token_connect
from eventually import soon
from fake_gateway import RawClient, connect_packet
from manual_clock import ManualClock
from mqtt5_oracle import read_properties
from scram_client import ScramClient, prove, scram_connect
from tokens import key_of
from users_site import file_of_all

from iotmq import limits
from iotmq.mqtt.codec import packets

AGAIN, CONTINUE = 0x19, 0x18
LEEWAY_S = 10.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def link(tmp_path: Path) -> dict[str, Any]:
    file = key_of("ES256").pem_file(tmp_path)
    return {
        "kind": "jwt",
        "name": "tokens",
        "algorithms": ["ES256"],
        "key_files": [file],
        "leeway_s": LEEWAY_S,
    }


def token(clock: ManualClock, life_s: float, **claims: Any) -> bytes:
    return key_of("ES256").token({"exp": clock.now_ms() / 1000 + life_s, **claims})


async def advance(site: ChainSite, clock: ManualClock, seconds: float) -> None:
    """Move the clock, and wait until the front end has looked at it."""
    clock.advance(seconds)
    await soon(lambda: site.front.parts.group.now_s > clock.monotonic_s(), "a tick", step_s=0.001)


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("keep_alive_s", [0, 3_600])
async def test_a_connection_ends_with_its_token(
    clock: ManualClock, link: dict[str, Any], level: int, keep_alive_s: int
) -> None:
    async with chained(link, clock=clock) as site:
        packet = connect_packet(
            "d", password=token(clock, 100), user_name="pump", protocol_level=level, keep_alive_s=keep_alive_s
        )
        client, code = await site.connect(packet)
        assert code == 0
        for _ in range(10):
            await advance(site, clock, 10.9)
            client.send(packets.PINGREQ_PACKET)
            assert await client.packet() == (packets.PINGRESP << 4, b"")
        await advance(site, clock, 3)
        if level == 5:
            assert await reason_of(client) == (0xA0, "the token by which it connected has ended")
        assert await client.rest() == b""
        assert site.number("iotmq_mqtt_closed_total", reason="maximum_connect_time") == 1


async def test_a_token_that_has_ended_is_not_accepted_although_it_was_remembered(
    clock: ManualClock, link: dict[str, Any]
) -> None:
    async with chained({**link, "cache_s": 3_600.0}, clock=clock) as site:
        shown = token(clock, 60)
        assert await site.code(None, shown, protocol_level=5) == 0
        await advance(site, clock, 60 + LEEWAY_S - 1)
        assert await site.code(None, shown, protocol_level=5, client_id="e") == 0
        assert await site.code(None, shown, protocol_level=5) == 0
        await advance(site, clock, 1)
        assert await site.code(None, shown, protocol_level=5) == 0x86


async def test_a_token_in_an_exchange(clock: ManualClock, link: dict[str, Any]) -> None:
    async with chained(link, clock=clock) as site:
        client = await RawClient.dial(site.front.port)
        client.send(token_connect(token(clock, 60)))
        first, body = await client.packet()
        assert (first >> 4, body[1]) == (packets.CONNACK, 0)
        assert read_properties(body[2:], packets.CONNACK)[1]["authentication_method"] == "iotmq-jwt"
        assert site.device().user == "pump"
        client.abort()
        client = await RawClient.dial(site.front.port)
        client.send(token_connect(None, "asked"))
        first, body = await client.packet()
        assert (first >> 4, body[0]) == (packets.AUTH, CONTINUE)
        client.send(token_auth(token(clock, 60), CONTINUE))
        first, body = await client.packet()
        assert (first >> 4, body[1]) == (packets.CONNACK, 0)
        client.abort()
        for wrong in (b"no token", token(clock, -60), key_of("ES256", "other").token()):
            client = await RawClient.dial(site.front.port)
            client.send(token_connect(wrong))
            first, body = await client.packet()
            assert (first >> 4, body[1]) == (packets.CONNACK, 0x87)
            assert await client.rest() == b""
        client = await RawClient.dial(site.front.port)
        client.send(token_connect(None))
        await client.packet()
        client.send(token_auth(None, CONTINUE))
        assert (await client.packet())[1][1] == 0x87


async def connected(site: ChainSite, shown: bytes, client_id: str = "d") -> RawClient:
    client, code = await site.connect(token_connect(shown, client_id))
    assert code == 0
    return client


async def test_another_token_extends_the_connection(clock: ManualClock, link: dict[str, Any]) -> None:
    async with chained(link, clock=clock) as site:
        client = await connected(site, token(clock, 100))
        for _ in range(5):
            await advance(site, clock, 90)
            client.send(token_auth(token(clock, 100, roles=["new"]), AGAIN))
            first, body = await client.packet()
            assert (first >> 4, body[0]) == (packets.AUTH, 0)
        assert site.device().identity.roles == ("new",)
        assert site.number("iotmq_mqtt_authenticated_total", how="again") == 5
        await advance(site, clock, 100 + LEEWAY_S + 2)
        assert (await reason_of(client))[0] == 0xA0


async def test_another_token_may_end_sooner(clock: ManualClock, link: dict[str, Any]) -> None:
    async with chained(link, clock=clock) as site:
        client = await connected(site, token(clock, 3_600))
        client.send(token_auth(token(clock, 5), AGAIN))
        assert (await client.packet())[1][0] == 0
        await advance(site, clock, 5 + LEEWAY_S + 2)
        assert (await reason_of(client))[0] == 0xA0


async def test_messages_flow_while_a_token_is_looked_at(clock: ManualClock, link: dict[str, Any]) -> None:
    async with chained(link, clock=clock) as site:
        client = await connected(site, token(clock, 100))
        client.send(token_auth(token(clock, 200), AGAIN) + packets.PINGREQ_PACKET)
        assert {(await client.packet())[0] >> 4 for _ in range(2)} == {packets.AUTH, packets.PINGRESP}


@pytest.mark.parametrize("what", ["expired", "forged", "another user", "nothing"])
async def test_a_token_that_proves_nothing_ends_the_connection(
    clock: ManualClock, link: dict[str, Any], what: str
) -> None:
    async with chained(link, clock=clock) as site:
        client = await connected(site, token(clock, 100))
        shown = {
            "expired": token(clock, -60),
            "forged": key_of("ES256", "other").token({"exp": clock.now_ms() / 1000 + 60}),
            "another user": token(clock, 60, sub="valve"),
            "nothing": None,
        }[what]
        client.send(token_auth(shown, AGAIN))
        if shown is None:
            assert (await client.packet())[1][0] == CONTINUE
            await advance(site, clock, limits.MQTT_CONNECT_TIMEOUT_S + 1)
        assert (await reason_of(client))[0] == 0x87
        assert await client.rest() == b""


async def test_a_token_makes_no_bridge_of_a_connection_and_ends_that_of_another(
    clock: ManualClock, link: dict[str, Any]
) -> None:
    async with chained(link, clock=clock) as site:
        client = await connected(site, token(clock, 100))
        device = site.device()
        device.identity = msgspec.structs.replace(device.identity, is_bridge=True)
        client.send(token_auth(token(clock, 100), AGAIN))
        assert (await reason_of(client))[0] == 0x87


async def test_a_device_that_connected_with_a_password_cannot_begin_an_exchange(
    clock: ManualClock, link: dict[str, Any]
) -> None:
    async with chained(link, clock=clock) as site:
        client, _ = await site.connect(
            connect_packet("d", user_name="pump", password=token(clock, 100), protocol_level=5)
        )
        client.send(token_auth(token(clock, 200), AGAIN))
        assert (await reason_of(client))[0] == 0x82


async def test_methods_are_those_of_the_listener_s_chain(
    clock: ManualClock, link: dict[str, Any], tmp_path: Path
) -> None:
    listeners = [
        {"name": "tokens-only", "transport": "tcp", "chain": ["tokens"]},
        {"name": "users-only", "transport": "tcp", "chain": ["users"]},
        {"name": "open", "transport": "tcp", "chain": ["anonymous"]},
    ]
    users = {"kind": "users", "name": "users"}
    file = str(file_of_all(tmp_path))
    async with chained(link, users, clock=clock, users_file=file, mqtt={"listeners": listeners}) as site:
        ports = {name: int(address.rpartition(":")[2]) for name, address in site.front.addresses.items()}

        async def codes(packet: bytes) -> dict[str, int]:
            found = {}
            for name, port in ports.items():
                client = await RawClient.dial(port)
                client.send(packet)
                first, body = await client.packet()
                found[name] = body[1] if first >> 4 == packets.CONNACK else first >> 4
                client.abort()
            return found

        bad = 0x8C
        assert await codes(token_connect(token(clock, 60))) == {
            "tcp": 0, "tokens-only": 0, "users-only": bad, "open": bad,
        }  # fmt: skip
        assert await codes(scram_connect(ScramClient("pump", "pmup"))) == {
            "tcp": packets.AUTH, "tokens-only": bad, "users-only": packets.AUTH, "open": bad,
        }  # fmt: skip
        client, scram = await RawClient.dial(ports["tcp"]), ScramClient("pump", "pmup")
        client.send(scram_connect(scram, "s"))
        assert (await prove(client, scram))[:2] == (packets.CONNACK, 0)
        assert site.device("s").identity.decided_by == "users"
        client.abort()


async def test_what_is_too_long_for_an_exchange(clock: ManualClock, link: dict[str, Any]) -> None:
    async with chained(link, clock=clock) as site:
        client = await RawClient.dial(site.front.port)
        client.send(token_connect(b"x" * (limits.MQTT_AUTHENTICATION_DATA_BYTES_MAX + 1)))
        assert (await client.packet())[1][1] == 0x97
