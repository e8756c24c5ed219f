"""Where messages go that no device has published."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from eventually import until

from iotmq.errors import MessageRefusedError
from iotmq.mqtt_front.publish.places import Places
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.publishing import Placed


def places(**settings: object) -> Places:
    return Places(msgspec.convert(settings, MqttSettings))


def test_a_topic_without_rules_has_one_place_for_all_its_messages() -> None:
    made = places(
        routes=[
            {"filter": "a/+", "topic": "t", "key": "{1}", "tags": "x", "properties": {"p": "{0}"}},
            {"filter": "live/#", "topic": "l", "store": False},
        ],
        rewrites=[{"filter": "old/#", "pattern": "^old/(.+)$", "template": "a/$1"}],
    )
    found = made.fixed("a/7")
    assert found is not None
    assert (found.topic, found.key, found.tags) == ("t", "7", "x")
    assert found.properties == {"MQTT_TOPIC": "a/7", "p": "a"}
    assert made.fixed("old/7") == found
    assert made.place("a/7", b"x", expiry_s=3, is_retained=False) == found._replace(expiry_s=3)
    live = made.fixed("live/1")
    assert live is not None
    assert not live.is_stored
    later = made.fixed("$delayed/60/live/1")
    assert later is not None
    assert (later.is_stored, later.delay_s, later.properties["MQTT_TOPIC"]) == (True, 60, "live/1")


@pytest.mark.parametrize(
    "topic", ["", "a/+", "#", "$SYS/x", "$reply/x", "$delayed/x/a", "a\0b", "\ud800", "x" * 65_536]
)
def test_a_topic_that_no_device_may_publish_to_is_refused(topic: str) -> None:
    with pytest.raises(MessageRefusedError, match="invalid MQTT topic"):
        places().fixed(topic)


def test_a_name_of_the_device_is_empty_in_keys_and_refused_in_rewrites() -> None:
    made = places(
        routes=[{"filter": "a", "topic": "t", "key": "{client_id}"}],
        rewrites=[{"filter": "b", "pattern": "^b$", "template": "dev/%c"}],
    )
    found = made.fixed("a")
    assert found is not None
    # An empty key falls back to the topic.
    assert found.key == "a"
    with pytest.raises(MessageRefusedError):
        made.fixed("b")


def test_rules_of_a_route_are_asked_for_each_message() -> None:
    made = places(
        routes=[
            {"filter": "drop", "drop": True},
            {"filter": "sample", "topic": "t", "sample_one_in": 2},
            {"filter": "short", "topic": "t", "qos_max": 0, "expiry_s": 5, "expiry_s_max": 10},
            {"filter": "frame", "topic": "t", "checksum": {"algorithm": "modbus"}, "name": "frames"},
            {"filter": "json", "topic": "hot", "when": ["{json:t} > 30"], "key": "{json:k}"},
            {"filter": "strict", "topic": "t", "invalid_json": "quarantine"},
        ]
    )

    def place(
        topic: str, payload: bytes = b"x", expiry_s: int | None = None, *, is_retained: bool = False
    ) -> Placed:
        assert made.fixed(topic) is None
        return made.place(topic, payload, expiry_s=expiry_s, is_retained=is_retained)

    assert (place("drop").topic, place("drop").why) == ("", "the route mqtt.routes[0] drops its messages")
    assert [place("sample").topic for _ in range(4)] == ["t", "", "t", ""]
    assert [place("short", expiry_s=given).expiry_s for given in (None, 7, 60)] == [5, 7, 10]
    assert place("short").qos_max == 0
    aside = place("frame")
    assert (aside.topic, aside.properties["MQTT_QUARANTINED_TOPIC"]) == ("mqtt-quarantine", "frame")
    assert "MQTT_TOPIC" not in aside.properties
    assert place("frame", b"", is_retained=True).topic == "t"
    assert place("frame", bytes.fromhex("0103020017f84a")).topic == "t"
    assert (place("json", b'{"t": 31, "k": "a"}').topic, place("json", b'{"t": 31, "k": "a"}').key) == (
        "hot",
        "a",
    )
    assert place("json", b'{"t": 3}').topic == "mqtt"
    assert place("strict", b"no json").topic == "mqtt-quarantine"


async def test_changed_routes_are_told(tmp_path: Path) -> None:
    file = tmp_path / "routes.toml"
    file.write_text("")
    made = places(routes_file=str(file), routes_reload_interval_s=0.1)
    before = made.fixed("a")
    assert before is not None
    changes: list[str] = []
    made.start(lambda: changes.append("changed"))
    file.write_text('[[routes]]\nfilter = "a"\ntopic = "other"\n')
    await until(lambda: changes)
    after = made.fixed("a")
    assert after is not None
    assert (before.topic, after.topic) == ("mqtt", "other")
    made.stop()
