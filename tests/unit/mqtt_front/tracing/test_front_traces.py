"""Traces of a front end on real sockets: packets and decisions of who is traced, and of nobody else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from front_site import Site, running, tick_quickly
from permissions_site import rule_text

from iotmq import limits
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt_front.settings.authentication import AuthenticationSettings
from iotmq.mqtt_front.settings.permissions import PermissionSettings
from iotmq.mqtt_front.tracing import traces as traces_module
from iotmq.ports.traces import (
    DeleteTrace,
    ListTraces,
    ReadTrace,
    StartTrace,
    StopTrace,
    TraceAnswer,
    TraceEvent,
    decode_answer,
    encode_order,
)

SECRET = "s3cret-word"


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_quickly(monkeypatch)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running() as site:
        site.gateway.automatic = 0
        yield site


async def change(site: Site, order: StartTrace | StopTrace | DeleteTrace) -> TraceAnswer:
    return decode_answer(await site.front.parts.traces.change(encode_order(order)))


async def ask(site: Site, order: ListTraces | ReadTrace) -> TraceAnswer:
    return decode_answer(await site.front.parts.traces.answer(encode_order(order)))


async def start(
    site: Site, kind: Any = "client", value: str = "c", *, name: str = "t", **fields: Any
) -> None:
    answer = await change(site, StartTrace(name=name, kind=kind, value=value, **fields))
    assert not answer.problem
    assert answer.traces[0].is_running


async def events(site: Site, name: str = "t") -> list[TraceEvent]:
    answer = await ask(site, ReadTrace(name=name, with_payloads=True))
    assert not answer.problem
    return answer.events


async def wait_for(site: Site, kind: str, count: int = 1, *, name: str = "t") -> list[TraceEvent]:
    """All events, when there are so many of a kind."""
    found: list[TraceEvent] = []
    trace = site.front.parts.traces._traces[name]

    def has_them() -> bool:
        found[:] = trace.page(ReadTrace(name=name, with_payloads=True))[0]
        return sum(each.kind == kind for each in found) >= count

    await soon(has_them, f"{count} {kind}", step_s=0.001)
    return found


def shown(found: list[TraceEvent]) -> list[str]:
    return [f"{each.what} {each.kind}" for each in found]


def publish(topic: str, payload: bytes = b"x", packet_id: int = 1) -> bytes:
    return packets.encode_publish(topic, payload, qos=1, packet_id=packet_id)


async def subscribe_v5(client: RawClient, topic_filter: str) -> None:
    client.send(packets.encode_subscribe(1, [(topic_filter, 0)], NO_PROPERTIES))
    first, body = await client.packet()
    assert (first, body) == (packets.SUBACK << 4, b"\0\1\0\0")


async def test_a_client_is_traced_from_its_connect_on_and_over_reconnects(site: Site) -> None:
    await start(site)
    other = await site.connect("other")
    client = await site.connect("c")
    client.send(publish("a/b", SECRET.encode()))
    assert await client.puback() == 1
    client.send(packets.DISCONNECT_PACKET)
    assert await client.rest() == b""
    found = await wait_for(site, "connection")
    assert shown(found) == [
        "received CONNECT",
        "decided authentication",
        "decided session",
        "sent CONNACK",
        "received PUBLISH",
        "decided routing",
        "sent PUBACK",
        "received DISCONNECT",
        "decided connection",
    ]
    assert {each.client for each in found} == {"c"}
    assert {each.address for each in found} == {"127.0.0.1"}
    assert found[4].topic == "a/b"
    assert found[5].facts == {
        "result": "goes to a queue",
        "broker_topic": site.gateway.handed[0].topic,
        "queue": 0,
        "is_stored": True,
    }
    assert found[8].facts["reason"] == "normal"
    assert SECRET not in json.dumps([str(each) for each in found]), "payloads were not asked for"
    await site.connect("c")
    assert shown(await wait_for(site, "CONNACK", 2))[9:] == shown(found)[:4]
    await other.ping()
    assert {each.client for each in await events(site)} == {"c"}


async def test_a_connection_that_is_there_already_is_traced(site: Site) -> None:
    client = await site.connect("c")
    await client.ping()
    await start(site)
    await client.ping()
    assert shown(await wait_for(site, "PINGRESP")) == ["received PINGREQ", "sent PINGRESP"]
    assert not (await change(site, StopTrace(name="t"))).traces[0].is_running
    await client.ping()
    assert len(await events(site)) == 2
    assert site.front.parts.group.tracing is None


async def test_messages_of_a_topic_are_traced_on_every_connection(site: Site) -> None:
    before = await site.connect("before")
    assert await before.subscribe(("a/#", 1)) == [1]
    await start(site, "topic", "a/+", payload_bytes=4)
    after = await site.connect("after")
    for number, topic in enumerate(("a/b", "b", "a/b/c", "a/é"), 1):
        after.send(publish(topic, b"caf\xc3\xa9", number))
        assert await after.puback() == number
    site.gateway.push("a/b", b"\xff\xfe123", "a/#")
    found = await wait_for(site, "PUBLISH", 3)
    assert [(each.client, each.what, each.topic, each.payload, each.payload_base64) for each in found] == [
        ("after", "received", "a/b", "caf", ""),
        ("after", "decided", "a/b", "", ""),
        ("after", "received", "a/é", "caf", ""),
        ("after", "decided", "a/é", "", ""),
        ("before", "sent", "a/b", "", "//4xMg=="),
    ]


async def test_an_address_is_traced_before_anybody_says_who_it_is(site: Site) -> None:
    await start(site, "address", "127.0.0.0/8")
    await start(site, "address", "10.0.0.1", name="elsewhere")
    client = await site.dial()
    client.send(b"GET / HTTP/1.1\r\n\r\n")
    assert await client.rest() == b""
    found = await wait_for(site, "connection", 2)
    assert shown(found) == ["decided connection", "decided connection"]
    assert (found[0].facts["result"], found[0].client) == ("accepted", "")
    assert found[1].facts["reason"] == "protocol_error"
    assert await events(site, "elsewhere") == []


async def test_several_traces_get_what_is_theirs(site: Site) -> None:
    await start(site, "client", "c")
    await start(site, "topic", "b", name="b", payload_bytes=8)
    await start(site, "address", "127.0.0.1", name="all", payload_bytes=2)
    client = await site.connect("c")
    client.send(publish("b", b"1234"))
    assert await client.puback() == 1
    by_name = {name: await events(site, name) for name in ("t", "b", "all")}
    contents = {
        name: [each.payload for each in found if each.kind == "PUBLISH"] for name, found in by_name.items()
    }
    assert contents == {"t": [""], "b": ["1234"], "all": ["12"]}
    assert shown(by_name["b"]) == ["received PUBLISH", "decided routing"]
    states = (await ask(site, ListTraces())).traces
    assert [(each.name, each.kind, each.events) for each in states] == [
        (name, kind, len(by_name[name]))
        for name, kind in (("t", "client"), ("b", "topic"), ("all", "address"))
    ]


async def test_topic_aliases_are_resolved_in_both_directions(site: Site) -> None:
    connect = Connect("c", True, 0, None, None, None, 5, Properties(topic_alias_max=4))
    client = await site.dial()
    client.send(packets.encode_connect(connect))
    await client.packet()
    first = packets.encode_publish("long/topic/name", b"1", properties=Properties(topic_alias=1))
    again = packets.encode_publish("", b"2", properties=Properties(topic_alias=1))
    client.send(first)
    await site.handed()
    await subscribe_v5(client, "long/topic/out")
    for _ in range(3):
        site.gateway.push("long/topic/out", b"x", "long/topic/out", qos=0)
        await client.packet()
    await start(site, "topic", "long/topic/+")
    client.send(again)
    found = await wait_for(site, "PUBLISH")
    assert found[0].topic == "long/topic/name", "it was told before the trace began"
    assert found[0].facts["topic_alias"] == 1
    site.gateway.push("long/topic/out", b"y", "long/topic/out", qos=0)
    found = await wait_for(site, "PUBLISH", 2)
    assert (found[-1].what, found[-1].topic) == ("sent", "long/topic/out")


async def test_a_takeover_is_told(site: Site) -> None:
    await start(site)
    former = await site.connect("c")
    await site.connect("c")
    assert await former.rest() == b""
    found = await wait_for(site, "connection")
    (taken,) = [each for each in found if each.facts.get("reason") == "taken over"]
    assert (taken.kind, taken.facts["result"]) == ("session", "disconnected")
    assert [each.facts["reason"] for each in found if each.kind == "connection"] == ["session_taken_over"]


async def test_permissions_are_told_with_the_rule_that_decided(tmp_path: Path) -> None:
    rules = tmp_path / "permissions.toml"
    rules.write_text(
        rule_text("allow", "all", "own/#", name="'own'")
        + rule_text("deny", "all", "forbidden/#", name="'never'")
    )
    settings = PermissionSettings(permissions_file=str(rules))
    async with running(permissions=settings) as site:
        site.gateway.automatic = 0
        await start(site)
        await start(site, "topic", "forbidden/#", name="topic")
        client = await site.connect("c")
        for number, topic in enumerate(("own/1", "forbidden/1", "else"), 1):
            client.send(publish(topic, packet_id=number))
            assert await client.puback() == number
        assert await client.subscribe(("own/+", 1), ("forbidden/#", 1)) == [1, 0x80]
        decided = [
            (each.facts["what"], each.topic, each.facts["result"], each.facts["rule"])
            for each in await events(site)
            if each.kind == "permission"
        ]
        assert decided == [
            ("publish", "own/1", "allowed", "own"),
            ("publish", "forbidden/1", "refused", "never"),
            ("publish", "else", "refused", "no rule"),
            ("subscribe", "own/+", "allowed", "own"),
            ("subscribe", "forbidden/#", "refused", "never"),
        ]
        kinds = [each.kind for each in await events(site) if each.topic == "forbidden/1"]
        assert kinds == ["PUBLISH", "permission"], "what is refused has no way"
        assert [each.kind for each in await events(site, "topic")] == ["PUBLISH", "permission", "permission"]


async def test_a_refused_client_is_told_without_its_password(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("")
    settings = AuthenticationSettings(users_file=str(users))
    async with running(authentication=settings) as site:
        await start(site)
        await start(
            site, "address", "127.0.0.1", name="all", payload_bytes=limits.MQTT_TRACE_PAYLOAD_BYTES_MAX
        )
        client = await site.dial()
        client.send(packets.encode_connect(Connect("c", True, 0, None, "anna", SECRET.encode())))
        await client.rest()
        found = await wait_for(site, "connection")
        refused = [each for each in found if each.kind == "authentication"]
        assert [each.facts["result"] for each in refused] == ["refused"]
        assert refused[0].facts["user"] == "anna"
        everything = json.dumps([str(each) for each in found + await events(site, "all")])
        assert SECRET not in everything
        assert "has_password" in everything


async def test_drops_are_told_with_their_topic(site: Site) -> None:
    connect = Connect("c", True, 0, None, None, None, 5, Properties(packet_bytes_max=64))
    client = await site.dial()
    client.send(packets.encode_connect(connect))
    await client.packet()
    await subscribe_v5(client, "a")
    await start(site)
    await start(site, "topic", "a", name="topic")
    await start(site, "topic", "b", name="other")
    site.gateway.push("a", b"x" * 100, "a", qos=0)
    for name in ("t", "topic"):
        (dropped,) = await wait_for(site, "drop", name=name)
        assert (dropped.topic, dropped.facts["reason"]) == ("a", "it is larger than the client takes")
    assert await events(site, "other") == []


async def test_hostile_names_are_kept_as_they_are(site: Site) -> None:
    name = "<img src=x onerror=alert(1)>\u202e\"'"
    await start(site, "client", name)
    client = await site.connect(name)
    client.send(publish(f"{name}/{'x' * 3_000}"))
    assert await client.puback() == 1
    found = await events(site)
    assert {each.client for each in found} == {name}
    assert all(len(each.topic) <= limits.MQTT_TRACE_TEXT_CHARACTERS_MAX + 30 for each in found)


async def test_a_trace_ends_by_itself(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces_module, "_SECOND_S", 0.001)
    await start(site, duration_s=5)
    client = await site.connect("c")
    site.clock.advance(5.0)
    await soon(lambda: site.front.parts.group.tracing is None, "its end", step_s=0.001)
    count = len(await events(site))
    await client.ping()
    state = (await ask(site, ListTraces())).traces[0]
    assert (state.is_running, state.events) == (False, count)


async def test_packets_past_the_most_of_a_second_are_counted_and_not_looked_at(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces_module, "_SECOND_S", 3_600.0)
    await start(site, events_max=limits.MQTT_TRACE_EVENTS_MAX)
    client = await site.connect("c")
    traces = site.front.parts.traces
    looked_at = limits.MQTT_TRACE_PACKETS_PER_S_MAX - 2
    client.send(packets.PINGREQ_PACKET * (looked_at // 2 + 3))
    for _ in range(looked_at // 2 + 3):
        await client.packet()
    state = (await ask(site, ListTraces())).traces[0]
    assert state.skipped == 6
    traces._tick()
    await client.ping()
    assert (await ask(site, ListTraces())).traces[0].skipped == 6


async def test_orders_that_cannot_be_followed_are_told_why(site: Site) -> None:
    await start(site)
    answer = await change(site, StartTrace(name="t", kind="client", value="c"))
    assert (answer.problem, answer.is_invalid) == ("there is a trace t already", False)
    answer = await change(site, StartTrace(name="bad", kind="topic", value="a/#/b"))
    assert answer.is_invalid
    for body in (
        b"",
        b"{}",
        b'{"type":"start","name":"../x","kind":"client","value":"c"}',
        # It stands in the head of an answer.
        b'{"type":"start","name":"x\\n","kind":"client","value":"c"}',
        b'{"type":"list"}',
    ):
        assert decode_answer(await site.front.parts.traces.change(body)).is_invalid
    for order in (StopTrace(name="none"), DeleteTrace(name="none")):
        assert (await change(site, order)).is_unknown
    assert (await ask(site, ReadTrace(name="none"))).is_unknown


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("duration_s", limits.MQTT_TRACE_S_MAX),
        ("events_max", limits.MQTT_TRACE_EVENTS_MAX),
        ("bytes_max", limits.MQTT_TRACE_BYTES_MAX),
        ("payload_bytes", limits.MQTT_TRACE_PAYLOAD_BYTES_MAX),
    ],
)
async def test_what_a_trace_may_ask_for_has_limits(site: Site, field: str, most: int) -> None:
    await start(site, **{field: most})
    answer = await change(site, StartTrace(name="more", kind="client", value="c", **{field: most + 1}))
    assert answer.is_invalid
    assert field in answer.problem
    answer = await ask(site, ReadTrace(name="t", limit=limits.MQTT_TRACE_PAGE_EVENTS_MAX + 1))
    assert answer.is_invalid


async def test_so_many_traces_run_and_an_ended_one_makes_room(site: Site) -> None:
    for number in range(limits.MQTT_TRACES_MAX):
        await start(site, name=f"t{number}")
    full = await change(site, StartTrace(name="one-more", kind="client", value="c"))
    assert full.problem.startswith(f"{limits.MQTT_TRACES_MAX} traces are running")
    await change(site, StopTrace(name="t3"))
    await start(site, name="one-more")
    names = [each.name for each in (await ask(site, ListTraces())).traces]
    assert len(names) == limits.MQTT_TRACES_MAX
    assert "t3" not in names
    await change(site, DeleteTrace(name="t5"))
    assert (await ask(site, ReadTrace(name="t5"))).is_unknown


async def test_a_stop_ends_all_traces(site: Site) -> None:
    await start(site)
    traces = site.front.parts.traces
    await site.stop()
    assert site.front.parts.group.tracing is None
    assert not any(trace.is_running for trace in traces._traces.values())


async def test_a_connect_in_pieces_is_traced(site: Site) -> None:
    await start(site)
    client = await site.dial()
    for byte in connect_packet("c"):
        client.send(bytes([byte]))
    await client.packet()
    assert shown(await events(site))[0] == "received CONNECT"
