"""Match confirmed records against the attached filters, and push them to front ends.

Operations: one `apply` per confirmed range of the log, one `attach`/`detach` per filter and front end. Goals:
nothing per record while no filter is attached; one cached look-up per record when some are; each record pushed
once per front end, with the ids of all its filters; no turn of the loop is longer for a message that matches very
many of them. Plan: a projection that lives in memory only; the filter index gives broker-wide ids, a table turns
them into (channel, id of the channel). Filters without wildcards whose messages come to another broker, as a rule,
are marks (`filter_marks`): one more look-up, where there are any. What is too much for one turn waits, and so
does, in its order, whoever attaches filters meanwhile.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from iotmq.broker.delivery.filter_marks cimport SHARDS, FilterMarks, Mark, channel_of
from iotmq.broker.delivery.push_channel cimport PushChannel, PushChannels, record_size_at
from iotmq.message.records.device_topic cimport device_topic
from iotmq.message.records.layout cimport (
    AT_POSITION,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    get_u32,
    get_u64,
    put_u32,
)
from iotmq.message.records.fields cimport FORMAT_OK, Element, RecordParts
from iotmq.message.records.record cimport RecordShared, element_record_size, parse_element, write_record
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, end_walk, next_record
from iotmq.mqtt.topics.filters cimport FilterIndex, Matches

from collections import deque
from functools import partial

from iotmq import limits
from iotmq.event_loop import LoopSlice
from iotmq.message.errors import MessageFormatError

cdef Py_ssize_t BACKLOG_BYTES_MAX = limits.DELIVERY_BACKLOG_BYTES_MAX
cdef Py_ssize_t BACKLOG_ITEMS_MAX = limits.DELIVERY_BACKLOG_ITEMS_MAX
cdef Py_ssize_t PUSH_BYTES_MAX = limits.PUSH_BYTES_MAX

cdef enum:
    MATCH_HEAD_BYTES = 8
    LOOK_AFTER = 1024   # filters and shapes compared before the clock is looked at again


cdef class DeliveryChannel(PushChannel):
    """One front end as the broker sees it. `receiver(records, matches)` takes what was matched; the layout of
    both is that of ports.gateway.DeliveryReceiver."""

    cdef readonly dict filters          # the channel's filter id -> filter
    cdef readonly Py_ssize_t mark_count  # filters of which there is a mark
    cdef readonly Py_ssize_t coming     # filters and marks that wait behind records from before them
    cdef readonly bint is_open          # until `LiveDelivery.close_channel`
    cdef Py_ssize_t last_entry          # where the entry of the latest record begins, -1 when there is none
    cdef uint32_t last_place
    cdef int number                     # in marks; 0 before the first

    def __init__(self, receiver not None):
        super().__init__(receiver)
        self.filters = {}
        self.is_open = True
        self.last_entry = -1

    cdef int add(self, uint32_t place, uint32_t filter_id) except -1:
        """The record at `place` matches `filter_id`; ids of one record come one after the other."""
        cdef uint8_t* target
        cdef uint8_t* count
        if self.last_entry < 0 or self.last_place != place:
            target = self.take_room(MATCH_HEAD_BYTES)
            put_u32(target, place)
            put_u32(target + 4, 0)
            self.last_entry = target - self.pushes
            self.last_place = place
        target = self.take_room(4)
        put_u32(target, filter_id)
        count = self.pushes + self.last_entry + 4
        put_u32(count, get_u32(count) + 1)
        return 0

    cdef int add_marked(self, uint32_t place, uint32_t filter_id) except -1:
        """As `add`, once: while a filter moves between brokers, it is here in both ways."""
        cdef const uint8_t* at
        cdef uint32_t count
        if self.last_entry >= 0 and self.last_place == place:
            at = self.pushes + self.last_entry + 4
            for count in range(get_u32(at)):
                if get_u32(at + 4 + 4 * count) == filter_id:
                    return 0
        return self.add(place, filter_id)

    cdef int begin(self) except -1:
        self.last_entry = -1
        return PushChannel.begin(self)

    cdef int push(self, records) except -1:
        self.last_entry = -1
        return PushChannel.push(self, records)


cdef class Stretch:
    """Records to be matched, and how far that is."""

    cdef object records
    cdef Py_ssize_t size
    cdef Py_ssize_t at
    cdef int64_t end_position   # in the log; 0 for what is not stored

    def __init__(self, records, int64_t end_position):
        self.records = records
        self.size = len(records)
        self.end_position = end_position


cdef class LiveDelivery:
    """The filters of all front ends, and the projection that serves them. Lives on the store's thread.

    `call_soon(callback)` has the rest matched later when it is too much for a turn; without it all is at once.
    """

    cdef readonly str name
    cdef readonly int64_t applied_position  # the log up to here was taken
    cdef readonly int64_t matched_position  # and matched, and pushed, up to here
    cdef object _call_soon
    cdef object _backlog                # deque of Stretch, the first perhaps begun, and of calls that come after them
    cdef readonly Py_ssize_t backlog_bytes
    cdef bint _is_going_on
    cdef bint _is_scheduled
    cdef Py_ssize_t _compared           # since the clock was looked at
    cdef FilterIndex _index
    cdef dict _attached                 # id in the index -> list of (channel, id of the channel)
    cdef readonly FilterMarks marks
    cdef list _marking                  # by the number of a channel in marks; None while it has no channel
    cdef list _free_numbers
    cdef PushChannels _channels
    cdef readonly uint64_t matched      # records that at least one filter selected

    def __init__(self, *, int64_t applied_position, call_soon=None):
        self.name = "delivery"
        self.applied_position = self.matched_position = applied_position
        self._call_soon = call_soon
        self._backlog = deque()
        self._index = FilterIndex()
        self._attached = {}
        self.marks = FilterMarks()
        self._marking = [None]
        self._free_numbers = []
        self._channels = PushChannels()

    @property
    def filter_count(self):
        """Distinct filters over all front ends, without those of which there are marks only."""
        return len(self._index)

    @property
    def channel_count(self):
        """Front ends with an open channel."""
        return len(self._channels)

    @property
    def failed_pushes(self):
        """Pushes a front end's receiver has raised something at."""
        return self._channels.failed_total

    def open_channel(self, receiver not None):
        """Open a channel for a front end that has no filters yet."""
        channel = DeliveryChannel(receiver)
        self._channels.add(channel)
        return channel

    def close_channel(self, DeliveryChannel channel not None):
        """Forget a front end and its filters."""
        channel.is_open = False
        self._detach(channel, list(channel.filters))
        self._channels.remove(channel)
        if channel.number:
            self._marking[channel.number] = None
            self._drop_marks(channel.number, 0)

    def takes_marks(self, DeliveryChannel channel not None):
        """Give an open channel its number in marks, if it has none yet; False when all are taken
        (limits.MARKING_CHANNELS_MAX)."""
        if channel.is_open and not channel.number:
            if self._free_numbers:
                channel.number = self._free_numbers.pop()
                self._marking[channel.number] = channel
            elif len(self._marking) <= limits.MARKING_CHANNELS_MAX:
                channel.number = len(self._marking)
                self._marking.append(channel)
        return channel.number != 0

    def attach(self, DeliveryChannel channel not None, filters, marks=()):
        """Push records that match from now on; `filters` are (id of the channel, valid filter).

        Of those in `marks`, which have no wildcards, no text is kept: a record of another topic may be pushed for
        one. A filter may be in both, and is pushed for once.
        """
        filters, marks = list(filters), list(marks)
        if marks:
            self.takes_marks(channel)
        channel.coming += len(filters) + len(marks)
        self.call_matched(partial(self._attach, channel, filters, marks))

    def detach(self, DeliveryChannel channel not None, filter_ids, marks=()):
        """Stop pushing for these ids and marks, given as to `attach`; unknown ones are ignored."""
        self.call_matched(partial(self._detach, channel, list(filter_ids), list(marks)))

    def call_matched(self, callback):
        """Call `callback`, perhaps at once, when all that was taken by now is matched and pushed."""
        if not self._backlog:
            callback()
            return
        self._backlog.append(callback)
        if self._is_full() and not self._is_going_on:
            self._go_on(None)

    def _attach(self, DeliveryChannel channel, list filters, list marks):
        channel.coming -= len(filters) + len(marks)
        if not channel.is_open:
            return
        for filter_id, topic_filter in filters:
            if filter_id in channel.filters:
                self._detach(channel, (filter_id,))
            channel.filters[filter_id] = topic_filter
            self._attached.setdefault(self._index.add(topic_filter), []).append((channel, filter_id))
        for filter_id, topic in marks:
            channel.mark_count += <bint>self.marks.add(topic.encode(), channel.number, filter_id)

    def _detach(self, DeliveryChannel channel, filter_ids, marks=()):
        if channel.is_open and channel.number:
            for filter_id, topic in marks:
                channel.mark_count -= <bint>self.marks.remove(topic.encode(), channel.number, filter_id)
        for filter_id in filter_ids:
            topic_filter = channel.filters.pop(filter_id, None)
            if topic_filter is None:
                continue
            known = self._index.id_of(topic_filter)
            attached = self._attached[known]
            attached.remove((channel, filter_id))
            if not attached:
                del self._attached[known]
                self._index.remove(topic_filter)

    def _drop_marks(self, int number, int shard):
        """Drop the marks of a channel that is closed, a part in each turn; then its number is free."""
        loop_slice = LoopSlice()
        while shard < SHARDS:
            self.marks.drop(number, shard)
            shard += 1
            if self._call_soon is not None and not loop_slice.take():
                self._call_soon(partial(self._drop_marks, number, shard))
                return
        self._free_numbers.append(number)

    def apply(self, view not None, int64_t start_position, int64_t end_position):
        """Match the records of [start_position, end_position) and push them (store.projection.Projection)."""
        if self._backlog or not self._index.is_empty or self.marks.count:
            self._append(Stretch(view, end_position))
        else:
            self.matched_position = end_position
        self.applied_position = end_position

    def check_invariants(self):
        """Raise AssertionError when attachments, the index and what waits do not agree."""
        pairs = [(channel, filter_id) for found in self._attached.values() for channel, filter_id in found]
        assert len(pairs) == len(set(pairs)) == sum(len(channel.filters) for channel in self._channels)
        for known, found in self._attached.items():
            for channel, filter_id in found:
                assert channel.is_open and self._index.id_of(channel.filters[filter_id]) == known
        assert len(self._attached) == len(self._index)
        self.marks.check_invariants()
        if len(self._free_numbers) == self._marking.count(None) - 1:   # nothing is being dropped
            assert self.marks.count == sum(channel.mark_count for channel in self._channels)
        assert self.backlog_bytes == sum((<Stretch>one).size for one in self._backlog if type(one) is Stretch)
        assert self.matched_position <= self.applied_position
        assert self._backlog or self.matched_position == self.applied_position

    cdef int _append(self, Stretch stretch) except -1:
        self._backlog.append(stretch)
        self.backlog_bytes += stretch.size
        if self._is_going_on:
            return 0
        if self._call_soon is None or self._is_full():
            self._go_on(None)
        elif len(self._backlog) == 1:
            self._go_on(LoopSlice())
        return 0

    cdef bint _is_full(self):
        return self.backlog_bytes > BACKLOG_BYTES_MAX or len(self._backlog) > BACKLOG_ITEMS_MAX

    def _go_on_later(self):
        self._is_scheduled = False
        self._go_on(LoopSlice())

    cdef int _go_on(self, loop_slice) except -1:
        """Match what waits, for the time of a slice; without one, until there is room for more."""
        self._is_going_on = True
        try:
            while self._backlog and (loop_slice is not None or self._call_soon is None or self._is_full()):
                head = self._backlog[0]
                if type(head) is Stretch:
                    if not self._match_stretch(head, loop_slice):
                        break
                else:
                    self._backlog.popleft()
                    head()
        finally:
            self._is_going_on = False
            if self._backlog and not self._is_scheduled and self._call_soon is not None:
                self._is_scheduled = True
                self._call_soon(self._go_on_later)
        return 0

    cdef bint _match_stretch(self, Stretch stretch, loop_slice) except -1:
        """Hand every front end what it wants of the first that waits; whether that was all. What is no
        record ends it."""
        cdef RecordWalk walk
        cdef bint is_done = True
        self._channels.begin()
        begin_walk(&walk, stretch.records)
        try:
            is_done = self._match(&walk, stretch, loop_slice)
        finally:
            end_walk(&walk)
            if is_done:
                self._backlog.popleft()
                self.backlog_bytes -= stretch.size
        self._channels.push(stretch.records)
        if is_done and stretch.end_position:
            self.matched_position = stretch.end_position
        return is_done

    cdef bint _match(self, RecordWalk* walk, Stretch stretch, loop_slice) except -1:
        cdef RecordParts record
        cdef const uint8_t* start = walk.at
        cdef const uint8_t* topic = NULL
        cdef Py_ssize_t topic_size, place
        cdef const Matches* matches
        cdef const Mark* mark
        cdef uint32_t index, marked
        cdef DeliveryChannel channel
        cdef bint is_full
        walk.at += stretch.at
        while next_record(walk, &record):
            topic_size = device_topic(&record, &topic)
            if topic_size < 0:
                continue
            matches = self._index.find(topic, topic_size)
            marked = self.marks.find(topic, topic_size) if self.marks.count else 0
            if matches.count or marked:
                self.matched += 1
            place = walk.at - record.size - start
            is_full = False
            for index in range(matches.count):
                for entry in <list>self._attached[matches.ids[index]]:
                    channel = <DeliveryChannel>(<tuple>entry)[0]
                    channel.add(<uint32_t>place, (<tuple>entry)[1])
                    is_full |= channel.size >= PUSH_BYTES_MAX
            for index in range(marked):
                mark = &self.marks.found[index]
                channel = self._marking[channel_of(mark)]
                if channel is not None:
                    channel.add_marked(<uint32_t>place, mark.filter_id)
                    is_full |= channel.size >= PUSH_BYTES_MAX
            if is_full:
                self._channels.push(stretch.records)
            self._compared += 1 + matches.count + marked + self._index.shapes_end
            if self._compared >= LOOK_AFTER:
                self._compared = 0
                if loop_slice is not None and not loop_slice.take():
                    stretch.at = walk.at - start
                    return False
        return True

    def publish_transient(
        self, elements not None, bytes topic not None, int queue_id, *, int64_t now_ms, bytes host not None
    ):
        """Push messages that are not stored: the records they would have become, without a place in the log.

        Returns how many there were. Raises MessageFormatError for a batch that is not one.
        """
        cdef const uint8_t[::1] batch = elements
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef const uint8_t* host_bytes = host
        cdef const uint8_t* topic_bytes = topic
        cdef Element element
        cdef RecordShared shared
        cdef Py_ssize_t size = 0, written
        cdef int count = 0
        cdef uint8_t* target
        if batch.shape[0] == 0:
            raise MessageFormatError("the batch is empty")
        shared.topic = topic_bytes
        shared.topic_size = len(topic)
        shared.properties = NULL
        shared.properties_size = 0
        shared.born_host = host_bytes
        shared.store_host = host_bytes
        shared.born_timestamp_ms = now_ms
        shared.store_timestamp_ms = now_ms
        shared.prepared_position = 0
        shared.queue_id = queue_id
        shared.sys_flag = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6 if len(host) > 8 else 0
        shared.reconsume_times = 0
        at = &batch[0]
        end = at + batch.shape[0]
        while at < end:
            if parse_element(at, end, &element) != FORMAT_OK:
                raise MessageFormatError(f"element {count} of the batch is broken")
            written = element_record_size(&element, &shared)
            if written < 0:
                raise MessageFormatError(f"element {count} of the batch is past a limit of the record")
            size += written
            count += 1
            at += element.size
        if self._index.is_empty and not self._backlog and not self.marks.count:
            return count
        records = bytearray(size)
        cdef uint8_t[::1] room = records
        target = &room[0]
        at = &batch[0]
        while at < end:
            parse_element(at, end, &element)
            written = write_record(target, size, &element, &shared, 0, 0)
            target += written
            size -= written
            at += element.size
        self._append(Stretch(records, 0))
        return count


def gather(const uint8_t[::1] records not None, const uint8_t[::1] matches not None):
    """Return the matched records alone, one after the other, the matches with their new places, and where they end.

    For a channel that leaves the process: (records, matches) as bytes, and the position in the log behind the
    last record.
    """
    cdef Py_ssize_t at = 0, size = 0, record_size
    cdef Py_ssize_t end = matches.shape[0]
    cdef uint32_t count
    cdef uint8_t* target
    cdef uint8_t* moved
    cdef int64_t next_position = 0
    while at < end:
        size += record_size_at(records, get_u32(&matches[at]))
        at += MATCH_HEAD_BYTES + 4 * <Py_ssize_t>get_u32(&matches[at + 4])
    gathered = bytearray(size)
    renumbered = bytearray(matches)
    if not end:
        return bytes(gathered), bytes(renumbered), 0
    target = gathered
    moved = renumbered
    at = 0
    size = 0
    while at < end:
        record_size = get_u32(&records[0] + get_u32(moved + at))
        memcpy(target + size, &records[0] + get_u32(moved + at), record_size)
        next_position = <int64_t>get_u64(target + size + AT_POSITION) + record_size
        count = get_u32(moved + at + 4)
        put_u32(moved + at, <uint32_t>size)
        size += record_size
        at += MATCH_HEAD_BYTES + 4 * <Py_ssize_t>count
    return bytes(gathered), bytes(renumbered), next_position
