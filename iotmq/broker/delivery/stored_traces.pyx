"""Find sampled messages among those that are stored as durably as promised, wherever they came from.

A projection that lives in memory only, of a broker that traces. A range of the log without a context costs one
search for the name of the property.
"""

from libc.stdint cimport int64_t, uint8_t

from iotmq.message.records.fields cimport RecordParts
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, end_walk, next_record
from iotmq.telemetry.trace_context cimport TRACEPARENT_BYTES, find_value, is_sampled, is_traceparent

cdef extern from *:
    """
    #define _GNU_SOURCE
    #include <string.h>
    static inline int iotmq_has(const void *at, size_t size, const void *wanted, size_t wanted_size) {
        return memmem(at, size, wanted, wanted_size) != NULL;
    }
    """
    bint iotmq_has(const void* at, size_t size, const void* wanted, size_t wanted_size) noexcept nogil

cdef bytes _TRACEPARENT = b"traceparent\x01"


cdef class StoredTraces:
    """Tells `tracing` (telemetry.tracing.Tracing) of sampled records; `note(microseconds, trace, span)` hears, too."""

    cdef readonly str name
    cdef readonly int64_t applied_position
    cdef public bint is_leading         # a broker that follows tells nothing: its master does
    cdef object _tracing
    cdef object _note

    def __init__(self, tracing not None, note not None, *, int64_t applied_position):
        self.name = "traces"
        self.applied_position = applied_position
        self._tracing = tracing
        self._note = note

    def apply(self, const uint8_t[::1] view not None, int64_t start_position, int64_t end_position):
        """Tell of the sampled records of [start_position, end_position) (store.projection.Projection)."""
        if self.is_leading and view.shape[0] and iotmq_has(
            &view[0], view.shape[0], <const char*>_TRACEPARENT, len(_TRACEPARENT)
        ):
            self._tell(view)
        self.applied_position = end_position

    cdef int _tell(self, view) except -1:
        cdef RecordWalk walk
        cdef RecordParts record
        cdef const uint8_t* value
        cdef Py_ssize_t size
        begin_walk(&walk, view)
        try:
            while next_record(&walk, &record):
                value = find_value(record.properties, record.properties_size, _TRACEPARENT, &size)
                if value != NULL and is_traceparent(value, size) and is_sampled(value):
                    trace_id, span_id, took_us = self._tracing.stored(
                        value[:TRACEPARENT_BYTES], record.topic[:record.topic_size], record.queue_id,
                        record.store_timestamp_ms * 1000000,
                    )
                    self._note(took_us, trace_id, span_id)
        finally:
            end_walk(&walk)
        return 0
