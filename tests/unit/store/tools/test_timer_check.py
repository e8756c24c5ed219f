"""`iotmq store check` on the timer index: nothing to say of a good one, a sentence for each damage."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from manual_clock import ManualClock
from timer_bench import SETTINGS, TimerBench

from iotmq.store.kv.kv import KeySpace, KeyValueStore
from iotmq.store.settings import StoreSettings
from iotmq.store.tools.inspection import ClosedStore
from iotmq.store.tools.kv_check import check_key_values
from iotmq.store.tools.rebuild import rebuild

Change = Callable[[KeySpace], None]


async def prepared(directory: Path) -> int:
    """Some messages that wait, some that are gone; the end of the log."""
    bench = TimerBench(directory, ManualClock())
    for number in range(20):
        bench.put(b"%d" % number, in_ms=1_000 + number, key=f"k{number}" if number % 2 else "")
    bench.put(b"level", level=4, key="l")
    bench.cancel("k3")
    bench.pass_time(1.01)
    end_position = bench.store.appended_position
    bench.close()
    return end_position


def problems(directory: Path, end_position: int) -> list[str]:
    settings = StoreSettings(**SETTINGS)
    with ClosedStore(directory) as closed:
        return list(
            check_key_values(closed, settings, end_position=end_position, is_lost=lambda position: False)
        )


async def test_a_good_index_gives_nothing_to_say(tmp_path: Path) -> None:
    assert problems(tmp_path, await prepared(tmp_path)) == []


async def test_rebuilt_it_is_filled_from_the_log(tmp_path: Path) -> None:
    end_position = await prepared(tmp_path)
    told: list[tuple[str, int, int]] = []
    names = rebuild(tmp_path, StoreSettings(**SETTINGS), ["timers"], progress=lambda *what: told.append(what))
    assert names == ["timers"]
    assert told[-1] == ("timers", end_position, end_position)
    assert problems(tmp_path, end_position) == []
    bench = TimerBench(tmp_path, ManualClock())
    # Of twenty those that were not due yet, and the one with a level.
    assert len(bench.store.timers().waiting(timers_max=100)) == 10
    bench.close()


def first(space: KeySpace, tag: int) -> tuple[bytes, bytes]:
    return next(iter(space.scan(bytes((tag,)))))


def without(tag: int) -> Change:
    return lambda space: space.write(removed_keys=(first(space, tag)[0],))


def changed(tag: int, at: int) -> Change:
    def change(space: KeySpace) -> None:
        key, value = first(space, tag)
        space.write((key,), (value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :],))

    return change


def elsewhere(space: KeySpace) -> None:
    """A message at a position where no record starts."""
    _, value = first(space, 2)
    due_ms, offset, name, size = struct.unpack(">qqQI", value)
    space.write(
        (struct.pack(">BQQ", 1, due_ms, 7), struct.pack(">BHQ", 2, 0, 7)),
        (struct.pack(">HIq", 0, size, offset), value),
    )
    assert name == 0 or name


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without(1), "no entry for its time"),
        (without(2), "have a time"),
        (without(3), "can be found by one"),
        (without(4), "are counted"),
        (changed(2, 7), "is due at"),
        (changed(2, 15), "size or offset"),
        (changed(2, 23), "the name is not"),
        (changed(2, 27), "size or offset"),
        (changed(4, 7), "are counted"),
        (elsewhere, "no record"),
        (lambda space: space.write((b"\x02short",), (b"",)), "a key of 6"),
    ],
)
async def test_each_kind_of_damage_is_said(tmp_path: Path, change: Change, text: str) -> None:
    end_position = await prepared(tmp_path)
    key_values = KeyValueStore(tmp_path / "kv", cache_bytes=1 << 20, write_buffer_bytes=1 << 20)
    space = key_values.space("timers")
    change(space)
    space.flush(wait=True)
    key_values.close()
    found = problems(tmp_path, end_position)
    assert any(text in problem for problem in found), found
