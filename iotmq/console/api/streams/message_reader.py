"""Messages of all brokers as they are stored, for many streams: one delivery channel to each broker.

The brokers match the filters, as they do for a front end, and push each message once. It is encoded once for
all streams that want it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from typing_extensions import Buffer

from iotmq.client.client import IotmqClient
from iotmq.client.transport.message import StoredMessage
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.console.api.stored_messages import Shown
from iotmq.console.api.streams.event_stream import EventStream, event
from iotmq.console.api.streams.positions import encode_positions
from iotmq.errors import IotmqError
from iotmq.event_loop import happens_within
from iotmq.front_port.delivery_channel import ChannelFilters, DeliveryChannel
from iotmq.front_port.filter_homes import PlacedFilter
from iotmq.message.records.record import decode_record
from iotmq.supervised import end, supervise

logger = logging.getLogger("iotmq.http.api")

# Brokers that come, go or move are seen so long later at the latest.
_FOLLOW_S: Final = 10.0
# The brokers that have not taken a filter by then get it when they can be reached; the stream begins without.
_OPEN_S: Final = 5.0
_ENTRY: Final = struct.Struct(">II")


class Wanted(NamedTuple):
    """The messages of a stream."""

    topic_filter: str
    payload_bytes_max: int


class _Group:
    """The streams that want the same."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.streams: set[EventStream] = set()
        # Of the push that is being taken.
        self.events: list[bytes] = []


class MessageReader:
    """Puts messages into streams, from the end of the logs on, or from `positions` (broker -> position), also
    from what brokers have on the disk only."""

    def __init__(self, client: IotmqClient, positions: Mapping[str, int] | None = None) -> None:
        self._client = client
        self._tls = client.settings.tls_context()
        self._since = dict(positions or {})
        # What streams have been given, by broker.
        self._given = dict(self._since)
        self._filters: dict[int, str] = {}
        self._groups: dict[int, _Group] = {}
        self._id_of: dict[Wanted, int] = {}
        self._ids = itertools.count(1)
        self._channels: dict[str, DeliveryChannel] = {}
        # Brokers that still send what was before.
        self._behind: set[str] = set()
        self._opened = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    @property
    def position(self) -> str:
        """Return the id of an event after which nothing has been pushed yet."""
        return encode_positions({**self._given, **self._seen()})

    async def add(self, stream: EventStream, wanted: Wanted) -> None:
        """Begin to put messages into a stream; the brokers that can be reached have the filter then.

        The first call connects to the brokers, from where the positions say on.
        """
        number = self._id_of.get(wanted)
        if number is None:
            number = self._id_of[wanted] = next(self._ids)
            self._filters[number] = wanted.topic_filter
            self._groups[number] = _Group(wanted)
        self._groups[number].streams.add(stream)
        if self._following is None:
            self._following = supervise("following of brokers", self._follow)
            if not self._since:
                await happens_within(self._opened, _OPEN_S)
            return
        placed = [PlacedFilter(number, wanted.topic_filter, True)]
        ready = [each for each in self._channels.values() if each.is_ready]
        # A channel that is not ready attaches all filters there are when it is made.
        await asyncio.gather(*(each.attach(placed) for each in ready))

    def remove(self, stream: EventStream, wanted: Wanted) -> bool:
        """Put nothing more into a stream; return whether there is another one."""
        number = self._id_of[wanted]
        group = self._groups[number]
        group.streams.discard(stream)
        if not group.streams:
            del self._id_of[wanted], self._groups[number], self._filters[number]
            for channel in self._channels.values():
                channel.detach([(number, wanted.topic_filter)])
        return bool(self._groups)

    async def stop(self) -> None:
        """End the channels."""
        if self._following is not None:
            await end([self._following])
        await asyncio.gather(*(channel.stop() for channel in self._channels.values()))

    def resume(self) -> None:
        """Read again what was left at the brokers."""
        for channel in self._channels.values():
            channel.resume()

    # Brokers ------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            try:
                brokers = await self._client.admin.brokers()
            except (IotmqError, ConnectionError) as error:
                logger.debug("listing brokers: %s", error)
                brokers = {}
            for name, by_id in brokers.items():
                if MASTER_ID not in by_id:
                    continue
                if name in self._channels:
                    self._channels[name].move(by_id[MASTER_ID])
                else:
                    self._channels[name] = self._channel(name, by_id[MASTER_ID])
            await asyncio.sleep(_FOLLOW_S)

    def _channel(self, name: str, address: str) -> DeliveryChannel:
        since = self._since.pop(name, None)
        filters = ChannelFilters(self._filters, lambda _filter: True, missed=partial(self._missed, name))
        if since is not None:
            filters = filters._replace(since=since, from_disk=True)
            self._behind.add(name)
        return DeliveryChannel(
            address,
            filters,
            _FromBroker(self, name),
            opened=partial(self._is_open, name),
            credentials=self._client.settings.credentials,
            tls=self._tls,
        )

    def _is_open(self, name: str) -> None:
        self._behind.discard(name)
        self._channels[name].resume()
        if all(channel.is_ready for channel in self._channels.values()):
            self._opened.set()

    def _seen(self) -> dict[str, int]:
        return {name: each.position for name, each in self._channels.items() if each.position >= 0}

    def _missed(self, name: str, from_position: int, to_position: int) -> None:
        told = event("gap", {"broker": name, "from": from_position, "to": to_position})
        for group in self._groups.values():
            for stream in group.streams:
                stream.put(told)

    # Messages -----------------------------------------------------------------------------------------

    def take(self, name: str, records: Buffer, matches: Buffer) -> None:
        """Put the records of a push into the streams that want them."""
        all_records, places = memoryview(records), memoryview(matches)
        positions = {**self._given, **self._seen()}
        shown_by: dict[int, Shown] = {}
        at = 0
        while at < len(places):
            place, count = _ENTRY.unpack_from(places, at)
            at += _ENTRY.size
            numbers = struct.unpack_from(f">{count}I", places, at)
            at += 4 * count
            record = decode_record(all_records, place)
            message = StoredMessage(MessageQueue(record.topic, name, record.queue_id), record)
            # What was not stored has no place to come back to.
            event_id = ""
            if record.position or record.queue_offset:
                positions[name] = max(positions.get(name, 0), record.position + record.size)
                event_id = encode_positions(positions)
            events: dict[int, bytes] = {}
            for number in numbers:
                group = self._groups.get(number)
                if group is not None:
                    cut = group.wanted.payload_bytes_max
                    if cut not in events:
                        shown = shown_by.setdefault(cut, Shown(cut))
                        events[cut] = event("", shown.show(message), event_id)
                    group.events.append(events[cut])
        if name in positions:
            self._given[name] = positions[name]
        is_paced = name in self._behind
        for group in self._groups.values():
            if group.events:
                piece, group.events = b"".join(group.events), []
                for stream in group.streams:
                    stream.put(piece, is_paced=is_paced)
                    if is_paced and stream.is_filled:
                        self._channels[name].pause()


class _FromBroker:
    """Takes what one broker pushes (ports.gateway.DeliveryReceiver)."""

    def __init__(self, reader: MessageReader, name: str) -> None:
        self._reader = reader
        self._name = name

    def deliver(self, records: Buffer, matches: Buffer) -> None:
        self._reader.take(self._name, records, matches)
