# A pull request read straight from received bytes.

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef enum:
    # Texts by which a pull that is known is found.
    GROUP = 0
    TOPIC = 1
    SUBSCRIPTION = 2
    EXPRESSION_TYPE = 3
    TEXTS = 4

cdef class PullFrame:
    cdef readonly bytes data                 # what was received
    cdef readonly Py_ssize_t end             # in `data`, behind the frame
    cdef Py_ssize_t start
    cdef int32_t opaque
    cdef int32_t flag
    cdef bint is_binary
    cdef int fields                          # bits of the fields that were there, 1 << field
    cdef const uint8_t* text[TEXTS]          # into `data`
    cdef Py_ssize_t text_size[TEXTS]
    cdef int32_t queue_id
    cdef int32_t records_max
    cdef int32_t sys_flag
    cdef int32_t bytes_max                   # 0 when it was not said
    cdef int64_t offset
    cdef int64_t commit_offset
    cdef int64_t suspend_ms
    cdef int64_t subscription_version
