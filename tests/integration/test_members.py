"""Members of a replicated broker in this process, with an etcd in memory: roles, refusals, bad peers."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eventually import soon
from fake_etcd import FakeEtcd
from gateway_process import free_port
from member_site import ACCOUNTS, SEGMENT_BYTES, MakeSite, Site, bodies, send

from iotmq.errors import BrokerError, StoreFullError
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import Introduction, encode_open
from iotmq.message.records.record import encode_batch
from iotmq.ports.replication_state import REPLICATION, ReplicationAnswer, ReplicationState
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.signature import Credentials
from iotmq.replicated.member_store import MemberStore
from iotmq.replication.cluster_state import Identity
from iotmq.replication.messages import Open
from iotmq.replication.ports import MemberSettings
from iotmq.replication.settings import ReplicationSettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

STATE = b"/iotmq/DefaultCluster/b/state"


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


async def test_another_master_knows_what_offsets_of_the_former_one_mean(make: MakeSite) -> None:
    """Readers with offsets of their own are told of no change, because nothing that was shown is lost."""
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    connection = await site.connect(master)

    async def bounds(connection: ClientConnection, **fields: str) -> Any:
        request = Command.request(RequestCode.GET_QUEUE_BOUNDS, {"topic": "T", **fields})
        response = await connection.request(request, timeout_s=10)
        assert response.code == ResponseCode.SUCCESS, response.remark
        return json.loads(response.body_bytes())

    for number in range(20):
        assert (await send(connection, b"%d" % number)).code == ResponseCode.SUCCESS
    before = await bounds(connection)
    await site.stop(master)
    connection = await site.connect(await site.master())
    after = await bounds(connection, generation=before["generation"])
    epochs = [int(view["generation"].partition("-")[0]) for view in (before, after)]
    assert epochs[0] < epochs[1], "a generation is the master's epoch"
    assert before["generation"].partition("-")[2] == after["generation"].partition("-")[2] != "0"
    read = {queue["queueId"]: queue["maxOffset"] for queue in before["queues"]}
    assert sum(read.values()) == 20
    for queue in after["queues"]:
        assert queue["maxOffset"] == read[queue["queueId"]]
        assert queue.get("changedOffset", read[queue["queueId"]]) >= read[queue["queueId"]]
    # A reader that has seen a newer master than the one it asks is not told anything.
    request = Command.request(
        RequestCode.GET_QUEUE_BOUNDS, {"topic": "T", "generation": f"{epochs[1] + 1}-0"}
    )
    response = await connection.request(request, timeout_s=10)
    assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_follower_passes_requests_on_to_the_master(make: MakeSite) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    follower = next(number for number in site.members if number != master)
    connection = await site.connect(follower)
    assert (await send(connection, b"by way of a follower")).code == ResponseCode.SUCCESS
    assert len(bodies(site, master)) == 1


async def test_a_member_whose_settings_name_others_uses_the_recorded_members_and_says_so(
    make: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    follower = next(number for number in site.members if number != master)
    await site.stop(follower)
    caplog.clear()
    await site.start(follower, replication={"members": (f"{follower}=127.0.0.1:{site.ports[follower]}",)})
    text = f"replication.members of member {follower} names others"
    await soon(lambda: text in caplog.text, "it says so")
    await site.in_sync(3)
    connection = await site.connect(follower)
    assert (await send(connection, b"by way of a follower")).code == ResponseCode.SUCCESS
    assert len(bodies(site, master)) == 1


async def ask_for(site: Site, code: int, **fields: str) -> Command:
    connection = await site.connect(await site.master())
    try:
        return await connection.request(Command.request(code, fields), 10.0)
    finally:
        await connection.close()


def address(site: Site, number: int) -> str:
    return f"127.0.0.1:{site.ports[number]}"


async def test_a_member_is_added_and_becomes_master_and_clients_of_others_reach_it(make: MakeSite) -> None:
    site = make()
    first = await site.start_all()
    await site.in_sync(3)
    assert (await send(await site.connect(first), b"before")).code == ResponseCode.SUCCESS
    site.ports[4] = free_port()
    fourth = await site.start(4)
    await soon(
        lambda: "iotmq replication add 4=" in str(fourth.not_ready_reason), "it says what it waits for"
    )
    assert (site.status(4) or {})["role"] == "held"
    answer = await ask_for(site, RequestCode.ADD_MEMBER, member="4", address=address(site, 4))
    assert answer.code == ResponseCode.SUCCESS
    await site.in_sync(4)
    assert bodies(site, 4) == bodies(site, first)
    assert alarms(site, 4) == [], "what it waited for is over"
    answer = await ask_for(site, RequestCode.HAND_OVER, member="4")
    assert answer.code == ResponseCode.SUCCESS
    await soon(lambda: fourth.broker, "the new member serves")
    # The others were started without a word of it.
    for number in (1, 2, 3):
        connection = await site.connect(number)
        assert (await send(connection, b"by way of another")).code == ResponseCode.SUCCESS
    assert len(bodies(site, 4)) == 4


async def test_a_member_that_is_removed_is_not_waited_for_and_comes_back_as_a_new_one(make: MakeSite) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    removed, other = (number for number in site.members if number != master)
    refused = await ask_for(site, RequestCode.REMOVE_MEMBER, member=str(master))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "iotmq replication hand-over" in (refused.remark or "")
    answer = await ask_for(site, RequestCode.REMOVE_MEMBER, member=str(removed))
    assert answer.code == ResponseCode.SUCCESS
    await site.in_sync(2)
    await soon(lambda: (site.status(removed) or {}).get("role") == "held", "the removed one takes no part")
    assert "none any more" in str(site.members[removed].not_ready_reason)
    connection = await site.connect(master)
    assert (await send(connection, b"without it")).code == ResponseCode.SUCCESS
    assert bodies(site, removed) == []
    # Two members go on alone, and the one that was removed is never asked.
    await site.stop(other)
    await site.in_sync(1)
    assert (await send(connection, b"alone")).code == ResponseCode.SLAVE_NOT_AVAILABLE
    few = await ask_for(site, RequestCode.ADD_MEMBER, member=str(removed), address=address(site, removed))
    assert few.code == ResponseCode.SYSTEM_ERROR
    assert "--yes" in (few.remark or ""), "two of three would have to be in sync"
    await site.start(other)
    await site.in_sync(2)
    answer = await ask_for(site, RequestCode.ADD_MEMBER, member=str(removed), address=address(site, removed))
    assert answer.code == ResponseCode.SUCCESS
    await site.in_sync(3)
    await soon(lambda: len(bodies(site, removed)) == 2, "it has caught up")


async def test_a_member_that_does_not_hear_of_its_removal_is_refused_by_the_master(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    removed = next(number for number in site.members if number != master)
    run = site.members[removed]._run
    assert run is not None
    # The consensus store tells it nothing any more.
    monkeypatch.setattr(run.driver, "state_read", lambda number, version, state: None)
    answer = await ask_for(site, RequestCode.REMOVE_MEMBER, member=str(removed))
    assert answer.code == ResponseCode.SUCCESS
    await soon(
        lambda: any(f"member {removed} follows, and is no member" in text for text in alarms(site, master)),
        "the master says so",
    )
    await site.in_sync(2)
    assert (await send(await site.connect(master), b"still")).code == ResponseCode.SUCCESS


def alarms(site: Site, number: int) -> list[str]:
    found: list[str] = (site.status(number) or {}).get("alarms", [])
    return found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "member is missing"),
        ({"member": "0", "address": "a:1"}, "member"),
        ({"member": "128", "address": "a:1"}, "member"),
        ({"member": "4"}, "address is missing"),
        ({"member": "4", "address": ""}, "is empty"),
        ({"member": "4", "address": "nowhere"}, "HOST:PORT"),
        ({"member": "4", "address": "a" * 300 + ":1"}, "characters"),
        ({"member": "4", "address": "a:1", "confirmed": "perhaps"}, "not true or false"),
    ],
)
async def test_a_member_that_cannot_be_is_not_added(
    make: MakeSite, fields: dict[str, str], words: str
) -> None:
    site = make(1)
    await site.start_all()
    answer = await ask_for(site, RequestCode.ADD_MEMBER, **fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert words in (answer.remark or "")


async def replication_state(connection: ClientConnection) -> ReplicationState:
    """What a master tells operators."""
    fields = {"frontEnd": "", "name": REPLICATION}
    answer = await connection.request(Command.request(RequestCode.INSPECT, fields))
    told = msgspec.json.decode(answer.body_bytes(), type=ReplicationAnswer).replication
    assert told is not None
    return told


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
    told = await replication_state(client)
    assert (told.mode, told.master, told.in_sync, told.alarms) == ("elected", master, 3, [])
    assert told.epoch == (site.status(master) or {})["state"]["epoch"]
    assert 0 < told.confirmed <= told.end
    assert [(each.name, each.address, each.is_connected, each.is_in_sync) for each in told.followers] == [
        (str(number), address(site, number), True, True)
        for number in sorted(site.members)
        if number != master
    ]
    assert all(each.behind_bytes == told.end - (each.position or 0) for each in told.followers)
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
    told = await replication_state(connection)
    assert (told.in_sync, told.in_sync_min) == (1, 2)
    assert told.alarms == [f"the master takes no messages: {status['holds']}"]
    assert not any(each.is_connected or each.is_in_sync for each in told.followers)
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
    assert (await send(connection, b"alone")).code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert len(bodies(site, master)) == 1


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


async def test_a_master_that_is_cut_off_from_all_gives_no_locks_and_gives_them_again(
    make: MakeSite, etcd: FakeEtcd
) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    connection = await site.connect(master)
    assert (await send(connection, b"one")).code == ResponseCode.SUCCESS
    queue = {"brokerName": "b", "topic": "T", "queueId": 0}
    body = json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": [queue]}).encode()

    async def lock() -> int:
        request = Command.request(RequestCode.LOCK_BATCH_QUEUES, {}, body)
        return (await connection.request(request, 10.0)).code

    paths = ("kv/range", "kv/txn", "kv/put", "lease/grant", "lease/keepalive", "lease/timetolive")
    for path in paths:
        etcd.fail(f"/v3/{path}", "refuse:503", 1_000)
    assert await lock() == ResponseCode.SUCCESS, "the others show that it is master"
    run = site.members[master]._run
    assert run is not None
    for number in [number for number in site.members if number != master]:
        await site.stop(number)
    await soon(lambda: not run.driver.is_current, "it cannot know whether it is master")
    assert await lock() == ResponseCode.SYSTEM_BUSY
    etcd.mend()
    await soon(lambda: run.driver.is_current, "the consensus store says that it is")
    assert await lock() == ResponseCode.SUCCESS


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


async def test_a_follower_comes_again_to_a_member_that_does_not_know_the_state(make: MakeSite) -> None:
    site = make()
    # There is no first state before all members are there.
    await site.start(1)
    said: list[Command] = []
    connection = await ClientConnection.connect(
        "127.0.0.1", site.ports[1], on_request=lambda _, request: said.append(request)
    )
    introduction = Introduction(cluster="DefaultCluster", broker="b", segment_bytes=SEGMENT_BYTES)
    connection.send_oneway(encode_open(Open(Identity(2, "x"), 0, 0, 0, 0, ()), introduction))
    await soon(lambda: connection.is_closed, "the connection ends")
    assert said == [], "nobody is told that it is no member"
    assert alarms(site, 1) == []


@pytest.mark.parametrize(("number", "words"), [(1, "two members have the number 1"), (9, "is no member")])
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


async def test_a_second_process_with_a_members_number_is_refused(make: MakeSite) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    number = next(number for number in site.members if number != master)
    original = site.members[number]
    second = await site.start(number, directory="second", port=free_port())
    site.members[number] = original

    def complaint() -> bool:
        run = second._run
        return run is not None and any("second process" in text for text in run.driver.alarms)

    try:
        await soon(complaint, "the second one is refused")
        # The first one stays.
        await site.in_sync(3)
        assert (await send(await site.connect(master), b"still")).code == ResponseCode.SUCCESS
    finally:
        await second.stop()


async def test_a_master_that_takes_no_records_hands_over(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    run = site.run(master)
    full = run.opened.store

    def refusal(store: Store) -> str | None:
        return "the disk is full" if store is full else None

    monkeypatch.setattr(Store, "append_refusal", property(refusal))
    await soon(
        lambda: any(number != master and member.broker for number, member in site.members.items()),
        "another member is master",
    )
    assert site.members[master].broker is None


async def test_a_state_that_cannot_be_read_stops_nothing(make: MakeSite, etcd: FakeEtcd) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    state = etcd.data.keys[STATE].value
    etcd.data.put(STATE, b"{")

    def complains() -> bool:
        run = site.run(master)
        return run is not None and any("invalid replication state" in text for text in run.driver.alarms)

    await soon(complains, "the master says so")
    assert (await send(await site.connect(master), b"still")).code == ResponseCode.SUCCESS
    assert await site.master() == master
    etcd.data.put(STATE, state)
    await site.in_sync(3)


async def test_a_follower_whose_disk_takes_nothing_tries_again_and_catches_up(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    number = next(number for number in site.members if number != master)
    append = Store.append_raw
    directory = site.directory / str(number)
    refused_s: list[float] = []

    def refuse(store: Store, position: int, data: bytes) -> int:
        if store.directory == directory:
            refused_s.append(asyncio.get_running_loop().time())
            raise StoreFullError("no room")
        return append(store, position, data)

    monkeypatch.setattr(Store, "append_raw", refuse)
    assert (await send(await site.connect(master), b"one")).code == ResponseCode.SUCCESS
    await soon(lambda: len(refused_s) >= 3, "it tries again")
    assert refused_s[2] - refused_s[1] >= 0.9, f"without a pause: {refused_s}"
    monkeypatch.undo()
    await site.in_sync(3)
    await soon(lambda: len(bodies(site, number)) == 1, "it has caught up")


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
        clients = site.members[master]._listener.clients()
        address = connection._transport.get_extra_info("sockname")
        assert address in [client.peer for client in clients], "who is refused is no member"
    assert (await connector(**own).status(master, timeout_s=5.0))["role"] == "leading"
    await site.in_sync(3)


@pytest.mark.parametrize(
    ("code", "fields", "refused"),
    [
        (RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "another", "secretKey": "12345678"}, 209),
        (RequestCode.DELETE_ACL_CONFIG, {"accessKey": "services"}, 210),
        (RequestCode.UPDATE_GLOBAL_WHITE_ADDRESSES, {"globalWhiteAddrs": "10.0.0.1"}, 211),
    ],
)
async def test_accounts_are_not_changed_at_one_member_only(
    make: MakeSite, tmp_path: Path, code: int, fields: dict[str, str], refused: int
) -> None:
    accounts = tmp_path / "accounts.yml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    site = make(1)
    master = await site.start_all(broker={"acl_enabled": True, "acl_file": str(accounts)})
    connection = await ClientConnection.connect(
        "127.0.0.1", site.ports[master], credentials=Credentials("members", "abcdefgh")
    )
    answer = await connection.request(Command.request(code, fields), 10.0)
    assert answer.code == refused
    assert f"change {accounts} at every member" in (answer.remark or "")
    assert accounts.read_text() == ACCOUNTS
    await connection.close()


async def test_a_broker_that_has_messages_becomes_the_first_master(make: MakeSite, tmp_path: Path) -> None:
    site = make()
    # As a broker of its own has left it.
    store = Store.open(tmp_path / "2", StoreSettings(segment_bytes=SEGMENT_BYTES), store_host=bytes(8))
    store.append(
        store.queue("T", 0), encode_batch([(b"old", b"", 0)]), born_timestamp_ms=0, born_host=bytes(8)
    )
    store.close()
    assert await site.start_all() == 2
    await site.in_sync(3)
    for number in site.members:
        await soon(lambda number=number: len(bodies(site, number)) == 1, f"member {number} has it")


async def change_topic(connection: ClientConnection, name: str) -> Command:
    fields = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    return await connection.request(Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields), 10.0)


async def test_what_an_operator_changes_is_answered_when_members_in_sync_have_it(make: MakeSite) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    connection = await site.connect(master)
    for number in range(20):
        answer = await change_topic(connection, f"Made{number}")
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        for member in site.members:
            assert site.run(member).broker.topics.find(f"Made{number}") is not None


async def test_an_operator_is_told_when_members_do_not_say_that_they_have_it(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make()
    master = await site.start_all()
    await site.in_sync(3)
    follower = next(number for number in site.members if number != master)
    run = site.run(follower)
    monkeypatch.setattr(run.broker.table_copies, "apply", lambda piece: None)
    monkeypatch.setattr(type(run.broker.table_copies), "is_complete", False)
    connection = await site.connect(master)
    answer = await change_topic(connection, "Made")
    assert answer.code == ResponseCode.SUCCESS
    assert "not all members in sync" in (answer.remark or "")


async def test_a_member_that_is_stopped_while_it_opens_its_log_ends(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make(2)
    master = await site.start_all()
    await site.in_sync(2)
    member = site.members[master]
    opens, may_open = threading.Event(), threading.Event()
    opening = member._open

    def wait() -> MemberStore:
        opens.set()
        assert may_open.wait(30)
        return opening()

    monkeypatch.setattr(member, "_open", wait)
    assert site.run(master).driver.hand_over()
    await soon(opens.is_set, "the former master opens its log")
    stopping = asyncio.ensure_future(site.stop(master))
    # It has asked for the end before the log is there.
    await soon(member._stop_asked.is_set, "it is to stop")
    may_open.set()
    await asyncio.wait_for(stopping, 10)


async def test_members_that_are_far_from_each_other_connect(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = PeerConnector.connect

    async def connect_from_afar(connector: PeerConnector, number: int, **options: Any) -> ClientConnection:
        # Two ways and back, and the handshake of TLS: longer than the pause before the next attempt.
        await asyncio.sleep(2 * MemberSettings().retry_s)
        return await connect(connector, number, **options)

    monkeypatch.setattr(PeerConnector, "connect", connect_from_afar)
    site = make(2)
    await site.start_all()
    await site.in_sync(2)
    connection = await site.connect(await site.master())
    assert (await send(connection, b"one")).code == ResponseCode.SUCCESS
