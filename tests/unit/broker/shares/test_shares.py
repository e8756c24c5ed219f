"""Shared subscriptions at a broker: limits, strategies, what the log keeps, requests of other processes."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eventually import soon
from loop_turns import LoopTurns, turn_s_max
from session_bench import FrontEnd, MakeBench, SessionBench, making_benches, turns

from iotmq import limits
from iotmq.broker.handlers.mqtt.front_end_link import RemoteMembers
from iotmq.broker.session_store.shares import StoredShare, StoredShares, is_share
from iotmq.broker.shares import shares
from iotmq.broker.shares.share_group import Holder, ShareGroup, Strategy
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import RequestError, StoreCorruptError, StoreError
from iotmq.event_loop import LoopSlice
from iotmq.mqtt.topics.topics import split_shared
from iotmq.ports.sessions import HANDOUT_REPEATED, OpenedSession, OpenRequest, Refused, ShareJoin
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.store.queues.residency import Window

SHARE = "$share/g/t/#"


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeBench]:
    async with making_benches(tmp_path) as make:
        yield make


async def transient(front: FrontEnd, client_id: str) -> int:
    return (await front.open(client_id, is_clean=True, expiry_s=0)).epoch


async def kept(front: FrontEnd, client_id: str, share: str = SHARE) -> OpenedSession:
    opened = await front.open(client_id)
    assert not isinstance(await front.subscribe(client_id, opened.epoch, share), Refused)
    return opened


def publish_as(bench: SessionBench, client_id: str, topic: str, *bodies: bytes) -> None:
    properties = b"MQTT_TOPIC\x01%s\x02MQTT_CLIENT_ID\x01%s\x02" % (topic.encode(), client_id.encode())
    elements = b"".join(encode_element(body, properties, 0) for body in bodies)
    bench.broker.writer.append(
        "T", 0, elements, born_timestamp_ms=1, born_host=b"\x7f\0\0\1\0\0\0\1", done=lambda _: None
    )


def bodies_of(front: FrontEnd, member: int) -> list[bytes]:
    return [body for number, body in front.handed if number == member]


# Limits


async def test_groups_past_the_limit_are_refused(make: MakeBench) -> None:
    bench = await make(shared_groups_max=2)
    front = FrontEnd(bench, "one")
    epoch = await transient(front, "a")
    assert await front.join("a", epoch, "$share/g/1", 1) is None
    await kept(front, "k", "$share/g/2")
    refused = await front.join("a", epoch, "$share/g/3", 2)
    assert refused is not None
    assert "shared_groups_max is 2" in refused.remark
    opened = await front.open("k2")
    again = await front.subscribe("k2", opened.epoch, "$share/other/2")
    assert isinstance(again, Refused)
    # Those that are there take more members.
    assert not isinstance(await front.subscribe("k2", opened.epoch, "$share/g/1"), Refused)
    assert await front.join("k2", opened.epoch, "$share/g/1", 3) is None
    assert bench.broker.sessions.shares.refused_joins_total == 2


async def test_members_past_the_limit_are_refused(make: MakeBench) -> None:
    bench = await make(shared_members_max=2)
    front = FrontEnd(bench, "one")
    for number, client_id in enumerate("ab"):
        assert await front.join(client_id, await transient(front, client_id), SHARE, number) is None
    epoch = await transient(front, "c")
    refused = await front.join("c", epoch, SHARE, 3)
    assert refused is not None
    assert "shared_members_max" in refused.remark
    bench.broker.sessions.shares.leave("a")
    assert await front.join("c", epoch, SHARE, 3) is None


async def test_a_group_has_no_more_under_way_than_its_limit_and_a_member_than_its_credit(
    make: MakeBench,
) -> None:
    bench = await make(shared_in_flight_max=5)
    front = FrontEnd(bench, "one")
    for number, client_id in enumerate("ab"):
        await front.join(client_id, await transient(front, client_id), SHARE, number, credit=4)
    bench.publish("t/1", *(b"%d" % number for number in range(12)))
    await turns(5)
    assert len(front.held) == 5
    front.report(0, *(position for member, position in front.held if member == 0))
    await turns(5)
    # Member 0 has used 3 of its 4, member 1 has 2 of 4 left: one and two more.
    assert [len(bodies_of(front, member)) for member in (0, 1)] == [4, 4]
    front.report(0, limit=6)
    await turns(5)
    assert [len(bodies_of(front, member)) for member in (0, 1)] == [4, 4], "five are under way"
    front.report(1, *(position for member, position in front.held if member == 1))
    await turns(5)
    assert [len(bodies_of(front, member)) for member in (0, 1)] == [6, 4]


async def test_a_client_holds_no_more_bytes_than_the_limit_in_all_its_groups(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make()
    shares = bench.broker.sessions.shares
    front = FrontEnd(bench, "one")
    epoch = await transient(front, "a")
    for number in range(3):
        await front.join("a", epoch, f"$share/g{number}/t/#", number)
    bench.publish("t/1", b"x" * 900)
    await turns(5)
    assert [member for member, _ in front.held] == [0, 1, 2]
    monkeypatch.setattr(limits, "SHARE_CLIENT_BYTES_MAX", shares._clients["a"].holder.held_bytes)
    bench.publish("t/1", b"y" * 900)
    await turns(5)
    shares.check_invariants()
    assert len(front.held) == 3, "it holds as many bytes as it may"
    monkeypatch.setattr(limits, "SHARE_CLIENT_BYTES_MAX", limits.SHARE_CLIENT_BYTES_MAX + 1)
    front.report(0, limit=101)
    await turns(5)
    shares.check_invariants()
    assert front.held[3:] == [(0, front.held[3][1])], "one byte less, and it is handed one message more"


async def test_room_that_one_group_gives_back_is_for_all_in_turn(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make()
    shares = bench.broker.sessions.shares
    front = FrontEnd(bench, "one")
    epoch = await transient(front, "a")
    other = await transient(front, "b")
    # One message at a time, however large.
    monkeypatch.setattr(limits, "SHARE_CLIENT_BYTES_MAX", 1)
    for number in range(3):
        await front.join("a", epoch, f"$share/g{number}/t/#", number)
    await front.join("b", other, "$share/g3/t/#", 3)
    bench.publish("t/1", *(b"%d" % number for number in range(4)))
    for count in range(1, 13):
        await turns(5)
        shares.check_invariants()
        mine = [(member, position) for member, position in front.held if member < 3]
        assert len(mine) == count, "one more, and not two"
        front.report(mine[-1][0], mine[-1][1])
    await turns(5)
    order = [member for member, _ in front.held if member < 3]
    assert all(set(order[at : at + 5]) == {0, 1, 2} for at in range(6)), str(order)
    assert bodies_of(front, 3) == [b"0"], "another client has a budget of its own"


def full_group(members: int, each: int) -> ShareGroup:
    """A group without an order whose members hold so many messages each, of time 0."""
    group = ShareGroup(Strategy.ROUND_ROBIN, next_position=0, in_flight_max=members * each, timeout_s=10)
    for number in range(members):
        group.join(number, Holder(f"c{number}", lambda: None), "one", limit=each, held=(), now_s=0)
    for position in range(members * each):
        group.offer(position, 1, "", now_s=0)
    assert len(group.hand_out(0)) == members * each
    return group


@pytest.mark.slow
def test_very_many_members_that_are_late_together_keep_nobody_waiting() -> None:
    count = limits.SHARE_MEMBERS_MAX - 1
    group = full_group(count, 2)
    group.join(count, Holder("quick", lambda: None), "one", limit=10_000, held=(), now_s=0)
    began_s = time.thread_time()
    taken = group.expire(11)
    expired_s = time.thread_time()
    handed = group.hand_out(11)
    assert max(expired_s - began_s, time.thread_time() - expired_s) < turn_s_max()
    assert len(taken) == 2 * count
    assert sorted(position for _, position in taken) == [position for _, position, _, _ in handed]
    assert {member for member, _, _, _ in handed} == {count}
    group.check_invariants()


def test_members_that_are_all_late_keep_what_they_hold() -> None:
    group = full_group(3, 2)
    group.away(2)
    # The first to be late is not the last who could take it.
    assert group.expire(11) == [(0, 0)]
    assert group.in_flight_count == 5
    group.check_invariants()
    assert group.acknowledge(0, 3)
    assert {member for member, _ in group.expire(22)} == {1, 2}
    group.check_invariants()


@pytest.mark.slow
def test_a_front_end_of_very_many_members_that_goes_and_comes_keeps_nobody_waiting() -> None:
    numbers = range(limits.SHARE_MEMBERS_MAX)
    group = full_group(len(numbers), 1)
    for change in (group.away, group.back):
        began_s = time.thread_time()
        change(*numbers, len(numbers) + 1)
        assert time.thread_time() - began_s < turn_s_max()
        group.check_invariants()
    assert group.in_flight_count == len(numbers)


async def test_a_message_for_very_many_groups_is_handed_out_over_several_turns(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    epoch = await transient(front, "c")
    for number in range(5):
        assert await front.join("c", epoch, f"$share/g{number}/t/#", number) is None
    monkeypatch.setattr(shares, "LoopSlice", lambda: LoopSlice(2))
    bench.publish("t/x", b"1")
    counts = [len(front.handed)]
    while counts[-1] < 5:
        await turns(1)
        counts.append(len(front.handed))
    assert sorted(set(counts)) == [0, 2, 4, 5]
    assert [member for member, _ in front.handed] == list(range(5)), "who has waited comes first"


def test_nothing_is_handed_to_a_member_that_left_while_another_has_messages_of_the_same_key() -> None:
    """As two members have after a start, when the first was slow before it."""
    group = ShareGroup(Strategy.STICKY, next_position=4, undone=[1, 2, 3], in_flight_max=10, timeout_s=10)
    for member_id, client_id in ((1, "a"), (2, "b")):
        holder = Holder(client_id, lambda: None)
        group.join(member_id, holder, "one", limit=9, held=[member_id], now_s=0)
    for position in (1, 2, 3):
        group.offer(position, 100, "", now_s=0)
    group.check_invariants()
    group.leave(1)
    group.check_invariants()
    assert [handout.member_id for handout in group.hand_out(0)] == [2, 2]
    group.check_invariants()


def test_a_groups_name_has_a_limit() -> None:
    longest = "n" * limits.SHARE_NAME_BYTES_MAX
    assert split_shared(f"$share/{longest}/t") == (longest, "t")
    assert not is_share(f"$share/{longest}n/t")
    for malformed in ("$share", "$share/", "$share/g", "$share/g/", "$share//t", "$share/+/t", "$share/#/t",
                      "$share/g/t#", "$share/g/$share/h/t", "share/g/t"):  # fmt: skip
        assert not is_share(malformed), malformed
        with pytest.raises(ValueError, match=r"group|share"):
            split_shared(malformed)
    assert split_shared("$share/g//t") == ("g", "/t")


# Strategies


@pytest.mark.parametrize(("strategy", "key"), [("hash_topic", "topic"), ("hash_client", "client")])
async def test_hashing_keeps_each_key_at_one_member_in_order(
    make: MakeBench, strategy: str, key: str
) -> None:
    bench = await make(shared_strategy=strategy)
    front = FrontEnd(bench, "one")
    for number in range(4):
        await front.join(f"m{number}", await transient(front, f"m{number}"), SHARE, number, credit=500)
    for count in range(20):
        for name in "abcdefgh":
            topic, client_id = (f"t/{name}", "x") if key == "topic" else ("t/x", name)
            publish_as(bench, client_id, topic, b"%s%d" % (name.encode(), count))
    await turns(8)
    assert len(front.handed) == 160
    by_member = [bodies_of(front, number) for number in range(4)]
    for name in b"abcdefgh":
        holders = [bodies for bodies in by_member if any(body[0] == name for body in bodies)]
        assert len(holders) == 1
        assert [int(body[1:]) for body in holders[0] if body[0] == name] == list(range(20))
    assert sum(bool(bodies) for bodies in by_member) > 1


async def test_sticky_goes_on_with_one_member_until_it_leaves(make: MakeBench) -> None:
    bench = await make(shared_strategy="sticky")
    front = FrontEnd(bench, "one")
    for number, client_id in enumerate("ab"):
        await front.join(client_id, await transient(front, client_id), SHARE, number, credit=50)
    bench.publish("t/1", *(b"%d" % number for number in range(10)))
    await turns(5)
    assert {member for member, _ in front.handed} == {0}
    bench.broker.sessions.shares.leave("a")
    await turns(5)
    assert bodies_of(front, 1) == [b"%d" % number for number in range(10)]


async def test_local_first_prefers_members_at_the_publishers_front_end(make: MakeBench) -> None:
    bench = await make(shared_strategy="local_first")
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    for front, client_id in ((one, "a"), (two, "b")):
        await front.join(client_id, await transient(front, client_id), SHARE, 1, credit=5)
    await transient(two, "p")
    publish_as(bench, "p", "t/1", *(b"%d" % number for number in range(8)))
    await turns(5)
    assert [len(one.handed), len(two.handed)] == [3, 5], "what the local one cannot take goes elsewhere"
    one.report(1, *(position for _, position in one.held), limit=10)
    publish_as(bench, "unknown", "t/1", b"x")
    await turns(5)
    assert one.handed[-1] == (1, b"x")


# Time, and what the log keeps


async def test_what_is_held_too_long_is_withdrawn_and_marked_for_who_had_it(make: MakeBench) -> None:
    bench = await make(shared_timeout_s=5.0)
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    epoch = await transient(one, "a")
    await one.join("a", epoch, SHARE, 1)
    bench.publish("t/1", b"m")
    await turns(5)
    bench.pass_time(6)
    assert not one.withdrawn, "there is nobody else"
    await two.join("b", await transient(two, "b"), SHARE, 7)
    bench.pass_time(6)
    await turns(5)
    assert one.withdrawn == one.held
    assert bodies_of(two, 7) == [b"m"]
    # Its late acknowledgement counts, and the other one's is of no more use.
    one.report(1, one.held[0][1])
    view = bench.broker.sessions.shares.view(SHARE)
    assert (view.behind, view.in_flight) == (0, 0)
    two.report(7, two.held[0][1])
    bench.broker.sessions.shares.leave("b")
    await turns(5)
    assert len(one.handed) == 1


async def test_a_database_that_is_lost_is_made_again_with_its_groups(make: MakeBench) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    opened = await kept(front, "k")
    await front.join("k", opened.epoch, SHARE, 1, credit=4)
    bench.publish("t/1", *(b"%d" % number for number in range(6)))
    await turns(5)
    front.report(1, front.held[0][1], front.held[2][1])
    bench.broker.sessions.shares.save()
    await turns(5)
    await bench.close()
    shutil.rmtree(bench.directory / "data" / "kv")
    await bench.start()
    view = bench.broker.sessions.shares.view(SHARE)
    assert (view.kept_count, view.behind, view.cursor) == (1, 4, front.held[1][1])
    bench.pass_time(11)
    await turns(5)
    again = FrontEnd(bench, "two")
    opened = await again.open("k")
    assert [entry.topic_filter for entry in opened.subscriptions] == [SHARE]
    await again.join("k", opened.epoch, SHARE, 1)
    await turns(5)
    assert bodies_of(again, 1) == [b"1", b"3", b"4", b"5"]


async def test_a_member_that_joins_again_keeps_what_it_holds(make: MakeBench) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    epoch = await transient(front, "a")
    await front.join("a", epoch, SHARE, 1, credit=3)
    bench.publish("t/1", b"0", b"1", b"2")
    await turns(5)
    held = [position for _, position in front.held]
    # The second never came over the old connection.
    await front.join("a", epoch, SHARE, 1, credit=1, held=[held[0], held[2]])
    await turns(5)
    assert bodies_of(front, 1) == [b"0", b"1", b"2", b"1"]
    assert bench.broker.sessions.shares.view(SHARE).in_flight == 3
    for position in held:
        front.report(1, position)
    assert bench.broker.sessions.shares.view(SHARE).behind == 0


async def test_a_group_ends_and_begins_in_one_turn(make: MakeBench) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    epoch = await transient(front, "a")
    await front.join("a", epoch, SHARE, 1)
    bench.broker.sessions.shares.leave("a")
    assert await front.join("a", epoch, SHARE, 2) is None
    bench.publish("t/1", b"m")
    await turns(5)
    assert bodies_of(front, 2) == [b"m"]
    assert len(bench.broker.sessions.projection.shares) == 1
    bench.pass_time(30)
    await turns(5)
    assert len(bench.broker.sessions.projection.shares) == 1


async def test_a_former_owners_reports_are_not_heard(make: MakeBench) -> None:
    bench = await make()
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    opened = await kept(one, "k")
    await one.join("k", opened.epoch, SHARE, 1)
    bench.publish("t/1", b"m")
    await turns(5)
    opening = two.begin_open("k")
    bench.pass_time(2)
    taken = await opening
    assert isinstance(taken, OpenedSession)
    one.report(1, one.held[0][1])
    assert bench.broker.sessions.shares.unknown_reports_total == 1
    assert (await one.join("k", opened.epoch, SHARE, 1)) == Refused(
        ResponseCode.SESSION_LOST, "the session belongs to somebody else now"
    )
    await two.join("k", taken.epoch, SHARE, 1)
    await turns(5)
    assert bodies_of(two, 1) == [b"m"]


def test_a_damaged_group_is_said_to_be_damaged() -> None:
    shares = StoredShares(None, lambda *_: None)  # type: ignore[arg-type]
    good = msgspec.msgpack.encode(StoredShare(1, 2, 0, 3, [2]))
    shares.restore(b"\x08$share/g/t", good)
    assert shares.get("$share/g/t") == StoredShare(1, 2, 0, 3, [2])
    for key, value in ((b"\x08$share/g/t", good[:-1]), (b"\x08\xff", good), (b"\x08$share/g/t", b"\x91\x01")):
        with pytest.raises(StoreCorruptError, match="shared subscription"):
            shares.restore(key, value)


# Requests of other processes


class Connection:
    is_congested = False

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.room = asyncio.Event()

    async def drain(self) -> None:
        await self.room.wait()

    def send_oneway(self, command: Command) -> None:
        self.sent.append(command)


async def test_requests_are_refused_past_their_limits(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    channel = front.port.channel
    epoch = await transient(front, "a")
    handler = bench.broker.mqtt.session_requests
    monkeypatch.setattr(handler, "channel_of", lambda _: channel)
    handlers = handler.handlers()

    def ask(code: int, body: Any) -> Command:
        request = Command.request(code, body=msgspec.msgpack.encode(body))
        answer = handlers[code](Connection(), request)  # type: ignore[arg-type]
        assert answer is not None
        return answer

    await front.join("a", epoch, SHARE, 1)
    most = list(range(limits.SHARE_REPORT_POSITIONS_MAX))
    assert ask(RequestCode.JOIN_SHARES, [["a", epoch, SHARE, 1, limits.SHARE_CREDIT_MAX, most]]).code == 0
    assert ask(RequestCode.REPORT_SHARES, [[1, 5, most]]).code == 0
    members = limits.SHARE_REPORT_MEMBERS_MAX
    assert ask(RequestCode.REPORT_SHARES, [[1, 5, []]] * members).code == 0
    assert ask(RequestCode.JOIN_SHARES, [["a", epoch, SHARE, 1, 0, []]] * members).code == 0
    for code, body in (
        (RequestCode.JOIN_SHARES, [["a", epoch, SHARE, 1, limits.SHARE_CREDIT_MAX + 1, []]]),
        (RequestCode.JOIN_SHARES, [["a", epoch, SHARE, 1, 1, [*most, 1]]]),
        (RequestCode.JOIN_SHARES, [["a", epoch, SHARE, 1, 1, []]] * (members + 1)),
        (RequestCode.JOIN_SHARES, [["a", epoch, "t/#", 1, 1, []]]),
        (RequestCode.JOIN_SHARES, [["a", epoch, SHARE, 1, 1, [-1]]]),
        (RequestCode.REPORT_SHARES, [[1, 5, [*most, 1]]]),
        (RequestCode.REPORT_SHARES, [[1, 5, []]] * (members + 1)),
        (RequestCode.REPORT_SHARES, [[1, -1, []]]),
    ):
        with pytest.raises(RequestError):
            ask(code, body)


async def test_no_answer_lists_more_groups_than_the_limit(make: MakeBench) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    epoch = await transient(front, "a")
    for number in range(3):
        await front.join("a", epoch, f"$share/g/{number}", number)

    def ask(**ext: str) -> Any:
        request = Command.request(RequestCode.LIST_SHARES, ext)
        answer = bench.broker.requests.handle(Connection(), request)  # type: ignore[arg-type]
        assert isinstance(answer, Command)
        return answer

    page = msgspec.json.decode(ask(maxNums="2").body_bytes())
    assert [entry["share"] for entry in page["shares"]] == ["$share/g/0", "$share/g/1"]
    assert page["shares"][0]["members"][0]["clientId"] == "a"
    page = msgspec.json.decode(
        ask(maxNums=str(limits.SHARES_LISTED_MAX), after=page["nextAfter"]).body_bytes()
    )
    assert ([entry["share"] for entry in page["shares"]], page["nextAfter"]) == (["$share/g/2"], None)
    with pytest.raises(RequestError, match="maxNums"):
        ask(maxNums=str(limits.SHARES_LISTED_MAX + 1))


async def test_a_front_end_that_does_not_take_what_it_is_sent_is_passed_over(make: MakeBench) -> None:
    bench = await make()
    sessions = bench.broker.sessions
    slow = Connection()
    members = RemoteMembers(slow)  # type: ignore[arg-type]
    here = FrontEnd(bench, "here")
    channel = sessions.open_channel("slow", here, members)
    opened: list[OpenedSession | Refused] = []
    sessions.open_session(
        channel, OpenRequest(client_id="s", is_clean=True, expiry_s=0, will=None), opened.append
    )
    assert isinstance(opened[0], OpenedSession)
    wanted = ShareJoin(client_id="s", epoch=opened[0].epoch, topic_filter=SHARE, member=5, credit=10, held=[])
    joined: list[Any] = []
    sessions.join_shares(channel, [wanted], joined.append)
    await turns(5)
    assert joined == [[None]]
    await here.join("h", await transient(here, "h"), SHARE, 1, credit=100)
    slow.is_congested = True
    for number in range(10):
        bench.publish("t/1", b"%d" % number)
        await turns(3)
    assert len(slow.sent) == 1, "it was found to be congested by the first"
    assert len(here.handed) == 9
    slow.is_congested = False
    slow.room.set()
    await turns(5)
    for number in range(10):
        bench.publish("t/1", b"%d" % number)
        await turns(3)
    assert len(slow.sent) == 6
    members.close()
    sessions.close_channel(channel)


async def test_messages_that_retention_has_deleted_are_done(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make(shared_strategy="hash_topic")
    front = FrontEnd(bench, "one")
    opened = await kept(front, "k")
    bench.publish("t/1", b"0", b"1", b"2", b"3")
    projection = bench.broker.sessions.projection
    places = projection.next_entries(opened_queue(bench, "k"), 0, entries_max=10).entries
    read_record = bench.store.read_record
    gone = {places[1][0], places[2][0]}
    monkeypatch.setattr(
        bench.store, "read_record", lambda position: None if position in gone else read_record(position)
    )
    await front.join("k", opened.epoch, SHARE, 1)
    await turns(5)
    assert bodies_of(front, 1) == [b"0", b"3"]
    for _, position in front.held:
        front.report(1, position)
    assert bench.broker.sessions.shares.view(SHARE).behind == 0
    assert bench.broker.sessions.shares.lost_records_total == 2


def opened_queue(bench: SessionBench, client_id: str) -> int:
    session = bench.broker.sessions.stored(client_id)
    assert session is not None
    return session.subscriptions[SHARE].queue_id


def test_a_push_carries_each_record_behind_its_handout(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection()
    monkeypatch.setattr("iotmq.broker.handlers.mqtt.front_end_link._PUSH_BYTES_MAX", 10)
    members = RemoteMembers(connection)  # type: ignore[arg-type]
    records = [memoryview(b"\0\0\0\x08" + b"%d" % number * 4) for number in range(3)]
    members.hand_out([(7, 0), (8, HANDOUT_REPEATED), (9, 0)], records)
    members.withdraw([(7, 5)])
    assert [command.code for command in connection.sent] == [RequestCode.HAND_OUT_SHARES] * 3 + [
        RequestCode.WITHDRAW_SHARES
    ]
    assert connection.sent[1].body_bytes() == b"\0\0\0\x08\0\0\0\x01" + bytes(records[1])
    assert connection.sent[3].body_bytes() == b"\0\0\0\x07\0\0\0\0\0\0\0\x05"


async def test_groups_go_on_after_the_database_was_opened_again(make: MakeBench) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    await front.join("a", await transient(front, "a"), SHARE, 1)
    bench.publish("t/1", b"before")
    await turns(5)
    projection = bench.broker.sessions.projection
    projection.sync()
    # As after a full disk: what was attached is not any more.
    projection._load()
    bench.publish("t/1", b"meanwhile")
    await turns(5)
    assert bodies_of(front, 1) == [b"before"]
    bench.pass_time(1)
    bench.publish("t/1", b"after")
    await turns(5)
    assert bodies_of(front, 1) == [b"before", b"meanwhile", b"after"]
    front.report(1, *(position for _, position in front.held))
    assert bench.broker.sessions.shares.view(SHARE).behind == 0


async def test_groups_wait_for_a_database_that_refuses(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    for number, client_id in enumerate("ab"):
        await front.join(client_id, await transient(front, client_id), f"$share/g/{client_id}", number)
    projection = bench.broker.sessions.projection

    def refused(*words: Any, **others: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(projection, "next_entries", refused)
        # So that the queues have to be read.
        for live in bench.broker.sessions.shares._live.values():
            live.is_current = False
        bench.publish("a", b"0")
        bench.publish("b", b"1")
        await turns(5)
        assert not front.handed
        assert [record.message for record in caplog.records].count(
            "shared subscriptions wait for the key-value database: the disk is full"
        ) == 1
    bench.pass_time(1)
    await turns(5)
    assert sorted(front.handed) == [(0, b"0"), (1, b"1")]


# What is not in memory


class Disk:
    """Says that records are not in memory, so many times, and gives them when it is told to."""

    def __init__(self, bench: SessionBench, monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
        self.times = times
        self.error: OSError | None = None
        self.may_go_on = threading.Event()
        self.loads = 0
        plan_records = bench.store.plan_records

        def cold(places: Iterable[tuple[int, int]]) -> Any:
            wanted = list(places)
            if wanted and self.times > 0:
                self.times -= 1
                return "what is not in memory"
            return plan_records(wanted)

        def load(plan: Any) -> None:
            assert self.may_go_on.wait(30)
            self.loads += 1
            if self.error is not None:
                raise self.error

        monkeypatch.setattr(bench.store, "plan_records", cold)
        monkeypatch.setattr(bench.store, "load", load)


async def lagging(
    make: MakeBench, strategy: str
) -> tuple[SessionBench, FrontEnd, OpenedSession, list[bytes]]:
    bench = await make(shared_strategy=strategy)
    front = FrontEnd(bench, "one")
    opened = await kept(front, "k")
    bodies = [b"%d" % number for number in range(30)]
    bench.publish("t/1", *bodies)
    await turns()
    return bench, front, opened, bodies


@pytest.mark.parametrize("strategy", ["round_robin", "hash_topic"])
async def test_a_group_that_lags_waits_for_the_disk_off_the_loop(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    bench, front, opened, bodies = await lagging(make, strategy)
    disk = Disk(bench, monkeypatch, times=1)
    assert await front.join("k", opened.epoch, SHARE, 1, credit=100) is None
    # What comes meanwhile wakes the group, and changes nothing.
    bench.publish("t/1", b"later")
    await turns()
    assert (front.handed, disk.loads) == ([], 0)
    assert bench.broker.parts.cold_reads.waiting_count == 1
    disk.may_go_on.set()
    await soon(lambda: len(front.handed) == 31, "all messages")
    assert bodies_of(front, 1) == [*bodies, b"later"]


async def test_what_leaves_the_memory_as_fast_as_it_comes_is_asked_for_again_a_second_later(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, front, opened, bodies = await lagging(make, "round_robin")
    disk = Disk(bench, monkeypatch, times=1_000_000)
    disk.may_go_on.set()
    assert await front.join("k", opened.epoch, SHARE, 1, credit=100) is None
    for loads in (4, 8):
        await soon(lambda: bench.broker.sessions.shares._stalled, "the last try")
        assert (front.handed, disk.loads) == ([], loads)
        bench.pass_time(1.0)
    disk.times = 0
    await soon(lambda: len(front.handed) == 30, "all messages")
    assert bodies_of(front, 1) == bodies


async def test_of_more_than_stays_in_memory_what_is_there_is_handed_out(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, front, opened, bodies = await lagging(make, "round_robin")
    loads = 0

    def load(plan: Any) -> None:
        nonlocal loads
        loads += 1

    # Seven records are there after each load, and none before the first.
    def cold(places: Iterable[tuple[int, int]]) -> Any:
        wanted = [position for position, _ in places]
        there = positions[: 7 * loads][-7:]
        return None if set(wanted) <= set(there) else "what is not in memory"

    positions = [record.position for record in bench.stored_records()]
    monkeypatch.setattr(bench.store, "plan_records", cold)
    monkeypatch.setattr(bench.store, "load", load)
    assert await front.join("k", opened.epoch, SHARE, 1, credit=100) is None
    await soon(lambda: len(front.handed) == 30, "all messages")
    assert bodies_of(front, 1) == bodies
    assert loads == 5


async def test_what_is_handed_out_again_waits_for_the_disk_off_the_loop(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    for number, client_id in enumerate("abc"):
        await front.join(client_id, await transient(front, client_id), SHARE, number, credit=3)
    shares = bench.broker.sessions.shares
    bench.publish("t/1", *(b"%d" % number for number in range(3)))
    await turns(5)
    (first,) = bodies_of(front, 0)
    disk = Disk(bench, monkeypatch, times=1)
    shares.leave("a")
    await turns(5)
    shares.check_invariants()
    assert len(front.handed) == 3, "nothing is read on the loop"
    assert bench.broker.parts.cold_reads.waiting_count == 1
    # Whoever was to have it goes, too, and another one has it then.
    (waiting,) = next(iter(shares._live.values())).handouts
    (last,) = [name for name in "bc" if shares._clients[name].members[SHARE].member_id != waiting.member_id]
    shares.leave("bc".replace(last, ""))
    await turns(5)
    assert len(front.handed) == 3
    disk.may_go_on.set()
    await soon(lambda: len(front.handed) == 5, "both messages")
    shares.check_invariants()
    assert sorted(bodies_of(front, "abc".index(last))) == [b"0", b"1", b"2"]
    assert front.handed[3:].count(("abc".index(last), first)) == 1


async def test_members_have_their_time_from_the_start_of_the_broker_on(make: MakeBench) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    opened = await kept(front, "k")
    assert await front.join("k", opened.epoch, SHARE, 1) is None
    bench.publish("t/1", b"held")
    await turns(5)
    assert bodies_of(front, 1) == [b"held"]
    await bench.close()
    bench.make()
    # It follows another broker for so long.
    bench.clock.advance(50 * shares.REJOIN_GRACE_S)
    await bench.broker.start()
    other = FrontEnd(bench, "two")
    assert await other.join("o", await transient(other, "o"), SHARE, 1) is None
    bench.pass_time(shares.REJOIN_GRACE_S - 0.1)
    await turns(5)
    assert other.handed == [], "who has it may be back"
    bench.pass_time(0.2)
    await turns(5)
    assert bodies_of(other, 1) == [b"held"]


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("strategy", ["round_robin", "hash_topic"])
async def test_no_page_of_a_group_is_read_on_the_loop(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch, strategy: str, is_restarted: bool
) -> None:
    bench = await make(shared_strategy=strategy)
    bench.store_settings["hot_bytes"] = 0
    await bench.restart()
    front = FrontEnd(bench, "one")
    opened = await kept(front, "k")
    assert await front.join("k", opened.epoch, SHARE, 1, credit=100) is None
    # Each has more than its first pages.
    bodies = [b"%06d" % number + os.urandom(10_000) for number in range(40)]
    bench.publish("t/1", *bodies)
    await soon(lambda: len(front.handed) == 40, "all messages")
    if is_restarted:
        # One of them is done, and not the first.
        front.report(1, front.held[5][1])
        await turns()
        await bench.restart()
        front = FrontEnd(bench, "one")
        opened = await front.open("k")
        bench.pass_time(3)
        # Pages that somebody else has mapped are not let go.
        gc.collect()
    for segment in bench.store._log.segment_list():
        segment.sync(os.fdatasync)
        window = Window(segment, 0, segment.allocated_bytes)
        window.drop()
        assert window.absent_pages()
    absent: list[int] = []
    read_record = bench.store.read_record

    def read(position: int) -> memoryview | None:
        plan = bench.store.plan_records([(position, 10_100)])
        absent.extend([] if plan is None else [position])
        return read_record(position)

    monkeypatch.setattr(bench.store, "read_record", read)
    before = len(front.handed)
    if not is_restarted:
        bench.broker.sessions.shares.leave("k")
    with LoopTurns() as looks:
        assert await front.join("k", opened.epoch, SHARE, 2, credit=100) is None
        await soon(lambda: len(front.handed) == before + 40 - is_restarted, "all messages")
    assert absent == []
    assert looks.longest_s < turn_s_max()
    assert sorted(bodies_of(front, 2)) == [body for body in bodies if not is_restarted or body != bodies[5]]
    assert bench.broker.parts.cold_reads.reads_count > 0


async def test_a_disk_that_refuses_is_asked_again_a_second_later(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, front, opened, bodies = await lagging(make, "round_robin")
    disk = Disk(bench, monkeypatch, times=1)
    disk.error = OSError(5, "Input/output error")
    disk.may_go_on.set()
    assert await front.join("k", opened.epoch, SHARE, 1, credit=100) is None
    await soon(lambda: disk.loads == 1 and bench.broker.sessions.shares._stalled, "the refusal")
    assert front.handed == []
    bench.pass_time(1.0)
    await soon(lambda: len(front.handed) == 30, "all messages")
    assert bodies_of(front, 1) == bodies
