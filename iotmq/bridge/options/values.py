"""Read single options of `format("iotmq")`: names as documented, keys in lower case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from iotmq.errors import ConfigError

_UNITS_S: Final = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}

_Number = TypeVar("_Number")


def count(given: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    """Return a whole number of at least `least`; raises ConfigError that names the option."""
    value = _parsed(given, name, _whole, "a whole number")
    if value is None:
        return default
    if value < least:
        raise ConfigError(f"option {name} is at least {least}, not {value}")
    return value


def optional_count(given: Mapping[str, str], name: str) -> int | None:
    """Return a whole number from 1 on, or None when it is not given."""
    return count(given, name, 0, least=1) or None


def flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    """Return true or false."""
    words = {"true": True, "false": False}
    value = _parsed(given, name, lambda text: words.get(text.lower()), "true or false")
    return default if value is None else value


def duration_s(given: Mapping[str, str], name: str, default: float) -> float:
    """Return a time as Spark writes them: 500ms, 30s, 15m, 2h, 1d; milliseconds without a unit."""

    def read(text: str) -> float | None:
        found = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|min|h|d|)", text.lower(), re.ASCII)
        return int(found[1]) * _UNITS_S[found[2]] if found else None

    value = _parsed(given, name, read, "a time such as 500ms, 30s or 15m")
    return default if value is None else value


def _parsed(
    given: Mapping[str, str], name: str, read: Callable[[str], _Number | None], takes: str
) -> _Number | None:
    text = given.get(name.lower())
    if text is None:
        return None
    value = read(text.strip())
    if value is None:
        raise ConfigError(f"option {name} takes {takes}, not {text!r}")
    return value


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else None
