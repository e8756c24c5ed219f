"""The checksum (CRC) in a payload, compared with the bytes it covers.

Operations: one check per message of a route that has one. Goals: a frame of 64 bytes in far less than a microsecond,
no Python object for a frame that is right. Plan: one look-up per byte in a table that crcmod has computed; a call
of crcmod's own C function would need an object for the payload and one for the result, and take longer than the sum.
"""

from libc.stdint cimport uint8_t, uint64_t


cdef class Checksum:
    """Compute a CRC over the part of a frame that it covers, and find the one that the frame has.

    `table` is crcmod's, `start` what the register begins with, as the table needs it: reversed for a reversed CRC.
    """

    def __init__(
        self, settings not None, str name not None, table not None, *, uint64_t start, uint64_t xor_out,
        bint is_reversed,
    ):
        cdef int index
        self.name = name
        self._size = settings.width // 8
        self._width = settings.width
        for index in range(256):
            self._table[index] = table[index]
        self._mask = <uint64_t>0xFFFFFFFFFFFFFFFF >> (64 - self._width)
        self._start = start
        self._xor_out = xor_out
        self._is_reversed = is_reversed
        self._is_little = is_reversed if settings.byte_order == "usual" else settings.byte_order == "little"
        self._is_at_end = settings.position == "end"
        self._distance = settings.distance
        self._skip_first = settings.skip_first
        self._skip_last = settings.skip_last

    cdef uint64_t crc(self, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        cdef uint64_t register = self._start
        cdef const uint8_t* end = data + size
        cdef int shift = self._width - 8
        if self._is_reversed:
            while data < end:
                register = self._table[(register ^ data[0]) & 0xFF] ^ register >> 8
                data += 1
        else:
            while data < end:
                # What is shifted out at the top is looked at no more.
                register = self._table[(register >> shift ^ data[0]) & 0xFF] ^ register << 8
                data += 1
        return (register ^ self._xor_out) & self._mask

    cdef FrameState check(self, const uint8_t* frame, Py_ssize_t size, uint64_t* has, uint64_t* gives) noexcept nogil:
        cdef Py_ssize_t first, end, at, index
        if size < self._distance + self._size + self._skip_first + self._skip_last:
            return FRAME_SHORT
        if self._is_at_end:
            at = end = size - self._distance - self._size
            first = 0
        else:
            at = self._distance
            first = at + self._size
            end = size
        has[0] = 0
        for index in range(self._size):
            has[0] = has[0] << 8 | frame[at + (self._size - 1 - index if self._is_little else index)]
        gives[0] = self.crc(frame + first + self._skip_first, end - self._skip_last - first - self._skip_first)
        return FRAME_RIGHT if has[0] == gives[0] else FRAME_WRONG

    cdef str wrong(self, const uint8_t* frame, Py_ssize_t size):
        """Return in words what is wrong with a frame; empty when nothing is."""
        cdef uint64_t has = 0, gives = 0
        cdef FrameState state = self.check(frame, size, &has, &gives)
        if state == FRAME_RIGHT:
            return ""
        if state == FRAME_SHORT:
            return f"{size} bytes are too short for a frame with the checksum {self.name}"
        digits = 2 * self._size
        return f"the checksum {self.name} of the frame is 0x{has:0{digits}X}, its bytes give 0x{gives:0{digits}X}"

    def compute(self, bytes data not None):
        """Return the CRC of the bytes."""
        return self.crc(<const uint8_t*>data, len(data))

    def wrong_in(self, bytes frame not None):
        """Return in words what is wrong with a frame; empty when nothing is."""
        return self.wrong(<const uint8_t*>frame, len(frame))

    def pace(self, bytes frame not None, Py_ssize_t times):
        """Check a frame many times, as messages do; returns how often it was right. For benchmarks."""
        cdef uint64_t has, gives
        cdef Py_ssize_t right = 0
        for _ in range(times):
            right += self.check(<const uint8_t*>frame, len(frame), &has, &gives) == FRAME_RIGHT
        return right
