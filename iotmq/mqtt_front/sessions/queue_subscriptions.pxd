from libc.stdint cimport uint32_t

from iotmq.mqtt_front.sessions.kept_session cimport QueueSubscription


cdef class QueueSubscriptions:
    cdef dict _queues                   # queue id -> its QueueSubscription, or a list of several

    cdef tuple find(self, uint32_t queue_id)
    cdef int put(self, QueueSubscription subscription) except -1
    cdef int discard(self, QueueSubscription subscription) except -1
