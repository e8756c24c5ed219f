from libc.stdint cimport uint64_t

from iotmq.mqtt_front.connection.device cimport DeviceGroup
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage
from iotmq.mqtt_front.sessions.kept_session cimport KeptSession, QueueSubscription
from iotmq.mqtt_front.sessions.queue_subscriptions cimport QueueSubscriptions
from iotmq.mqtt_front.sessions.reports cimport SessionReports


cdef enum:
    READ_RECORDS_MAX = 128      # in one read of a queue


cdef class DurableEgress:
    cdef readonly DeviceGroup group
    cdef readonly object port           # ports.sessions.SessionPort
    cdef object _handler
    cdef object _pace_limits            # mqtt_front.connection.replay_pace.PaceLimits
    cdef bint has_pace
    cdef int replay_records_max
    cdef QueueSubscriptions queues
    cdef SessionReports reports
    cdef object _scheduled              # deque of sessions that go on in the next turns
    cdef bint _is_going_on              # the next turn sees to that
    cdef OutgoingMessage _message
    cdef readonly uint64_t delivered
    cdef readonly uint64_t dropped
    cdef readonly uint64_t read_records
    cdef readonly uint64_t malformed

    cdef int _pass_on(self, QueueSubscription subscription) except -1
    cdef int schedule(self, KeptSession session) except -1
