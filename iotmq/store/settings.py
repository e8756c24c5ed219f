"""Settings of the store, section [store] of the config."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from iotmq.limits import RECORD_BYTES_MAX


class StoreSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the log and its queues lie on the disk, and when they count as safe there."""

    segment_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            le=1 << 40,
            description="Size of one CommitLog file in bytes. The default is what other brokers of this "
            "format need to open the directory. Files are sparse: the size costs disk only as it fills, but "
            "is the unit in which old records are deleted. Must hold the largest record and 8 bytes.",
        ),
    ] = 1 << 30
    queue_file_entries: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000_000,
            description="Entries (20 bytes each) in one ConsumeQueue file; the default is the usual one.",
        ),
    ] = 300_000
    flush: Annotated[
        Literal["async", "sync"],
        Meta(
            description="What an acknowledgement promises. async: the record survives the death of this "
            "process at once, and a power cut after the next flush. sync: it is on the disk."
        ),
    ] = "async"
    flush_interval_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600_000,
            description="Milliseconds between flushes under async; about what a power cut may cost.",
        ),
    ] = 500
    flush_pages_min: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Pages of 4 KiB that must be waiting for an interval's flush under async to happen; "
            "spares a quiet disk.",
        ),
    ] = 4
    flush_thorough_interval_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600_000,
            description="Milliseconds after which anything waiting is flushed, however little.",
        ),
    ] = 10_000
    checkpoint_interval_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600_000,
            description="Milliseconds between syncs of the queue files and the checkpoint; bounds what a "
            "start after a crash has to go through again.",
        ),
    ] = 5_000
    sync_flush_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=3_600_000,
            description="Milliseconds a sender waits for its records to be on the disk under sync before it "
            "is told FLUSH_DISK_TIMEOUT; they stay stored.",
        ),
    ] = 5_000
    allocation_step_bytes: Annotated[
        int,
        Meta(
            ge=4096,
            le=1 << 30,
            description="Disk blocks are taken from the file system in steps of this many bytes, one to two "
            "steps ahead of the writer. Larger ones cost a quiet broker disk, smaller ones a busy one time.",
        ),
    ] = 8 << 20
    record_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=64 << 20,
            description="Largest record in bytes, with all its fields. Clients refuse more than 4 MiB "
            "by default.",
        ),
    ] = RECORD_BYTES_MAX
    latest_enabled: Annotated[
        bool,
        Meta(
            description="Keep the place of the last record of every MQTT topic, for looking up what a "
            "device said last. Costs appends about a tenth of their speed with some thousand topics, more "
            "with very many; changing it needs a restart, which goes through the log once."
        ),
    ] = False
    kv_cache_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            le=1 << 40,
            description="Memory for blocks, indexes and filters of the key-value database under kv/, in "
            "bytes. Only there when something is kept in it.",
        ),
    ] = 16 << 20
    kv_write_buffer_bytes: Annotated[
        int,
        Meta(
            ge=1 << 20,
            le=1 << 40,
            description="Memory for writes of the key-value database that are not on the disk yet, in bytes.",
        ),
    ] = 16 << 20
