"""Properties of messages as devices of Locust are given them: ours, or paho's."""

from __future__ import annotations

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from loadtest.users.mqtt_client import _properties


def test_properties_of_paho_are_taken_like_ours() -> None:
    theirs = PahoProperties(PacketTypes.PUBLISH)
    theirs.ContentType = "text/plain"
    theirs.UserProperty = [("site", "north")]
    ours = Properties(content_type="text/plain", user_properties=(("site", "north"),))
    assert _properties(theirs) == ours
    assert _properties(ours) is ours
    assert _properties(None) is NO_PROPERTIES
