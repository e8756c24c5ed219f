"""Exchanges of AUTH packets by SCRAM-SHA-256, at CONNECT and again, over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from scram_client import AGAIN, METHOD, ScramClient, answer, auth, prove, scram_connect
from users_site import REFUSED, USERS, WAY, Site, line_of, running

from iotmq import limits
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt_front.access.users_file import write_users


async def connected(site: Site, user: str = "pump") -> tuple[RawClient, ScramClient]:
    client, scram = await site.dial(), ScramClient(user, user[::-1])
    client.send(scram_connect(scram))
    kind, code, properties = await prove(client, scram)
    assert (kind, code) == (packets.CONNACK, 0)
    assert scram.is_server(properties["authentication_data"])
    return client, scram


@pytest.mark.parametrize("user", USERS)
async def test_an_exchange_by_scram(site: Site, user: str) -> None:
    client, _ = await connected(site, user)
    await client.ping()
    assert [device.user for device in site.devices] == [user]
    assert site.number(WAY, how="exchange") == 1
    assert site.number("iotmq_mqtt_password_checks_total") == 0, "nothing is hashed"


async def test_a_connect_without_data_is_asked_for_it(site: Site) -> None:
    client, scram = await site.dial(), ScramClient("pump", "pmup")
    client.send(scram_connect(None))
    assert await answer(client) == (packets.AUTH, 0x18, {"authentication_method": METHOD})
    client.send(auth(scram.first()))
    assert (await prove(client, scram))[:2] == (packets.CONNACK, 0)
    client = await site.dial()
    client.send(scram_connect(None))
    await answer(client)
    client.send(auth(None))
    assert (await answer(client))[:2] == (packets.CONNACK, 0x87)


@pytest.mark.parametrize(("user", "password"), [("pump", "pump"), ("nobody", "pmup"), ("pump", "")])
async def test_an_exchange_that_proves_nothing_is_refused_after_its_last_step(
    site: Site, user: str, password: str
) -> None:
    client, scram = await site.dial(), ScramClient(user, password)
    client.send(scram_connect(scram))
    assert (await prove(client, scram))[:2] == (packets.CONNACK, 0x87)
    assert await client.rest() == b""
    assert site.number(REFUSED, cause="exchange") == 1
    assert site.number("iotmq_mqtt_sessions") == 0


@pytest.mark.parametrize("flag", ["p=tls-unique,,", "n,a=other,"])
async def test_what_scram_offers_and_we_do_not_is_refused_at_once(site: Site, flag: str) -> None:
    scram = ScramClient("pump", "pmup", flag=flag)
    kind, body = await site.answer(scram_connect(scram))
    assert (kind >> 4, body[1]) == (packets.CONNACK, 0x87)


async def test_methods_that_are_not_there(site: Site) -> None:
    properties = Properties(authentication_method="SCRAM-SHA-1", authentication_data=b"n,,n=pump,r=x")
    _, body = await site.answer(connect_packet("d", protocol_level=5, properties=properties))
    assert body[1] == 0x8C


async def test_a_will_of_a_device_that_proves_nothing_is_none(path: Path) -> None:
    async with running(path) as site:
        site.gateway.automatic = 0
        will = Will("pump/gone", b"", 0, False)
        client, scram = await site.dial(), ScramClient("pump", "wrong")
        client.send(scram_connect(scram, will=will._replace(properties=NO_PROPERTIES)))
        assert (await prove(client, scram))[:2] == (packets.CONNACK, 0x87)
        assert await client.rest() == b""
        assert await site.code("pump", b"wrong", will=will) == 4
        client = await RawClient.connect(site.front.port, "e", user_name="pump", password=b"pmup", will=will)
        client.abort()
        await soon(lambda: site.gateway.handed, "the will of one who may")
        assert sum(len(handed.messages) for handed in site.gateway.handed) == 1


async def test_a_client_that_does_not_answer_has_the_time_of_a_connect(site: Site) -> None:
    client = await site.dial()
    client.send(scram_connect(ScramClient("pump", "pmup")))
    await client.packet()
    site.clock.advance(limits.MQTT_CONNECT_TIMEOUT_S + 1)
    assert (await answer(client))[:2] == (packets.CONNACK, 0x80)
    await soon(lambda: site.number("iotmq_mqtt_closed_total", reason="connect_timeout") == 1, "closed")
    assert not site.front.parts.authentication._running


async def test_what_is_no_auth_ends_the_exchange(site: Site) -> None:
    client = await site.dial()
    client.send(scram_connect(ScramClient("pump", "pmup")))
    await client.packet()
    client.send(packets.PINGREQ_PACKET)
    assert (await answer(client))[:2] == (packets.CONNACK, 0x82)
    assert await client.rest() == b""
    await soon(lambda: site.number("iotmq_mqtt_connections") == 0, "gone")
    assert not site.front.parts.authentication._running


async def test_re_authentication_with_traffic_between_its_packets(site: Site) -> None:
    client, _ = await connected(site)
    for _ in range(3):
        scram = ScramClient("pump", "pmup")
        client.send(auth(scram.first(), AGAIN) + packets.PINGREQ_PACKET)
        assert await client.packet() == (packets.PINGRESP << 4, b"")
        kind, code, properties = await answer(client)
        assert (kind, code) == (packets.AUTH, 0x18)
        client.send(packets.PINGREQ_PACKET + auth(scram.final(properties["authentication_data"])))
        assert await client.packet() == (packets.PINGRESP << 4, b"")
        kind, code, properties = await answer(client)
        assert (kind, code) == (packets.AUTH, 0)
        assert scram.is_server(properties["authentication_data"])
    assert site.number(WAY, how="again") == 3


@pytest.mark.parametrize(("user", "password"), [("pump", "wrong"), ("nobody", "x"), ("valve", "evlav")])
async def test_re_authentication_that_fails_or_is_another_user_s(
    site: Site, user: str, password: str
) -> None:
    client, _ = await connected(site)
    scram = ScramClient(user, password)
    client.send(auth(scram.first(), AGAIN))
    assert (await prove(client, scram))[:2] == (packets.DISCONNECT, 0x87)
    assert await client.rest() == b""


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (auth(b"x"), 0x82),
        (auth(b"x", AGAIN, "SCRAM-SHA-1"), 0x82),
        (auth(b"x", AGAIN), 0x87),
        (auth(b"x" * (limits.MQTT_AUTHENTICATION_DATA_BYTES_MAX + 1), AGAIN), 0x97),
    ],
)
async def test_auth_on_a_live_connection_that_is_wrong(site: Site, packet: bytes, code: int) -> None:
    client, _ = await connected(site)
    client.send(packet)
    assert (await answer(client))[:2] == (packets.DISCONNECT, code)


async def test_re_authentication_may_not_take_longer_than_a_connect(site: Site) -> None:
    client, _ = await connected(site)
    client.send(auth(ScramClient("pump", "pmup").first(), AGAIN))
    await client.packet()
    await client.ping()
    site.clock.advance(limits.MQTT_CONNECT_TIMEOUT_S + 1)
    assert (await answer(client))[:2] == (packets.DISCONNECT, 0x87)
    assert site.number(REFUSED, cause="timeout") == 1


async def test_a_user_who_was_removed_cannot_authenticate_again(site: Site, path: Path) -> None:
    client, _ = await connected(site)
    scram = ScramClient("pump", "pmup")
    client.send(auth(scram.first(), AGAIN))
    kind, _, properties = await answer(client)
    assert kind == packets.AUTH
    write_users(path, line_of("valve").encode())
    await site.users.reload()
    client.send(auth(scram.final(properties["authentication_data"])))
    assert (await answer(client))[:2] == (packets.DISCONNECT, 0x87)


async def test_names_without_a_user_are_asked_what_users_are_asked(path: Path) -> None:
    """The same salt each time, also at another front end with the same secret, and iterations as usual."""
    write_users(path, "".join(line.replace("$4096:", "$5000:") for line in map(line_of, USERS)).encode())

    async def asked(site: Site, user: str) -> str:
        client, scram = await site.dial(), ScramClient(user, "x")
        client.send(scram_connect(scram))
        properties = (await answer(client))[2]
        return properties["authentication_data"].decode().partition(",")[2]

    questions = []
    for _ in range(2):
        async with running(path, unknown_users_secret="of the fleet") as site:
            questions += [await asked(site, "nobody"), await asked(site, "nobody")]
            known = await asked(site, "pump")
            assert await asked(site, "someone") not in questions
    assert len(set(questions)) == 1
    assert len(questions[0]) == len(known)
    assert questions[0].endswith(",i=5000")
    assert known.endswith(",i=5000")
