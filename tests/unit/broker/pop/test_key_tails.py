"""The table of keys: what a dictionary would have, whatever comes and goes."""

from __future__ import annotations

import random

import pytest

from iotmq.broker.pop.key_tails import KeyTails


@pytest.mark.parametrize("seed", range(5))
def test_a_random_life_is_that_of_a_dictionary(seed: int) -> None:
    random_ = random.Random(seed)
    table, twin = KeyTails(), dict[int, int]()
    # Few bits, so that places are shared; and all 64, as hashes have them.
    keys = [random_.getrandbits(64) or 1 for _ in range(300)] + [number << 56 for number in range(1, 100)]
    for step in range(4_000):
        key = random_.choice(keys)
        # It grows, and shrinks again.
        if random_.random() < (0.7 if step < 2_000 else 0.3):
            table.put(key, step)
            twin[key] = step
        elif key in twin:
            table.remove(key)
            del twin[key]
        if step % 100 == 0:
            assert [table.find(each) for each in keys] == [twin.get(each, -1) for each in keys]
        assert table.count == len(twin)
    for key in list(twin):
        table.remove(key)
        del twin[key]
    assert [table.find(each) for each in keys] == [-1] * len(keys)
