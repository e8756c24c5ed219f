# Numbers and texts written into answers that are laid out by hand.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy

cdef inline uint8_t* put_bytes(uint8_t* at, bytes text):
    memcpy(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return at + PyBytes_GET_SIZE(text)

cdef inline uint8_t* put_decimal(uint8_t* at, int64_t number) noexcept:
    cdef uint8_t digits[20]
    cdef int count = 0
    if number < 0:
        at[0] = c"-"
        at += 1
        number = -number
    while True:
        digits[count] = <uint8_t> (c"0" + number % 10)
        count += 1
        number //= 10
        if number == 0:
            break
    while count:
        count -= 1
        at[0] = digits[count]
        at += 1
    return at
