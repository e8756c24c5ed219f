"""Remember what one connection may publish, for the hot path.

Operations: one question per PUBLISH: target, QoS, retain flag and size of the payload in, yes or no out. Goals: a
few comparisons and no Python object while a connection publishes to the topics it did before, for any number of
rules; changed rules hold for the next message. Plan: answers stand in a small table, a slot per target by the last
bits of its id, which front ends count up; a larger one is taken while targets push each other out. A number that all
connections share counts changes of rules: with another number nothing is known any more.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

cdef enum:
    SLOTS_MIN = 2
    SLOTS_MAX = 64      # 2 KB


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
        self._version = 0

    def note_decided(self):
        """A decision about the connection's filters begins."""
        self._decided_by = self._current.number

    @property
    def is_outdated(self):
        """Return whether rules have changed since that decision began."""
        return self._decided_by != self._current.number

    cdef int may_publish(self, uint64_t target, int flags, Py_ssize_t payload_size) noexcept:
        """RIGHT_UNKNOWN: `learn` has to be told first. `flags` are QoS * 2 + retain flag."""
        cdef KnownRight* known
        if self._known == NULL or self._version != self._current.number:
            return RIGHT_UNKNOWN
        known = &self._known[target & self._mask]
        if known.target != target:
            return RIGHT_UNKNOWN
        return RIGHT_ALLOWED if payload_size < <Py_ssize_t>known.room[flags] else RIGHT_REFUSED

    cdef int learn(self, uint64_t target, object rooms) except -1:
        """Remember what the policy says about a target (decisions.Rooms)."""
        cdef KnownRight* known
        cdef int flags
        if self._known == NULL:
            self._mask = SLOTS_MIN - 1
            self._known = <KnownRight*>calloc(SLOTS_MIN, sizeof(KnownRight))
            if self._known == NULL:
                raise MemoryError
            self._refusing = [None] * SLOTS_MIN
        known = &self._known[target & self._mask]
        if known.target and known.target != target and self._mask + 1 < SLOTS_MAX:
            self._grow()
            known = &self._known[target & self._mask]
        known.target = target
        for flags in range(6):
            known.room[flags] = rooms.room[flags]
        self._refusing[target & self._mask] = rooms.rules
        return 0

    cdef int _grow(self) except -1:
        cdef uint32_t count = (self._mask + 1) * 2
        cdef uint32_t index
        cdef KnownRight* larger = <KnownRight*>calloc(count, sizeof(KnownRight))
        cdef list refusing = [None] * count
        if larger == NULL:
            raise MemoryError
        for index in range(self._mask + 1):
            if self._known[index].target:
                larger[self._known[index].target & (count - 1)] = self._known[index]
                refusing[self._known[index].target & (count - 1)] = self._refusing[index]
        free(self._known)
        self._known = larger
        self._mask = count - 1
        self._refusing = refusing
        return 0

    def refusing(self, uint64_t target, int flags):
        """Return the name of the rule that refuses, after `may_publish` said so."""
        return self._refusing[target & self._mask][flags]

    # For tests

    def _ask(self, uint64_t target, int flags, Py_ssize_t payload_size):
        return self.may_publish(target, flags, payload_size)

    def _learn(self, uint64_t target, rooms not None):
        self.learn(target, rooms)

    @property
    def _slots(self):
        return 0 if self._known == NULL else self._mask + 1
