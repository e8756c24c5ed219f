"""Connections by TLS whose records OpenSSL reads from the socket and writes to it, with nothing in between.

Operations: a step of a handshake, a read for each readable connection and turn, a write for each that is answered.
Goals: no transport, no buffer and no Python object beside the link and OpenSSL's own; no Python call for what is
read or written. Plan: Python's ssl makes the connection of OpenSSL and shakes hands, because it knows names (SNI),
certificates and errors; then OpenSSL's own functions take over, from the library that Python's ssl uses. OpenSSL
reads ahead: a link has to look whether bytes are left in there, of which the kernel does not tell any more.
Where Python keeps the connection in a place that is not known, `can_shake_hands` says no.
"""

from cpython.ref cimport PyObject
from libc.errno cimport EAGAIN, ECONNRESET, EPROTO, errno
from libc.limits cimport INT_MAX
from libc.stdint cimport uint8_t, uint32_t

from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.listen.sockets cimport EPOLLIN, EPOLLOUT, SocketLink, Sockets

import ssl
import sys

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* name, int flags)
    void* dlsym(void* library, const char* name)
    int RTLD_NOW

cdef enum:
    ERROR_WANT_READ = 2         # what SSL_get_error returns
    ERROR_WANT_WRITE = 3
    ERROR_SYSCALL = 5
    ERROR_ZERO_RETURN = 6
    FULL_READ_BYTES = 16000     # with a read of about a record the kernel may have more
    RECEIVED_SHUTDOWN = 2       # for SSL_set_shutdown: nothing more is taken
    SET_MESSAGE_ARGUMENT = 16   # for SSL_ctrl
    RECORD_HEADER = 256         # of those that a message callback gets
    READS_MAX = 256             # of a link in one go, one for each record: a microsecond each
    # Without data, such as requests for other keys, in one go: 20 us each. OpenSSL would go on as long as they come.
    IDLE_RECORDS_MAX = 32

# Of OpenSSL; SSL and SSL_CTX are opaque here.
ctypedef int (*OfConnection)(void* connection) noexcept nogil
ctypedef void (*VoidOfConnection)(void* connection) noexcept nogil
ctypedef void (*SetNumber)(void* connection, int number) noexcept nogil
ctypedef int (*Read)(void* connection, void* data, int size) noexcept nogil
ctypedef int (*Write)(void* connection, const void* data, int size) noexcept nogil
ctypedef int (*GetError)(const void* connection, int result) noexcept nogil
ctypedef void (*ClearErrors)() noexcept nogil
ctypedef void (*Message)(
    int is_written, int version, int kind, const void* data, size_t size, void* connection, void* argument
) noexcept
ctypedef void (*SetMessage)(void* connection, Message callback) noexcept nogil
ctypedef long (*Control)(void* connection, int command, long number, void* argument) noexcept nogil

cdef Read ssl_read = NULL
cdef Write ssl_write = NULL
cdef GetError ssl_get_error = NULL
cdef OfConnection ssl_has_pending = NULL
cdef OfConnection ssl_shutdown = NULL
cdef OfConnection ssl_up_ref = NULL
cdef VoidOfConnection ssl_free = NULL
cdef SetNumber ssl_set_read_ahead = NULL
cdef SetNumber ssl_set_shutdown = NULL
cdef SetMessage ssl_set_msg_callback = NULL
cdef Control ssl_ctrl = NULL
cdef ClearErrors err_clear_error = NULL

# Before which Python's connections are known to look as they are taken to.
_PYTHON_UNKNOWN = (3, 15)
# Where Python's object of a connection has OpenSSL's, behind a reference to the socket; its context is behind that.
cdef Py_ssize_t _PLACE = object.__basicsize__ + sizeof(void*)
_is_possible = None


cdef inline void* _word(object holder, Py_ssize_t place):
    return (<void**>(<char*><PyObject*>holder + place))[0]


def can_shake_hands():
    """Return whether OpenSSL can be called as Python's ssl does it."""
    global _is_possible
    if _is_possible is None:
        _is_possible = _find_functions() and _is_place_known()
    return _is_possible


cdef bint _find_functions():
    global ssl_read, ssl_write, ssl_get_error, ssl_has_pending, ssl_shutdown, ssl_up_ref, ssl_free
    global ssl_set_read_ahead, ssl_set_shutdown, ssl_set_msg_callback, ssl_ctrl, err_clear_error
    cdef void* library
    import _ssl
    name = getattr(_ssl, "__file__", None)
    if name is None or sys.implementation.name != "cpython" or sys.version_info >= _PYTHON_UNKNOWN:
        return False
    library = dlopen(name.encode(), RTLD_NOW)
    if library == NULL:
        return False
    ssl_read = <Read>dlsym(library, "SSL_read")
    ssl_write = <Write>dlsym(library, "SSL_write")
    ssl_get_error = <GetError>dlsym(library, "SSL_get_error")
    ssl_has_pending = <OfConnection>dlsym(library, "SSL_has_pending")
    ssl_shutdown = <OfConnection>dlsym(library, "SSL_shutdown")
    ssl_up_ref = <OfConnection>dlsym(library, "SSL_up_ref")
    ssl_free = <VoidOfConnection>dlsym(library, "SSL_free")
    ssl_set_read_ahead = <SetNumber>dlsym(library, "SSL_set_read_ahead")
    ssl_set_shutdown = <SetNumber>dlsym(library, "SSL_set_shutdown")
    ssl_set_msg_callback = <SetMessage>dlsym(library, "SSL_set_msg_callback")
    ssl_ctrl = <Control>dlsym(library, "SSL_ctrl")
    err_clear_error = <ClearErrors>dlsym(library, "ERR_clear_error")
    return (
        ssl_read != NULL and ssl_write != NULL and ssl_get_error != NULL and ssl_has_pending != NULL
        and ssl_shutdown != NULL and ssl_up_ref != NULL and ssl_free != NULL and ssl_set_read_ahead != NULL
        and ssl_set_shutdown != NULL and ssl_set_msg_callback != NULL and ssl_ctrl != NULL and err_clear_error != NULL
    )


cdef bint _is_place_known():
    """Look at a connection that nobody uses: its context is where it is expected, and there is something before it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    connection = context._wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    if connection.__sizeof__() < _PLACE + 2 * <Py_ssize_t>sizeof(void*):
        return False
    return _word(connection, _PLACE + sizeof(void*)) == <void*><PyObject*>context and _word(connection, _PLACE) != NULL


cdef void _count_record(
    int is_written, int version, int kind, const void* data, size_t size, void* connection, void* argument
) noexcept:
    """Have a read end when all that has come is records without data."""
    cdef TlsLink link = <TlsLink>argument
    if kind == RECORD_HEADER and not is_written:
        link._idle_records += 1
        if link._idle_records > IDLE_RECORDS_MAX:
            ssl_set_shutdown(connection, RECEIVED_SHUTDOWN)


cdef class TlsLink(SocketLink):
    """One connection: shakes hands by `step`, then is the transport of the device that `set_protocol` gives it.

    OpenSSL's handshake asks for `context` to be changed when the device names a host.
    """

    cdef void* _ssl                     # of OpenSSL; NULL once it is freed
    cdef object _python                 # Python's object of the connection, until the handshake is over
    cdef object _connection             # Python's socket, likewise
    cdef object _ready                  # called with the link when the next step can be taken
    cdef object __weakref__
    cdef uint8_t _is_broken             # OpenSSL has failed, and is not to be asked for anything any more
    cdef uint8_t _is_waiting            # for the device, whose part of the handshake is next
    cdef uint8_t _read_awaits_room      # a read has to send something first
    cdef uint8_t _idle_records          # that have come in this read, and brought nothing

    def __init__(self, Sockets sockets not None, connection not None, context not None, ready not None):
        """`connection` is a socket that was accepted; it belongs to the link when the handshake is over, or failed."""
        SocketLink.__init__(self, sockets, None)
        self._connection = connection
        self._ready = ready
        self._python = context._wrap_socket(connection, True, owner=self)
        self._ssl = _word(self._python, _PLACE)
        ssl_up_ref(self._ssl)
        ssl_set_read_ahead(self._ssl, 1)
        sockets._begin()
        self._hold(connection.fileno())

    def __dealloc__(self):
        if self._ssl != NULL:
            ssl_free(self._ssl)

    @property
    def context(self):
        return self._python.context

    @context.setter
    def context(self, context):
        self._python.context = context

    # The handshake

    def step(self):
        """Go on with the handshake; True when it is done. OSError, or ValueError, says why it has failed."""
        try:
            self._python.do_handshake()
        except ssl.SSLWantReadError:
            self._is_waiting = True
            self._watch(EPOLLIN)
            return False
        except ssl.SSLWantWriteError:
            self._is_waiting = True
            self._watch(EPOLLOUT)
            return False
        except BaseException:
            self._is_broken = True
            raise
        return True

    def set_protocol(self, Device device not None):
        """The handshake is done, and the connection is the device's, which is to be told so."""
        self._device = device
        self._is_reading = not self._is_closing
        self._release()
        if self._is_reading:
            ssl_ctrl(self._ssl, SET_MESSAGE_ARGUMENT, 0, <void*>self)
            ssl_set_msg_callback(self._ssl, _count_record)
            self._watch(EPOLLIN)
            # The handshake may have brought along what comes behind it.
            self._has_unread = True
            self._sockets._read_again(self)

    def get_extra_info(self, name, default=None):
        """Return "ssl_object" and "peercert" too, as long as there is no device."""
        if self._python is not None:
            if name == "ssl_object":
                return self._python
            if name == "peercert":
                return self._python.getpeercert()
        return SocketLink.get_extra_info(self, name, default)

    cdef int _release(self) except -1:
        """Python's objects are not needed any more; the socket is the link's own."""
        if self._connection is not None:
            self._connection.detach()
        self._python = self._connection = self._ready = None
        return 0

    def _lost(self, error):
        self._release()
        ssl_free(self._ssl)
        self._ssl = NULL
        SocketLink._lost(self, error)

    # For epoll

    cdef int _happened(self, uint32_t events) except -1:
        if self._device is None:
            # While it waits for its turn the kernel goes on saying that there is something.
            if self._is_waiting and not self._is_over:
                self._is_waiting = False
                self._ready(self)
            return 0
        if self._read_awaits_room and events & EPOLLOUT:
            self._read_awaits_room = False
            events |= EPOLLIN
            if not self._unsent.size:
                self._watch(self._watched & ~<uint32_t>EPOLLOUT)
        return SocketLink._happened(self, events)

    cdef Py_ssize_t _receive(self, uint8_t* data, Py_ssize_t size) except? -1:
        cdef Py_ssize_t filled = 0
        cdef Py_ssize_t problem
        cdef int got = 0
        cdef int reads = 0
        if self._is_broken:
            return -EPROTO
        err_clear_error()
        self._has_unread = False
        self._idle_records = 0
        while filled < size and reads < READS_MAX:
            got = ssl_read(self._ssl, data + filled, <int>min(size - filled, <Py_ssize_t>INT_MAX))
            if got <= 0:
                break
            reads += 1
            filled += got
            if self._idle_records:
                self._idle_records -= 1     # the one that was read
            if filled < FULL_READ_BYTES and not ssl_has_pending(self._ssl):
                return filled
        if got > 0:
            self._has_unread = True
            return filled
        problem = self._problem(got)
        if problem == -EAGAIN and self._awaits_room(got):
            self._read_awaits_room = True
            self._watch(self._watched | EPOLLOUT)
        if not filled:
            return problem
        # Its end, or an error, is said again by the next read.
        self._has_unread = problem != -EAGAIN
        return filled

    cdef Py_ssize_t _send(self, const uint8_t* data, Py_ssize_t size) except? -1:
        cdef Py_ssize_t sent = 0
        cdef int put = 0
        err_clear_error()
        while sent < size:
            put = ssl_write(self._ssl, data + sent, <int>min(size - sent, <Py_ssize_t>INT_MAX))
            if put <= 0:
                break
            sent += put
        # An error comes again with the next write.
        return sent if sent else self._problem(put)

    cdef Py_ssize_t _problem(self, int result) noexcept:
        """Return the number of an error, negative; 0 for the end that the device has announced."""
        cdef int problem = errno
        cdef int kind = ssl_get_error(self._ssl, result)
        if kind == ERROR_WANT_READ or kind == ERROR_WANT_WRITE:
            return -EAGAIN
        if kind == ERROR_ZERO_RETURN:
            return 0
        self._is_broken = True
        err_clear_error()
        if kind == ERROR_SYSCALL:
            return -problem if problem > 0 and problem != EAGAIN else -ECONNRESET
        return -EPROTO

    cdef bint _awaits_room(self, int result) noexcept:
        return ssl_get_error(self._ssl, result) == ERROR_WANT_WRITE

    cdef int _part(self) except -1:
        """Announce the end, as far as the kernel takes that at once."""
        if not self._is_broken:
            err_clear_error()
            ssl_shutdown(self._ssl)
            err_clear_error()
        return 0
