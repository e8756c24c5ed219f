"""One task of the sink: record batches in, numbered batches out to the brokers of their queues.

The same rows in the same order make the same batches with the same numbers, however Spark cuts them into
record batches. So a task that is tried again, or runs twice at once, sends nothing that the broker does not
recognise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

import numpy
import pyarrow

from iotmq.bridge.cluster import Address, Cluster, TopicMissingError
from iotmq.bridge.sink.errors import (
    SinkError,
    SinkInputError,
    SinkRowError,
    SinkRowsChangedError,
    SinkTopicError,
    SinkUnavailableError,
)
from iotmq.bridge.sink.input_end import is_broken_off
from iotmq.bridge.sink.link import BrokerLink, Message
from iotmq.bridge.sink.options import SinkOptions
from iotmq.bridge.sink.queues import SinkQueue, Written, read_written
from iotmq.bridge.sink.rows import Numbers, Rows, sink_rows
from iotmq.errors import IotmqError
from iotmq.message.errors import RowError
from iotmq.message.properties import BATCH_NUMBER
from iotmq.message.records.row_elements import Encoded, RowEncoder
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

_log = logging.getLogger("iotmq.bridge")

# The broker compares one by one what a power cut has left of a batch.
BATCH_ROWS_MAX: Final = 16_384
# What all lanes may hold before they are sent: many topics and queues with few rows for each.
BUFFERED_BYTES_MAX: Final = 64 * 1024 * 1024
# For the mark in front of a batch: the words of `queues`, the producer and its numbers.
_ROOM_BYTES: Final = 4_096
_NUMBER_MAX: Final = (1 << 27) - 1


class Identity(NamedTuple):
    """Name who writes, the same for every try of the same rows. `partition` shows in errors only."""

    producer: str
    batch: int
    partition: int


class _Last(NamedTuple):
    """The last number that a broker has of this batch, with what stands there."""

    number: int
    written: Written


class _Place(NamedTuple):
    """A topic at a broker, where numbers are counted."""

    topic: str
    broker: str


class _Topic:
    """One topic that rows go to."""

    def __init__(self, name: str, queues: tuple[SinkQueue, ...], *, batch_bytes: int, turn: int) -> None:
        self.name = name
        self.queues = queues
        self.batch_bytes = batch_bytes
        # Of rows without a key: how many batches have had a queue by turn.
        self.turn = turn
        self.first_lane = -1  # set once it is in the encoder
        # Of each broker the places of its queues by their numbers, -1 for a number that none has.
        self.by_number: dict[str, Numbers] = {}
        for broker, of_broker in groupby(enumerate(queues), key=lambda entry: entry[1].broker):
            places = {queue.queue_id: place for place, queue in of_broker}
            by_number = self.by_number[broker] = numpy.full(max(places) + 1, -1, numpy.int32)
            by_number[list(places)] = list(places.values())

    @property
    def by_number_alone(self) -> Numbers | None:
        """The places by number where there is one broker; several number their queues each for itself."""
        return next(iter(self.by_number.values())) if len(self.by_number) == 1 else None

    def problem_with(self, broker: str) -> str:
        """Say what is wrong with a broker that rows name, or ("") do not name."""
        if broker:
            return f"is {broker!r}, and topic {self.name!r} has no queue there that takes messages"
        return (
            f"is missing: topic {self.name!r} is at {', '.join(self.by_number)}, and each numbers its queues "
            "for itself. Give the broker beside the partition, or leave both out"
        )

    def queue_of(self, lane: int) -> SinkQueue:
        """Return where a batch of one of its lanes goes."""
        place = lane - self.first_lane
        if place == len(self.queues):
            place = self.turn % len(self.queues)
            self.turn += 1
        return self.queues[place]


class SinkTask:
    """Writes the rows of one Spark partition. For one thread; `write` is called once."""

    def __init__(self, options: SinkOptions, cluster: Cluster, identity: Identity) -> None:
        self._options = options
        self._cluster = cluster
        self._identity = identity
        self._topics: dict[str, int] = {}
        self._by_number: list[_Topic] = []
        self._lanes: list[_Topic] = []
        self._links: dict[str, BrokerLink] = {}
        self._next_numbers: dict[_Place, int] = {}
        self._last: dict[_Place, _Last] = {}
        self._encoder: RowEncoder | None = None

    def write(self, batches: Iterable[pyarrow.RecordBatch]) -> int:
        """Store all rows, and return how many; raises SinkError. Rows that are stored stay after an error."""
        rows = 0
        try:
            for batch in batches:
                if batch.num_rows:
                    self._write(batch, rows)
                    rows += batch.num_rows
            if is_broken_off():
                # The last requests would be shorter than those of the task that is tried again.
                raise SinkInputError(
                    f"the rows of partition {self._identity.partition} broke off after {rows}: what gives "
                    "them has failed. The rest is written when Spark tries the task again"
                )
            if self._encoder is not None:
                self._send_all(self._encoder.finish())
            for link in self._links.values():
                link.drain()
        except RowError as error:
            raise SinkRowError(f"partition {self._identity.partition}: {error}") from None
        self._check_ends()
        return rows

    def _write(self, batch: pyarrow.RecordBatch, first_row: int) -> None:
        rows = sink_rows(batch, has_topic=bool(self._options.topic), first_row=first_row)
        numbers = self._topic_numbers(rows, batch.num_rows)
        if self._encoder is None:
            raise AssertionError("rows without a topic")
        queues = (
            None
            if rows.partitions is None
            else self._places(rows.partitions, rows.brokers, numbers, first_row)
        )
        self._send_all(self._encoder.encode(rows.body, rows.columns, rows.keys, numbers, queues))

    def _topic_numbers(self, rows: Rows, count: int) -> Numbers:
        """Return the number of each row's topic."""
        if rows.topics is None:
            return numpy.full(count, self._topic_number(self._options.topic), numpy.int32)
        coded = rows.topics.dictionary_encode()
        numbers = numpy.array(
            [self._topic_number(name) for name in coded.dictionary.to_pylist()], numpy.int32
        )
        indices: Numbers = numbers[coded.indices.to_numpy(zero_copy_only=False)]
        return indices

    def _topic_number(self, name: str) -> int:
        number = self._topics.get(name)
        if number is None:
            topic = self._open_topic(name)
            if self._encoder is None:
                self._encoder = RowEncoder(
                    batch_bytes=topic.batch_bytes,
                    batch_rows=BATCH_ROWS_MAX,
                    room=_ROOM_BYTES,
                    buffered_bytes_max=BUFFERED_BYTES_MAX,
                )
            elif topic.batch_bytes != self._by_number[0].batch_bytes:
                raise SinkRowsChangedError(
                    f"topic {name!r} was begun with option batchBytes {topic.batch_bytes}, and other topics "
                    f"of this batch with {self._by_number[0].batch_bytes}: set it to the first one"
                )
            topic.first_lane = self._encoder.add_topic(len(topic.queues))
            self._lanes += [topic] * (len(topic.queues) + 1)
            number = self._topics[name] = len(self._by_number)
            self._by_number.append(topic)
        return number

    def _places(
        self, partitions: Numbers, brokers: pyarrow.Array | None, numbers: Numbers, first_row: int
    ) -> Numbers:
        """Return each row's queue as its place among those of its topic, -1 for any."""
        places = numpy.full(len(partitions), -1, numpy.int32)
        names: list[str] = []
        codes = numpy.full(len(partitions), -1, numpy.int32)
        if brokers is not None:
            coded = brokers.dictionary_encode()
            names = coded.dictionary.to_pylist()
            codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(numpy.int32)
            alone = numpy.flatnonzero((codes >= 0) & (partitions < 0))
            if len(alone):
                raise RowError(first_row + int(alone[0]), "broker", "is given without a partition")
        for number in numpy.unique(numbers):
            topic = self._by_number[number]
            of_topic = numpy.flatnonzero((numbers == number) & (partitions >= 0))
            for code in numpy.unique(codes[of_topic]):
                rows = of_topic[codes[of_topic] == code]
                by_number = topic.by_number.get(names[code]) if code >= 0 else topic.by_number_alone
                if by_number is None:
                    raise RowError(
                        first_row + int(rows[0]),
                        "broker",
                        topic.problem_with(names[code] if code >= 0 else ""),
                    )
                wanted = partitions[rows]
                is_there = wanted < len(by_number)
                found = numpy.where(is_there, by_number[numpy.where(is_there, wanted, 0)], -1)
                missing = numpy.flatnonzero(found < 0)
                if len(missing):
                    row = int(rows[missing[0]])
                    what = f"is {partitions[row]}, and topic {topic.name!r} has no such queue"
                    raise RowError(first_row + row, "partition", f"{what} that takes messages")
                places[rows] = found
        return places

    # Which queues, and what is there already

    def _open_topic(self, name: str) -> _Topic:
        """Find the queues of a topic: those that an earlier try of this batch has used, if there was one."""
        queues, addresses = self._writable(name)
        batch_bytes = self._options.batch_bytes
        is_pinned = False
        for broker in sorted(addresses):
            last = self._ask_last(
                name, broker, addresses[broker], is_needed=broker in {q.broker for q in queues}
            )
            if last is None:
                continue
            self._last[_Place(name, broker)] = last
            if is_pinned and (last.written.queues, last.written.batch_bytes) != (queues, batch_bytes):
                raise SinkRowsChangedError(
                    f"topic {name!r}: brokers have batch {self._identity.batch} of this writer with "
                    "different queues of the topic: two queries write it at once. Stop one of them"
                )
            queues, batch_bytes, is_pinned = last.written.queues, last.written.batch_bytes, True
        for broker in {queue.broker for queue in queues} - self._links.keys():
            self._links[broker] = self._link(broker, addresses)
        return _Topic(name, queues, batch_bytes=batch_bytes, turn=self._identity.partition)

    def _writable(self, name: str) -> tuple[tuple[SinkQueue, ...], dict[str, Address]]:
        """Return the queues of a topic that take messages, and where the masters of brokers are."""
        patience = self._cluster.retry.patience()
        while True:
            try:
                route = self._cluster.topic_route(name)
                addresses = self._cluster.masters()
            except TopicMissingError:
                raise SinkTopicError(
                    f"topic {name!r} does not exist: make it (iotmq admin topic create), or correct the "
                    "option or column topic"
                ) from None
            queues = tuple(SinkQueue(queue.broker_name, queue.queue_id) for queue in route.writable)
            # One that is away may have rows of an earlier try, which it alone can tell.
            away = {queue.broker_name for queue in route.without_master}
            away |= {queue.broker for queue in queues} - addresses.keys()
            if queues and not away:
                return queues, addresses
            if route.readable and not queues and not away:
                raise SinkTopicError(
                    f"topic {name!r} takes no messages: all its queues are frozen, or its permission lacks "
                    "writing. Open them (iotmq admin topic unfreeze), or write to another topic"
                )
            who = f"broker {', '.join(sorted(away))} of topic {name!r}"
            if not patience.wait(f"{who} is away"):
                raise SinkUnavailableError(f"{who} stayed away for the time of option retryTimeoutMs")

    def _link(self, broker: str, addresses: dict[str, Address]) -> BrokerLink:
        if broker not in addresses:
            addresses = self._cluster.brokers((broker,))
        return BrokerLink(
            self._cluster, broker, addresses[broker], in_flight_bytes=self._options.in_flight_bytes
        )

    def _ask_last(self, topic: str, broker: str, address: Address, *, is_needed: bool) -> _Last | None:
        """Ask a broker for the last number it has of this batch."""
        request = Command.request(
            RequestCode.LAST_BATCH_NUMBER, {"topic": topic, "producer": self._identity.producer}
        )
        if is_needed:
            link = self._links.setdefault(broker, self._link(broker, {broker: address}))
            link.drain()
            answer = link.ask(request, what=f"opening topic {topic!r}")
        else:
            # It may have had queues of the topic at the first try; one that is away can tell nobody.
            try:
                answer = self._cluster.connection(address).request(request)
            except (OSError, IotmqError):
                self._cluster.drop(address)
                return None
            if answer.code != ResponseCode.SUCCESS:
                return None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise SinkError(
                f"broker {broker} does not know numbered batches: it is no iotmq, or an older one"
            )
        if answer.code != ResponseCode.SUCCESS:
            raise SinkTopicError(
                f"broker {broker} takes no rows for topic {topic!r} (code {answer.code}): {answer.remark}"
            )
        if not answer.ext.get("batch") or int(answer.ext["batch"]) != self._identity.batch:
            return None
        try:
            return _Last(int(answer.ext["number"]), read_written(answer.ext.get("queues", "")))
        except (ValueError, KeyError) as error:
            raise SinkError(
                f"broker {broker} has another writer {self._identity.producer!r} of topic {topic!r}: {error}"
            ) from None

    # Sending

    def _send_all(self, batches: Iterable[Encoded]) -> None:
        for batch in batches:
            self._send(batch)

    def _send(self, batch: Encoded) -> None:
        topic = self._lanes[batch.lane]
        queue = topic.queue_of(batch.lane)
        place = _Place(topic.name, queue.broker)
        number = self._next_numbers.get(place, 0)
        if number > _NUMBER_MAX:
            raise SinkError(f"more than {_NUMBER_MAX} requests in one batch: use smaller batches")
        self._next_numbers[place] = number + 1
        rows = f"{batch.count} rows from row {batch.first_row} of partition {self._identity.partition}"
        written = Written(batch.checksum, topic.batch_bytes, topic.queues)
        last = self._last.get(place)
        if last is not None and last.number == number and last.written.checksum != written.checksum:
            raise self._rows_changed(place, f"its number {number}, of {rows}, is stored with others")
        value = f"{self._identity.producer} {self._identity.batch} {number} 0 {batch.count} {written.text()}"
        mark = f"{BATCH_NUMBER}\x01{value}\x02".encode()
        if batch.is_alone:
            body, properties = batch.parts()
            text = (properties + mark).decode("utf-8", "surrogateescape")
            message = Message(topic.name, queue.queue_id, body, text, True, rows)
        else:
            message = Message(topic.name, queue.queue_id, batch.marked(mark), "", False, rows)
        self._links[queue.broker].send(message)

    def _check_ends(self) -> None:
        """Find out whether an earlier try has stored more than this one had."""
        for place, last in self._last.items():
            sent = self._next_numbers.get(place, 0)
            if last.number >= sent:
                raise self._rows_changed(place, f"it had {last.number + 1} requests there, and now {sent}")

    def _rows_changed(self, place: _Place, what: str) -> SinkRowsChangedError:
        return SinkRowsChangedError(
            f"batch {self._identity.batch}, partition {self._identity.partition}, was written to topic "
            f"{place.topic!r} at broker {place.broker} before with other rows: {what}. The query must give "
            "the same rows in the same order when a batch is repeated: no rand(), no unordered shuffle, "
            "unchanged options. To go on, use a new checkpoint, and expect some rows twice"
        )
