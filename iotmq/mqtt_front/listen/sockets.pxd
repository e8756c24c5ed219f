from libc.stdint cimport uint8_t, uint32_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.connection.device_calls cimport DeviceLink

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    enum:
        EPOLLIN
        EPOLLOUT

cdef enum:
    EVENTS_MAX = 512            # connections served in one callback; the loop comes back for more


cdef class Sockets:
    cdef object _loop
    cdef list _listeners                # sockets that accept; cleared by `close`
    cdef list _unread                   # links to read from in the next turn, whatever epoll says
    cdef int _epoll                     # -1 before the first connection, and after the end
    cdef Py_ssize_t _count              # connections that are open
    cdef epoll_event[EVENTS_MAX] _events

    cdef int _begin(self) except -1
    cdef int _take(self, int descriptor, make_device) except -1
    cdef int _end_if_over(self) except -1
    cdef int _read_again(self, SocketLink link) except -1


cdef class SocketLink(DeviceLink):
    cdef Sockets _sockets
    cdef Device _device                 # None once it was told that the connection is lost
    cdef ByteBuffer _unsent             # what the kernel did not take
    cdef int _descriptor                # -1 once it is closed
    cdef uint32_t _watched              # what epoll is asked for; 0: it does not know the socket
    cdef uint8_t _is_reading
    cdef uint8_t _is_closing            # nothing is read or written any more, beside what is unsent
    cdef uint8_t _is_over               # the device will be told in a moment
    cdef uint8_t _is_full               # the device was told to stop writing
    cdef uint8_t _has_unread            # bytes have come that the kernel does not have any more

    cdef int _hold(self, int descriptor) except -1
    cdef int _open(self, int descriptor) except -1
    cdef int _happened(self, uint32_t events) except -1
    cdef int _read(self) except -1
    cdef Py_ssize_t _receive(self, uint8_t* data, Py_ssize_t size) except? -1
    cdef Py_ssize_t _send(self, const uint8_t* data, Py_ssize_t size) except? -1
    cdef int _part(self) except -1
    cdef int _keep(self, const ByteBuffer* output) except -1
    cdef int _send_more(self) except -1
    cdef int _watch(self, uint32_t events) except -1
    cdef int _fail(self, int problem) except -1
    cdef int _end(self, error) except -1
