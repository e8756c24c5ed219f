from libc.stdint cimport uint8_t, uint32_t

from iotmq.mqtt_front.connection.device cimport Device


cdef struct Waiter:
    # A run of messages of one device, in a batch, that wait for the broker's promise.
    void* device                # a counted reference
    uint32_t sequence
    uint32_t count


cdef class Settling:
    cdef object callback
    cdef uint32_t left                  # batches that have to be done before


cdef class BatchOwner:
    cdef int batch_done(self, Batch batch, int code, str remark) except -1


cdef class Batch:
    cdef BatchOwner owner
    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity
    cdef Waiter* waiters
    cdef Py_ssize_t waiters_count
    cdef Py_ssize_t waiters_capacity
    cdef readonly uint32_t count
    cdef int exports                    # buffers that others hold; the memory may not move
    cdef bint has_key                   # a message of it has a unique key
    cdef bint has_packet_ids            # messages of it have MQTT_PACKET_ID
    cdef bint was_offered               # a broker may have it
    cdef list traced                    # spans of its sampled messages; None while there are none
    cdef list settling                  # Settling that wait for this batch; None while there are none
    cdef bint is_done                   # `completed` was called; set False when it is handed over

    cdef uint8_t* reserve(self, Py_ssize_t extra) except NULL
    cdef int add_waiter(self, Device device, uint32_t sequence) except -1
    cdef int add_settling(self, Settling settling) except -1
    cdef int settle(self, loop) except -1
    cdef void clear(self) noexcept
