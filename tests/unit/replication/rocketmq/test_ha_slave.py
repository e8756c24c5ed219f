"""The slave's side of the wire of RocketMQ 4.9."""

from __future__ import annotations

import pytest

from iotmq.limits import HA_UNFINISHED_BYTES_MAX
from iotmq.replication.rocketmq.ha_slave import FRAME_BYTES_MAX, HaBrokenError, HaSlave


def frame(position: int, data: bytes) -> bytes:
    return position.to_bytes(8, "big") + len(data).to_bytes(4, "big") + data


def test_frames_are_put_together_whole_and_byte_by_byte() -> None:
    stream = frame(100, b"abc") + frame(103, b"") + frame(103, b"defg")
    whole, single = HaSlave(100, now_s=0.0), HaSlave(100, now_s=0.0)
    whole.receive_data(stream, now_s=0.0)
    for byte in stream:
        single.receive_data(bytes([byte]), now_s=0.0)
    assert whole.data == single.data == b"abcdefg"
    whole.appended(103)
    assert (whole.data, whole.position, whole.expected_position) == (b"defg", 103, 107)
    assert whole.report(now_s=0.0) == (103).to_bytes(8, "big")


@pytest.mark.parametrize("position", [99, 101])
def test_a_frame_for_another_position_is_refused(position: int) -> None:
    for data in (b"", b"x"):
        with pytest.raises(HaBrokenError, match="100 comes next"):
            HaSlave(100, now_s=0.0).receive_data(frame(position, data), now_s=0.0)


@pytest.mark.parametrize("size", [-1, FRAME_BYTES_MAX + 1])
def test_a_frame_past_the_maximum_is_refused_by_its_header(size: int) -> None:
    header = (0).to_bytes(8, "big") + size.to_bytes(4, "big", signed=True)
    with pytest.raises(HaBrokenError, match="the maximum is"):
        HaSlave(0, now_s=0.0).receive_data(header, now_s=0.0)


def test_a_frame_of_the_maximum_is_taken() -> None:
    slave = HaSlave(0, now_s=0.0)
    slave.receive_data(frame(0, bytes(FRAME_BYTES_MAX)), now_s=0.0)
    assert len(slave.data) == FRAME_BYTES_MAX


def test_a_log_that_begins_at_zero_is_asked_for_from_one() -> None:
    slave = HaSlave(0, now_s=0.0, begins_at_zero=True)
    assert slave.first_report() == slave.report(now_s=0.0) == (1).to_bytes(8, "big")
    slave.receive_data(frame(1, b"\0\0\x70rest"), now_s=0.0)
    assert slave.data == b"\0\0\0\x70rest"
    assert slave.report(now_s=0.0) == (1).to_bytes(8, "big")


def test_reports_are_due_after_five_seconds_and_silence_after_twenty() -> None:
    slave = HaSlave(0, now_s=0.0)
    assert not slave.is_report_due(4.9)
    assert slave.is_report_due(5.0)
    slave.report(now_s=5.0)
    assert not slave.is_report_due(5.0)
    assert not slave.is_silent(20.0)
    assert slave.is_silent(20.1)


def test_what_is_no_whole_record_has_a_maximum() -> None:
    def received(size: int) -> HaSlave:
        slave = HaSlave(100, now_s=0.0)
        for at in range(0, size, FRAME_BYTES_MAX):
            data = bytes(min(FRAME_BYTES_MAX, size - at))
            slave.receive_data(frame(100 + at, data), now_s=0.0)
        return slave

    received(HA_UNFINISHED_BYTES_MAX).appended(100)
    received(HA_UNFINISHED_BYTES_MAX + 1).appended(101)
    with pytest.raises(HaBrokenError, match="no whole record"):
        received(HA_UNFINISHED_BYTES_MAX + 1).appended(100)


def test_less_than_what_is_there_may_be_reported() -> None:
    slave = HaSlave(100, now_s=0.0)
    assert slave.report(now_s=0.0, position=90) == (90).to_bytes(8, "big")
    # Zero would ask for the last file.
    slave = HaSlave(0, now_s=0.0, begins_at_zero=True)
    assert slave.report(now_s=0.0, position=0) == (1).to_bytes(8, "big")
