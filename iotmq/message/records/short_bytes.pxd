# Finding a byte in, and copying, texts as short as the parts of a record.
#
# Operations: per record stored, find the ends of typically three properties of 20 bytes, and a letter that
# few of them have; copy a body of 100 bytes, a topic of 10 and properties of 50. A call of the C library
# costs 4 to 5 ns however short the text is; 16 bytes at a time in place cost 1 to 3.

from libc.stdint cimport uint8_t, uint64_t

cdef extern from * nogil:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    /* Constant sizes become a load and a store; what overlaps is stored twice. */
    static inline void iotmq_copy_short(uint8_t *target, const uint8_t *source, size_t size)
    {
        size_t at;
        if (size > 256) {
            memcpy(target, source, size);
        } else if (size >= 16) {
            for (at = 0; at + 16 <= size; at += 16)
                memcpy(target + at, source + at, 16);
            memcpy(target + size - 16, source + size - 16, 16);
        } else if (size >= 8) {
            uint64_t first, last;
            memcpy(&first, source, 8);
            memcpy(&last, source + size - 8, 8);
            memcpy(target, &first, 8);
            memcpy(target + size - 8, &last, 8);
        } else if (size >= 4) {
            uint32_t first, last;
            memcpy(&first, source, 4);
            memcpy(&last, source + size - 4, 4);
            memcpy(target, &first, 4);
            memcpy(target + size - 4, &last, 4);
        } else {
            for (at = 0; at < size; at++)
                target[at] = source[at];
        }
    }

    #if defined(__SSE2__) && defined(__GNUC__)
    #include <emmintrin.h>

    static inline unsigned iotmq_mask_16(const uint8_t *p, __m128i bytes)
    {
        return (unsigned) _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *) p), bytes));
    }

    static inline const uint8_t *iotmq_find_byte(
        const uint8_t *text, const uint8_t *p, const uint8_t *end, uint8_t byte)
    {
        const __m128i bytes = _mm_set1_epi8((char) byte);
        unsigned mask;
        for (; end - p >= 16; p += 16) {
            mask = iotmq_mask_16(p, bytes);
            if (mask)
                return p + __builtin_ctz(mask);
        }
        if (p < end && end - text >= 16) {
            /* The last block ends where the text does. */
            mask = iotmq_mask_16(end - 16, bytes) >> (16 - (end - p));
            return mask ? p + __builtin_ctz(mask) : end;
        }
        while (p < end && *p != byte)
            p++;
        return p;
    }

    static inline uint64_t iotmq_byte_mask(const uint8_t *text, const uint8_t *p, size_t size, uint8_t byte)
    {
        const __m128i bytes = _mm_set1_epi8((char) byte);
        uint64_t mask = 0;
        size_t at = 0;
        for (; size - at >= 16; at += 16)
            mask |= (uint64_t) iotmq_mask_16(p + at, bytes) << at;
        if (at < size && p + size - text >= 16)
            mask |= (uint64_t) (iotmq_mask_16(p + size - 16, bytes) >> (16 - (size - at))) << at;
        else
            for (; at < size; at++)
                mask |= (uint64_t) (p[at] == byte) << at;
        return mask;
    }

    static inline int iotmq_lowest_bit(uint64_t mask) { return __builtin_ctzll(mask); }
    #else
    static inline uint64_t iotmq_byte_mask(const uint8_t *text, const uint8_t *p, size_t size, uint8_t byte)
    {
        uint64_t mask = 0;
        for (size_t at = 0; at < size; at++)
            mask |= (uint64_t) (p[at] == byte) << at;
        return mask;
    }

    static inline int iotmq_lowest_bit(uint64_t mask)
    {
        int bit = 0;
        while (!(mask >> bit & 1))
            bit++;
        return bit;
    }

    static inline const uint8_t *iotmq_find_byte(
        const uint8_t *text, const uint8_t *p, const uint8_t *end, uint8_t byte)
    {
        const uint8_t *found = p < end ? (const uint8_t *) memchr(p, byte, (size_t) (end - p)) : NULL;
        return found ? found : end;
    }
    #endif
    """
    # The first `byte` of [p, end), `end` when there is none. What stands between `text` and p may be read, too.
    const uint8_t* find_byte "iotmq_find_byte"(
        const uint8_t *text, const uint8_t *p, const uint8_t *end, uint8_t byte) noexcept
    # Bit n is set where byte n of the `size` (at most 64) at p is `byte`; the same may be read.
    uint64_t byte_mask "iotmq_byte_mask"(
        const uint8_t *text, const uint8_t *p, size_t size, uint8_t byte) noexcept
    # Number of the lowest bit that is set; `mask` is not 0.
    int lowest_bit "iotmq_lowest_bit"(uint64_t mask) noexcept
    # memcpy, faster up to 256 bytes.
    void copy_short "iotmq_copy_short"(uint8_t *target, const uint8_t *source, size_t size) noexcept
