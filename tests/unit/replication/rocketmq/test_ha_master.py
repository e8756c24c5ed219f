"""The master's side of the wire of RocketMQ 4.9."""

from __future__ import annotations

import pytest

from iotmq.replication.rocketmq.ha_master import FRAME_BYTES_MAX, HaMaster, HaRefusedError, LogRange

SEGMENT = 1 << 20
LOG = LogRange(oldest=2 * SEGMENT, end=4 * SEGMENT + 100, segment_bytes=SEGMENT)


def report(position: int) -> bytes:
    return position.to_bytes(8, "big", signed=True)


def reported(position: int, *, log: LogRange = LOG, full_copy: bool = False) -> HaMaster:
    master = HaMaster(now_s=0.0, full_copy=full_copy)
    master.receive_data(report(position), log, now_s=0.0)
    return master


def test_an_empty_slave_gets_the_last_file_or_all_of_them() -> None:
    assert reported(0).next_range(LOG) == (4 * SEGMENT, 100)
    assert reported(0, full_copy=True).next_range(LOG) == (LOG.oldest, FRAME_BYTES_MAX)


@pytest.mark.parametrize("position", [LOG.oldest, LOG.oldest + 7, LOG.end])
def test_a_log_inside_of_ours_is_continued(position: int) -> None:
    assert reported(position).next_range(LOG)[0] == position


@pytest.mark.parametrize("position", [LOG.oldest - 1, LOG.end + 1, -1])
def test_a_log_outside_of_ours_is_refused(position: int) -> None:
    with pytest.raises(HaRefusedError, match=f"log ends at {position}"):
        reported(position)


def test_a_report_past_what_was_sent_is_refused() -> None:
    master = reported(LOG.end - 50)
    master.send_data(50, now_s=0.0)
    master.receive_data(report(LOG.end), LOG, now_s=0.0)
    assert master.reported_position == LOG.end
    with pytest.raises(HaRefusedError, match="was sent the log up to"):
        master.receive_data(report(LOG.end + 1), LOG, now_s=0.0)


def test_a_frame_ends_with_the_file() -> None:
    assert reported(3 * SEGMENT - 10).next_range(LOG) == (3 * SEGMENT - 10, 10)


def test_a_report_may_come_byte_by_byte() -> None:
    master = HaMaster(now_s=0.0)
    for byte in report(LOG.end):
        assert master.sent_position is None
        master.receive_data(bytes([byte]), LOG, now_s=0.0)
    assert master.sent_position == LOG.end


def test_a_heartbeat_has_the_position_that_comes_next() -> None:
    master = reported(LOG.end)
    assert not master.is_heartbeat_due(4.9)
    assert master.is_heartbeat_due(5.0)
    assert master.send_data(0, now_s=5.0) == report(LOG.end) + bytes(4)
    assert not master.is_heartbeat_due(5.0)


def test_nothing_is_sent_before_the_first_report() -> None:
    master = HaMaster(now_s=0.0)
    assert master.next_range(LOG) == (0, 0)
    assert not master.is_heartbeat_due(100.0)


def test_a_slave_is_silent_after_twenty_seconds() -> None:
    master = reported(LOG.end)
    assert not master.is_silent(20.0)
    assert master.is_silent(20.1)
    assert master.next_deadline_s == 5.0


def test_a_slave_that_fell_behind_the_oldest_file_is_refused() -> None:
    master = reported(LOG.oldest)
    with pytest.raises(HaRefusedError, match="begins at"):
        master.next_range(LOG._replace(oldest=LOG.oldest + SEGMENT))


def test_an_empty_log_has_nothing_yet_for_an_empty_slave_that_asks_for_all_of_it() -> None:
    empty = LogRange(oldest=0, end=0, segment_bytes=SEGMENT)
    master = reported(1, log=empty)
    assert master.next_range(empty) == (1, 0)
    assert master.next_range(empty._replace(end=100)) == (1, 99)
    with pytest.raises(HaRefusedError, match="past the end 0"):
        reported(2, log=empty)
