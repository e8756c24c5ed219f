"""No request of a peer holds the broker's loop, however much there is of what it asks for.

The full size is that of benchmarks/broker_loop_turns.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from loop_turns import TURN_S_MAX
from turns_load import Load, LoadedBroker

from iotmq import limits
from iotmq.errors import RequestError

LOAD = Load(retained=20_000, sessions=12_000, on_one_filter=8_000, connected=1_500, filters=1_000)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[LoadedBroker]:
    made = LoadedBroker(tmp_path, LOAD)
    await made.fill()
    yield made
    await made.close()


async def test_no_turn_of_the_loop_is_long(broker: LoadedBroker) -> None:
    longest = {name: turn_s async for name, turn_s in broker.longest_turns()}
    assert {name: turn_s for name, turn_s in longest.items() if turn_s >= TURN_S_MAX} == {}


async def test_as_many_sessions_are_listed_as_may_be(broker: LoadedBroker) -> None:
    await broker.list_sessions()
    with pytest.raises(RequestError, match="maxNums"):
        await broker.list_sessions(limits.SESSIONS_LISTED_MAX + 1)
