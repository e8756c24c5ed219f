"""Records on their way to front ends: which of a stretch of the log each is to have, handed over at its end.

Operations: bytes added for each record and channel, one hand-over per stretch and channel. Goals: a record is
not copied; no Python object per record. Plan: one growing array per channel, which keeps its memory.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, realloc

import logging

from iotmq.message.records.layout cimport RECORD_FIXED_BYTES, get_u32

_log = logging.getLogger("iotmq.broker")


cdef class PushChannel:
    """One front end. `receiver(records, pushes)` takes what was added since the last push."""

    def __init__(self, receiver not None):
        self.receiver = receiver

    def __dealloc__(self):
        free(self.pushes)

    cdef uint8_t* take_room(self, Py_ssize_t size) except NULL:
        cdef Py_ssize_t capacity = max(<Py_ssize_t>1024, self.capacity)
        cdef uint8_t* grown
        self.size += size
        if self.size > self.capacity:
            while capacity < self.size:
                capacity *= 2
            grown = <uint8_t*>realloc(self.pushes, capacity)
            if grown == NULL:
                self.size -= size
                raise MemoryError
            self.pushes = grown
            self.capacity = capacity
        return self.pushes + self.size - size

    cdef int begin(self) except -1:
        """Forget what was added and not handed over."""
        self.size = 0
        return 0

    cdef int push(self, records) except -1:
        """Hand over what was added, if anything."""
        cdef bytes pushes
        if self.size:
            pushes = self.pushes[:self.size]
            self.size = 0
            self.receiver(records, pushes)
        return 0


cdef class PushChannels:
    """The open channels of one broker. `failed_total` counts pushes a receiver has raised something at."""

    def __init__(self):
        self.channels = []

    def __len__(self):
        return len(self.channels)

    def __iter__(self):
        return iter(self.channels)

    def add(self, PushChannel channel not None):
        self.channels.append(channel)

    def remove(self, PushChannel channel not None):
        self.channels.remove(channel)

    cdef int begin(self) except -1:
        """A stretch begins: forget the places in one that something went wrong in."""
        cdef PushChannel channel
        for channel in self.channels:
            channel.begin()
        return 0

    cdef int push(self, records) except -1:
        """Hand every channel what it is to have of `records`."""
        cdef PushChannel channel
        for channel in tuple(self.channels):
            # One front end's trouble is not the others', nor the store's, which would apply all of it again.
            try:
                channel.push(records)
            except Exception:
                if not self.failed_total:
                    _log.exception("records could not be pushed to a front end")
                self.failed_total += 1
        return 0


cdef Py_ssize_t record_size_at(const uint8_t[::1] records, int64_t place) except -1:
    cdef int64_t room = records.shape[0] - place
    cdef int64_t size = get_u32(&records[0] + place) if 0 <= place and room > RECORD_FIXED_BYTES else 0
    if not RECORD_FIXED_BYTES < size <= room:
        raise ValueError(f"no record at {place} of {records.shape[0]} bytes")
    return size
