"""From broker to subscribers: each pushed record is written to the local devices whose filters it matches.

Operations: subscribe, unsubscribe, and one call per push with any number of records. Goals: no Python object
per record and delivery; a device that several of its filters select gets one copy, of the highest QoS granted
[MQTT-3.3.5-1]; what a slow device cannot take is dropped and counted, and nobody else waits. Plan: per
filter an array of (device, QoS); records are read where they lie. What is too much for one turn of the loop
goes on in the next ones, in its order; while very much waits nothing is read from devices.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp

from iotmq.message.records.layout cimport get_u32
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport parse_record
from iotmq.mqtt.codec.packet_types cimport NO_LOCAL, OPTIONS_QOS, STATE_CONNECTED
from iotmq.mqtt.server.outbound cimport DeliveryOptions
from iotmq.mqtt_front.connection.device cimport CONGESTED_EGRESS, Device, DeviceGroup
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage

from collections import deque

from iotmq import limits
from iotmq.event_loop import LoopSlice
from iotmq.mqtt.topics.topics import wildcard_shape
from iotmq.supervised import FAILURES

cdef Py_ssize_t BACKLOG_BYTES_MAX = limits.EGRESS_BACKLOG_BYTES_MAX
# More than other work has of a turn: each turn ends with a write to every device that got something.
SLICE_S = 0.008

cdef enum:
    LOOK_AFTER = 256    # subscribers served before the clock is looked at again


cdef struct LocalSubscriber:
    void* device        # a counted reference
    uint8_t options     # as in SUBSCRIBE
    uint32_t identifier  # of the subscription; 0 = none


cdef class Subscribers:
    """The local devices of one filter."""

    cdef LocalSubscriber* entries
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef dict places            # device -> place in entries
    cdef str topic              # of a filter without wildcards: brokers may push what is for another one; else None
    cdef object heard           # called for records of a filter that this process listens to itself; else None

    def __init__(self, str topic):
        self.places = {}
        self.topic = topic

    def __dealloc__(self):
        cdef Py_ssize_t index
        for index in range(self.count):
            Py_DECREF(<object>self.entries[index].device)
        free(self.entries)

    def __len__(self):
        return self.count

    cdef bint is_for(self, const uint8_t* topic, Py_ssize_t topic_size) except -1:
        """Return whether a record that was pushed for the filter matches it."""
        cdef Py_ssize_t size
        cdef const char* text
        if self.topic is None:
            return True
        text = PyUnicode_AsUTF8AndSize(self.topic, &size)
        return size == topic_size and memcmp(text, topic, size) == 0

    cdef int put(self, Device device, uint8_t options, uint32_t identifier) except -1:
        cdef LocalSubscriber* entries
        cdef Py_ssize_t capacity
        place = self.places.get(device)
        if place is not None:
            self.entries[<Py_ssize_t>place].options = options
            self.entries[<Py_ssize_t>place].identifier = identifier
            return 0
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 1
            entries = <LocalSubscriber*>realloc(self.entries, capacity * sizeof(LocalSubscriber))
            if entries == NULL:
                raise MemoryError
            self.entries = entries
            self.capacity = capacity
        self.places[device] = self.count
        self.entries[self.count] = LocalSubscriber(<void*>device, options, identifier)
        self.count += 1
        Py_INCREF(device)
        return 0

    cdef int discard(self, Device device) except -1:
        place = self.places.pop(device, None)
        if place is None:
            return 0
        cdef Py_ssize_t at = place
        self.count -= 1
        if at != self.count:
            self.entries[at] = self.entries[self.count]
            self.places[<object>self.entries[at].device] = at
        Py_DECREF(device)
        return 0


cdef class Push:
    """Records on their way to subscribers: what a broker handed over, and how much of it is done."""

    cdef object records
    cdef object matches
    cdef Py_ssize_t size        # of the matches
    cdef Py_ssize_t at

    def __init__(self, records, matches):
        self.records = records
        self.matches = matches
        self.size = len(matches)

    cdef Py_ssize_t held_bytes(self):
        return self.size + len(self.records)


cdef class Egress:
    """The fan-out of one front end (ports.gateway.DeliveryReceiver)."""

    cdef DeviceGroup group
    cdef object _backlog                # deque of Push, the first perhaps begun
    cdef readonly Py_ssize_t backlog_bytes
    cdef bint _is_going_on
    cdef bint _is_scheduled
    cdef object _slice                  # of the turn with number `_turn`
    cdef uint32_t _turn
    cdef uint32_t _served               # subscribers since the clock was looked at
    cdef dict _filters                  # filter id -> Subscribers
    cdef uint32_t _last_id              # ids are not used again: pushes for an old one may be under way
    cdef dict _id_of                    # filter -> id
    cdef OutgoingMessage _message
    cdef dict _gathered                 # device -> (options, identifiers), while one record is delivered by several filters
    cdef uint32_t* _identifiers         # of one delivery
    cdef Py_ssize_t _identifiers_capacity
    cdef public bint sheds              # messages of QoS 0 are dropped, because of overload
    cdef readonly uint64_t shed
    cdef readonly uint64_t delivered
    cdef readonly uint64_t dropped
    cdef readonly uint64_t malformed
    cdef readonly uint64_t misdirected  # pushed for a filter that is not their topic, and left out

    def __init__(self, DeviceGroup group not None):
        self.group = group
        self._backlog = deque()
        self._filters = {}
        self._id_of = {}
        self._gathered = {}
        self._message = OutgoingMessage(group.clock)

    def __dealloc__(self):
        free(self._identifiers)

    @property
    def filter_count(self):
        """Filters with at least one local subscriber."""
        return len(self._id_of)

    def subscribe(self, str topic_filter not None, Device device not None, uint64_t options):
        """Add a subscriber, or change its options (as in ports.sessions.SessionSubscription).

        Returns the filter's id when the filter is new here, else None.
        """
        filter_id = self._id_of.get(topic_filter)
        is_new = filter_id is None
        if is_new:
            self._last_id += 1
            filter_id = self._last_id
            self._filters[filter_id] = Subscribers(
                topic_filter if wildcard_shape(topic_filter) is None else None
            )
            self._id_of[topic_filter] = filter_id
        (<Subscribers>self._filters[filter_id]).put(device, <uint8_t>options, <uint32_t>(options >> 8))
        return filter_id if is_new else None

    def unsubscribe(self, str topic_filter not None, Device device not None):
        """Remove a subscriber. Returns the filter's id when nobody is left on it, else None."""
        filter_id = self._id_of.get(topic_filter)
        if filter_id is None:
            return None
        cdef Subscribers subscribers = self._filters[filter_id]
        subscribers.discard(device)
        if subscribers.count:
            return None
        del self._id_of[topic_filter]
        del self._filters[filter_id]
        return filter_id

    def listen(self, str topic_filter not None, heard not None):
        """Have `heard(broker topic, MQTT topic, body)` called for the records of a filter that no device may have.

        Returns the filter's id.
        """
        self._last_id += 1
        cdef Subscribers subscribers = Subscribers(None)
        subscribers.heard = heard
        self._filters[self._last_id] = subscribers
        return self._last_id

    @property
    def is_idle(self):
        """Return whether nothing waits to be written to subscribers."""
        return not self._backlog

    def close(self):
        """Let go of what was not written: nobody is connected any more."""
        self._backlog.clear()
        self.backlog_bytes = 0

    def deliver(self, records not None, matches not None):
        """Write each matched record to the subscribers of its filters (ports.gateway.DeliveryReceiver)."""
        cdef Push push = Push(records, matches)
        self._backlog.append(push)
        self.backlog_bytes += push.held_bytes()
        if self._is_going_on:
            return
        if self.backlog_bytes > BACKLOG_BYTES_MAX:
            # Not even what was read from devices before they were held back is to pile up.
            self._go_on(None)
        elif len(self._backlog) == 1:
            if self._slice is None or self._turn != self.group._turn:
                self._begin_slice()
            self._go_on(self._slice)
        if self.backlog_bytes * 2 > BACKLOG_BYTES_MAX:
            self.group.congest(CONGESTED_EGRESS)

    def _go_on_later(self):
        self._is_scheduled = False
        self._begin_slice()
        self._go_on(self._slice)

    cdef int _begin_slice(self) except -1:
        self._slice = LoopSlice(slice_s=SLICE_S)
        self._turn = self.group._turn
        return 0

    cdef int _go_on(self, loop_slice) except -1:
        """Deliver what waits, for the time of a slice; without one, until there is room for more."""
        cdef Push push
        self._is_going_on = True
        try:
            while self._backlog and (loop_slice is not None or self.backlog_bytes > BACKLOG_BYTES_MAX):
                push = self._backlog[0]
                if not self._deliver_push(push, loop_slice):
                    break
                if self._backlog:       # it was not closed by what came of it
                    self._backlog.popleft()
                    self.backlog_bytes -= push.held_bytes()
        finally:
            self._is_going_on = False
            if self._backlog and not self._is_scheduled:
                self._is_scheduled = True
                self.group.loop.call_soon(self._go_on_later)
        if self.group.is_congested and self.backlog_bytes * 4 <= BACKLOG_BYTES_MAX:
            self.group.relieve(CONGESTED_EGRESS)
        return 0

    cdef bint _deliver_push(self, Push push, loop_slice) except -1:
        """Deliver its records from where it stands; whether that was all."""
        cdef const uint8_t[::1] records = push.records
        cdef const uint8_t[::1] matches = push.matches
        cdef Py_ssize_t records_size = records.shape[0]
        cdef uint32_t place, count
        cdef RecordParts record
        cdef const uint8_t* match
        while push.at + 8 <= push.size:
            match = &matches[0] + push.at
            place = get_u32(match)
            count = get_u32(match + 4)
            if count > <uint64_t>(push.size - push.at - 8) // 4 or place >= <uint64_t>records_size:
                self.malformed += 1
                return True
            if self._served >= LOOK_AFTER:
                self._served = 0
                if loop_slice is not None and not loop_slice.take():
                    return False
            # First: whatever happens to it, it is not delivered twice.
            push.at += 8 + 4 * <Py_ssize_t>count
            self._served += 1
            if parse_record(&records[0] + place, &records[0] + records_size, &record) != FORMAT_OK:
                self.malformed += 1
                continue
            self._deliver_record(&record, match + 8, count)
        if push.at != push.size:
            self.malformed += 1
        return True

    cdef int _deliver_record(self, const RecordParts* record, const uint8_t* ids, uint32_t count) except -1:
        cdef OutgoingMessage message = self._message
        cdef uint32_t index
        cdef Py_ssize_t place
        cdef LocalSubscriber* entry
        cdef Subscribers subscribers
        cdef uint32_t used
        if not message.read(record):
            self.malformed += 1
            return 0
        if count == 1:
            subscribers = self._find(get_u32(ids), message)
            if subscribers is not None:
                if subscribers.heard is not None:
                    self._hear(subscribers, record, message)
                self._served += <uint32_t>subscribers.count
                for place in range(subscribers.count):
                    entry = &subscribers.entries[place]
                    self._deliver_one(
                        <Device>entry.device, message, entry.options, &entry.identifier, entry.identifier != 0
                    )
            return 0
        for index in range(count):
            subscribers = self._find(get_u32(ids + 4 * index), message)
            if subscribers is not None:
                if subscribers.heard is not None:
                    self._hear(subscribers, record, message)
                self._served += <uint32_t>subscribers.count
                for place in range(subscribers.count):
                    self._gather(&subscribers.entries[place], message)
        for device, gathered in self._gathered.items():
            options, identifiers = gathered
            used = self._use_identifiers(identifiers)
            self._deliver_one(<Device>device, message, <uint8_t>options, self._identifiers, used)
        self._gathered.clear()
        return 0

    cdef int _hear(self, Subscribers subscribers, const RecordParts* record, OutgoingMessage message) except -1:
        try:
            subscribers.heard(
                record.topic[:record.topic_size],
                message.view.topic[:message.view.topic_size],
                message.view.payload[:message.view.payload_size],
            )
        except Exception:
            # Subscribers get the rest.
            FAILURES.note("what a front end hears")
        return 0

    cdef int _gather(self, LocalSubscriber* entry, OutgoingMessage message) except -1:
        """One of several filters of a record: a device gets one copy, as the best of its subscriptions says.

        It has the identifiers of all of them [MQTT-3.3.4-4]; those that are not for what the device itself
        published take no part.
        """
        cdef Device device = <Device>entry.device
        cdef uint8_t options = entry.options
        if options & NO_LOCAL:
            if message.is_from(device.client_id_utf8, len(device.client_id_utf8)):
                return 0
            options &= ~NO_LOCAL
        former = self._gathered.get(device)
        cdef list identifiers = None if former is None else former[1]
        if former is not None:
            options = max(options & OPTIONS_QOS, <uint8_t>former[0] & OPTIONS_QOS) | (
                (options | <uint8_t>former[0]) & ~OPTIONS_QOS
            )
        if entry.identifier:
            if identifiers is None:
                identifiers = []
            identifiers.append(entry.identifier)    # the same list: a device may have thousands that match
        self._gathered[device] = (options, identifiers)
        return 0

    cdef uint32_t _use_identifiers(self, list identifiers) except? 0xFFFFFFFF:
        """Put them where a delivery finds them; how many there are."""
        cdef Py_ssize_t index, count = 0 if identifiers is None else len(identifiers)
        cdef uint32_t* grown
        if count > self._identifiers_capacity:
            grown = <uint32_t*>realloc(self._identifiers, count * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            self._identifiers = grown
            self._identifiers_capacity = count
        for index in range(count):
            self._identifiers[index] = identifiers[index]
        return <uint32_t>count

    cdef Subscribers _find(self, uint32_t filter_id, OutgoingMessage message):
        """Return the subscribers of a filter, or None when there are none, or the message is not for them."""
        cdef Subscribers found = self._filters.get(filter_id)
        if found is None or found.is_for(message.view.topic, message.view.topic_size):
            return found
        self.misdirected += 1
        return None

    cdef int _deliver_one(
        self, Device device, OutgoingMessage message, uint8_t options, const uint32_t* identifiers, uint32_t count
    ) except -1:
        cdef DeliveryOptions delivery
        if not device.is_for_device(message, &delivery, options, identifiers, count):
            return 0
        if self.sheds and not delivery.qos:
            self.shed += 1
            device.note_lost("the front end is overloaded", &message.view)
            return 0
        if device.deliver(&message.view, &delivery):
            self.delivered += 1
            device.note_delivered(message, &delivery)
            if device.output.size:
                self.group.touch(device)
        elif device.state == STATE_CONNECTED:   # one that is on its way out is no slow subscriber
            self.dropped += 1
            device.note_lost("the client does not read, and its queue is full", &message.view)
        return 0
