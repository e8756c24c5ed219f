"""Section [store]: defaults, bounds, unknown names."""

from __future__ import annotations

import msgspec
import pytest

from iotmq.store.settings import StoreSettings


def test_defaults_are_within_their_own_bounds() -> None:
    assert msgspec.convert(msgspec.to_builtins(StoreSettings()), StoreSettings) == StoreSettings()


@pytest.mark.parametrize(
    "value",
    [
        {"segment_bytes": 4095},
        {"flush": "never"},
        {"flush_interval_ms": 0},
        {"allocation_step_bytes": 1},
        {"colour": 1},
    ],
)
def test_bad_values_are_refused(value: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, StoreSettings)
