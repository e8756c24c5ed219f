"""Devices connect by plug-ins and looked-up users, on real sockets."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from amqtt_plugins import Listening, released
from chain_site import chained
from eventually import soon
from fake_gateway import connect_packet

from iotmq.errors import ConfigError
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_front.access.scram import make_verifier
from iotmq.mqtt_front.plugins.host import PluginStartError

pytestmark = pytest.mark.uvloop

LINK = {"kind": "amqtt", "name": "plug-ins"}


@pytest.fixture(autouse=True)
def told() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    Listening.told.clear()
    yield Listening.told
    Listening.told.clear()
    released.clear()


def plugins(*entries: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Whatever plug-ins have no opinion about is allowed."""
    return {
        "plugins": {"amqtt": list(entries), **settings},
        "permissions": {"without_rules": "everything"},
    }


def scripted(**settings: Any) -> dict[str, Any]:
    return {"class_path": "amqtt_plugins.Scripted", **settings}


async def test_a_plugin_decides_who_may_connect() -> None:
    async with chained(LINK, mqtt=plugins(scripted(timeout_s=0.1))) as site:
        assert await site.code("pump", b"yes") == 0
        assert await site.code("pump", b"no") == 4
        assert await site.code("pump", b"none") == 4, "at the end of the chain"
        assert await site.code("pump", b"fail") == 3
        assert await site.code("pump", b"sleep") == 3
        assert await site.code() == 5
        asked = {
            name: site.number("iotmq_mqtt_plugin_answers_total", answer=name)
            for name in ("yes", "no", "late")
        }
        assert asked == {"yes": 1, "no": 1, "late": 1}
        assert site.device().identity.attributes == {"seen-by": "Scripted"}


async def test_no_opinion_of_plugins_is_for_the_next_link(tmp_path: Path) -> None:
    file = tmp_path / "users.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE users (name TEXT, password_hash TEXT, roles TEXT)")
        kept = str(make_verifier(b"none", iterations=4_096))
        database.execute("INSERT INTO users VALUES ('pump', ?, 'meter')", (kept,))
    database.close()
    sql = {
        "kind": "sql",
        "name": "database",
        "url": f"sqlite+aiosqlite:///{file}",
        "statement": "SELECT password_hash, roles FROM users WHERE name = :user_name",
    }
    async with chained(LINK, sql, mqtt=plugins(scripted())) as site:
        assert await site.code("pump", b"none") == 0
        assert site.device().identity.roles == ("meter",)
        assert site.device().identity.decided_by == "database"
        assert await site.code("valve", b"none") == 4


@pytest.mark.parametrize(("asked_for", "user"), [(":client_id", None), (":user_name", "pump")])
async def test_a_user_name_that_the_statement_does_not_ask_for_is_none(
    tmp_path: Path, asked_for: str, user: str | None
) -> None:
    """Else a device that proves its client id could have the name of any user."""
    file = tmp_path / "users.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE devices (name TEXT, password_hash TEXT)")
        kept = str(make_verifier(b"x", iterations=4_096))
        database.execute("INSERT INTO devices VALUES (?, ?)", ("pump" if user else "d", kept))
    database.close()
    sql = {
        "kind": "sql",
        "name": "database",
        "url": f"sqlite+aiosqlite:///{file}",
        "statement": f"SELECT password_hash FROM devices WHERE name = {asked_for}",
    }
    async with chained(sql) as site:
        assert await site.code("pump", b"x") == 0
        assert site.device().user == user


async def test_a_name_that_nobody_has_looked_at_chooses_no_topics() -> None:
    """Else who calls itself pump would get what is pump's without a right to it."""
    entry = {"class_path": "amqtt.plugins.authentication.AnonymousAuthPlugin"}
    automatic = {"auto_subscriptions": [{"filter": "of/%u/#"}, {"filter": "all"}]}
    async with chained(LINK, mqtt=plugins(entry) | automatic) as site:
        gateway = site.front._gateway
        assert await site.code("pump", b"x") == 0
        await soon(lambda: gateway.filters, "its subscriptions")  # type: ignore[attr-defined]
        assert list(gateway.filters.values()) == ["all"]  # type: ignore[attr-defined]


async def test_a_plugin_that_blocks_does_not_hold_up_devices() -> None:
    """Twenty devices ask it, and it does not answer; others publish and are acknowledged."""
    entries = [scripted(options={"seconds": 60.0}, timeout_s=60.0, failures_max=0), scripted(name="other")]
    chain = [
        {**LINK, "when_user": "slow", "plugins": ["Scripted"]},
        {**LINK, "name": "quick", "plugins": ["other"]},
    ]
    async with chained(*chain, mqtt=plugins(*entries)) as site:
        site.front._gateway.automatic = 0  # type: ignore[attr-defined]
        device, code = await site.connect(connect_packet("d", user_name="pump", password=b"yes"))
        assert code == 0
        asking = [
            asyncio.ensure_future(site.code("slow", b"block", client_id=f"slow-{number}"))
            for number in range(20)
        ]
        await soon(lambda: site.number("iotmq_mqtt_plugin_waiting", plugin="Scripted") == 20, "all ask")
        for number in range(1, 101):
            device.send(packets.encode_publish("a", b"x", qos=1, retain=False, packet_id=number))
            first, _ = await device.packet()
            assert first == packets.PUBACK << 4
            if not number % 20:
                assert await site.code("pump", b"yes", client_id=f"new-{number}") == 0
        assert site.number("iotmq_mqtt_plugin_waiting", plugin="Scripted") == 20
        released.set()
        assert set(await asyncio.gather(*asking)) == {0}


async def test_plugins_hear_of_devices_and_publish(told: list[tuple[str, dict[str, Any]]]) -> None:
    entries = [scripted(), {"class_path": "amqtt_plugins.Listening"}]
    async with chained(LINK, mqtt=plugins(*entries)) as site:
        device, code = await site.connect(connect_packet("d", user_name="pump", password=b"yes"))
        assert code == 0
        device.send(packets.encode_subscribe(1, [("publish/that", 1), ("$share/", 0)]))
        assert (await device.packet())[0] == packets.SUBACK << 4
        gateway: Any = site.front._gateway
        await soon(lambda: gateway.handed, "the plug-in publishes")
        (message,) = gateway.handed[0].messages
        assert (message.topic, message.payload) == ("from/plugin", b"hello")
        gateway.handed[0].answer(0, "")
        device.send(packets.encode_unsubscribe(2, ["publish/that"]))
        assert (await device.packet())[0] == packets.UNSUBACK << 4
        assert site.number("iotmq_mqtt_plugin_sessions") == 1
        device.abort()
        await soon(lambda: told[-1][0] == "disconnected", "it hears of the end")
        assert site.number("iotmq_mqtt_plugin_sessions") == 0
    names = [name for name, _ in told]
    assert [name for name in names if "s" in name and "start" not in name and "shutdown" not in name][:4] == [
        "subscribed",
        "unsubscribed",
        "disconnected",
        "close",
    ]
    assert names.index("connected") < names.index("subscribed")
    assert told[names.index("subscribed")][1] == {"client_id": "d", "topic": "publish/that", "qos": 1}
    session = told[names.index("connected")][1]["session"]
    assert (session.username, session.password, session.transitions.state) == ("pump", None, "disconnected")


async def test_plugins_do_not_hear_of_devices_that_are_refused(
    told: list[tuple[str, dict[str, Any]]],
) -> None:
    """A device that may not have its will takes neither the session nor the place of the one before it."""
    entries = [
        scripted(),
        {"class_path": "amqtt_plugins.Listening"},
        {"class_path": "amqtt_plugins.ScriptedTopics"},
    ]
    async with chained(LINK, mqtt=plugins(*entries)) as site:
        device, code = await site.connect(connect_packet("d", user_name="pump", password=b"yes"))
        assert code == 0
        # Until then, since a newcomer is what plug-ins find under the client id while it is asked about.
        await soon(lambda: told[-1][0] == "connected", "it hears of the first one")
        assert await site.code("pump", b"yes", will=Will("no/a", b"", 0, 0)) == 5
        assert await site.code("valve", b"yes", client_id="e", will=Will("no/a", b"", 0, 0)) == 5
        await soon(lambda: site.number("iotmq_mqtt_plugin_sessions") == 1, "those who were refused are gone")
        device.send(packets.encode_subscribe(1, [("yes/a", 0)]))
        assert (await device.packet())[0] == packets.SUBACK << 4
        await soon(lambda: told[-1][0] == "subscribed", "it hears of the one that is there")
    heard = [
        (name, words["client_id"]) for name, words in told if "connected" in name or name == "subscribed"
    ]
    assert heard[:2] == [("connected", "d"), ("subscribed", "d")]
    assert "e" not in dict(map(reversed, heard))


async def refused(*chain: dict[str, Any], mqtt: dict[str, Any]) -> str:
    with pytest.raises((ConfigError, PluginStartError)) as caught:
        async with chained(*chain, mqtt=mqtt):
            pass
    return str(caught.value)


async def test_plugins_that_cannot_be_used_stop_the_start() -> None:
    assert "there is none" in await refused(LINK, mqtt={})
    assert "names x" in await refused({**LINK, "plugins": ["x"]}, mqtt=plugins(scripted()))
    assert "two plug-ins" in await refused(LINK, mqtt=plugins(scripted(), scripted()))
    fails = {"class_path": "amqtt_plugins.DoesNotStart"}
    assert "no service there" in await refused(LINK, mqtt=plugins(fails))


async def test_a_plugin_that_nobody_asks_stops_the_start() -> None:
    """Whoever configured it believes that it decides."""
    assert "no link" in await refused(mqtt=plugins(scripted()))


async def test_a_plugin_decides_about_topics() -> None:
    """Of a filter with wildcards, all topics; amqtt itself would take a/#."""
    acl = {
        "class_path": "amqtt.plugins.topic_checking.TopicAccessControlListPlugin",
        "options": {"publish-acl": {"pump": ["a/+"]}, "acl": {"pump": ["a/+"]}},
    }
    async with chained(LINK, mqtt=plugins(scripted(), acl)) as site:
        gateway: Any = site.front._gateway
        gateway.automatic = 0
        packet = connect_packet("d", user_name="pump", password=b"yes", protocol_level=5)
        device, code = await site.connect(packet)
        assert code == 0
        wanted = [("a/b", 1), ("a/+", 0), ("a/#", 1), ("#", 0), ("b", 0)]
        device.send(packets.encode_subscribe(1, wanted, Properties()))
        first, body = await device.packet()
        assert first == packets.SUBACK << 4
        assert list(body[-5:]) == [1, 0, 0x87, 0x87, 0x87]
        for number, (topic, answer) in enumerate((("a/b", b""), ("b", b"\x87"), ("a/b", b"")), 1):
            device.send(
                packets.encode_publish(
                    topic, b"x", qos=1, retain=False, packet_id=number, properties=Properties()
                )
            )
            first, body = await device.packet()
            assert first == packets.PUBACK << 4
            assert body[2:3] == answer
        assert [message.topic for handed in gateway.handed for message in handed.messages] == ["a/b"] * 2
        assert site.number("iotmq_mqtt_plugin_topics_remembered") == 7


async def test_a_topic_plugin_that_fails_allows_nothing() -> None:
    topics = {"class_path": "amqtt_plugins.ScriptedTopics", "timeout_s": 0.1, "failures_max": 0}
    async with chained(LINK, mqtt=plugins(scripted(), topics)) as site:
        device, _ = await site.connect(connect_packet("d", user_name="pump", password=b"yes"))
        wanted = ["yes/a", "no/a", "fail/a", "sleep/a", "impossible/a", "block/a"]
        device.send(packets.encode_subscribe(1, [(topic, 0) for topic in wanted]))
        first, body = await device.packet()
        assert first == packets.SUBACK << 4
        assert list(body[2:]) == [0] + [0x80] * 5
