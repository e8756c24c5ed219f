"""Full collections look at what is new, and at nothing twice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from iotmq.cycles import rare_collections, short_collections


@pytest.fixture
def looked() -> Iterator[list[int]]:
    """Containers in each full collection."""
    looked: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            looked.append(len(gc.get_objects()))

    gc.callbacks.append(note)
    with short_collections():
        looked.clear()
        yield looked
    gc.callbacks.remove(note)


class Node:
    def __init__(self) -> None:
        self.other: Node | None = None


def test_what_lives_long_is_looked_at_once(looked: list[int]) -> None:
    kept = [[number] for number in range(400_000)]
    assert len(kept) == 400_000
    assert len(looked) >= 5
    assert max(looked) < 80_000
    assert sum(looked) < 500_000
    assert gc.get_freeze_count() >= 300_000


def test_a_new_cycle_is_collected(looked: list[int]) -> None:
    one, other = Node(), Node()
    one.other, other.other = other, one
    gone = weakref.ref(one)
    del one, other
    gc.collect()
    assert gone() is None


def test_a_start_is_hardly_looked_at() -> None:
    collections: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        collections.append(info["generation"])

    before = gc.get_threshold()
    with rare_collections():
        gc.collect()
        gc.callbacks.append(note)
        kept = [[number] for number in range(90_000)]
        gc.callbacks.remove(note)
    assert collections == []
    assert len(kept) == 90_000
    assert gc.get_threshold() == before


def test_afterwards_all_is_as_before() -> None:
    before = gc.get_threshold(), list(gc.callbacks)
    with short_collections():
        assert gc.get_threshold() != before[0]
        inside = gc.get_threshold(), list(gc.callbacks)
        with short_collections():
            assert (gc.get_threshold(), gc.callbacks) == inside
        assert (gc.get_threshold(), gc.callbacks) == inside
    assert (gc.get_threshold(), gc.callbacks) == before
    assert gc.get_freeze_count() == 0
