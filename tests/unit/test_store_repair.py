"""Repairing a closed directory by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_model import SMALL, bodies_of, open_small, put

from iotmq.errors import StoreLockedError
from iotmq.store.damage import Loss, read_reports
from iotmq.store.repair import repair
from iotmq.store.segment import segment_name
from iotmq.store.settings import StoreSettings

SETTINGS = StoreSettings(**SMALL)  # type: ignore[arg-type]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Six segments of two records each; the fourth record is damaged, too far back for a start to look."""
    store = open_small(tmp_path)
    for number in range(12):
        put(store, "T", 0, b"%02d" % number + b"x" * 1800)
    store.close()
    with (tmp_path / "commitlog" / segment_name(4096)).open("r+b") as file:
        file.seek(2500)
        file.write(b"y")
    return tmp_path


def test_damage_far_back_is_found(directory: Path) -> None:
    report = repair(directory, SETTINGS, is_rebuilt=True)
    (damage,) = report.damage
    assert damage.lost == (Loss("T", 0, 3, 3),)
    assert damage.kept
    assert (directory / damage.kept).stat().st_size == damage.kept_bytes > 1800
    assert read_reports(directory) == [damage]
    assert report.rebuilt == ("consumequeue",)
    assert repair(directory, SETTINGS).damage == ()
    store = open_small(directory)
    assert store.queue("T", 0).next_offset == 12
    read = store.read(store.queue("T", 0), 3, records_max=1, bytes_max=5000)
    assert read.count == 1
    assert read.next_offset == 5
    store.close()


def test_log_that_is_to_end_at_the_first_damage(directory: Path) -> None:
    report = repair(directory, SETTINGS, is_truncated=True)
    assert report.end_position == report.damage[0].start_position
    assert {damage.kind for damage in report.damage} == {"torn"}
    store = open_small(directory)
    assert [body[:2] for body in bodies_of(store, "T", 0)] == [b"00", b"01", b"02"]
    assert store.queue("T", 0).next_offset == 3
    store.close()


def test_open_directory_is_refused(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    with pytest.raises(StoreLockedError):
        repair(tmp_path, SETTINGS)
    store.close()
