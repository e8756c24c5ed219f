from libc.stdint cimport uint8_t, uint32_t

from iotmq.mqtt_front.connection.client_traffic cimport ClientTraffic
from iotmq.mqtt_front.connection.traced cimport TracedConnection
from iotmq.mqtt_front.limiting.buckets cimport DeviceLimits


cdef enum:
    WAITS_FOR_TOKENS = 4    # a bit of ServerConnection._waits_for_turn


cdef class LimitedConnection(TracedConnection):
    cdef readonly DeviceLimits limits   # how much may pass; None without limits
    cdef public ClientTraffic traffic   # where its messages count
    cdef uint8_t _lacks_tokens          # it is not read because of a limit

    cdef int _view_index(self, uint32_t least, uint32_t most) except -1
    cdef int take_bytes(self, uint32_t size) except -1
    cdef int end_limits(self) except -1
    cdef int _wait_for_tokens(self) except -1
    # For a Device to override: it may be read again; it may be sent messages again.
    cdef int input_allowed(self) except -1
    cdef int output_allowed(self) except -1
