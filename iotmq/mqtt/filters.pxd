from libc.stdint cimport uint8_t, uint32_t, uint64_t

from iotmq.mqtt.topic_table cimport TopicTable


cdef struct Matches:
    uint64_t version        # of the index when the ids were found
    uint32_t count
    uint32_t* ids


cdef class FilterIndex:
    cdef dict _ids                      # filter -> id
    cdef list _filters                  # id -> filter, None when free
    cdef list _free_ids
    cdef dict _exact                    # topic without wildcards -> id
    cdef dict _shapes                   # shape -> {literal levels -> id}
    cdef dict _trie                     # filters whose shape is past shapes_max
    cdef readonly int shapes_max
    cdef uint64_t _version
    cdef TopicTable _cache

    cdef const Matches* find(self, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef void _drop_cache(self) noexcept
    cdef list _match(self, str topic)
