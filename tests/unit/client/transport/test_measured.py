"""The numbers of clients and their parts, as prometheus_client takes them."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Iterable

import pytest
from fake_broker import FakeBroker, FakeRegistry
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from iotmq.client import (
    ClientSettings,
    Collector,
    Interceptor,
    IotmqClient,
    Message,
    MessageTrace,
    SyncClient,
    TransactionState,
)
from iotmq.client.transport.measured import Measured
from iotmq.errors import ClientError
from iotmq.metrics import Metric, samples


@pytest.fixture
async def settings() -> AsyncIterator[ClientSettings]:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    registry = FakeRegistry(broker)
    await broker.start()
    await registry.start()
    yield ClientSettings(registries=(registry.address,), reconnect_ms_min=5)
    await registry.stop()
    await broker.stop()


def scraped(*collectors: object) -> dict[tuple[str, str], float]:
    """What Prometheus gets: (name, group) -> value."""
    registry = CollectorRegistry(auto_describe=True)
    for collector in collectors:
        registry.register(collector)  # type: ignore[arg-type]
    found: dict[tuple[str, str], float] = {}
    names: set[str] = set()
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.name not in names, "a page may have each name once"
        names.add(family.name)
        for sample in family.samples:
            key = sample.name, sample.labels.get("group", "")
            assert key not in found
            found[key] = sample.value
    return found


async def test_a_client_has_the_numbers_of_all_its_parts(settings: ClientSettings) -> None:
    trace = MessageTrace(linger_ms=60_000)
    async with IotmqClient(settings, interceptors=[trace]) as client:
        one = await client.producer("pg")
        two = await client.producer("pg")
        other = await client.transaction_producer("tg", lambda _: TransactionState.UNKNOWN)
        held = [
            client.push_consumer("push", lambda _: None),
            client.pull_consumer("pull"),
            client.pop_consumer("pop"),
            client.requester("asking"),
            client.replier("replying"),
        ]
        for producer in (one, two, other):
            await producer.send(Message("T", b"x"))
        found = scraped(client)
        assert found["iotmq_client_sent_total", "pg"] == 2
        assert found["iotmq_client_sent_total", "tg"] == 1
        assert found["iotmq_client_connections", ""] == 2
        assert found["iotmq_client_connections_opened_total", ""] == 2
        assert found["iotmq_client_sent_bytes_total", ""] > 300
        assert found["iotmq_client_trace_entries_waiting", ""] == 3
        assert {group for _, group in found} >= {"pg", "tg", "push", "pull", "pop", "asking", "replying"}
        assert scraped(one)["iotmq_client_sent_total", "pg"] == 1
        for part in (other, trace, *held):
            assert scraped(part).items() <= found.items()

        # A part that the program does not hold any more is not counted.
        del two, producer, held, part
        gc.collect()
        assert scraped(client)["iotmq_client_sent_total", "pg"] == 1


async def test_one_registry_takes_several_clients_by_one_collector(settings: ClientSettings) -> None:
    async with IotmqClient(settings) as one, IotmqClient(settings) as two:
        for client in (one, two):
            producer = await client.producer("pg")
            await producer.send(Message("T", b"x"))
            del producer
        with pytest.raises(ValueError, match="Duplicated timeseries"):
            scraped(one, two)
        assert scraped(Collector(one, two))["iotmq_client_connections", ""] == 4


async def test_a_blocking_client_is_asked_on_its_thread(settings: ClientSettings) -> None:
    def use() -> tuple[dict[tuple[str, str], float], ...]:
        with SyncClient(settings) as client, client.producer("pg") as producer:
            replier = client.replier("rg")
            producer.send(Message("T", b"x"))
            during = scraped(client)
            assert scraped(producer).items() <= during.items()
            assert scraped(replier).items() <= during.items()
        return during, scraped(client)

    for found in await asyncio.to_thread(use):
        assert found["iotmq_client_sent_total", "pg"] == 1


async def test_one_whose_numbers_cannot_be_read_hides_no_others(settings: ClientSettings) -> None:
    class Broken(Interceptor):
        def metrics(self) -> Iterable[Metric]:
            raise ValueError("of the application")

    class Own(Interceptor):
        def metrics(self) -> Iterable[Metric]:
            return samples(("shop_orders_total", "Orders seen", 3))

    async with IotmqClient(settings, interceptors=[Broken(), Own()]) as client:
        assert scraped(client)["shop_orders_total", ""] == 3


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scraped(Measured()) == {}
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ClientError, match="needs the package prometheus-client"):
        Measured().collect()
