"""The consensus store in etcd, against nodes that conflict, lag, hang, lose answers and send garbage."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from certificates import make_certificate, make_root
from eventually import soon
from fake_etcd import FakeEtcd, FakeEtcdData
from gateway_process import free_port
from http_faults import fails, patience_ms
from manual_clock import ManualClock

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.replication.consensus import http
from iotmq.replication.consensus.etcd import EtcdStore
from iotmq.replication.consensus.opening import open_consensus_store
from iotmq.replication.consensus.port import SignOfLife, Versioned
from iotmq.replication.consensus.settings import EtcdSettings

STATE = b"/iotmq/factory/b/state"
MEMBERS = b"/iotmq/factory/b/members/"
RANGE, TRANSACTION = "/v3/kv/range", "/v3/kv/txn"

MakeStore = Callable[..., EtcdStore]


@pytest.fixture
def data() -> FakeEtcdData:
    return FakeEtcdData(ManualClock())


@pytest.fixture
async def node(data: FakeEtcdData) -> AsyncIterator[FakeEtcd]:
    async with FakeEtcd(data) as node:
        yield node


@pytest.fixture
async def other(data: FakeEtcdData) -> AsyncIterator[FakeEtcd]:
    async with FakeEtcd(data) as node:
        yield node


@pytest.fixture
async def make(data: FakeEtcdData) -> AsyncIterator[MakeStore]:
    stores: list[EtcdStore] = []

    def make(*endpoints: str, timeout_ms: int = 5_000, **settings: str) -> EtcdStore:
        store = open_consensus_store(
            EtcdSettings(endpoints=endpoints, timeout_ms=timeout_ms, **settings),  # type: ignore[arg-type]
            cluster="factory", broker="b", clock=data.clock,
        )  # fmt: skip
        assert isinstance(store, EtcdStore)
        stores.append(store)
        return store

    yield make
    for store in stores:
        await store.close()


async def test_a_state_is_created_once_and_replaced_by_its_version(make: MakeStore, node: FakeEtcd) -> None:
    store = make(node.url)
    assert await store.read() is None
    assert await store.replace(5, b"too early") is None
    first = await store.create(b"one")
    assert first is not None
    assert await store.create(b"again") is None
    second = await store.replace(first, b"two")
    assert second is not None
    assert second > first
    assert await store.replace(first, b"late") is None
    assert await store.read() == Versioned(second, b"two")


async def test_a_removed_state_is_created_with_a_higher_version(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    store = make(node.url)
    first = await store.create(b"one")
    data.keys.clear()
    second = await store.create(b"two")
    assert first is not None
    assert second is not None
    assert second > first


async def test_a_state_has_a_limit(make: MakeStore, node: FakeEtcd, data: FakeEtcdData) -> None:
    store = make(node.url)
    version = await store.create(b"x" * limits.CONSENSUS_STATE_BYTES_MAX)
    assert version is not None
    with pytest.raises(ValueError, match="65,537 bytes"):
        await store.replace(version, b"x" * (limits.CONSENSUS_STATE_BYTES_MAX + 1))
    assert await store.read() == Versioned(version, b"x" * limits.CONSENSUS_STATE_BYTES_MAX)
    data.put(STATE, b"x" * (limits.CONSENSUS_STATE_BYTES_MAX + 1))
    assert "65,537 bytes" in await fails(store.read())


async def test_an_answer_has_a_limit(make: MakeStore, node: FakeEtcd) -> None:
    store = make(node.url)
    answer = json.dumps({"header": {"cluster_id": "1", "revision": "1", "raft_term": "1"}}).encode()
    node.fail(RANGE, answer.ljust(limits.CONSENSUS_ANSWER_BYTES_MAX))
    assert await store.read() is None
    node.fail(RANGE, answer.ljust(limits.CONSENSUS_ANSWER_BYTES_MAX + 1))
    assert "more than 1,048,576 bytes" in await fails(store.read())


@pytest.mark.parametrize("fault", ["lost", "hang"])
async def test_a_change_without_an_answer_is_not_known_and_not_asked_for_elsewhere(
    make: MakeStore, node: FakeEtcd, other: FakeEtcd, fault: str
) -> None:
    store = make(node.url, other.url, timeout_ms=patience_ms(fault))
    first = await make(node.url).create(b"one")
    assert first is not None
    node.fail(TRANSACTION, fault)
    await fails(store.replace(first, b"two"))
    assert other.requests[TRANSACTION] == 0
    # It was carried out: asking again is refused, and a read says why.
    assert await store.replace(first, b"two") is None
    state = await store.read()
    assert state is not None
    assert state.value == b"two"


@pytest.mark.parametrize(
    "fault", ["lost", "hang", "refuse:503", b"{", b'{"header":1}', b"\xff", b"[" * 9_999]
)
async def test_a_read_without_an_answer_of_use_is_asked_for_elsewhere(
    make: MakeStore, node: FakeEtcd, other: FakeEtcd, fault: str | bytes
) -> None:
    store = make(node.url, other.url, timeout_ms=patience_ms(fault))
    version = await make(node.url).create(b"one")
    node.fail(RANGE, fault)
    assert await store.read() == (version, b"one")
    # The node that answers is remembered.
    node.requests.clear()
    assert await store.read() == (version, b"one")
    assert node.requests[RANGE] == 0


@pytest.mark.parametrize("fault", [b"", b"{}", b"null", b"[" * 9_999, b"\xff", "refuse:500"])
async def test_garbage_is_not_taken_for_a_refusal(
    make: MakeStore, node: FakeEtcd, fault: str | bytes
) -> None:
    store = make(node.url)
    version = await store.create(b"one")
    assert version is not None
    node.fail(TRANSACTION, fault)
    assert node.url in await fails(store.replace(version, b"two"))


async def test_a_change_goes_to_another_node_when_one_cannot_be_reached(
    make: MakeStore, node: FakeEtcd
) -> None:
    store = make(f"http://127.0.0.1:{free_port()}", node.url)
    assert await store.create(b"one") is not None


async def test_the_setting_is_named_when_no_node_answers(make: MakeStore) -> None:
    store = make(f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}")
    assert "replication.etcd.endpoints" in await fails(store.read())
    assert "replication.etcd.endpoints" in await fails(store.create(b"one"))


@pytest.mark.parametrize("lag", ["revision_behind", "term_behind"])
async def test_a_node_that_is_behind_is_not_believed(
    make: MakeStore, node: FakeEtcd, other: FakeEtcd, lag: str
) -> None:
    store = make(node.url, other.url)
    version = await store.create(b"one")
    setattr(node, lag, 1)
    assert await store.read() == (version, b"one")
    assert other.requests[RANGE] == 1
    setattr(other, lag, 1)
    assert "is behind" in await fails(store.read())


async def test_nodes_of_two_clusters_are_not_mixed(make: MakeStore, node: FakeEtcd, other: FakeEtcd) -> None:
    store = make(node.url, other.url)
    await store.create(b"one")
    other.cluster_id = "2"
    node.fail(RANGE, "refuse:503")
    text = await fails(store.read())
    assert "another etcd cluster" in text
    assert "replication.etcd.endpoints" in text


async def test_a_login_is_renewed_when_its_token_is_refused(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    data.password = "secret"
    store = make(node.url, user="iotmq", password="secret")
    version = await store.create(b"one")
    assert version is not None
    data.tokens.clear()
    assert await store.replace(version, b"two") is not None
    assert node.requests["/v3/auth/authenticate"] == 2


@pytest.mark.parametrize(
    ("user", "password", "setting"),
    [("", "", "replication.etcd.user"), ("iotmq", "wrong", "replication.etcd.password")],
)
async def test_a_login_that_fails_names_the_setting(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData, user: str, password: str, setting: str
) -> None:
    data.password = "secret"
    assert setting in await fails(make(node.url, user=user, password=password).read())


async def test_a_user_at_an_etcd_without_users_names_the_setting(make: MakeStore, node: FakeEtcd) -> None:
    assert "replication.etcd.user" in await fails(make(node.url, user="iotmq").read())


async def test_a_missing_right_names_the_user_and_the_keys(
    make: MakeStore, node: FakeEtcd, other: FakeEtcd, data: FakeEtcdData
) -> None:
    data.password = "secret"
    data.may_write = False
    text = await fails(make(node.url, other.url, user="iotmq", password="secret").create(b"one"))
    assert "replication.etcd.user" in text
    assert "/iotmq" in text
    assert other.requests == {}


async def test_a_beat_writes_what_has_changed_and_keeps_the_rest_alive(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    store = make(node.url)
    for value in (b"a", b"a", b"b", b"b"):
        await store.beat(2, value)
        data.clock.advance(2.5)
    assert node.puts == 2
    assert len(data.leases) == 1
    assert data.keys[MEMBERS + b"2"].value == b"b"


async def test_a_member_whose_lease_is_gone_takes_another(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    store = make(node.url)
    await store.beat(2, b"a")
    data.clock.advance(3)
    await store.beat(2, b"a")
    data.expire()
    assert (await store.beats())[2].value == b"a"


async def test_a_beat_that_failed_is_repeated_with_the_next_one(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    store = make(node.url)
    await store.beat(2, b"a")
    node.fail("/v3/kv/put", "refuse:503")
    await fails(store.beat(2, b"b"))
    await store.beat(2, b"b")
    assert data.keys[MEMBERS + b"2"].value == b"b"


async def test_a_beat_without_an_answer_is_not_taken_for_one_that_failed(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    store = make(node.url)
    await store.beat(2, b"a")
    node.fail("/v3/kv/put", "lost")
    await fails(store.beat(2, b"b"))
    await store.beat(2, b"a")
    assert data.keys[MEMBERS + b"2"].value == b"a"


async def test_a_key_whose_lease_is_gone_is_no_sign_of_life(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    store = make(node.url)
    await store.beat(2, b"a")
    # etcd looks for leases that have expired twice a second.
    data.leases.clear()
    assert await store.beats() == {}


async def test_an_error_inside_the_answer_of_a_keep_alive_is_one(make: MakeStore, node: FakeEtcd) -> None:
    store = make(node.url)
    await store.beat(2, b"a")
    node.fail("/v3/lease/keepalive", b'{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}')
    assert "no leader" in await fails(store.beat(2, b"a"))


async def test_ages_are_those_of_beats_whether_values_change_or_not(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    member, observer = make(node.url), make(node.url)
    await member.beat(1, b"a")
    assert await observer.beats() == {1: SignOfLife(0, b"a")}
    for _ in range(6):
        data.clock.advance(0.75)
        await member.beat(1, b"a")
        data.clock.advance(0.25)
        assert await observer.beats() == {1: SignOfLife(0, b"a")}
    data.clock.advance(1)
    assert await observer.beats() == {1: SignOfLife(1, b"a")}
    await member.beat(1, b"b")
    assert await observer.beats() == {1: SignOfLife(0, b"b")}
    data.clock.advance(0.5)
    assert await observer.beats() == {1: SignOfLife(0, b"b")}
    data.clock.advance(2.5)
    assert await observer.beats() == {}


async def test_an_observer_that_was_stopped_does_not_take_its_own_pause_for_silence(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    member, observer = make(node.url), make(node.url)
    await member.beat(1, b"a")
    await observer.beats()
    for _ in range(10):
        data.clock.advance(1)
        await member.beat(1, b"a")
    assert await observer.beats() == {1: SignOfLife(0, b"a")}


async def test_a_member_that_withdraws_is_gone_at_once(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    store, restarted = make(node.url), make(node.url)
    await store.beat(1, b"a")
    await store.withdraw(1)
    assert await store.beats() == {}
    await store.beat(1, b"a")
    await restarted.withdraw(1)
    assert await store.beats() == {}
    await store.withdraw(1)
    # The lease may be gone already.
    await store.beat(1, b"a")
    data.leases.clear()
    await store.withdraw(1)


async def test_a_sign_of_life_has_limits(make: MakeStore, node: FakeEtcd, data: FakeEtcdData) -> None:
    store = make(node.url)
    full = b"x" * limits.CONSENSUS_BEAT_BYTES_MAX
    for member in range(1, limits.REPLICATION_MEMBER_MAX + 1):
        await store.beat(member, full)
    assert len(await store.beats()) == limits.REPLICATION_MEMBER_MAX == 127
    with pytest.raises(ValueError, match="1,025 bytes"):
        await store.beat(1, full + b"x")
    for member in (0, limits.REPLICATION_MEMBER_MAX + 1):
        with pytest.raises(ValueError, match="member"):
            await store.beat(member, b"")


async def test_what_no_member_has_written_is_no_sign_of_life(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    lease = data.grant(3)
    for name in (b"", b"0", b"128", b"-1", b"1/x", b"\xb2", b"0001"):
        data.put(MEMBERS + name, b"a", lease)
    data.put(MEMBERS + b"2", b"x" * (limits.CONSENSUS_BEAT_BYTES_MAX + 1), lease)
    data.put(MEMBERS + b"3", b"by hand")
    data.put(MEMBERS + b"4", b"a", lease)
    assert await make(node.url).beats() == {4: SignOfLife(0, b"a")}


@pytest.fixture
async def watched(
    make: MakeStore, node: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[int]]:
    """A watch that runs, and what it has called."""
    monkeypatch.setattr("iotmq.replication.consensus.etcd._WATCH_RETRY_MIN_S", 0.01)
    monkeypatch.setattr("iotmq.replication.consensus.etcd._WATCH_RETRY_MAX_S", 0.05)
    calls: list[int] = []
    task = asyncio.create_task(make(node.url, timeout_ms=1_000).watch(lambda: calls.append(1)))
    await soon(lambda: node.data.watches, "the watch is open")
    yield calls
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_watch_tells_of_its_beginning_and_of_changes(
    watched: list[int], make: MakeStore, node: FakeEtcd
) -> None:
    await soon(lambda: len(watched) == 1, "told of the beginning")
    await make(node.url).create(b"one")
    await soon(lambda: len(watched) == 2, "told of the change")
    assert node.requests["/v3/watch"] == 1


@pytest.mark.parametrize(
    "line",
    [
        None,
        b'{"result":{"canceled":true,"cancel_reason":"no permission"}}',
        b'{"error":{"grpc_code":14,"message":"no leader"}}',
        b"garbage",
        b"[" * 9_999,
        b'{"result":{}}'.ljust(limits.CONSENSUS_ANSWER_BYTES_MAX + 1),
    ],
)
async def test_a_watch_that_ends_is_opened_again(
    watched: list[int], node: FakeEtcd, line: bytes | None
) -> None:
    node.data.tell(line)
    await soon(lambda: node.requests["/v3/watch"] == 2 and len(watched) == 2, "opened again")


async def test_a_line_of_a_watch_has_a_limit(watched: list[int], node: FakeEtcd) -> None:
    node.data.tell(b'{"result":{}}'.ljust(limits.CONSENSUS_ANSWER_BYTES_MAX))
    await soon(lambda: len(watched) == 2, "told of the longest line")
    assert node.requests["/v3/watch"] == 1


async def test_a_watch_is_opened_again_after_a_refusal_and_without_an_answer(
    watched: list[int], node: FakeEtcd
) -> None:
    for fault in ("refuse:503", "lost"):
        node.fail("/v3/watch", fault)
    node.data.tell(None)
    await soon(lambda: len(watched) == 2, "opened again")


async def test_a_silent_watch_is_opened_again(
    make: MakeStore, node: FakeEtcd, other: FakeEtcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_SILENCE_S", 0.05)
    calls: list[int] = []
    store = make(node.url, other.url)
    task = asyncio.create_task(store.watch(lambda: calls.append(1)))
    await soon(lambda: len(calls) >= 3, "opened three times")
    task.cancel()
    # Silence is no reason to ask another node.
    assert other.requests == {}


async def test_a_token_that_a_watch_has_given_up_meanwhile_is_replaced_all_the_same(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    data.password = "secret"
    store = make(node.url, user="iotmq", password="secret")
    version = await store.create(b"one")
    assert version is not None
    data.tokens.clear()
    answer, refused = node._answer, asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        response = await answer(request)
        if request.path == TRANSACTION and response.status == 401:
            # The watch has its refusal before.
            await refused.wait()
        return response

    node._handler = late
    replacing = asyncio.create_task(store.replace(version, b"two"))
    await soon(lambda: node.requests[TRANSACTION] == 2, "the change is asked for")
    watching = asyncio.create_task(store.watch(lambda: None))
    await soon(lambda: not store._nodes._token, "the watch has been refused")
    refused.set()
    assert await replacing is not None
    watching.cancel()


async def test_a_watch_with_a_refused_token_logs_in_again(
    make: MakeStore, node: FakeEtcd, data: FakeEtcdData
) -> None:
    data.password = "secret"
    store = make(node.url, user="iotmq", password="secret")
    await store.read()
    data.tokens.clear()
    calls: list[int] = []
    task = asyncio.create_task(store.watch(lambda: calls.append(1)))
    await soon(lambda: calls, "the watch is open")
    task.cancel()


async def test_connections_are_encrypted_and_the_node_is_checked(
    make: MakeStore, data: FakeEtcdData, tmp_path: Path
) -> None:
    root, stranger = make_root(tmp_path), make_root(tmp_path, "stranger")
    server, own = make_certificate(tmp_path, root), make_certificate(tmp_path, root, "own")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*server)
    context.load_verify_locations(root.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    async with FakeEtcd(data, context) as node:
        files = {"cert_file": own.certificate, "key_file": own.key}
        assert await make(node.url, ca_file=root.certificate, **files).read() is None
        await fails(make(node.url, ca_file=stranger.certificate, **files).read())
        await fails(make(node.url, ca_file=root.certificate).read())


async def test_files_and_names_that_are_no_use_are_refused_at_once(data: FakeEtcdData) -> None:
    with pytest.raises(ConfigError, match=r"replication\.etcd\.ca_file"):
        EtcdStore(EtcdSettings(ca_file="/nowhere.pem"), cluster="c", broker="b", clock=data.clock)
    for name in ("", "a/b"):
        with pytest.raises(ConfigError, match="without a slash"):
            EtcdStore(EtcdSettings(), cluster=name, broker="b", clock=data.clock)
