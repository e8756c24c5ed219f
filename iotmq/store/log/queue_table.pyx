"""Every queue there is, found by topic and queue id: a look-up per record whose queue is not the last one's."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcmp

from iotmq.message.records.text cimport mixed_hash
from iotmq.store.log.queue cimport Queue

cdef uint64_t KEY_STEP = <uint64_t> 0x9E3779B97F4A7C15

cdef enum:
    SIZE_MIN = 64
    # A 5.x broker writes longer topics than we take; a directory name ends at 255 bytes.
    STORED_TOPIC_BYTES_MAX = 255


cdef class QueueTable:
    """`queues` has all of them; there is no other way in and out than `add` and `keep`."""

    def __cinit__(self):
        self.slots = NULL
        self.queues = []
        self.fill(SIZE_MIN)

    def __dealloc__(self):
        PyMem_Free(self.slots)

    cdef Queue find(self, const uint8_t* topic, Py_ssize_t topic_size, int queue_id):
        """Return the queue, None when there is none."""
        cdef uint64_t hash = mixed_hash(<uint64_t> queue_id * KEY_STEP, topic, topic_size)
        cdef Py_ssize_t slot = <Py_ssize_t> (hash & <uint64_t> (self.size - 1))
        cdef Queue queue
        while self.slots[slot] != NULL:
            queue = <Queue> self.slots[slot]
            if (
                queue.hash == hash
                and queue.queue_id == queue_id
                and PyBytes_GET_SIZE(queue.topic_bytes) == topic_size
                and memcmp(PyBytes_AS_STRING(queue.topic_bytes), topic, topic_size) == 0
            ):
                return queue
            slot = (slot + 1) & (self.size - 1)
        return None

    cdef int add(self, Queue queue) except -1:
        """Take in one that `find` does not find."""
        queue.hash = mixed_hash(
            <uint64_t> queue.queue_id * KEY_STEP, <const uint8_t*> PyBytes_AS_STRING(queue.topic_bytes),
            PyBytes_GET_SIZE(queue.topic_bytes),
        )
        self.queues.append(queue)
        if len(self.queues) * 2 > self.size:
            self.fill(self.size * 2)
        else:
            place(self.slots, self.size, queue)
        return 0

    cdef int keep(self, list queues) except -1:
        """Forget all others than these."""
        self.queues = queues
        return self.fill(self.size)

    cdef int fill(self, Py_ssize_t size) except -1:
        cdef PyObject** slots = <PyObject**> PyMem_Calloc(size, sizeof(PyObject*))
        if slots == NULL:
            raise MemoryError
        for queue in self.queues:
            place(slots, size, <Queue> queue)
        PyMem_Free(self.slots)
        self.slots = slots
        self.size = size
        return 0


cdef bint is_topic(const uint8_t* topic, Py_ssize_t size) noexcept nogil:
    """Printable ASCII without space and slash, no leading dot. Brokers of this format take even less."""
    cdef Py_ssize_t at
    if size <= 0 or size > STORED_TOPIC_BYTES_MAX or topic[0] == c".":
        return False
    for at in range(size):
        if topic[at] <= 0x20 or topic[at] >= 0x7F or topic[at] == c"/":
            return False
    return True


cdef void place(PyObject** table, Py_ssize_t size, Queue queue) noexcept:
    cdef Py_ssize_t slot = <Py_ssize_t> (queue.hash & <uint64_t> (size - 1))
    while table[slot] != NULL:
        slot = (slot + 1) & (size - 1)
    table[slot] = <PyObject*> queue
