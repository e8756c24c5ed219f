"""Damage to the key-value database keeps no store from starting: what it held comes from the log again."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from last_values import LastValues
from store_model import BORN_HOST, open_small, put

from iotmq.errors import StoreCorruptError, StoreFullError
from iotmq.message.records.record import decode_record, encode_batch
from iotmq.store.kv.kv import DAMAGED_DIRECTORY, KeySpace
from iotmq.store.store import Store

Damage = Callable[[Path, random.Random], None]
NAMES = [f"dev/{number:04}/telemetry" for number in range(300)]


def remove(path: Path, source: random.Random) -> None:
    path.unlink()


def empty(path: Path, source: random.Random) -> None:
    path.write_bytes(b"")


def make_directory(path: Path, source: random.Random) -> None:
    path.unlink()
    path.mkdir()


def make_zero(path: Path, source: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def make_random(path: Path, source: random.Random) -> None:
    path.write_bytes(source.randbytes(path.stat().st_size))


def lengthen(path: Path, source: random.Random) -> None:
    path.write_bytes(path.read_bytes() + source.randbytes(50))


def cut(path: Path, source: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: source.randrange(len(data) + 1)])


def flip(path: Path, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


DAMAGES = (remove, empty, make_directory, make_zero, make_random, lengthen, cut, flip)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tables, and the last of it not in the database: a start has to write to it."""
    directory = tmp_path_factory.mktemp("kv") / "data"
    store = open_small(directory)
    values = LastValues.add_to(store)
    for first in range(0, 300, 75):
        elements = (
            (name.encode(), b"MQTT_TOPIC\x01" + name.encode(), 0) for name in NAMES[first : first + 75]
        )
        store.append(store.queue("T", 0), encode_batch(elements), born_timestamp_ms=1, born_host=BORN_HOST)
        if first < 225:
            values.sync()
    copy = directory.with_name("crashed")
    shutil.copytree(directory, copy)
    store.close()
    return copy


def answer(store: Store, values: LastValues, name: str) -> bytes | None:
    """The body of the topic's last record; `damaged` when the error says what to do."""
    try:
        position = values.find(name.encode())
    except StoreCorruptError as error:
        return b"damaged" if "`iotmq store rebuild`" in str(error) else None
    record = None if position is None else store.read_record(position)
    return None if record is None else decode_record(record).body


def check_start(directory: Path) -> bool:
    """Start, look at everything, write; whether the database had been moved aside."""
    store = open_small(directory)
    values = LastValues.add_to(store)
    has_moved = (directory / DAMAGED_DIRECTORY).exists()
    answers = {name: answer(store, values, name) for name in NAMES}
    wrong = {
        name: found
        for name, found in answers.items()
        if found != name.encode() and (has_moved or found != b"damaged")
    }
    assert wrong == {}
    put(store, "T", 0, b"new", properties=b"MQTT_TOPIC\x01" + NAMES[0].encode())
    assert answer(store, values, NAMES[0]) == b"new"
    assert store.check() == []
    store.close()
    return has_moved


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
def test_every_file_may_be_damaged_in_every_way(tmp_path: Path, crashed: Path, damage: Damage) -> None:
    source = random.Random(damage.__name__)
    moved = 0
    for name in sorted(path.name for path in (crashed / "kv").iterdir()):
        directory = tmp_path / name
        shutil.copytree(crashed, directory)
        damage(directory / "kv" / name, source)
        moved += check_start(directory)
        shutil.rmtree(directory)
    assert moved >= 1


@pytest.mark.slow
def test_the_list_of_its_files_may_end_anywhere(tmp_path: Path, crashed: Path) -> None:
    """Also where it tells of a column family that it has not finished telling of."""
    (manifest,) = (crashed / "kv").glob("MANIFEST-*")
    data = manifest.read_bytes()
    for end in range(0, len(data), 47):
        directory = tmp_path / str(end)
        shutil.copytree(crashed, directory)
        (directory / "kv" / manifest.name).write_bytes(data[:end])
        check_start(directory)
        shutil.rmtree(directory)


@pytest.mark.parametrize("was_moved_before", ["no", "file", "directory"])
def test_a_file_in_its_place_is_moved_aside(
    tmp_path: Path, crashed: Path, was_moved_before: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(crashed, directory)
    shutil.rmtree(directory / "kv")
    (directory / "kv").write_bytes(b"nonsense")
    aside = directory / DAMAGED_DIRECTORY
    if was_moved_before == "file":
        aside.write_bytes(b"older nonsense")
    elif was_moved_before == "directory":
        aside.mkdir()
        (aside / "CURRENT").write_bytes(b"older nonsense")
    assert check_start(directory)
    assert aside.read_bytes() == b"nonsense"
    assert "is damaged and starts over from the log" in caplog.text


def test_damage_that_only_writing_meets_costs_the_database_and_no_start(
    tmp_path: Path, crashed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(crashed, directory)
    real_write = KeySpace.write
    refusals = [StoreCorruptError("last: Corruption: block checksum mismatch")]

    def write(space: KeySpace, *arguments: object, **more: object) -> None:
        if refusals:
            raise refusals.pop()
        real_write(space, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(KeySpace, "write", write)
    monkeypatch.setattr("iotmq.store.kv.kv_projection.PENDING_KEYS_MAX", 1)
    monkeypatch.setattr("iotmq.store.projections.catch_up.CATCH_UP_BYTES", 4096)
    assert check_start(directory)
    assert refusals == []
    assert "is damaged and starts over from the log: last: Corruption" in caplog.text


def test_a_machine_at_fault_is_not_taken_for_damage(
    tmp_path: Path, crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "data"
    shutil.copytree(crashed, directory)

    def bind(space: KeySpace, *arguments: object) -> None:
        raise OSError("IO error: No space left on device: While appending to file")

    with monkeypatch.context() as patched:
        patched.setattr(KeySpace, "bind", bind)
        store = open_small(directory)
        with pytest.raises(StoreFullError):
            LastValues.add_to(store)
        store.close()
    assert not (directory / DAMAGED_DIRECTORY).exists()
    check_start(directory)
