"""The filter index: every shape of filter, the trie behind `shapes_max`, ids, and the cache of matches."""

from __future__ import annotations

import pytest

from iotmq import limits
from iotmq.mqtt.filters import FilterIndex
from iotmq.mqtt.topics import matches

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


@pytest.mark.parametrize("shapes_max", [0, 1, 3, 32])
def test_matches_what_the_specification_says_with_shapes_and_with_the_trie(shapes_max: int) -> None:
    index = FilterIndex(shapes_max=shapes_max)
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


def test_a_filter_stays_in_the_trie_when_its_shape_gets_room_later() -> None:
    index = FilterIndex(shapes_max=1)
    index.add("a/+")
    in_trie = index.add("+/b")
    index.remove("a/+")
    in_shape = index.add("+/c")
    assert index.add("+/b") == in_trie
    assert index.match("x/b") == [in_trie]
    assert index.match("x/c") == [in_shape]
    index.remove("+/b")
    assert index.match("x/b") == []
    assert index.match("x/c") == [in_shape]
    index.remove("+/c")
    assert index.is_empty


def test_filters_that_are_paths_of_each_other_leave_the_trie_one_by_one() -> None:
    index = FilterIndex(shapes_max=0)
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
@pytest.mark.parametrize("shapes_max", [0, 32])
def test_an_id_tells_its_filter(name: str, shapes_max: int) -> None:
    index = FilterIndex(shapes_max=shapes_max)
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


@pytest.mark.parametrize("shapes_max", [-1, 0xFFFE])
def test_impossible_numbers_of_shapes_are_refused(shapes_max: int) -> None:
    with pytest.raises(ValueError, match="shapes_max"):
        FilterIndex(shapes_max=shapes_max)


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
