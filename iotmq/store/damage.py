"""What is lost when bytes of the log are damaged: which ranges, which offsets, and a copy of the bytes.

Everything found by one start goes to `commitlog.damage/` beside the log: for every range a file
`START-END.bin` with the bytes as they were found and a `START-END.json` that says what they were. The
directory is bounded; what has no room any more is still logged.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from iotmq.store.segment import sync_directory

if TYPE_CHECKING:
    from iotmq.store.commit_log import CommitLog
    from iotmq.store.consume_queue import ConsumeQueue

# With a topic of one letter and nothing else.
SMALLEST_RECORD_BYTES = 92
# Of one range; of the whole directory; and how many ranges are written down one by one.
KEPT_BYTES_MAX = 16 << 20
KEPT_BYTES_TOTAL_MAX = 256 << 20
KEPT_RANGES_MAX = 1000
# Lost offsets named in one report.
LOSSES_MAX = 1000
LOSSES_LOGGED_MAX = 20

logger = logging.getLogger("iotmq.store")


class Loss(msgspec.Struct, frozen=True, order=True):
    """Offsets of a queue whose records are gone; `last_offset` is one of them."""

    topic: str
    queue_id: int
    first_offset: int
    last_offset: int


class Damage(msgspec.Struct, frozen=True):
    """A range of the log that holds no records any more, or never held some that were numbered.

    `kind`: "damaged" for bytes that are no records with records behind them (or that were on the disk by
    the checkpoint), "torn" for a tail that was cut off, "gap" for offsets without a record although no
    byte of the log is damaged. `kept` is the file with the bytes, relative to the data directory.
    """

    kind: str
    start_position: int
    end_position: int
    lost: tuple[Loss, ...] = ()
    kept: str = ""
    kept_bytes: int = 0


def losses_between(queues: ConsumeQueue, start_position: int, end_position: int) -> list[Loss]:
    """What the queues' files say stood in a range; to be asked before they are rewound."""
    losses = []
    for queue in queues.queues():
        first, end = queue.found_between(start_position, end_position)
        if first < end:
            losses.append(Loss(queue.topic, queue.queue_id, first, end - 1))
    return sorted(losses)


class DamageKeeper:
    """Puts damaged bytes aside and writes the reports, below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # What the directory holds; counted when it is first needed.
        self._bytes = -1
        self._count = 0

    def keep(self, kind: str, data: memoryview, start_position: int, end_position: int) -> Damage:
        """Copy the bytes of a range aside, as far as there is room; a failure is logged and nothing else."""
        self._measure()
        # Trailing zeros tell nobody anything.
        kept = bytes(data[: max(0, min(KEPT_BYTES_MAX, KEPT_BYTES_TOTAL_MAX - self._bytes))]).rstrip(b"\0")
        if not kept or self._count >= KEPT_RANGES_MAX:
            return Damage(kind, start_position, end_position)
        path = self._path(start_position, end_position, "bin")
        try:
            self.directory.mkdir(exist_ok=True)
            _write(path, kept)
        except OSError as error:
            logger.warning("cannot keep the damaged bytes in %s: %s", path, error)
            return Damage(kind, start_position, end_position)
        self._bytes += len(kept)
        return Damage(
            kind,
            start_position,
            end_position,
            kept=f"{self.directory.name}/{path.name}",
            kept_bytes=len(kept),
        )

    def report(self, damage: Damage) -> None:
        """Write a range's report beside its bytes, over a former one, and log it."""
        named = [
            f"{loss.topic}/{loss.queue_id}:{loss.first_offset}..{loss.last_offset}"
            for loss in damage.lost[:LOSSES_LOGGED_MAX]
        ]
        if len(damage.lost) > LOSSES_LOGGED_MAX:
            named.append(f"and {len(damage.lost) - LOSSES_LOGGED_MAX} more queues")
        logger.error(
            "log damage: kind=%s start=%d end=%d bytes=%d kept=%s lost=%s",
            damage.kind,
            damage.start_position,
            damage.end_position,
            damage.end_position - damage.start_position,
            damage.kept or "-",
            ",".join(named) or "unknown",
        )
        self._measure()
        path = self._path(damage.start_position, damage.end_position, "json")
        if not path.exists():
            if self._count >= KEPT_RANGES_MAX:
                return
            self._count += 1
        try:
            self.directory.mkdir(exist_ok=True)
            bounded = msgspec.structs.replace(damage, lost=damage.lost[:LOSSES_MAX])
            _write(path, msgspec.json.format(msgspec.json.encode(bounded)) + b"\n")
            sync_directory(str(self.directory))
        except OSError as error:
            logger.warning("cannot write %s: %s", path, error)

    def _path(self, start_position: int, end_position: int, suffix: str) -> Path:
        return self.directory / f"{start_position:020d}-{end_position:020d}.{suffix}"

    def _measure(self) -> None:
        if self._bytes >= 0:
            return
        self._bytes = self._count = 0
        if not self.directory.is_dir():
            return
        for entry in os.scandir(self.directory):
            self._bytes += entry.stat().st_size
            self._count += entry.name.endswith(".json")


def read_reports(directory: Path) -> list[Damage]:
    """What earlier starts have reported below a data directory; reports that cannot be read are left out."""
    reports = []
    for path in sorted((directory / "commitlog.damage").glob("*.json")):
        try:
            reports.append(msgspec.json.decode(path.read_bytes(), type=Damage))
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("cannot read %s: %s", path, error)
    return reports


def repair_range(
    log: CommitLog, queues: ConsumeQueue, keeper: DamageKeeper, start_position: int, end_position: int
) -> Damage:
    """Put a damaged range's bytes aside and cover it with markers; raises OSError.

    Before the queues are rewound, whose files know best what stood there.
    """
    lost = losses_between(queues, start_position, end_position)
    damage = keeper.keep(
        "damaged", log.bytes_between(start_position, end_position), start_position, end_position
    )
    damage = msgspec.structs.replace(damage, lost=tuple(lost))
    keeper.report(damage)
    cover_range(log, damage)
    return damage


def cover_range(log: CommitLog, damage: Damage) -> None:
    """Write the markers of a damaged range, again when more is known of what it held; raises OSError."""
    log.cover(
        damage.start_position,
        damage.end_position,
        [
            (
                loss.topic.encode("utf-8", "surrogateescape"),
                loss.queue_id,
                loss.first_offset,
                loss.last_offset + 1,
            )
            for loss in damage.lost
        ],
        log.last_store_timestamp_ms,
    )


def add_gaps(
    found: tuple[Damage, ...], gaps: list[tuple[str, int, int, int, int, int]]
) -> tuple[Damage, ...]:
    """The damages with what the numbering of the log's records says is missing; other gaps become new ones.

    A gap is (topic, queue id, first offset, end offset, start, end position) of `ConsumeQueue.take_gaps`.
    """
    damages = list(found)
    for topic, queue_id, first, end, start_position, end_position in gaps:
        loss = Loss(topic, queue_id, first, end - 1)
        numbers = [
            number
            for number, damage in enumerate(damages)
            if damage.kind == "damaged"
            and start_position < damage.end_position
            and damage.start_position < end_position
        ]
        if not numbers:
            damages.append(Damage("gap", start_position, end_position, (loss,)))
            continue
        # Which of several held it nobody knows; one with room for a marker more, though.
        number = next((each for each in numbers if _has_room(damages[each], loss)), numbers[0])
        damages[number] = msgspec.structs.replace(
            damages[number], lost=_with_loss(damages[number].lost, loss)
        )
    return tuple(damages)


def _has_room(damage: Damage, loss: Loss) -> bool:
    """Whether one record of each queue that lost something, `loss` included, fits into the range."""
    sizes = [SMALLEST_RECORD_BYTES - 1 + len(each.topic) for each in _with_loss(damage.lost, loss)]
    return sum(sizes) <= damage.end_position - damage.start_position


def _with_loss(lost: tuple[Loss, ...], loss: Loss) -> tuple[Loss, ...]:
    """`lost` with `loss` in it, one range per queue where they touch."""
    kept = []
    for other in lost:
        if (
            (other.topic, other.queue_id) == (loss.topic, loss.queue_id)
            and other.first_offset <= loss.last_offset + 1
            and loss.first_offset <= other.last_offset + 1
        ):
            loss = Loss(
                loss.topic,
                loss.queue_id,
                min(loss.first_offset, other.first_offset),
                max(loss.last_offset, other.last_offset),
            )
        else:
            kept.append(other)
    return tuple(sorted([*kept, loss]))


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
