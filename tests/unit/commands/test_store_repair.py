"""Repairing a closed directory by hand."""

from __future__ import annotations

import io
import json
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from store_model import SMALL, open_small, put

from iotmq.commands import store as store_tools
from iotmq.commands.cli import main
from iotmq.errors import StoreError, StoreLockedError
from iotmq.message.records.record import iter_records
from iotmq.store.log.segment import segment_name
from iotmq.store.recovery.damage import Damage, Loss
from iotmq.store.settings import StoreSettings
from iotmq.store.tools.repair import repair

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
    told: list[tuple[str, int, int]] = []
    report = repair(directory, SETTINGS, progress=lambda *what: told.append(what))
    assert {name for name, _, _ in told} == {"commitlog"}
    assert told[-1] == ("commitlog", report.end_position, report.end_position)
    (damage,) = report.damage
    assert damage.lost == (Loss("T", 0, 3, 3),)
    assert damage.kept
    assert (directory / damage.kept).stat().st_size == damage.kept_bytes > 1800
    (told,) = (directory / "commitlog.damage").glob("*.json")
    assert msgspec.json.decode(told.read_bytes(), type=Damage) == damage
    assert report.problems == ()
    assert repair(directory, SETTINGS).damage == ()
    store = open_small(directory)
    assert store.queue("T", 0).next_offset == 12
    read = store.read(store.queue("T", 0), 3, records_max=1, bytes_max=5000)
    assert read.count == 1
    assert read.next_offset == 5
    assert store.unreadable_records() == []
    store.close()


def test_repaired_and_rebuilt_it_has_the_same_offsets(directory: Path) -> None:
    repair(directory, SETTINGS)
    shutil.rmtree(directory / "consumequeue")
    store = open_small(directory)
    assert store.queue("T", 0).next_offset == 12
    assert store.recovery.damage == ()
    assert store.check() == []
    store.close()


def test_check_tells_damage_and_afterwards_that_it_is_repaired(directory: Path) -> None:
    def checked() -> tuple[int, str]:
        output = io.StringIO()
        return store_tools.check(directory, SETTINGS, output=output), output.getvalue()

    code, text = checked()
    assert code == 1
    assert text.startswith("positions 5990..7884: 1894 bytes of the log are damaged (")
    repair(directory, SETTINGS)
    code, text = checked()
    assert code == 0, text
    assert "note: 1 ranges of the log" in text
    assert "1 offsets are known to be lost" in text
    assert "no inconsistencies" in text


def test_a_copy_of_a_repaired_log_has_the_same_offsets(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Byte for byte, markers included, as replication makes it."""
    repair(directory, SETTINGS)
    store = open_small(directory)
    copy = open_small(tmp_path_factory.mktemp("copy"))
    position, rest = 0, b""
    while position < store.confirmed_position:
        at = position + len(rest)
        data = rest + bytes(store.read_raw(at, 3000))
        end = copy.append_raw(position, data)
        rest, position = data[end - position :], end
    assert copy.appended_position == store.appended_position
    assert copy.queue("T", 0).next_offset == 12
    assert readable(copy, "T", 0) == readable(store, "T", 0)
    assert copy.check() == []
    copy.close()
    store.close()


def test_open_directory_is_refused(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    with pytest.raises(StoreLockedError):
        repair(tmp_path, SETTINGS)
    store.close()


def test_no_data_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a data directory"):
        repair(tmp_path, SETTINGS)
    assert list(tmp_path.iterdir()) == []


def command(directory: Path, *words: str) -> int:
    settings = [f"--set=store.{name}={value}" for name, value in SMALL.items()]
    return main(["store", "repair", "--data", str(directory), *settings, *words])


def test_command_line(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(directory) == 1
    text = capsys.readouterr().out
    assert text.startswith("positions 5990..7884: 1,894 bytes are damaged; markers stand there now\n")
    assert "T/0: offsets 3..3" in text
    assert "commitlog.damage/" in text
    assert command(directory) == 0
    assert "nothing is damaged" in capsys.readouterr().out


def test_command_line_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(directory, "--json") == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["kind"] for row in rows] == ["damaged", "repair"]
    assert rows[0]["lost"] == [{"topic": "T", "queue": 0, "first_offset": 3, "last_offset": 3}]
    assert rows[1]["ranges"] == 1
    assert rows[1]["problems"] == []


def test_command_line_refuses_an_open_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_small(tmp_path)
    assert command(tmp_path) == 2
    assert "lock" in capsys.readouterr().err
    store.close()


@pytest.mark.parametrize("seed", range(8))
def test_any_damage_is_repaired_for_good(tmp_path: Path, seed: int) -> None:
    """However much is overwritten: one repair, and everything agrees; what was not hit is still there."""
    source = random.Random(seed)
    store = open_small(tmp_path)
    for number in range(60):
        put(store, f"T{number % 3}", number % 2, b"%02d" % number + b"x" * source.choice((0, 90, 700)))
    store.close()
    for path in source.sample(sorted((tmp_path / "commitlog").iterdir()), 3):
        content = bytearray(path.read_bytes())
        size = source.choice((1, 8, 500, 2000))
        at = source.randrange(len(content) - size)
        content[at : at + size] = source.choice((source.randbytes, bytes))(size)
        path.write_bytes(content)
    report = repair(tmp_path, SETTINGS)
    assert report.problems == ()
    lost = sum(loss.last_offset - loss.first_offset + 1 for each in report.damage for loss in each.lost)
    for is_rebuilt in (False, True):
        if is_rebuilt:
            shutil.rmtree(tmp_path / "consumequeue")
        store = open_small(tmp_path)
        assert store.recovery.damage == ()
        assert sum(queue.next_offset for queue in store.queues()) == 60
        got = [body for queue in store.queues() for body in readable(store, queue.topic, queue.queue_id)]
        assert len(set(got)) == len(got) == 60 - lost
        assert store.check() == []
        store.close()


def readable(store: object, topic: str, queue_id: int) -> list[bytes]:
    """The bodies of a queue; lost offsets are passed over."""
    queue = store.find_queue(topic, queue_id)  # type: ignore[attr-defined]
    bodies: list[bytes] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        read = store.read(queue, offset, records_max=1, bytes_max=5000)  # type: ignore[attr-defined]
        bodies += [record.body for view in read.views for record in iter_records(view)]
        offset = read.next_offset
    return bodies
