from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from iotmq.mqtt_front.connection.device cimport Device, DeviceSession
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage


cdef class QueueSubscription:
    cdef KeptSession session
    cdef readonly str topic_filter
    cdef readonly uint32_t queue_id
    cdef uint32_t identifier            # of the subscription; 0 = none
    cdef uint32_t place                 # among those of its queue (QueueSubscriptions)
    cdef public uint64_t options        # as in ports.sessions.SessionSubscription
    cdef int64_t next_position      # records before were sent
    cdef int64_t cursor             # records before are done with; as `settle_cursors` found last
    cdef int64_t repeated_before    # records before may have been sent in an earlier connection
    cdef int64_t live_from          # records from here on came while the device was there; -1 = not known yet
    cdef int64_t pushed_position    # the last record that was pushed while the queue is read
    # True or not, in a byte each: there is one of these for every subscription of every connected session.
    cdef uint8_t is_behind          # what comes next has to be read
    cdef uint8_t is_reading
    cdef uint8_t is_moved           # since the broker was told last
    cdef uint8_t is_ended

    cdef int change(self, uint64_t options) except -1


cdef class KeptSession(DeviceSession):
    cdef readonly Device device
    cdef readonly str client_id
    cdef readonly int64_t epoch
    cdef readonly bint is_ended
    # True or not, in a byte each.
    cdef uint8_t is_moved               # the broker is to be told of something
    cdef uint8_t is_persisting          # the broker is to know of something first
    cdef int reports_under_way          # the broker has not answered yet
    cdef uint8_t is_scheduled           # to read on
    cdef uint8_t has_moved_flights      # of QoS 2

    cdef int offer(self, QueueSubscription subscription, int64_t position, OutgoingMessage message) except -1
    cdef int missed(self, QueueSubscription subscription) except -1
    cdef object progress(self)
    cdef tuple begin_persisting(self)
    cdef int persisted(self, held, to_release) except -1
    cdef bint partly_persisted(self, held, to_release, brokers) except -1
    cdef int not_persisted(self) except -1
