"""Report the progress of sessions to brokers: how far each has come, and what QoS 2 waits for.

Progress is told a few times a second, for all sessions at once; what a message of QoS 2 waits for, in the turn
of the loop in which it began to wait.
"""

from iotmq.mqtt_front.sessions.kept_session cimport KeptSession

from functools import partial

from iotmq.ports.sessions import RefusedByBrokers

# The broker is told so seldom how far sessions have come: what a crash of the front end repeats at most.
PROGRESS_INTERVAL_S = 0.2
# A broker that refuses something is asked again after so long.
RETRY_S = 1.0

cdef enum:
    TOLD_PER_TURN = 64              # sessions whose progress is told at once: about a millisecond's work
    PERSISTED_PER_TURN = 256        # those whose devices wait for it


cdef class SessionReports:

    def __init__(self, loop not None, port not None):
        """`port` is a ports.sessions.SessionPort."""
        self._loop = loop
        self._port = port
        self._moved = []
        self._persisting = []

    def stop(self):
        """Tell the broker nothing more by itself."""
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None

    cdef int note_moved(self, KeptSession session) except -1:
        """The session has come further."""
        if not session.is_moved:
            session.is_moved = True
            self._moved.append(session)
            if self._progress_timer is None:
                self._progress_timer = self._loop.call_later(PROGRESS_INTERVAL_S, self.tell_progress)
        return 0

    def tell_progress(self):
        """Tell the broker how far sessions have come; a timer does it anyway."""
        self.stop()
        moved, self._moved = self._moved, []
        self._tell(moved)

    def _tell(self, moved):
        """As many as leave the turn room for messages; the rest in the next."""
        cdef KeptSession session
        cdef list told = []
        cdef list changes = []
        for session in moved[:TOLD_PER_TURN]:
            if not session.is_ended and session.is_moved:
                told.append(session)
                session.reports_under_way += 1
                changes.append(session.progress())
        if changes:
            self._port.progress(changes, partial(self._told, told))
        if len(moved) > TOLD_PER_TURN:
            self._loop.call_soon(self._tell, moved[TOLD_PER_TURN:])

    def _told(self, list sessions not None, refused):
        cdef KeptSession session
        for session in sessions:
            session.reports_under_way -= 1
        if refused is None:
            return
        self.refused += 1
        for session in sessions:
            # Told again with the next progress of each, or when their device goes.
            session.not_persisted()

    cdef int persist(self, KeptSession session) except -1:
        """The session has something that the broker has to know before its device does."""
        session.has_moved_flights = True
        if not session.is_persisting:
            session.is_persisting = True
            if not self._persisting:
                self._loop.call_soon(self._persist)
            self._persisting.append(session)
        return 0

    def _persist(self):
        """As many as leave the turn room for messages: one of QoS 2 may be for all sessions there are."""
        sessions, self._persisting = self._persisting[:PERSISTED_PER_TURN], self._persisting[PERSISTED_PER_TURN:]
        if self._persisting:
            self._loop.call_soon(self._persist)
        self._persist_all(sessions)

    def _persist_all(self, sessions):
        cdef KeptSession session
        cdef list waiting = []
        cdef list changes = []
        for session in sessions:
            session.is_persisting = False
            if not session.is_ended:
                waiting.append((session, *session.begin_persisting()))
                session.reports_under_way += 1
                changes.append(session.progress())

        def persisted(refused):
            cdef KeptSession known
            cdef list left = []
            for known, held, to_release in waiting:
                known.reports_under_way -= 1
                if refused is None:
                    known.persisted(held, to_release)
                elif not isinstance(refused, RefusedByBrokers):
                    # The device is not told, so nothing is wrong yet.
                    known.not_persisted()
                    left.append(known)
                elif known.partly_persisted(held, to_release, refused.brokers):
                    left.append(known)
            if refused is not None:
                self.refused += 1
                if left:
                    self._loop.call_later(RETRY_S, self._persist_again, left)

        if waiting:
            self._port.progress(changes, persisted)

    def _persist_again(self, sessions):
        """Each alone: what one of them has may be what the broker refuses."""
        cdef KeptSession session
        for session in sessions[:TOLD_PER_TURN]:
            if not session.is_ended:
                self._persist_all([session])
        if len(sessions) > TOLD_PER_TURN:
            self._loop.call_soon(self._persist_again, sessions[TOLD_PER_TURN:])
