# CRC-32 (the polynomial of zlib and Ethernet) of short buffers.
#
# Operations: one checksum per record stored, of a body that is typically 20-500 bytes. zlib 1.2.13
# takes about 115 ns for 100 bytes (benchmarks/message_codec.py), when a whole MQTT message should cost
# 350 ns. So on x86-64 with carry-less multiplication the body is folded 16 bytes at a time, which
# takes about 6 ns; elsewhere zlib does it.
#
# How: the message is a polynomial over GF(2), its CRC the remainder of it times x^32. A block of 128
# bits that stands n bits before another is worth the same as (its halves times x^(n+64), x^n modulo
# the polynomial) added to that other one, which is two multiplications. What is left of the message
# then is one block, reduced to 64 and to 32 bits the same way and by Barrett's method. The constants
# are such powers of x modulo the polynomial, bits reflected as the CRC's are. Zeros in front of a
# message do not change its remainder, so the odd bytes are taken first, shifted to the end of a block;
# the CRC's starting value, all ones added to the first 4 bytes, is added before that shift and what
# it pushes out goes into the block behind.

from libc.stdint cimport uint8_t, uint32_t

cdef extern from * nogil:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    #include <zlib.h>

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define IOTMQ_FOLDS __attribute__((target("pclmul,ssse3")))

    /* Shuffles: from r bytes in, a shift up by 16 - r bytes; from 16 + r bytes in, a shift down by r. */
    static const uint8_t iotmq_crc_shifts[48] = {
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    };

    IOTMQ_FOLDS static inline __m128i iotmq_crc_load(const uint8_t *p) { return _mm_loadu_si128((const __m128i *) p); }

    IOTMQ_FOLDS static inline __m128i iotmq_crc_fold(__m128i block, __m128i powers, __m128i next)
    {
        __m128i low = _mm_clmulepi64_si128(block, powers, 0x00);
        __m128i high = _mm_clmulepi64_si128(block, powers, 0x11);
        return _mm_xor_si128(_mm_xor_si128(low, high), next);
    }

    IOTMQ_FOLDS static uint32_t iotmq_crc32_folded(const uint8_t *p, size_t size)
    {
        const __m128i by_1_block = _mm_set_epi64x(0x0ccaa009eLL, 0x1751997d0LL);
        const __m128i by_4_blocks = _mm_set_epi64x(0x1c6e41596LL, 0x154442bd4LL);
        const __m128i by_half = _mm_set_epi64x(0, 0x163cd6124LL);
        const __m128i quotient_and_polynomial = _mm_set_epi64x(0x1f7011641LL, 0x1db710641LL);
        const __m128i even_words = _mm_set_epi32(0, -1, 0, -1);
        const __m128i start = _mm_cvtsi32_si128(-1);
        __m128i x, y;
        if (size < 16) {
            /* 4 to 15 bytes: one block, zeros in front. */
            uint8_t block[16] = {0};
            uint32_t head;
            memcpy(block + 16 - size, p, size);
            memcpy(&head, block + 16 - size, 4);
            head = ~head;
            memcpy(block + 16 - size, &head, 4);
            x = iotmq_crc_load(block);
        } else {
            size_t odd = (size - 1) % 16 + 1;
            size_t blocks = (size - odd) / 16;
            __m128i pushed_out = _mm_shuffle_epi8(start, iotmq_crc_load(iotmq_crc_shifts + 16 + odd));
            x = _mm_shuffle_epi8(_mm_xor_si128(iotmq_crc_load(p), start), iotmq_crc_load(iotmq_crc_shifts + odd));
            p += odd;
            if (blocks >= 7) {
                __m128i x1 = _mm_xor_si128(iotmq_crc_load(p), pushed_out);
                __m128i x2 = iotmq_crc_load(p + 16);
                __m128i x3 = iotmq_crc_load(p + 32);
                pushed_out = _mm_setzero_si128();
                for (p += 48, blocks -= 3; blocks >= 4; p += 64, blocks -= 4) {
                    x = iotmq_crc_fold(x, by_4_blocks, iotmq_crc_load(p));
                    x1 = iotmq_crc_fold(x1, by_4_blocks, iotmq_crc_load(p + 16));
                    x2 = iotmq_crc_fold(x2, by_4_blocks, iotmq_crc_load(p + 32));
                    x3 = iotmq_crc_fold(x3, by_4_blocks, iotmq_crc_load(p + 48));
                }
                x = iotmq_crc_fold(x, by_1_block, x1);
                x = iotmq_crc_fold(x, by_1_block, x2);
                x = iotmq_crc_fold(x, by_1_block, x3);
            }
            for (; blocks; p += 16, blocks--) {
                x = iotmq_crc_fold(x, by_1_block, _mm_xor_si128(iotmq_crc_load(p), pushed_out));
                pushed_out = _mm_setzero_si128();
            }
        }
        /* 128 bits to 64, which also appends the 32 zero bits of a CRC; then 32 of those. */
        x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, by_1_block, 0x10));
        y = _mm_clmulepi64_si128(_mm_and_si128(x, even_words), by_half, 0x00);
        x = _mm_xor_si128(_mm_srli_si128(x, 4), y);
        y = _mm_clmulepi64_si128(_mm_and_si128(x, even_words), quotient_and_polynomial, 0x10);
        y = _mm_clmulepi64_si128(_mm_and_si128(y, even_words), quotient_and_polynomial, 0x00);
        return ~(uint32_t) _mm_cvtsi128_si32(_mm_srli_si128(_mm_xor_si128(x, y), 4));
    }

    static inline uint32_t iotmq_crc32(const uint8_t *p, size_t size)
    {
        if (size >= 4 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("ssse3"))
            return iotmq_crc32_folded(p, size);
        return (uint32_t) crc32_z(0, p, size);
    }
    #else
    static inline uint32_t iotmq_crc32(const uint8_t *p, size_t size) { return (uint32_t) crc32_z(0, p, size); }
    #endif
    """
    uint32_t crc32 "iotmq_crc32"(const uint8_t *p, size_t size) noexcept
