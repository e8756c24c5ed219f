"""Clients that wait for another master, over real connections to a registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import until

from iotmq import event_loop, limits
from iotmq.registry import watches
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection

WAIT_S = 30.0
A = "10.0.0.1:10911"
B = "10.0.0.2:10911"


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with running() as registry:
        yield registry


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Registry]:
    registry = Registry(RegistrySettings(listen_port=0, **settings))
    await registry.start()
    yield registry
    await registry.stop()
    assert registry.routes.check() == []
    assert registry.watches.count == 0


@asynccontextmanager
async def connected(registry: Registry) -> AsyncIterator[ClientConnection]:
    connection = await ClientConnection.connect("127.0.0.1", registry.port)
    yield connection
    await connection.close()


def registration(address: str, *, epoch: int, name: str = "a", broker_id: int = 0) -> Command:
    version = {"counter": 1, "timestamp": 1, "stateVersion": epoch}
    body = {"topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": {}}}
    ext = {"brokerName": name, "brokerAddr": address, "clusterName": "C", "brokerId": str(broker_id)}
    return Command.request(RequestCode.REGISTER_BROKER, ext, json.dumps(body).encode())


def watch(
    connection: ClientConnection, version: str = "", timeout_ms: int | str = limits.MASTER_WATCH_MS_MAX
) -> asyncio.Future[Command]:
    ext = {"version": version, "timeoutMillis": str(timeout_ms)}
    return connection.request(Command.request(RequestCode.WATCH_MASTERS, ext), WAIT_S)


async def told(answer: asyncio.Future[Command]) -> tuple[str, dict[str, dict[str, object]]]:
    """The version and the masters of an answer."""
    response = await answer
    assert response.code == ResponseCode.SUCCESS, response
    document = json.loads(response.body_bytes())
    assert list(document) == ["version", "masters"]
    return document["version"], document["masters"]


async def test_the_first_question_is_answered_at_once(registry: Registry) -> None:
    async with connected(registry) as broker, connected(registry) as client:
        version, masters = await told(watch(client))
        assert version
        assert masters == {}
        assert (await broker.request(registration(A, epoch=7))).code == 0
        assert (await broker.request(registration(B, epoch=7, broker_id=1))).code == 0
        assert (await told(watch(client)))[1] == {"a": {"address": A, "epoch": 7}}


async def test_one_that_waits_is_told_of_another_master_and_of_none(registry: Registry) -> None:
    async with connected(registry) as client:
        version, _ = await told(watch(client))
        async with connected(registry) as broker:
            waiting = watch(client, version)
            await until(lambda: registry.watches.count)
            await broker.request(registration(A, epoch=1))
            version, masters = await told(waiting)
            assert masters == {"a": {"address": A, "epoch": 1}}
            waiting = watch(client, version)
            await until(lambda: registry.watches.count)
            await broker.request(registration(B, epoch=2))
            version, masters = await told(waiting)
            assert masters == {"a": {"address": B, "epoch": 2}}
            waiting = watch(client, version)
            # What changes no master wakes nobody.
            await broker.request(registration(B, epoch=2))
            await broker.request(registration(A, epoch=1))
            assert not waiting.done()
        assert (await told(waiting))[1] == {}, "its connection has ended"


async def test_a_change_between_two_questions_is_not_missed(registry: Registry) -> None:
    async with connected(registry) as broker, connected(registry) as client:
        version, _ = await told(watch(client))
        await broker.request(registration(A, epoch=1))
        assert (await told(watch(client, version)))[1] == {"a": {"address": A, "epoch": 1}}


async def test_one_that_waits_long_enough_is_told_that_nothing_changed(registry: Registry) -> None:
    async with connected(registry) as client:
        version, _ = await told(watch(client))
        assert await told(watch(client, version, 10)) == (version, {})
        assert await told(watch(client, version, 0)) == (version, {})


async def test_one_is_answered_before_its_connection_is_idle_for_too_long() -> None:
    async with running(idle_timeout_s=1.0) as registry, connected(registry) as client:
        version, _ = await told(watch(client))
        for _ in range(4):
            assert await told(watch(client, version)) == (version, {})
        assert not client.is_closed


@pytest.mark.parametrize("timeout", ["", "-1", "soon", str(limits.MASTER_WATCH_MS_MAX + 1)])
async def test_a_bad_time_is_refused_by_name(registry: Registry, timeout: str) -> None:
    async with connected(registry) as client:
        response = await watch(client, timeout_ms=timeout)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "timeoutMillis" in (response.remark or "")


async def test_a_registry_that_was_restarted_does_not_take_an_old_version_for_its_own() -> None:
    async with running() as registry, connected(registry) as client:
        version, _ = await told(watch(client))
    async with running() as registry, connected(registry) as client:
        other, _ = await told(watch(client, version))
        assert other != version


async def test_many_changes_of_a_turn_wake_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, its turn has room for all of them.
    monkeypatch.setattr(event_loop.time, "thread_time", lambda: 0.0)
    async with connected(registry) as broker, connected(registry) as client:
        version, _ = await told(watch(client))
        waiting = watch(client, version)
        await until(lambda: registry.watches.count)
        # They come in one read.
        answers = [broker.request(registration(f"10.0.0.{n}:1", epoch=1, name=f"b{n}")) for n in range(20)]
        version, masters = await told(waiting)
        await asyncio.gather(*answers)
        assert len(masters) == 20
        assert registry.watches.wakes_count == 1


async def test_a_connection_that_asks_again_has_its_former_question_answered(registry: Registry) -> None:
    async with connected(registry) as client:
        version, _ = await told(watch(client))
        first = watch(client, version)
        await until(lambda: registry.watches.count)
        second = watch(client, version)
        assert await told(first) == (version, {})
        assert registry.watches.count == 1
        assert not second.done()


async def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watches.MASTER_WATCHERS_MAX == limits.MASTER_WATCHERS_MAX
    async with running() as registry:
        registry.watches._watchers_max = 2
        async with connected(registry) as one, connected(registry) as three:
            version, _ = await told(watch(one))
            watch(one, version)
            async with connected(registry) as two:
                watch(two, version)
                await until(lambda: registry.watches.count == 2)
                refused = await watch(three, version)
                assert refused.code == ResponseCode.SYSTEM_BUSY
                assert "2 clients wait" in (refused.remark or "")
                # One that waits already may ask again, and others what holds now.
                watch(one, version)
                assert await told(watch(three)) == (version, {})
            # The end of a connection makes room.
            await until(lambda: registry.watches.count == 1)
            waiting = watch(three, version)
            await until(lambda: registry.watches.count == 2)
            assert not waiting.done()


async def test_refused_registrations_and_those_who_wait_are_counted(registry: Registry) -> None:
    def number(name: str) -> float:
        return next(metric.value for metric in registry.metrics() if metric.name == f"iotmq_registry_{name}")

    async with connected(registry) as broker, connected(registry) as client:
        version, _ = await told(watch(client))
        watch(client, version)
        await until(lambda: number("master_watchers") == 1)
        assert (await broker.request(registration(B, epoch=2))).code == 0
        refused = await broker.request(registration(A, epoch=1))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == f"epoch 1 is past: {B} has registered as master of epoch 2"
        assert number("stale_registrations_total") == 1
        assert number("master_watchers") == 0


async def test_a_registry_that_stops_does_not_wait_for_those_who_wait() -> None:
    registry = Registry(RegistrySettings(listen_port=0))
    await registry.start()
    async with connected(registry) as client:
        version, _ = await told(watch(client))
        waiting = watch(client, version)
        await until(lambda: registry.watches.count)
        async with asyncio.timeout(WAIT_S):
            await registry.stop()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.done()
