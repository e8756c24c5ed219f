"""The connections of one process to one server: opened at a pace, written to, lost and opened again."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from loadtest.swarm.histogram cimport Histogram, record
from loadtest.swarm.sockets cimport (
    EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT, MSG_NOSIGNAL, close, open_connection, send, watch,
)
from loadtest.swarm.wire cimport FRAME_HEADER_BYTES, PACKET_BYTES_LARGEST, READ_BYTES, keep, put_frame_header

import errno as _errno

cdef enum:
    QOS0_SEND_BUFFER_BYTES = 128 * 1024
    CREDIT_LARGEST = 64     # so many changes at once when the loop was late

# What ended a connection, by number. Others have the name of their errno.
END_NAMES = {
    0: "closed",
    NO_ANSWER: "no_answer",
    SILENT: "silent",
    NO_PROTOCOL: "protocol",
    NO_SECURITY: "tls",
    NOT_LET_IN: "refused",
    SENT_AWAY: "disconnected",
    NO_MEMORY: "memory",
}

assert ENDS_LARGEST <= 256


def end_name(int number):
    """The kind of end that a number stands for, as reports have it."""
    return END_NAMES.get(number) or _errno.errorcode.get(number, str(number))


cdef class Connections:
    """An array of connections, and what is done with them whatever they carry."""

    def __cinit__(self):
        self.epoll = self.timer = self.wakeup = -1
        self.packets = []
        self.connection = Histogram()
        self.subscription = Histogram()
        self.reconnection = Histogram()
        self.framed = <uint8_t*>malloc(FRAME_HEADER_BYTES + PACKET_BYTES_LARGEST + READ_BYTES)
        if self.framed == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t i
        cdef Connection* c
        for i in range(self.count):
            c = &self.connections[i]
            if c.fd >= 0:
                close(c.fd)
            free(c.pending)
            free(c.partial)
            free(c.ring)
            free(c.bodies)
            free(c.starts)
            free(c.fields)
            free(c.early)
            free(c.expected)
            free(c.held_ids)
        free(self.connections)
        free(self.lost)
        free(self.sources)
        free(self.framed)
        for fd in (self.epoll, self.timer, self.wakeup):
            if fd >= 0:
                close(fd)

    cdef Connection* _new(self, int kind, bytes greeting) except NULL:
        cdef Connection* grown
        cdef Connection* c
        if self.count == self.capacity:
            grown = <Connection*>realloc(self.connections, (self.capacity * 2 + 64) * sizeof(Connection))
            if grown == NULL:
                raise MemoryError
            self.connections = grown
            self.capacity = self.capacity * 2 + 64
        c = &self.connections[self.count]
        memset(c, 0, sizeof(Connection))
        c.fd = -1
        c.kind = kind
        c.reading = 1
        c.greeting = <const uint8_t*>greeting
        c.greeting_size = len(greeting)
        self.packets.append(greeting)
        self.count += 1
        self.unsettled += 1
        return c

    # Opening

    cdef bint _open_due(self) noexcept nogil:
        """Opens connections that are due; True while some are still to be opened."""
        cdef uint32_t due = self.opening_from + 1 + <uint32_t>min(
            <double>self.count, (self.now - self.open_from_ns) / 1e9 * self.open_rate_per_s)
        while self.next_to_open < self.count and self.next_to_open < due and self.in_progress < self.in_progress_max:
            self._open(self.next_to_open)
            self.next_to_open += 1
        return self.next_to_open < self.count

    cdef void _reopen_due(self) noexcept nogil:
        """Connects again those that lost their connection, at the pace of `connect`."""
        cdef uint32_t index
        self.reopen_credit = min(
            self.reopen_credit + (self.now - self.reopened_at_ns) / 1e9 * self.open_rate_per_s, <double>CREDIT_LARGEST)
        self.reopened_at_ns = self.now
        while self.lost_count and self.reopen_credit >= 1.0 and self.in_progress < self.in_progress_max:
            index = self.lost[self.lost_first]
            if self.now - self.connections[index].lost_at_ns < self.return_after_ns:
                return
            self.lost_first = (self.lost_first + 1) % self.lost_capacity
            self.lost_count -= 1
            self.reopen_credit -= 1.0
            self._open(index)

    cdef bint _may_reopen(self, Connection* c) noexcept nogil:
        """Puts a lost connection in line to be made again, unless it is one that does not come back."""
        cdef uint32_t i
        cdef uint32_t* grown
        if not self.returns and (self.port_count < 2 or c.kind == PUBLISHER):
            return False
        if self.lost_capacity < self.count:
            grown = <uint32_t*>malloc(self.count * sizeof(uint32_t))
            if grown == NULL:
                return False
            for i in range(self.lost_count):
                grown[i] = self.lost[(self.lost_first + i) % self.lost_capacity]
            free(self.lost)
            self.lost = grown
            self.lost_first = 0
            self.lost_capacity = self.count
        self.lost[(self.lost_first + self.lost_count) % self.lost_capacity] = <uint32_t>(c - self.connections)
        self.lost_count += 1
        c.port_index = <uint8_t>((c.port_index + 1) % self.port_count)
        c.state = NEW
        c.reading = 1
        c.events_out = 0
        c.pending_size = c.partial_size = 0
        c.frame_left = c.frame_header_size = 0
        c.resubscribing = c.is_probing = 0
        c.asked_at_ns = 0
        if not c.lost_at_ns:
            c.lost_at_ns = self.now
        if self.forgets:
            c.has_been_away = 1
            free(c.expected)
            c.expected = NULL
        if c.kind == PUBLISHER:
            # What was not acknowledged is abandoned, and counted so.
            c.acked = c.received = c.released = c.whole = c.created
            c.written_bytes = byte_of(c, c.created)
            if c.early != NULL:
                memset(c.early, 0, c.slots)
        self.unsettled += 1
        return True

    cdef void _open(self, uint32_t index) noexcept nogil:
        cdef Connection* c = &self.connections[index]
        cdef uint32_t source = self.sources[index % self.source_count] if self.source_count else 0
        cdef int fd = open_connection(
            self.host, self.ports[c.port_index], source,
            QOS0_SEND_BUFFER_BYTES if c.kind == PUBLISHER and self.qos == 0 else 0)
        self.counters.opened += 1
        self.in_progress += 1
        c.state = OPENING
        c.began_at_ns = c.asked_at_ns = self.now
        if fd < 0:
            self._drop(c, -fd)
            return
        c.fd = fd
        c.events_out = 1
        if watch(self.epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT, index) < 0:
            self._drop(c, errno)

    cdef void _on_opened(self, Connection* c) noexcept nogil:
        """TCP is there: says hello in whatever comes first."""
        if not self.is_secure:
            self._on_secured(c)
            return
        c.state = SECURING
        if self.secure.begin(<uint32_t>(c - self.connections)) < 0:
            self._drop(c, NO_SECURITY)
            return
        self._send_raw(c, self.secure.output_data, self.secure.output_size)

    cdef void _on_secured(self, Connection* c) noexcept nogil:
        if self.is_websocket:
            c.state = UPGRADING
            self._send_bytes(c, self.upgrade_data, self.upgrade_size)
            return
        c.state = GREETED
        self._send_control(c, c.greeting, c.greeting_size)

    cdef void _on_ready(self, Connection* c) noexcept nogil:
        c.state = READY
        c.asked_at_ns = 0
        self.counters.connected += 1
        if c.lost_at_ns:
            self.counters.reconnected += 1
            record(&self.reconnection.buckets, self.now - c.lost_at_ns)
            c.lost_at_ns = 0
        self.ready += 1
        self.unsettled -= 1
        self.in_progress -= 1

    # Ending

    cdef void _drop(self, Connection* c, int reason) noexcept nogil:
        """The connection is over: failed when it was not ready yet, else lost."""
        cdef bint was_ready = c.state == READY
        if c.state == GONE:
            return
        if was_ready:
            self.counters.lost += 1
            self.lost_by[reason & 255] += 1
            self.ready -= 1
        else:
            self.counters.failed += 1
            self.failed_by[reason & 255] += 1
            self.unsettled -= 1
            self.in_progress -= 1
        self.last_error = reason if reason < NO_ANSWER else 0
        if c.kind == PUBLISHER:
            self.counters.abandoned += c.created - c.acked
            self.outstanding -= c.created - c.acked
            # What was due and could not be made is not made up for.
            self.counters.paced_missed += c.owed
            c.paced_from -= c.owed
            self.owed -= c.owed
            c.owed = 0
        c.state = GONE
        if self.is_secure:
            self.secure.end(<uint32_t>(c - self.connections))
        if c.fd >= 0:
            close(c.fd)
            c.fd = -1
        # One that was never let in is not asked again.
        if was_ready or c.lost_at_ns:
            self._may_reopen(c)

    cdef void _refuse(self, Connection* c, int code) noexcept nogil:
        """The server said no, with a reason code."""
        self.counters.refused += 1
        self.refused_by[code & 255] += 1
        self.last_refusal = code
        self._drop(c, NOT_LET_IN)

    cdef void _look_for_silence(self, Connection* c) noexcept nogil:
        """Gives up a connection whose server owes an answer, or an acknowledgement, for too long."""
        if not self.answer_timeout_ns or c.state == NEW or c.state == GONE:
            return
        if c.acked_at_look != c.acked or c.created == c.acked:
            c.acked_at_look = c.acked
            c.stuck_at_ns = self.now
        if c.asked_at_ns and self.now - c.asked_at_ns > self.answer_timeout_ns or (
                c.state == READY and c.created != c.acked and self.now - c.stuck_at_ns > self.answer_timeout_ns):
            self._drop(c, SILENT if c.state == READY else NO_ANSWER)

    # Coming and going

    cdef void _change_due(self) noexcept nogil:
        """Has connections leave, and subscriptions made anew, at their paces and in turn."""
        cdef double passed_s = (self.now - self.changed_at_ns) / 1e9
        cdef uint32_t looked
        cdef Connection* c
        self.changed_at_ns = self.now
        self.leave_credit = min(self.leave_credit + passed_s * self.leave_per_s, <double>CREDIT_LARGEST)
        looked = 0
        while self.leave_credit >= 1.0 and looked < self.count:
            c = &self.connections[self.next_to_leave]
            self.next_to_leave = (self.next_to_leave + 1) % self.count
            looked += 1
            if c.kind != PUBLISHER and self._may_change(c):
                self.leave_credit -= 1.0
                self._leave(c)
        self.resubscribe_credit = min(
            self.resubscribe_credit + passed_s * self.resubscribe_per_s, <double>CREDIT_LARGEST)
        looked = 0
        while self.resubscribe_credit >= 1.0 and looked < self.count:
            c = &self.connections[self.next_to_resubscribe]
            self.next_to_resubscribe = (self.next_to_resubscribe + 1) % self.count
            looked += 1
            if c.kind == SUBSCRIBER and c.unsubscribe_size and self._may_change(c):
                self.resubscribe_credit -= 1.0
                c.resubscribing = 1
                c.asked_at_ns = self.now
                self._send_control(c, c.unsubscribe, c.unsubscribe_size)

    cdef bint _may_change(self, Connection* c) noexcept nogil:
        return c.state == READY and c.resubscribing == 0 and c.pending_size == 0

    cdef void _leave(self, Connection* c) noexcept nogil:
        """Goes away, and comes back after `return_after_ns`."""
        if not self.leaves_rudely:
            self._say_good_bye(c)
        self.counters.left += 1
        self.ready -= 1
        c.state = GONE
        if self.is_secure:
            self.secure.end(<uint32_t>(c - self.connections))
        close(c.fd)
        c.fd = -1
        self._may_reopen(c)

    cdef void _say_good_bye(self, Connection* c) noexcept nogil:
        """DISCONNECT, as far as the socket takes it at once."""
        cdef uint8_t[2] packet
        packet[0] = 0xE0
        packet[1] = 0
        cdef const uint8_t* data = packet
        cdef Py_ssize_t size = 2
        if self.is_websocket:
            size = put_frame_header(self.framed, 2)
            memcpy(self.framed + size, packet, 2)
            data = self.framed
            size += 2
        if self.is_secure:
            if self.secure.encrypt(<uint32_t>(c - self.connections), data, size) < 0:
                return
            data = self.secure.output_data
            size = self.secure.output_size
        send(c.fd, data, size, MSG_NOSIGNAL)

    # Writing

    cdef void _ask(self, Connection* c, bint reading, bint writing) noexcept nogil:
        if c.fd < 0 or (c.reading == reading and c.events_out == writing):
            return
        c.reading = reading
        c.events_out = writing
        watch(self.epoll, EPOLL_CTL_MOD, c.fd, (EPOLLIN if reading else 0) | (EPOLLOUT if writing else 0),
              <uint32_t>(c - self.connections))

    cdef bint _send_control(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Sends this packet or these, for which nothing may be kept; keeps what the socket does not take.

        False when something is kept now, or the connection is over.
        """
        cdef uint32_t header_size
        if self.is_websocket:
            header_size = put_frame_header(self.framed, size)
            memcpy(self.framed + header_size, data, size)
            return self._send_bytes(c, self.framed, header_size + size)
        return self._send_bytes(c, data, size)

    cdef bint _send_bytes(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        if not self.is_secure:
            return self._send_raw(c, data, size)
        if self.secure.encrypt(<uint32_t>(c - self.connections), data, size) < 0:
            self._drop(c, NO_SECURITY)
            return False
        return self._send_raw(c, self.secure.output_data, self.secure.output_size)

    cdef bint _send_raw(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Sends these bytes, or with NULL those that are kept. A subscriber is not read until all are gone."""
        cdef Py_ssize_t sent
        if data == NULL:
            data = c.pending
            size = c.pending_size
        sent = send(c.fd, data, size, MSG_NOSIGNAL)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                self._drop(c, errno)
                return False
            sent = 0
        self.counters.bytes_sent += sent
        c.wrote_at_ns = self.now
        if not keep(&c.pending, &c.pending_capacity, &c.pending_size, data + sent, size - sent):
            self._drop(c, NO_MEMORY)
            return False
        self._ask(c, c.pending_size == 0 or c.kind == PUBLISHER, c.pending_size != 0)
        return c.pending_size == 0
