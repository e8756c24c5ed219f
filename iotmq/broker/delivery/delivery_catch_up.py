"""Read from the log the messages a front end missed while its delivery channel was down.

A front end that comes back says up to where it has seen the log. The records from there on are matched with
its filters alone, a piece in each turn of the loop, until they have come up to what is pushed to everybody;
from that turn on it is one of them. So it misses nothing, and gets nothing twice or out of the log's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from typing_extensions import Buffer

from iotmq.broker.delivery.delivery import DeliveryChannel, LiveDelivery
from iotmq.remoting.server import ServerConnection

_PIECE_BYTES: Final = 256 * 1024

RecentRecords = Callable[[int, int], tuple[int, memoryview] | None]
"""`Store.recent_records`."""


class Attached(NamedTuple):
    """Hold what a front end attaches: filters as to `LiveDelivery.attach`, and those that are marks."""

    filters: list[tuple[int, str]]
    marks: list[tuple[int, str]]

    @property
    def filter_count(self) -> int:
        return len(self.filters) + len(self.marks)

    def add(self, filters: list[tuple[int, str]], marks: list[tuple[int, str]]) -> None:
        """Have more."""
        self.filters.extend(filters)
        self.marks.extend(marks)


class DeliveryCatchUp:
    """Brings channels up to `delivery`."""

    def __init__(self, delivery: LiveDelivery, recent_records: RecentRecords) -> None:
        self._delivery = delivery
        self._recent_records = recent_records
        self.caught_up_total = 0
        self.gaps_total = 0

    async def attach(
        self,
        connection: ServerConnection,
        channel: DeliveryChannel,
        attached: Attached,
        push: Callable[[Buffer, bytes], None],
        *,
        since: int,
    ) -> bool:
        """Push what matches from `since` on, then attach the filters to the channel.

        What is no longer in memory, or not in this log at all, is left out and counted; then False.
        """
        is_whole = await self._catch_up(connection, attached, push, since=since)
        if is_whole:
            self.caught_up_total += 1
        else:
            self.gaps_total += 1
        self._delivery.attach(channel, attached.filters, attached.marks)
        return is_whole

    async def _catch_up(
        self,
        connection: ServerConnection,
        attached: Attached,
        push: Callable[[Buffer, bytes], None],
        *,
        since: int,
    ) -> bool:
        alone = LiveDelivery(applied_position=since, call_soon=asyncio.get_running_loop().call_soon)
        alone.attach(alone.open_channel(push), attached.filters, attached.marks)
        while True:
            found = self._recent_records(alone.applied_position, _PIECE_BYTES)
            if found is None:
                return False
            next_position, records = found
            alone.apply(records, alone.applied_position, next_position)
            matched = asyncio.Event()
            alone.call_matched(matched.set)
            await matched.wait()
            if next_position >= self._delivery.applied_position:
                # In this turn: whatever is appended next is pushed by the channel.
                return True
            await asyncio.sleep(0)
            if connection.is_congested:
                await connection.drain()
