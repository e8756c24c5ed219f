"""Define what serves a session that outlives its connection; durable.DurableSession is one."""

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef class QueueSubscription:
    """One filter of a session at one broker."""

    def __init__(self, KeptSession session not None, found):
        """`found` is a ports.sessions.SessionSubscription."""
        self.session = session
        self.topic_filter = found.topic_filter
        self.queue_id = found.queue_id
        self.change(found.options)
        self.next_position = found.cursor
        self.repeated_before = found.sent
        self.pushed_position = -1
        self.live_from = -1

    cdef int change(self, uint64_t options) except -1:
        self.options = options
        self.identifier = <uint32_t>(options >> 8)
        return 0


cdef class KeptSession(DeviceSession):
    """A connected device's session: what comes for it, and what its broker has to know of it."""

    cdef int offer(self, QueueSubscription subscription, int64_t position, OutgoingMessage message) except -1:
        """A record of a queue has just come."""
        raise NotImplementedError("a KeptSession overrides offer")

    cdef int missed(self, QueueSubscription subscription) except -1:
        """Records of the queue were not pushed."""
        raise NotImplementedError("a KeptSession overrides missed")

    cdef object progress(self):
        """Return the changes since the last call, as a SessionProgress."""
        raise NotImplementedError("a KeptSession overrides progress")

    cdef tuple begin_persisting(self):
        """Return what the broker has to know first: (messages that are held, PUBRELs that wait)."""
        raise NotImplementedError("a KeptSession overrides begin_persisting")

    cdef int persisted(self, held, to_release) except -1:
        """The broker knows what `begin_persisting` gave."""
        raise NotImplementedError("a KeptSession overrides persisted")

    cdef bint partly_persisted(self, held, to_release, brokers) except -1:
        """As `persisted`, but for what some brokers were to know; True when that waits on."""
        raise NotImplementedError("a KeptSession overrides partly_persisted")

    cdef int not_persisted(self) except -1:
        """The broker does not know it; the same has to come again."""
        raise NotImplementedError("a KeptSession overrides not_persisted")
