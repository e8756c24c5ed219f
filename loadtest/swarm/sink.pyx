"""The opposite end of the load engine: the cheapest server that keeps a swarm busy.

It tells how fast the engine itself is, and stands in for a server in tests.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from cpython.exc cimport PyErr_CheckSignals

from iotmq.message.records.layout cimport get_u16, put_u16, put_u32

from loadtest.swarm.sockets cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT,
    MSG_NOSIGNAL, SOCK_CLOEXEC, SOCK_NONBLOCK, accept4, close, epoll_create1, epoll_event, epoll_wait, eventfd,
    now_ns, recv, send, wait_writable, watch, write,
)
from loadtest.swarm.wire cimport (
    EVENTS_PER_TURN, PACKET_BYTES_LARGEST, READ_BYTES, TIMER_TOKEN, WAKE_TOKEN, keep, packet_length,
)

import os
import socket as _socket

cdef enum:
    SINK_FDS = 65_536
    ACCEPTS_AT_ONCE = 64

cdef struct SinkConnection:
    uint8_t state              # 0 unused, 1 open
    uint8_t subscriber
    uint8_t is_v5
    uint8_t events_out
    uint8_t* partial
    uint32_t partial_size
    uint32_t partial_capacity
    uint8_t* pending
    uint32_t pending_size
    uint32_t pending_capacity


cdef class Sink:
    """A server that accepts everything and keeps nothing, for measuring the engine and for tests.

    It answers CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ and PUBLISH, and discards payloads. With ``relay`` each
    PUBLISH goes to every subscriber as it came, whatever its filter and packet id. Listens on 127.0.0.1.
    ``run`` blocks with the interpreter lock released; ``stop`` comes from another thread.
    """
    cdef readonly int port
    cdef object listener
    cdef int listener_fd
    cdef int epoll
    cdef int wakeup
    cdef bint relay
    cdef SinkConnection* table         # by file descriptor
    cdef int* subscribers
    cdef int subscriber_count
    cdef uint8_t* buffer
    cdef uint8_t* answers
    cdef Py_ssize_t answers_size
    cdef readonly uint64_t connects
    cdef readonly uint64_t messages
    cdef readonly uint64_t protocol_errors
    cdef bint stopping

    def __cinit__(self):
        self.epoll = self.wakeup = -1

    def __init__(self, port=0, *, relay=False):
        if self.epoll >= 0:
            raise RuntimeError("a sink is initialised once")
        self.listener = _socket.create_server(("127.0.0.1", port), backlog=1024)
        self.listener.setblocking(False)
        self.listener_fd = self.listener.fileno()
        self.port = self.listener.getsockname()[1]
        self.relay = relay
        self.table = <SinkConnection*>calloc(SINK_FDS, sizeof(SinkConnection))
        self.subscribers = <int*>calloc(SINK_FDS, sizeof(int))
        self.buffer = <uint8_t*>malloc(PACKET_BYTES_LARGEST + READ_BYTES)
        self.answers = <uint8_t*>malloc(PACKET_BYTES_LARGEST + READ_BYTES)
        if self.table == NULL or self.subscribers == NULL or self.buffer == NULL or self.answers == NULL:
            raise MemoryError
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.epoll < 0 or self.wakeup < 0:
            raise OSError(errno, os.strerror(errno))
        watch(self.epoll, EPOLL_CTL_ADD, self.listener_fd, EPOLLIN, TIMER_TOKEN)
        watch(self.epoll, EPOLL_CTL_ADD, self.wakeup, EPOLLIN, WAKE_TOKEN)

    def __dealloc__(self):
        cdef int fd
        if self.table != NULL:
            for fd in range(SINK_FDS):
                if self.table[fd].state:
                    close(fd)
                free(self.table[fd].partial)
                free(self.table[fd].pending)
        free(self.table)
        free(self.subscribers)
        free(self.buffer)
        free(self.answers)
        if self.epoll >= 0:
            close(self.epoll)
        if self.wakeup >= 0:
            close(self.wakeup)

    def run(self):
        """Serves until ``stop``; signals are looked for ten times a second."""
        cdef bint over = False
        while not over:
            with nogil:
                over = self._serve()
            PyErr_CheckSignals()
        cdef int fd
        for fd in range(SINK_FDS):
            if self.table[fd].state:
                self._drop(fd)
        self.listener.close()

    def stop(self):
        """Ends ``run``, which closes every connection."""
        cdef uint64_t one = 1
        self.stopping = True
        write(self.wakeup, &one, 8)

    cdef bint _serve(self) noexcept nogil:
        """True when stopped, False ten times a second."""
        cdef epoll_event[512] events
        cdef int64_t until = now_ns() + 100_000_000
        cdef int got, i
        cdef uint64_t token
        while now_ns() < until:
            got = epoll_wait(self.epoll, events, EVENTS_PER_TURN, 100)
            if self.stopping:
                return True
            for i in range(got):
                token = events[i].data.u64
                if token < SINK_FDS:
                    if self.table[token].state == 0:
                        continue
                    if events[i].events & EPOLLOUT:
                        self._answer(<int>token, NULL, 0)
                    elif events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                        self._read(<int>token)
                elif token == TIMER_TOKEN:
                    self._accept()
        return False

    cdef void _accept(self) noexcept nogil:
        """Lets in those that wait, some at a time."""
        cdef int fd, _
        for _ in range(ACCEPTS_AT_ONCE):
            fd = accept4(self.listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if fd < 0:
                return
            if fd >= SINK_FDS or watch(self.epoll, EPOLL_CTL_ADD, fd, EPOLLIN, fd) < 0:
                close(fd)
                continue
            self.table[fd].state = 1
            self.table[fd].subscriber = 0
            self.table[fd].events_out = 0
            self.table[fd].partial_size = 0
            self.table[fd].pending_size = 0

    cdef void _drop(self, int fd) noexcept nogil:
        self.table[fd].state = 0
        self._unsubscribe(fd)
        close(fd)

    cdef void _unsubscribe(self, int fd) noexcept nogil:
        cdef int i
        if not self.table[fd].subscriber:
            return
        self.table[fd].subscriber = 0
        for i in range(self.subscriber_count):
            if self.subscribers[i] == fd:
                self.subscriber_count -= 1
                self.subscribers[i] = self.subscribers[self.subscriber_count]
                return

    cdef void _answer(self, int fd, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Sends; what the socket does not take is kept, and nothing more is read until it is gone."""
        cdef SinkConnection* c = &self.table[fd]
        cdef Py_ssize_t sent
        if data == NULL:
            data = c.pending
            size = c.pending_size
        sent = send(fd, data, size, MSG_NOSIGNAL)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                self._drop(fd)
                return
            sent = 0
        if not keep(&c.pending, &c.pending_capacity, &c.pending_size, data + sent, size - sent):
            self._drop(fd)
            return
        if c.events_out != (c.pending_size != 0):
            c.events_out = c.pending_size != 0
            watch(self.epoll, EPOLL_CTL_MOD, fd, EPOLLOUT if c.events_out else EPOLLIN, fd)

    cdef void _relay(self, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Hands whole packets to every subscriber and waits for slow ones: the sink has no queues."""
        cdef int i = 0, fd
        cdef Py_ssize_t at, sent
        while i < self.subscriber_count:
            fd = self.subscribers[i]
            at = 0
            while at < size and not self.stopping:
                sent = send(fd, data + at, size - at, MSG_NOSIGNAL)
                if sent >= 0:
                    at += sent
                elif errno == EAGAIN:
                    wait_writable(fd, 100)
                elif errno != EINTR:
                    break
            if at < size:
                self._drop(fd)
                continue
            i += 1

    cdef void _read(self, int fd) noexcept nogil:
        cdef SinkConnection* c = &self.table[fd]
        cdef Py_ssize_t held = c.partial_size, got, size, used
        if held:
            memcpy(self.buffer, c.partial, held)
        got = recv(fd, self.buffer + held, READ_BYTES, 0)
        if got <= 0:
            if got == 0 or (errno != EAGAIN and errno != EINTR):
                self._drop(fd)
            return
        size = held + got
        self.answers_size = 0
        used = self._parse(fd, size)
        if c.state == 0:
            return
        if used < 0:
            self.protocol_errors += 1
            self._drop(fd)
            return
        if held or used < size:
            if not keep(&c.partial, &c.partial_capacity, &c.partial_size, self.buffer + used, size - used):
                self._drop(fd)
                return
        if self.answers_size:
            self._answer(fd, self.answers, self.answers_size)

    cdef Py_ssize_t _parse(self, int fd, Py_ssize_t size) noexcept nogil:
        cdef const uint8_t* data = self.buffer
        cdef const uint8_t* packet
        cdef Py_ssize_t at = 0, length, header = 0, id_at, publish_from = -1
        while at < size:
            packet = data + at
            length = packet_length(packet, size - at, &header)
            if length < 0:
                return -1
            if length == 0 or length > size - at:
                break
            if packet[0] >> 4 == 3:
                if header + 2 > length:
                    return -1
                if publish_from < 0:
                    publish_from = at
                self.messages += 1
                if packet[0] & 6:
                    id_at = header + 2 + get_u16(packet + header)
                    if id_at + 2 > length:
                        return -1
                    self._put(0x40 if packet[0] & 2 else 0x50, packet + id_at)
            else:
                if publish_from >= 0 and self.relay:
                    self._relay(data + publish_from, at - publish_from)
                publish_from = -1
                if not self._on_packet(fd, packet, length, header):
                    return -1
                if self.table[fd].state == 0:
                    return at
            at += length
        if publish_from >= 0 and self.relay:
            self._relay(data + publish_from, at - publish_from)
        return at

    cdef void _put(self, int kind, const uint8_t* packet_id) noexcept nogil:
        self.answers[self.answers_size] = kind
        self.answers[self.answers_size + 1] = 2
        memcpy(self.answers + self.answers_size + 2, packet_id, 2)
        self.answers_size += 4

    cdef bint _on_packet(self, int fd, const uint8_t* packet, Py_ssize_t length, Py_ssize_t header) noexcept nogil:
        """Anything but PUBLISH; False for what a client may not send."""
        cdef int kind = packet[0] >> 4
        cdef uint8_t* answer = self.answers + self.answers_size
        cdef int extra = 1 if self.table[fd].is_v5 else 0
        if kind == 1 and length >= header + 10:
            self.connects += 1
            self.table[fd].is_v5 = packet[header + 6] == 5
            put_u32(answer, 0x20030000 if self.table[fd].is_v5 else 0x20020000)
            answer[4] = 0
            self.answers_size += 5 if self.table[fd].is_v5 else 4
        elif kind == 8 and length >= 6:
            # One filter a SUBSCRIBE; its QoS is granted as asked for.
            self._put(0x90, packet + header)
            answer[1] = 3 + extra
            answer[4] = 0
            answer[4 + extra] = packet[length - 1] & 3
            self.answers_size += 1 + extra
            if not self.table[fd].subscriber:
                self.table[fd].subscriber = 1
                self.subscribers[self.subscriber_count] = fd
                self.subscriber_count += 1
        elif kind == 10 and length >= 6:
            self._unsubscribe(fd)
            self._put(0xB0, packet + header)
            if extra:
                answer[1] = 4
                answer[4] = answer[5] = 0
                self.answers_size += 2
        elif kind == 12:
            put_u16(answer, 0xD000)
            self.answers_size += 2
        elif kind == 14:
            self._drop(fd)
        elif kind == 5 and length >= 4:
            self._put(0x62, packet + header)
        elif kind == 6 and length >= 4:
            self._put(0x70, packet + header)
        elif kind != 4 and kind != 7:
            return False
        return True
