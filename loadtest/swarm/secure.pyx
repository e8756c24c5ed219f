"""TLS of many connections: Python's ssl with bytes in memory, the engine keeps the sockets.

A read or write of a connection with TLS takes the interpreter's lock and some microseconds; everything without TLS
stays free of both.
"""

from libc.stdint cimport uint8_t, uint32_t

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

import ssl


cdef class Secure:
    """The TLS sides of connections by number. Several contexts, each with a certificate, are used in turn."""

    def __init__(self, contexts, server_name=None):
        self.contexts = list(contexts)
        self.server_name = server_name
        self.streams = {}
        self.last_error = ""

    cdef int begin(self, uint32_t index) noexcept with gil:
        """A new connection: leaves the first bytes of the handshake."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = self.contexts[index % <uint32_t>len(self.contexts)]
        stream = context.wrap_bio(incoming, outgoing, server_hostname=self.server_name)
        self.streams[index] = (stream, incoming, outgoing)
        return self.shake(index)

    cdef int shake(self, uint32_t index) noexcept with gil:
        """One step of the handshake: 1 when it is done, 0 when more bytes have to come."""
        stream, _, outgoing = self.streams[index]
        cdef int is_done = 1
        try:
            stream.do_handshake()
        except ssl.SSLWantReadError:
            is_done = 0
        except ssl.SSLError as error:
            self.last_error = str(error)
            is_done = -1
        self.output = outgoing.read()
        self.output_data = self.output
        self.output_size = len(self.output)
        return is_done

    cdef Py_ssize_t decrypt(self, uint32_t index, const uint8_t* data, Py_ssize_t size, uint8_t* target,
                            Py_ssize_t capacity) noexcept with gil:
        """Takes bytes from the server and leaves their text in `target`; returns its size, -2 at its end."""
        stream, incoming, _ = self.streams[index]
        cdef Py_ssize_t filled = 0
        incoming.write(PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ))
        self.output_size = 0
        if stream.version() is None:
            return 0
        try:
            while filled < capacity and (incoming.pending or stream.pending()):
                filled += stream.read(
                    capacity - filled, PyMemoryView_FromMemory(<char*>target + filled, capacity - filled, PyBUF_WRITE))
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return filled or -2
        except ssl.SSLError as error:
            self.last_error = str(error)
            return -1
        return filled

    cdef int encrypt(self, uint32_t index, const uint8_t* data, Py_ssize_t size) noexcept with gil:
        """Leaves the bytes for the server that carry this text."""
        stream, _, outgoing = self.streams[index]
        cdef Py_ssize_t at = 0
        try:
            while at < size:
                at += stream.write(PyMemoryView_FromMemory(<char*>data + at, size - at, PyBUF_READ))
        except ssl.SSLError as error:
            self.last_error = str(error)
            return -1
        self.output = outgoing.read()
        self.output_data = self.output
        self.output_size = len(self.output)
        return 0

    cdef void end(self, uint32_t index) noexcept with gil:
        """The connection is over."""
        self.streams.pop(index, None)
