"""Read from the log the messages a front end missed while its delivery channel was down.

A front end that comes back says up to where it has seen the log. The records from there on are matched with
its filters alone, a piece in each turn of the loop, until they have come up to what is pushed to everybody;
from that turn on it is one of them. So it misses nothing, and gets nothing twice or out of the log's order.

A front end gets what is in memory: its devices have no use for what is older. Who reads the log through a
channel may have it read from the disk, one piece at a time of all who do, with pauses as long as it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from typing_extensions import Buffer

from iotmq.broker.delivery.delivery import DeliveryChannel, LiveDelivery
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.errors import RefusedError, RequestError
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.server import ServerConnection
from iotmq.store.queues.cold_steps import Steps

_PIECE_BYTES: Final = 256 * 1024

# After so many pieces from the disk who reads is told how far they are: nothing may match for a long time.
_TOLD_PIECES: Final = 64
# Where many wait for the disk already.
_BUSY_S: Final = 0.5

Records = tuple[int, memoryview] | None


class Log(Protocol):
    """The store, as far as it is read here."""

    @property
    def min_position(self) -> int:
        """Return where the log begins."""

    def recent_records(self, position: int, bytes_max: int) -> Records:
        """Return records that are in memory."""

    def records_steps(self, position: int, bytes_max: int) -> Steps[Records]:
        """Return records from anywhere."""


class Gap(NamedTuple):
    """A part of the log that is not there to be read, from one position to another."""

    from_position: int
    to_position: int


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

    def __init__(self, delivery: LiveDelivery, log: Log, cold_reads: ColdReads) -> None:
        self._delivery = delivery
        self._log = log
        self._cold_reads = cold_reads
        self._disk_turn = asyncio.Lock()
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
        tell: Callable[[int], None] | None = None,
    ) -> Gap | None:
        """Push what matches from `since` on, then attach the filters to the channel.

        With `tell` the log is read from the disk, too, and it is called with the position from time to time.
        What is not in memory then, or not in this log at all, is left out and counted: the gap is returned.
        """
        gap = await self._catch_up(connection, attached, push, tell, since=since)
        if gap is None:
            self.caught_up_total += 1
        else:
            self.gaps_total += 1
        self._delivery.attach(channel, attached.filters, attached.marks)
        return gap

    async def _catch_up(
        self,
        connection: ServerConnection,
        attached: Attached,
        push: Callable[[Buffer, bytes], None],
        tell: Callable[[int], None] | None,
        *,
        since: int,
    ) -> Gap | None:
        alone = LiveDelivery(applied_position=since, call_soon=asyncio.get_running_loop().call_soon)
        alone.attach(alone.open_channel(push), attached.filters, attached.marks)
        gap: Gap | None = None
        pieces_count = 0
        while True:
            position = alone.applied_position
            found = self._log.recent_records(position, _PIECE_BYTES)
            if found is not None:
                await _match(alone, *found)
            elif tell is not None and position < self._log.min_position:
                # Retention has taken it, perhaps just now.
                gap = Gap(position if gap is None else gap.from_position, self._log.min_position)
                await _match(alone, gap.to_position, memoryview(b""))
            elif tell is not None and await self._match_from_disk(alone):
                pieces_count += 1
                if not pieces_count % _TOLD_PIECES:
                    tell(alone.applied_position)
            elif tell is None or position >= self._log.min_position:
                return Gap(position if gap is None else gap.from_position, self._delivery.applied_position)
            if alone.applied_position >= self._delivery.applied_position:
                # In this turn: whatever is appended next is pushed by the channel.
                return gap
            await asyncio.sleep(0)
            if connection.is_congested:
                await connection.drain()

    async def _match_from_disk(self, alone: LiveDelivery) -> bool:
        loop = asyncio.get_running_loop()
        async with self._disk_turn:
            begun_s = loop.time()
            found = await self._read(alone.applied_position)
            if found is None:
                return False
            await _match(alone, *found)
            await asyncio.sleep(loop.time() - begun_s)
        return True

    async def _read(self, position: int) -> Records:
        while True:
            read: asyncio.Future[Records] = asyncio.get_running_loop().create_future()
            steps = self._log.records_steps(position, _PIECE_BYTES)
            self._cold_reads.finish(steps, partial(_set_result, read), partial(_set_error, read))
            try:
                return await read
            except RefusedError:
                # The disk does not give it.
                return None
            except RequestError as error:
                if error.code != ResponseCode.SYSTEM_BUSY:
                    raise
            await asyncio.sleep(_BUSY_S)


async def _match(alone: LiveDelivery, next_position: int, records: memoryview) -> None:
    alone.apply(records, alone.applied_position, next_position)
    matched = asyncio.Event()
    alone.call_matched(matched.set)
    await matched.wait()


def _set_result(read: asyncio.Future[Records], found: Records) -> None:
    # Whoever waited may have left.
    if not read.done():
        read.set_result(found)


def _set_error(read: asyncio.Future[Records], error: RequestError) -> None:
    if not read.done():
        read.set_exception(error)
