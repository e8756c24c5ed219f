"""Sessions that had an owner before the start of the broker: front ends claim them, or they are closed."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from iotmq.broker.parts import BrokerParts
from iotmq.broker.session_store.log import SessionLog, log_refusal
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.records import Close
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.broker.sessions.attachments import PER_TURN
from iotmq.broker.sessions.wills import Wills
from iotmq.event_loop import LoopSlice

# After a start of the broker front ends come back by and by.
START_GRACE_S: Final = 10.0


class UnclaimedSessions:
    """The sessions of one broker that nobody has claimed since the start.

    `owners` has the client ids of those that have an owner in this life of the broker.
    """

    def __init__(
        self,
        parts: BrokerParts,
        projection: SessionProjection,
        log: SessionLog,
        wills: Wills,
        *,
        owners: Container[str],
    ) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._projection = projection
        self._log = log
        self._wills = wills
        self._owners = owners
        self._claimed: set[str] = set()
        # Up to which client id sessions that had an owner at the start were looked at; None when all were.
        self._looked_at: str | None = ""
        self.start()

    def start(self) -> None:
        """Give front ends their time from now on."""
        self._started_s = self._clock.monotonic_s()
        # Sessions opened from here on had their owner in this life of the broker, as those that were claimed.
        self._start_position = self._store.appended_position

    def claim(self, client_id: str) -> None:
        """Note that its front end has claimed a session."""
        if self._looked_at is not None:
            self._claimed.add(client_id)

    def keep_left_will(self, client_id: str, stored: StoredSession, *, is_clean: bool) -> None:
        """Hold back the will of a client that another front end has, as long as the former one may claim it.

        If it does not, the will is due, as for every client that nobody claims.
        """
        is_settled = self._looked_at is None or client_id in self._claimed
        if is_settled or stored.epoch >= self._start_position:
            return
        will = stored.will
        # One with a delay is not due when its session goes on in time [MQTT-3.1.3-9].
        if will is None or not stored.owner or (will.delay_s and not is_clean):
            return
        settled_s = self._started_s + START_GRACE_S - self._clock.monotonic_s()
        self._wills.hold(client_id, stored.epoch, will, for_s=max(0.0, settled_s))

    def close(self) -> None:
        """Close some sessions of those that are left when the time is over; called about once a second."""
        is_over = self._clock.monotonic_s() - self._started_s >= START_GRACE_S
        if self._looked_at is None or not is_over:
            return
        turn = LoopSlice(PER_TURN)
        for client_id, session in self._projection.unsettled(after=self._looked_at or None):
            if not turn.take():
                return
            self._looked_at = client_id
            # Who had an owner in this life is looked after when that goes, its will included.
            was_claimed = client_id in self._owners or client_id in self._claimed
            if was_claimed or session.epoch >= self._start_position:
                continue
            if session.owner:
                self._log.write([Close(client_id, session.epoch, session.expiry_s, False)], log_refusal)
            if session.will is not None:
                self._wills.delay(client_id, session.epoch, session.will, session.will.delay_s)
        self._looked_at = None
        self._claimed.clear()
