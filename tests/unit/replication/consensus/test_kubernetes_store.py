"""The consensus store in Kubernetes, against a server that conflicts, hangs, forgets and sends garbage."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from fake_kubernetes import LEASES, FakeKubernetes
from gateway_process import free_port
from http_faults import fails, patience_ms
from manual_clock import ManualClock

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.replication.consensus import http
from iotmq.replication.consensus.kubernetes import KubernetesStore, lease_name
from iotmq.replication.consensus.opening import open_consensus_store
from iotmq.replication.consensus.port import SignOfLife, Versioned
from iotmq.replication.consensus.settings import KubernetesSettings

NAME = lease_name("factory", "broker-a")
STATE = f"{LEASES}/{NAME}"

MakeStore = Callable[..., KubernetesStore]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as server:
        yield server


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The directory that Kubernetes gives its pods."""
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("factory")
    return tmp_path


@pytest.fixture
async def make(server: FakeKubernetes, clock: ManualClock, account: Path) -> AsyncIterator[MakeStore]:
    stores: list[KubernetesStore] = []

    def make(**changed: Any) -> KubernetesStore:
        settings = {"api_server": server.url, "token_file": str(account / "token"), "ca_file": "", **changed}
        store = open_consensus_store(
            KubernetesSettings(**{"timeout_ms": 5_000, **settings}),
            cluster="factory", broker="broker-a", clock=clock,
        )  # fmt: skip
        assert isinstance(store, KubernetesStore)
        stores.append(store)
        return store

    yield make
    for store in stores:
        await store.close()


def test_names_of_objects_are_valid_and_different() -> None:
    assert NAME[:-8] == "iotmq-factory-broker-a-"
    pairs = [("a-b", "c"), ("a", "b-c"), ("A", "b-c"), ("a", "b_c"), ("é", "é"), ("x" * 200, "y" * 200)]
    names = {lease_name(*pair) for pair in pairs}
    assert len(names) == len(pairs)
    # The longest is the value of a label, too.
    assert all(re.fullmatch("[a-z0-9-]{1,63}", name) for name in names)


async def test_a_state_is_created_once_and_replaced_by_its_version(make: MakeStore) -> None:
    store, other = make(), make()
    assert await store.read() is None
    assert await store.replace(5, b"too early") is None
    first = await store.create(b"one")
    assert first is not None
    assert await other.create(b"again") is None
    second = await other.replace(first, '{"reason":"\u00e4"}'.encode())
    assert second == first + 1
    assert await store.replace(first, b"late") is None
    assert await store.read() == Versioned(second, '{"reason":"\u00e4"}'.encode())


async def test_a_removed_state_is_created_with_a_higher_version(
    make: MakeStore, server: FakeKubernetes, clock: ManualClock
) -> None:
    store = make()
    first = await store.create(b"one")
    assert first is not None
    second = await store.replace(first, b"two")
    assert second is not None
    server.leases.clear()
    assert await store.replace(second, b"three") is None
    clock.advance(0.01)
    third = await store.create(b"three")
    assert third is not None
    assert third > second


async def test_an_object_that_others_made_or_changed_is_used_and_kept(
    make: MakeStore, server: FakeKubernetes
) -> None:
    store = make()
    server.leases[NAME] = server.change(
        {"metadata": {"name": NAME, "annotations": {"team": "press"}, "ownerReferences": [1]}, "spec": None}
    )
    assert await store.read() is None
    first = await store.create(b"one")
    assert first is not None
    server.meddling = 1
    # Another version of the object is not another version of the state.
    assert await store.replace(first, b"two") == first + 1
    metadata = server.leases[NAME]["metadata"]
    assert (metadata["annotations"]["team"], metadata["ownerReferences"]) == ("press", [1])


async def test_an_object_that_changes_all_the_time_is_no_refusal(
    make: MakeStore, server: FakeKubernetes
) -> None:
    store = make()
    version = await store.create(b"one")
    assert version is not None
    server.meddling = 1_000
    assert "who else writes it" in await fails(store.replace(version, b"two"))


async def test_of_two_that_replace_one_version_one_wins(make: MakeStore) -> None:
    store = make()
    version = await store.create(b"one")
    assert version is not None
    results = await asyncio.gather(*(make().replace(version, b"%d" % number) for number in range(8)))
    assert sorted(results, key=str) == [version + 1, *[None] * 7]


async def test_a_state_has_a_limit(make: MakeStore, server: FakeKubernetes) -> None:
    store = make()
    full = b'"' * limits.CONSENSUS_STATE_BYTES_MAX
    version = await store.create(full)
    assert await store.read() == (version, full)
    with pytest.raises(ValueError, match="65,537 bytes"):
        await store.create(full + b"x")
    server.leases[NAME]["metadata"]["annotations"]["iotmq.io/state"] = (full + b"x").decode()
    assert "65,537 bytes" in await fails(store.read())


async def test_an_answer_has_a_limit(make: MakeStore, server: FakeKubernetes) -> None:
    store = make()
    server.fail(STATE, b"{}".ljust(limits.CONSENSUS_ANSWER_BYTES_MAX))
    assert await store.read() is None
    server.fail(STATE, b"{}".ljust(limits.CONSENSUS_ANSWER_BYTES_MAX + 1))
    assert "more than 1,048,576 bytes" in await fails(store.read())


@pytest.mark.parametrize(
    "annotations",
    [{"iotmq.io/state": "x"}, {"iotmq.io/version": "1"}, {"iotmq.io/state": "x", "iotmq.io/version": "-1"}],
)
async def test_a_state_that_somebody_has_spoiled_is_not_taken_for_none(
    make: MakeStore, server: FakeKubernetes, annotations: dict[str, str]
) -> None:
    server.leases[NAME] = server.change({"metadata": {"name": NAME, "annotations": annotations}})
    assert "iotmq.io/version" in await fails(make().read())


@pytest.mark.parametrize("fault", ["lost", "hang"])
async def test_a_change_without_an_answer_is_not_known(
    make: MakeStore, server: FakeKubernetes, fault: str
) -> None:
    server.fail(LEASES, fault)
    await fails(make(timeout_ms=patience_ms(fault)).create(b"one"))
    store = make()
    state = await store.read()
    assert state is not None
    assert state.value == b"one"
    assert await store.create(b"one") is None


@pytest.mark.parametrize("fault", ["lost", "hang", "refuse:500", b"", b"[]", b"\xff", b"[" * 9_999])
async def test_no_answer_of_use_is_no_state(
    make: MakeStore, server: FakeKubernetes, fault: str | bytes
) -> None:
    store = make(timeout_ms=patience_ms(fault))
    await make().create(b"one")
    # A read is asked for again on another connection when the first one breaks.
    server.fail(STATE, fault, times=2)
    assert STATE in await fails(store.read())


async def test_a_server_that_cannot_be_reached_is_named(make: MakeStore) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    assert address in await fails(make(api_server=address).read())


async def test_a_changed_token_is_read_again(
    make: MakeStore, server: FakeKubernetes, account: Path, clock: ManualClock
) -> None:
    store = make()
    await store.create(b"one")
    server.token = "second"
    assert "replication.kubernetes.token_file" in await fails(store.read())
    (account / "token").write_text("second")
    assert await store.read() is not None
    # Before it is refused, too.
    server.token = "third"
    (account / "token").write_text("third")
    clock.advance(5)
    server.requests.clear()
    assert await store.read() is not None
    assert server.requests[STATE] == 1
    # An empty file, as between two steps of a change, leaves the last token in use.
    (account / "token").write_text("")
    clock.advance(5)
    assert await store.read() is not None


async def test_a_missing_right_names_what_the_account_needs(make: MakeStore, server: FakeKubernetes) -> None:
    server.is_forbidden = True
    text = await fails(make().read())
    assert "get, list, watch, create" in text
    assert "leases is forbidden" in text


async def test_ages_are_measured_by_the_observer(
    make: MakeStore, server: FakeKubernetes, clock: ManualClock
) -> None:
    member, observer = make(pod_name="broker-a-1"), make()
    await member.beat(1, b"a")
    assert await observer.beats() == {1: SignOfLife(0, b"a")}
    clock.advance(1.5)
    assert await observer.beats() == {1: SignOfLife(1.5, b"a")}
    await member.beat(1, b"a")
    assert await observer.beats() == {1: SignOfLife(0, b"a")}
    spec = server.leases[f"{NAME}-member-1"]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("broker-a-1", 3)
    assert spec["renewTime"] == "2023-11-14T22:13:21.500000Z"


async def test_a_label_that_somebody_sets_is_no_beat(
    make: MakeStore, server: FakeKubernetes, clock: ManualClock
) -> None:
    store = make()
    await store.beat(1, b"a")
    await store.beats()
    clock.advance(2)
    server.change(server.leases[f"{NAME}-member-1"])
    assert await store.beats() == {1: SignOfLife(2, b"a")}


async def test_a_member_that_withdraws_is_gone_at_once(make: MakeStore) -> None:
    store = make()
    await store.beat(1, b"a")
    await store.beat(2, b"b")
    await store.withdraw(1)
    await store.withdraw(1)
    assert await store.beats() == {2: SignOfLife(0, b"b")}
    await store.beat(1, b"c")
    assert (await store.beats())[1].value == b"c"


async def test_a_sign_of_life_has_limits(make: MakeStore) -> None:
    store = make()
    full = b"x" * limits.CONSENSUS_BEAT_BYTES_MAX
    for member in range(1, limits.REPLICATION_MEMBER_MAX + 1):
        await store.beat(member, full)
    assert len(await store.beats()) == limits.REPLICATION_MEMBER_MAX
    with pytest.raises(ValueError, match="1,025 bytes"):
        await store.beat(1, full + b"x")
    with pytest.raises(ValueError, match="member 128"):
        await store.beat(limits.REPLICATION_MEMBER_MAX + 1, b"")


async def test_what_no_member_has_written_is_no_sign_of_life(make: MakeStore, server: FakeKubernetes) -> None:
    def put(name: str, value: str) -> None:
        labels = {"iotmq.io/lease": NAME}
        server.leases[name] = server.change(
            {"metadata": {"name": name, "labels": labels, "annotations": {"iotmq.io/beat": value}}}
        )

    for number in ("0", "128", "01", "x", "-1", "\u0661"):
        put(f"{NAME}-member-{number}", "a")
    put("other-member-1", "a")
    put(f"{NAME}-member-2", "x" * (limits.CONSENSUS_BEAT_BYTES_MAX + 1))
    put(f"{NAME}-member-3", "a")
    assert await make().beats() == {3: SignOfLife(0, b"a")}


async def test_the_pod_says_who_is_master(make: MakeStore, server: FakeKubernetes) -> None:
    server.pods["broker-a-0"] = {"metadata": {"labels": {"app": "broker"}}}
    store = make(pod_name="broker-a-0")
    for is_master, role in ((True, "master"), (False, "follower")):
        await store.label_pod(is_master=is_master)
        assert server.pods["broker-a-0"]["metadata"]["labels"] == {"app": "broker", "iotmq.io/role": role}
    await make().label_pod(is_master=True)
    assert "pod not found" in await fails(make(pod_name="gone").label_pod(is_master=True))


@pytest.fixture
async def watched(
    make: MakeStore, server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[int]]:
    """A watch that runs, and what it has called."""
    monkeypatch.setattr("iotmq.replication.consensus.kubernetes._WATCH_RETRY_MIN_S", 0.01)
    monkeypatch.setattr("iotmq.replication.consensus.kubernetes._WATCH_RETRY_MAX_S", 0.05)
    calls: list[int] = []
    task = asyncio.create_task(make(timeout_ms=1_000).watch(lambda: calls.append(1)))
    await soon(lambda: server.watches, "the watch is open")
    yield calls
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_watch_tells_of_changes(watched: list[int], make: MakeStore, server: FakeKubernetes) -> None:
    version = await make().create(b"one")
    await soon(lambda: len(watched) == 1, "told of the beginning")
    assert version is not None
    await make().replace(version, b"two")
    await soon(lambda: len(watched) == 2, "told of the change")
    assert server.requests[LEASES] == 2


@pytest.mark.parametrize(
    "line",
    [
        None,
        b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}',
        b"garbage",
        b"[" * 9_999,
        b'{"type":"BOOKMARK"}'.ljust(limits.CONSENSUS_ANSWER_BYTES_MAX + 1),
    ],
)
async def test_a_watch_that_ends_is_opened_again_and_begins_with_what_is_there(
    watched: list[int], make: MakeStore, server: FakeKubernetes, line: bytes | None
) -> None:
    await make().create(b"one")
    await soon(lambda: len(watched) == 1, "told of the beginning")
    server.tell(line)
    await soon(lambda: len(watched) == 3, "told of the end and of what is there")
    assert server.requests[LEASES] == 3


async def test_a_line_of_a_watch_has_a_limit(watched: list[int], server: FakeKubernetes) -> None:
    server.tell(b'{"type":"BOOKMARK"}'.ljust(limits.CONSENSUS_ANSWER_BYTES_MAX))
    await soon(lambda: len(watched) == 1, "told of the longest line")
    assert server.requests[LEASES] == 1


async def test_a_refused_watch_reads_the_token_again(
    watched: list[int], server: FakeKubernetes, account: Path
) -> None:
    server.token = "second"
    (account / "token").write_text("second")
    server.tell(None)
    await soon(lambda: server.requests[LEASES] >= 2 and server.watches, "opened again")


async def test_a_silent_watch_is_opened_again(
    make: MakeStore, server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_SILENCE_S", 0.05)
    calls: list[int] = []
    task = asyncio.create_task(make().watch(lambda: calls.append(1)))
    await soon(lambda: server.requests[LEASES] >= 3, "opened three times")
    task.cancel()


async def test_a_pod_needs_no_settings(
    make: MakeStore, server: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    text = await fails(make(api_server="", timeout_ms=200).read())
    assert "https://[::1]:6443/apis/coordination.k8s.io/v1/namespaces/factory/leases/" in text
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(ConfigError, match=r"replication\.kubernetes\.api_server"):
        make(api_server="")


async def test_files_that_are_no_use_are_refused_at_once(make: MakeStore, account: Path) -> None:
    with pytest.raises(ConfigError, match=r"replication\.kubernetes\.ca_file"):
        make(ca_file="/nowhere.pem")
    with pytest.raises(ConfigError, match=r"replication\.kubernetes\.token_file"):
        make(token_file="/nowhere/token", namespace="factory")
    for token in (b"", b"a\nb", b"\xff", b"x" * 65_537):
        (account / "token").write_bytes(token)
        with pytest.raises(ConfigError, match=r"replication\.kubernetes\.token_file"):
            make()
    (account / "token").write_text("x")
    (account / "namespace").unlink()
    with pytest.raises(ConfigError, match=r"replication\.kubernetes\.namespace"):
        make()
