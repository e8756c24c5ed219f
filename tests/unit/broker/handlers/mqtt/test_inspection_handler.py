"""Requests of operators about one process, at and past their limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_connection import FakeConnection
from session_bench import FrontEnd, open_bench

from iotmq import limits
from iotmq.broker.handlers.mqtt.inspections import InspectionHandler
from iotmq.errors import RequestError
from iotmq.ports.inspections import Inspections
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


class AskedFrontEnd(FrontEnd):
    """Remembers what it is asked."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: list[tuple[str, bytes, Callable[[bytes | RequestError], None]]] = []

    def inspect(self, name: str, body: bytes, done: Callable[[bytes | RequestError], None]) -> None:
        self.asked.append((name, body, done))


async def test_questions_to_a_front_end_are_bounded_and_its_answers_passed_on(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path)
    front_end = AskedFrontEnd(bench, "one")
    handler = InspectionHandler(bench.broker.sessions.front_ends, Inspections())
    connection = FakeConnection()

    def ask(body: bytes = b"", **ext: str) -> Command | None:
        request = Command.request(RequestCode.INSPECT, ext, body)
        return handler.handlers()[RequestCode.INSPECT](connection, request)  # type: ignore[arg-type]

    most = limits.INSPECTION_QUESTION_BYTES_MAX
    assert ask(bytes(most), frontEnd="one", name="n") is None
    with pytest.raises(RequestError, match="a question has"):
        ask(bytes(most + 1), frontEnd="one", name="n")
    while len(front_end.asked) < limits.INSPECTIONS_PENDING_MAX:
        assert ask(frontEnd="one", name="n") is None
    with pytest.raises(RequestError, match="ask again later"):
        ask(frontEnd="one", name="n")
    name, body, done = front_end.asked[0]
    assert (name, len(body)) == ("n", most)
    done(b"answer")
    assert connection.replies[0].body_bytes() == b"answer"
    for _, _, done in front_end.asked[1:]:
        done(RequestError(22, "no such device"))
    assert {(each.code, each.remark) for each in connection.replies[1:]} == {(22, "no such device")}

    absent = ask(frontEnd="two", name="n")
    assert absent is not None
    assert absent.code == ResponseCode.CONSUMER_NOT_ONLINE
    unknown = ask(name="n")
    assert unknown is not None
    assert unknown.remark == "there is no inspection 'n' here: there are nothing"
    await bench.close()
