"""A front end's side of sessions at a broker: answers and pushes without sense, and a broker that goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from eventually import soon

from iotmq import limits
from iotmq.front_port import session_link
from iotmq.front_port.session_link import FrontEnd, SessionLink, _Known
from iotmq.ports import bodies
from iotmq.ports.sessions import (
    CloseRequest,
    OpenedSession,
    OpenRequest,
    QueueRead,
    QueueRecords,
    Refused,
    RetainedRead,
    RetainedRecords,
    Will,
)
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import RemotingServer, ServerConnection
from iotmq.supervised import FAILURES


class FakeBroker:
    """Answers by code with what a test says: (code, ext, body); without that with success and nothing."""

    def __init__(self) -> None:
        self.answers: dict[int, tuple[int, dict[str, str], bytes]] = {
            RequestCode.CLAIM_SESSIONS: (0, {}, msgspec.msgpack.encode([])),
            RequestCode.OPEN_SESSION: (
                0,
                {},
                msgspec.msgpack.encode([7, False, [["a", 1, 3, 0, 0]], [], [], []]),
            ),
        }
        self.silent: set[int] = set()
        self.asked: list[Command] = []
        self.connections: list[ServerConnection] = []
        self.server = RemotingServer(self)

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        if connection not in self.connections:
            self.connections.append(connection)
        self.asked.append(request)
        if request.code in self.silent:
            return None
        code, ext, body = self.answers.get(request.code, (0, {}, b""))
        return request.reply(code, ext=dict(ext), body=body, remark="no" if code else None)

    def connection_lost(self, connection: ServerConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)

    def push(self, code: int, body: bytes = b"", **ext: str) -> None:
        self.connections[-1].send_oneway(Command.request(code, ext, body, oneway=True))

    def bodies(self, code: int) -> list[Any]:
        return [msgspec.msgpack.decode(bytes(each.body_bytes())) for each in self.asked if each.code == code]


class Listener:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def link_ready(self, link: SessionLink) -> None:
        self.told.append("ready")

    def link_pushed(self, link: SessionLink, records: memoryview, pushes: memoryview) -> None:
        self.told.append((bytes(records), bytes(pushes)))

    def link_missed(self, link: SessionLink, queue_ids: Sequence[int]) -> None:
        self.told.append(list(queue_ids))

    def link_fenced(self, link: SessionLink, client_id: str, epoch: int, reason: str) -> None:
        self.told.append((client_id, epoch))


class Site:
    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.busy: asyncio.Future[Any] | None = None
        self.listener = Listener()
        self.link = SessionLink(
            "b",
            f"127.0.0.1:{broker.server.port}",
            self.listener,
            number=0,
            front_end=FrontEnd(name="f", token="t"),
        )

    async def told(self, what: Any) -> None:
        await soon(lambda: what in self.listener.told, f"{what!r} of {self.listener.told}")

    async def open(self, client_id: str = "c") -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.link.open_session(
            OpenRequest(client_id=client_id, is_clean=False, expiry_s=9, will=None), future.set_result
        )
        return await asyncio.wait_for(future, 30)

    def read(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.link.read_queue(
            QueueRead(queue_id=3, position=0, records_max=1 << 20, bytes_max=1 << 30), future.set_result
        )
        return future


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    broker = FakeBroker()
    await broker.server.start()
    made = Site(broker)
    await made.told("ready")
    yield made
    await made.link.stop()
    await broker.server.stop()


@pytest.mark.parametrize(
    ("code", "body", "ext"),
    [
        (RequestCode.DELIVER_QUEUED, b"x", {}),
        (RequestCode.DELIVER_QUEUED, b"x", {"pushesBytes": "2"}),
        (RequestCode.DELIVER_QUEUED, b"x", {"pushesBytes": "-1"}),
        (RequestCode.MISSED_QUEUES, b"", {"isAll": "maybe"}),
        (RequestCode.FENCE_SESSION, b"\xc1", {}),
        (RequestCode.FENCE_SESSION, msgspec.msgpack.encode([1, 2, 3]), {}),
    ],
)
async def test_pushes_that_make_no_sense_are_counted_and_those_behind_are_taken(
    site: Site, code: int, body: bytes, ext: dict[str, str]
) -> None:
    site.broker.push(code, body, **ext)
    site.broker.push(RequestCode.DELIVER_QUEUED, b"12345678records", pushesBytes="8")
    await site.told((b"records", b"12345678"))
    assert site.link.malformed_total == 1
    assert site.link.is_ready


@pytest.mark.parametrize("body", [b"", b"\xc1", msgspec.msgpack.encode([]), msgspec.msgpack.encode(["x", 1])])
async def test_answers_that_make_no_sense_refuse_what_was_asked(site: Site, body: bytes) -> None:
    site.broker.answers[RequestCode.OPEN_SESSION] = (0, {}, body)
    refused = await site.open()
    assert isinstance(refused, Refused)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    site.broker.answers[RequestCode.OPEN_SESSION] = (30101, {}, b"")
    assert await site.open() == Refused(30101, "no")


@pytest.mark.parametrize(
    ("ext", "body"),
    [
        ({}, b""),
        ({"nextPosition": "x"}, b""),
        ({"nextPosition": "-1"}, b""),
        ({"nextPosition": "1"}, b"\0\0\0\3x"),
        ({"nextPosition": "1"}, b"\0\0\0\x09x"),
        ({"nextPosition": "1", "isEnd": "maybe"}, b""),
    ],
)
async def test_reads_that_make_no_sense_are_refused(site: Site, ext: dict[str, str], body: bytes) -> None:
    site.broker.answers[RequestCode.READ_LIGHT_QUEUE] = (0, ext, body)
    assert isinstance(await asyncio.wait_for(site.read(), 30), Refused)
    assert site.link.malformed_total == 1


async def test_records_are_cut_by_their_sizes_and_limits_are_kept_to(site: Site) -> None:
    record = b"\0\0\0\x06ab"
    site.broker.answers[RequestCode.READ_LIGHT_QUEUE] = (
        0,
        {"nextPosition": "9", "isEnd": "true"},
        record * 2,
    )
    found = await asyncio.wait_for(site.read(), 30)
    assert found == QueueRecords([record, record], 9, True)
    (asked,) = [each for each in site.broker.asked if each.code == RequestCode.READ_LIGHT_QUEUE]
    assert asked.ext["maxNums"] == str(limits.QUEUE_READ_RECORDS_MAX)
    assert asked.ext["maxMsgBytes"] == str(limits.PULL_BYTES_MAX)
    site.broker.answers[RequestCode.READ_RETAINED] = (0, {"after": "x"}, record)
    pages: list[Any] = []
    site.link.read_retained(
        RetainedRead(topic_filter="#", after=None, records_max=1, bytes_max=1), pages.append
    )
    await soon(lambda: bool(pages), "a page")
    assert pages == [RetainedRecords([record], "x")]


async def test_what_is_under_way_when_the_broker_goes_is_refused_but_reads_wait(site: Site) -> None:
    assert isinstance(await site.open(), OpenedSession)
    site.broker.silent |= {RequestCode.READ_LIGHT_QUEUE, RequestCode.OPEN_SESSION}
    read, opening = site.read(), asyncio.ensure_future(site.open("other"))
    await soon(lambda: site.broker.asked[-1].code == RequestCode.OPEN_SESSION, "both are asked")
    site.broker.silent.clear()
    site.broker.answers[RequestCode.READ_LIGHT_QUEUE] = (0, {"nextPosition": "9", "isEnd": "true"}, b"")
    site.listener.told.clear()
    site.broker.connections[-1].abort("test")
    assert isinstance(await opening, Refused)
    assert await asyncio.wait_for(read, 30) == QueueRecords([], 9, True)
    assert site.listener.told == [[3], "ready"], "behind first, then back"
    (claims,) = site.broker.bodies(RequestCode.CLAIM_SESSIONS)
    assert [claim[:2] for claim in claims] == [["c", 7]]


async def test_an_opening_waits_for_a_broker_that_has_just_gone(site: Site) -> None:
    async with another() as present:
        site.broker.connections[-1].abort("test")
        site.broker.silent.add(RequestCode.INTRODUCE_FRONT_END)
        await soon(lambda: not site.link.is_ready, "the broker has gone")
        opening = asyncio.ensure_future(site.open())
        site.link.move(f"127.0.0.1:{present.server.port}")
        assert isinstance(await opening, OpenedSession)
        assert [each.code for each in present.asked].count(RequestCode.OPEN_SESSION) == 1
    assert site.link._turns.under_way == 0


@pytest.mark.parametrize("is_away", [True, False], ids=["away", "slow"])
async def test_openings_that_wait_at_the_limit_of_their_number_and_past_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    monkeypatch.setattr(limits, "SESSION_OPENINGS_WAITING_MAX", 3)
    monkeypatch.setattr(site.link._turns, "_under_way_max", 1)
    await fill(site, is_away=is_away)
    waiting = [asyncio.ensure_future(site.open(f"c{number}")) for number in range(3)]
    await soon(lambda: site.link._waiting_openings == 3, "they wait")
    refused = await site.open("past")
    assert isinstance(refused, Refused)
    assert "3 openings and reads wait" in refused.remark
    assert site.link.refused_openings_total == 1
    await unblock(site)
    assert [type(each) for each in await asyncio.gather(*waiting)] == [OpenedSession] * 3
    assert isinstance(await site.open("again"), OpenedSession)
    assert (site.link._waiting_openings, site.link._waiting_opening_bytes) == (0, 0)


async def test_openings_that_wait_at_the_limit_of_their_bytes_and_past_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(site, is_away=True)
    first = asyncio.ensure_future(site.open("c0"))
    await soon(lambda: site.link._waiting_opening_bytes, "it waits")
    size = site.link._waiting_opening_bytes
    monkeypatch.setattr(limits, "SESSION_OPENINGS_WAITING_BYTES_MAX", 2 * size)
    second = asyncio.ensure_future(site.open("c1"))
    await soon(lambda: site.link._waiting_opening_bytes == 2 * size, "that many bytes may wait")
    assert isinstance(await site.open("c2"), Refused)
    await unblock(site)
    assert [type(each) for each in await asyncio.gather(first, second)] == [OpenedSession] * 2
    assert site.link._waiting_opening_bytes == 0


async def fill(site: Site, *, is_away: bool) -> None:
    """Have the broker gone, or busy with as many openings as are asked at a time."""
    if is_away:
        site.broker.silent.add(RequestCode.INTRODUCE_FRONT_END)
        site.broker.asked.clear()
        site.broker.connections[-1].abort("test")
        await soon(lambda: site.broker.asked, "the broker has gone, and says nothing any more")
        assert not site.link.is_ready
    else:
        site.broker.silent.add(RequestCode.OPEN_SESSION)
        site.busy = asyncio.ensure_future(site.open("busy"))
        await soon(lambda: site.broker.bodies(RequestCode.OPEN_SESSION), "it is asked")


async def unblock(site: Site) -> None:
    """Have the broker back."""
    silent = [request for request in site.broker.asked if request.code in site.broker.silent]
    site.broker.silent.clear()
    code, ext, body = site.broker.answers[RequestCode.OPEN_SESSION]
    if silent and silent[-1].code == RequestCode.OPEN_SESSION:
        site.broker.connections[-1].reply(silent[-1].reply(code, ext=ext, body=body))
        await site.busy
    else:
        # It has not been introduced yet, or has not even come again.
        for connection in list(site.broker.connections):
            connection.abort("test")


async def test_an_opening_does_not_wait_for_a_broker_for_long(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_link, "_ABSENCE_S", 0.05)
    site.broker.silent.add(RequestCode.INTRODUCE_FRONT_END)
    site.broker.connections[-1].abort("test")
    await soon(lambda: not site.link.is_ready, "the broker has gone")
    refused = await site.open()
    assert isinstance(refused, Refused)
    monkeypatch.setattr(session_link, "_ABSENCE_S", 1_000.0)
    began_s = asyncio.get_running_loop().time()
    assert isinstance(await site.open(), Refused)
    assert asyncio.get_running_loop().time() - began_s < 10.0, "it is known to be away"
    assert site.link._turns.under_way == 0


async def test_an_opening_that_waits_is_refused_when_the_front_end_stops(site: Site) -> None:
    site.broker.silent.add(RequestCode.INTRODUCE_FRONT_END)
    site.broker.connections[-1].abort("test")
    await soon(lambda: not site.link.is_ready, "the broker has gone")
    opening = asyncio.ensure_future(site.open())
    await soon(lambda: site.link._openings, "it waits")
    await site.link.stop()
    refused = await opening
    assert isinstance(refused, Refused)
    assert "stops" in refused.remark


async def test_sessions_that_were_lost_meanwhile_are_told_of(site: Site) -> None:
    await site.open()
    site.broker.answers[RequestCode.CLAIM_SESSIONS] = (0, {}, msgspec.msgpack.encode(["c", "never"]))
    site.broker.connections[-1].abort("test")
    await site.told(("c", 7))
    assert site.link.session_count == 0


async def test_a_client_that_left_while_the_broker_was_away_is_claimed_and_closed(site: Site) -> None:
    await site.open()
    site.broker.silent.add(RequestCode.INTRODUCE_FRONT_END)
    site.broker.connections[-1].abort("test")
    await soon(lambda: not site.link.is_ready, "the end of the connection")
    for epoch, expiry_s in ((6, 1), (7, 5)):
        site.link.close_session(CloseRequest(client_id="c", epoch=epoch, expiry_s=expiry_s, drops_will=True))
    refusals: list[Any] = []
    site.link.progress([], refusals.append)
    assert isinstance(refusals[0], Refused)
    site.broker.silent.clear()
    for connection in tuple(site.broker.connections):
        connection.abort("test")
    await soon(lambda: bool(site.broker.bodies(RequestCode.CLOSE_SESSION)), "the close", within_s=20)
    assert site.broker.bodies(RequestCode.CLOSE_SESSION) == [["c", 7, 5, True]]
    assert [claim[:2] for claim in site.broker.bodies(RequestCode.CLAIM_SESSIONS)[0]] == [["c", 7]]


async def test_an_error_nobody_expected_does_not_end_the_link(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.open()
    failures = FAILURES.count("session link")
    told = site.listener.told
    with monkeypatch.context() as broken:
        broken.delattr(Listener, "link_ready")
        told.clear()
        site.broker.connections[-1].abort("test")
        await soon(lambda: FAILURES.count("session link") > failures, "the failure is counted")
        assert "link_ready" in (site.link.problem or "")
    await site.told("ready")
    assert [3] in told, "what was not pushed meanwhile is read"


async def test_a_refusal_to_be_introduced_says_why_there_are_no_sessions(site: Site) -> None:
    site.broker.answers[RequestCode.INTRODUCE_FRONT_END] = (16, {}, b"")
    site.broker.connections[-1].abort("test")
    await soon(lambda: "no" in (site.link.problem or ""), "the reason")
    read = site.read()
    await site.link.stop()
    assert isinstance(read.result(), Refused)


async def test_retained_messages_are_read_from_a_broker_that_comes_back(site: Site) -> None:
    site.broker.answers[RequestCode.READ_RETAINED] = (0, {"after": "x"}, b"")
    site.broker.connections[-1].abort("test")
    await soon(lambda: not site.link.is_ready, "the loss")
    assert site.link.is_expected
    read: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    request = RetainedRead(topic_filter="a/#", after=None, records_max=10, bytes_max=1 << 20)
    site.link.read_retained(request, read.set_result)
    assert (await asyncio.wait_for(read, 30)).after == "x"


async def test_a_storm_is_asked_no_faster_than_the_broker_takes_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.link._turns, "_under_way_max", 4)
    site.broker.silent |= {RequestCode.OPEN_SESSION, RequestCode.READ_LIGHT_QUEUE}
    openings = [asyncio.ensure_future(site.open(f"c{number}")) for number in range(20)]
    await soon(lambda: len(site.broker.bodies(RequestCode.OPEN_SESSION)) == 4, "as many as there may be")
    reads = [site.read() for _ in range(20)]
    await soon(lambda: site.link._turns.waiting_count, "the others wait")
    site.broker.silent.clear()
    site.broker.answers[RequestCode.READ_LIGHT_QUEUE] = (0, {"nextPosition": "9", "isEnd": "true"}, b"")
    site.broker.connections[-1].abort("test")
    answers = await asyncio.gather(*openings)
    assert [isinstance(each, Refused) for each in answers] == [True] * 4 + [False] * 16
    assert {found.next_position for found in await asyncio.gather(*reads)} == {9}
    assert (site.link._turns.under_way, site.link._turns.waiting_count) == (0, 0)
    assert isinstance(await site.open(), OpenedSession)


@asynccontextmanager
async def another() -> AsyncIterator[FakeBroker]:
    broker = FakeBroker()
    await broker.server.start()
    yield broker
    await broker.server.stop()


async def test_a_link_that_moves_claims_its_sessions_at_the_next_master_and_reads_go_there(
    site: Site,
) -> None:
    async with another() as present:
        await site.open()
        site.broker.silent.add(RequestCode.READ_LIGHT_QUEUE)
        reading = site.read()
        await soon(
            lambda: RequestCode.READ_LIGHT_QUEUE in [each.code for each in site.broker.asked], "a read"
        )
        site.listener.told.clear()
        present.answers[RequestCode.READ_LIGHT_QUEUE] = (0, {"nextPosition": "1", "isEnd": "true"}, b"")
        began_s = asyncio.get_running_loop().time()
        site.link.move(f"127.0.0.1:{present.server.port}")
        assert await asyncio.wait_for(reading, 30) == QueueRecords([], 1, True)
        # Without the pauses of a connection that was lost.
        assert asyncio.get_running_loop().time() - began_s < 1.0
        [[claim]] = present.bodies(RequestCode.CLAIM_SESSIONS)
        assert claim[:2] == ["c", 7]
        await soon(lambda: not site.broker.connections, "the former is left")
        assert [3] in site.listener.told, "what came meanwhile is read"
        assert site.link.is_ready
        assert site.link.session_count == 1


async def test_a_link_leaves_a_master_that_does_not_answer_when_it_moves(site: Site) -> None:
    site.broker.silent.add(RequestCode.INTRODUCE_FRONT_END)
    site.broker.connections[-1].abort("test")
    await soon(lambda: len(site.broker.asked) >= 2 and site.broker.connections, "the next connection")
    async with another() as present:
        site.listener.told.clear()
        site.link.move(f"127.0.0.1:{present.server.port}")
        site.link.move(f"127.0.0.1:{present.server.port}")
        await site.told("ready")
        assert site.link.opened_total == 2


async def test_a_link_that_moves_to_where_it_is_stays(site: Site) -> None:
    site.link.move(site.link.address)
    await site.open()
    assert site.link.opened_total == 1


async def test_filters_given_up_while_the_broker_was_away_are_taken_back_before_the_session_is_closed(
    site: Site,
) -> None:
    assert isinstance(await site.open(), OpenedSession)
    site.link.unsubscribe_later("nobody", ["a"])
    site.link.unsubscribe_later("c", ["b"])
    assert not site.link._given_up, "the session has no such filter"
    site.broker.silent |= {RequestCode.UNSUBSCRIBE_SESSION, RequestCode.CLOSE_SESSION}
    site.broker.connections[-1].abort("test")
    await soon(lambda: not site.link.is_ready, "the end of the connection")
    site.link.unsubscribe_later("c", ["a", "b"])
    site.link.close_session(CloseRequest(client_id="c", epoch=7, expiry_s=9, drops_will=False))
    site.link.unsubscribe_later("c", ["a"])
    await soon(lambda: bool(site.broker.bodies(RequestCode.CLOSE_SESSION)), "both are asked")
    # The broker goes before it has answered.
    site.broker.silent.clear()
    site.broker.connections[-1].abort("test")
    await soon(lambda: len(site.broker.bodies(RequestCode.CLOSE_SESSION)) == 2, "both are asked again")
    told = (RequestCode.UNSUBSCRIBE_SESSION, RequestCode.CLOSE_SESSION)
    assert [request.code for request in site.broker.asked if request.code in told] == [*told] * 2
    assert site.broker.bodies(RequestCode.UNSUBSCRIBE_SESSION) == [["c", 7, ["a"]]] * 2
    assert not site.link._given_up


async def test_very_many_filters_given_up_are_taken_back_in_requests_that_a_broker_takes(site: Site) -> None:
    most = limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX
    names = [f"{number:05}" for number in range(most + 1)]
    site.link._known["c"] = _Known(7, None, dict.fromkeys(names, 3))
    site.broker.connections[-1].abort("test")
    await soon(lambda: not site.link.is_ready, "the end of the connection")
    site.link.unsubscribe_later("c", names[:most])
    site.link.unsubscribe_later("c", names[most:])
    await soon(lambda: len(site.broker.bodies(RequestCode.UNSUBSCRIBE_SESSION)) == 2, "both are told")
    assert site.broker.bodies(RequestCode.UNSUBSCRIBE_SESSION) == [
        ["c", 7, names[:most]],
        ["c", 7, names[most:]],
    ]


async def test_wills_that_are_more_than_a_frame_are_claimed_in_several_requests(site: Site) -> None:
    will = Will("T", 0, bytes(limits.MQTT_CONNECT_BYTES_MAX), True)
    count = limits.FRAME_BYTES_MAX // limits.MQTT_CONNECT_BYTES_MAX + 1
    site.link._known.update((f"c{number}", _Known(7, will, {})) for number in range(count))
    site.broker.asked.clear()
    site.broker.connections[-1].abort("test")
    await soon(lambda: site.link.opened_total == 2, "the next connection")
    claimed = [claim[0] for page in site.broker.bodies(RequestCode.CLAIM_SESSIONS) for claim in page]
    assert claimed == [f"c{number}" for number in range(count)]


async def test_very_many_sessions_are_told_over_several_turns_that_the_broker_has_gone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_link, "_MISSED_PER_TURN", 4)
    for number in range(10):
        # Some share a queue.
        site.link._known[f"c{number}"] = _Known(number, None, {"a": number // 2, "b": 100 + number})
    for _ in range(2):
        site.listener.told.clear()
        site.broker.connections[-1].abort("test")
        await site.told("ready")
        *told, ready = site.listener.told
        assert ready == "ready", "nothing is pushed before all know"
        assert max(map(len, told)) <= 4 + 1
        assert sorted(queue_id for page in told for queue_id in page) == site.link.queue_ids()


async def test_claims_are_made_for_one_request_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(bodies, "queues_checksum", lambda queues: made.append(1) or 5)
    page = limits.SESSIONS_PER_REQUEST_MAX
    site.link._known.update((f"c{number}", _Known(7, None, {"a": 3})) for number in range(page + 2))
    site.broker.silent.add(RequestCode.CLAIM_SESSIONS)
    site.broker.asked.clear()
    site.broker.connections[-1].abort("test")
    await soon(lambda: bool(site.broker.bodies(RequestCode.CLAIM_SESSIONS)), "the first claims")
    assert len(made) == page
    # One that is closed before its turn is claimed all the same, or its broker would keep it for a while.
    site.link.close_session(CloseRequest(client_id=f"c{page}", epoch=7, expiry_s=9, drops_will=False))
    site.broker.silent.clear()
    (request,) = [request for request in site.broker.asked if request.code == RequestCode.CLAIM_SESSIONS]
    site.broker.connections[-1].reply(request.reply(0, body=msgspec.msgpack.encode([])))
    await soon(lambda: site.link.is_ready, "the connection")
    assert len(made) == page + 1
    second = site.broker.bodies(RequestCode.CLAIM_SESSIONS)[1]
    assert [claim[:3] for claim in second] == [[f"c{page + 1}", 7, 5], [f"c{page}", 7, 0]]
