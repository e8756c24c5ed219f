"""The table of request codes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from iotmq.broker.replies.request_table import Handler, RequestTable
from iotmq.remoting.command import Command


class FakeProcessor:
    def __init__(self, *codes: int) -> None:
        self.codes = codes
        self.lost: list[object] = []

    def handlers(self) -> Mapping[int, Handler]:
        return {
            code: lambda connection, request: request.reply(0, remark=str(request.code))
            for code in self.codes
        }

    def connection_lost(self, connection: object) -> None:
        self.lost.append(connection)


def test_each_code_goes_to_its_area() -> None:
    table = RequestTable([FakeProcessor(10, 11), FakeProcessor(12)])
    response = table.handle(None, Command.request(12))  # type: ignore[arg-type]
    assert response is not None
    assert response.remark == "12"
    assert table.codes == [10, 11, 12]


def test_areas_can_be_added_but_not_over_one_another() -> None:
    table = RequestTable([FakeProcessor(10)])
    table.add(FakeProcessor(30_001))
    with pytest.raises(ValueError, match="30001 is served twice"):
        table.add(FakeProcessor(30_001))


def test_unknown_codes_are_answered_and_counted_together() -> None:
    table = RequestTable([FakeProcessor(10)])
    for code in (7, 8, 10):
        response = table.handle(None, Command.request(code))  # type: ignore[arg-type]
        assert response is not None
        assert response.code == (0 if code == 10 else 3)
    counts = {metric.labels[0][1]: metric.value for metric in table.metrics()}
    assert counts == {"UNKNOWN": 2, "SEND_MESSAGE": 1}


def test_every_area_hears_of_a_lost_connection() -> None:
    processors = [FakeProcessor(1), FakeProcessor(2)]
    RequestTable(processors).connection_lost("c")  # type: ignore[arg-type]
    assert [processor.lost for processor in processors] == [["c"], ["c"]]
