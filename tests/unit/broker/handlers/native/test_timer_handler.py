"""Requests about waiting messages: what is answered, and what is refused how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from manual_clock import ManualClock
from timer_bench import TimerBench

from iotmq import limits
from iotmq.broker.handlers.native.timers import TimerHandler
from iotmq.broker.replies.request_table import RequestTable
from iotmq.broker.scheduled.recall_handle import RecallHandle
from iotmq.errors import RequestError
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command


class Asked:
    """A bench whose timers answer requests."""

    def __init__(self, directory: Path) -> None:
        self.bench = TimerBench(directory, ManualClock())
        handler = TimerHandler(self.bench.timers, self.bench.topics, broker_name="broker-a")
        self.table = RequestTable([handler])
        self.replies: list[Command] = []

    def reply(self, response: Command) -> None:
        self.replies.append(response)

    def ask(self, code: int, **fields: str) -> Command:
        response = self.table.handle(self, Command.request(code, fields))  # type: ignore[arg-type]
        assert response is not None
        return response

    def refused(self, code: int, **fields: str) -> tuple[int, str]:
        try:
            response = self.ask(code, **fields)
        except RequestError as error:
            return error.code, str(error)
        assert response.code != 0
        return response.code, response.remark or ""


@pytest.fixture
async def asked(tmp_path: Path) -> Any:
    asked = Asked(tmp_path)
    yield asked
    asked.bench.close()


async def test_a_list_says_everything_about_what_waits(asked: Asked) -> None:
    stored = asked.bench.put(b"body", in_ms=5_000, key="k", queue_id=2)
    asked.bench.put(b"", level=3)
    page = msgspec.json.decode(asked.ask(RequestCode.LIST_TIMERS).body_bytes())
    now_ms = asked.bench.clock.now_ms()
    assert page["pending"] == 2
    assert page["next"] is None
    assert page["timers"][0] == {
        "topic": "T",
        "queueId": 2,
        "dueMs": now_ms + 5_000,
        "level": 0,
        "uniqueKey": "k",
        "storeTimestamp": now_ms,
        "bodySize": 4,
        "position": stored.appended.start_position,
    }
    assert (page["timers"][1]["level"], page["timers"][1]["uniqueKey"]) == (3, "")


async def test_pages_follow_each_other_and_have_a_largest_size(asked: Asked) -> None:
    for number in range(5):
        asked.bench.put(b"%d" % number, in_ms=1_000)
    first = msgspec.json.decode(asked.ask(RequestCode.LIST_TIMERS, maxNums="3").body_bytes())
    rest = msgspec.json.decode(asked.ask(RequestCode.LIST_TIMERS, after=first["next"]).body_bytes())
    assert [len(first["timers"]), len(rest["timers"]), rest["next"]] == [3, 2, None]
    most = limits.TIMERS_LISTED_MAX
    assert asked.ask(RequestCode.LIST_TIMERS, maxNums=str(most)).code == 0
    code, remark = asked.refused(RequestCode.LIST_TIMERS, maxNums=str(most + 1))
    assert (code, "maxNums" in remark) == (1, True)


async def test_a_handle_takes_its_message_back_once(asked: Asked) -> None:
    asked.bench.put(b"", in_ms=5_000, key="k")
    handle = RecallHandle("T", "broker-a", "1", "k").encode()
    answer = asked.ask(RequestCode.RECALL_MESSAGE, topic="T", recallHandle=handle)
    assert (answer.code, answer.ext) == (0, {"msgId": "k"})
    assert asked.refused(RequestCode.RECALL_MESSAGE, topic="T", recallHandle=handle)[0] == 22


@pytest.mark.parametrize(
    ("code", "fields", "expected", "named"),
    [
        (RequestCode.RECALL_MESSAGE, {}, 1, "topic"),
        (RequestCode.RECALL_MESSAGE, {"topic": "T"}, 1, "recallHandle"),
        (RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": "x"}, 13, "recallHandle"),
        (RequestCode.CANCEL_TIMER, {"topic": "T"}, 1, "uniqueKey"),
        (RequestCode.CANCEL_TIMER, {"topic": "T", "uniqueKey": ""}, 1, "uniqueKey"),
        (RequestCode.CANCEL_TIMER, {"topic": "T", "uniqueKey": "k"}, 22, "unique key k"),
        (RequestCode.LIST_TIMERS, {"after": "x"}, 1, "after"),
        (RequestCode.LIST_TIMERS, {"after": "1:2:3"}, 1, "after"),
        (RequestCode.LIST_TIMERS, {"maxNums": "0"}, 1, "maxNums"),
    ],
)
async def test_bad_fields_are_named(
    asked: Asked, code: int, fields: dict[str, str], expected: int, named: str
) -> None:
    found, remark = asked.refused(code, **fields)
    assert (found, named in remark) == (expected, True)


@pytest.mark.parametrize(
    ("topic", "handle", "expected"),
    [
        ("unknown", RecallHandle("unknown", "broker-a", "1", "k"), 17),
        ("T", RecallHandle("other", "broker-a", "1", "k"), 13),
        ("T", RecallHandle("T", "broker-b", "1", "k"), 13),
    ],
)
async def test_a_handle_of_somebody_else_is_refused(
    asked: Asked, topic: str, handle: RecallHandle, expected: int
) -> None:
    code, _ = asked.refused(RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle.encode())
    assert code == expected


async def test_a_list_that_waits_for_the_disk_is_answered_later(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.bench.put(b"", in_ms=5_000)
    waiting: list[Any] = []
    monkeypatch.setattr(asked.bench.store, "plan_records", lambda places: list(places))
    monkeypatch.setattr(asked.bench.timers._cold_reads, "start", lambda plan, ready: waiting.append(ready))
    for error in (None, OSError("bad sector")):
        request = Command.request(RequestCode.LIST_TIMERS)
        assert asked.table.handle(asked, request) is None  # type: ignore[arg-type]
        waiting.pop()(error)
        assert asked.replies[-1].opaque == request.opaque
    assert [reply.code for reply in asked.replies] == [0, 1]
