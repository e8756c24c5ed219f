"""A broker whose files under `config/` are damaged starts with what can be read, or names what cannot."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from store_model import HOST, open_small, put

from iotmq.broker.broker import Broker
from iotmq.broker.settings import BrokerSettings
from iotmq.errors import StoreCorruptError
from iotmq.store.store import Store

NAMES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
FILLERS = b'\0\x7f\xff-0}"{'


class Running:
    def __init__(self, directory: Path) -> None:
        self.store: Store = open_small(directory)
        try:
            self.broker = Broker(
                BrokerSettings(listen_port=0, registries=()), self.store, directory=directory, store_host=HOST
            )
        except BaseException:
            self.store.close()
            raise

    async def stop(self) -> None:
        await self.broker.stop()
        self.store.close()


async def prepare(directory: Path) -> None:
    """Every file twice, so that each has a `.bak` that says the same."""
    running = Running(directory)
    broker = running.broker
    put(running.store, "orders", 0, *[b"x"] * 9)
    await broker.start()
    broker.topics.ensure("orders", queues=4)
    for offset in (3, 5):
        broker.offsets.commit("billing", "orders", 0, offset)
        broker.subscription_groups.find_or_create("billing")
        broker.offsets.write(broker.offsets.encode())
        broker.native.delays.offsets.write(broker.native.delays.offsets.encode())
        broker.topics.write(broker.topics.encode())
        broker.subscription_groups.write(broker.subscription_groups.encode())
    await running.stop()
    for name in NAMES:
        path = directory / "config" / name
        shutil.copy(path, path.with_name(name + ".bak"))


def damaged(data: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(data))
    way = source.randrange(4)
    if way == 0:
        return data[:at]
    if way == 1:
        return data[:at] + bytes((data[at] ^ 1 << source.randrange(8),)) + data[at + 1 :]
    if way == 2:
        return data[:at] + bytes((source.choice(FILLERS),)) + data[at + 1 :]
    return data[:at] + data[at + source.randrange(1, 40) :]


@pytest.mark.parametrize("name", NAMES)
async def test_a_damaged_file_costs_at_most_its_last_change(tmp_path: Path, name: str) -> None:
    good = tmp_path / "good"
    await prepare(good)
    source = random.Random(name)
    fallbacks = 0
    for number in range(25):
        directory = tmp_path / str(number)
        shutil.copytree(good, directory)
        path = directory / "config" / name
        path.write_bytes(damaged(path.read_bytes(), source))
        running = Running(directory)
        broker = running.broker
        await broker.start()
        if path.with_name(name + ".damaged").exists():
            fallbacks += 1
            topic = broker.topics.find("orders")
            assert topic is not None
            assert topic.read_queue_nums == 4
            assert broker.subscription_groups.find("billing") is not None
            assert broker.offsets.find("billing", "orders", 0) == 5
        put(running.store, "orders", 0, b"more")
        await running.stop()
        # What was read from the `.bak` is written again, and is as good as before.
        await Running(directory).stop()
        shutil.rmtree(directory)
    assert fallbacks >= 10


@pytest.mark.parametrize("name", NAMES)
async def test_a_file_and_its_bak_that_are_damaged_are_named(tmp_path: Path, name: str) -> None:
    await prepare(tmp_path)
    path = tmp_path / "config" / name
    for candidate in (path, path.with_name(name + ".bak")):
        candidate.write_bytes(candidate.read_bytes()[:-1])
    with pytest.raises(StoreCorruptError) as refusal:
        Running(tmp_path)
    assert str(path) in str(refusal.value)
    assert str(path) + ".bak" in str(refusal.value)
    assert "Put back a copy" in str(refusal.value)
    # As the error says.
    path.unlink()
    path.with_name(name + ".bak").unlink()
    running = Running(tmp_path)
    await running.broker.start()
    await running.stop()
