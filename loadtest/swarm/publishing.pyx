"""Publishers: rings of ready-made packets, the pace they are sent at, and their acknowledgements."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.math cimport sqrt
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy

from iotmq.message.records.layout cimport get_u32, get_u64, put_u16, put_u64

from loadtest.swarm.connections cimport PUBLISHER, READY, Connection, Field, byte_of, whole_messages
from loadtest.swarm.histogram cimport Histogram, record
from loadtest.swarm.sockets cimport now_ns, write_ring
from loadtest.swarm.wire cimport (
    COUNTER_DIGITS_C, FRAME_HEADER_BYTES, MILLISECOND_DIGITS_C, TOPIC_DIGITS_C, get_hexadecimal, put_decimal,
    put_digits, put_frame_header, put_hexadecimal,
)

from iotmq.mqtt.codec.framing import append_publish

cdef enum:
    QOS0_RING_BYTES = 16 * 1024
    SLOTS_OF_SIZES = 64     # at least, so that packets of different sizes follow each other
    TLS_RECORD_BYTES = 16 * 1024
    PUBRELS_AT_ONCE = 512

# What is filled into each packet beside its id and stamp, by kind, and the digits it has.
cdef enum:
    SEQUENCE, COUNTER, MILLISECONDS, TEXT_STAMP

# States of a slot with QoS 2 whose answers come out of turn.
cdef enum:
    IS_RECEIVED = 1
    IS_COMPLETE = 2
    IS_REFUSED = 4

RING_BYTES_MAX = 2 * 1024 ** 3
FIELD_KINDS = {"sequence": SEQUENCE, "counter": COUNTER, "milliseconds": MILLISECONDS, "stamp": TEXT_STAMP}
FIELD_DIGITS = {
    SEQUENCE: COUNTER_DIGITS_C, COUNTER: COUNTER_DIGITS_C, MILLISECONDS: MILLISECOND_DIGITS_C,
    TEXT_STAMP: 2 * STAMP_BYTES_C,
}


cdef class Publishing(Connections):
    """Connections of which some publish, each from a ring with a slot for every message of its window.

    Sending is patching packet id, sequence and time into the next slots and handing the whole run to one
    ``writev``; a slot is free again when its PUBACK came (QoS 0: when its bytes were taken by the socket). Packet
    ids count 1..65,535 in order, so an expected PUBACK is one comparison, and all that arrive in one read are
    counted in one pass. With QoS 2 the PUBRECs of a read are answered together, never inside a half-written packet.
    """

    def __cinit__(self):
        self.acknowledgement = Histogram()
        self.send_delay = Histogram()

    def __dealloc__(self):
        free(self.publishers)
        free(self.moved)

    def add_publisher(self, bytes connect, bytes topic, *, uint32_t number_at=0, payload=None, topic_fields=(),
                      payload_fields=()):
        """A connection that publishes to one topic. Returns its number in stamps.

        With several topics to a publisher `number_at` says where in the topic the seven digits are that
        are replaced by the number of each. `payload` replaces the engine's for this publisher. The fields are
        (where, kind) with a kind of `FIELD_KINDS`: digits of topic or payload that are filled in for each message.
        """
        cdef uint32_t number = self.number_base + self.publisher_count
        cdef bytes text = self.payload if payload is None else payload
        if not 1 <= len(topic) <= 65_535:
            raise ValueError(f"a topic has 1..65535 bytes, not {len(topic)}")
        if self.topics_per_publisher > 1 and number_at + TOPIC_DIGITS_C > len(topic):
            raise ValueError(f"a topic for many needs {TOPIC_DIGITS_C} digits at {number_at}")
        if self.topics_per_publisher > 1 and (
                <uint64_t>(number + 1) * self.topics_per_publisher > 10 ** TOPIC_DIGITS_C):
            raise ValueError(f"the numbers of topics have {TOPIC_DIGITS_C} digits")
        if self.sizes and (topic_fields or payload_fields):
            raise ValueError("payloads of different sizes have no fields")
        sizes = self._slot_sizes(number, len(text))
        packets = []
        cdef uint32_t head_size = 0
        for size in sizes:
            packet, head_size = self._packet(topic, text[:size], number, payload is None)
            packets.append((packet, head_size))
        cdef uint32_t slots = self._slots(len(packets[0][0]))
        cdef uint64_t ring_bytes = self._ring_bytes(packets, slots)
        if self.ring_bytes_total + ring_bytes > <uint64_t>RING_BYTES_MAX:
            raise ValueError(f"publishers x window x packet size is more than {RING_BYTES_MAX} bytes")
        cdef uint32_t* grown = <uint32_t*>realloc(self.publishers, (self.publisher_count + 1) * 4)
        if grown == NULL:
            raise MemoryError
        self.publishers = grown
        grown = <uint32_t*>realloc(self.moved, (self.publisher_count + 1) * 4)
        if grown == NULL:
            raise MemoryError
        self.moved = grown
        cdef Connection* c = self._new(PUBLISHER, connect)
        self.publishers[self.publisher_count] = self.count - 1
        self.publisher_count += 1
        self.ring_bytes_total += ring_bytes
        c.number = number
        c.slots = slots
        c.window = self.window if self.qos else slots
        c.packet_size = <uint32_t>(ring_bytes // slots)
        # Packets of one size are counted from their beginning, others from behind their headers.
        cdef uint32_t body_at = 0 if len(packets) > 1 else head_size
        cdef uint32_t topic_at = body_at + 2
        cdef uint32_t behind_topic = topic_at + len(topic)
        cdef uint32_t payload_at = behind_topic + (2 if self.qos else 0) + len(self.publish_properties)
        c.id_at = behind_topic if self.qos else 0
        c.digits_at = topic_at + number_at if self.topics_per_publisher > 1 else 0
        if payload is None and min(sizes) >= STAMP_BYTES_C:
            c.stamp_at = payload_at
        fields = [(topic_at + at, FIELD_KINDS[kind], 65_535) for at, kind in topic_fields]
        fields += [(payload_at + at, FIELD_KINDS[kind], len(text)) for at, kind in payload_fields]
        self._add_fields(c, fields, topic_at + len(topic), payload_at + len(text))
        self._fill_ring(c, packets)
        return number

    cdef list _slot_sizes(self, uint32_t number, uint32_t size):
        """The sizes of payloads of a publisher's slots: one for all, or its part of the engine's."""
        if not self.sizes:
            return [size]
        cdef uint32_t count = max(<uint32_t>SLOTS_OF_SIZES, self.window if self.qos else 0)
        return [self.sizes[(number * count + i) % len(self.sizes)] for i in range(count)]

    cdef tuple _packet(self, bytes topic, bytes payload, uint32_t number, bint has_stamp):
        """A PUBLISH as it lies in the ring, and the size of what is before its topic."""
        cdef bytearray packet = bytearray()
        cdef uint8_t[FRAME_HEADER_BYTES] header
        append_publish(packet, self.qos << 1, topic, 0, self.publish_properties, payload)
        cdef uint32_t payload_at = len(packet) - len(payload)
        if has_stamp and len(payload) >= STAMP_BYTES_C:
            packet[payload_at:payload_at + 8] = (<int>STAMP_MAGIC_C).to_bytes(4, "big") + number.to_bytes(4, "big")
        cdef uint32_t head_size = (
            payload_at - len(self.publish_properties) - (2 if self.qos else 0) - len(topic) - 2)
        cdef uint32_t frame_header_size
        if self.is_websocket:
            frame_header_size = put_frame_header(header, len(packet))
            packet[:0] = header[:frame_header_size]
            head_size += frame_header_size
        return bytes(packet), head_size

    cdef uint32_t _slots(self, uint32_t packet_size):
        if self.sizes:
            return max(<uint32_t>SLOTS_OF_SIZES, self.window if self.qos else 0)
        return self.window if self.qos else max(1, QOS0_RING_BYTES // packet_size)

    cdef uint64_t _ring_bytes(self, list packets, uint32_t slots):
        if len(packets) == 1:
            return <uint64_t>len(packets[0][0]) * slots
        return sum(len(packet) for packet, _ in packets)

    cdef int _add_fields(self, Connection* c, list fields, uint32_t topic_end, uint32_t payload_end) except -1:
        cdef uint32_t i
        if not fields:
            return 0
        c.fields = <Field*>calloc(len(fields), sizeof(Field))
        if c.fields == NULL:
            raise MemoryError
        for i, (at, kind, _) in enumerate(fields):
            end = at + FIELD_DIGITS[kind]
            if end > payload_end or at < topic_end < end:
                raise ValueError(f"a field needs {FIELD_DIGITS[kind]} digits in topic or payload")
            c.fields[i].at = at
            c.fields[i].kind = kind
            if kind == TEXT_STAMP:
                c.text_stamp_at = at
        c.field_count = len(fields)
        return 0

    cdef int _fill_ring(self, Connection* c, list packets) except -1:
        cdef uint32_t i
        cdef uint64_t at = 0
        cdef bytes packet
        c.ring = <uint8_t*>malloc(<size_t>c.slots * c.packet_size + c.slots)
        if self.qos == 2:
            c.early = <uint8_t*>calloc(c.slots, 1)
        if c.ring == NULL or (self.qos == 2 and c.early == NULL):
            raise MemoryError
        if len(packets) == 1:
            packet = packets[0][0]
            for i in range(c.slots):
                memcpy(c.ring + <size_t>i * c.packet_size, <const uint8_t*>packet, c.packet_size)
            return 0
        c.bodies = <uint32_t*>calloc(c.slots, sizeof(uint32_t))
        c.starts = <uint64_t*>calloc(c.slots + 1, sizeof(uint64_t))
        if c.bodies == NULL or c.starts == NULL:
            raise MemoryError
        for i in range(c.slots):
            packet, head_size = packets[i]
            memcpy(c.ring + at, <const uint8_t*>packet, len(packet))
            c.starts[i] = at
            c.bodies[i] = <uint32_t>at + <uint32_t>head_size
            at += len(packet)
        c.starts[c.slots] = at
        return 0

    # Sending

    cdef void _start_publishers(self) noexcept nogil:
        cdef uint32_t i
        self.kick = False
        if self.rate_per_s:
            return
        for i in range(self.publisher_count):
            self._pump(&self.connections[self.publishers[i]])

    cdef int64_t _due_ns(self, uint64_t index) noexcept nogil:
        """When a paced message is due. The rate rises or falls evenly from the first to the last, then stays."""
        cdef double from_per_s = <double>self.rate_from_per_s, gain
        if not self.ramp_ns:
            return self.paced_from_ns + self._steady_ns(index)
        if index < self.ramp_count:
            gain = (<double>self.rate_per_s - from_per_s) / (self.ramp_ns / 1e9)
            return self.paced_from_ns + <int64_t>(
                (sqrt(from_per_s * from_per_s + 2.0 * gain * <double>index) - from_per_s) / gain * 1e9)
        index -= self.ramp_count
        return self.paced_from_ns + self.ramp_ns + self._steady_ns(index)

    cdef int64_t _steady_ns(self, uint64_t index) noexcept nogil:
        """How long so many messages take. In seconds and a rest, so that no count is too large."""
        cdef uint64_t seconds = index // self.rate_per_s
        return <int64_t>(
            seconds * 1_000_000_000 + (index - seconds * self.rate_per_s) * 1_000_000_000 // self.rate_per_s)

    cdef uint64_t _count_due(self, int64_t at_ns) noexcept nogil:
        """About how many messages are due until then: `_due_ns` the other way round."""
        cdef double seconds = (at_ns - self.paced_from_ns) / 1e9, ramp_s = self.ramp_ns / 1e9
        cdef double from_per_s = <double>self.rate_from_per_s
        if seconds >= ramp_s:
            return self.ramp_count * (ramp_s > 0) + <uint64_t>((seconds - ramp_s) * <double>self.rate_per_s)
        return <uint64_t>(
            seconds * (from_per_s + (<double>self.rate_per_s - from_per_s) * seconds / ramp_s / 2.0))

    cdef uint64_t _unsent(self) noexcept nogil:
        """Messages that were due and not sent: that wait for their publishers, or that we have not come to yet."""
        cdef uint64_t due
        if not self.pacing:
            return self.owed
        due = min(self._count_due(min(now_ns(), self.paced_until_ns)), self.paced + self.remaining)
        return self.owed + (due - self.paced if due > self.paced else 0)

    cdef int64_t _send_due(self) noexcept nogil:
        """Hands every due message to its publisher, in turn; returns when the next one is due."""
        cdef Connection* c
        cdef int64_t due
        cdef uint32_t quota = 4096     # the rest comes after a look at the sockets
        while True:
            due = self._due_ns(self.paced)
            if due > self.paced_until_ns or self.remaining == 0:
                self.pacing = False
                return due
            if due > self.now or quota == 0:
                return due
            c = &self.connections[self.publishers[self.paced % self.publisher_count]]
            self.paced += 1
            self.remaining -= 1
            quota -= 1
            if c.state == READY:
                if due >= self.measure_from_ns:
                    record(&self.send_delay.buckets, now_ns() - due)
                c.owed += 1
                self.owed += 1
                self._pump(c)
            else:
                # The next one of this publisher is due in its own turn.
                c.paced_from -= 1
                self.counters.paced_missed += 1

    cdef void _pump(self, Connection* c) noexcept nogil:
        """Creates what window, pace and count allow, and writes it."""
        if c.state != READY or c.pending_size:
            return
        if c.released != c.received and not self._release(c):
            return
        if c.owed or self.publishing and self.remaining:
            self._create(c)
        self._write(c)

    cdef void _create(self, Connection* c) noexcept nogil:
        cdef uint64_t room = c.acked + c.window - c.created
        cdef uint64_t sequence, i
        cdef uint32_t slot, id_at = c.id_at, stamp_at = c.stamp_at, packet_size = c.packet_size, slots = c.slots
        cdef uint32_t packet_id
        cdef uint8_t* packet
        cdef int64_t stamp
        cdef bint paced = self.rate_per_s != 0
        room = min(room, c.owed if paced else self.remaining)
        if self.lead_max:
            room = min(room, self._lead_left(c))
        if room == 0:
            return
        stamp = now_ns() if stamp_at or c.field_count else 0
        sequence = c.created
        packet_id = <uint32_t>(sequence % IDS) + 1
        slot = c.slot
        packet = c.ring + <size_t>slot * packet_size
        for i in range(room):  # no-cython-lint
            if c.bodies != NULL:
                packet = c.ring + c.bodies[slot]
            if id_at:
                put_u16(packet + id_at, <uint16_t>packet_id)
                packet_id = 1 if packet_id == IDS else packet_id + 1
            if paced and (stamp_at or c.field_count):
                stamp = self._due_ns(
                    (sequence - c.paced_from) * self.publisher_count + (c.number - self.number_base))
            if stamp_at:
                put_u64(packet + stamp_at + 8, sequence)
                put_u64(packet + stamp_at + 16, <uint64_t>stamp)
            if c.field_count:
                self._fill_fields(c, packet, sequence, stamp)
            if c.digits_at:
                put_digits(
                    packet + c.digits_at,
                    <uint64_t>c.number * self.topics_per_publisher + sequence % self.topics_per_publisher)
            sequence += 1
            slot += 1
            packet += packet_size
            if slot == slots:
                slot = 0
                packet = c.ring
        c.slot = slot
        c.created = sequence
        self.outstanding += room
        self.counters.published += room
        if paced:
            c.owed -= room
            self.owed -= room
        else:
            self.remaining -= room

    cdef void _fill_fields(self, Connection* c, uint8_t* packet, uint64_t sequence, int64_t stamp) noexcept nogil:
        cdef uint32_t i
        cdef uint8_t* at
        for i in range(c.field_count):
            at = packet + c.fields[i].at
            if c.fields[i].kind == SEQUENCE:
                put_decimal(at, sequence, COUNTER_DIGITS_C, 48)
            elif c.fields[i].kind == COUNTER:
                put_decimal(at, sequence, COUNTER_DIGITS_C, 32)
            elif c.fields[i].kind == MILLISECONDS:
                put_decimal(at, <uint64_t>((stamp + self.wall_ahead_ns) // 1_000_000), MILLISECOND_DIGITS_C, 48)
            else:
                put_hexadecimal(at, <uint64_t>STAMP_MAGIC_C << 32 | c.number)
                put_hexadecimal(at + 16, sequence)
                put_hexadecimal(at + 32, <uint64_t>stamp)

    cdef void _write(self, Connection* c) noexcept nogil:
        cdef uint64_t end = byte_of(c, c.created), whole
        cdef Py_ssize_t sent
        if c.written_bytes < end:
            if self.is_secure:
                self._write_secure(c, end)
                if c.fd < 0:
                    return
            else:
                sent = write_ring(c.fd, c.ring, self._ring_size(c), c.written_bytes, end)
                if sent < 0:
                    if errno != EAGAIN and errno != EINTR:
                        self._drop(c, errno)
                        return
                    sent = 0
                c.written_bytes += sent
                c.wrote_at_ns = self.now
                self.counters.bytes_sent += sent
            if c.id_at == 0:
                whole = whole_messages(c)
                self.outstanding -= whole - c.acked
                c.acked = whole
        if c.pending_size:
            return
        if c.released != c.received and c.written_bytes == end and not self._release(c):
            return
        # QoS 0 without a pace has always more to send: the socket says when.
        self._ask(c, True, c.written_bytes < end or (
            c.id_at == 0 and (c.owed != 0 or self.rate_per_s == 0 and self.publishing and self.remaining != 0)
            and (self.lead_max == 0 or self._lead_left(c) != 0)))

    cdef size_t _ring_size(self, Connection* c) noexcept nogil:
        return <size_t>c.slots * c.packet_size if c.starts == NULL else c.starts[c.slots]

    cdef void _write_secure(self, Connection* c, uint64_t end) noexcept nogil:
        """With TLS bytes are written once they are encrypted; what the socket does not take is kept."""
        cdef size_t ring_bytes = self._ring_size(c), at, size
        while c.written_bytes < end and c.pending_size == 0 and c.fd >= 0:
            at = c.written_bytes % ring_bytes
            size = min(end - c.written_bytes, ring_bytes - at, <size_t>TLS_RECORD_BYTES)
            c.written_bytes += size
            self._send_bytes(c, c.ring + at, size)

    cdef uint64_t _lead_left(self, Connection* c) noexcept nogil:
        return c.arrived + self.lead_max - c.created if c.created < c.arrived + self.lead_max else 0

    cdef void _move_on(self) noexcept nogil:
        """Lets publishers go on whose messages arrived in the read that is over."""
        cdef uint32_t i
        cdef Connection* c
        for i in range(self.moved_count):
            c = &self.connections[self.moved[i]]
            c.has_moved = 0
            self._pump(c)
        self.moved_count = 0

    cdef void _give_up_lost(self) noexcept nogil:
        """QoS 0 may be dropped: where nothing comes any more, nothing more is waited for."""
        cdef uint32_t i
        cdef Connection* c
        self.looked_at_ns = self.now
        if self.counters.delivered == self.delivered_at_look:
            for i in range(self.publisher_count):
                c = &self.connections[self.publishers[i]]
                c.arrived = c.created
                self._pump(c)
        self.delivered_at_look = self.counters.delivered

    cdef void _sweep(self) noexcept nogil:
        """PINGREQ where nothing was written for half the keep-alive; never inside a half-written packet.

        Looks for those that owe an answer, too.
        """
        cdef uint32_t i
        cdef Connection* c
        cdef uint8_t[2] ping
        ping[0] = 0xC0
        ping[1] = 0
        self.swept_at_ns = self.now
        for i in range(self.count):
            c = &self.connections[i]
            self._look_for_silence(c)
            if c.state != READY or not self.keep_alive_ns or self.now - c.wrote_at_ns < self.keep_alive_ns // 2:
                continue
            if c.pending_size == 0 and (c.kind != PUBLISHER or c.written_bytes == byte_of(c, c.created)):
                self.counters.pings += 1
                if not c.asked_at_ns:
                    c.asked_at_ns = self.now
                    c.is_probing = 1
                if self._send_control(c, ping, 2) and c.kind == PUBLISHER:
                    self._pump(c)

    # Acknowledgements

    cdef Py_ssize_t _count_acks(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Takes the run of PUBACKs at the front of the buffer, each compared with the one that is due.

        The first one out of turn ends the run: the slow way sorts it out.
        """
        cdef Py_ssize_t at = 0
        cdef uint64_t acked = c.acked
        cdef uint64_t sent = whole_messages(c)
        cdef uint32_t expected = <uint32_t>(acked % IDS) + 1
        cdef int64_t clock
        cdef uint64_t i
        if c.early != NULL:
            return 0
        while at + 4 <= size and get_u32(data + at) == (<uint32_t>0x40020000 | expected) and acked < sent:
            at += 4
            acked += 1
            expected = 1 if expected == IDS else expected + 1
        if self.measures_acks and acked > c.acked:
            clock = now_ns()
            for i in range(c.acked, acked):
                self._measure_ack(c, i, clock)
        self.counters.acknowledged += acked - c.acked
        self.outstanding -= acked - c.acked
        c.acked = acked
        return at

    cdef void _measure_ack(self, Connection* c, uint64_t sequence, int64_t clock) noexcept nogil:
        """The slot of an outstanding message still holds its stamp."""
        cdef uint32_t slot = <uint32_t>(sequence % c.slots)
        cdef uint8_t* packet = c.ring + (<size_t>slot * c.packet_size if c.bodies == NULL else c.bodies[slot])
        cdef int64_t stamp
        if c.stamp_at:
            stamp = <int64_t>get_u64(packet + c.stamp_at + 16)
        elif c.text_stamp_at:
            stamp = <int64_t>get_hexadecimal(packet + c.text_stamp_at + 32)
        else:
            return
        if stamp >= self.measure_from_ns:
            record(&self.acknowledgement.buckets, clock - stamp)

    cdef uint64_t _sequence_of(self, Connection* c, uint32_t packet_id) noexcept nogil:
        """The outstanding message with this packet id, or one that was never sent."""
        if packet_id == 0:
            return <uint64_t>-1
        return c.acked + (packet_id - 1 + IDS - c.acked % IDS) % IDS

    cdef bint _on_ack(self, Connection* c, uint32_t packet_id) noexcept nogil:
        """One PUBACK the slow way. [MQTT-4.6.0-2]: PUBACKs come in the order of their PUBLISHes."""
        cdef uint64_t sequence = self._sequence_of(c, packet_id)
        cdef uint32_t slot = <uint32_t>(sequence % c.slots)
        if self.qos != 1 or sequence >= whole_messages(c) or (c.early != NULL and c.early[slot]):
            self.counters.acks_unknown += 1
            return True
        if c.early == NULL and sequence != c.acked:
            c.early = <uint8_t*>calloc(c.slots, 1)
            if c.early == NULL:
                return False
        self._complete(c, sequence)
        return True

    cdef void _complete(self, Connection* c, uint64_t sequence) noexcept nogil:
        """The message was acknowledged to the end; its slot is free once those before it are."""
        cdef uint32_t slot = <uint32_t>(sequence % c.slots)
        if self.measures_acks:
            self._measure_ack(c, sequence, now_ns())
        self.counters.acknowledged += 1
        if sequence != c.acked:
            self.counters.acks_out_of_order += 1
            c.early[slot] |= IS_COMPLETE
            return
        if c.early != NULL:
            c.early[slot] = 0
        while True:
            c.acked += 1
            self.outstanding -= 1
            slot = <uint32_t>(c.acked % c.slots)
            if c.early == NULL or not c.early[slot] & IS_COMPLETE:
                return
            c.early[slot] = 0

    # QoS 2

    cdef bint _on_received(self, Connection* c, uint32_t packet_id, bint is_refused) noexcept nogil:
        """One PUBREC. [MQTT-4.6.0-3]: they come in the order of their PUBLISHes."""
        cdef uint64_t sequence = self._sequence_of(c, packet_id)
        cdef uint32_t slot = <uint32_t>(sequence % c.slots)
        if self.qos != 2 or sequence >= whole_messages(c) or sequence < c.received or c.early[slot] & IS_RECEIVED:
            self.counters.acks_unknown += 1
            return True
        c.early[slot] |= IS_RECEIVED | (IS_REFUSED if is_refused else 0)
        if sequence != c.received:
            self.counters.acks_out_of_order += 1
        while c.received < c.created and c.early[c.received % c.slots] & IS_RECEIVED:
            c.early[c.received % c.slots] &= ~IS_RECEIVED
            c.received += 1
        return True

    cdef bint _is_between_packets(self, Connection* c) noexcept nogil:
        return c.slots == 0 or c.written_bytes == byte_of(c, whole_messages(c))

    cdef bint _release(self, Connection* c) noexcept nogil:
        """Sends PUBRELs that are owed; later inside a half-written packet. False when the socket takes no more."""
        cdef uint8_t[4 * PUBRELS_AT_ONCE] packets
        cdef Py_ssize_t size
        cdef uint32_t slot
        if not self._is_between_packets(c):
            return True
        while c.released != c.received:
            size = 0
            while c.released != c.received and size < 4 * PUBRELS_AT_ONCE:
                slot = <uint32_t>(c.released % c.slots)
                if c.early[slot] & IS_REFUSED:
                    c.early[slot] &= ~IS_REFUSED
                    self._complete(c, c.released)
                else:
                    packets[size] = 0x62
                    packets[size + 1] = 2
                    put_u16(packets + size + 2, <uint16_t>(c.released % IDS + 1))
                    size += 4
                c.released += 1
            if size and not self._send_control(c, packets, size):
                return False
        return True

    cdef bint _on_completed(self, Connection* c, uint32_t packet_id) noexcept nogil:
        """One PUBCOMP."""
        cdef uint64_t sequence = self._sequence_of(c, packet_id)
        if self.qos != 2 or sequence >= c.released or c.early[sequence % c.slots] & IS_COMPLETE:
            self.counters.acks_unknown += 1
            return True
        self._complete(c, sequence)
        return True
