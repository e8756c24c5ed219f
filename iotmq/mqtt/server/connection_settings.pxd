from libc.stdint cimport uint16_t, uint32_t


cdef class ConnectionSettings:
    cdef readonly uint32_t packet_bytes_max
    cdef readonly uint32_t in_flight_max
    cdef readonly uint32_t queued_bytes_max
    cdef readonly uint32_t queued_messages_max
    cdef readonly bint drops_oldest
    cdef readonly uint16_t receive_max
    cdef readonly uint16_t topic_aliases_max
    cdef readonly bint checks_payload_format
    cdef readonly double connect_timeout_s
    cdef readonly frozenset authentication_methods
