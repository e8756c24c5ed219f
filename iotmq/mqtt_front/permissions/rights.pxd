from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef enum:
    RIGHT_REFUSED = 0
    RIGHT_ALLOWED = 1
    RIGHT_UNKNOWN = 2


cdef struct KnownRight:
    # What a connection may publish to one target of the front end.
    uint64_t target             # its id; 0 in a free slot
    uint32_t room[6]            # by QoS * 2 + retain flag: the size of payload that is too large; 0: nothing is allowed


cdef class RulesVersion:
    cdef public uint64_t number


cdef class Rights:
    cdef object _source                 # RightsSource: makes the policy anew
    cdef readonly object subject        # topic_template.Subject
    cdef object _policy
    cdef RulesVersion _current          # shared by all
    cdef uint64_t _version              # of _policy, and of all that is known
    cdef uint64_t _decided_by           # number of the rules that the last decision about its filters is by
    cdef KnownRight* _known             # NULL until the first PUBLISH
    cdef uint32_t _mask
    cdef uint32_t _turn                 # which slot is taken next from another target, of those it may be in
    cdef list _refusing                 # for each slot, the decisions that refuse; None where none does
    cdef public object waiting          # messages behind a question to others (asked.Waiting); None while none is

    cdef int may_publish(self, uint64_t target, int flags, Py_ssize_t payload_size) noexcept
    cdef int learn(self, uint64_t target, object rooms) except -1
    cdef int64_t _find(self, uint64_t target) noexcept
    cdef int64_t _place_for(self, uint64_t target) noexcept
    cdef int64_t _find_free(self, uint64_t target) noexcept
    cdef int _resize(self, uint32_t count) except -1
