"""Connections without WebSockets, read and written here instead of in the event loop; by TLS: `tls_link.pyx`.

Operations: accept, a recv for each readable connection and turn, a send for each that is answered, wait for room in
a socket that is full. Goals: no Python call and no system call that asyncio's interface would need beside those; an
idle connection costs as little as can be. Plan: one epoll descriptor of the front end's own, which the loop watches
as one file; whatever is readable in a turn is read in one callback. A device whose reading stops until the end of the
turn stays in epoll: only when the kernel names it meanwhile is it taken out.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM, EPERM, EPROTO, errno
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcpy, strerror

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, append, release
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.connection.device_calls cimport DeviceLink

import logging
import os
import socket

from iotmq.supervised import FAILURES

cdef extern from "<sys/epoll.h>" nogil:
    int epoll_create1(int flags)
    int epoll_ctl(int descriptor, int operation, int other, epoll_event* event)
    int epoll_wait(int descriptor, epoll_event* events, int count, int timeout_ms)
    int EPOLL_CLOEXEC
    enum:
        EPOLL_CTL_ADD
        EPOLL_CTL_DEL
        EPOLL_CTL_MOD

cdef extern from "<sys/socket.h>" nogil:
    ctypedef uint32_t socklen_t
    cdef struct sockaddr:
        pass
    cdef struct sockaddr_storage:
        uint16_t ss_family
    int accept4(int descriptor, sockaddr* address, socklen_t* size, int flags)
    int getpeername(int descriptor, sockaddr* address, socklen_t* size)
    Py_ssize_t recv(int descriptor, void* data, size_t size, int flags)
    Py_ssize_t send(int descriptor, const void* data, size_t size, int flags)
    enum:
        SOCK_NONBLOCK
        SOCK_CLOEXEC
        MSG_NOSIGNAL
        AF_INET
        AF_INET6

cdef extern from "<arpa/inet.h>" nogil:
    cdef struct in_addr:
        pass
    cdef struct in6_addr:
        pass
    cdef struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr
    cdef struct sockaddr_in6:
        in6_addr sin6_addr
    const char* inet_ntop(int family, const void* source, char* target, socklen_t size)
    uint16_t ntohs(uint16_t number)
    enum:
        INET6_ADDRSTRLEN

cdef extern from "<unistd.h>" nogil:
    int close_descriptor "close"(int descriptor)

cdef enum:
    ACCEPTS_MAX = 8             # connections accepted in one, some 20 us each: a message takes three turns
    # Of what the kernel did not take: past the first a device is told to stop writing, below the second to go on.
    UNSENT_BYTES_HIGH = 65536
    UNSENT_BYTES_LOW = 16384

cdef double _ACCEPT_PAUSE_S = 1.0

logger = logging.getLogger("iotmq.mqtt")


cdef object _host_of(const sockaddr_storage* address):
    """Return the IP address as text; None for another kind."""
    cdef char[INET6_ADDRSTRLEN] text
    if address.ss_family == AF_INET:
        inet_ntop(AF_INET, &(<const sockaddr_in*>address).sin_addr, text, INET6_ADDRSTRLEN)
    elif address.ss_family == AF_INET6:
        inet_ntop(AF_INET6, &(<const sockaddr_in6*>address).sin6_addr, text, INET6_ADDRSTRLEN)
    else:
        return None
    return text.decode()


cdef bint _peer_of(int descriptor, sockaddr_storage* address) noexcept:
    cdef socklen_t size = sizeof(address[0])
    return getpeername(descriptor, <sockaddr*>address, &size) == 0


cdef class Sockets:
    """The plain listeners of one front end, and its connections that are not the event loop's."""

    def __cinit__(self):
        self._epoll = -1

    def __init__(self, loop not None):
        self._loop = loop
        self._listeners = []
        self._unread = []

    def __dealloc__(self):
        if self._epoll >= 0:
            close_descriptor(self._epoll)

    @property
    def count(self):
        """Connections that are open."""
        return self._count

    def listen(self, listener not None, make_device not None, is_turned_away=None):
        """Accept at a listening socket that does not block; each connection gets a device made by `make_device`.

        `is_turned_away` says of an address, None at a Unix socket, whether its connection is closed before that.
        """
        self._begin()
        self._listeners.append(listener)
        self._loop.add_reader(listener.fileno(), self._accept, listener, make_device, is_turned_away)

    def close(self):
        """Accept nothing more; what is open stays."""
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        self._end_if_over()

    cdef int _begin(self) except -1:
        if self._epoll < 0:
            self._epoll = epoll_create1(EPOLL_CLOEXEC)
            if self._epoll < 0:
                raise OSError(errno, strerror(errno).decode())
            self._loop.add_reader(self._epoll, self._ready)
        return 0

    cdef int _end_if_over(self) except -1:
        if not self._count and not self._listeners and self._epoll >= 0:
            self._loop.remove_reader(self._epoll)
            close_descriptor(self._epoll)
            self._epoll = -1
        return 0

    def _accept(self, listener, make_device, is_turned_away):
        cdef sockaddr_storage address
        cdef socklen_t size
        cdef int descriptor
        cdef int accepting = listener.fileno()
        for _ in range(ACCEPTS_MAX):
            size = sizeof(address)
            descriptor = accept4(accepting, <sockaddr*>&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
            if descriptor >= 0:
                try:
                    if is_turned_away is not None and is_turned_away(_host_of(&address)):
                        close_descriptor(descriptor)
                        continue
                except Exception:
                    FAILURES.note("accepted connections")
                    close_descriptor(descriptor)
                    continue
                try:
                    self._take(descriptor, make_device)
                except Exception:
                    FAILURES.note("accepted connections")
            elif errno in (EINTR, ECONNABORTED, EPERM, EPROTO):
                continue                # it has gone again
            elif errno in (EMFILE, ENFILE, ENOBUFS, ENOMEM):
                logger.error("connections cannot be accepted", extra={"detail": strerror(errno).decode()})
                self._loop.remove_reader(accepting)
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again, listener, make_device, is_turned_away)
                return
            else:
                return

    cdef int _take(self, int descriptor, make_device) except -1:
        """Give a device to a connection that was accepted; without one it is closed."""
        cdef SocketLink link
        try:
            link = SocketLink(self, make_device())
        except BaseException:
            close_descriptor(descriptor)
            raise
        return link._open(descriptor)

    def _accept_again(self, listener, make_device, is_turned_away):
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener, make_device, is_turned_away)

    def _ready(self):
        cdef int index
        cdef SocketLink link
        # No link ends in here, where the next event may be its: that is always said in a callback of its own.
        for index in range(epoll_wait(self._epoll, self._events, EVENTS_MAX, 0)):
            link = <SocketLink>self._events[index].data.ptr
            try:
                link._happened(self._events[index].events)
            except Exception:
                FAILURES.note("connections of devices")
                link.abort()

    cdef int _read_again(self, SocketLink link) except -1:
        """Read from a link in the next turn without waiting for the kernel: it has bytes that came already."""
        if not self._unread:
            self._loop.call_soon(self._read_unread)
        self._unread.append(link)
        return 0

    def _read_unread(self):
        cdef SocketLink link
        unread = self._unread
        self._unread = []
        for link in unread:
            try:
                if link._has_unread and link._is_reading:
                    link._read()
            except Exception:
                FAILURES.note("connections of devices")
                link.abort()


cdef class SocketLink(DeviceLink):
    """One connection: a Device's transport, with the methods of asyncio's that it calls."""

    def __cinit__(self):
        self._descriptor = -1

    def __init__(self, Sockets sockets not None, Device device):
        self._sockets = sockets
        self._device = device

    def __dealloc__(self):
        free(self._unsent.data)
        if self._descriptor >= 0:
            close_descriptor(self._descriptor)

    cdef int _hold(self, int descriptor) except -1:
        """The descriptor is this link's from now on."""
        self._descriptor = descriptor
        # For epoll, which names it by its address; taken back by `_lost`.
        Py_INCREF(self)
        self._sockets._count += 1
        return 0

    cdef int _open(self, int descriptor) except -1:
        self._hold(descriptor)
        self._is_reading = True
        try:
            self._device.connection_made(self)
            if not self._is_closing:
                self._watch(EPOLLIN)
        except BaseException:
            self.abort()
            raise
        return 0

    # For the device

    cdef int take(self, ByteBuffer* output) except -1:
        """Send, and keep what the kernel does not take; without effect on a connection that is closing."""
        cdef Py_ssize_t sent
        if self._is_closing:
            release(output)
            return 0
        if self._unsent.size:
            self._keep(output)
            release(output)
        else:
            sent = self._send(output.data, output.size)
            if sent == output.size:
                release(output)
                return 0
            if sent < 0 and sent != -EAGAIN and sent != -EINTR:
                self._fail(<int>-sent)
                release(output)
                return 0
            free(self._unsent.data)
            self._unsent = output[0]
            self._unsent.start = <uint32_t>max(sent, 0)
            output[0] = ByteBuffer(NULL, 0, 0, 0)
        self._watch(self._watched | EPOLLOUT)
        if not self._is_full and self._unsent.size - self._unsent.start > UNSENT_BYTES_HIGH:
            self._is_full = True
            self._device.pause_writing()
        return 0

    def pause_reading(self):
        """Read nothing more until `resume_reading`."""
        self._is_reading = False

    def resume_reading(self):
        """Read again; without effect on a connection that is closing."""
        if not self._is_closing:
            self._is_reading = True
            if not self._watched & EPOLLIN:
                self._watch(self._watched | EPOLLIN)
            if self._has_unread:
                self._sockets._read_again(self)

    def is_reading(self):
        return bool(self._is_reading)

    def is_closing(self):
        return bool(self._is_closing)

    def close(self):
        """Read nothing more, send what is unsent, and close; the device hears of it then."""
        if not self._is_closing:
            self._is_closing = True
            self._is_reading = False
            if self._unsent.size:
                self._watch(EPOLLOUT)
            else:
                self._part()
                self._end(None)

    def abort(self):
        """Close at once."""
        self._is_closing = True
        self._end(None)

    def get_write_buffer_size(self):
        """Bytes the kernel has not taken yet."""
        return self._unsent.size - self._unsent.start

    @property
    def buffer_bytes(self):
        """Memory held for these bytes."""
        return self._unsent.capacity

    def get_extra_info(self, name, default=None):
        """Return the address for "peername" or "sockname", as asyncio's transports do."""
        cdef sockaddr_storage address
        if self._descriptor < 0 or name not in ("peername", "sockname"):
            return default
        if name == "peername" and _peer_of(self._descriptor, &address) and address.ss_family == AF_INET:
            return _host_of(&address), ntohs((<sockaddr_in*>&address).sin_port)
        with socket.socket(fileno=os.dup(self._descriptor)) as copy:
            try:
                return copy.getpeername() if name == "peername" else copy.getsockname()
            except OSError:
                return default

    # For epoll

    cdef int _happened(self, uint32_t events) except -1:
        if events & EPOLLOUT and self._unsent.size:
            self._send_more()
        if events & ~<uint32_t>EPOLLOUT:
            if self._is_reading:
                self._read()
            elif not self._is_over:
                # It has more, or is gone: that is seen when it is read again. Or somebody writes to it.
                self._watch(self._watched & EPOLLOUT)
        return 0

    cdef int _read(self) except -1:
        cdef Device device = self._device
        cdef Py_ssize_t size = self._receive(device.group._input_data, device.read_bytes_max())
        if size > 0:
            device.received(<uint32_t>size)
            if self._has_unread and self._is_reading:
                self._sockets._read_again(self)
        elif size == 0:
            device.eof_received()
            self.close()
        elif size != -EAGAIN and size != -EINTR:
            self._fail(<int>-size)
        return 0

    # What is different with TLS

    cdef Py_ssize_t _receive(self, uint8_t* data, Py_ssize_t size) except? -1:
        """Read what has come: the number of bytes, 0 at the end, or the negative number of an error."""
        cdef Py_ssize_t got = recv(self._descriptor, data, size, 0)
        return got if got >= 0 else -errno

    cdef Py_ssize_t _send(self, const uint8_t* data, Py_ssize_t size) except? -1:
        """Send what the kernel takes, and return likewise."""
        cdef Py_ssize_t sent = send(self._descriptor, data, size, MSG_NOSIGNAL)
        return sent if sent >= 0 else -errno

    cdef int _part(self) except -1:
        """Say goodbye, when everything is sent."""
        return 0

    cdef int _keep(self, const ByteBuffer* output) except -1:
        """Put output behind what is unsent, in the place of what was sent when there is at least as much of that."""
        cdef ByteBuffer* unsent = &self._unsent
        if unsent.start >= unsent.size - unsent.start:
            # Never more is moved than was sent since the last time.
            unsent.size -= unsent.start
            memcpy(unsent.data, unsent.data + unsent.start, unsent.size)
            unsent.start = 0
        return append(unsent, output.data, output.size)

    cdef int _send_more(self) except -1:
        cdef ByteBuffer* unsent = &self._unsent
        cdef Py_ssize_t sent = self._send(unsent.data + unsent.start, unsent.size - unsent.start)
        if sent < 0:
            return 0 if sent == -EAGAIN or sent == -EINTR else self._fail(<int>-sent)
        unsent.start += <uint32_t>sent
        if unsent.start == unsent.size:
            release(unsent)
            if self._is_closing:
                self._part()
                return self._end(None)
            self._watch(self._watched & ~<uint32_t>EPOLLOUT)
        if self._is_full and unsent.size - unsent.start <= UNSENT_BYTES_LOW:
            self._is_full = False
            if not self._is_closing:
                self._device.resume_writing()
        return 0

    cdef int _watch(self, uint32_t events) except -1:
        """Have epoll name the socket for these events, and for nothing at all when there are none."""
        cdef epoll_event wanted
        cdef int operation = EPOLL_CTL_MOD
        if events == self._watched or self._descriptor < 0:
            return 0
        if not self._watched:
            operation = EPOLL_CTL_ADD
        elif not events:
            operation = EPOLL_CTL_DEL
        wanted.events = events
        wanted.data.ptr = <void*>self
        if epoll_ctl(self._sockets._epoll, operation, self._descriptor, &wanted) < 0:
            raise OSError(errno, strerror(errno).decode())
        self._watched = events
        return 0

    cdef int _fail(self, int problem) except -1:
        """A call of the kernel has failed: the connection is lost."""
        self._is_closing = True
        return self._end(OSError(problem, strerror(problem).decode()))

    cdef int _end(self, error) except -1:
        if not self._is_over:
            self._is_over = True
            self._is_reading = False
            release(&self._unsent)
            self._watch(0)
            self._sockets._loop.call_soon(self._lost, error)
        return 0

    def _lost(self, error):
        cdef Device device = self._device
        cdef Sockets sockets = self._sockets
        self._device = None
        close_descriptor(self._descriptor)
        self._descriptor = -1
        sockets._count -= 1
        Py_DECREF(self)
        try:
            if device is not None:
                device.connection_lost(error)
        finally:
            sockets._end_if_over()
