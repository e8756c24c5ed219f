"""Settings of producers and consumers: refused where they are given, and not where they are used first."""

from __future__ import annotations

import msgspec
import pytest

from iotmq.client import (
    IotmqClient,
    PopConsumerSettings,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from iotmq.client.transport.settings import check_settings
from iotmq.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (ProducerSettings(tries_max=0), "ProducerSettings: .*`int` >= 1 - at `tries_max`"),
        (ProducerSettings(compression="gzip"), "ProducerSettings: .*'gzip' - at `compression`"),  # type: ignore[arg-type]
        (PushConsumerSettings(batch_max=0), "PushConsumerSettings: .*>= 1 - at `batch_max`"),
        (PushConsumerSettings(model="broadcast"), "'broadcast' - at `model`"),  # type: ignore[arg-type]
        (PullConsumerSettings(consume_from="earliest"), "'earliest' - at `consume_from`"),  # type: ignore[arg-type]
        (PopConsumerSettings(invisible_ms="30"), "got `str` - at `invisible_ms`"),  # type: ignore[arg-type]
        (PopConsumerSettings(orderly="keys"), "at `orderly`"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_value_is_named_by_what_is_made_with_it(settings: msgspec.Struct, text: str) -> None:
    client = IotmqClient()
    makers = {
        ProducerSettings: client.producer,
        PushConsumerSettings: lambda group, given: client.push_consumer(group, print, settings=given),
        PullConsumerSettings: client.pull_consumer,
        PopConsumerSettings: client.pop_consumer,
    }
    with pytest.raises(ConfigError, match=text):
        makers[type(settings)]("G", settings)  # type: ignore[operator]


def test_settings_of_another_kind_are_refused() -> None:
    with pytest.raises(ConfigError, match="the settings are dict: ProducerSettings is wanted"):
        check_settings({"linger_ms": 1}, ProducerSettings)  # type: ignore[arg-type]
