"""Wills of clients that vanished: published at once, or after a delay unless the client is back by then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from iotmq.broker.session_store.log import SessionLog, log_refusal
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.records import WillSent
from iotmq.event_loop import DueAction, DueActions
from iotmq.ports.sessions import Will

# What wills that wait keep in memory, all of them; others are looked up in their sessions when they are due.
WAITING_BYTES_MAX: Final = 16 << 20
# A will beside its message, and its places in the tables here.
_WILL_BYTES: Final = 512


class _DelayedWill(NamedTuple):
    """A will with a delay, the epoch of the session it belongs to, and what publishes it.

    None for a will that is left to the session, which has it as long as it was not published.
    """

    epoch: int
    will: Will | None
    due: DueAction


class Wills:
    """The wills of one broker's clients."""

    def __init__(
        self,
        projection: SessionProjection,
        log: SessionLog,
        actions: DueActions,
        *,
        publish: Callable[[Will], None],
    ) -> None:
        """`publish` stores, or delivers, a will."""
        self._projection = projection
        self._log = log
        self._actions = actions
        self._publish = publish
        # By client id; a client has one at most, however often it comes and goes.
        self._waiting: dict[str, _DelayedWill] = {}
        self._waiting_bytes = 0
        # By client id and epoch.
        self._held: dict[tuple[str, int], Will] = {}
        self.sent_total = 0

    def send(self, client_id: str, epoch: int, will: Will, *, is_durable: bool = True) -> None:
        """Publish a will, unless its session has gone on: the client came back in time."""
        if is_durable:
            stored = self._projection.session(client_id)
            if stored is not None and stored.epoch != epoch:
                return
            if stored is not None:
                self._log.write([WillSent(client_id, epoch)], log_refusal)
        self.sent_total += 1
        self._publish(will)

    def delay(self, client_id: str, epoch: int, will: Will, delay_s: float) -> None:
        """Send a will later, in place of one that waits for the same client."""
        self._forget(client_id)
        due = self._actions.do_later(delay_s, partial(self._send_waiting, client_id))
        size = _size(will)
        is_kept = self._waiting_bytes + size <= WAITING_BYTES_MAX
        self._waiting_bytes += size if is_kept else 0
        self._waiting[client_id] = _DelayedWill(epoch, will if is_kept else None, due)

    def drop(self, client_id: str, epoch: int) -> None:
        """Publish nothing for a client that has gone: its front end says that it may not any more."""
        stored = self._projection.session(client_id)
        if stored is None or stored.epoch != epoch or stored.will is None:
            return
        self._log.write([WillSent(client_id, epoch)], log_refusal)
        waiting = self._waiting.get(client_id)
        if waiting is not None and waiting.epoch == epoch:
            self._forget(client_id)

    def hold(self, client_id: str, epoch: int, will: Will, *, for_s: float) -> None:
        """Publish a will after `for_s`, unless its front end turns out to be alive by then (`release`).

        The session has gone on at another front end. When the former one lives and learns that, it sends the
        will itself.
        """
        self._held[client_id, epoch] = will
        self._actions.do_later(for_s, partial(self._send_held, client_id, epoch))

    def release(self, client_id: str, epoch: int) -> None:
        """Forget a will: the front end that had the session lives, and sees to it."""
        self._held.pop((client_id, epoch), None)

    def client_is_back(self, client_id: str, *, ends: bool) -> None:
        """A client gets a session: its will is dropped, or sent when that `ends` the session of the will."""
        waiting = self._waiting.get(client_id)
        if waiting is not None and ends:
            self._send_late(client_id, waiting)
        self._forget(client_id)

    def session_ends(self, client_id: str) -> None:
        """Send the will of an absent client now, whose session is about to end."""
        self.client_is_back(client_id, ends=True)

    def _send_waiting(self, client_id: str) -> None:
        # First, because the database may refuse it.
        self._send_late(client_id, self._waiting[client_id])
        self._drop(client_id)

    def _send_late(self, client_id: str, waiting: _DelayedWill) -> None:
        will = waiting.will
        if will is None:
            stored = self._projection.session(client_id)
            will = None if stored is None or stored.epoch != waiting.epoch else stored.will
        if will is not None:
            self.send(client_id, waiting.epoch, will)

    def _send_held(self, client_id: str, epoch: int) -> None:
        will = self._held.pop((client_id, epoch), None)
        if will is not None:
            self.sent_total += 1
            self._publish(will)

    def _forget(self, client_id: str) -> None:
        waiting = self._drop(client_id)
        if waiting is not None:
            self._actions.cancel(waiting.due)

    def _drop(self, client_id: str) -> _DelayedWill | None:
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None and waiting.will is not None:
            self._waiting_bytes -= _size(waiting.will)
        return waiting

    def check_invariants(self) -> None:
        """Raise AssertionError when a will waits for nothing."""
        assert all(waiting.due.action is not None for waiting in self._waiting.values())
        assert len(self._waiting) <= len(self._actions)
        kept = [waiting.will for waiting in self._waiting.values() if waiting.will is not None]
        assert self._waiting_bytes == sum(map(_size, kept)) <= WAITING_BYTES_MAX


def _size(will: Will) -> int:
    return _WILL_BYTES + len(will.elements)
