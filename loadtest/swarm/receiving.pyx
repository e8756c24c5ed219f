"""Everything that servers send: frames, packets, and the messages that subscribers follow."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from iotmq.message.records.layout cimport get_u16, get_u32, get_u64, put_u16

from loadtest.swarm.connections cimport (
    GREETED, NO_MEMORY, NO_PROTOCOL, NO_SECURITY, OPENING, PUBLISHER, READY, SECURING, SENT_AWAY, SUBSCRIBER,
    SUBSCRIBING, UPGRADING, Connection,
)
from loadtest.swarm.histogram cimport Histogram, record
from loadtest.swarm.publishing cimport STAMP_BYTES_C, STAMP_MAGIC_C
from loadtest.swarm.sockets cimport (
    EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, bit_count, memmem, now_ns, recv, socket_error,
)
from loadtest.swarm.wire cimport (
    PACKET_BYTES_LARGEST, READ_BYTES, get_hexadecimal, keep, packet_length, past_properties, receive_maximum,
)

cdef enum:
    READS_PER_EVENT = 4
    HEADERS_BYTES_LARGEST = 8 * 1024


cdef class Receiving(Publishing):
    """Connections that are read: what comes is answered, checked and counted."""

    def __cinit__(self):
        self.delivery = Histogram()
        self.buffer = <uint8_t*>malloc(PACKET_BYTES_LARGEST + READ_BYTES)
        self.acks = <uint8_t*>malloc(PACKET_BYTES_LARGEST + READ_BYTES)
        self.sealed = <uint8_t*>malloc(READ_BYTES)
        if self.buffer == NULL or self.acks == NULL or self.sealed == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.buffer)
        free(self.acks)
        free(self.sealed)
        free(self.ledgers)

    cdef void _on_event(self, Connection* c, uint32_t events) noexcept nogil:
        cdef int reason
        if c.fd < 0:
            return
        if c.state == OPENING:
            reason = socket_error(c.fd)
            if reason:
                self._drop(c, reason)
            elif events & EPOLLOUT:
                self._on_opened(c)
            return
        if c.pending_size and events & (EPOLLERR | EPOLLHUP):
            self._drop(c, socket_error(c.fd))
            return
        if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
            self._read(c)
        if events & EPOLLOUT and c.fd >= 0:
            if c.pending_size and not self._send_raw(c, NULL, 0):
                return
            if c.kind == PUBLISHER and c.state == READY:
                self._pump(c)
            else:
                self._ask(c, True, False)

    cdef void _read(self, Connection* c) noexcept nogil:
        cdef Py_ssize_t got, held, size, used
        cdef int rounds
        for rounds in range(READS_PER_EVENT):  # no-cython-lint
            held = c.partial_size
            if held:
                memcpy(self.buffer, c.partial, held)
            got = recv(c.fd, self.sealed if self.is_secure else self.buffer + held, READ_BYTES, 0)
            if got < 0:
                if errno != EAGAIN and errno != EINTR:
                    self._drop(c, errno)
                return
            if got == 0:
                self._drop(c, 0)
                return
            self.counters.bytes_received += got
            self.acks_size = 0
            size = held + got
            if self.is_secure:
                size = self._unseal(c, held, got)
                if size == held:
                    return
            if self.is_websocket:
                size = self._unframe(c, held, size)
                if c.fd < 0 or size == 0 and c.state == UPGRADING:
                    return
            used = self._parse(c, size) if size >= 0 else -1
            if c.fd < 0:
                return
            if used < 0:
                self.counters.protocol_errors += 1
                self._drop(c, NO_PROTOCOL)
                return
            if held or used < size:
                if not keep(&c.partial, &c.partial_capacity, &c.partial_size, self.buffer + used, size - used):
                    self._drop(c, NO_MEMORY)
                    return
            if self.acks_size and not self._send_control(c, self.acks, self.acks_size):
                return
            if c.kind == PUBLISHER:
                self._pump(c)
                return
            if self.moved_count:
                self._move_on()
            if got < READ_BYTES:
                return

    cdef Py_ssize_t _unseal(self, Connection* c, Py_ssize_t at, Py_ssize_t got) noexcept nogil:
        """Leaves the text of what was read in the buffer, from `at` on, and returns where it ends."""
        cdef uint32_t index = <uint32_t>(c - self.connections)
        cdef Py_ssize_t size = self.secure.decrypt(index, self.sealed, got, self.buffer + at, READ_BYTES)
        cdef int is_done
        if size == -2:
            self._drop(c, 0)
        elif size < 0:
            self._drop(c, NO_SECURITY)
        elif c.state == SECURING:
            is_done = self.secure.shake(index)
            # An alert tells the server why, too.
            if self.secure.output_size and not self._send_raw(c, self.secure.output_data, self.secure.output_size):
                return at
            if is_done < 0:
                self._drop(c, NO_SECURITY)
            elif is_done:
                self._on_secured(c)
        return at + size if size > 0 and c.fd >= 0 else at

    cdef Py_ssize_t _unframe(self, Connection* c, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
        """Leaves packets without frames in the buffer, from `at` on, and returns where they end; -1 for no
        WebSocket."""
        cdef uint8_t* data = self.buffer
        cdef Py_ssize_t end = at, part
        cdef uint32_t needed
        if c.state == UPGRADING:
            at = self._past_upgrade(data, size)
            if at <= 0:
                # The whole answer is needed; none of it is packets.
                return -1 if at < 0 or not keep(
                    &c.partial, &c.partial_capacity, &c.partial_size, data, size) else 0
            end = 0
            c.partial_size = 0
            c.state = GREETED
            self._send_control(c, c.greeting, c.greeting_size)
            if c.fd < 0:
                return 0
        while at < size:
            if c.frame_left:
                part = min(size - at, <Py_ssize_t>c.frame_left)
                if c.frame_opcode <= 2:
                    memmove(data + end, data + at, part)
                    end += part
                at += part
                c.frame_left -= part
                continue
            c.frame_header[c.frame_header_size] = data[at]
            c.frame_header_size += 1
            at += 1
            if c.frame_header_size < 2:
                continue
            needed = 4 if c.frame_header[1] == 126 else 10 if c.frame_header[1] == 127 else 2
            if c.frame_header_size < needed:
                continue
            c.frame_header_size = 0
            c.frame_opcode = c.frame_header[0] & 0x0F
            if c.frame_opcode == 8:
                self._drop(c, 0)
                return 0
            if c.frame_header[1] & 0x80 or c.frame_opcode not in (0, 2, 9, 10):
                return -1
            c.frame_left = (
                get_u16(c.frame_header + 2) if needed == 4
                else get_u64(c.frame_header + 2) if needed == 10
                else c.frame_header[1]
            )
        return end

    cdef Py_ssize_t _past_upgrade(self, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Where the answer that grants a WebSocket ends; 0 when it is not all there, -1 when it is another answer."""
        cdef Py_ssize_t at
        if size >= 12 and memcmp(data, b"HTTP/1.1 101", 12):
            return -1
        for at in range(0, size - 3):
            if get_u32(data + at) == 0x0D0A0D0A:
                return at + 4
        return -1 if size > HEADERS_BYTES_LARGEST else 0

    cdef Py_ssize_t _parse(self, Connection* c, Py_ssize_t size) noexcept nogil:
        """Handles the whole packets in the buffer; returns the bytes they took, -1 for what is no MQTT."""
        cdef const uint8_t* data = self.buffer
        cdef Py_ssize_t at = 0, length, header = 0
        cdef int64_t clock = 0
        if c.kind == PUBLISHER and c.id_at and c.state == READY:
            at = self._count_acks(c, data, size)
        elif c.kind == SUBSCRIBER:
            clock = now_ns()
        if c.state == GREETED and size and data[0] != 0x20:
            # Not to be waited for until it has the length that it seems to have.
            return -1
        while at < size:
            length = packet_length(data + at, size - at, &header)
            if length < 0:
                return -1
            if length == 0 or length > size - at:
                break
            if data[at] >> 4 == 3:
                if not self._on_publish(c, data + at, length, header, clock):
                    return -1
            elif not self._on_packet(c, data + at, length, header):
                return -1
            if c.fd < 0:
                return at
            at += length
        return at

    cdef bint _on_packet(self, Connection* c, const uint8_t* packet, Py_ssize_t length,
                         Py_ssize_t header) noexcept nogil:
        """Anything but PUBLISH; False for what a server may not send here."""
        cdef int kind = packet[0]
        cdef int code
        if kind == 0x20:
            return self._on_connack(c, packet, length, header)
        if c.state != SUBSCRIBING and c.state != READY:
            return False
        if kind == 0xD0 and length == 2:
            if c.is_probing:
                c.is_probing = 0
                c.asked_at_ns = 0
            return True
        if kind == 0x90 and length >= 5:
            return self._on_suback(c, packet[length - 1])
        if kind == 0xB0 and length >= 4 and c.resubscribing == 1:
            c.resubscribing = 2
            c.asked_at_ns = self.now
            if c.pending_size:
                self._drop(c, NO_PROTOCOL)
            else:
                self._send_control(c, c.subscribe, c.subscribe_size)
            return True
        if kind == 0xE0 and self.is_v5:
            code = packet[header] if length > header else 0
            self.refused_by[code] += 1
            self.last_refusal = code
            self._drop(c, SENT_AWAY)
            return True
        if length != 4 and not (self.is_v5 and length > 4):
            return False
        code = packet[header + 2] if length > 4 else 0
        if code >= 0x80:
            self.counters.acks_refused += 1
            self.counters.refused += 1
            self.refused_by[code] += 1
            self.last_refusal = code
        if kind == 0x62 and c.kind == SUBSCRIBER:
            return self._on_released(c, get_u16(packet + header))
        if c.kind != PUBLISHER or c.state != READY:
            return False
        if kind == 0x40:
            return self._on_ack(c, get_u16(packet + header))
        if kind == 0x50:
            return self._on_received(c, get_u16(packet + header), code >= 0x80)
        return kind == 0x70 and self._on_completed(c, get_u16(packet + header))

    cdef bint _on_connack(self, Connection* c, const uint8_t* packet, Py_ssize_t length,
                          Py_ssize_t header) noexcept nogil:
        cdef bint has_session
        if c.state != GREETED or length < header + 3 and (self.is_v5 or length != 4):
            return False
        if packet[header + 1]:
            self._refuse(c, packet[header + 1])
            return True
        record(&self.connection.buckets, self.now - c.began_at_ns)
        has_session = packet[header] & 1
        # Of a session that was kept nobody says what was granted.
        c.granted_qos = 2
        if c.kind == PUBLISHER and c.id_at and self.is_v5:
            c.window = min(self.window, receive_maximum(packet, header + 2, length))
        if not has_session and c.held_bytes:
            memset(c.held_ids, 0, c.held_bytes)
        if c.kind == SUBSCRIBER and not has_session:
            c.state = SUBSCRIBING
            c.asked_at_ns = self.now
            self._send_control(c, c.subscribe, c.subscribe_size)
        else:
            self.counters.resumed += has_session
            self._on_ready(c)
        return True

    cdef bint _on_suback(self, Connection* c, int code) noexcept nogil:
        if c.state != SUBSCRIBING and c.resubscribing != 2:
            return False
        if code >= 0x80:
            self._refuse(c, code)
            return True
        c.granted_qos = code
        record(&self.subscription.buckets, self.now - c.asked_at_ns)
        if c.state == SUBSCRIBING:
            self._on_ready(c)
        else:
            # What it had so far says nothing about what comes now.
            c.has_been_away = 1
            free(c.expected)
            c.expected = NULL
            c.resubscribing = 0
            c.asked_at_ns = 0
            self.counters.resubscribed += 1
        return True

    # Messages

    cdef bint _on_publish(self, Connection* c, const uint8_t* packet, Py_ssize_t length, Py_ssize_t header,
                          int64_t clock) noexcept nogil:
        cdef int qos = packet[0] >> 1 & 3
        cdef Py_ssize_t payload_at = header + 2
        if c.kind != SUBSCRIBER or c.state < SUBSCRIBING or qos > c.granted_qos or payload_at > length:
            return False
        payload_at += get_u16(packet + header)
        if qos:
            payload_at += 2
        if payload_at > length:
            return False
        if qos:
            self._answer(0x40 if qos == 1 else 0x50, packet + payload_at - 2)
            self.counters.deliveries_acknowledged += 1
            if qos == 2 and not self._is_new(c, get_u16(packet + payload_at - 2)):
                self.counters.redelivered += 1
                return True
        if self.is_v5:
            payload_at = past_properties(packet, payload_at, length)
            if payload_at > length:
                return False
        self.counters.delivered += 1
        self.counters.delivered_payload_bytes += length - payload_at
        return self._follow_message(c, packet + payload_at, length - payload_at, clock)

    cdef void _answer(self, int kind, const uint8_t* packet_id) noexcept nogil:
        self.acks[self.acks_size] = kind
        self.acks[self.acks_size + 1] = 2
        memcpy(self.acks + self.acks_size + 2, packet_id, 2)
        self.acks_size += 4

    cdef bint _is_new(self, Connection* c, uint32_t packet_id) noexcept nogil:
        """Whether a message of QoS 2 is not one that waits for its PUBREL; it does from now on."""
        cdef uint32_t needed = packet_id // 8 + 1
        cdef uint8_t* grown
        if needed > c.held_bytes:
            grown = <uint8_t*>realloc(c.held_ids, needed + needed // 2)
            if grown == NULL:
                return True
            memset(grown + c.held_bytes, 0, needed + needed // 2 - c.held_bytes)
            c.held_ids = grown
            c.held_bytes = needed + needed // 2
        if c.held_ids[packet_id // 8] & 1 << packet_id % 8:
            return False
        c.held_ids[packet_id // 8] |= 1 << packet_id % 8
        return True

    cdef bint _on_released(self, Connection* c, uint32_t packet_id) noexcept nogil:
        """PUBREL: its id may be used for another message."""
        cdef uint8_t[2] number
        if packet_id // 8 < c.held_bytes:
            c.held_ids[packet_id // 8] &= ~(1 << packet_id % 8)
        put_u16(number, <uint16_t>packet_id)
        self._answer(0x70, number)
        return True

    cdef bint _follow_message(self, Connection* c, const uint8_t* payload, Py_ssize_t size,
                              int64_t clock) noexcept nogil:
        """Reads the stamp of a message, measures how long it took, and sees whether one is missing."""
        cdef uint32_t publisher
        cdef uint64_t sequence
        cdef int64_t stamp
        cdef Connection* from_us
        if size >= STAMP_BYTES_C and get_u32(payload) == STAMP_MAGIC_C:
            publisher = get_u32(payload + 4)
            sequence = get_u64(payload + 8)
            stamp = <int64_t>get_u64(payload + 16)
        else:
            payload = self._text_stamp(payload, size)
            if payload == NULL:
                self.counters.delivered_unstamped += 1
                return True
            publisher = <uint32_t>get_hexadecimal(payload)
            sequence = get_hexadecimal(payload + 16)
            stamp = <int64_t>get_hexadecimal(payload + 32)
        if stamp >= self.measure_from_ns:
            record(&self.delivery.buckets, clock - stamp)
        if self.lead_max and 0 <= <int64_t>publisher - self.number_base < self.publisher_count:
            from_us = &self.connections[self.publishers[publisher - self.number_base]]
            if sequence >= from_us.arrived and sequence < from_us.created:
                from_us.arrived = sequence + 1
                if not from_us.has_moved:
                    from_us.has_moved = 1
                    self.moved[self.moved_count] = self.publishers[publisher - self.number_base]
                    self.moved_count += 1
        if self.topics_per_publisher > 1:
            return self._follow_own_topic(c, publisher, sequence, stamp)
        if publisher >= self.publishers_tracked:
            return True
        if c.group:
            self._follow_shared(c.group - 1, publisher, sequence, stamp)
            return True
        return self._follow_publisher(c, publisher, sequence, stamp)

    cdef const uint8_t* _text_stamp(self, const uint8_t* payload, Py_ssize_t size) noexcept nogil:
        """Where a stamp of hexadecimal digits is; NULL when there is none."""
        cdef const uint8_t* found
        if not self.has_text_stamps:
            return NULL
        found = <const uint8_t*>memmem(payload, size, b"53574d31", 8)
        return found if found != NULL and payload + size - found >= 2 * STAMP_BYTES_C else NULL

    cdef bint _follow_publisher(self, Connection* c, uint32_t publisher, uint64_t sequence,
                                int64_t stamp) noexcept nogil:
        if c.resubscribing:
            return True
        if c.expected == NULL:
            if <uint64_t>8 * self.publishers_tracked * self.subscriber_count > <uint64_t>TRACKED_BYTES_LARGEST:
                return True
            c.expected = <uint64_t*>calloc(self.publishers_tracked, 8)
            if c.expected == NULL:
                return False
            if c.has_been_away:
                memset(c.expected, 0xFF, <size_t>8 * self.publishers_tracked)
        self._follow(&c.expected[publisher], sequence, stamp)
        return True

    cdef bint _follow_own_topic(self, Connection* c, uint32_t publisher, uint64_t sequence,
                                int64_t stamp) noexcept nogil:
        if c.resubscribing:
            return True
        if <uint64_t>publisher * self.topics_per_publisher + sequence % self.topics_per_publisher != c.number:
            self.counters.misdelivered += 1
            return True
        if c.expected == NULL:
            c.expected = <uint64_t*>calloc(1, 8)
            if c.expected == NULL:
                return False
            if c.has_been_away:
                c.expected[0] = <uint64_t>-1
        self._follow(c.expected, sequence // self.topics_per_publisher, stamp)
        return True

    cdef void _follow(self, uint64_t* expected, uint64_t sequence, int64_t stamp) noexcept nogil:
        if expected[0] == <uint64_t>-1:
            expected[0] = sequence + 1
        elif sequence < expected[0]:
            self._note_repeat(stamp)
        else:
            self.counters.sequence_gaps += sequence - expected[0]
            expected[0] = sequence + 1

    cdef void _note_repeat(self, int64_t stamp) noexcept nogil:
        self.counters.sequence_repeats += 1
        if not self.oldest_repeat_ns or stamp < self.oldest_repeat_ns:
            self.oldest_repeat_ns = stamp

    # Shared subscriptions: every message comes to one of the group, in any order among them

    cdef void _follow_shared(self, uint32_t group, uint32_t publisher, uint64_t sequence,
                             int64_t stamp) noexcept nogil:
        cdef Ledger* ledger
        cdef uint64_t count = <uint64_t>self.group_count * self.publishers_tracked
        cdef uint64_t bit, settled
        if self.ledgers == NULL:
            if count * sizeof(Ledger) > <uint64_t>TRACKED_BYTES_LARGEST:
                return
            self.ledgers = <Ledger*>calloc(count, sizeof(Ledger))
            if self.ledgers == NULL:
                return
        ledger = &self.ledgers[<uint64_t>group * self.publishers_tracked + publisher]
        if sequence >= ledger.base + 2 * LEDGER_BITS:
            # Far ahead: all that is missing below is settled at once.
            settled = (sequence - LEDGER_BITS) // 64 * 64 + 64
            self.counters.sequence_gaps += settled - ledger.base
            for bit in range(LEDGER_WORDS):
                self.counters.sequence_gaps -= bit_count(ledger.seen[bit])
                ledger.seen[bit] = 0
            ledger.base = settled
        while sequence >= ledger.base + LEDGER_BITS:
            bit = ledger.base // 64 % LEDGER_WORDS
            self.counters.sequence_gaps += 64 - bit_count(ledger.seen[bit])
            ledger.seen[bit] = 0
            ledger.base += 64
        bit = <uint64_t>1 << sequence % 64
        if sequence < ledger.base or ledger.seen[sequence // 64 % LEDGER_WORDS] & bit:
            self._note_repeat(stamp)
            return
        ledger.seen[sequence // 64 % LEDGER_WORDS] |= bit
        ledger.end = max(ledger.end, sequence + 1)

    cdef uint64_t _open_gaps(self) noexcept nogil:
        """Messages that no member of its group has, though a later one came."""
        cdef uint64_t gaps = 0, i, word, count = <uint64_t>self.group_count * self.publishers_tracked
        if self.ledgers == NULL:
            return 0
        for i in range(count):
            gaps += self.ledgers[i].end - self.ledgers[i].base
            for word in range(LEDGER_WORDS):
                gaps -= bit_count(self.ledgers[i].seen[word])
        return gaps
