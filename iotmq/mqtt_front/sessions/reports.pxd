from libc.stdint cimport uint64_t

from iotmq.mqtt_front.sessions.kept_session cimport KeptSession


cdef class SessionReports:
    cdef object _loop
    cdef object _port                   # ports.sessions.SessionPort
    cdef list _moved                    # sessions the broker is to be told of
    cdef list _persisting               # sessions whose QoS 2 state the broker is to know first
    cdef object _progress_timer
    cdef readonly uint64_t refused

    cdef int note_moved(self, KeptSession session) except -1
    cdef int persist(self, KeptSession session) except -1
