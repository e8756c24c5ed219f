"""A keyed hash of short byte strings, for tables whose keys are chosen by devices.

Nobody outside must be able to choose keys that collide: seed and multiplier are secrets of the process, and
each word goes through a folded 64 x 64 bit product, in which the effect of a flipped bit depends on the
secret (a plain multiplication passes a flip of the top bits on unchanged, whatever the secret is).
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy


cdef extern from *:
    """
    static inline uint64_t iotmq_fold(uint64_t left, uint64_t right) {
        unsigned __int128 product = (unsigned __int128)left * right;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    """
    uint64_t fold "iotmq_fold"(uint64_t left, uint64_t right) noexcept nogil


cdef inline uint64_t keyed_hash(
    uint64_t seed, uint64_t multiplier, const uint8_t* data, Py_ssize_t size
) noexcept nogil:
    cdef uint64_t state = seed ^ <uint64_t>size
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, data, 8)
        state = fold(state ^ word, multiplier)
        data += 8
        size -= 8
    if size:
        word = 0
        memcpy(&word, data, size)
        state = fold(state ^ word, multiplier)
    return fold(state ^ seed, multiplier)
