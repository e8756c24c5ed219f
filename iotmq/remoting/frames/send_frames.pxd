# Send requests read straight from received bytes, without a Python object per request.

from libc.stdint cimport int32_t, int64_t, uint8_t

from iotmq.remoting.frames.frame_header cimport Text

# One send. Pointers point into the received bytes, except the properties' when they had to be unescaped.
cdef struct SendFrame:
    const uint8_t* body
    const uint8_t* topic
    const uint8_t* group
    const uint8_t* properties      # NULL when they stand in the run's `aside` at properties_at
    Py_ssize_t properties_at
    Py_ssize_t start               # of the frame in the received bytes
    int64_t born_timestamp_ms
    int32_t body_size
    int32_t topic_size
    int32_t group_size
    int32_t properties_size
    int32_t code
    int32_t opaque
    int32_t flag
    int32_t version
    int32_t queue_id
    int32_t sys_flag
    int32_t message_flag
    int32_t reconsume_times
    int32_t fields                 # bits of the fields that were there, 1 << field
    bint is_batch
    bint is_binary

cdef class SendRun:
    cdef readonly bytes data                 # what was received
    cdef readonly int count
    cdef readonly Py_ssize_t end             # in `data`, behind the last frame
    cdef public int allowed                  # sends that access control has let through; -1: nobody asked it
    cdef SendFrame* frames
    cdef int capacity
    cdef uint8_t* aside                      # unescaped properties of its frames
    cdef Py_ssize_t aside_size
    cdef Py_ssize_t aside_capacity

    cdef const uint8_t* properties_of(self, const SendFrame* frame) noexcept
    cdef SendFrame* slot(self) except NULL
    cdef uint8_t* room_aside(self, Py_ssize_t size) except NULL

# Write a field's value as it is meant, never longer than it stands; its size, -1 when it is unusual.
cdef Py_ssize_t put_text(uint8_t* target, const Text* value, bint is_json) noexcept
