"""Homes of filters: the broker that gets what front ends publish to their topic."""

from __future__ import annotations

from iotmq.client.transport.routes import MessageQueue, queue_of_key
from iotmq.front_port.filter_homes import FilterHomes
from iotmq.mqtt_front.routing.routes import Router
from iotmq.mqtt_front.settings.routes import RouteSettings


def test_the_home_is_the_broker_of_the_queue_of_the_key() -> None:
    router = Router(
        [RouteSettings(filter="devices/+/commands", topic="commands", key="{1}")], default_topic="mqtt"
    )
    queues = {
        "mqtt": tuple(MessageQueue("mqtt", name, number) for name in "ab" for number in range(2)),
        "commands": tuple(MessageQueue("commands", name, 0) for name in "bcd"),
    }
    homes = FilterHomes(router.route_of, queues)
    for number in range(50):
        assert homes.home_of(f"x/{number}") == "ab"[queue_of_key(f"x/{number}", 4) // 2]
        assert homes.home_of(f"devices/{number}/commands") == "bcd"[queue_of_key(str(number), 3)]
    queues["mqtt"] = queues["mqtt"][:2]
    assert {homes.home_of(f"x/{number}") for number in range(50)} == {"a"}


def test_a_filter_with_wildcards_or_without_queues_has_none() -> None:
    queues = {"mqtt": (MessageQueue("mqtt", "a", 0),), "empty": ()}
    homes = FilterHomes(lambda topic: (topic.partition("/")[0], topic), queues)
    assert [homes.home_of(name) for name in ("mqtt/a", "mqtt/+", "#", "empty/a", "unknown/a")] == [
        "a", None, None, None, None,
    ]  # fmt: skip
