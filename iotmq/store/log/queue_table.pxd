# Every queue there is, found by topic and queue id without a Python object made.

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t

from iotmq.store.log.queue cimport Queue

# Whether the bytes can name a topic, and so a directory of ours.
cdef bint is_topic(const uint8_t* topic, Py_ssize_t size) noexcept nogil


@cython.final
cdef class QueueTable:
    cdef readonly list queues                # in the order they came; owns what the slots point to
    cdef PyObject** slots                    # open addressing over (topic bytes, queue id)
    cdef Py_ssize_t size                     # a power of two

    cdef Queue find(self, const uint8_t* topic, Py_ssize_t topic_size, int queue_id)
    cdef int add(self, Queue queue) except -1
    cdef int keep(self, list queues) except -1
    cdef int fill(self, Py_ssize_t size) except -1
