"""Audit records: who connected, was refused or changed something, as JSON in a topic of the broker's own.

A front end and a broker keep their records in an `AuditLog` each until these are written: a bounded number,
in batches, and nobody waits for it. What there is no room for is counted and gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, Literal, TypeAlias

import msgspec

from iotmq import limits
from iotmq.backoff import Backoff
from iotmq.clock import Clock
from iotmq.errors import RefusedError
from iotmq.message.message_ids import UniqueKeys
from iotmq.message.properties import KEYS, TAGS, UNIQ_KEY, encode_properties
from iotmq.message.records.record import encode_batch
from iotmq.metrics import Metric, samples, samples_by
from iotmq.ports.client_pages import Refusal, RefusedAnswer, RefusedQuestion, fits_pattern
from iotmq.ports.gateway import AppendDone
from iotmq.supervised import FAILURES, surviving

AUDIT_TOPIC: Final = "rmq_sys_iotmq_audit"
"""Where all records are."""

MqttEvent: TypeAlias = Literal[
    "connected", "disconnected", "refused", "denied", "kicked", "banned", "revoked"
]
BrokerEvent: TypeAlias = Literal["administered", "refused", "denied"]

Write: TypeAlias = Callable[[bytes, int, bool, AppendDone], None]
"""Takes elements in batch encoding, how many they are, whether they were offered before, and who is told."""

#: `AuditLog.record`, as parts are given it.
Record: TypeAlias = Callable[..., None]

# So long records are collected before they are written together.
_INTERVAL_S: Final = 0.2
_RETRY_S_MIN: Final = 0.5
_RETRY_S_MAX: Final = 30.0
_SUCCESS: Final = 0
_FAILED: Final = 1
# The code of a batch that will never be taken.
_ILLEGAL: Final = 13
_REFUSED: Final = "refused"
# Fields of such an event, and what they are of a Refusal.
_REFUSAL_FIELDS: Final = {
    "client": "client_id",
    **{
        name: name
        for name in (
            "user", "account", "address", "listener", "certificate", "request", "reason", "detail",
        )
    },
}  # fmt: skip
# Of each text of a refusal that is remembered: half a mebibyte for all of them, if somebody makes them long.
_REMEMBERED_CHARACTERS: Final = 128
# What a record is found by: the first of these that it has.
_KEY_FIELDS: Final = ("client", "account", "user", "address")


def no_audit(event: str, **fields: str | int | None) -> None:
    """Record nothing: what parts have until they are given something that does."""


class Refusals:
    """The last ones who were not let in, for operators; a bounded number, with their texts cut."""

    def __init__(self) -> None:
        self._last: deque[Refusal] = deque(maxlen=limits.REFUSALS_REMEMBERED_MAX)

    def note(self, now_ms: int, fields: Mapping[str, str | int | None]) -> None:
        """Remember a refusal by the fields of its event."""
        texts = {
            _REFUSAL_FIELDS[name]: value[:_REMEMBERED_CHARACTERS].encode("utf-8", "replace").decode()
            for name, value in fields.items()
            if isinstance(value, str) and name in _REFUSAL_FIELDS
        }
        self._last.append(Refusal(time_ms=now_ms, **texts))

    async def answer(self, body: bytes) -> bytes:
        """Answer a RefusedQuestion of an operator."""
        try:
            asked = msgspec.msgpack.decode(body, type=RefusedQuestion)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RefusedError(f"the question cannot be read: {error}") from None
        patterns = {
            name: pattern
            for name in ("client_id", "user", "address", "reason")
            if (pattern := getattr(asked, name))
        }
        found: list[Refusal] = []
        for refusal in reversed(self._last):
            if all(fits_pattern(pattern, getattr(refusal, name)) for name, pattern in patterns.items()):
                found.append(refusal)
                if len(found) == asked.limit:
                    break
        return msgspec.msgpack.encode(RefusedAnswer(refusals=found, remembered=len(self._last)))


class AuditLog:
    """Audit records on their way. All calls belong to the event loop's thread."""

    def __init__(
        self, write: Write, clock: Clock, *, source: str, events: Collection[str], per_second_max: int
    ) -> None:
        """`source` names the process in its records. Events that are not among `events` cost a look there."""
        self._write = write
        self._clock = clock
        self._source = source
        self._events = frozenset(events)
        self._per_second_max = per_second_max
        self._second = 0
        self._in_second = 0
        self._keys = UniqueKeys(clock=clock)
        # Records with their sizes; the batch in the hands of `write`, and how many it has.
        self._waiting: deque[tuple[bytes, bytes, int]] = deque()
        self._waiting_bytes = 0
        self._batch = b""
        self._batch_count = 0
        self._is_writing = False
        self._backoff = Backoff(min_s=_RETRY_S_MIN, max_s=_RETRY_S_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self.refusals = Refusals()
        """The last events `refused`, whether they are recorded or not."""
        self.recorded_count = 0
        self.dropped = {"rate": 0, "room": 0, "refused": 0}

    def record(self, event: str, **fields: str | int | None) -> None:
        """Note an event; what a field is is its name. Never waits and never fails."""
        if event == _REFUSED:
            self.refusals.note(self._clock.now_ms(), fields)
        if event not in self._events:
            return
        now_ms = self._clock.now_ms()
        second = now_ms // 1_000
        if second != self._second:
            self._second = second
            self._in_second = 0
        if self._in_second >= self._per_second_max:
            self.dropped["rate"] += 1
            return
        self._in_second += 1
        with surviving("audit records"):
            body, properties = self._encoded(event, now_ms, fields)
            size = len(body) + len(properties)
            if (
                len(self._waiting) >= limits.AUDIT_RECORDS_MAX
                or self._waiting_bytes + size > limits.AUDIT_BYTES_MAX
            ):
                self.dropped["room"] += 1
                return
            self._waiting.append((body, properties, size))
            self._waiting_bytes += size
            if self._timer is None and not self._is_writing:
                self._flush_after(_INTERVAL_S)

    def flush(self) -> None:
        """Write what waits, as much as a batch takes, unless a batch is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_writing:
            return
        is_repeat = bool(self._batch_count)
        if not is_repeat:
            self._batch, self._batch_count = self._take_batch()
        if self._batch_count:
            self._is_writing = True
            try:
                self._write(self._batch, self._batch_count, is_repeat, self._written)
            except Exception:
                FAILURES.note("audit records")
                if self._is_writing:
                    # Nobody answers for it any more.
                    self._written(_FAILED, "")

    def close(self) -> None:
        """Write all that waits, also beside a batch that is under way, and nothing by itself any more."""
        self._events = frozenset()
        self.flush()
        while self._waiting:
            batch, count = self._take_batch()
            with surviving("audit records"):
                self._write(batch, count, False, partial(self._written_last, count))

    def metrics(self, prefix: str) -> Iterable[Metric]:
        """Report the numbers of these records under names that begin with `prefix`."""
        yield from samples(
            (f"{prefix}_audit_records_total", "Audit records that are stored.", self.recorded_count),
            (
                f"{prefix}_audit_waiting",
                "Audit records that wait to be stored.",
                len(self._waiting) + self._batch_count,
            ),
        )
        text = "Audit records dropped, by reason: more than the rate, no room, refused by the log."
        yield from samples_by("reason", f"{prefix}_audit_dropped_total", text, self.dropped)

    def check_invariants(self) -> None:
        assert len(self._waiting) <= limits.AUDIT_RECORDS_MAX
        assert self._waiting_bytes == sum(size for _, _, size in self._waiting) <= limits.AUDIT_BYTES_MAX
        assert bool(self._batch) == bool(self._batch_count)

    def _encoded(self, event: str, now_ms: int, fields: dict[str, str | int | None]) -> tuple[bytes, bytes]:
        document: dict[str, str | int] = {"time_ms": now_ms, "event": event, "source": self._source}
        for name, value in fields.items():
            if value is not None:
                document[name] = _shortened(value) if isinstance(value, str) else value
        properties = {TAGS: event}
        key = next((str(document[name]) for name in _KEY_FIELDS if document.get(name)), "")
        # A space would end the key.
        if key and key.isprintable() and " " not in key:
            properties[KEYS] = key
        properties[UNIQ_KEY] = self._keys.next()
        return msgspec.json.encode(document), encode_properties(properties)

    def _take_batch(self) -> tuple[bytes, int]:
        elements: list[tuple[bytes, bytes, int]] = []
        size_bytes = 0
        while self._waiting and size_bytes < limits.AUDIT_BATCH_BYTES_MAX:
            body, properties, size = self._waiting.popleft()
            elements.append((body, properties, 0))
            size_bytes += size
        self._waiting_bytes -= size_bytes
        return (encode_batch(elements) if elements else b""), len(elements)

    def _written(self, code: int, remark: str) -> None:
        self._is_writing = False
        if code not in (_SUCCESS, _ILLEGAL):
            self._flush_after(self._backoff.next_s())
            return
        self._backoff.reset()
        self._written_last(self._batch_count, code, remark)
        self._batch = b""
        self._batch_count = 0
        if self._waiting:
            self._flush_after(0.0)

    def _written_last(self, count: int, code: int, remark: str) -> None:
        """Count records that nobody offers again."""
        if code == _SUCCESS:
            self.recorded_count += count
        else:
            self.dropped["refused"] += count

    def _flush_after(self, delay_s: float) -> None:
        if self._events:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.flush)


def _shortened(text: str) -> str:
    """Return text of a peer as one that can be encoded, and of a bounded length."""
    return text[: limits.AUDIT_TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode()
