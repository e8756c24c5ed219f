"""Keys of users in Redis; a real one is in tests/integration."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq.errors import ConfigError
from iotmq.mqtt_front.access.links.redis import RedisLink, key_of
from iotmq.mqtt_front.access.verdicts import Credentials
from iotmq.mqtt_front.settings.service_links import RedisLinkSettings

ASKED = Credentials("c-1", "pump", b"secret", "192.0.2.1", "tcp", "device-7")


def said(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        RedisLink(RedisLinkSettings(name="r", **{"url": "redis://127.0.0.1:1", **settings}))
    return str(caught.value)


def test_a_key_has_names_of_the_device_in_it() -> None:
    assert key_of("mqtt:{user_name}", ASKED) == "mqtt:pump"
    assert key_of("{listener}/{certificate_identity}:{client_id}", ASKED) == "tcp/device-7:c-1"
    assert key_of("mqtt:{user_name}", ASKED._replace(user_name="größe_7@a.b-c")) == "mqtt:größe_7@a.b-c"


@pytest.mark.parametrize(
    "name", ["a:b", "a b", "a\nb", "a*", "a{b", "a/b", "a\r\nDEL x", "", None, "{client_id}"]
)
def test_a_name_that_would_be_more_than_a_part_of_a_key_has_none(name: str | None) -> None:
    assert key_of("mqtt:{user_name}", ASKED._replace(user_name=name)) is None


def test_keys_are_looked_at_when_it_starts() -> None:
    assert "{username}" in said(key="mqtt:{username}")
    assert "names no device" in said(key="mqtt:{listener}")
    assert "r.url" in said(url="http://127.0.0.1")
