"""Filters without wildcards of connected devices: how many each of several brokers has, and in what memory.

    .venv/bin/python -m benchmarks.mqtt_filters_at_brokers [--filters 200000] [--brokers 1 2 4] [--quick]

A registry, and brokers in processes of their own. This process is the front end: it attaches the filters as
it does for devices that subscribe (`RemoteGateway.attach`). With one broker every filter is whole there, as
they were at each broker before there were marks. The memory is what anonymous memory of a broker grows by.
Then the time for matching records of many topics is measured in this process, beside as many filters that
match none of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from typing_extensions import Buffer

from benchmarks import machine, peers
from iotmq.broker.broker import Broker
from iotmq.broker.delivery.delivery import LiveDelivery
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.client.admin.changes import AdminChanges
from iotmq.client.client import IotmqClient
from iotmq.client.transport.settings import ClientSettings
from iotmq.front_port.gateway import RemoteGateway
from iotmq.message.properties import KEYS, MQTT_TOPIC, encode_properties
from iotmq.message.records.record import encode_record
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

TOPIC = "mqtt"
FILTERS_PER_TURN = 1_000
# Records that are matched; more topics than the index remembers.
MATCHED = 200_000


class BrokerChild:
    """A broker in another process, which says how many filters and marks it has."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.read()

    def read(self) -> list[int]:
        assert self._process.stdout is not None
        return [int(word) for word in self._process.stdout.readline().split()]

    def counts(self) -> list[int]:
        """Whole filters, and marks."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.read()

    def memory_bytes(self) -> int:
        return peers.memory_bytes([self._process.pid])["anonymous"]

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(peers.STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_broker(directory: Path, registry: str) -> BrokerChild:
    command = [
        sys.executable, "-m", "benchmarks.mqtt_filters_at_brokers",
        "--serve", str(directory), "--registry", registry,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=machine.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return BrokerChild(process)


async def serve(directory: Path, registry: str) -> None:
    """Be a broker: every line of the input is answered with its numbers; ends with the input."""
    settings = BrokerSettings(
        name=directory.name, listen_port=0, registries=(registry,), registration_interval_s=0.5
    )
    store = Store.open(directory, StoreSettings(), store_host=resolve_store_host(settings))
    broker = Broker(settings, store, directory=directory)
    await broker.start()
    await broker.wait_registered(60)
    print(broker.port, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        found = {metric.name: metric.value for metric in broker.metrics()}
        print(int(found["iotmq_broker_filters"]), int(found["iotmq_broker_filter_marks"]), flush=True)
    await broker.stop()
    store.close()


class Nobody:
    """Takes no records, because there are none."""

    def deliver(self, records: Buffer, matches: Buffer) -> None:
        raise AssertionError("nothing was published")


async def attach(gateway: RemoteGateway, count: int) -> None:
    for start in range(0, count, FILTERS_PER_TURN):
        filters = [
            (number + 1, f"devices/device-{number:08d}/commands")
            for number in range(start, min(count, start + FILTERS_PER_TURN))
        ]
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        gateway.attach(filters, done.set_result)
        if not await done:
            raise peers.PeerError("the brokers do not take the filters")
    # Those whose homes were not looked up in the turn of their SUBSCRIBE.
    await gateway._place_filters()


async def measure(brokers: int, filters: int, directory: Path) -> list[dict[str, float]]:
    """Return what each broker has in the end."""
    async with contextlib.AsyncExitStack() as stack:
        registry = Registry(RegistrySettings(listen_port=0), directory=directory / "registry")
        await registry.start()
        stack.push_async_callback(registry.stop)
        address = f"127.0.0.1:{registry.port}"
        children = []
        for number in range(brokers):
            children.append(await asyncio.to_thread(start_broker, directory / f"broker-{number}", address))
            stack.push_async_callback(asyncio.to_thread, children[-1].end)
        async with IotmqClient(ClientSettings(registries=(address,))) as client:
            await AdminChanges(client).update_topic(TOPIC, read_queues=16, write_queues=16)
        gateway = RemoteGateway((address,))
        await gateway.start((TOPIC,), Nobody(), lambda: None, route_of=lambda topic: (TOPIC, topic))
        stack.push_async_callback(gateway.stop)
        while gateway.not_ready_reason is not None:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
        before = [child.memory_bytes() for child in children]
        await attach(gateway, filters)
        found = []
        for child, bytes_before in zip(children, before, strict=True):
            whole, marks = await asyncio.to_thread(child.counts)
            grown = child.memory_bytes() - bytes_before
            found.append({"whole": whole, "marks": marks, "bytes": grown, "bytes_of_one": grown / filters})
        return found


def match_ns(filters: int, *, as_marks: bool) -> float:
    """Return the time for matching one of many records with distinct topics, which no filter matches."""
    names = [(number + 1, f"devices/device-{number:08d}/commands") for number in range(filters)]
    delivery = LiveDelivery(applied_position=0)
    channel = delivery.open_channel(lambda records, matches: None)
    delivery.attach(channel, [(1 << 31, "a/filter"), *([] if as_marks else names)], names if as_marks else [])
    records = []
    for start in range(0, MATCHED, 10_000):
        topics = [f"others/device-{number:08d}/telemetry" for number in range(start, start + 10_000)]
        properties = [encode_properties({MQTT_TOPIC: topic, KEYS: topic}) for topic in topics]
        encoded = [encode_record(topic=TOPIC, body=bytes(100), properties=each) for each in properties]
        records.append(memoryview(b"".join(encoded)))
    times_s = []
    for _ in range(5):
        began_s = time.thread_time()
        for view in records:
            delivery.apply(view, 0, len(view))
        times_s.append(time.thread_time() - began_s)
    assert delivery.matched == 0
    return min(times_s) * 1e9 / MATCHED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filters", type=int, default=200_000)
    parser.add_argument("--brokers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--registry", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        uvloop.run(serve(options.serve, options.registry))
        return 0
    filters = 20_000 if options.quick else options.filters
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[dict[str, float]]] = {}
    wrong = 0
    for brokers in options.brokers:
        with tempfile.TemporaryDirectory(prefix="data-filters-", dir=machine.RESULTS) as directory:
            found = uvloop.run(measure(brokers, filters, Path(directory)))
        results[str(brokers)] = found
        wrong += sum(one["whole"] for one in found) != filters
        wrong += any(one["whole"] + one["marks"] != filters for one in found)
        print(f"{filters:,} filters, {brokers} brokers; each broker has")
        for one in found:
            print(
                f"    {one['whole']:,} whole, {one['marks']:,} marks: {one['bytes'] / 1e6:.1f} MB, "
                f"{one['bytes_of_one']:.0f} bytes for each of all filters"
            )
    matching = {
        "no filters": match_ns(0, as_marks=False),
        "whole": match_ns(filters, as_marks=False),
        "marks": match_ns(filters, as_marks=True),
    }
    print("matching a record: " + ", ".join(f"{time_ns:.0f} ns {name}" for name, time_ns in matching.items()))
    machine.save("mqtt_filters_at_brokers", {"filters": filters, "brokers": results, "matching_ns": matching})
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
