"""The key-value database under `kv/`: one RocksDB, a column family for each projection that lives in it.

It has no write-ahead log of its own. The CommitLog is one already: a projection keeps the position up to
which it has applied the log in the same column family and the same write batch as its data, and the
database loses a crash's writes only from the end and never a part of a batch. So after a crash a projection
is what it was at some earlier position, and takes the rest from the log. A log of its own would write
everything once more, and cost a seventh more processor time for each key (benchmarks/store_kv.py).

Nothing may depend on two column families agreeing: each reaches the disk by itself.

Memory is bounded: blocks, indexes and filters share one cache, all families share one budget of write
buffers. Importing `rocksdict` costs a process about 9 MB, so this module is imported only when some
projection is wanted.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ColumnFamily,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from iotmq.errors import StoreCorruptError, StoreError, StoreFullError
from iotmq.metrics import Metric, samples

KV_DIRECTORY: Final = "kv"
# Where a database that cannot be opened is put, for whoever wants to look at it; one is kept.
DAMAGED_DIRECTORY: Final = "kv.damaged"

_BLOCK_BYTES: Final = 4096
_FILTER_BITS_PER_KEY: Final = 10
_OPEN_FILES_MAX: Final = 128
_INFO_LOG_BYTES: Final = 1 << 20
_INFO_LOG_FILES: Final = 2
# Past so many unsorted files writes are slowed and stopped. The projections must not be: they run on the
# loop, and with this budget of buffers hundreds of files are some hundred MB at worst.
_LEVEL_0_SLOW: Final = 64
_LEVEL_0_STOP: Final = 256
# What RocksDB says when the machine, not the data, is at fault.
_FULL_TEXTS: Final = ("No space left", "Disk quota", "File too large")
_MACHINE_TEXTS: Final = (
    *_FULL_TEXTS, "lock hold", "While lock file", "Permission denied", "Read-only file system",
    "Too many open files", "Cannot allocate memory",
)  # fmt: skip
# Written by rocksdict at each open without waiting for the disk, and fatal to it when it is torn.
_OPTIONS_FILE: Final = "rocksdict-config.json"

logger = logging.getLogger("iotmq.store")


class KeyValueStore:
    """The opened database. Reads and writes are for one thread; `flush` may run in another."""

    def __init__(
        self, directory: Path, *, cache_bytes: int, write_buffer_bytes: int, is_read_only: bool = False
    ) -> None:
        """Open the database at `directory`, made when missing.

        One that is damaged is moved aside, to `kv.damaged` beside it, and an empty one takes its place: its
        projections start over. Read-only it raises StoreCorruptError instead, and StoreError when there is
        none. Raises StoreFullError, and StoreError for other refusals of the operating system.
        """
        self.directory = directory
        # Goes up with each `reopen` and `start_over`, after which what was not on the disk is gone.
        self.generation = 0
        self._is_read_only = is_read_only
        self._cache = Cache(cache_bytes)
        self._write_buffer_bytes = write_buffer_bytes
        self._spaces: dict[str, KeySpace] = {}
        self._names: set[str] = set()
        # None after `close`, or when `reopen` failed.
        self._database: Rdict | None = None
        self._write_options = WriteOptions()
        # Its stub says that this is a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        if is_read_only and not directory.is_dir():
            raise StoreError(f"there is no {directory}")
        try:
            self._database = self._open()
        except Exception as error:
            self._start_over_after(error)

    @property
    def is_open(self) -> bool:
        """Return whether the database is open: not after `close`, nor when `reopen` failed."""
        return self._database is not None

    def names(self) -> list[str]:
        """Return the column families there are, the database's own `default` left out."""
        return sorted(self._names)

    def space(self, name: str) -> KeySpace:
        """Return the column family of that name, made when missing (StoreError when read-only)."""
        space = self._spaces.get(name)
        if space is None:
            self._opened()
            if self._is_read_only and name not in self._names:
                raise StoreError(f"{self.directory} has no {name}")
            space = KeySpace(name, self._write_options)
            try:
                self._bind(name, space)
                self._spaces[name] = space
            except Exception as error:
                self._spaces[name] = space
                self._start_over_after(error)
        return space

    def clear(self, name: str) -> KeySpace:
        """The column family, emptied in one step. A KeySpace handed out for it before must not be used."""
        self.remove(name)
        return self.space(name)

    def remove(self, name: str) -> None:
        """Delete a column family if there is one."""
        space = self._spaces.pop(name, None)
        if space is not None:
            space.release()
        if name in self._names:
            try:
                self._opened().drop_column_family(name)
                self._names.discard(name)
            except Exception as error:
                self._start_over_after(error)

    def reopen(self) -> None:
        """Close and open it again: after a full disk it takes no writes until then. Raises StoreError.

        The spaces handed out are valid again afterwards, without what had not been flushed.
        """
        self._open_again(between=lambda: None)

    def start_over(self) -> None:
        """Move the database aside, to `kv.damaged`, and go on with an empty one. Raises StoreError.

        The spaces handed out are valid, and empty.
        """
        self._open_again(between=self._move_aside)

    def write_copy(self, directory: Path) -> None:
        """Make a copy of the database as it is now, by hard links, in a directory that is not there.

        Each column family is in it as it was at some position, and no write waits. Takes as long as the disk,
        so call it in a thread, and neither `close` nor `reopen` before it returns. Raises StoreError.
        """
        try:
            Checkpoint(self._opened()).create_checkpoint(str(directory))
        except Exception as error:
            raise _translated(error, self.directory) from error

    def close(self) -> None:
        """Close the database, whatever its state. What was not flushed may be lost, as in a crash."""
        for space in self._spaces.values():
            space.release()
        self._spaces.clear()
        if self._database is None:
            return
        try:
            self._database.close()
        except Exception as error:
            # It flushes first, which a database that is damaged, or has met a full disk, refuses. With the
            # last reference its lock goes all the same.
            logger.warning("%s did not close cleanly: %s", self.directory, str(error))
        self._database = None

    def metrics(self) -> Iterable[Metric]:
        """Memory in use."""
        buffered_bytes = sum(space.buffered_bytes for space in self._spaces.values())
        return samples(
            ("cache_bytes", "Cached blocks of the key-value database", self._cache.get_usage()),
            ("write_buffer_bytes", "Writes of the key-value database in memory", buffered_bytes),
            prefix="iotmq_store_kv_",
        )

    def _start_over_after(self, error: Exception) -> None:
        """Raise the error being handled if the machine caused it; any other means damage."""
        if self._is_read_only or _has(error, _MACHINE_TEXTS):
            raise _translated(error, self.directory) from error
        logger.warning("%s is damaged and starts over from the log: %s", self.directory, error)
        self.start_over()

    def _open_again(self, *, between: Callable[[], None]) -> None:
        spaces = dict(self._spaces)
        self.close()
        self._spaces.update(spaces)
        self.generation += 1
        try:
            between()
            self._database = self._open()
            for name, space in spaces.items():
                self._bind(name, space)
        except Exception as error:
            self.close()
            # To be bound when it is opened in the end.
            self._spaces.update(spaces)
            raise _translated(error, self.directory) from error

    def _move_aside(self) -> None:
        if self.directory.exists():
            set_aside(self.directory)

    def _bind(self, name: str, space: KeySpace) -> None:
        database = self._opened()
        if name not in self._names:
            database.create_column_family(name, self._options())
            self._names.add(name)
        space.bind(database, database.get_column_family(name), database.get_column_family_handle(name))

    def _opened(self) -> Rdict:
        if self._database is None:
            raise StoreError(f"{self.directory} is closed")
        return self._database

    def _open(self) -> Rdict:
        path = str(self.directory)
        is_new = not (self.directory / "CURRENT").exists()
        if self._is_read_only:
            access = AccessType.read_only(False)
        else:
            access = AccessType.read_write()
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / _OPTIONS_FILE).unlink(missing_ok=True)
        options = self._options()
        names = [] if is_new else Rdict.list_cf(path, options)
        families = {name: self._options() for name in names if name != "default"}
        # Gone as soon as an exception leaves the constructor, which would keep the lock otherwise.
        database = Rdict(path, options, column_families=families or None, access_type=access)
        self._names = set(families)
        return database

    def _options(self) -> Options:
        tables = BlockBasedOptions()
        tables.set_block_cache(self._cache)
        tables.set_cache_index_and_filter_blocks(True)
        tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
        tables.set_block_size(_BLOCK_BYTES)
        tables.set_format_version(5)
        tables.set_bloom_filter(_FILTER_BITS_PER_KEY, False)
        # In pieces the size of a block: an index or filter of a whole file is larger than the cache when
        # there are millions of keys, and would be read again for every look-up.
        tables.set_index_type(BlockBasedIndexType.two_level_index_search())
        tables.set_partition_filters(True)
        tables.set_metadata_block_size(_BLOCK_BYTES)
        tables.set_pin_top_level_index_and_filter(True)
        options = Options(raw_mode=True)
        options.create_if_missing(not self._is_read_only)
        options.create_missing_column_families(not self._is_read_only)
        options.set_block_based_table_factory(tables)
        options.set_db_write_buffer_size(self._write_buffer_bytes)
        options.set_write_buffer_size(self._write_buffer_bytes // 2)
        options.set_max_write_buffer_number(4)
        options.set_level_zero_slowdown_writes_trigger(_LEVEL_0_SLOW)
        options.set_level_zero_stop_writes_trigger(_LEVEL_0_STOP)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_max_background_jobs(2)
        options.set_max_open_files(_OPEN_FILES_MAX)
        options.set_bytes_per_sync(1 << 20)
        options.set_keep_log_file_num(_INFO_LOG_FILES)
        options.set_max_log_file_size(_INFO_LOG_BYTES)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        return options


class KeySpace:
    """One column family: keys and values are bytes, keys are in the order of their bytes."""

    def __init__(self, name: str, write_options: WriteOptions) -> None:
        """Use `KeyValueStore.space`."""
        self.name = name
        self._database: Rdict | None = None
        self._family: Rdict | None = None
        self._handle: ColumnFamily | None = None
        self._write_options = write_options

    def bind(self, database: Rdict, family: Rdict, handle: ColumnFamily) -> None:
        """Stand for this column family from now on."""
        self._database, self._family, self._handle = database, family, handle

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`; StoreCorruptError when the database is damaged there."""
        # No local name for it, here and below: whoever keeps an error keeps the names of its frames, and the
        # database stays locked while one of them stands for it.
        self._opened(self._family)
        try:
            value: bytes | None = self._opened(self._family).get(key)
        except Exception as error:
            raise _translated(error, self.name) from error
        return value

    def scan(self, start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start` up to and without `stop`, as they were at the first step."""
        bounds = ReadOptions()
        if stop is not None:
            # Else a search over deleted keys goes on behind `stop` until it finds one that is there.
            bounds.set_iterate_upper_bound(stop)
        cursor = self._opened(self._family).iter(bounds)
        cursor.seek(start)
        while cursor.valid():
            key: bytes = cursor.key()
            if stop is not None and key >= stop:
                return
            yield key, cursor.value()
            cursor.next()
        try:
            # A damaged block looks like the end until one asks.
            cursor.status()
        except Exception as error:
            raise _translated(error, self.name) from error

    def write(
        self,
        keys: Sequence[bytes] = (),
        values: Sequence[bytes] = (),
        *,
        removed_keys: Iterable[bytes] = (),
        removed_ranges: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """Remove keys and ranges [start, stop), then put `values` under `keys`, all in one step.

        Not safe from a crash before the next `flush`, but then all of it is or nothing.
        """
        self._opened(self._database)
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._handle)
        # The batch's default family holds for `put` alone.
        for start, stop in removed_ranges:
            batch.delete_range(start, stop, self._handle)
        for key in removed_keys:
            batch.delete(key, self._handle)
        deque(map(batch.put, keys, values), maxlen=0)
        try:
            self._opened(self._database).write(batch, self._write_options)
        except Exception as error:
            raise _translated(error, self.name) from error

    def flush(self, *, wait: bool) -> None:
        """Bring everything written to the disk; without `wait` only see to it that it is begun."""
        self._opened(self._family)
        try:
            self._opened(self._family).flush(wait)
        except Exception as error:
            raise _translated(error, self.name) from error

    def check_flush(self) -> None:
        """StoreError when the disk has refused a flush that nobody waited for.

        Such a flush stays under way until the database is opened again; only writes are told.
        """
        self.write()

    @property
    def is_flushing(self) -> bool:
        """Return whether writes from before the last flush that was begun may not be on the disk yet."""
        return bool(
            self._number("rocksdb.num-immutable-mem-table") or self._number("rocksdb.mem-table-flush-pending")
        )

    @property
    def buffered_bytes(self) -> int:
        """Memory taken by writes that are not on the disk."""
        return self._number("rocksdb.cur-size-all-mem-tables")

    @property
    def estimated_count(self) -> int:
        """About how many keys there are."""
        return self._number("rocksdb.estimate-num-keys")

    def release(self) -> None:
        """Give up every reference: the database stays locked while one is left."""
        self._database = self._family = self._handle = None

    def _opened(self, database: Rdict | None) -> Rdict:
        if database is None:
            raise StoreError(f"{self.name}: the key-value database is closed")
        return database

    def _number(self, name: str) -> int:
        return 0 if self._family is None else self._family.property_int_value(name) or 0


def set_aside(directory: Path) -> None:
    """Move a database out of the way, in place of the one that was moved before; raises OSError."""
    aside = directory.with_name(DAMAGED_DIRECTORY)
    if aside.is_dir():
        import shutil

        shutil.rmtree(aside)
    else:
        aside.unlink(missing_ok=True)
    directory.rename(aside)


def _has(error: Exception, texts: Iterable[str]) -> bool:
    return any(text in str(error) for text in texts)


def _translated(error: Exception, where: object) -> StoreError:
    """RocksDB's errors come as plain exceptions with a text."""
    if _has(error, _FULL_TEXTS):
        return StoreFullError(f"{where}: {error}")
    if str(error).startswith("Corruption"):
        return StoreCorruptError(f"{where}: {error}; `iotmq store rebuild` makes it again from the log")
    return StoreError(f"{where}: {error}")
