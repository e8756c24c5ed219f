"""What a front end records for an audit: who was refused, and, where asked for, who comes and goes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from eventually import soon
from fake_gateway import connect_packet
from front_site import Site, running, tick_quickly

from iotmq import audit_log
from iotmq.audit_log import AUDIT_TOPIC
from iotmq.broker.writing.single_message_batch import split_elements
from iotmq.mqtt.codec import packets

EVERYTHING = ("connected", "disconnected", "refused", "kicked")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_quickly(monkeypatch)
    monkeypatch.setattr(audit_log, "_INTERVAL_S", 0.01)


def records(site: Site) -> list[dict[str, Any]]:
    assert all(topic == AUDIT_TOPIC for topic, _ in site.gateway.own)
    return [
        msgspec.json.decode(body)
        for _, elements in site.gateway.own
        for body, _, _ in split_elements(elements)
    ]


def events(site: Site) -> list[tuple[str, Any]]:
    return [(record["event"], record.get("client")) for record in records(site)]


async def test_by_default_only_what_is_out_of_order_is_recorded() -> None:
    async with running(connections_max=1) as site:
        site.gateway.automatic = 0
        await site.connect("first")
        refused = await site.dial()
        refused.send(connect_packet("second", user_name="ann"))
        await refused.rest()
        await soon(lambda: records(site), "a refusal")
        (record,) = records(site)
        del record["time_ms"], record["source"]
        assert record == {
            "event": "refused",
            "client": "second",
            "user": "ann",
            "address": "127.0.0.1",
            "listener": "tcp",
            "reason": "server_busy",
            "detail": "mqtt.connections_max is 1",
        }


async def test_a_token_in_the_place_of_a_user_name_is_not_recorded() -> None:
    """Who is turned away before its token was looked at has one that is still good."""
    token = f"eyJhbGciOiJFUzI1NiJ9.{'c' * 100}.{'s' * 86}"
    async with running(connections_max=1) as site:
        site.gateway.automatic = 0
        await site.connect("first")
        refused = await site.dial()
        refused.send(connect_packet("second", user_name=token))
        await refused.rest()
        await soon(lambda: records(site), "a refusal")
        assert records(site)[0]["user"] == token[:16] + "..."


async def test_who_comes_and_goes_and_is_taken_over() -> None:
    async with running(audit_events=EVERYTHING, name="front-7") as site:
        site.gateway.automatic = 0
        former = await site.connect("pump")
        later = await site.connect("pump")
        assert await former.rest() == b""
        await soon(lambda: len(records(site)) >= 4, "four records")
        assert {client for _, client in events(site)} == {"pump"}
        seen = [event for event, _ in events(site)]
        assert seen[:2] == ["connected", "kicked"]
        assert sorted(seen[2:]) == ["connected", "disconnected"]
        first = records(site)[0]
        assert first["address"] == "127.0.0.1"
        assert first["listener"] == "tcp"
        assert first["source"] == "front-7"
        gone = next(record for record in records(site) if record["event"] == "disconnected")
        assert gone["reason"] == "session_taken_over"
        later.send(packets.DISCONNECT_PACKET)
        await soon(lambda: len(records(site)) >= 5, "the end")
        assert records(site)[-1]["event"] == "disconnected"


async def test_no_event_no_record() -> None:
    async with running(audit_events=()) as site:
        former = await site.connect("pump")
        await site.connect("pump")
        await former.rest()
        await site.gone("session_taken_over")
    assert site.gateway.own == []


async def test_the_last_records_are_handed_over_before_the_gateway_stops() -> None:
    """Though a batch is under way that no broker has answered."""
    async with running(audit_events=EVERYTHING) as site:
        await site.connect("pump")
        await soon(lambda: records(site), "a batch under way")
        await site.stop()
        assert events(site)[-1] == ("disconnected", "pump")
