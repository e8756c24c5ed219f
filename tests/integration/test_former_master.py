"""A broker that may not be the master of its name any more: what it gives, and what it does not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon
from member_site import send

from iotmq.broker.broker import Broker
from iotmq.broker.broker_role import NOT_CURRENT, BrokerRole
from iotmq.broker.settings import BrokerSettings
from iotmq.errors import ConnectionClosedError
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

QUEUE = {"brokerName": "b", "topic": "T", "queueId": 0}
WAIT_S = 10.0


class Site:
    """A broker with a topic T, its registry, and whether it may be master still."""

    def __init__(self, directory: Path) -> None:
        self.is_current = True
        self.registry = Registry(RegistrySettings(listen_port=0), directory=directory / "registry")
        self._directory = directory / "broker"

    async def start(self) -> None:
        await self.registry.start()
        self.store = Store.open(self._directory, StoreSettings(), store_host=bytes(8))
        settings = BrokerSettings(
            name="b",
            listen_port=0,
            registries=(f"127.0.0.1:{self.registry.port}",),
            registration_interval_s=0.1,
        )
        role = BrokerRole(is_current=lambda: self.is_current)
        self.broker = Broker(settings, self.store, directory=self._directory, role=role)
        await self.broker.start()
        await self.broker.wait_registered(WAIT_S)
        self.client = await ClientConnection.connect("127.0.0.1", self.broker.port)
        assert (await send(self.client, b"one")).code == ResponseCode.SUCCESS

    async def stop(self) -> None:
        await self.client.close()
        await self.broker.stop()
        assert self.store.check() == []
        self.store.close()
        await self.registry.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.start()
    yield site
    await site.stop()


async def lock(site: Site, client_id: str, code: int = RequestCode.LOCK_BATCH_QUEUES) -> Command:
    body = {"clientId": client_id, "consumerGroup": "g", "mqSet": [QUEUE]}
    return await site.client.request(Command.request(code, {}, json.dumps(body).encode()), WAIT_S)


async def test_it_gives_no_queue_locks(site: Site) -> None:
    assert json.loads((await lock(site, "c1")).body_bytes()) == {"lockOKMQSet": [QUEUE]}
    site.is_current = False
    for client_id in ("c1", "c2"):
        answer = await lock(site, client_id)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, NOT_CURRENT)
    # To have one fewer is never wrong.
    assert (await lock(site, "c1", RequestCode.UNLOCK_BATCH_QUEUES)).code == ResponseCode.SUCCESS
    site.is_current = True
    assert json.loads((await lock(site, "c2")).body_bytes()) == {"lockOKMQSet": [QUEUE]}


async def test_it_says_nothing_of_a_groups_offset_and_goes_on_with_the_log(site: Site) -> None:
    place = {"consumerGroup": "g", "topic": "T", "queueId": "0"}

    async def ask(code: int, **ext: str) -> Command:
        return await site.client.request(Command.request(code, {**place, **ext}), WAIT_S)

    assert (await ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset="1")).code == ResponseCode.SUCCESS
    assert (await ask(RequestCode.QUERY_CONSUMER_OFFSET)).ext["offset"] == "1"
    site.is_current = False
    assert (await ask(RequestCode.GET_MAX_OFFSET)).ext["offset"] == "1"
    with pytest.raises(ConnectionClosedError):
        await ask(RequestCode.QUERY_CONSUMER_OFFSET)
    site.is_current = True
    site.client = await ClientConnection.connect("127.0.0.1", site.broker.port)
    assert (await ask(RequestCode.QUERY_CONSUMER_OFFSET)).ext["offset"] == "1"


async def test_it_does_not_register(site: Site) -> None:
    def value(name: str) -> float:
        return sum(metric.value for metric in site.broker.metrics() if metric.name == name)

    site.is_current = False
    await soon(lambda: value("iotmq_broker_failed_registrations_total") >= 2, "it has tried")
    before = value("iotmq_broker_registrations_total")
    await soon(lambda: value("iotmq_broker_failed_registrations_total") >= 3, "it tries on")
    assert value("iotmq_broker_registrations_total") == before
    assert not value("iotmq_broker_registered")
    site.is_current = True
    await soon(lambda: value("iotmq_broker_registered"), "it registers again")
