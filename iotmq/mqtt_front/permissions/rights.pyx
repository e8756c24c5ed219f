"""Remember what one connection may publish, for the hot path.

Operations: one question per PUBLISH: target, QoS, retain flag and size of the payload in, yes or no out. Goals: a
few comparisons and no Python object while a connection publishes to the topics it did before, for any number of
rules; changed rules hold for the next message. Plan: answers stand in a small table, each in one of four slots that
the id of its target chooses; a table in which four are taken is made larger, up to 64. A number that all connections
share counts changes of rules: with another number nothing is known any more.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    WAYS = 4            # slots that a target may be in
    SLOTS_MIN = 4
    SLOTS_MAX = 64      # 2 KB


cdef inline uint32_t first_slot(uint64_t target) noexcept:
    # Ids are counted up over all devices: those of one device may differ by any step.
    cdef uint64_t mixed = target * <uint64_t>0x9E3779B97F4A7C15
    mixed = (mixed ^ mixed >> 32) * <uint64_t>0x9E3779B97F4A7C15
    return <uint32_t>(mixed >> 40)


cdef class RulesVersion:
    """The number of changes of rules, shared by all connections of a front end."""

    def __init__(self):
        self.number = 1


cdef class Rights:
    """The rights of one connection. `source.policy_of(subject)` says what the present rules are for it."""

    def __init__(self, source not None, subject not None, RulesVersion current not None):
        self._source = source
        self.subject = subject
        self._current = current

    def __dealloc__(self):
        free(self._known)

    @property
    def policy(self):
        """The rules for this connection, as they are now."""
        if self._version != self._current.number:
            self._policy = self._source.policy_of(self.subject)
            self._version = self._current.number
            free(self._known)
            self._known = NULL
            self._refusing = None
        return self._policy

    def change(self, subject not None):
        """Another identity has this connection from now on."""
        self.subject = subject
        self._version = self._decided_by = 0

    def note_decided(self):
        """A decision about the connection's filters begins."""
        self._decided_by = self._current.number

    @property
    def is_outdated(self):
        """Return whether rules have changed since that decision began."""
        return self._decided_by != self._current.number

    cdef int may_publish(self, uint64_t target, int flags, Py_ssize_t payload_size) noexcept:
        """RIGHT_UNKNOWN: `learn` has to be told first. `flags` are QoS * 2 + retain flag."""
        cdef int64_t slot
        if self._known == NULL or self._version != self._current.number:
            return RIGHT_UNKNOWN
        slot = self._find(target)
        if slot < 0:
            return RIGHT_UNKNOWN
        return RIGHT_ALLOWED if payload_size < <Py_ssize_t>self._known[slot].room[flags] else RIGHT_REFUSED

    cdef int64_t _find(self, uint64_t target) noexcept:
        """Return the slot of a target; -1 when there is none."""
        cdef uint32_t slot = first_slot(target)
        cdef uint32_t step
        for step in range(WAYS):
            if self._known[(slot + step) & self._mask].target == target:
                return (slot + step) & self._mask
        return -1

    cdef int64_t _place_for(self, uint64_t target) noexcept:
        """Return the slot for a target, a free one if it has none yet; -1 when all it may have are taken."""
        cdef int64_t found = self._find(target)
        return self._find_free(target) if found < 0 else found

    cdef int64_t _find_free(self, uint64_t target) noexcept:
        cdef uint32_t slot = first_slot(target)
        cdef uint32_t step
        for step in range(WAYS):
            if not self._known[(slot + step) & self._mask].target:
                return (slot + step) & self._mask
        return -1

    cdef int learn(self, uint64_t target, object rooms) except -1:
        """Remember what the policy says about a target (decisions.Rooms)."""
        cdef int64_t slot
        cdef int flags
        if self._known == NULL:
            self._resize(SLOTS_MIN)
        slot = self._place_for(target)
        while slot < 0 and self._mask + 1 < SLOTS_MAX:
            self._resize((self._mask + 1) * 2)
            slot = self._place_for(target)
        if slot < 0:
            self._turn += 1
            slot = (first_slot(target) + self._turn % WAYS) & self._mask
        self._known[slot].target = target
        for flags in range(6):
            self._known[slot].room[flags] = rooms.room[flags]
        self._refusing[slot] = rooms.refusals
        return 0

    cdef int _resize(self, uint32_t count) except -1:
        """Take a table so large, or a larger one in which all have a place; past the largest some are forgotten."""
        cdef uint32_t index
        cdef int64_t slot
        cdef KnownRight* former = self._known
        cdef list refusing = self._refusing
        cdef uint32_t former_count = 0 if former == NULL else self._mask + 1
        cdef bint is_whole = False
        while not is_whole:
            is_whole = True
            self._known = <KnownRight*>calloc(count, sizeof(KnownRight))
            if self._known == NULL:
                self._mask = former_count - 1
                self._refusing = refusing
                self._known = former
                raise MemoryError
            self._mask = count - 1
            self._refusing = [None] * count
            for index in range(former_count):
                if not former[index].target:
                    continue
                slot = self._find_free(former[index].target)
                if slot >= 0:
                    self._known[slot] = former[index]
                    self._refusing[slot] = refusing[index]
                elif count < SLOTS_MAX:
                    is_whole = False
                    break
            if not is_whole:
                free(self._known)
                count *= 2
        free(former)
        return 0

    def refusing(self, uint64_t target, int flags):
        """Return the decision of the rule that refuses, after `may_publish` said so."""
        return self._refusing[self._find(target)][flags]

    # For tests

    def _ask(self, uint64_t target, int flags, Py_ssize_t payload_size):
        return self.may_publish(target, flags, payload_size)

    def _learn(self, uint64_t target, rooms not None):
        self.learn(target, rooms)

    @property
    def _slots(self):
        return 0 if self._known == NULL else self._mask + 1
