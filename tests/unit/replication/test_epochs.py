"""Up to where two logs are the same, by the epochs in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.replication.epochs import EpochStart, common_point


def starts(*pairs: tuple[int, int]) -> list[EpochStart]:
    return [EpochStart(*pair) for pair in pairs]


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "point"),
    [
        (starts((1, 0)), 10, starts((1, 0)), 7, 7),
        (starts((1, 0), (2, 10)), 20, starts((1, 0)), 15, 10),
        (starts((1, 0), (3, 10)), 20, starts((1, 0), (2, 12)), 30, 10),
        # KIP-279: neither has the other's newest epoch.
        (starts((1, 0), (2, 5), (4, 9)), 20, starts((1, 0), (2, 5), (3, 8)), 20, 8),
        (starts((5, 100)), 120, starts((1, 0)), 100, None),
        ([], 0, starts((1, 0)), 3, None),
        (starts((1, 0)), 3, [], 0, None),
        # The same number at another place cannot be the same epoch.
        (starts((1, 4)), 9, starts((1, 0)), 9, None),
    ],
)
def test_the_common_point(
    ours: list[EpochStart], our_end: int, theirs: list[EpochStart], their_end: int, point: int | None
) -> None:
    assert common_point(ours, our_end, theirs, their_end) == point
    assert common_point(theirs, their_end, ours, our_end) == point


Log = list[tuple[int, int]]


def epochs_of(log: Log) -> list[EpochStart]:
    return [EpochStart(epoch, at) for at, (epoch, _) in enumerate(log) if at == 0 or log[at - 1][0] != epoch]


@given(
    st.lists(st.integers(1, 9), max_size=30).map(sorted),
    st.integers(0, 30),
    st.lists(st.integers(1, 9), max_size=10).map(sorted),
)
def test_it_is_where_logs_that_grew_apart_do_so(shared: list[int], cut: int, more: list[int]) -> None:
    """One log is written by masters with even numbers, the other goes on with odd ones from a cut on."""
    ours: Log = [(2 * epoch, number) for number, epoch in enumerate(shared)]
    cut = min(cut, len(ours))
    least = ours[cut - 1][0] if cut else 0
    theirs: Log = ours[:cut] + [(least + 2 * epoch - 1, -number) for number, epoch in enumerate(more)]
    same = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        same = min(len(ours), len(theirs))
    found = common_point(epochs_of(ours), len(ours), epochs_of(theirs), len(theirs))
    assert (found or 0) == same
