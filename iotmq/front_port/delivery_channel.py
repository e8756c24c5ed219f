"""Keep a delivery channel to one broker, which pushes the records that match a front end's filters.

When the channel is made again, the broker is told up to where its log has been seen, and sends first what
came since for the filters of before; so nothing is missed while a connection, or the broker, is down.

A broker has each filter at any time: whole, or as a mark. One that changes is both in between.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from iotmq import limits
from iotmq.backoff import Backoff
from iotmq.errors import ConnectionClosedError, RequestTimeoutError
from iotmq.event_loop import happens_within
from iotmq.front_port.filter_homes import PlacedFilter
from iotmq.front_port.kept_connection import KeptConnection
from iotmq.mqtt.topics.topics import wildcard_shape
from iotmq.ports.gateway import DeliveryReceiver
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.signature import Credentials
from iotmq.supervised import end, supervise

_log = logging.getLogger("iotmq.mqtt")

_FILTERS_PER_REQUEST = 1_000
# Filters whose homes are looked for in one turn: some milliseconds.
_PLACED_PER_TURN = 250
_ATTACH_TIMEOUT_S = 5.0
# Until everything that was missed is here. What comes first moves the position, from where it goes on.
_CATCH_UP_TIMEOUT_S = 60.0
_FROM_DISK_TIMEOUT_S = 600.0
# Well within the time after which a broker closes a connection that is idle.
_PING_INTERVAL_S = 20.0


_UNKNOWN = -1


def _is_not_told(_from: int, _to: int) -> None:
    """The default of `missed`."""


class ChannelFilters(NamedTuple):
    """The filters of a front end (id -> filter), which may change, and which of them one broker has whole."""

    by_id: dict[int, str]
    is_whole: Callable[[str], bool]
    since: int = _UNKNOWN
    """Where in the broker's log those that are there already begin; as a rule, at its end."""
    missed: Callable[[int, int], None] = _is_not_told
    """Called with two positions in the log when the broker had no more what is between them."""
    from_disk: bool = False
    """Whether the broker reads what was missed from its disk, where its memory has it no more."""


class DeliveryChannel(KeptConnection):
    """A delivery channel, reconnected whenever it ends."""

    def __init__(
        self,
        address: str,
        filters: ChannelFilters,
        receiver: DeliveryReceiver,
        *,
        opened: Callable[[], None],
        credentials: Credentials | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(address, credentials=credentials, tls=tls)
        self._opened = opened
        self.record_bytes_max = limits.RECORD_BYTES_MAX
        self._filters = filters.by_id
        self._is_whole = filters.is_whole
        self._receiver = receiver
        self._missed = filters.missed
        self._from_disk = filters.from_disk
        self.position = filters.since
        """Where in the broker's log everything was seen for these filters; below 0 when nothing is known."""
        self._seen: set[int] = set() if filters.since == _UNKNOWN else set(filters.by_id)
        # Set from the connecting on, also before the broker knows all that it has to.
        self._incoming: ClientConnection | None = None
        # Those of them that have no wildcards, and are whole at the broker.
        self._whole: set[int] = set()
        self._placing = asyncio.Lock()
        self.opened_total = 0
        self.malformed_total = 0
        self._task = supervise("delivery channel", self._keep_open)

    async def stop(self) -> None:
        """Close the channel for good."""
        await end([self._task])

    def attach(self, filters: Sequence[PlacedFilter]) -> asyncio.Future[bool]:
        """Attach more filters; False when the broker does not take them."""
        assert self._connection is not None, "attach only an open channel"
        return asyncio.ensure_future(self._attach(self._connection, filters))

    def detach(self, filters: Sequence[tuple[int, str]]) -> None:
        """Detach filters; records already under way still come."""
        numbers = [number for number, _ in filters]
        self._seen.difference_update(numbers)
        self._whole.difference_update(numbers)
        if self._connection is not None:
            self._detach(self._connection, filters)

    def pause(self) -> None:
        """Read nothing more from the broker, which waits with what was missed; it drops what comes later."""
        if self._incoming is not None:
            self._incoming.pause()

    def resume(self) -> None:
        """Read again."""
        if self._incoming is not None:
            self._incoming.resume()

    async def place(self, filters: Sequence[PlacedFilter]) -> bool:
        """Change those of the filters (without wildcards) that the broker has in the other way.

        False when some are not in this way for certain: the broker did not answer, or is being asked to take
        them. Then it has them in the way of before, or in both.
        """
        # One move after the other: the end of the first must not detach what the second attaches.
        async with self._placing:
            return await self._place(filters)

    async def _place(self, filters: Sequence[PlacedFilter]) -> bool:
        connection = self._connection
        if connection is None:
            return False
        moving = [
            one for one in filters if one.number in self._seen and one.is_whole != (one.number in self._whole)
        ]
        if moving and not await self._attach(connection, moving):
            return False
        # Only now: whatever comes meanwhile is pushed for the one or the other.
        _send_detach(
            connection,
            ids=[one.number for one in moving if not one.is_whole],
            marks=[(one.number, one.topic_filter) for one in moving if one.is_whole],
        )
        return all(one.number in self._seen or one.number not in self._filters for one in filters)

    def _detach(self, connection: ClientConnection, filters: Sequence[tuple[int, str]]) -> None:
        # Either way, whichever it is now: what was not there is ignored.
        marks = [(number, name) for number, name in filters if wildcard_shape(name) is None]
        _send_detach(connection, ids=[number for number, _ in filters], marks=marks)

    async def _keep_open_here(self, stay: asyncio.Timeout) -> None:
        backoff = Backoff(min_s=0.1, max_s=5.0)
        while True:
            lost = asyncio.Event()
            connection: ClientConnection | None = None
            try:
                connection = self._incoming = await self._connect(partial(_note_lost, lost))
                await self._attach_all(connection)
                self._connection = connection
                self.opened_total += 1
                self._opened()
                backoff.reset()
                # Brokers close connections on which nothing moves, and some just hang.
                while not await happens_within(lost, _PING_INTERVAL_S):
                    if not await self._attach(connection, ()):
                        break
                _log.warning("delivery channel lost", extra={"broker": self.address})
            except ConnectionClosedError as error:
                if not backoff.failures:
                    _log.warning("no delivery channel", extra={"broker": self.address, "detail": str(error)})
            finally:
                self._connection = self._incoming = None
                if connection is not None and stay.expired():
                    connection.abort("the broker is elsewhere")
                elif connection is not None and not connection.is_closed:
                    await connection.close()
            await asyncio.sleep(backoff.next_s())

    async def _attach_all(self, connection: ClientConnection) -> None:
        """Attach all of `_filters`, which may change meanwhile.

        Raises ConnectionClosedError when the broker refuses.
        """
        seen = [
            PlacedFilter(number, name, number in self._whole or wildcard_shape(name) is not None)
            for number, name in self._filters.items()
            if number in self._seen
        ]
        if not await self._catch_up(connection, seen):
            raise ConnectionClosedError(f"{self.address} refuses the delivery channel")
        attached = {one.number: one.topic_filter for one in seen}
        while True:
            missing = [(number, name) for number, name in self._filters.items() if number not in attached]
            if not missing:
                break
            for start in range(0, len(missing), _PLACED_PER_TURN):
                page = missing[start : start + _PLACED_PER_TURN]
                placed = [PlacedFilter(number, name, self._is_whole(name)) for number, name in page]
                if not await self._attach(connection, placed):
                    raise ConnectionClosedError(f"{self.address} refuses the delivery channel")
                attached.update(page)
        unwanted = [(number, name) for number, name in attached.items() if number not in self._filters]
        if unwanted:
            self._detach(connection, unwanted)

    async def _catch_up(self, connection: ClientConnection, filters: Sequence[PlacedFilter]) -> bool:
        """Attach the filters of before, with the records since then; True when they are attached.

        Goes out without any filter, too: the first request makes the channel.
        """
        since, self.position = self.position, _UNKNOWN
        is_attached = False
        try:
            is_attached = await self._attach(connection, filters, since=None if since < 0 else since)
        finally:
            if not is_attached:
                self.position = max(self.position, since)
        return is_attached

    async def _attach(
        self, connection: ClientConnection, filters: Sequence[PlacedFilter], *, since: int | None = None
    ) -> bool:
        """Attach filters; True when the broker took all, and with `since` has sent the records from there."""
        # A channel without filters is one, too: the broker counts its front ends.
        starts = range(0, max(1, len(filters)), _FILTERS_PER_REQUEST)
        pages = [filters[start : start + _FILTERS_PER_REQUEST] for start in starts]
        # All that is to be caught up at once, or a record might come twice.
        fields = [{} if since is None else {"isHeld": "true"} for _ in pages]
        if since is not None:
            fields[-1] = {"since": str(since)} | ({"fromDisk": "true"} if self._from_disk else {})
        catch_up_s = _FROM_DISK_TIMEOUT_S if self._from_disk else _CATCH_UP_TIMEOUT_S
        requests = [
            connection.request(
                Command.request(RequestCode.ATTACH_FILTERS, ext, body=_attach_body(page)),
                _ATTACH_TIMEOUT_S if since is None else catch_up_s,
            )
            for ext, page in zip(fields, pages, strict=True)
        ]
        try:
            responses = await asyncio.gather(*requests)
        except (ConnectionClosedError, RequestTimeoutError) as error:
            _log.debug("attaching filters at %s: %s", self.address, error)
            return False
        if any(response.code != ResponseCode.SUCCESS for response in responses):
            return False
        self.record_bytes_max = responses[-1].integer("recordBytesMax", limits.RECORD_BYTES_MAX, minimum=1)
        # What was pushed before the answer is here already.
        position = responses[-1].integer("position", 0, minimum=0)
        if since is not None and responses[-1].boolean("isGap", False):
            missed_to = responses[-1].integer("gapTo", position, minimum=0)
            missed_from = responses[-1].integer("gapFrom", max(since, self.position), minimum=0)
            self._missed(missed_from, missed_to)
        self.position = max(self.position, position)
        gone = []
        for number, name, is_whole in filters:
            if number not in self._filters:
                gone.append((number, name))
                continue
            self._seen.add(number)
            if is_whole and wildcard_shape(name) is None:
                self._whole.add(number)
            else:
                self._whole.discard(number)
        if gone:
            # Perhaps it was detached before the request went out.
            self._detach(connection, gone)
        return True

    def _requested(self, connection: ClientConnection, request: Command) -> Command | None:
        if request.code != RequestCode.DELIVER_RECORDS:
            return request.not_supported()
        body = memoryview(request.body_bytes())
        matches_size = request.integer("matchesBytes")
        if not 0 <= matches_size <= len(body):
            self.malformed_total += 1
            return None
        self._receiver.deliver(body[matches_size:], body[:matches_size])
        self.position = max(self.position, request.integer("nextPosition", 0, minimum=0))
        return None


def _attach_body(filters: Sequence[PlacedFilter]) -> bytes:
    whole = [(one.number, one.topic_filter) for one in filters if one.is_whole]
    marks = [(one.number, one.topic_filter) for one in filters if not one.is_whole]
    return msgspec.json.encode({"filters": whole, "marks": marks} if marks else {"filters": whole})


def _send_detach(
    connection: ClientConnection, *, ids: Sequence[int], marks: Sequence[tuple[int, str]]
) -> None:
    if ids or marks:
        body = msgspec.json.encode({"ids": ids, "marks": marks} if marks else {"ids": ids})
        connection.send_oneway(Command.request(RequestCode.DETACH_FILTERS, body=body))


def _note_lost(lost: asyncio.Event, _connection: ClientConnection) -> None:
    lost.set()
