"""Members of a replicated broker in this process, with an etcd in memory: roles, refusals, bad peers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from fake_etcd import FakeEtcd, FakeEtcdData
from gateway_process import free_port

from iotmq.broker.settings import BrokerSettings
from iotmq.clock import SystemClock
from iotmq.errors import BrokerError
from iotmq.member.peers import PeerConnector
from iotmq.member.replicated_broker import ReplicatedBroker
from iotmq.member.wire import Introduction, encode_open
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.replication.cluster_state import Identity
from iotmq.replication.consensus.settings import EtcdSettings
from iotmq.replication.messages import Open
from iotmq.replication.settings import ReplicationSettings
from iotmq.store.settings import StoreSettings

SEGMENT_BYTES = 4 * 1024 * 1024
ACCOUNTS = """
accounts:
  - {accessKey: members, secretKey: abcdefgh, admin: true}
  - {accessKey: services, secretKey: 12345678, topicPerms: [T=PUB|SUB]}
"""


class Site:
    """Members by their numbers, and the etcd they share."""

    def __init__(self, directory: Path, etcd: FakeEtcd, count: int) -> None:
        self.directory = directory
        self.etcd = etcd
        self.ports = {number: free_port() for number in range(1, count + 1)}
        self.members: dict[int, ReplicatedBroker] = {}

    async def start(
        self,
        number: int,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        directory: str = "",
        broker: dict[str, Any] | None = None,
        replication: dict[str, Any] | None = None,
        port: int | None = None,
    ) -> ReplicatedBroker:
        member = ReplicatedBroker(
            BrokerSettings(
                name="b", registries=(), listen_port=port or self.ports[number], **(broker or {})
            ),
            StoreSettings(segment_bytes=segment_bytes),
            ReplicationSettings(
                **{  # type: ignore[arg-type]
                    "mode": "elected",
                    "member": number,
                    "members": tuple(f"{n}=127.0.0.1:{p}" for n, p in self.ports.items()),
                    "etcd": EtcdSettings(endpoints=(self.etcd.url,), timeout_ms=1_000),
                    **(replication or {}),
                }
            ),
            directory=self.directory / (directory or str(number)),
            clock=SystemClock(),
        )
        await member.start()
        self.members[number] = member
        return member

    async def start_all(self, **options: Any) -> int:
        for number in self.ports:
            await self.start(number, **options)
        return await self.master()

    async def master(self) -> int:
        """The member that serves, once there is one."""
        await soon(lambda: any(member.broker for member in self.members.values()), "a member serves")
        return next(number for number, member in self.members.items() if member.broker)

    async def in_sync(self, count: int) -> None:
        def are_in_sync() -> bool:
            status = self.status(next((n for n, m in self.members.items() if m.broker), 0))
            return status is not None and len(status["state"]["in_sync"]) == count

        await soon(are_in_sync, f"{count} members are in sync")

    def status(self, number: int) -> dict[str, Any] | None:
        member = self.members.get(number)
        run = None if member is None else member._run
        return None if run is None else run.driver.status()

    async def stop(self, number: int) -> None:
        await self.members.pop(number).stop()

    def connect(self, number: int) -> Awaitable[ClientConnection]:
        return ClientConnection.connect("127.0.0.1", self.ports[number])


@pytest.fixture
async def etcd() -> AsyncIterator[FakeEtcd]:
    async with FakeEtcd(FakeEtcdData(SystemClock())) as node:  # type: ignore[arg-type]
        yield node


MakeSite = Callable[..., Site]


@pytest.fixture
async def make(tmp_path: Path, etcd: FakeEtcd) -> AsyncIterator[MakeSite]:
    sites: list[Site] = []

    def make(count: int = 3) -> Site:
        sites.append(Site(tmp_path, etcd, count))
        return sites[-1]

    yield make
    for site in sites:
        for number in list(site.members):
            await site.stop(number)


async def send(connection: ClientConnection, body: bytes) -> Command:
    """Send a message to the topic T, which is made with the first one."""
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    return await connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, fields, body), 10.0)


def bodies(site: Site, number: int) -> list[bytes]:
    """What consumers of a member would see in the queue 0 of T."""
    run = site.members[number]._run
    assert run is not None
    queue = run.opened.store.find_queue("T", 0)
    if queue is None:
        return []
    found = []
    for offset in range(queue.max_offset):
        entry = queue.entry(offset)
        assert entry is not None
        found.append(bytes(run.opened.store.read_record(entry[0])))
    return found


async def test_what_is_acknowledged_is_at_all_members_and_stays(make: MakeSite) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    connection = await site.connect(master)
    for number in range(20):
        assert (await send(connection, b"%d" % number)).code == ResponseCode.SUCCESS
    expected = bodies(site, master)
    assert len(expected) == 20
    for number in site.members:
        await soon(lambda number=number: bodies(site, number) == expected, f"member {number} shows all")
    await site.stop(master)
    new = await site.master()
    assert new != master
    assert bodies(site, new) == expected
    connection = await site.connect(new)
    assert (await send(connection, b"more")).code == ResponseCode.SUCCESS
    await site.start(master)
    await site.in_sync(3)
    await soon(lambda: len(bodies(site, master)) == 21, "the former master follows")
    assert bodies(site, master)[:20] == expected


async def test_a_follower_refuses_clients_and_says_who_is_master(make: MakeSite) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    follower = next(number for number in site.members if number != master)
    connection = await site.connect(follower)
    answer = await send(connection, b"no")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark == f"the master is member {master}, 127.0.0.1:{site.ports[master]}"
    assert answer.ext["isMaster"] == "false"
    assert sum(m.value for m in site.members[follower].metrics() if "refused_requests" in m.name) == 1


async def test_operators_ask_and_hand_over(make: MakeSite) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    target = next(number for number in site.members if number != master)
    connection = await site.connect(target)
    refused = await connection.request(Command.request(RequestCode.HAND_OVER, {"member": str(master)}))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "not master" in (refused.remark or "")
    answer = await connection.request(Command.request(RequestCode.GET_MEMBER_STATUS))
    status = json.loads(answer.body_bytes())
    assert (status["member"], status["role"], status["isServing"]) == (target, "following", False)
    client = await site.connect(master)
    ended = asyncio.Event()
    client._on_lost_call = lambda _: ended.set()
    done = await client.request(Command.request(RequestCode.HAND_OVER, {"member": str(target)}))
    assert done.code == ResponseCode.SUCCESS
    await soon(lambda: site.members[target].broker, "the other one serves")
    await site.in_sync(3)
    assert site.members[master].broker is None


async def test_with_too_few_members_nothing_is_taken(make: MakeSite) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    for number in [number for number in site.members if number != master]:
        await site.stop(number)
    await site.in_sync(1)
    connection = await site.connect(master)

    async def is_refused() -> bool:
        return (await send(connection, b"no")).code == ResponseCode.SERVICE_NOT_AVAILABLE

    assert await is_refused()
    status = site.status(master)
    assert status is not None
    assert "replication.in_sync_min is 2" in status["holds"]
    other = next(number for number in site.ports if number not in site.members)
    await site.start(other)
    await site.in_sync(2)
    assert (await send(connection, b"yes")).code == ResponseCode.SUCCESS


async def test_two_members_go_on_alone(make: MakeSite) -> None:
    site = make(2)
    master = await site.start_all()
    await site.in_sync(2)
    await site.stop(next(number for number in site.members if number != master))
    await site.in_sync(1)
    connection = await site.connect(master)
    assert (await send(connection, b"alone")).code == ResponseCode.SUCCESS


async def test_without_etcd_sends_go_on(make: MakeSite, etcd: FakeEtcd) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    connection = await site.connect(master)
    for path in ("kv/range", "kv/txn", "kv/put", "lease/grant", "lease/keepalive", "lease/timetolive"):
        etcd.fail(f"/v3/{path}", "refuse:503", 1_000)

    def failures() -> float:
        return sum(m.value for m in site.members[master].metrics() if "consensus_failures" in m.name)

    await soon(lambda: failures() > 3, "the consensus store is away")
    for number in range(5):
        assert (await send(connection, b"%d" % number)).code == ResponseCode.SUCCESS
    assert await site.master() == master


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"segment_bytes": 2 * SEGMENT_BYTES}, "they cannot be copies of each other"),
        ({"broker": {"cluster": "another"}}, "they cannot be copies of each other"),
    ],
)
async def test_a_follower_with_another_store_is_refused(
    make: MakeSite, options: dict[str, Any], words: str
) -> None:
    site = make()
    del site.ports[3]
    master = await site.start_all()
    await site.in_sync(2)
    stranger = await asyncio.wait_for(_introduced(site, master, **options), 10)
    assert words in stranger


async def _introduced(
    site: Site, master: int, *, segment_bytes: int = SEGMENT_BYTES, broker: dict[str, Any] | None = None
) -> str:
    """Open as member 2 with another introduction: why it is refused."""
    said: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def take(_: ClientConnection, request: Command) -> None:
        said.set_result(request.ext["text"])

    connection = await ClientConnection.connect("127.0.0.1", site.ports[master], on_request=take)
    cluster = (broker or {}).get("cluster", "DefaultCluster")
    introduction = Introduction(cluster=cluster, broker="b", segment_bytes=segment_bytes)
    connection.send_oneway(encode_open(Open(Identity(2, "x"), 0, 0, 0, 0, ()), introduction))
    text = await said
    await soon(lambda: connection.is_closed, "the connection ends")
    return text


@pytest.mark.parametrize(("number", "words"), [(1, "two members have the number 1"), (9, "does not name")])
async def test_a_number_that_cannot_be_is_refused(make: MakeSite, number: int, words: str) -> None:
    site = make(1)
    await site.start_all(replication={"in_sync_min": 1})
    said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    connection = await ClientConnection.connect(
        "127.0.0.1", site.ports[1], on_request=lambda _, request: said.set_result(request.ext["text"])
    )
    introduction = Introduction(cluster="DefaultCluster", broker="b", segment_bytes=SEGMENT_BYTES)
    connection.send_oneway(encode_open(Open(Identity(number, "x"), 0, 0, 0, 0, ()), introduction))
    assert words in await asyncio.wait_for(said, 10)


async def test_garbage_between_members_ends_its_connection_only(make: MakeSite) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    for fields, body in (
        ({"kind": "open"}, b"no json"),
        ({"kind": "open"}, b"{}"),
        ({}, b""),
        ({"kind": "data", "epoch": "1", "position": "0", "end": "5", "confirmed": "0"}, b"12345"),
        ({"kind": "ack", "epoch": "1", "received": "999999999", "flushed": "0"}, b""),
    ):
        connection = await site.connect(master)
        connection.send_oneway(Command.request(RequestCode.MEMBER_MESSAGE, fields, body))
        if fields.get("kind") == "open":
            await soon(lambda connection=connection: connection.is_closed, "the connection ends")
    connection = await site.connect(master)
    assert (await send(connection, b"still")).code == ResponseCode.SUCCESS
    await site.in_sync(3)


async def test_members_and_operators_need_an_administrator_where_access_is_controlled(
    make: MakeSite, tmp_path: Path
) -> None:
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    site = make()
    controlled = {"acl_enabled": True, "acl_file": str(accounts)}
    own = {"access_key": "members", "secret_key": "abcdefgh"}
    master = await site.start_all(broker=controlled, replication=own)
    await site.in_sync(3)
    introduction = Introduction(cluster="DefaultCluster", broker="b", segment_bytes=SEGMENT_BYTES)

    def connector(**keys: str) -> PeerConnector:
        members = tuple(f"{n}=127.0.0.1:{p}" for n, p in site.ports.items())
        return PeerConnector(ReplicationSettings(members=members, **keys), introduction)

    for keys in ({}, {"access_key": "services", "secret_key": "12345678"}):
        with pytest.raises(BrokerError) as refused:
            await connector(**keys).status(master, timeout_s=5.0)
        assert refused.value.code == ResponseCode.NO_PERMISSION
        connection = await connector(**keys).connect(master, timeout_s=5.0)
        connection.send_oneway(encode_open(Open(Identity(2, "x"), 0, 0, 0, 0, ()), introduction))
        hand_over = await connection.request(Command.request(RequestCode.HAND_OVER))
        assert hand_over.code == ResponseCode.NO_PERMISSION
    assert (await connector(**own).status(master, timeout_s=5.0))["role"] == "leading"
    await site.in_sync(3)


async def test_a_broker_that_has_messages_becomes_the_first_master(make: MakeSite, tmp_path: Path) -> None:
    site = make()
    # As a broker of its own has left it.
    from iotmq.store.store import Store

    store = Store.open(tmp_path / "2", StoreSettings(segment_bytes=SEGMENT_BYTES), store_host=bytes(8))
    store.append(
        store.queue("T", 0), encode_batch([(b"old", b"", 0)]), born_timestamp_ms=0, born_host=bytes(8)
    )
    store.close()
    assert await site.start_all() == 2
    await site.in_sync(3)
    for number in site.members:
        await soon(lambda number=number: len(bodies(site, number)) == 1, f"member {number} has it")
