"""Which records a read wants, by filters of MQTT, tags and SQL."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pyarrow")

import pyarrow
from hypothesis import given
from hypothesis import strategies as st

from iotmq.bridge.options.wanted import Wanted, parse_wanted, topic_condition, topic_pattern
from iotmq.broker.filters.property_filter import PropertyFilter
from iotmq.broker.filters.sql import parse_sql
from iotmq.errors import ConfigError
from iotmq.message.properties import encode_properties
from iotmq.mqtt.topics.topics import matches

NAMES = st.sampled_from(["a", "b", "", "it's", "a.b", "$SYS", "x y", "\u00e9", "a+b"])
TOPICS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(
    st.lists(st.sampled_from(["a", "b", "", "it's", "a.b", "$SYS", "x y", "\u00e9", "+"]), max_size=4),
    st.booleans(),
).map(lambda pair: "/".join([*pair[0], *(["#"] if pair[1] or not pair[0] else [])]))


def parsed(tags: str | None = None, sql: str | None = None, mqtt_topic_filter: str | None = None) -> Wanted:
    return parse_wanted(tags=tags, sql=sql, mqtt_topic_filter=mqtt_topic_filter)


def passes(expression: str, **properties: str) -> bool:
    """Whether a broker sends a record."""
    return bool(PropertyFilter(parse_sql(expression)).evaluate(encode_properties(properties)))


@given(FILTERS, TOPICS)
def test_a_pattern_matches_as_filters_do(topic_filter: str, topic: str) -> None:
    (found,) = pyarrow.compute.match_substring_regex(
        pyarrow.array([topic]), topic_pattern(topic_filter)
    ).to_pylist()
    assert found == matches(topic_filter, topic)


@given(FILTERS.filter(bool), TOPICS)
def test_brokers_send_all_topics_that_match(topic_filter: str, topic: str) -> None:
    if matches(topic_filter, topic) and topic:
        assert passes(topic_condition(topic_filter), MQTT_TOPIC=topic)


def test_brokers_look_at_beginning_and_end() -> None:
    assert topic_condition("devices/+/t") == ("MQTT_TOPIC STARTSWITH 'devices/' AND MQTT_TOPIC ENDSWITH '/t'")
    assert topic_condition("a/#") == "(MQTT_TOPIC STARTSWITH 'a/' OR MQTT_TOPIC = 'a')"
    assert topic_condition("it's") == "MQTT_TOPIC = 'it''s'"
    assert topic_condition("#") == "MQTT_TOPIC IS NOT NULL"


def test_conditions_are_joined_whatever_stands_in_them() -> None:
    wanted = parsed(sql="a > 3 OR b = 1 -- and more", mqtt_topic_filter="x/+")
    assert passes(wanted.subscription.expression, a="4", MQTT_TOPIC="x/1")
    assert not passes(wanted.subscription.expression, a="4", MQTT_TOPIC="y/1")
    assert not passes(wanted.subscription.expression, a="2", MQTT_TOPIC="x/1")


def test_rows_that_brokers_send_too_many_are_masked() -> None:
    columns = {
        "property.TAGS": pyarrow.array(["red", "blue", None, "green", "red"]),
        "property.MQTT_TOPIC": pyarrow.array(["a/b", "a/b", "a/b", None, "a/b/c"]),
    }

    def mask(wanted: Wanted) -> list[bool] | None:
        found = wanted.mask(columns.__getitem__)
        return None if found is None else found.to_pylist()

    assert mask(parsed(tags="red || green")) == [True, False, False, True, True]
    assert mask(parsed(mqtt_topic_filter="a/+")) == [True, True, True, False, False]
    assert mask(parsed(tags="red", mqtt_topic_filter="a/+")) == [True, False, False, False, False]
    assert mask(parsed(sql="a > 3")) is None
    assert mask(parsed()) is None


def test_only_the_columns_that_are_looked_at_are_needed() -> None:
    assert parsed(tags="a", mqtt_topic_filter="b").needs == ("property.TAGS", "property.MQTT_TOPIC")
    assert parsed(sql="a = 1").needs == ()
    assert parsed(sql="a = 1").is_everything is False
    assert parsed().is_everything
    assert parsed(tags="*").is_everything


@pytest.mark.parametrize(
    ("given_options", "said"),
    [
        ({"mqtt_topic_filter": "a/#/b"}, "mqttTopicFilter is a filter of MQTT such as"),
        ({"mqtt_topic_filter": ""}, "mqttTopicFilter is a filter of MQTT such as"),
        ({"tags": "a", "sql": "b = 1"}, "option tags or option sql"),
        ({"tags": "||"}, "option tags: .*names no tag"),
        ({"sql": " "}, "option sql: .*is empty"),
        ({"sql": " ", "mqtt_topic_filter": "a"}, "option sql is empty"),
    ],
)
def test_wrong_options_are_refused_by_name(given_options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.compile(said)):
        parsed(**given_options)
