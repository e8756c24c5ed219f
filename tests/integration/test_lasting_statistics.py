"""Statistics of a cluster: front ends in other processes, several brokers, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from eventually import soon
from mqtt_site import MqttSite, open_site

from iotmq.client.admin.history import HistoryAdmin
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.settings import ClientSettings
from iotmq.history.questions import StatisticsQuestion, Table

pytestmark = pytest.mark.uvloop

MESSAGES = 5


@contextmanager
def device(port: int, client_id: str) -> Iterator[paho.Client]:
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id)
    client.connect_async("127.0.0.1", port)
    client.loop_start()
    try:
        yield client
    finally:
        client.loop_stop()


async def publish(site: MqttSite, front: str, client_id: str) -> None:
    got: list[paho.MQTTMessage] = []
    sent: list[int] = []
    with device(site.fronts[front].mqtt.port, client_id) as client:
        client.on_connect = lambda *_: client.subscribe(f"of/{client_id}", 1)
        client.on_subscribe = lambda *_: sent.extend(
            client.publish(f"of/{client_id}", b"12345", 1).mid for _ in range(MESSAGES)
        )
        client.on_message = lambda _client, _data, message: got.append(message)
        await soon(lambda: len(got) == MESSAGES, "the device has its own messages")
        client.disconnect()


def tell(site: MqttSite) -> None:
    for front in site.fronts.values():
        front.mqtt.parts.sessions.prefixes.tell()


async def counts(site: MqttSite, table: Table, name: str = "") -> dict[str, int]:
    assert site.registry is not None
    now_ms = site.bench.clock.now_ms()
    question = StatisticsQuestion(table=table, step="hour", from_ms=now_ms - 3_600_000, to_ms=now_ms)
    async with ClientTransport(ClientSettings(registries=(f"127.0.0.1:{site.registry.port}",))) as client:
        found = await HistoryAdmin(client).statistics(question)
    assert found.problems == {}
    return next((each.counts for each in found.answer.sums if each.name == name), {})


async def test_what_devices_did_at_front_ends_is_counted_by_brokers_and_kept(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True, brokers=2)
    try:
        await publish(site, "one", "truck-1")
        await publish(site, "two", "truck-2")
        await publish(site, "two", "plain")
        tell(site)
        counters = [bench.broker.statistics.counters.broker for bench in site.benches]

        def told() -> bool:
            totals = [table.totals("clients") for table in counters]
            return sum(found[1][0] for found in totals if found is not None) == 3 * MESSAGES

        await soon(told, "brokers have the counts")
        # What is not written when brokers stop would be lost.
        await site.restart_broker()
        expected = {
            "published": 2 * MESSAGES,
            "published_bytes": 10 * MESSAGES,
            "delivered": 2 * MESSAGES,
            "delivered_bytes": 10 * MESSAGES,
            "connections": 2,
        }
        assert await counts(site, "clients", "truck") == expected
        assert (await counts(site, "clients"))["published"] == MESSAGES
        assert (await counts(site, "topics", "T"))["messages"] == 3 * MESSAGES
    finally:
        await site.close()
