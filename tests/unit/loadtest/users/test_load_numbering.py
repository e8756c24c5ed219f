"""Numbers of swarms: none twice, over all workers, and given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from loadtest.users.numbering import Numbers


def numbers(place: tuple[int, int] | None) -> Numbers:
    made = Numbers(cast("Any", SimpleNamespace(runner=None)))
    made.place = place
    return made


def test_a_process_alone_counts_from_zero_for_each_kind() -> None:
    alone = numbers(None)
    assert [alone.take("a"), alone.take("a"), alone.take("b")] == [0, 1, 0]


def test_workers_share_the_numbers_without_gaps() -> None:
    workers = [numbers((index, 3)) for index in range(3)]
    assert sorted(worker.take("a") for worker in workers for _ in range(4)) == list(range(12))


def test_the_lowest_number_that_was_given_back_is_next() -> None:
    worker = numbers((1, 2))
    taken = [worker.take("a") for _ in range(4)]
    assert taken == [1, 3, 5, 7]
    for number in (5, 1):
        worker.give_back("a", number)
    assert [worker.take("a") for _ in range(3)] == [1, 5, 9]
