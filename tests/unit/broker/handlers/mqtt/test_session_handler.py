"""Requests 30050 to 30061 at the broker: who may send them, limits, slow and returning front ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from front_metrics import number_of
from session_bench import SessionBench, open_bench, turns

from iotmq import limits
from iotmq.broker.handlers.mqtt import front_end_link
from iotmq.broker.handlers.mqtt.sessions import SessionHandler
from iotmq.broker.light_queues.queued_push import gather_queued
from iotmq.broker.sessions.ownership import OWNER_GRACE_S
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import ConnectionClosedError, RequestError
from iotmq.message.records.record import decode_record
from iotmq.ports.bodies import queues_checksum
from iotmq.ports.sessions import SessionProgress, Will
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


class Connection:
    """What the handler needs of a ServerConnection; keeps what it is sent."""

    peer = ("127.0.0.1", 5000)

    def __init__(self) -> None:
        self.is_congested = False
        self.ended: str | None = None
        self.room = asyncio.Event()
        self.replies: dict[int, Command] = {}
        self.sent: list[Command] = []

    def reply(self, response: Command) -> None:
        self.replies[response.opaque] = response

    def send_oneway(self, command: Command) -> None:
        self.sent.append(command)

    def abort(self, reason: str) -> None:
        self.ended = reason

    async def drain(self) -> None:
        await self.room.wait()
        if self.ended is not None:
            raise ConnectionClosedError("gone")

    def take(self) -> list[Any]:
        """What was sent since the last call, in a form to compare."""
        sent, self.sent = self.sent, []
        return [_shown(command) for command in sent]


def _shown(command: Command) -> Any:
    body = command.body_bytes()
    if command.code == RequestCode.DELIVER_QUEUED:
        size = int(command.ext["pushesBytes"])
        records = body[size:]
        return [
            (
                int.from_bytes(body[at + 4 : at + 8], "big"),
                decode_record(records, int.from_bytes(body[at : at + 4], "big")).body,
            )
            for at in range(0, size, 8)
        ]
    if command.code == RequestCode.MISSED_QUEUES:
        ids = [int.from_bytes(body[at : at + 4], "big") for at in range(0, len(body), 4)]
        return "all" if command.ext["isAll"] == "true" else set(ids)
    assert command.code == RequestCode.FENCE_SESSION
    return tuple(msgspec.msgpack.decode(body))[:2]


class Site:
    def __init__(self, bench: SessionBench) -> None:
        self.bench = bench
        self.opaque = 0

    @property
    def handler(self) -> SessionHandler:
        return self.bench.broker.mqtt.session_requests

    @property
    def front_end_count(self) -> float:
        return number_of(self.handler, "iotmq_broker_session_front_ends")

    async def ask(self, connection: Connection, code: int, body: Any = b"", **ext: str) -> Command:
        """The answer; RequestError when it is refused at once."""
        data = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
        request = Command.request(code, ext, data)
        self.opaque += 1
        request.opaque = self.opaque
        answer = self.handler.handlers()[code](connection, request)  # type: ignore[arg-type]
        for _ in range(20):
            if answer is not None:
                return answer
            await turns(1)
            answer = connection.replies.get(request.opaque)
        raise AssertionError("no answer")

    async def front_end(self, name: str = "one", token: str = "t") -> Connection:
        connection = Connection()
        answer = await self.ask(connection, RequestCode.INTRODUCE_FRONT_END, name=name, token=token)
        assert answer.code == 0
        return connection

    async def open(
        self, connection: Connection, client_id: str, *filters: str, will: Any = None
    ) -> tuple[int, list[int]]:
        """(epoch, queue ids) of a session that is kept a minute."""
        answer = await self.ask(connection, RequestCode.OPEN_SESSION, [client_id, False, 60, will])
        assert answer.code == 0, answer.remark
        epoch = msgspec.msgpack.decode(answer.body_bytes())[0]
        if not filters:
            return epoch, []
        wanted = [[name, 1] for name in filters]
        answer = await self.ask(connection, RequestCode.SUBSCRIBE_SESSION, [client_id, epoch, wanted])
        assert answer.code == 0, answer.remark
        return epoch, [entry[2] for entry in msgspec.msgpack.decode(answer.body_bytes())]

    async def claim(self, connection: Connection, *claims: Any) -> list[str]:
        answer = await self.ask(connection, RequestCode.CLAIM_SESSIONS, list(claims))
        found: list[str] = msgspec.msgpack.decode(answer.body_bytes())
        return found


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    bench = await open_bench(tmp_path)
    yield Site(bench)
    await bench.close()


async def refusal(asked: Any) -> tuple[int, str]:
    with pytest.raises(RequestError) as raised:
        await asked
    return raised.value.code, str(raised.value)


# Operators read retained messages, too: the bans are among them.
OF_FRONT_ENDS = {*range(RequestCode.OPEN_SESSION, RequestCode.CLAIM_SESSIONS + 1)}
OF_FRONT_ENDS.remove(RequestCode.READ_RETAINED)


@pytest.mark.parametrize("code", sorted(OF_FRONT_ENDS))
async def test_only_front_ends_have_sessions(site: Site, code: int) -> None:
    assert (await refusal(site.ask(Connection(), code)))[0] == ResponseCode.NO_PERMISSION


async def test_a_front_end_introduces_itself_by_a_name_of_its_own(site: Site) -> None:
    first = await site.front_end("one", "a")
    assert (await site.ask(first, RequestCode.INTRODUCE_FRONT_END, name="one", token="a")).code == 0
    assert (
        "already" in (await refusal(site.ask(first, RequestCode.INTRODUCE_FRONT_END, name="x", token="a")))[1]
    )
    code, remark = await refusal(site.front_end("one", "b"))
    assert code == ResponseCode.NO_PERMISSION
    assert "mqtt.name" in remark
    again = await site.front_end("one", "a")
    assert first.ended == "replaced"
    site.handler.connection_lost(first)  # type: ignore[arg-type]
    assert site.front_end_count == 1
    site.handler.connection_lost(again)  # type: ignore[arg-type]
    assert site.front_end_count == 0
    await site.front_end("one", "b")


@pytest.mark.parametrize("field", ["name", "token"])
async def test_a_name_has_a_length(site: Site, field: str) -> None:
    words = {"name": "n", "token": "t", field: "x" * limits.FRONT_END_NAME_BYTES_MAX}
    assert (await site.ask(Connection(), RequestCode.INTRODUCE_FRONT_END, **words)).code == 0
    for value in ("", "x" * (limits.FRONT_END_NAME_BYTES_MAX + 1)):
        words[field] = value
        assert field in (await refusal(site.ask(Connection(), RequestCode.INTRODUCE_FRONT_END, **words)))[1]


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.OPEN_SESSION, ["", False, 1, None]),
        (RequestCode.OPEN_SESSION, ["c" * (limits.MQTT_CLIENT_ID_BYTES_MAX + 1), False, 1, None]),
        (RequestCode.OPEN_SESSION, ["c", False, -1, None]),
        (RequestCode.OPEN_SESSION, ["c", False, 1 << 32, None]),
        (RequestCode.OPEN_SESSION, ["c", False, 1, ["T", -1, b"", True, 0]]),
        (RequestCode.OPEN_SESSION, ["c", False, 1, ["a b", 0, b"", True, 0]]),
        (RequestCode.SUBSCRIBE_SESSION, ["c", 1, [["a/#/b", 1]]]),
        (RequestCode.SUBSCRIBE_SESSION, ["c", 1, [["x" * (limits.MQTT_TOPIC_BYTES_MAX + 1), 1]]]),
        (RequestCode.SUBSCRIBE_SESSION, ["c", 1, [["ü" * (limits.MQTT_TOPIC_BYTES_MAX // 2 + 1), 1]]]),
        (RequestCode.SUBSCRIBE_SESSION, ["c", 1, [["a", 1 << 36]]]),
        (
            RequestCode.SUBSCRIBE_SESSION,
            ["c", 1, [["a", 1]] * (limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX + 1)],
        ),
        (RequestCode.UNSUBSCRIBE_SESSION, ["c", 1, ["a"] * (limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX + 1)]),
        (RequestCode.REPORT_PROGRESS, [["c", 1, [[-1, 0, 0]]]]),
        (RequestCode.REPORT_PROGRESS, [["c", 1, [[1, -1, 0]]]]),
        (RequestCode.REPORT_PROGRESS, [["c", 1, [], [0]]]),
        (RequestCode.REPORT_PROGRESS, [["c", 1, [], [65_536]]]),
        (RequestCode.REPORT_PROGRESS, [["c", 1, [], None, [[0, 1, 1, False]]]]),
        (RequestCode.REPORT_PROGRESS, [["c", 1, [[1, 0, 0]] * (limits.SESSION_QUEUES_MAX + 1)]]),
        (
            RequestCode.REPORT_PROGRESS,
            [["c", 1, [], None, None, [[1, 0]] * 65_536]],
        ),
        (RequestCode.REPORT_PROGRESS, [["c", 1, [], None, None, [[1, -1]]]]),
        (RequestCode.REPORT_PROGRESS, [["c", 1, []]] * (limits.SESSIONS_PER_REQUEST_MAX + 1)),
        (RequestCode.CLAIM_SESSIONS, [["c", 1, 0, None]] * (limits.SESSIONS_PER_REQUEST_MAX + 1)),
        (RequestCode.CLOSE_SESSION, ["c", 1 << 63, 0, True]),
        (RequestCode.REPORT_CLIENTS, [["a", 1, 1, 1, 1, 1]] * (limits.CLIENT_PREFIXES_MAX + 2)),
        (RequestCode.REPORT_CLIENTS, [["a" * 64, 1, 1, 1, 1]]),
        (RequestCode.REPORT_CLIENTS, [["a" * 64, 1, 1, -1, 1, 1]]),
        (RequestCode.REPORT_CLIENTS, [["a", 1, (1 << 48) + 1, 1, 1, 1]]),
    ],
)
async def test_what_cannot_be_is_refused_and_named(site: Site, code: int, body: Any) -> None:
    front_end = await site.front_end()
    code, remark = await refusal(site.ask(front_end, code, body))
    assert code in (ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL)
    assert remark


async def test_requests_at_their_limits_are_taken(site: Site) -> None:
    front_end = await site.front_end()
    client_id = "c" * limits.MQTT_CLIENT_ID_BYTES_MAX
    epoch, _ = await site.open(front_end, client_id, "x" * limits.MQTT_TOPIC_BYTES_MAX)
    filters = [[f"f/{number}", 1] for number in range(limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)]
    answer = await site.ask(front_end, RequestCode.SUBSCRIBE_SESSION, [client_id, epoch, filters])
    assert len(msgspec.msgpack.decode(answer.body_bytes())) == len(filters)
    changes = [[client_id, epoch, []]] * limits.SESSIONS_PER_REQUEST_MAX
    done = [[999_999, 0]] * 65_535
    changes[0] = [client_id, epoch, [[1, 0, 0]] * limits.SESSION_QUEUES_MAX, None, None, done]
    assert (await site.ask(front_end, RequestCode.REPORT_PROGRESS, changes)).code == 0
    claims = [["nobody", 1, 0, None]] * limits.SESSIONS_PER_REQUEST_MAX
    assert len(await site.claim(front_end, *claims)) == limits.SESSIONS_PER_REQUEST_MAX
    counts = [[f"{number:063}", 1 << 48, 2, 3, 4, 5] for number in range(limits.CLIENT_PREFIXES_MAX + 1)]
    assert (await site.ask(front_end, RequestCode.REPORT_CLIENTS, counts)).code == 0


async def test_a_session_lives_over_requests(site: Site) -> None:
    front_end = await site.front_end()
    epoch, (queue_id,) = await site.open(front_end, "c", "a/#")
    site.bench.publish("a/b", b"1", b"2")
    site.bench.publish("other", b"3")
    assert front_end.take() == [[(queue_id, b"1"), (queue_id, b"2")]]
    ext = {"queueId": str(queue_id), "position": "0", "maxNums": "1", "maxMsgBytes": "1000"}
    answer = await site.ask(front_end, RequestCode.READ_LIGHT_QUEUE, **ext)
    assert decode_record(answer.body_bytes()).body == b"1"
    assert answer.ext["isEnd"] == "false"
    ext["position"] = answer.ext["nextPosition"]
    answer = await site.ask(front_end, RequestCode.READ_LIGHT_QUEUE, **{**ext, "maxNums": "1024"})
    assert decode_record(answer.body_bytes()).body == b"2"
    assert answer.ext["isEnd"] == "true"
    change = SessionProgress("c", epoch, [(queue_id, int(answer.ext["nextPosition"]), 0)], [3])
    assert (await site.ask(front_end, RequestCode.REPORT_PROGRESS, [change])).code == 0
    assert (await site.ask(front_end, RequestCode.CLOSE_SESSION, ["c", epoch, 60, True])).code == 0
    again = await site.ask(front_end, RequestCode.OPEN_SESSION, ["c", False, 60, None])
    found = msgspec.msgpack.decode(again.body_bytes())
    assert found[1:] == [True, [["a/#", 1, queue_id, change.cursors[0][1], 0]], [3], [], [], 0]
    answer = await site.ask(front_end, RequestCode.UNSUBSCRIBE_SESSION, ["c", found[0], ["a/#"]])
    assert answer.code == 0
    gone = await site.ask(front_end, RequestCode.READ_LIGHT_QUEUE, **ext)
    assert gone.code == ResponseCode.QUERY_NOT_FOUND
    late = await site.ask(front_end, RequestCode.SUBSCRIBE_SESSION, ["c", epoch, [["x", 1]]])
    assert late.code == ResponseCode.SESSION_LOST


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("maxNums", str(limits.QUEUE_READ_RECORDS_MAX), str(limits.QUEUE_READ_RECORDS_MAX + 1)),
        ("maxNums", "1", "0"),
        ("maxMsgBytes", str(limits.PULL_BYTES_MAX), str(limits.PULL_BYTES_MAX + 1)),
        ("position", "0", "-1"),
        ("queueId", None, str(1 << 32)),
    ],
)
async def test_a_read_has_bounds(site: Site, field: str, good: str | None, bad: str) -> None:
    front_end = await site.front_end()
    _, (queue_id,) = await site.open(front_end, "c", "a")
    ext = {"queueId": str(queue_id), "position": "0", "maxNums": "1", "maxMsgBytes": "1"}
    if good is not None:
        assert (await site.ask(front_end, RequestCode.READ_LIGHT_QUEUE, **{**ext, field: good})).code == 0
    assert (
        field in (await refusal(site.ask(front_end, RequestCode.READ_LIGHT_QUEUE, **{**ext, field: bad})))[1]
    )


async def test_retained_messages_come_page_by_page(site: Site) -> None:
    front_end = await site.front_end()
    elements = b"".join(
        encode_element(b"%d" % number, b"MQTT_TOPIC\x01r/%d\x02MQTT_RETAIN\x011\x02" % number, 0)
        for number in range(3)
    )
    site.bench.broker.writer.append(
        "T", 0, elements, born_timestamp_ms=1, born_host=b"\x7f\0\0\1\0\0\0\1", done=lambda _: None
    )
    ext = {"filter": "r/+", "maxNums": "2", "maxMsgBytes": "100000"}
    first = await site.ask(front_end, RequestCode.READ_RETAINED, **ext)
    second = await site.ask(Connection(), RequestCode.READ_RETAINED, after=first.ext["after"], **ext)
    assert "after" not in second.ext
    assert decode_record(second.body_bytes()).body == b"2"
    assert "after" in (await refusal(site.ask(front_end, RequestCode.READ_RETAINED, after="x", **ext)))[1]
    assert (await refusal(site.ask(front_end, RequestCode.READ_RETAINED, **{**ext, "filter": "a#"})))[0] == 1


async def test_a_front_end_that_does_not_read_is_told_what_it_missed_before_it_gets_more(site: Site) -> None:
    front_end = await site.front_end()
    _, (queue_a, queue_b) = await site.open(front_end, "c", "a", "b")
    front_end.is_congested = True
    site.bench.publish("a", b"1")
    site.bench.publish("a", b"2")
    assert front_end.take() == []
    front_end.is_congested = False
    site.bench.publish("b", b"3")
    assert front_end.take() == [{queue_a}, [(queue_b, b"3")]]
    front_end.is_congested = True
    site.bench.publish("b", b"4")
    front_end.is_congested = False
    front_end.room.set()
    await turns()
    assert front_end.take() == [{queue_b}], "without another push"
    assert site.handler.missed_pushes == 3


async def test_past_a_number_of_queues_all_count_as_missed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MISSED_QUEUES_MAX", 2)
    front_end = await site.front_end()
    _, queue_ids = await site.open(front_end, "c", "a", "b", "c")
    for topics, missed in ((("a", "b", "a"), set(queue_ids[:2])), (("a", "b", "c"), "all")):
        front_end.is_congested = True
        for topic in topics:
            site.bench.publish(topic, b"x")
        front_end.is_congested = False
        front_end.room.set()
        await turns()
        assert front_end.take() == [missed]


async def test_a_long_push_goes_out_in_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_end_link, "_PUSH_BYTES_MAX", 500)
    front_end = await site.front_end()
    _, (queue_a, queue_b) = await site.open(front_end, "c", "a", "+")
    site.bench.publish("a", *(b"%d" % number for number in range(9)))
    sent = front_end.take()
    assert len(sent) > 1
    assert [body for part in sent for _, body in part] == [b"%d" % (number // 2) for number in range(18)]
    assert {queue for part in sent for queue, _ in part} == {queue_a, queue_b}


def test_gathering_nothing_is_nothing() -> None:
    assert gather_queued(b"", b"", 0, 10) == (bytearray(), bytearray(), 0)


async def test_a_front_end_that_comes_back_in_time_keeps_its_sessions(site: Site) -> None:
    will = Will("T", 5, b"", False)
    front_end = await site.front_end()
    epoch, (queue_id,) = await site.open(front_end, "c", "a", will=will)
    checksum = queues_checksum([("a", queue_id)])
    site.handler.connection_lost(front_end)  # type: ignore[arg-type]
    site.bench.publish("a", b"meanwhile")
    back = await site.front_end()
    assert await site.claim(back, ["c", epoch, checksum, will], ["other", 1, 0, None]) == ["other"]
    site.bench.pass_time(OWNER_GRACE_S + 1)
    assert site.bench.broker.sessions.owners.front_end_of("c") == "one"
    assert site.bench.broker.sessions.owners.wills.sent_total == 0
    site.bench.publish("a", b"now")
    assert back.take() == [[(queue_id, b"now")]]
    site.handler.connection_lost(back)  # type: ignore[arg-type]
    site.bench.pass_time(OWNER_GRACE_S + 1)
    assert site.bench.broker.sessions.owners.wills.sent_total == 1
    late = await site.front_end()
    await turns()
    assert await site.claim(late, ["c", epoch, checksum, will]) == ["c"]


async def test_sessions_are_claimed_after_the_broker_was_restarted(site: Site) -> None:
    front_end = await site.front_end()
    epoch, (queue_id,) = await site.open(front_end, "c", "a")
    elsewhere = await site.front_end("two")
    await site.bench.restart()
    other, back = await site.front_end("two"), await site.front_end("one")
    assert elsewhere is not other
    checksum = queues_checksum([("a", queue_id)])
    assert await site.claim(other, ["c", epoch, checksum, None]) == ["c"], "it was not its own"
    assert await site.claim(back, ["c", epoch, checksum, None], ["t", -7, 0, None]) == []
    site.bench.publish("a", b"1")
    assert back.take() == [[(queue_id, b"1")]]
    assert back.take() == []


async def test_a_session_with_other_queues_than_the_front_end_knows_is_fenced(site: Site) -> None:
    front_end = await site.front_end()
    epoch, (queue_id,) = await site.open(front_end, "c", "a")
    site.handler.connection_lost(front_end)  # type: ignore[arg-type]
    back = await site.front_end()
    assert await site.claim(back, ["c", epoch, queues_checksum([("a", queue_id + 1)]), None]) == []
    assert back.take() == [("c", epoch)]
    assert (await site.ask(back, RequestCode.CLOSE_SESSION, ["c", epoch, 60, True])).code == 0
    assert site.bench.broker.sessions.owners.front_end_of("c") is None


async def test_a_session_opened_elsewhere_is_fenced_and_its_former_owner_not_heard(site: Site) -> None:
    one, two = await site.front_end("one"), await site.front_end("two")
    epoch, _ = await site.open(one, "c", "a")
    request = Command.request(RequestCode.OPEN_SESSION, body=msgspec.msgpack.encode(["c", False, 60, None]))
    assert site.handler.handlers()[RequestCode.OPEN_SESSION](two, request) is None  # type: ignore[arg-type]
    assert one.take() == [("c", epoch)]
    await site.ask(one, RequestCode.CLOSE_SESSION, ["c", epoch, 60, True])
    await turns()
    assert msgspec.msgpack.decode(two.replies[request.opaque].body_bytes())[1] is True
    assert site.bench.broker.sessions.owners.front_end_of("c") == "two"
    answer = await site.ask(one, RequestCode.UNSUBSCRIBE_SESSION, ["c", epoch, ["a"]])
    assert answer.code == ResponseCode.SESSION_LOST


async def test_one_unsound_report_takes_no_sound_one_along(site: Site) -> None:
    front_end = await site.front_end()
    opened = {name: await site.open(front_end, name, f"t/{name}") for name in ("before", "wrong", "after")}
    position = site.bench.store.appended_position
    changes = [
        SessionProgress(name, epoch, [(queue_id, position, position if name != "wrong" else -1)])
        for name, (epoch, (queue_id,)) in opened.items()
    ]
    code, remark = await refusal(site.ask(front_end, RequestCode.REPORT_PROGRESS, changes))
    assert code == ResponseCode.SYSTEM_ERROR
    assert "'wrong' has impossible numbers" in remark
    sessions = site.bench.broker.sessions
    for _ in range(20):
        await turns(1)
    cursors = {name: sessions.behind(name, queue_id)[0] for name, (_, (queue_id,)) in opened.items()}
    assert cursors["before"] == cursors["after"] == position
    assert cursors["wrong"] < position
