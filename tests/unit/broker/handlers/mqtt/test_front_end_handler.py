"""Requests of operators about front ends, at and past their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from session_bench import FrontEnd, open_bench

from iotmq import limits
from iotmq.broker.handlers.mqtt.session_views import SessionViewsHandler
from iotmq.errors import RequestError
from iotmq.ports.sessions import DrainOrder
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


class DrainedFrontEnd(FrontEnd):
    """Remembers what it is ordered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.orders: list[DrainOrder] = []

    def drain(self, order: DrainOrder) -> None:
        self.orders.append(order)


async def test_front_ends_are_listed_and_told_what_an_operator_wants(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path)
    one, _two = DrainedFrontEnd(bench, "one"), DrainedFrontEnd(bench, "two")
    handlers = SessionViewsHandler(bench.broker.sessions).handlers()

    def ask(code: int, **ext: str) -> Any:
        answer = handlers[code](None, Command.request(code, ext))  # type: ignore[arg-type]
        assert isinstance(answer, Command)
        assert answer.code == ResponseCode.SUCCESS
        return msgspec.json.decode(answer.body_bytes()) if answer.body_bytes() else None

    drain = {"frontEnd": "one", "isDraining": "true"}
    await one.open("d", expiry_s=0)
    ask(RequestCode.DRAIN_FRONT_END, **drain)
    assert ask(RequestCode.LIST_FRONT_ENDS) == {
        "frontEnds": [
            {"name": "one", "clients": 1, "isDraining": True},
            {"name": "two", "clients": 0, "isDraining": False},
        ]
    }
    brief = ask(RequestCode.LIST_FRONT_ENDS, isBrief="true")["frontEnds"]
    assert [each["clients"] for each in brief] == [0, 0]
    most = {
        "perSecond": str(limits.DRAINED_PER_SECOND_MAX),
        "serverReference": "ü" * limits.MQTT_SERVER_REFERENCE_CHARACTERS_MAX,
        "hasMoved": "true",
    }
    ask(RequestCode.DRAIN_FRONT_END, **drain, **most)
    assert one.orders == [
        DrainOrder(is_draining=True),
        DrainOrder(
            is_draining=True,
            per_second=limits.DRAINED_PER_SECOND_MAX,
            server_reference=most["serverReference"],
            has_moved=True,
        ),
    ]
    for wrong in (
        {"perSecond": str(limits.DRAINED_PER_SECOND_MAX + 1)},
        {"perSecond": "0"},
        {"serverReference": most["serverReference"] + "x"},
        {"serverReference": "a\nb"},
        {"hasMoved": "maybe"},
    ):
        with pytest.raises(RequestError):
            ask(RequestCode.DRAIN_FRONT_END, **drain, **wrong)
    with pytest.raises(RequestError) as caught:
        ask(RequestCode.DRAIN_FRONT_END, frontEnd="three", isDraining="true")
    assert caught.value.code == ResponseCode.QUERY_NOT_FOUND
    assert len(one.orders) == 2
    one.stop()
    assert ask(RequestCode.LIST_FRONT_ENDS)["frontEnds"][0]["name"] == "two"
    await bench.close()
