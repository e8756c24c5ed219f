"""Traces at several front ends: begun at all of them or at none, and read as one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from eventually import soon
from fake_gateway import RawClient
from mqtt_site import MqttSite, open_site

from iotmq.client.admin.devices.traces import NoSuchTraceError, TraceAdmin, TraceRefusedError
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.settings import ClientSettings
from iotmq.mqtt.codec import packets
from iotmq.ports.traces import ReadTrace, StartTrace, encode_order

pytestmark = pytest.mark.uvloop


def client_of(site: MqttSite) -> ClientTransport:
    assert site.registry is not None
    return ClientTransport(ClientSettings(registries=(f"127.0.0.1:{site.registry.port}",)))


async def visit(site: MqttSite, front: str) -> None:
    """Connect, ping, and go."""
    client = await RawClient.connect(site.fronts[front].mqtt.port, "pump")
    await client.ping()
    client.send(packets.DISCONNECT_PACKET)
    await client.rest()
    # Events are ordered by their milliseconds.
    gone_ms = time.time_ns() // 1_000_000
    await soon(lambda: time.time_ns() // 1_000_000 > gone_ms, "the next millisecond", step_s=0.001)


def ends_at(site: MqttSite, front: str) -> int:
    """How many connections have ended there, as its trace says."""
    found, _ = site.fronts[front].mqtt.parts.traces._traces["t"].page(ReadTrace(name="t"))
    return sum(event.facts.get("result") == "ended" for event in found)


async def test_a_client_is_traced_wherever_it_connects_and_its_events_are_read_as_one(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True)
    try:
        async with client_of(site) as client:
            admin = TraceAdmin(client)
            order = StartTrace(name="t", kind="client", value="pump")
            assert set((await admin.start(order)).states) == {"one", "two"}
            for front in ("one", "two", "one"):
                await visit(site, front)
            await soon(lambda: ends_at(site, "one") == 2 and ends_at(site, "two") == 1, "the ends")
            whole = await admin.events("t")
            assert whole.is_end
            fronts = [front for front, event in whole.events if event.kind == "CONNECT"]
            assert fronts == ["one", "two", "one"]
            times = [event.time_ms for _, event in whole.events]
            assert times == sorted(times)
            found: list[tuple[str, int]] = []
            after: dict[str, int] | None = {}
            while after is not None:
                page = await admin.events("t", after=after, limit=4)
                assert len(page.events) <= 4
                found += [(front, event.number) for front, event in page.events]
                after = None if page.is_end else page.reached
            assert found == [(front, event.number) for front, event in whole.events]
            listed = (await admin.all()).traces["t"]
            assert sum(state.events for state in listed.states.values()) == len(found)
            assert not any(state.is_running for state in (await admin.stop("t")).states.values())
            await visit(site, "one")
            assert len((await admin.events("t")).events) == len(found)
            await admin.delete("t")
            for unknown in (admin.stop("t"), admin.delete("t"), admin.show("t")):
                with pytest.raises(NoSuchTraceError):
                    await unknown
            with pytest.raises(NoSuchTraceError):
                await admin.events("t")
    finally:
        await site.close()


async def test_a_trace_that_one_front_end_refuses_runs_at_none(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True)
    try:
        async with client_of(site) as client:
            admin = TraceAdmin(client)
            order = StartTrace(name="t", kind="client", value="pump")
            await site.fronts["two"].mqtt.parts.traces.change(encode_order(order))
            with pytest.raises(TraceRefusedError, match="there is a trace t already") as refused:
                await admin.start(order)
            assert not refused.value.is_invalid
            assert set((await admin.show("t")).states) == {"two"}
            with pytest.raises(TraceRefusedError, match="no topic filter") as refused:
                await admin.start(StartTrace(name="u", kind="topic", value="a/#/b"))
            assert refused.value.is_invalid
    finally:
        await site.close()
