"""Tables of a master on their way to its followers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from iotmq.broker.tables.table_pieces import TablePiece
from iotmq.errors import ConnectionClosedError
from iotmq.member.table_stream import TableStream, reaches_next_master
from iotmq.replication.cluster_state import ClusterState, Identity

ALL = [Identity(number, "x") for number in (1, 2, 3)]


def leading(effective: list[Identity], connected: dict[int, bool], *, takes_appends: bool = True) -> Any:
    """Member 1 as master, with these followers and whether they are connected."""
    return SimpleNamespace(
        takes_appends=takes_appends,
        effective=frozenset(effective),
        state=ClusterState(epoch=1, master=1, in_sync=tuple(effective)),
        followers={
            number: SimpleNamespace(identity=Identity(number, "x"), is_connected=is_there)
            for number, is_there in connected.items()
        },
    )


@pytest.mark.parametrize(
    ("effective", "connected", "expected"),
    [
        (ALL, {2: True, 3: True}, True),
        (ALL, {2: True, 3: False}, False),
        (ALL, {2: True}, False),
        (ALL[:2], {2: True, 3: False}, True),
        (ALL[:1], {}, True),
        ([ALL[0], Identity(2, "y")], {2: True}, False),
    ],
)
def test_whoever_may_be_master_next_is_told_where_all_in_sync_are_connected(
    effective: list[Identity], connected: dict[int, bool], expected: bool
) -> None:
    assert reaches_next_master(leading(effective, connected)) is expected


def test_with_too_few_members_or_in_a_hand_over_others_may_be_master_next() -> None:
    assert not reaches_next_master(leading(ALL[:1], {}, takes_appends=False))


def test_who_leads_nothing_tells_nobody() -> None:
    assert not reaches_next_master(None)


class Link:
    """A follower's connection."""

    def __init__(self) -> None:
        self.is_closed = False
        self.sent_count = 0

    def send_oneway(self, command: object) -> None:
        self.sent_count += 1

    async def drain(self) -> None:
        if self.is_closed:
            raise ConnectionClosedError("the connection is closed")


class Tables:
    """Tables of three pieces, of which nothing changes."""

    def snapshot(self) -> Iterator[TablePiece]:
        for number in range(3):
            yield TablePiece(table="t", body=b"%d" % number)

    def changes(self) -> Iterator[TablePiece]:
        return iter(())

    def stop_tracking(self) -> None:
        """Nothing is noted here."""


async def test_a_follower_that_goes_while_it_is_sent_the_tables_is_no_trouble_of_the_master() -> None:
    """Its connection ends between two pieces, and the changes of the second are due in the same turn."""
    stream, link = TableStream(Tables()), Link()  # type: ignore[arg-type]
    sending = asyncio.ensure_future(stream.send_all(link))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert link.sent_count == 1
    link.is_closed = True
    stream.send_changes()
    assert not await sending
    assert link.sent_count == 1
