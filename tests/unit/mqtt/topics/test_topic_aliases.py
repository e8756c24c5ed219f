"""Topic aliases towards a device: long and frequent topics get them, and give them up to others."""

from __future__ import annotations

from iotmq.mqtt.topics.topic_aliases import OutboundAliases


def test_a_topic_gets_an_alias_when_it_comes_again() -> None:
    aliases = OutboundAliases(2)
    assert aliases.alias_of(b"devices/1/a") == (0, False)
    assert aliases.alias_of(b"devices/1/a") == (1, False), "with its topic, once"
    assert aliases.alias_of(b"devices/1/a") == (1, True)
    assert aliases.count == 1


def test_a_long_topic_gets_a_free_alias_at_once() -> None:
    aliases = OutboundAliases(1)
    shorter, long = b"t" * 63, b"t" * 64
    assert aliases.alias_of(shorter) == (0, False)
    assert aliases.alias_of(long) == (1, False)
    assert aliases.alias_of(long) == (1, True)
    assert aliases.alias_of(b"u" * 64) == (0, False), "there is no other"


def test_short_topics_are_not_worth_it() -> None:
    aliases = OutboundAliases(2)
    assert {aliases.alias_of(b"short/a") for _ in range(20)} == {(0, False)}


def test_no_alias_is_above_the_maximum() -> None:
    aliases = OutboundAliases(3)
    topics = [b"devices/%d/telemetry" % number for number in range(10)]
    used = {aliases.alias_of(topic)[0] for _ in range(100) for topic in topics}
    assert used <= {0, 1, 2, 3}
    assert aliases.count == aliases.count_max == 3
    assert {OutboundAliases(0).alias_of(topics[0]) for _ in range(3)} == {(0, False)}


def test_a_device_that_is_sent_ever_new_topics_gets_no_aliases() -> None:
    aliases = OutboundAliases(32)
    assert all(aliases.alias_of(b"devices/%d/telemetry" % number) == (0, False) for number in range(10_000))


def test_a_frequent_topic_takes_the_place_of_one_that_is_not_used_any_more() -> None:
    aliases = OutboundAliases(1)
    for _ in range(5):
        aliases.alias_of(b"devices/old/telemetry")
    found = [aliases.alias_of(b"devices/new/telemetry") for _ in range(30)]
    assert found[0] == (0, False)
    assert found.count((1, False)) == 1, "told once"
    assert found[-1] == (1, True)
    assert aliases.alias_of(b"devices/old/telemetry") == (0, False)


def test_topics_that_are_in_use_keep_their_aliases() -> None:
    aliases = OutboundAliases(2)
    # Long, so that each has its alias at first sight: shorter ones whose hashes share a counter may never.
    regular = [b"devices/%d/telemetry".ljust(64, b"/") % number for number in range(2)]
    for _ in range(10):
        for topic in regular:
            aliases.alias_of(topic)
    for number in range(1_000):
        assert {aliases.alias_of(topic) for topic in regular} == {(1, True), (2, True)}
        aliases.alias_of(b"others/%d/telemetry" % (number % 3))
