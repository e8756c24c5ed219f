"""A condition as data: what it looks at, the marks where it changes its mind, and what is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

Level: TypeAlias = Literal["info", "warning", "critical"]
LEVELS: Final[Mapping[Level, int]] = {"info": 0, "warning": 1, "critical": 2}

# Those who look after alarms.
MACHINE: Final = "whoever runs the machine"
GATEWAY: Final = "whoever runs the gateway"
SERVICES: Final = "whoever runs the consumers"
DEVICES: Final = "whoever runs the devices"
ACCESS: Final = "whoever manages access"

Reads: TypeAlias = Literal["value", "increase", "rate", "seconds_left"]
"""Names what is compared with the marks: the number itself; by how much it has grown in `window_s`, or has
grown a second; or how many seconds are left to the time that the number is."""

# Larger numbers are not written out.
_WHOLE_MAX: Final = 1e15

Labels: TypeAlias = tuple[tuple[str, str], ...]

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=64)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Window = Annotated[float, Meta(ge=1, le=86_400)]


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition. It fires at `fires_at` and clears at `clears_at`: from below when that is the higher."""

    name: Name
    sources: tuple[str, ...]
    """The metrics it looks at, or the values of a watch."""
    reads: Reads = "value"
    window_s: Window = 300.0
    fires_at: float
    clears_at: float
    for_s: Seconds = 0.0
    """The time that it has to be met before it fires."""
    clear_for_s: Seconds = 60.0
    """The time that it has to be over before it ends."""
    level: Level = "warning"
    owner: str
    """The people who look after it."""
    says: str
    """Says what is wrong, for people; {value} stands for the number, and {LABEL} for a label."""
    what_to_do: str
    where: tuple[tuple[str, str], ...] = ()
    """Labels that a sample must have."""
    by: tuple[str, ...] | None = None
    """The labels that make alarms of their own, each with the worst of its samples; None: all."""
    is_of_cluster: bool = False
    """Whether several processes may see the same alarm."""

    def is_met(self, value: float) -> bool:
        """Return whether a number is at the mark where it fires, or past it."""
        return value <= self.fires_at if self.is_downward else value >= self.fires_at

    def is_over(self, value: float) -> bool:
        """Return whether a number is at the mark where it clears, or past it."""
        return value >= self.clears_at if self.is_downward else value <= self.clears_at

    def worst(self, one: float, other: float) -> float:
        """Return the number that is worse."""
        return min(one, other) if self.is_downward else max(one, other)

    @property
    def is_downward(self) -> bool:
        """Return whether small numbers are bad."""
        return self.clears_at > self.fires_at

    def text(self, value: float, labels: Labels) -> str:
        """Say what is wrong."""
        words = {"value": number_text(value), **dict(labels)}
        return self.says.format_map(_Known(words))


def check_says(says: str) -> None:
    """Raise ValueError for a text whose braces are not those of names: no alarm could be told with it."""
    try:
        fields = [field for field in Formatter().parse(says) if field[1] is not None]
    except ValueError as error:
        raise ValueError(f"says: {error}") from None
    if any(form or conversion or not str(name).isidentifier() for _, name, form, conversion in fields):
        raise ValueError("says has {value} and {LABEL} and no other braces; {{ stands for one of them")


class _Known(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


def number_text(value: float) -> str:
    """Write a number for people."""
    is_whole = abs(value) < _WHOLE_MAX and (value == int(value) or abs(value) >= 100)
    return f"{value:,.0f}" if is_whole else f"{value:.3g}"
