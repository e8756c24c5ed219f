"""The queue of amqtt's plug-in: order, bounds, and what is there after an end."""

from __future__ import annotations

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
