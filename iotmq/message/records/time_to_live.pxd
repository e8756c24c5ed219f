# The time to live of a record, from the time it was stored on.

from libc.stdint cimport int64_t, uint8_t

from iotmq.message.records.fields cimport RecordParts
from iotmq.message.records.record cimport find_property


cdef inline bint has_expired(const RecordParts* parts, int64_t now_ms) noexcept nogil:
    """Return whether the record has a time to live that is over. Anything but 1 to 15 digits is none."""
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t value_size, at
    cdef int64_t time_to_live_ms = 0
    value_size = find_property(parts.properties, parts.properties_size, "MSG_TTL_MS", 10, &value)
    if not 0 < value_size <= 15:
        return False
    for at in range(value_size):
        if not c"0" <= value[at] <= c"9":
            return False
        time_to_live_ms = time_to_live_ms * 10 + (value[at] - c"0")
    return time_to_live_ms > 0 and parts.store_timestamp_ms + time_to_live_ms <= now_ms
