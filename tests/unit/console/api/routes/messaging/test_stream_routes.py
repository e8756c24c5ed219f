"""Who may follow what."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from iotmq.console.api.problems import FORBIDDEN, ProblemError
from iotmq.console.api.route import Call, Caller, Role
from iotmq.console.api.routes.messaging.streams import ChangesArguments, stream_changes
from iotmq.console.server.messages import Answer, Request


class Streams:
    async def changes(self, *_: object) -> Answer:
        return Answer()


@pytest.mark.parametrize(
    ("what", "scopes", "is_allowed"),
    [
        ("all", (), True),
        ("all", ("streams", "audit", "alarms"), True),
        ("all", ("streams", "audit"), False),
        ("records", ("streams", "audit"), True),
        ("records", ("streams", "alarms"), False),
        ("alarms", ("streams", "alarms"), True),
        ("alarms", ("streams",), False),
    ],
)
async def test_a_key_follows_changes_of_its_areas_alone(
    what: Any, scopes: tuple[str, ...], is_allowed: bool
) -> None:
    caller = Caller("ops", Role.VIEWER, "127.0.0.1", "key", scopes=frozenset(scopes))
    request = Request("GET", "/", "", {}, "127.0.0.1")
    call = Call(ChangesArguments(what=what), None, caller, request)
    services = cast(Any, SimpleNamespace(streams=Streams(), alarms=None))
    if is_allowed:
        assert await stream_changes(services, call) == Answer()
        return
    with pytest.raises(ProblemError, match="ops is not for") as raised:
        await stream_changes(services, call)
    assert raised.value.kind is FORBIDDEN
