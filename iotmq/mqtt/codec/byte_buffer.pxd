"""Bytes that come and go at the ends of a connection: a buffer that holds memory only while it holds bytes."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy


cdef enum:
    IDLE_BUFFER_BYTES_MAX = 256     # a buffer this small is kept between uses


cdef struct ByteBuffer:
    uint8_t* data
    uint32_t start          # first byte still wanted
    uint32_t size           # end of what was written
    uint32_t capacity


cdef inline uint8_t* reserve(ByteBuffer* buffer, uint64_t extra) except NULL:
    """Room for `extra` more bytes behind what is written; returns where they go."""
    cdef uint64_t needed = buffer.size + extra
    cdef uint64_t capacity = buffer.capacity if buffer.capacity else 64
    cdef uint8_t* data
    if needed > buffer.capacity or buffer.data == NULL:
        if needed > 0xFFFFFFFF:
            raise MemoryError("a connection's buffer would pass 4 GiB")
        while capacity < needed:
            capacity *= 2
        if capacity > 0xFFFFFFFF:
            capacity = needed
        data = <uint8_t*>realloc(buffer.data, capacity)
        if data == NULL:
            raise MemoryError
        buffer.data = data
        buffer.capacity = <uint32_t>capacity
    return buffer.data + buffer.size


cdef inline int append(ByteBuffer* buffer, const void* data, uint64_t size) except -1:
    """Add `size` bytes."""
    memcpy(reserve(buffer, size), data, size)
    buffer.size += <uint32_t>size
    return 0


cdef inline void release(ByteBuffer* buffer) noexcept:
    """Forget the content, and the memory unless it is small."""
    buffer.start = 0
    buffer.size = 0
    if buffer.capacity > IDLE_BUFFER_BYTES_MAX:
        free(buffer.data)
        buffer.data = NULL
        buffer.capacity = 0
