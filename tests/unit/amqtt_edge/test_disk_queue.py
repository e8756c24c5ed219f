"""The queue of amqtt's plug-in: order, bounds, and what is there after an end."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from iotmq.amqtt_edge.disk_queue import DiskQueue, Waiting


def message(number: int, size: int = 1) -> Waiting:
    return Waiting(0, f"t/{number}", str(number).encode().ljust(size), 1, number % 2 == 1, "device")


def queue(
    file: Path, *, bytes_max: int = 1 << 20, drops: Literal["oldest", "newest"] = "oldest"
) -> DiskQueue:
    return DiskQueue(file / "queue.db", bytes_max=bytes_max, drops=drops)


def topics(found: DiskQueue) -> list[str]:
    return [each.topic for each in found.first(1_000)]


def test_messages_come_in_order_and_stay_until_they_are_done(tmp_path: Path) -> None:
    found = queue(tmp_path)
    found.put([message(0), message(1)])
    found.put([message(2)])
    first = found.first(2)
    assert [(each.topic, each.payload, each.qos, each.retain, each.client_id) for each in first] == [
        ("t/0", b"0", 1, False, "device"),
        ("t/1", b"1", 1, True, "device"),
    ]
    assert found.first(2) == first
    found.done(first)
    assert topics(found) == ["t/2"]
    assert found.count == 1
    found.close()
    again = queue(tmp_path)
    assert topics(again) == ["t/2"]
    assert (again.count, again.bytes) == (1, message(2).size)
    again.put([message(3)])
    numbers = [each.number for each in again.first(9)]
    assert numbers == sorted(set(numbers))
    again.close()


@pytest.mark.parametrize(
    ("drops", "kept"), [("oldest", ["t/1", "t/2", "t/3"]), ("newest", ["t/0", "t/1", "t/2"])]
)
def test_past_the_maximum_a_message_goes(
    tmp_path: Path, drops: Literal["oldest", "newest"], kept: list[str]
) -> None:
    found = queue(tmp_path, bytes_max=3 * message(0, 100).size, drops=drops)
    found.put([message(number, 100) for number in range(3)])
    assert (found.count, found.dropped) == (3, 0), "as many as there is room for"
    found.put([message(3, 100)])
    assert topics(found) == kept
    assert found.dropped == 1
    assert found.bytes == 3 * message(0, 100).size
    found.put([message(4, 1_000)])
    assert topics(found) == kept, "larger than the queue"
    found.close()


def test_one_that_made_room_meanwhile_is_done_for(tmp_path: Path) -> None:
    found = queue(tmp_path, bytes_max=2 * message(0).size)
    found.put([message(0), message(1)])
    under_way = found.first(1)
    found.put([message(2)])
    found.done(under_way)
    assert topics(found) == ["t/1", "t/2"]
    assert (found.count, found.bytes) == (2, 2 * message(0).size)
    found.close()


def test_a_batch_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    found = queue(tmp_path)
    found.put([message(0)])
    with pytest.raises(OverflowError):
        found.put([message(1), Waiting(0, "t", b"", 1 << 70, False, "d")])
    assert topics(found) == ["t/0"]
    assert (found.count, found.bytes) == (1, message(0).size)
    found.close()


def test_a_failure_within_a_transaction_changes_nothing(tmp_path: Path) -> None:
    found = queue(tmp_path)
    found.put([message(0), message(1)])
    found._database.execute(
        "create trigger fails before delete on waiting when old.topic = 't/1'"
        " begin select raise(abort, 'no'); end"
    )
    with pytest.raises(sqlite3.Error):
        found.done(found.first(2))
    assert (topics(found), found.count) == (["t/0", "t/1"], 2)
    found._database.execute("drop trigger fails")
    found.put([message(2)])
    found.done(found.first(2))
    assert (topics(found), found.count) == (["t/2"], 1)
    found.close()


PUTS = """
import sys
from pathlib import Path
from iotmq.amqtt_edge.disk_queue import DiskQueue, Waiting

queue = DiskQueue(Path(sys.argv[1]), bytes_max=1 << 30, drops="oldest")
number = queue.count
while True:
    queue.put([Waiting(0, f"t/{number + each}", bytes(200), 1, False, "d") for each in range(7)])
    number += 7
    print(number, flush=True)
"""


def test_what_was_put_survives_kill_and_its_name_stays(tmp_path: Path) -> None:
    file = tmp_path / "queue.db"
    names = set()
    told = 0
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", PUTS, str(file)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            told = int(line)
            if told % 350 == 0:
                process.kill()
                break
        process.stdout.close()
        process.wait()
        found = queue(tmp_path, bytes_max=1 << 30)
        names.add(found.name)
        assert found.count >= told
        assert found.count % 7 == 0, "whole batches"
        assert [each.topic for each in found.first(1 << 20)] == [f"t/{each}" for each in range(found.count)]
        found.close()
    assert len(names) == 1
    assert names != {queue(tmp_path / "..", bytes_max=1).name}


def test_a_torn_tail_loses_the_last_batches_only(tmp_path: Path) -> None:
    found = queue(tmp_path)
    for number in range(20):
        found.put([message(2 * number, 1_000), message(2 * number + 1, 1_000)])
    whole = (tmp_path / "queue.db").read_bytes(), (tmp_path / "queue.db-wal").read_bytes()
    found.close()
    counts = []
    for place, size in enumerate(range(0, len(whole[1]) + 1, len(whole[1]) // 13)):
        directory = tmp_path / str(place)
        directory.mkdir()
        (directory / "queue.db").write_bytes(whole[0])
        (directory / "queue.db-wal").write_bytes(whole[1][:size])
        torn = queue(directory)
        assert topics(torn) == [f"t/{number}" for number in range(torn.count)]
        assert torn.count % 2 == 0
        torn.put([message(99)])
        counts.append(torn.count)
        torn.close()
    assert counts == sorted(counts)
    assert counts[-1] >= 38


@pytest.mark.parametrize("is_header", [True, False])
def test_a_damaged_file_is_kept_beside_a_new_one(
    tmp_path: Path, is_header: bool, caplog: pytest.LogCaptureFixture
) -> None:
    found = queue(tmp_path)
    found.put([message(number, 1_000) for number in range(50)])
    found.close()
    file = tmp_path / "queue.db"
    content = bytearray(file.read_bytes())
    begin = 0 if is_header else 4_096
    content[begin : begin + 8_192] = b"\xa5" * 8_192
    file.write_bytes(content)
    again = queue(tmp_path)
    assert (again.count, topics(again)) == (0, [])
    again.put([message(1)])
    assert topics(again) == ["t/1"]
    again.close()
    (kept,) = tmp_path.glob("queue.db.damaged-*")
    assert kept.read_bytes() == bytes(content)
    assert str(kept) in caplog.text


def test_a_full_disk_takes_nothing_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    found = queue(tmp_path)
    found.put([message(0)])
    (pages,) = found._database.execute("pragma page_count").fetchone()
    found._database.execute(f"pragma max_page_count = {pages + 2}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        found.put([message(number, 4_000) for number in range(1, 9)])
    assert (topics(found), found.count, found.bytes) == (["t/0"], 1, message(0).size)
    found._database.execute("pragma max_page_count = 1000000")
    found.put([message(number, 4_000) for number in range(1, 9)])
    assert topics(found) == [f"t/{number}" for number in range(9)]
    found.close()
