"""Write changes of sessions to the log; all changes of one turn of the loop are one append."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from iotmq import limits
from iotmq.broker.session_store.records import Change, encode_changes
from iotmq.broker.tables.topics import SESSION_TOPIC
from iotmq.broker.writing.message_writer import MessageWriter, RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.clock import Clock
from iotmq.event_loop import NextTurn
from iotmq.ports.sessions import Refused
from iotmq.remoting.codes import ResponseCode
from iotmq.supervised import surviving

# Records that are appended in one turn of the loop, which applies them: some hundred small ones, or a part of
# how far a session with ten thousand filters has come. The others are for the next, in their order.
APPENDED_BYTES_PER_TURN: Final = 32 * 1024

LoggedDone = Callable[[int | Refused], None]
"""Told the position of the record, once it is as durable as the broker promises, or why it is not stored."""

logger = logging.getLogger(__name__)


def refusal_of(result: int | Refused) -> Refused | None:
    """Return why changes are not stored; None when they are."""
    return result if isinstance(result, Refused) else None


def log_refusal(result: int | Refused) -> None:
    """Log a change that is not stored: the next start finds the session with its owner and repeats it."""
    if isinstance(result, Refused):
        logger.warning("a change of a session is not stored: %s", result.remark)


class SessionLog:
    """Writes the records of SESSION_TOPIC. `host` is the address they carry as born host."""

    def __init__(self, writer: MessageWriter, clock: Clock, *, host: bytes) -> None:
        self._writer = writer
        self._clock = clock
        self._host = host
        self._elements: list[bytes] = []
        self._waiting: list[LoggedDone] = []
        self._turn_end = NextTurn(self._end_turn)
        self.records_total = 0

    def write(self, changes: Sequence[Change], done: LoggedDone) -> None:
        """Store changes as one record, with all others of this turn of the loop."""
        body = encode_changes(changes)
        if len(body) > limits.SESSION_RECORD_BYTES_MAX:
            # With others of this turn it would be refused together with them.
            refused = Refused(ResponseCode.MESSAGE_ILLEGAL, f"changes of sessions of {len(body)} bytes")
            asyncio.get_running_loop().call_soon(done, refused)
            return
        self._turn_end.schedule()
        self._elements.append(encode_element(body, b"", 0))
        self._waiting.append(done)

    def write_apart(self, changes: Sequence[Change], done: Callable[[Refused | None], None]) -> None:
        """Store changes that have nothing to do with each other: one that is too large takes none along."""
        if len(changes) == 1 or len(encode_changes(changes)) <= limits.SESSION_RECORD_BYTES_MAX:
            self.write(changes, lambda result: done(refusal_of(result)))
            return
        refusals: list[Refused | None] = []

        def stored(result: int | Refused) -> None:
            refusals.append(refusal_of(result))
            if len(refusals) == len(changes):
                done(next((refusal for refusal in refusals if refusal is not None), None))

        for change in changes:
            self.write([change], stored)

    def flush(self) -> None:
        """Append what waits for the end of the turn."""
        while self._elements:
            self._append()

    def _end_turn(self) -> None:
        if self._elements:
            self._append()
        if self._elements:
            self._turn_end.schedule()

    def _append(self) -> None:
        count = size = 0
        for element in self._elements:
            size += len(element)
            if count and size > APPENDED_BYTES_PER_TURN:
                break
            count += 1
        elements, self._elements = self._elements[:count], self._elements[count:]
        waiting, self._waiting = self._waiting[:count], self._waiting[count:]
        self.records_total += len(elements)

        def stored(result: StoredBatch | RefusedBatch) -> None:
            outcomes: Sequence[int | Refused]
            if isinstance(result, RefusedBatch):
                outcomes = [Refused(result.code, result.remark)] * len(waiting)
            else:
                outcomes = result.appended.positions()
            for done, outcome in zip(waiting, outcomes, strict=True):
                # What one cannot do is not the others' trouble.
                with surviving("answers to changes of sessions"):
                    done(outcome)

        self._writer.append(
            SESSION_TOPIC,
            0,
            b"".join(elements),
            born_timestamp_ms=self._clock.now_ms(),
            born_host=self._host,
            done=stored,
            is_patient=True,
            is_internal=True,
        )
