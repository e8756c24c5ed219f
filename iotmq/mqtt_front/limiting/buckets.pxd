from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


# What a bucket counts.
cdef enum:
    MESSAGES_IN = 0
    BYTES_IN = 1
    MESSAGES_OUT = 2
    BYTES_OUT = 3
    CONNECTS = 4
    KINDS = 5
    HELD_COUNTS = 20    # SCOPES_MAX * KINDS

cdef enum:
    SCOPES_MAX = 4      # of one device: client, user, address, listener


cdef struct Bucket:
    int64_t left        # millionths of a token; below 0 they are owed
    int64_t most        # the burst, in millionths
    int64_t rate        # tokens a second, which are millionths a microsecond; 0 = no limit
    int64_t at_us       # when `left` was right


cdef class Scope:
    cdef Bucket buckets[KINDS]
    cdef readonly str name              # client, user, address or listener
    cdef readonly object key
    cdef public uint32_t connections    # open ones
    cdef object _waiting_in             # deques of DeviceLimits; None while nobody waits
    cdef object _waiting_out
    cdef uint8_t _is_due_in             # it stands in the pacer's wheel
    cdef uint8_t _is_due_out

    cdef int64_t _missing_us(self, Pacer pacer, int first) except? -1
    cdef int wait(self, DeviceLimits device, Pacer pacer, int first) except -1
    cdef int serve(self, Pacer pacer, int first) except -1


cdef class Pacer:
    cdef object _loop
    cdef object _clock                  # None: the machine's own
    cdef readonly int64_t now_us
    cdef dict _wheel                    # number of a tick -> list of (scope, first kind)
    cdef int64_t _next_tick
    cdef bint _is_ticking
    cdef uint64_t _held[HELD_COUNTS]    # by place of the scope's name, and kind
    cdef uint64_t _dropped[SCOPES_MAX]
    cdef object _noted                  # called with (scope, kind) when something is held

    cdef int look(self) except -1
    cdef int _put(self, Scope scope, int first, int64_t pause_us) except -1
    cdef int note_held(self, Scope scope, int kind) except -1


cdef class DeviceLimits:
    cdef readonly Pacer pacer
    cdef object _device                 # None once its connection is over
    cdef readonly tuple scopes
    cdef Bucket* _of_kind[KINDS][SCOPES_MAX]
    cdef uint8_t _counts[KINDS]
    cdef uint8_t _is_waiting_in
    cdef uint8_t _is_waiting_out

    cdef bint take(self, int kind, int64_t count) except -1
    cdef Scope _lacking(self, int first)
    cdef int64_t bytes_at_once(self) noexcept
    cdef int wait(self, int first) except -1
    cdef bint came(self, int first) except -1
    cdef int note_dropped(self) except -1
