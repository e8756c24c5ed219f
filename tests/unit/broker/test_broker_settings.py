"""Settings of the broker: defaults that work, values that are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.scheduled.scheduling import DelayLevels
from iotmq.broker.settings import BrokerSettings
from iotmq.message.hosts import encode_host


def test_the_defaults_are_the_protocols() -> None:
    settings = msgspec.convert({}, BrokerSettings)
    assert settings == BrokerSettings()
    assert (settings.listen_host, settings.listen_port) == ("127.0.0.1", 10911)
    assert len(DelayLevels(settings.delay_levels)) == 18
    assert resolve_store_host(settings) == encode_host("127.0.0.1", 10911)


@pytest.mark.parametrize(
    "values",
    [
        {"name": "a b"},
        {"cluster": ""},
        {"listen_port": 65_536},
        {"registries": ["nohost"]},
        {"registries": ["a:b"]},
        {"default_topic_queues": 0},
        {"default_topic_queues": 1_025},
        {"delay_levels": "1s, 2s"},
        {"delay_levels": ""},
        {"unknown": 1},
    ],
)
def test_bad_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(values, BrokerSettings)


def test_names_are_resolved_and_unknown_ones_refused() -> None:
    settings = BrokerSettings(advertised_host="localhost", advertised_port=7)
    assert resolve_store_host(settings) == encode_host("127.0.0.1", 7)
    # Perhaps it is known later: no wrong setting.
    with pytest.raises(OSError, match="not known"):
        resolve_store_host(BrokerSettings(advertised_host="no host with blanks"))


def test_a_slave_without_replication_is_refused() -> None:
    assert msgspec.convert({"broker_id": 0}, BrokerSettings).broker_id == 0
    with pytest.raises(msgspec.ValidationError, match="broker_id"):
        msgspec.convert({"broker_id": 1}, BrokerSettings)
