from libc.stdint cimport uint16_t

from iotmq.mqtt_front.connection.device cimport Device


cdef class Release:
    cdef Releases releases
    cdef object broker                  # by name; None for all
    cdef Py_ssize_t body_bytes          # of all of them, as in broker.exactly_once.received_ids
    cdef list waiters                   # (device, packet id)

    cdef int add(self, Device device, uint16_t packet_id) except -1


cdef class Releases:
    cdef object _port
    cdef object _loop
    cdef double _retry_interval_s
    cdef object _done
    cdef dict _of_turn                  # broker, or None for all -> Release
    cdef bint is_closed                 # nothing is offered again

    cdef int add(self, Device device, uint16_t packet_id, object broker) except -1
    cdef int end_turn(self) except -1
    cdef int completed(self, Release release) except -1
