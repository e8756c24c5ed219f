"""Finding records in damaged bytes, slow and plain: tries every byte, with the codec of the oracle."""

from __future__ import annotations

from pathlib import Path

from record_oracle import OracleError, OracleRecord, crc, decode

BLANK_MAGIC = 0xCBD43194
SMALLEST_RECORD = 92


def record_at(data: bytes, at: int, position: int) -> tuple[OracleRecord, int] | None:
    """The record of `position` at byte `at` and its size, if it proves itself."""
    try:
        record, size = decode(data, at)
    except (OracleError, UnicodeDecodeError):
        return None
    topic = record.topic
    if not topic or topic[0] == "." or any(not "!" <= letter <= "~" or letter == "/" for letter in topic):
        return None
    if record.position != position or record.queue_offset < 0 or not 0 <= record.queue_id < 65536:
        return None
    stored_crc = int.from_bytes(data[at + 8 : at + 12], "big")
    return (record, size) if stored_crc == crc(record.body) else None


def is_blank(data: bytes, at: int) -> bool:
    """Whether a blank that fits stands at byte `at` of a segment's whole content."""
    return (
        int.from_bytes(data[at + 4 : at + 8], "big") == BLANK_MAGIC
        and int.from_bytes(data[at : at + 4], "big") == len(data) - at
    )


def scan(directory: Path) -> tuple[list[OracleRecord], list[tuple[int, int]], int]:
    """The records of a log's files, the damaged ranges between them, and the end of the last thing that
    proves itself."""
    records: list[OracleRecord] = []
    damaged: list[tuple[int, int]] = []
    pending: list[tuple[int, int]] = []
    end = 0
    for path in sorted(directory.iterdir()):
        start, data, at = int(path.name), path.read_bytes(), 0
        while at < len(data):
            found = record_at(data, at, start + at)
            if found is not None and at + found[1] <= len(data) - 8:
                damaged += pending
                pending = []
                records.append(found[0])
                at += found[1]
                end = start + at
                continue
            if is_blank(data, at):
                if not pending:
                    end = start + len(data)
                at = len(data)
                continue
            behind = at + SMALLEST_RECORD
            while behind < len(data):
                if data[behind + 4 : behind + 6] == b"\xda\xa3" and record_at(data, behind, start + behind):
                    break
                behind += 1
            if behind >= len(data):
                behind = next(
                    (n for n in range(at + SMALLEST_RECORD, len(data) - 7) if is_blank(data, n)), len(data)
                )
            pending.append((start + at, start + behind))
            at = behind
    return records, damaged, end
