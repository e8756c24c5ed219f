"""What the section [telemetry] takes, and what it does not show."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from iotmq import limits
from iotmq.config.config import config_from_table
from iotmq.errors import ConfigError
from iotmq.telemetry.settings import TelemetrySettings


def read(table: Mapping[str, object]) -> TelemetrySettings:
    return config_from_table({"telemetry": table}).telemetry


def headers(count: int) -> dict[str, object]:
    return {"headers": [{"name": f"x-{number}", "value": "of-this-test"} for number in range(count)]}


def attributes(count: int) -> dict[str, object]:
    return {"resource_attributes": {f"name.{number}": "v" for number in range(count)}}


def test_so_many_headers_may_be() -> None:
    assert len(read(headers(limits.TELEMETRY_HEADERS_MAX)).headers) == limits.TELEMETRY_HEADERS_MAX
    with pytest.raises(ConfigError, match=r"telemetry\.headers"):
        read(headers(limits.TELEMETRY_HEADERS_MAX + 1))


def test_so_many_attributes_may_be() -> None:
    most = limits.TELEMETRY_ATTRIBUTES_MAX
    assert len(read(attributes(most)).resource_attributes) == most
    with pytest.raises(ConfigError, match=r"telemetry\.resource_attributes"):
        read(attributes(most + 1))


def test_headers_are_secrets() -> None:
    settings = read(headers(1))
    assert settings.headers[0].value == "of-this-test"
    assert "of-this-test" not in repr(settings)


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector", "http://", "http://a b"])
def test_an_endpoint_is_an_address_of_http(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.endpoint"):
        read({"endpoint": endpoint})


def test_messages_are_traced_where_traces_are_exported() -> None:
    assert not TelemetrySettings().traces
    assert not TelemetrySettings(endpoint="http://127.0.0.1:4318", traces_enabled=False).traces
    assert TelemetrySettings(endpoint="http://127.0.0.1:4318").traces
