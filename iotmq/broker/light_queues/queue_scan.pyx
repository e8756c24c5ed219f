"""The records of one filter in a stretch of the log, for queues that have no entries there (wide_filters).

Operations: go through the records, find the filters of each one's MQTT topic, keep those of the filter.
Goals: as much per record as collecting it once cost. Plan: the index that collected answers, cache and all.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from iotmq.message.records.device_topic cimport device_topic
from iotmq.message.records.layout cimport AT_MAGIC, AT_SIZE, BLANK_BYTES, BLANK_MAGIC, RECORD_FIXED_BYTES, get_u32
from iotmq.message.records.fields cimport RecordParts
from iotmq.message.records.record_walk cimport RecordWalk, begin_walk, end_walk, next_record
from iotmq.mqtt.topics.filters cimport FilterIndex, Matches

# Why a scan ended: at the end of the view, because it has found or gone through enough, at a record the view
# has only the beginning of, at the blank that ends a file, or at something that is no record.
END = 0
FULL = 1
CUT = 2
BLANK = 3
BROKEN = 4


def scan_queue(
    FilterIndex filters not None,
    uint32_t filter_id,
    view not None,
    *,
    int64_t records_max,
    int64_t bytes_max,
    int64_t scanned_max,
):
    """(places, records gone through, end, why, size) of a view that starts with a record or a blank.

    `places` are (byte of the view, size): at most `records_max`, and `bytes_max` unless it is one alone.
    Everything before byte `end` was gone through; `size` is that of what is cut or blank there.
    """
    cdef RecordWalk walk
    cdef RecordParts parts
    cdef const uint8_t* start
    cdef const uint8_t* at
    cdef const uint8_t* topic
    cdef Py_ssize_t topic_size
    cdef int64_t found_bytes = 0, found_count = 0, scanned = 0, size = 0
    cdef int why = 0
    cdef list places = []
    begin_walk(&walk, view)
    start = walk.at
    try:
        while walk.at < walk.end:
            if found_count == records_max or scanned == scanned_max:
                why = FULL
                break
            if walk.end - walk.at < BLANK_BYTES:
                why = CUT
                size = RECORD_FIXED_BYTES
                break
            at = walk.at
            size = get_u32(at + AT_SIZE)
            if get_u32(at + AT_MAGIC) == <uint32_t>BLANK_MAGIC:
                why = BLANK
                break
            if not next_record(&walk, &parts):
                why = CUT if size > walk.end - at else BROKEN
                break
            scanned += 1
            topic_size = device_topic(&parts, &topic)
            if topic_size > 0 and has_match(filters, topic, topic_size, filter_id):
                if found_count and found_bytes + parts.size > bytes_max:
                    why = FULL
                    walk.at = at
                    break
                places.append((at - start, parts.size))
                found_bytes += parts.size
                found_count += 1
        return places, scanned, walk.at - start, why, size
    finally:
        end_walk(&walk)


cdef bint has_match(FilterIndex filters, const uint8_t* topic, Py_ssize_t size, uint32_t filter_id) except -1:
    cdef const Matches* matches = filters.find(topic, size)
    cdef uint32_t index
    for index in range(matches.count):
        if matches.ids[index] == filter_id:
            return True
    return False
