from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef struct AliasedTopic:
    uint8_t* topic          # an owned copy; NULL while the alias means nothing
    uint32_t topic_size
    uint32_t uses           # since it was last looked at; towards the device only
    uint64_t hash           # towards the device only


cdef struct Candidate:
    uint32_t hash
    uint32_t seen


cdef class InboundAliases:
    cdef AliasedTopic* _topics
    cdef readonly uint16_t count_max

    cdef int resolve(self, uint16_t alias, const uint8_t** topic, Py_ssize_t* topic_size) except -1


cdef class OutboundAliases:
    cdef AliasedTopic* _topics
    cdef Candidate* _candidates
    cdef readonly uint16_t count_max
    cdef readonly uint16_t count
    cdef uint16_t _hand             # the next one that is looked at when a topic wants the place of another

    # The alias for a topic, 0 for none; `is_known[0]`: the device knows it, and the topic may be left out.
    cdef uint16_t find(self, const uint8_t* topic, Py_ssize_t topic_size, bint* is_known) except? 0
    cdef uint16_t _place_for(self, uint32_t seen) noexcept
