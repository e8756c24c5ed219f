"""The filter index: every shape of filter, ids, and the cache of matches."""

from __future__ import annotations

import time

import pytest
from loop_turns import turn_s_max

from iotmq import limits
from iotmq.mqtt.topics.filters import FilterIndex
from iotmq.mqtt.topics.topics import matches, wildcard_shape

FILTERS = [
    "a",
    "a/b",
    "/",
    "//",
    "a//b",
    "a/",
    "#",
    "+",
    "+/+",
    "/+",
    "+/",
    "/#",
    "a/#",
    "a/+",
    "a/+/b",
    "+/b",
    "+/b/#",
    "+/+/#",
    "a/+/+/#",
    "a//#",
    "$SYS/#",
    "$SYS/+",
    "$SYS/a",
    "$SYS",
    "a/$SYS/#",
    "温/+/😀",
    "+/温/#",
]
TOPICS = [
    "a",
    "b",
    "a/b",
    "a/",
    "/",
    "/a",
    "//",
    "a//b",
    "a//",
    "a/x/b",
    "x/b",
    "x/b/c",
    "a/1/2",
    "a/1/2/3",
    "$SYS",
    "$SYS/a",
    "$SYS/a/b",
    "$other",
    "$other/b",
    "a/$SYS",
    "a/$SYS/x",
    "温/x/😀",
    "x/温",
    "温",
]


def names_of(index: FilterIndex, topic: str, known: dict[int, str]) -> set[str]:
    found = index.match(topic)
    assert found == sorted(set(found)), "each filter at most once"
    return {known[filter_id] for filter_id in found}


def test_matches_what_the_specification_says() -> None:
    index = FilterIndex()
    assert index.is_empty
    known = {index.add(name): name for name in FILTERS}
    assert len(known) == len(index) == len(FILTERS)
    for topic in TOPICS:
        expected = {name for name in FILTERS if matches(name, topic)}
        assert names_of(index, topic, known) == expected, topic
        assert names_of(index, topic, known) == expected, "and the same from the cache"
    for name in FILTERS[::2]:
        index.remove(name)
    left = FILTERS[1::2]
    for topic in TOPICS:
        assert names_of(index, topic, known) == {name for name in left if matches(name, topic)}, topic
    for name in left:
        index.remove(name)
    assert index.is_empty
    assert all(index.match(topic) == [] for topic in TOPICS)


def test_the_same_filter_has_one_id() -> None:
    index = FilterIndex()
    assert index.add("a/+") == index.add("a/+") == index.id_of("a/+")
    assert "a/+" in index
    assert len(index) == 1
    assert index.id_of("b") is None
    assert "b" not in index


def test_ids_are_used_again_for_other_filters_and_the_cache_does_not_mix_them_up() -> None:
    index = FilterIndex()
    first = index.add("a/#")
    assert index.match("a/b") == [first]
    assert index.remove("a/#") == first
    assert index.match("a/b") == []
    assert index.add("b/#") == first, "no id is wasted"
    assert index.match("a/b") == []
    assert index.match("b/b") == [first]
    with pytest.raises(KeyError):
        index.remove("a/#")


def test_the_place_of_a_shape_is_used_again_when_its_last_filter_goes() -> None:
    index = FilterIndex()
    index.add("a/+")
    index.add("b/+")
    assert index.shape_count == 1
    index.remove("a/+")
    other = index.add("+/c")
    assert index.shape_count == 2
    index.remove("b/+")
    assert index.shape_count == 1
    again = index.add("+/+/#")
    index.check_invariants()
    assert index.match("x/c") == sorted((other, again))
    index.remove("+/c")
    index.remove("+/+/#")
    assert (index.shape_count, index.is_empty) == (0, True)
    index.check_invariants()


def deep_filters(count: int, levels: int) -> list[str]:
    """Filters of so many levels, no two with their wildcards at the same places."""
    return ["/".join("a+"[number >> level & 1] for level in range(levels)) for number in range(1, count + 1)]


@pytest.mark.parametrize("topic_filter", ["+", "#", "a/+", "a/+/#", "+//b/+", "/#", "a/b/c/+/+/d"])
def test_a_shape_is_the_same_for_the_index_and_for_budgets(topic_filter: str) -> None:
    index = FilterIndex()
    shape = wildcard_shape(topic_filter)
    assert shape is not None
    assert not index.has_shape(shape)
    index.add(topic_filter)
    assert index.has_shape(shape)
    assert wildcard_shape("a/b") is None


def test_ten_thousand_filters_of_as_many_shapes_are_small_and_hold_nobody_up() -> None:
    index = FilterIndex()
    names = deep_filters(10_000, limits.MQTT_WILDCARD_LEVELS_MAX)
    ids = [index.add(name) for name in names]
    assert index.shape_count == 10_000
    assert index.memory_bytes / 10_000 < 200
    took_s = []
    for number in range(5):
        topic = "/".join(["a"] * (limits.MQTT_WILDCARD_LEVELS_MAX - 1) + [f"a{number}"])
        began_s = time.thread_time()
        assert index.match(topic) == []
        took_s.append(time.thread_time() - began_s)
    # A topic that nobody has asked for yet, and that has as many levels.
    assert sorted(took_s)[2] < turn_s_max() / 2
    assert index.match("/".join("a" * limits.MQTT_WILDCARD_LEVELS_MAX)) == sorted(ids)
    took_s = []
    for _ in range(5):
        began_s = time.thread_time()
        index.match("a/b/c")
        took_s.append(time.thread_time() - began_s)
    assert min(took_s) < 0.001, "shallow topics notice nothing"
    for name in names:
        index.remove(name)
    assert index.shape_count == 0
    index.check_invariants()


def test_filters_that_are_paths_of_each_other_leave_one_by_one() -> None:
    index = FilterIndex()
    nested = ["+", "+/a", "+/a/b", "+/a/b/#", "+/a/#"]
    ids = {name: index.add(name) for name in nested}
    for gone in ["+/a", "+", "+/a/b/#", "+/a/b", "+/a/#"]:
        index.remove(gone)
        del ids[gone]
        for topic in ("x", "x/a", "x/a/b", "x/a/b/c"):
            assert index.match(topic) == sorted(ids[name] for name in ids if matches(name, topic))


def test_cached_matches_go_stale_with_every_change() -> None:
    index = FilterIndex()
    assert index.match("a/b") == []
    exact = index.add("a/b")
    assert index.match("a/b") == [exact]
    wildcard = index.add("a/+")
    assert index.match("a/b") == [exact, wildcard]
    index.remove("a/b")
    assert index.match("a/b") == [wildcard]


@pytest.mark.parametrize("topics_count", [8, 9, 100])
def test_the_cache_may_overflow(topics_count: int) -> None:
    index = FilterIndex(cached_topics_max=8)
    known = [index.add(f"t/{number}/#") for number in range(topics_count)]
    for _ in range(2):
        for number in range(topics_count):
            assert index.match(f"t/{number}/x") == [known[number]]
            assert index.match(f"t/{number}") == [known[number]]


@pytest.mark.parametrize(
    "topic", ["a/#", "a/+", "#", "+", "", "a/\0", "a/\x01", "a" * 5_000, "a" + "/" * 200]
)
def test_what_is_not_a_topic_name_matches_nothing(topic: str) -> None:
    """A native producer may put anything into a record; no device may get a PUBLISH with it."""
    index = FilterIndex()
    for name in ("#", "+", "a/#", "a/+", "a/+/#"):
        index.add(name)
    assert index.match(topic) == []
    assert index.match("a/b") != []


def test_many_filters_of_one_shape() -> None:
    index = FilterIndex()
    ids = [index.add(f"dev/{number}/cmd/#") for number in range(20_000)]
    assert index.match("dev/12345/cmd/reboot") == [ids[12_345]]
    assert index.match("dev/20000/cmd/reboot") == []
    assert index.memory_bytes < 64 * 20_000
    for number in range(0, 20_000, 2):
        index.remove(f"dev/{number}/cmd/#")
    for number in range(20_000):
        assert index.match(f"dev/{number}/cmd") == ([ids[number]] if number % 2 else []), number


@pytest.mark.parametrize("name", ["a", "a/b", "+/é", "#", "x/+/y/#"])
def test_an_id_tells_its_filter(name: str) -> None:
    index = FilterIndex()
    index.add("other/+")
    filter_id = index.add(name)
    assert index.filter_of(filter_id) == name
    assert index.filter_of(filter_id + 1) is None
    index.remove(name)
    assert index.filter_of(filter_id) is None


def test_filters_are_taken_up_to_the_limits() -> None:
    index = FilterIndex()
    longest = "a" * limits.MQTT_TOPIC_BYTES_MAX
    deepest = "/".join("+" * limits.MQTT_TOPIC_LEVELS_MAX)
    for name in (longest, deepest):
        assert index.match(name.replace("+", "b")) == []
        filter_id = index.add(name)
        assert index.match(name.replace("+", "b")) == [filter_id]
        for verb in (index.add, index.id_of, index.remove):
            with pytest.raises(ValueError, match="at most 4096, and 128 levels"):
                verb(name + ("/+" if "/" in name else "a"))


def test_the_cache_takes_no_more_bytes_than_it_may() -> None:
    index = FilterIndex(cached_bytes_max=64 * 1024)
    index.add("#")
    for number in range(1_000):
        assert index.match(f"{number:0200}") == [0]
        assert index.cached_bytes <= 64 * 1024
    index.check_invariants()
    assert index.cached_bytes > 16 * 1024


def test_topics_that_match_too_much_or_are_none_are_not_cached() -> None:
    index = FilterIndex(cached_bytes_max=64 * 1024)
    for number in range(100):
        index.add("/".join("a+"[number >> level & 1] for level in range(7)))
    assert len(index.match("/".join("a" * 7))) == 100, "400 bytes of ids: more than a 256th"
    assert index.match("a/#") == index.match("x" * 5_000) == []
    assert index.cached_bytes == 0
    index.match("short")
    assert index.cached_bytes > 0


def test_a_cached_topic_that_comes_to_match_too_much_leaves_the_cache() -> None:
    index = FilterIndex(cached_bytes_max=64 * 1024)
    known = []
    for number in range(128):
        known.append(index.add("/".join("a+"[number >> level & 1] for level in range(7))))
        assert index.match("/".join("a" * 7)) == sorted(known)
        index.check_invariants()
    assert index.cached_bytes <= 256


def test_filters_come_back_under_the_ids_they_had() -> None:
    index = FilterIndex()
    for filter_id, name in ((2, "a/+"), (3, "a/b"), (6, "#")):
        index.restore(filter_id, name)
        assert index.id_of(name) == filter_id
    assert index.match("a/b") == [2, 3, 6]
    assert index.filter_of(0) is index.filter_of(5) is None
    assert {index.add(f"x{number}") for number in range(6)} == {0, 1, 4, 5, 7, 8}
    for filter_id, name in ((6, "new"), (8, "new"), (20, "a/+")):
        with pytest.raises(ValueError, match="cannot have the id"):
            index.restore(filter_id, name)
    assert len(index) == 9
