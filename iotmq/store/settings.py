"""Settings of the store, section [store] of the config."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from iotmq.limits import FRAMED_RECORD_BYTES_MAX, RECORD_BYTES_MAX


class StoreSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the log and its queues lie on the disk, and when they count as safe there."""

    segment_bytes: Annotated[int, Meta(ge=4096, le=1 << 40)] = 1 << 30
    """Size of one CommitLog file in bytes. Java brokers open the directory only with the default. Files are
    sparse and take disk only as they fill, but old records are deleted by whole files. Must hold the largest
    record and 8 bytes."""
    queue_file_entries: Annotated[int, Meta(ge=1, le=100_000_000)] = 300_000
    """Entries (20 bytes each) in one ConsumeQueue file; the default is the usual one."""
    index_enabled: bool = True
    """Keep the key index, which finds records by their unique key or one of their keys. Without it appends
    are a little faster. Switched on again, the next start fills it from the log."""
    index_slots: Annotated[int, Meta(ge=1, le=500_000_000)] = 131_072
    """Hash slots in one file of the key index, 4 bytes each, on the disk from the start; a quarter of
    index_entries keeps chains short. Brokers of this format use 5,000,000 unless told otherwise, and open
    only files of their own size. A change has the index made again from the log at the next start."""
    index_entries: Annotated[int, Meta(ge=2, le=100_000_000)] = 524_288
    """Keys in one file of the key index, 20 bytes each, on the disk as they come. Brokers of this format use
    20,000,000. Each file is one more mapping for the kernel and one more step of a search: take more for a
    log of terabytes. A change has the index made again."""
    flush: Literal["async", "sync"] = "async"
    """When a record is acknowledged. async: once it survives the death of this process; it survives a power
    cut after the next flush. sync: once it is on the disk."""
    flush_interval_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 500
    """Milliseconds between flushes under async; a power cut loses about as much."""
    flush_pages_min: Annotated[int, Meta(ge=0, le=1_000_000)] = 4
    """Pages of 4 KiB that must be waiting for an interval's flush under async to happen; spares a quiet
    disk."""
    flush_thorough_interval_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 10_000
    """Milliseconds after which anything waiting is flushed, however little."""
    checkpoint_interval_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 5_000
    """Milliseconds between syncs of the queue files and the checkpoint; bounds the part of the log that a
    start after a crash reads again."""
    sync_flush_timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 5_000
    """Milliseconds a sender waits for its records to be on the disk under sync before it is told
    FLUSH_DISK_TIMEOUT; they stay stored."""
    allocation_step_bytes: Annotated[int, Meta(ge=4096, le=1 << 30)] = 8 << 20
    """Disk blocks are taken from the file system in steps of this many bytes, one to two steps ahead of the
    writer. Larger ones cost a quiet broker disk, smaller ones a busy one time."""
    record_bytes_max: Annotated[int, Meta(ge=1024, le=FRAMED_RECORD_BYTES_MAX)] = RECORD_BYTES_MAX
    """Largest record in bytes, with all its fields. It has to fit a frame of the native protocol. Clients
    refuse more than 4 MiB by default."""
    retention_hours: Annotated[int, Meta(ge=0, le=1_000_000)] = 72
    """Hours a CommitLog file is kept after its last record was stored. Then its records are deleted, read or
    not. Files are deleted as a whole, so segment_bytes decides how much longer a record may stay."""
    delete_hour: Annotated[str, Meta(pattern=r"^([01][0-9]|2[0-3])([;,]([01][0-9]|2[0-3]))*$")] = "04"
    """Hours of the day, local time, in which files past their age are deleted, such as 04 or 04;16: a quiet
    hour, because deleting keeps the disk busy. Above disk_delete_percent any hour will do."""
    disk_delete_percent: Annotated[int, Meta(ge=1, le=100)] = 75
    """Percent of the disk in use above which files past their age go at any hour."""
    disk_force_percent: Annotated[int, Meta(ge=1, le=100)] = 85
    """Percent in use above which the oldest files are deleted, of any age, consumed or not, until it is this
    much or less. 100 never deletes early: a full disk then stops senders instead."""
    disk_full_percent: Annotated[int, Meta(ge=1, le=100)] = 90
    """Percent in use above which records are refused; they are accepted again at disk_force_percent or less.
    Other programs on the same disk count, too."""
    delete_files_max: Annotated[int, Meta(ge=1, le=10_000)] = 10
    """CommitLog files deleted in one pass, so that a late start does not keep the disk busy for long."""
    delete_pause_ms: Annotated[int, Meta(ge=0, le=60_000)] = 100
    """Milliseconds between two deleted files, for the same reason."""
    retention_interval_ms: Annotated[int, Meta(ge=10, le=3_600_000)] = 10_000
    """Milliseconds between passes that look at ages and disks."""
    retention_delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 60_000
    """Milliseconds from the start to the first pass: time to stop a broker that was started with the wrong
    settings before it deletes anything."""
    protect_unconsumed: bool = False
    """Keep files with messages that some group has not consumed, of any age, until disk_force_percent. A
    group that never returns, or a topic without consumers, then keeps everything behind it."""
    hot_bytes: Annotated[int, Meta(ge=0, le=1 << 40)] = 64 << 20
    """Bytes at the end of the log that are taken to be in memory: reads there are answered at once, without
    asking the kernel. More than the page cache has room for lets reads of the rest stop everything
    while the disk works."""
    cold_bytes_max: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 128 << 20
    """Bytes of page cache for reads far behind the end of the log. Pages unused for longest are given back,
    so that such reads do not push out the recent records of other readers. With less than 4 MiB a reader,
    readers fetch pages twice."""
    kv_cache_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 16 << 20
    """Memory for blocks, indexes and filters of the key-value database under kv/, in bytes. Only there when
    something is kept in it."""
    kv_write_buffer_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 40)] = 16 << 20
    """Memory for writes of the key-value database that are not on the disk yet, in bytes."""
