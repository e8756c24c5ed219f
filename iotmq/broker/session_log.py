"""Changes of sessions on their way into the log: many in one turn of the loop are one append."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from iotmq.broker.element import encode_element
from iotmq.broker.intake import Intake, IntakeError, StoredBatch
from iotmq.broker.session_records import Change, encode_changes
from iotmq.broker.topics import SESSION_TOPIC
from iotmq.client.session_ports import Refused
from iotmq.clock import Clock

LoggedDone = Callable[[int | Refused], None]
"""Told the position of the record, once it is as durable as the broker promises, or why it is not stored."""


class SessionLog:
    """Writes the records of SESSION_TOPIC. `host` is the address they carry as born host."""

    def __init__(self, intake: Intake, clock: Clock, *, host: bytes) -> None:
        self._intake = intake
        self._clock = clock
        self._host = host
        self._elements: list[bytes] = []
        self._waiting: list[LoggedDone] = []
        self.records_total = 0

    def write(self, changes: Sequence[Change], done: LoggedDone) -> None:
        """Store changes as one record, with all others of this turn of the loop."""
        if not self._elements:
            asyncio.get_running_loop().call_soon(self._append)
        self._elements.append(encode_element(encode_changes(changes), b"", 0))
        self._waiting.append(done)

    def flush(self) -> None:
        """Append what waits for the end of the turn."""
        if self._elements:
            self._append()

    def _append(self) -> None:
        if not self._elements:
            return
        elements, self._elements = self._elements, []
        waiting, self._waiting = self._waiting, []
        self.records_total += len(elements)

        def stored(result: StoredBatch | IntakeError) -> None:
            if isinstance(result, IntakeError):
                refused = Refused(result.code, result.remark)
                for done in waiting:
                    done(refused)
            else:
                for done, position in zip(waiting, result.appended.positions(), strict=True):
                    done(position)

        self._intake.append(
            SESSION_TOPIC,
            0,
            b"".join(elements),
            born_timestamp_ms=self._clock.now_ms(),
            born_host=self._host,
            done=stored,
            is_patient=True,
            is_internal=True,
        )
