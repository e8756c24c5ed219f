"""Messages of one queue on their way to the broker, and the devices that wait for them."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport free, realloc

from iotmq.mqtt_front.connection.device cimport Device

from collections import deque

from iotmq.supervised import surviving

cdef enum:
    BATCH_BYTES_INITIAL = 16 * 1024
    SETTLED_PER_TURN = 8            # SUBSCRIBE and UNSUBSCRIBE that waited for one batch, some 30 us each


cdef class Settling:
    """Hold an action that waits for some batches."""

    def __init__(self, callback not None):
        self.callback = callback


cdef class BatchOwner:
    """Hand a batch to the broker; overridden by its lane."""

    cdef int batch_done(self, Batch batch, int code, str remark) except -1:
        """Hear the broker's answer: 0, or why it does not have the batch."""
        raise NotImplementedError("a BatchOwner overrides batch_done")


cdef class Batch:
    """Messages of one queue in batch encoding, as a read-only buffer, and who waits for them."""

    def __dealloc__(self):
        self.clear()
        free(self.data)
        free(self.waiters)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.size, 1, flags & ~PyBUF_WRITABLE)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.exports -= 1

    cdef uint8_t* reserve(self, Py_ssize_t extra) except NULL:
        cdef Py_ssize_t capacity = self.capacity if self.capacity else BATCH_BYTES_INITIAL
        cdef uint8_t* data
        if self.size + extra > self.capacity:
            while capacity < self.size + extra:
                capacity *= 2
            data = <uint8_t*>realloc(self.data, capacity)
            if data == NULL:
                raise MemoryError
            self.data = data
            self.capacity = capacity
        return self.data + self.size

    cdef int add_waiter(self, Device device, uint32_t sequence) except -1:
        cdef Waiter* waiter
        cdef Py_ssize_t capacity
        if self.waiters_count:
            waiter = &self.waiters[self.waiters_count - 1]
            if waiter.device == <void*>device and waiter.sequence + waiter.count == sequence:
                waiter.count += 1
                return 0
        if self.waiters_count == self.waiters_capacity:
            capacity = self.waiters_capacity * 2 if self.waiters_capacity else 64
            waiter = <Waiter*>realloc(self.waiters, capacity * sizeof(Waiter))
            if waiter == NULL:
                raise MemoryError
            self.waiters = waiter
            self.waiters_capacity = capacity
        self.waiters[self.waiters_count] = Waiter(<void*>device, sequence, 1)
        self.waiters_count += 1
        Py_INCREF(device)
        return 0

    cdef int add_settling(self, Settling settling) except -1:
        """Have an action wait for this batch, too."""
        if self.settling is None:
            self.settling = []
        self.settling.append(settling)
        settling.left += 1
        return 0

    cdef int settle(self, loop) except -1:
        """Let go what waits for this batch."""
        if self.settling is not None:
            loop.call_soon(_settled, loop, deque(self.settling))
            self.settling = None
        return 0

    cdef void clear(self) noexcept:
        """Forget the messages and the waiters; the memory stays."""
        cdef Py_ssize_t index
        for index in range(self.waiters_count):
            Py_DECREF(<object>self.waiters[index].device)
        self.waiters_count = 0
        self.size = 0
        self.count = 0
        self.has_key = False
        self.has_packet_ids = False
        self.was_offered = False
        self.traced = None

    def completed(self, int code, str remark):
        """Take the broker's answer (ports.gateway.AppendDone)."""
        if self.is_done:
            raise RuntimeError("a batch was completed twice")
        self.is_done = True
        self.owner.batch_done(self, code, remark)


def _settled(loop, waiting):
    """Count down those who waited for a batch that is done, some in each turn of the loop, as they came in."""
    cdef Settling settling
    for _ in range(min(SETTLED_PER_TURN, len(waiting))):
        settling = waiting.popleft()
        settling.left -= 1
        if not settling.left:
            with surviving("what waits for batches"):
                settling.callback()
    if waiting:
        loop.call_soon(_settled, loop, waiting)
