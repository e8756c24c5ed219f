"""Remember the last batch of each producer that numbers its batches: a projection of the log.

A sender that may be killed and begun again, or run twice at once, cannot know which of its batches are
stored. It numbers them: batch and number, from 0 on in each batch, one after the other for each topic. The
first message of a batch carries the numbers (`batch_marks`). What is not behind the last one is stored.

A mark's owner is the topic: whoever may send there could have written the messages, too. Marks of a topic
that was deleted are nothing to one of the same name that was made later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.exactly_once.batch_marks import collect_numbers, read_mark
from iotmq.broker.exactly_once.marks import Entry, Marks
from iotmq.broker.writing.single_message_batch import split_elements
from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import BATCH_NUMBER
from iotmq.message.records.record import check_batch
from iotmq.metrics import Metric, samples

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

NAME: Final = "batch_numbers"
FORMAT_VERSION: Final = 1
NUMBER_BITS: Final = 27


class BatchNumber(NamedTuple):
    """Which batch of a producer: the number within `batch` counts from 0."""

    batch: int
    number: int


class NumberedBatch(NamedTuple):
    """Hold what a batch says of itself: its `number` as marks have it, and how many messages it has."""

    key: bytes
    number: int
    message_count: int

    def problem_after(self, last: int | None) -> str:
        """Return why it cannot follow the last batch of its producer, or repeat it; empty when it can."""
        batch, number = unpacked(self.number)
        if last is None:
            return f"number {number} of batch {batch}, and nothing is known of its producer" if number else ""
        if self.number <= last + 1 or not number:
            return ""
        known = unpacked(last)
        return (
            f"number {number} of batch {batch} does not follow the last one of its producer here, number "
            f"{known.number} of batch {known.batch}"
        )


class BatchNumbers(Marks):
    """The marks of producers. For the store's thread alone."""

    def __init__(
        self,
        key_values: KeyValueStore,
        *,
        producers_max: int = limits.BATCH_PRODUCERS_MAX,
        bytes_max: int = limits.BATCH_PRODUCERS_BYTES_MAX,
        made_at: Callable[[str], int] = lambda topic: 0,
    ) -> None:
        """`made_at` tells where the log ended when a topic was made."""
        self._made_at = made_at
        # Where the log ended when this broker began to append by itself; set by `begin`.
        self._begun_position = 0
        super().__init__(
            key_values, NAME, format_version=FORMAT_VERSION, count_max=producers_max, bytes_max=bytes_max
        )

    def begin(self, end_position: int) -> None:
        """Note that from here on nobody else appends."""
        self._begun_position = end_position
        self.end_append({}, end_position)

    def collect(self, view: memoryview) -> None:
        collect_numbers(view, self._put_number)

    def last(self, key: bytes) -> int | None:
        """Return the number of a producer's last batch; None when nothing is known of it.

        Raises StoreError while that is not known.
        """
        self._check_known()
        recent = self._recent.get(key)
        if recent is not None and recent[0] > self._begin_of(key):
            return recent[1]
        entry = self._applied(key)
        return None if entry is None else entry.number

    def last_position(self, key: bytes) -> int | None:
        """Return where the last batch that was applied stands, or the rest of it; None for an unknown one."""
        entry = self._applied(key)
        return None if entry is None else entry.position

    def torn_position(self, key: bytes) -> int | None:
        """Return where the last batch stands when a power cut may have taken its end, else None.

        What this process has appended is whole.
        """
        position = self.last_position(key)
        return (
            None if position is None or position >= self._begun_position or key in self._recent else position
        )

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_batch_producers", "Producers whose last batch is remembered.", self.count),
            (
                "iotmq_broker_forgotten_batch_producers_total",
                "Producers forgotten because there were too many.",
                self.forgotten_total,
            ),
        )

    def _begin_of(self, key: bytes) -> int:
        """Return the position from which on records of the topic's name are its own."""
        topic, _, _ = key.partition(b"\0")
        return self._made_at(topic.decode("utf-8", "replace"))

    def _applied(self, key: bytes) -> Entry | None:
        entry = self.entry(key)
        if entry is None or entry.position is None:
            return None
        return None if entry.position < max(self._min_position, self._begin_of(key)) else entry

    def _put_number(self, key: bytes, position: int, number: int, skipped: int) -> None:
        before = self.entry(key)
        is_known = (
            before is not None and before.position is not None and before.position >= self._begin_of(key)
        )
        known = before.number if before is not None and is_known else -1
        # Else it is a copy: of a message that waited for its time, or that a consumer gave back.
        if number > known or (number == known and skipped):
            self.put(key, position, number)


def read_numbered(topic: str, elements: Buffer) -> NumberedBatch:
    """Read the numbers of a batch to `topic`. Raises MessageFormatError when it has none that fit it."""
    count = check_batch(elements)
    _, properties, _ = next(split_elements(elements))
    mark = read_mark(properties)
    if mark is None:
        raise MessageFormatError(f"the first message has no valid {BATCH_NUMBER}", 0)
    producer, number, skipped, whole_count, _ = mark
    if skipped or whole_count != count:
        raise MessageFormatError(
            f"{BATCH_NUMBER} says {skipped} before and {whole_count} in all of {count} messages", 0
        )
    return NumberedBatch(key_of(topic, producer), number, count)


def key_of(topic: str, producer: bytes) -> bytes:
    """Return the key of a producer, as batch_marks has it."""
    return topic.encode() + b"\0" + producer


def unpacked(number: int) -> BatchNumber:
    """Return a mark's number in its parts."""
    return BatchNumber(number >> NUMBER_BITS, number & (1 << NUMBER_BITS) - 1)
