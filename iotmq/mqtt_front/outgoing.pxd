from libc.stdint cimport uint8_t

from iotmq.message.record cimport RecordParts


cdef class OutgoingMessage:
    """What a subscriber gets of a record. The pointers are valid as long as the record, or until the next `read`."""

    cdef const uint8_t* topic
    cdef Py_ssize_t topic_size
    cdef const uint8_t* body
    cdef Py_ssize_t body_size
    cdef int qos                        # as published: subscribers get no more than this
    cdef bytes _inflated

    cdef bint read(self, const RecordParts* record) except -1
