"""Routes: the first match decides, templates of keys and tags, what is refused."""

from __future__ import annotations

import msgspec
import pytest

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt_front.routing.device_names import DeviceNames
from iotmq.mqtt_front.routing.routes import Router, Target, is_in_sample
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.routes import ChecksumSettings, RouteSettings


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


# What a route asks of the device and of each message


def decided(routes: Router, topic: str, payload: bytes = b"", **properties: object) -> Target:
    plan = routes.plan(topic)
    return plan if isinstance(plan, Target) else plan.decide(payload, properties)


def test_a_route_with_conditions_is_passed_over_by_messages_that_do_not_meet_them() -> None:
    routes = router(
        {
            "filter": "d/#",
            "topic": "Alarms",
            "when": ("{json:t} > 30", "{json:kind} exists"),
            "key": "{json:kind}",
        },
        {"filter": "d/#", "topic": "Text", "when": ("{content_type} = 'text/plain'",)},
        {"filter": "d/+", "topic": "Rest"},
    )
    assert decided(routes, "d/1", b'{"t": 31, "kind": "hot"}').topic == "Alarms"
    assert decided(routes, "d/1", b'{"t": 31, "kind": "hot"}').key == "hot"
    assert decided(routes, "d/1", b'{"t": 31}').topic == "Rest"
    assert decided(routes, "d/1", b'{"t": 31}', content_type="text/plain").topic == "Text"
    assert decided(routes, "d/1", b"no JSON").topic == "Rest"
    assert decided(routes, "d/1/2", b"{}").topic == "mqtt", "the default route takes what is left"


def test_what_the_topic_decides_is_decided_once() -> None:
    routes = router(
        {"filter": "d/+", "topic": "Seven", "when": ("{1} = 7",)},
        {"filter": "d/+", "topic": "Json", "when": ("{1} = 8", "{json:a} exists")},
        {"filter": "d/#", "topic": "Rest"},
    )
    assert isinstance(routes.plan("d/7"), Target)
    assert routes.resolve("d/7").topic == "Seven"
    assert isinstance(routes.plan("d/9"), Target), "no message of it is looked at"
    assert not isinstance(routes.plan("d/8"), Target)
    assert routes.resolve("d/8").topic == "Rest", "as a rule"


def test_properties_that_come_out_empty_are_left_out() -> None:
    routes = router(
        {
            "filter": "#",
            "topic": "T",
            "properties": {"site": "{1}", "unit": "{property:unit}", "MQTT_USER.x": "y"},
        }
    )
    assert decided(routes, "a/b").properties == (("site", "b"), ("MQTT_USER.x", "y"))
    with_unit = decided(routes, "a", user_properties=(("unit", "C"),))
    assert with_unit.properties == (("unit", "C"), ("MQTT_USER.x", "y"))


def test_names_of_the_device() -> None:
    routes = router({"filter": "a", "topic": "T", "key": "{client_id}", "when": ("{user} = 'ann'",)})
    assert routes.has_names
    assert routes.is_personal("a")
    assert not routes.is_personal("b")
    assert routes.plan("a", DeviceNames("d1", "ann")) == Target("T", "d1", "", True)
    assert routes.plan("a", DeviceNames("d1", "bob")) == Target("mqtt", "a", "", True)
    assert not router({"filter": "a", "topic": "T"}).has_names


def test_a_payload_that_is_no_json_is_put_aside_where_the_route_says_so() -> None:
    route = {"filter": "a", "topic": "T", "when": ("{json:t} > 5",), "invalid_json": "quarantine"}
    routes = router(route, {"filter": "a", "topic": "U"})
    assert decided(routes, "a", b'{"t": 6}').put_aside == ""
    assert decided(routes, "a", b'{"t": 4}').topic == "U"
    assert decided(routes, "a", b"null").topic == "U"
    assert "no JSON" in decided(routes, "a", b"{").put_aside
    assert routes.broker_topics == ("T", "U", "mqtt-quarantine", "mqtt")
    of_json = {**route, "when": ("{content_type} = 'json'", "{json:t} > 5")}
    routes = router(of_json, {"filter": "a", "topic": "U"})
    assert decided(routes, "a", b"{").topic == "U", "a message for another route is not looked at"
    assert decided(routes, "a", b"{", content_type="json").put_aside


def test_a_sample_by_key_has_the_same_keys_everywhere() -> None:
    routes = router({"filter": "#", "topic": "T", "key": "{0}", "sample_one_in": 4, "sample_by": "key"})
    taken = [number for number in range(400) if not routes.resolve(f"{number}/x").is_left_out]
    assert 60 < len(taken) < 140
    assert taken == [number for number in range(400) if is_in_sample(str(number), 4)]
    assert taken == [number for number in taken if not routes.resolve(f"{number}/other").is_left_out]


def test_a_sample_by_count_takes_the_first_and_then_each_nth() -> None:
    (rules,) = [router({"filter": "#", "topic": "T", "sample_one_in": 3}).resolve("a").rules]
    assert rules is not None
    assert [rules.takes_another() for _ in range(7)] == [True, False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("settings", "expiry_s", "expected"),
    [
        ({"expiry_s": 60}, None, 60),
        ({"expiry_s": 60}, 5, 5),
        ({"expiry_s": 60}, 600, 600),
        ({"expiry_s_max": 60}, None, 60),
        ({"expiry_s_max": 60}, 0, 0),
        ({"expiry_s_max": 60}, 59, 59),
        ({"expiry_s_max": 60}, 600, 60),
        ({"expiry_s": 30, "expiry_s_max": 60}, None, 30),
        ({"qos_max": 1}, None, None),
    ],
)
def test_expiry(settings: dict[str, object], expiry_s: int | None, expected: int | None) -> None:
    rules = router({"filter": "#", "topic": "T", **settings}).resolve("a").rules
    assert rules is not None
    assert rules.expiry_of(expiry_s) == expected


def test_routes_that_no_message_reaches_are_named() -> None:
    routes = router(
        {"filter": "a/+", "topic": "T", "when": ("{json:x} exists",)},
        {"filter": "a/#", "topic": "T"},
        {"filter": "a/b", "topic": "T"},
        {"filter": "a", "topic": "T"},
        {"filter": "b/#", "topic": "T"},
        {"filter": "+/b", "topic": "T"},
    )
    assert routes.warnings == [
        "mqtt.routes[2] (a/b) is never used: mqtt.routes[1] (a/#) takes all of its messages",
        "mqtt.routes[3] (a) is never used: mqtt.routes[1] (a/#) takes all of its messages",
    ]


@pytest.mark.parametrize(
    ("wide", "narrow", "is_covered"),
    [
        ("#", "a/b", True),
        ("#", "#", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("a/#", "a", True),
        ("a/#", "a/+/c", True),
        ("a/+", "a/b", True),
        ("a/+", "a/#", False),
        ("a/+", "a", False),
        ("a/b", "a/+", False),
        ("+", "+", True),
        ("+/+", "a/+", True),
        ("a/+/#", "a/#", False),
        ("a/+/#", "a/b/c/#", True),
        ("a", "a/b", False),
    ],
)
def test_covering(wide: str, narrow: str, is_covered: bool) -> None:
    """A route that is behind one that takes all of its topics is never used."""
    routes = router({"filter": wide, "topic": "T"}, {"filter": narrow, "topic": "T"})
    assert bool(routes.warnings) is is_covered


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ({"when": ("{json:a} >",)}, r"mqtt\.routes\[0\]\.when\[0\]"),
        ({"when": ("{json:a} > 5", "{json:a} < 5")}, r"mqtt\.routes\[0\]\.when: no message meets both"),
        ({"properties": {"KEYS": "x"}}, r"mqtt\.routes\[0\]\.properties: 'KEYS'"),
        ({"properties": {"MQTT_QOS": "x"}}, r"mqtt\.routes\[0\]\.properties"),
        ({"properties": {"MQTT_USER.": "x"}}, r"mqtt\.routes\[0\]\.properties"),
        ({"properties": {"": "x"}}, r"mqtt\.routes\[0\]\.properties"),
        ({"properties": {"a\x01": "x"}}, r"mqtt\.routes\[0\]\.properties"),
        ({"properties": {"a": "{x}"}}, r"mqtt\.routes\[0\]\.properties\.a.*\{x\}"),
        ({"checksum": ChecksumSettings(algorithm="nothing")}, r"mqtt\.routes\[0\]\.checksum\.algorithm"),
        ({"quarantine_topic": "TBW102"}, r"mqtt\.routes\[0\]\.quarantine_topic"),
        ({"filter": "/" * limits.MQTT_TOPIC_LEVELS_MAX}, r"mqtt\.routes\[0\]\.filter"),
    ],
)
def test_more_that_is_refused_by_name(route: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        router({"filter": "a", "topic": "T", **route})


@pytest.mark.parametrize(
    "route",
    [
        {"filter": "a"},
        {"filter": "a", "topic": "T", "drop": True},
        {"filter": "a", "drop": True, "sample_one_in": 2},
        {"filter": "a", "drop": True, "checksum": {"algorithm": "modbus"}},
        {"filter": "a", "topic": "T", "expiry_s": 2, "expiry_s_max": 1},
        {"filter": "a", "topic": "T", "checksum": {"algorithm": "modbus", "polynomial": "0x8005"}},
        {"filter": "a", "topic": "T", "checksum": {"polynomial": "8005"}},
        {"filter": "a", "topic": "T", "qos_max": 3},
        {"filter": "a", "topic": "T", "sample_one_in": 0},
        {"filter": "a", "topic": "T", "when": ["{1} = 1"] * (limits.MQTT_ROUTE_CONDITIONS_MAX + 1)},
    ],
)
def test_settings_that_contradict_themselves(route: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"routes": [route]}, MqttSettings)


def test_as_many_routes_and_conditions_as_there_may_be() -> None:
    route = {"filter": "a", "topic": "T", "when": ["{1} = 1"] * limits.MQTT_ROUTE_CONDITIONS_MAX}
    settings = msgspec.convert({"routes": [route] * limits.MQTT_ROUTES_MAX}, MqttSettings)
    assert len(settings.routes) == limits.MQTT_ROUTES_MAX
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"routes": [route] * (limits.MQTT_ROUTES_MAX + 1)}, MqttSettings)
