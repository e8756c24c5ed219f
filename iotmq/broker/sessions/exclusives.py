"""Exclusive subscriptions: a filter that one session at a time may have to itself.

For each filter one broker decides, whatever front ends and sessions there are: front ends ask the one whose
name and the filter hash highest. Who has it is a record of the log, so that it survives the broker; a record
frees it, or the end of the session. What was left over all the same is found by a sweep.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from iotmq.broker.session_store.log import SessionLog
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.records import FreeExclusive, HoldExclusive
from iotmq.clock import Clock
from iotmq.metrics import Metric, samples
from iotmq.ports.sessions import Refused
from iotmq.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

# So often it is looked for filters whose session has gone without giving them back.
SWEEP_INTERVAL_S: Final = 5.0
# Not before so long after a start: front ends come back by and by.
START_GRACE_S: Final = 10.0


class Exclusives:
    """The exclusive subscriptions that one broker decides about. On the loop's thread.

    `is_connected(client id)` says whether some front end has the client.
    """

    def __init__(
        self,
        projection: SessionProjection,
        log: SessionLog,
        clock: Clock,
        *,
        count_max: int,
        is_connected: Callable[[str], bool],
    ) -> None:
        self._projection = projection
        self._stored = projection.exclusives
        self._log = log
        self._clock = clock
        self._count_max = count_max
        self._is_connected = is_connected
        # Of what is on its way to the log.
        self._holding: Counter[str] = Counter()
        self._freeing: Counter[str] = Counter()
        self._sweep_due_s = clock.monotonic_s() + START_GRACE_S
        self.refused_total = 0
        self.swept_total = 0

    def start(self) -> None:
        """Give front ends their time to come back, from now on."""
        self._sweep_due_s = self._clock.monotonic_s() + START_GRACE_S

    def claim(
        self,
        client_id: str,
        filters: Sequence[str],
        *,
        is_there: Callable[[], bool],
        done: Callable[[list[Refused | None]], None],
    ) -> None:
        """Have filters for a client alone; an outcome for each. `is_there()`: it is connected still."""
        outcomes = {topic_filter: self._refusal(client_id, topic_filter) for topic_filter in filters}
        wanted = [topic_filter for topic_filter, refused in outcomes.items() if refused is None]

        def logged(position: int | Refused) -> None:
            self._holding.subtract(wanted)
            self._holding = +self._holding
            for topic_filter in wanted:
                if isinstance(position, Refused):
                    outcomes[topic_filter] = position
                elif self._stored.holder(topic_filter) != client_id:
                    outcomes[topic_filter] = _TAKEN
            if not is_there():
                self._free(client_id, self._unused(client_id, wanted))
            self.refused_total += sum(outcomes[name] is _TAKEN for name in wanted)
            done([outcomes[topic_filter] for topic_filter in filters])

        self.refused_total += len(outcomes) - len(wanted)
        if wanted:
            self._holding.update(wanted)
            self._log.write([HoldExclusive(client_id, wanted)], logged)
        else:
            done([outcomes[topic_filter] for topic_filter in filters])

    def release(self, client_id: str, filters: Iterable[str] | None = None) -> None:
        """A client does not want these filters any more, or any (None)."""
        held = self._stored.of(client_id)
        if held:
            self._free(client_id, [name for name in (held if filters is None else filters) if name in held])

    def expire(self) -> None:
        """Free what nobody has any more; called about once a second."""
        now_s = self._clock.monotonic_s()
        if now_s < self._sweep_due_s:
            return
        self._sweep_due_s = now_s + SWEEP_INTERVAL_S
        left: dict[str, list[str]] = {}
        for topic_filter, client_id in self._stored.all():
            if not self._is_connected(client_id) and not self._freeing[topic_filter]:
                left.setdefault(client_id, []).append(topic_filter)
        for client_id, filters in left.items():
            unused = self._unused(client_id, filters)
            self.swept_total += len(unused)
            self._free(client_id, unused)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("subscriptions", "Filters that a session has to itself.", len(self._stored)),
            ("refused_total", "Exclusive subscriptions refused: another's, or too many.", self.refused_total),
            ("swept_total", "Exclusive subscriptions freed late: their session had gone.", self.swept_total),
            prefix="iotmq_broker_exclusive_",
        )

    def _refusal(self, client_id: str, topic_filter: str) -> Refused | None:
        """Return why a filter cannot be had; None when the log decides."""
        holder = self._stored.holder(topic_filter)
        if holder is not None:
            # One that is being freed is decided about by the log, where that comes first.
            return None if holder == client_id or self._freeing[topic_filter] else _TAKEN
        if len(self._stored) + len(self._holding) < self._count_max:
            return None
        return Refused(
            ResponseCode.NO_PERMISSION,
            f"no more exclusive subscriptions: broker.exclusive_subscriptions_max is {self._count_max}",
        )

    def _unused(self, client_id: str, filters: Iterable[str]) -> list[str]:
        """Of filters that a client has, which is not connected, those that its session does not subscribe."""
        session = self._projection.session(client_id)
        subscribed = () if session is None else session.subscriptions
        return [topic_filter for topic_filter in filters if topic_filter not in subscribed]

    def _free(self, client_id: str, filters: list[str]) -> None:
        if not filters:
            return

        def logged(position: int | Refused) -> None:
            self._freeing.subtract(filters)
            self._freeing = +self._freeing
            if isinstance(position, Refused):
                # The sweep finds it.
                logger.warning("an exclusive subscription is not freed: %s", position.remark)

        self._freeing.update(filters)
        self._log.write([FreeExclusive(client_id, filters)], logged)


_TAKEN: Final = Refused(ResponseCode.NO_PERMISSION, "another session has the filter to itself")
