"""Routes: the first match decides, templates of keys and tags, what is refused."""

from __future__ import annotations

import msgspec
import pytest

from iotmq.errors import ConfigError
from iotmq.mqtt_front.publish.routes import Router, Target
from iotmq.mqtt_front.settings.mqtt import MqttSettings, RouteSettings


def router(*routes: dict[str, object]) -> Router:
    return Router([RouteSettings(**route) for route in routes], default_topic="mqtt")  # type: ignore[arg-type]


def test_without_a_match_everything_goes_to_the_default_topic_with_the_topic_as_key() -> None:
    assert router().resolve("a/b") == Target("mqtt", "a/b", "", True)
    assert router({"filter": "x/#", "topic": "X"}).resolve("a/b") == Target("mqtt", "a/b", "", True)


def test_the_first_route_that_matches_decides() -> None:
    routes = router({"filter": "a/b", "topic": "One"}, {"filter": "a/#", "topic": "Two", "store": False})
    assert routes.resolve("a/b") == Target("One", "a/b", "", True)
    assert routes.resolve("a/c") == Target("Two", "a/c", "", False)
    assert routes.resolve("a") == Target("Two", "a", "", False)


def test_topics_with_a_dollar_are_not_for_leading_wildcards() -> None:
    routes = router({"filter": "#", "topic": "All"}, {"filter": "$SYS/#", "topic": "System"})
    assert routes.resolve("$SYS/x").topic == "System"
    assert routes.resolve("$other").topic == "mqtt", "and have a place none the less"


@pytest.mark.parametrize(
    ("template", "topic", "key"),
    [
        ("{1}", "devices/42/telemetry", "42"),
        ("{0}-{2}", "devices/42/telemetry", "devices-telemetry"),
        ("{topic}", "devices/42", "devices/42"),
        ("x{topic}y", "a", "xay"),
        ("fixed", "a/b", "fixed"),
        ("{5}", "a/b", "a/b"),
        ("{1}", "a//b", "a//b"),
        ("{127}", "a", "a"),
        ("{", "a", "{"),
        ("{{1}}", "a/b", "{b}"),
        ("{1}", "a/{0}", "{0}"),
    ],
)
def test_keys(template: str, topic: str, key: str) -> None:
    """A template that comes out empty falls back to the topic; levels are text, never templates."""
    assert router({"filter": "#", "topic": "T", "key": template}).resolve(topic).key == key


def test_tags_may_be_empty() -> None:
    routes = router({"filter": "#", "topic": "T", "tags": "{2}"})
    assert routes.resolve("a/b/c").tags == "c"
    assert routes.resolve("a/b").tags == ""


def test_broker_topics_are_each_named_once_the_default_one_last() -> None:
    routes = router(
        {"filter": "a", "topic": "B"}, {"filter": "b", "topic": "A"}, {"filter": "c", "topic": "B"}
    )
    assert routes.broker_topics == ("B", "A", "mqtt")


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ({"filter": "a/#/b"}, r"mqtt\.routes\[1\]\.filter"),
        ({"filter": "a+"}, r"mqtt\.routes\[1\]\.filter"),
        ({"filter": "a", "key": "{name}"}, r"mqtt\.routes\[1\]\.key.*\{name\}"),
        ({"filter": "a", "key": "{}"}, r"mqtt\.routes\[1\]\.key"),
        ({"filter": "a", "key": "{-1}"}, r"mqtt\.routes\[1\]\.key"),
        ({"filter": "a", "tags": "{128}"}, r"mqtt\.routes\[1\]\.tags"),
        ({"filter": "a", "key": "{²}"}, r"mqtt\.routes\[1\]\.key"),
        ({"filter": "a", "key": "a\x01b"}, r"mqtt\.routes\[1\]\.key"),
        ({"filter": "a", "tags": "\x02"}, r"mqtt\.routes\[1\]\.tags"),
    ],
)
def test_what_is_not_legal_is_refused_by_name(route: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        router({"filter": "ok", "topic": "T"}, {"topic": "T", **route})


@pytest.mark.parametrize(
    "topic", ["%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "TBW102"]
)
def test_topics_that_brokers_keep_for_themselves_are_refused_by_name(topic: str) -> None:
    with pytest.raises(ConfigError, match=r"mqtt\.routes\[0\]\.topic"):
        router({"filter": "a", "topic": topic})
    with pytest.raises(ConfigError, match=r"mqtt\.default_topic"):
        Router([], default_topic=topic)


@pytest.mark.parametrize(
    "section",
    [
        {"routes": [{"filter": "", "topic": "T"}]},
        {"routes": [{"filter": "a", "topic": "no spaces"}]},
        {"routes": [{"filter": "a"}]},
        {"routes": [{"filter": "a", "topic": "T", "keys": "x"}]},
        {"default_topic": ""},
        {"batch_bytes_max": 4 * 1024 * 1024 + 1},
    ],
)
def test_settings_refuse_what_no_router_could_use(section: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(section, MqttSettings)
