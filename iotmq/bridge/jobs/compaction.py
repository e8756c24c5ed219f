"""Put small Parquet directories of a lake together, so that a crash at any moment loses and doubles nothing.

Layout::

    LAKE/table/date=2026-01-31/batch=QUERY-NUMBER/*.parquet   one per batch and partition, or compacted
    LAKE/_compaction/staged/                                  files being made
    LAKE/_compaction/journal.json                             {"old": [...], "new": "..."}: they are whole

From when the journal is there the exchange is carried out to its end, now or at the next start: the old
directories are moved out of the table, the new one is moved in, the old ones are deleted.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from pyspark.sql import SparkSession

from iotmq.bridge.jobs.snapshots import local_directory
from iotmq.files import replace_file

_BATCH: Final = "batch="


class Journal(msgspec.Struct, forbid_unknown_fields=True):
    """An exchange that has begun; paths below the lake."""

    old: list[str]
    new: str


class Compaction:
    """Compacts the table of one lake; one job at a time writes to it."""

    def __init__(self, spark: SparkSession, path: str, file_bytes: int, compact_after: int) -> None:
        self.root = local_directory(path)
        self.table = str(self.root / "table")
        self.quarantine = str(self.root / "quarantine")
        self._spark = spark
        self._file_bytes = file_bytes
        self._compact_after = compact_after
        self._work = self.root / "_compaction"
        self._staged = self._work / "staged"
        self._replaced = self._work / "replaced"
        self._journal = self._work / "journal.json"

    def compact(self, *, except_batch: str) -> int:
        """Put together what earlier batches left small; returns how many directories went into new ones."""
        count = 0
        for partition in self._partitions():
            small = sorted(
                each
                for each in partition.glob(f"{_BATCH}*")
                if each.name != _BATCH + except_batch and 2 * _size(each) <= self._file_bytes
            )
            if len(small) >= self._compact_after:
                self._exchange(partition, small)
                count += len(small)
        return count

    def finish(self) -> None:
        """Carry an exchange to its end that was cut off, and clear away files of one that had not begun."""
        if self._journal.exists():
            journal = msgspec.json.decode(self._journal.read_bytes(), type=Journal)
            self._replaced.mkdir(exist_ok=True)
            for number, name in enumerate(journal.old):
                if (self.root / name).exists():
                    (self.root / name).rename(self._replaced / str(number))
            if self._staged.exists():
                self._staged.rename(self.root / journal.new)
            shutil.rmtree(self._replaced)
            self._journal.unlink()
        if self._work.exists():
            shutil.rmtree(self._work)

    def _exchange(self, partition: Path, small: list[Path]) -> None:
        total = sum(_size(each) for each in small)
        self._work.mkdir(exist_ok=True)
        # In the order of the batches, as a reader would have found them.
        rows = self._spark.read.parquet(*(str(each) for each in small))
        files = max(1, round(total / self._file_bytes))
        (rows.coalesce(1) if files == 1 else rows.repartition(files)).write.mode("overwrite").parquet(
            str(self._staged)
        )
        new = partition / f"{_BATCH}compacted-{uuid.uuid4().hex}"
        journal = Journal(
            [str(each.relative_to(self.root)) for each in small], str(new.relative_to(self.root))
        )
        replace_file(self._journal, msgspec.json.encode(journal), is_synced=True)
        self.finish()

    def _partitions(self) -> Iterator[Path]:
        """Yield the directories that have those of batches."""
        yield from sorted({batch.parent for batch in Path(self.table).rglob(f"{_BATCH}*") if batch.is_dir()})


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.parquet"))
