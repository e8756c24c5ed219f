"""The cache of pointers by topic: bounded, exact, and hard to fill with collisions."""

from __future__ import annotations

import itertools

import pytest

from iotmq.mqtt.topics.topic_cache import TopicCache


def test_what_is_inserted_is_found_and_nothing_else() -> None:
    cache = TopicCache(100, 1 << 20)
    topics = [
        b"a",
        b"b",
        b"a/b",
        b"",
        b"a" * 7,
        b"a" * 8,
        b"a" * 9,
        b"\0",
        b"\0\0",
        "温度".encode(),
        b"x" * 4096,
    ]
    for number, topic in enumerate(topics, start=1):
        assert cache._find(topic) is None
        cache._insert(topic, number)
    assert [cache._find(topic) for topic in topics] == list(range(1, len(topics) + 1))
    assert cache._find(b"c") is None
    assert cache._find(b"\0\0\0") is None, "padding of the last word is not part of a topic"
    assert cache.count == len(topics)


@pytest.mark.parametrize("count_max", [1, 7, 8, 9, 1_000])
def test_full_at_its_maximum_and_empty_after_clear(count_max: int) -> None:
    cache = TopicCache(count_max, 1 << 20)
    for number in range(count_max):
        cache._insert(b"%d" % number, number + 1)
    with pytest.raises(OverflowError):
        cache._insert(b"one more", 1)
    assert all(cache._find(b"%d" % number) == number + 1 for number in range(count_max))
    cache._clear()
    assert cache.count == 0
    assert cache._find(b"0") is None
    cache._insert(b"one more", 5)
    assert cache._find(b"one more") == 5


def test_full_by_bytes_at_their_maximum_and_not_one_below() -> None:
    cache = TopicCache(100, 1_000)
    cache._insert(b"a" * 500, 1, 100)
    cache._insert(b"b" * 300, 2, 100)
    cache.check_invariants()
    assert cache.size_bytes == 1_000
    with pytest.raises(OverflowError):
        cache._insert(b"c", 3)
    cache._clear()
    assert cache.size_bytes == 0
    cache._insert(b"a" * 500, 1, 100)
    with pytest.raises(OverflowError):
        cache._insert(b"b" * 300, 2, 101)
    cache.check_invariants()


def test_what_would_be_more_than_a_256th_is_not_worth_keeping() -> None:
    cache = TopicCache(100, 256_000)
    assert cache._may_take(1_000)
    assert not cache._may_take(1_001)


@pytest.mark.parametrize("count_max", [0, (1 << 24) + 1])
def test_sizes_that_are_refused(count_max: int) -> None:
    with pytest.raises(ValueError, match="count_max"):
        TopicCache(count_max, 1 << 20)


def test_topics_made_to_collide_do_not() -> None:
    """Flips in two words in a row that cancel out, whatever the secret start is, when words only go through
    `x ^= x >> 32; x *= K; x ^= x >> 29`: about half of the pairs did, so 4,096 topics had 64 hashes or so."""
    pairs = 12
    topics = []
    for flips in itertools.product((False, True), repeat=pairs):
        topic = bytearray(b"aaaaaaaabbbbbbbb" * pairs)
        for at in (16 * place for place, is_flipped in enumerate(flips) if is_flipped):
            topic[at + 3] ^= 0x40
            topic[at + 7] ^= 0x40
            topic[at + 12] ^= 0x02
            topic[at + 15] ^= 0x40
        topics.append(bytes(topic))
    cache = TopicCache(len(topics), 1 << 20)
    assert len({cache._hash(topic) for topic in topics}) == len(topics)
    low_bits = {cache._hash(topic) & 0x1FFF for topic in topics}
    assert len(low_bits) > len(topics) // 2, "4,096 topics fall evenly into the 8,192 slots of their cache"


def test_every_cache_has_its_own_secrets() -> None:
    assert TopicCache(1, 1 << 20)._hash(b"topic") != TopicCache(1, 1 << 20)._hash(b"topic")
