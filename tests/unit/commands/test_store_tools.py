"""`iotmq store`: what it says about sound and broken directories, and what it makes anew."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_keeper import Keeper
from store_model import SMALL, open_small, put

from iotmq.commands import cli
from iotmq.commands import store as store_tools
from iotmq.commands.store import DumpFilter, ProgressBar
from iotmq.errors import StoreError, StoreLockedError
from iotmq.store.kv.kv import KeyValueStore
from iotmq.store.kv.kv_projection import MARKER_KEY
from iotmq.store.queues.queue_begins import BEGINS_NAME, QueueBegins, encode_begins
from iotmq.store.recovery.checkpoint import write_checkpoint
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store
from iotmq.store.tools.closed_check import ClosedCheck
from iotmq.store.tools.index_dump import index_rows
from iotmq.store.tools.inspection import ClosedStore
from iotmq.store.tools.rebuild import projection_names, rebuild

SETTINGS = StoreSettings(**SMALL)
COUNT = 50


def fill(store: Store) -> None:
    """Fifty records over three queues and seven MQTT topics; more than one file of everything."""
    for number in range(COUNT):
        properties = b"MQTT_TOPIC\x01dev/%d/x\x02KEYS\x01k%d\x02TAGS\x01A" % (number % 7, number)
        put(store, "T", number % 3, b"body%d" % number, properties=properties)
    # Makes the key-value database.
    store.timers()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A closed store."""
    store = open_small(tmp_path / "data")
    fill(store)
    store.close()
    return tmp_path / "data"


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """What kill -9 leaves: a copy of an open one."""
    store = open_small(tmp_path / "open")
    fill(store)
    store.write_checkpoint()
    put(store, "T", 0, b"after the checkpoint")
    copy_open(tmp_path / "open", tmp_path / "crashed")
    store.close()
    return tmp_path / "crashed"


def copy_open(directory: Path, copy: Path) -> None:
    """Made again when RocksDB deletes a file meanwhile, in a thread of its own."""
    for _ in range(20):
        try:
            shutil.copytree(directory, copy)
        except shutil.Error:
            shutil.rmtree(copy)
        else:
            return
    raise AssertionError("files go all the time")


def check(directory: Path) -> tuple[int, list[str]]:
    output = io.StringIO()
    code = store_tools.check(directory, SETTINGS, output=output)
    return code, output.getvalue().splitlines()


def dump(directory: Path, subject: str, **wanted: Any) -> list[dict[str, Any]]:
    output = io.StringIO()
    code = store_tools.dump(
        directory, SETTINGS, subject, wanted=DumpFilter(**wanted), is_json=True, output=output
    )
    assert code == 0
    return [json.loads(line) for line in output.getvalue().splitlines()]


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def log_file(directory: Path, position: int) -> tuple[Path, int]:
    start = position // 4096 * 4096
    return directory / "commitlog" / f"{start:020}", position - start


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file and its bytes, except for the lock, which names who had it, and RocksDB's own log."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in ("lock", "LOG") and not path.name.startswith("LOG.old")
    }


# Checking ---------------------------------------------------------------------------------------------


def test_a_sound_directory_has_no_inconsistencies(directory: Path) -> None:
    code, lines = check(directory)
    assert code == 0
    assert lines == [f"{directory}: 50 records, positions 0..6604, 3 queues: no inconsistencies"]


def test_a_directory_that_a_java_broker_has_had_meanwhile_is_sound(directory: Path) -> None:
    """It goes on with log, queues and index, and writes times in no order and none of our marks."""
    ours = ["consumequeue/.applied", "index.applied"]
    before = {name: (directory / name).read_bytes() for name in ours}
    store = open_small(directory)
    put(store, "T", 0, b"later", properties=b"KEYS\x01k\x02")
    store.close()
    for name, data in before.items():
        (directory / name).write_bytes(data)
    change(directory / "checkpoint", 0, struct.pack(">qqq", 1_700_000_000_001, 1_700_000_000_002, 0))
    (directory / "config").mkdir(exist_ok=True)
    (directory / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:75,1:75}}}')
    (directory / "config" / "delayOffset.json").write_text('{"offsetTable":{1:5,2:0}}')
    code, lines = check(directory)
    assert (code, lines[-1].rpartition(": ")[2]) == (0, "no inconsistencies"), lines
    assert any("another broker has written the queues since" in line for line in lines)
    store = open_small(directory)
    assert store.check() == []
    store.close()
    code, lines = check(directory)
    assert code == 0
    assert not any("another broker" in line for line in lines)


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    open_small(tmp_path).close()
    assert check(tmp_path) == (0, [f"{tmp_path}: 0 records, positions 0..0, 0 queues: no inconsistencies"])


def test_check_and_dump_change_nothing(directory: Path, crashed: Path) -> None:
    for path in (directory, crashed):
        before = files_of(path)
        check(path)
        for subject in store_tools.SUBJECTS:
            dump(path, subject)
        assert files_of(path) == before


def test_a_crashed_directory_has_notes_and_no_problems(crashed: Path) -> None:
    code, lines = check(crashed)
    assert code == 0
    assert lines[0].startswith("note: abort exists")
    assert "51 records" in lines[-1]
    # The torn end of a batch, and entries that never reached the disk.
    path, at = log_file(crashed, dump(crashed, "records")[-1]["position"])
    change(path, at + 80, b"\xff" * 10)
    entries = crashed / "consumequeue" / "T" / "1"
    shutil.rmtree(entries)
    (crashed / "consumequeue" / ".applied").unlink()
    code, lines = check(crashed)
    assert code == 0
    assert any("bytes that are no whole record; the next start cuts them off" in line for line in lines)
    assert any("17 queue entries are missing that the next start fills in" in line for line in lines)
    store = open_small(crashed)
    assert store.check() == []
    store.close()
    assert check(crashed)[0] == 0


def test_damage_in_the_middle_is_told_with_its_range_and_costs_only_itself(directory: Path) -> None:
    hurt = dump(directory, "records")[10]
    path, at = log_file(directory, hurt["position"])
    change(path, at + 90, b"\xff\xff")
    code, lines = check(directory)
    end = hurt["position"] + hurt["size"]
    assert code == 1
    assert lines[0].startswith(
        f"positions {hurt['position']}..{end}: {hurt['size']} bytes of the log are damaged"
    )
    assert "49 records" in lines[-1]
    (row,) = [row for row in dump(directory, "records") if row["kind"] == "damage"]
    assert (row["position"], row["size"]) == (hurt["position"], hurt["size"])
    assert row["problem"]


def drop_log_file(directory: Path) -> None:
    (directory / "commitlog" / f"{0:020}").rename(directory / "commitlog" / f"{16384:020}")


def zero_file_end(directory: Path) -> None:
    change(directory / "commitlog" / f"{0:020}", 3900, bytes(196))


def swap_offset(directory: Path) -> None:
    path, at = log_file(directory, dump(directory, "records")[10]["position"])
    change(path, at + 20, struct.pack(">q", 40))


def change_entry(directory: Path) -> None:
    change(directory / "consumequeue" / "T" / "0" / f"{0:020}", 20, struct.pack(">q", 77))


def empty_entry(directory: Path) -> None:
    change(directory / "consumequeue" / "T" / "0" / f"{0:020}", 20, bytes(20))


def add_entry(directory: Path) -> None:
    change(directory / "consumequeue" / "T" / "1" / f"{280:020}", 60, struct.pack(">qiq", 6600, 132, 65))


def add_queue(directory: Path) -> None:
    (directory / "consumequeue" / "U" / "0").mkdir(parents=True)
    path = directory / "consumequeue" / "U" / "0" / f"{0:020}"
    path.write_bytes(struct.pack(">qiq", 0, 132, 0) + bytes(120))


def drop_queue(directory: Path) -> None:
    shutil.rmtree(directory / "consumequeue" / "T" / "2")


def drop_queue_file(directory: Path) -> None:
    (directory / "consumequeue" / "T" / "2" / f"{140:020}").unlink()


def late_checkpoint(directory: Path) -> None:
    with ClosedStore(directory) as store:
        checkpoint = store.checkpoint()
    assert checkpoint is not None
    write_checkpoint(directory / "checkpoint", checkpoint._replace(position=1 << 30, log_timestamp_ms=0))


def index_file(directory: Path) -> Path:
    return next((directory / "index").iterdir())


def change_index_entry(directory: Path) -> None:
    path = index_file(directory)
    change(path, 40 + 4 * SETTINGS.index_slots + 20 * 7 + 4, struct.pack(">q", 1))


def change_index_slot(directory: Path) -> None:
    view = index_file(directory).read_bytes()
    slot = next(at for at in range(40, 40 + 4 * SETTINGS.index_slots, 4) if view[at : at + 4] != bytes(4))
    change(index_file(directory), slot, bytes(4))


def drop_index_file(directory: Path) -> None:
    index_file(directory).unlink()


def unmarked_key_values(directory: Path) -> None:
    key_values = KeyValueStore(directory / "kv", cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    other = key_values.space("timers")
    other.write([b"\x03x"], [b""], removed_keys=[MARKER_KEY])
    other.flush(wait=True)
    key_values.close()


def damage_key_values(directory: Path) -> None:
    (directory / "kv" / "CURRENT").write_bytes(b"x")


def broken_config(directory: Path) -> None:
    (directory / "config").mkdir(exist_ok=True)
    (directory / "config" / "topics.json").write_text("{")
    (directory / "config" / "other.json").write_text("")
    (directory / "config" / "other.json.bak").write_text("{}")


def damaged_begins(directory: Path) -> None:
    (directory / BEGINS_NAME).write_bytes(b"x")


def begins_of_another_log(directory: Path) -> None:
    (directory / BEGINS_NAME).write_bytes(encode_begins(QueueBegins(1 << 20, [])))


@pytest.mark.parametrize(
    ("damage", "sentences"),
    [
        (damaged_begins, ["consumequeue.begins is damaged"]),
        (begins_of_another_log, ["consumequeue.begins is of a log from 1048576 on, this one ends at 6604"]),
        (drop_log_file, ["has no file for 8192..16384"]),
        (zero_file_end, ["positions 3808..4096: 288 bytes of the log are damaged"]),
        (swap_offset, ["expected offset 3", "there are no", "the offset was taken by an earlier record"]),
        (change_entry, ["the queue's entry is (77, 130, 65), not"]),
        (empty_entry, ["the queue has no entry for it"]),
        (add_entry, ["entries up to 18, but the log's records end at 17"]),
        (add_queue, ["topic 'U' queue 0: an entry for position 0, where the log has no such record"]),
        (drop_queue, ["there are no files of this queue"]),
        (drop_queue_file, ["no file for the offsets 7..14"]),
        (late_checkpoint, ["the checkpoint is for 1073741824", "the queues ahead of the log"]),
        (unmarked_key_values, ["projection timers has data without a marker"]),
        (change_index_entry, ["index/2023", "entry 7"]),
        (change_index_slot, ["leads to entry 0 instead of"]),
        (drop_index_file, ["the key index has 1 files, index.applied says 2"]),
        (damage_key_values, ["the next start makes a new one"]),
        (broken_config, ["topics.json is no JSON, and so is", "other.json is no JSON, its .bak is used"]),
    ],
)
def test_every_inconsistency_is_a_sentence(
    directory: Path, damage: Callable[[Path], None], sentences: list[str]
) -> None:
    damage(directory)
    code, lines = check(directory)
    assert code == 1
    text = "\n".join(lines)
    for sentence in sentences:
        if sentence != "there are no":
            assert sentence in text
    assert "inconsistenc" in lines[-1]
    assert "no inconsistencies" not in lines[-1]


def test_a_start_puts_the_derived_parts_right(directory: Path) -> None:
    """What check complains about in projections, rebuild mends."""
    for damage in (
        change_entry,
        empty_entry,
        drop_queue,
        drop_queue_file,
        add_queue,
        change_index_entry,
        drop_index_file,
        unmarked_key_values,
        damage_key_values,
    ):
        damage(directory)
        assert check(directory)[0] == 1
        rebuild(directory, SETTINGS)
        assert check(directory) == (
            0,
            [f"{directory}: 50 records, positions 0..6604, 3 queues: no inconsistencies"],
        )
        shutil.rmtree(directory.with_name("kv.damaged"), ignore_errors=True)


# Dumping ----------------------------------------------------------------------------------------------


def test_summary_has_files_queues_and_positions(directory: Path) -> None:
    rows = dump(directory, "summary")
    kinds = [row["kind"] for row in rows]
    assert kinds == ["segment"] * 2 + ["queue"] * 3 + [
        "checkpoint",
        "applied",
        "applied",
        "abort",
        "projection",
    ]
    assert rows[1]["start_position"] == 4096
    assert rows[2] == {
        "kind": "queue",
        "topic": "T",
        "queue": 0,
        "min_offset": 0,
        "end_offset": 17,
        "files": 3,
    }
    assert rows[5]["position"] == rows[6]["applied_position"] == rows[9]["applied_position"] == 6604
    assert rows[7]["projection"] == "index"
    assert rows[8] == {"kind": "abort", "is_there": False}


def test_records_and_their_filters(directory: Path) -> None:
    rows = dump(directory, "records")
    records = [row for row in rows if row["kind"] == "record"]
    assert len(records) == COUNT
    assert [row["kind"] for row in rows].count("blank") == 1
    assert records[8]["properties"] == {"MQTT_TOPIC": "dev/1/x", "KEYS": "k8", "TAGS": "A"}
    assert "body" not in records[0]
    assert dump(directory, "records", begin="1000", limit=2) == records[8:10]
    assert dump(directory, "records", begin=str(records[40]["position"]))[0] == records[40]
    assert dump(directory, "records", queue_id=1) == records[1::3]
    assert dump(directory, "records", topic="U") == []
    assert dump(directory, "records", has_bodies=True, limit=1)[0]["body"] == "body0"
    with pytest.raises(StoreError, match="is not a number"):
        dump(directory, "records", begin="x")


def test_bodies_that_are_no_text(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"\xff\x00")
    store.close()
    (row,) = dump(tmp_path, "records", has_bodies=True)
    assert row["body_base64"] == "/wA="


def test_entries_and_their_filters(directory: Path) -> None:
    entries = dump(directory, "entries", topic="T", queue_id=2)
    assert [row["offset"] for row in entries] == list(range(16))
    assert entries[3] == {
        "kind": "entry", "topic": "T", "queue": 2, "offset": 3, "position": 1432, "size": 132,
        "tags_code": 65,
    }  # fmt: skip
    assert dump(directory, "entries", queue_id=2, begin="14") == entries[14:]
    assert len(dump(directory, "entries")) == COUNT
    first = directory / "consumequeue" / "T" / "2" / f"{0:020}"
    change(first, 0, struct.pack(">qiq", 0, 0x7FFFFFFF, 0))
    assert dump(directory, "entries", queue_id=2, limit=1) == [
        {"kind": "filler", "topic": "T", "queue": 2, "offset": 0}
    ]


def test_index_chains(tmp_path: Path) -> None:
    (tmp_path / "20260101000000000").write_bytes(
        struct.pack(">qqqqii", 1000, 2000, 0, 300, 2, 4)
        + struct.pack(">5i", 0, 3, 0, 2, 0)
        + bytes(20)
        + struct.pack(">iqii", 11, 0, 0, 0)
        + struct.pack(">iqii", 3, 150, 1, 0)
        + struct.pack(">iqii", 16, 300, 1, 1)
        + bytes(16 * 20)
    )
    (tmp_path / "20260101000000001").write_bytes(b"short")
    (tmp_path / "other").write_bytes(b"")
    header, first, second, short = index_rows(tmp_path, SETTINGS)
    assert (header["slots"], header["entries"], header["entries_max"]) == (5, 3, 20)
    assert [entry["number"] for entry in first["entries"]] == [3, 1]
    assert second == {
        "kind": "chain", "file": "20260101000000000", "slot": 3,
        "entries": [{"number": 2, "hash": 3, "position": 150, "seconds": 1}],
    }  # fmt: skip
    assert short["problem"] == "only 5 bytes"
    assert len(list(index_rows(tmp_path, SETTINGS, first_slot=2))) == 3
    change(tmp_path / "20260101000000000", 60 + 20 + 16, struct.pack(">i", 3))
    assert "cannot be" in list(index_rows(tmp_path, SETTINGS))[1]["problem"]
    assert list(index_rows(tmp_path / "nowhere", SETTINGS)) == []


def test_readable_lines_have_dates_and_quote_what_needs_it(directory: Path) -> None:
    output = io.StringIO()
    store_tools.dump(directory, SETTINGS, "records", wanted=DumpFilter(limit=1), is_json=False, output=output)
    line = output.getvalue()
    assert line.startswith(
        "record     position=0 size=130 topic=T queue=0 offset=0 store_time=2023-11-14T22:13:20.000Z"
    )
    assert 'properties={"MQTT_TOPIC": "dev/0/x"' in line
    assert store_tools.readable({"kind": "x", "a": "b c", "d": None, "e": "\n", "f_ms": -1}) == (
        'x          a="b c" e="\\n" f=-1'
    )


# Rebuilding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["consumequeue"], ["index"], ["timers"], None])
def test_rebuilt_it_is_what_it_was(directory: Path, names: list[str] | None) -> None:
    entries = dump(directory, "entries")
    told: list[tuple[str, int, int]] = []
    rebuilt = rebuild(directory, SETTINGS, names, progress=lambda *what: told.append(what))
    assert rebuilt == (names or ["consumequeue", "index", "timers"])
    # Nothing waits for a time, so that nothing of the log is gone through for `timers`.
    for name in set(rebuilt) - {"timers"}:
        assert [what for what in told if what[0] == name][-1] == (name, 6604, 6604)
    assert {what[0] for what in told} == set(rebuilt) - {"timers"}
    assert dump(directory, "entries") == entries
    assert check(directory)[0] == 0


def test_a_projection_of_another_part_is_left_for_it(directory: Path) -> None:
    key_values = KeyValueStore(directory / "kv", cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    key_values.space("sessions").write([b"\x01x"], [b"y"])
    key_values.space("sessions").flush(wait=True)
    key_values.close()
    assert projection_names(directory, SETTINGS) == ["consumequeue", "index", "sessions", "timers"]
    assert rebuild(directory, SETTINGS, ["sessions"]) == ["sessions"]
    assert projection_names(directory, SETTINGS) == ["consumequeue", "index", "timers"]


def test_what_the_log_has_no_more_is_only_rebuilt_when_it_is_named(tmp_path: Path) -> None:
    k = Keeper(tmp_path)
    space = k.store.key_values().space("retained")
    k.fill(4)
    k.clock.advance(3601)
    k.fill(4)
    record = k.store.read(k.store.queue("T", 0), 4, records_max=1, bytes_max=1).views[0]
    space.write([b"\x01a/b"], [bytes(record)])
    space.flush(wait=True)
    assert k.store.min_position == 0
    k.delete_expired()
    assert k.store.min_position > 0
    k.store.close()
    assert rebuild(tmp_path, k.store.settings) == ["consumequeue", "index"]
    (row,) = dump(tmp_path, "retained", begin="a")
    assert (row["mqtt_topic"], row["topic"], row["offset"], row["is_stored"]) == ("a/b", "T", 4, True)
    assert dump(tmp_path, "retained", begin="b") == []
    output = io.StringIO()
    assert store_tools.rebuild(tmp_path, k.store.settings, [], output=output) == 0
    assert "left alone: retained; " in output.getvalue()
    assert rebuild(tmp_path, k.store.settings, ["retained"]) == ["retained"]
    assert projection_names(tmp_path, k.store.settings) == ["consumequeue", "index"]


def test_an_open_store_is_refused_by_its_lock(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    lock = str(tmp_path / "lock")
    for tool in (
        lambda: rebuild(tmp_path, SETTINGS),
        lambda: check(tmp_path),
        lambda: dump(tmp_path, "summary"),
        lambda: projection_names(tmp_path, SETTINGS),
    ):
        with pytest.raises(StoreLockedError, match=lock):
            tool()
    put(store, "T", 0, b"x")
    assert store.check() == []
    store.close()


def test_what_is_no_data_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a data directory"):
        check(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_names_are_refused_before_anything_is_deleted(directory: Path) -> None:
    before = files_of(directory)
    with pytest.raises(StoreError, match="has no projection nope: it has consumequeue, index, timers"):
        rebuild(directory, SETTINGS, ["consumequeue", "nope"])
    assert files_of(directory) == before


# The command line -------------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    sizes = [f"--set=store.{name}={value}" for name, value in SMALL.items()]
    return cli.main(["store", *arguments, *sizes])


@pytest.mark.damaged_store
def test_command_line(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = f"--data={directory}"
    assert run("check", data) == 0
    assert "no inconsistencies" in capsys.readouterr().out
    assert (
        run(
            "dump", "records", "--json", "--topic=T", "--queue=1", "--from=500", "--limit=2", "--bodies", data
        )
        == 0
    )
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["body"] for row in rows] == ["body4", "body7"]
    assert run("dump", data) == 0
    assert capsys.readouterr().out.startswith("segment")
    assert run("rebuild", "consumequeue", data) == 0
    assert capsys.readouterr().out.startswith("rebuilt consumequeue in ")
    assert run("rebuild", "nope", data) == 2
    change_entry(directory)
    assert run("check", data) == 1
    store = open_small(directory)
    assert run("check", data) == 2
    assert f"{directory / 'lock'} is held by another process" in capsys.readouterr().err
    store.close()
    assert tuple(store_tools.SUBJECTS) == cli._DUMP_SUBJECTS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_some_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([10.0, 10.01, 12.0, 20.0])
    monkeypatch.setattr(store_tools.time, "monotonic", lambda: next(times_s))
    stream = Terminal()
    bar = ProgressBar(stream)
    for position in (0, 10_000_000, 100_000_000, 200_000_000):
        bar("queues", position, 200_000_000)
    bar.end()
    first, half, full = stream.getvalue().split("\r")[1:]
    assert first.startswith("queues        [" + "." * 30 + "]   0% of 200 MB, 0 MB/s")
    assert half.startswith("queues        [" + "#" * 15 + "." * 15 + "]  50% of 200 MB, 50 MB/s, 2 s left")
    assert full.endswith("100% of 200 MB, 20 MB/s\x1b[K\n")
    times_s = iter([10.0, 12.0, 16.0, 16.5])
    lines = io.StringIO()
    bar = ProgressBar(lines)
    for position in (0, 10_000_000, 100_000_000, 200_000_000):
        bar("queues", position, 200_000_000)
    bar.end()
    assert lines.getvalue().count("\n") == 1
    assert " 50% of 200 MB" in lines.getvalue()


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[Store]:
    store = open_small(directory)
    yield store
    assert store.check() == []
    store.close()


def test_everything_derived_can_be_deleted_and_comes_back_at_the_next_start(directory: Path) -> None:
    entries = dump(directory, "entries")
    for name in ("consumequeue", "kv", "checkpoint"):
        path = directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        with opened(directory):
            pass
        assert dump(directory, "entries") == entries


def test_every_slot_of_the_index_that_leads_elsewhere_is_named(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    put(store, "T", 0, b"x", properties=b"KEYS\x01k\x02")
    store.close()
    (path,) = (tmp_path / "index").iterdir()
    data = bytearray(path.read_bytes())
    # Header 40 bytes, then 16 slots of 4.
    used = {slot for slot in range(16) if data[40 + 4 * slot : 44 + 4 * slot] != bytes(4)}
    for slot in range(16):
        data[40 + 4 * slot : 44 + 4 * slot] = b"\x00\x00\x00\x07"
    path.write_bytes(data)
    with ClosedStore(tmp_path) as closed:
        check = ClosedCheck(closed, store.settings)
        check.run()
    assert check.problems == [
        f"{path} slot {slot} leads to entry 7 instead of {int(slot in used)}" for slot in range(16)
    ]
