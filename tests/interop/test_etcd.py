"""The consensus store in a real etcd: what the fake of the unit tests takes for granted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from certificates import make_certificate, make_root
from etcd_node import CONTROL, PROGRAM, EtcdNode
from eventually import soon

from iotmq import limits
from iotmq.clock import SystemClock
from iotmq.errors import ConsensusUnavailableError
from iotmq.replication.consensus.etcd import EtcdStore
from iotmq.replication.consensus.port import Versioned
from iotmq.replication.consensus.settings import EtcdSettings

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        PROGRAM is None or CONTROL is None, reason="etcd is not installed (tools/setup.sh dev)"
    ),
]

MakeStore = Callable[..., EtcdStore]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EtcdNode]:
    with EtcdNode(tmp_path) as node:
        yield node


@pytest.fixture
async def make() -> AsyncIterator[MakeStore]:
    stores: list[EtcdStore] = []

    def make(node: EtcdNode, **settings: str | int) -> EtcdStore:
        store = EtcdStore(
            EtcdSettings(endpoints=(node.url,), **{"timeout_ms": 10_000, **settings}),  # type: ignore[arg-type]
            cluster="factory", broker="broker-a", clock=SystemClock(),
        )  # fmt: skip
        stores.append(store)
        return store

    yield make
    for store in stores:
        await store.close()


async def test_a_state_is_created_once_and_replaced_by_its_version(node: EtcdNode, make: MakeStore) -> None:
    store, other = make(node), make(node)
    assert await store.read() is None
    first = await store.create(b"x" * limits.CONSENSUS_STATE_BYTES_MAX)
    assert first is not None
    assert await other.create(b"again") is None
    assert await other.read() == Versioned(first, b"x" * limits.CONSENSUS_STATE_BYTES_MAX)
    # Other keys raise the revision of etcd, and not the version of the state.
    await other.beat(1, b"a")
    second = await other.replace(first, b"two")
    assert second is not None
    assert second > first
    assert await store.replace(first, b"late") is None
    assert await store.read() == Versioned(second, b"two")
    assert node.control("get", "/iotmq/factory/broker-a/state", "--print-value-only") == "two\n"
    node.control("del", "/iotmq/factory/broker-a/state")
    third = await store.create(b"three")
    assert third is not None
    assert third > second


async def test_of_many_that_replace_one_version_one_wins(node: EtcdNode, make: MakeStore) -> None:
    stores = [make(node) for _ in range(4)]
    version = await stores[0].create(b"")
    assert version is not None
    for round_number in range(20):
        results = await asyncio.gather(
            *(store.replace(version, b"%d %d" % (round_number, place)) for place, store in enumerate(stores))
        )
        (winner,) = [place for place, result in enumerate(results) if result is not None]
        assert await stores[0].read() == (results[winner], b"%d %d" % (round_number, winner))
        version = results[winner]
        assert version is not None


async def test_a_member_that_dies_is_first_old_and_then_gone(node: EtcdNode, make: MakeStore) -> None:
    member, observer = make(node), make(node)
    await member.beat(1, b"a")
    for _ in range(10):
        await member.beat(1, b"a")
        await member.beat(2, b"b")
        signs = await observer.beats()
        assert {number: sign.value for number, sign in signs.items()} == {1: b"a", 2: b"b"}
        assert max(sign.age_s for sign in signs.values()) < 1
    await member.withdraw(2)
    assert set(await observer.beats()) == {1}
    ages = []
    while signs := await observer.beats():
        ages.append(signs[1].age_s)
        await asyncio.sleep(0.05)
    assert ages == sorted(ages)
    assert max(ages) >= 1


async def test_a_member_beats_on_after_its_lease_has_gone(node: EtcdNode, make: MakeStore) -> None:
    store = make(node)
    await store.beat(1, b"a")
    lease = node.control("lease", "list").split()[-1]
    node.control("lease", "revoke", lease)
    assert await store.beats() == {}
    await store.beat(1, b"a")
    assert set(await store.beats()) == {1}


async def test_a_watch_tells_of_changes_and_survives_a_restart_of_etcd(
    node: EtcdNode, make: MakeStore
) -> None:
    store, calls = make(node), list[int]()
    task = asyncio.create_task(store.watch(lambda: calls.append(1)))
    await soon(lambda: len(calls) == 1, "the watch has begun")
    version = await store.create(b"one")
    assert version is not None
    await soon(lambda: len(calls) == 2, "told of the change")
    await asyncio.to_thread(node.kill)
    with pytest.raises(ConsensusUnavailableError, match=r"replication\.etcd\.endpoints"):
        await store.read()
    await asyncio.to_thread(node.start)
    await soon(lambda: len(calls) == 3, "the watch has begun again")
    assert await store.read() == Versioned(version, b"one")
    await store.replace(version, b"two")
    await soon(lambda: len(calls) == 4, "told of the next change")
    task.cancel()


async def test_a_stopped_etcd_leaves_a_change_open_and_asking_again_ends_it(
    node: EtcdNode, make: MakeStore
) -> None:
    store = make(node, timeout_ms=300)
    first = await make(node).create(b"one")
    assert first is not None
    await store.read()
    node.pause()
    with pytest.raises(ConsensusUnavailableError):
        await store.replace(first, b"two")
    node.go_on()
    # Either of the two requests may have done it, never both.
    again = await make(node).replace(first, b"two")
    state = await make(node).read()
    assert state is not None
    assert state.value == b"two"
    assert again in (None, state.version)


async def test_users_log_in_and_again_when_etcd_has_forgotten_the_login(
    node: EtcdNode, make: MakeStore
) -> None:
    for words in (
        ["user", "add", "root:top"],
        ["user", "grant-role", "root", "root"],
        ["user", "add", "iotmq:secret"],
        ["role", "add", "iotmq"],
        ["role", "grant-permission", "iotmq", "--prefix=true", "readwrite", "/iotmq/"],
        ["user", "grant-role", "iotmq", "iotmq"],
        ["auth", "enable"],
    ):
        node.control(*words)
    with pytest.raises(ConsensusUnavailableError, match=r"replication\.etcd\.user"):
        await make(node).read()
    with pytest.raises(ConsensusUnavailableError, match=r"replication\.etcd\.password"):
        await make(node, user="iotmq", password="wrong").read()
    with pytest.raises(ConsensusUnavailableError, match="needs the right"):
        await make(node, user="iotmq", password="secret", prefix="/other").read()
    store, calls = make(node, user="iotmq", password="secret"), list[int]()
    version = await store.create(b"one")
    assert version is not None
    await store.beat(1, b"a")
    assert set(await store.beats()) == {1}
    task = asyncio.create_task(store.watch(lambda: calls.append(1)))
    await soon(lambda: calls, "the watch has begun")
    begun = len(calls)
    await asyncio.to_thread(node.kill)
    await asyncio.to_thread(node.start)
    # Its tokens are in memory.
    assert await store.replace(version, b"two") is not None
    # Begun again before the change, it sees that as well.
    await soon(lambda: len(calls) > begun, "the watch has begun again")
    # A change of rights makes older tokens useless.
    node.control("--user", "root:top", "user", "add", "other:x")
    assert await store.read() is not None
    await store.withdraw(1)
    task.cancel()


async def test_connections_are_encrypted_both_ways(make: MakeStore, tmp_path: Path) -> None:
    root = make_root(tmp_path)
    server, own = make_certificate(tmp_path, root), make_certificate(tmp_path, root, "own")
    with EtcdNode(tmp_path, root, server) as node:
        store = make(node, ca_file=root.certificate, cert_file=own.certificate, key_file=own.key)
        assert await store.create(b"one") is not None
        with pytest.raises(ConsensusUnavailableError):
            await make(node, ca_file=root.certificate).read()
