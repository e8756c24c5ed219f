"""State of a job as a table of its own: one Parquet snapshot per batch, made from the one before.

A batch that is done again begins from the same snapshot as before, so whatever it computes from state and
records comes out the same. Layout::

    PATH/current.json               {"snapshot": "QUERY-7", "previous": "QUERY-6", ...}
    PATH/snapshots/QUERY-7/         the table; older ones than `previous` are deleted

Spark's own state for Python costs an exchange with Java for each look at a key, and needs pandas; a table is
computed by Spark alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
from pyspark.sql import DataFrame, SparkSession

from iotmq.errors import ConfigError
from iotmq.files import replace_file


class Current(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which snapshot is the table, and the one that it was made from; "" for none.

    Times are what a job remembers beside its table, in microseconds since 1970.
    """

    snapshot: str = ""
    previous: str = ""
    time_us: int = 0
    previous_time_us: int = 0


class Snapshots:
    """The table of one job, which alone writes to it. `schema` is that of its rows."""

    def __init__(self, spark: SparkSession, path: str, schema: str) -> None:
        self.root = local_directory(path)
        self._spark = spark
        self._schema = schema
        self._directory = self.root / "snapshots"

    def current(self) -> Current:
        """Return what `current.json` says."""
        try:
            return msgspec.json.decode((self.root / "current.json").read_bytes(), type=Current)
        except FileNotFoundError:
            return Current()

    def before(self, name: str) -> Current:
        """Return what a batch begins from: what is current, unless that was made by the same batch."""
        current = self.current()
        if current.snapshot != name:
            return current
        return Current(current.previous, "", current.previous_time_us, 0)

    def read(self, name: str) -> DataFrame:
        """Return the rows of a snapshot; none for ""."""
        if not name:
            return self._spark.createDataFrame([], self._schema)
        return self._spark.read.schema(self._schema).parquet(str(self._directory / name))

    def write(self, name: str, rows: DataFrame, *, is_more: bool = False) -> DataFrame:
        """Write the next snapshot, which is not the table yet; returns what it has now, with all columns.

        With `is_more` the rows come on top of what was written before.
        """
        target = str(self._directory / name)
        rows.write.mode("append" if is_more else "overwrite").parquet(target)
        return self._spark.read.parquet(target)

    def commit(self, name: str, before: Current, *, time_us: int = 0) -> None:
        """Make a snapshot the table, and forget those that no batch can begin from any more."""
        current = Current(name, before.snapshot, time_us, before.time_us)
        replace_file(self.root / "current.json", msgspec.json.encode(current), is_synced=True)
        for old in self._directory.iterdir():
            if old.name not in (name, before.snapshot):
                shutil.rmtree(old)


def local_directory(path: str) -> Path:
    """Return a directory that is mounted here; ConfigError for the address of something else."""
    split = urlsplit(path)
    if split.scheme not in ("", "file"):
        raise ConfigError(f"{path!r} is no directory on a file system that is mounted here")
    return Path(unquote(split.path) if split.scheme else path).absolute()
