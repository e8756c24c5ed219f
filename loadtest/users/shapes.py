"""Load shapes: how many users there are over time. A locustfile subclasses one and sets its numbers.

    class Shape(Spike):
        users = 100
        spike_users = 1_000

`--run-time` and `-u` have no meaning with a shape; it ends the run.
"""

from __future__ import annotations

from typing import Any, ClassVar

from locust import LoadTestShape


class Shape(LoadTestShape):
    """A shape that is a function of time; `at` returns users and spawn rate, or None for the end."""

    abstract: ClassVar[bool] = True

    def __init__(self) -> None:
        # Locust's shapes have no types.
        untyped: Any = super()
        untyped.__init__()
        for name in dir(type(self)):
            value = getattr(type(self), name)
            if (
                not name.startswith("_")
                and isinstance(value, int | float)
                and not isinstance(value, bool)
                and value < 0
            ):
                raise ValueError(f"{type(self).__name__}.{name} is {value}, and may not be negative")

    def tick(self) -> tuple[int, float] | None:
        untyped: Any = self
        return self.at(untyped.get_run_time())

    def at(self, seconds: float) -> tuple[int, float] | None:
        """Return the users at this time, and how many may come or go a second."""
        raise NotImplementedError


class Ramp(Shape):
    """Up to `users` in `ramp_s`, then as many for `hold_s`."""

    abstract: ClassVar[bool] = True
    users: ClassVar[int] = 100
    ramp_s: ClassVar[float] = 60.0
    hold_s: ClassVar[float] = 60.0

    def at(self, seconds: float) -> tuple[int, float] | None:
        if seconds >= self.ramp_s + self.hold_s:
            return None
        if seconds >= self.ramp_s:
            return self.users, max(1.0, self.users)
        # One second ahead, so that nobody waits for the next look.
        due = self.users * min(1.0, (seconds + 1) / self.ramp_s)
        return max(1, round(due)), max(1.0, self.users / self.ramp_s)


class Steps(Shape):
    """`step_users` more every `step_s`, `steps` times: where does latency begin to grow?"""

    abstract: ClassVar[bool] = True
    step_users: ClassVar[int] = 10
    step_s: ClassVar[float] = 30.0
    steps: ClassVar[int] = 10

    def at(self, seconds: float) -> tuple[int, float] | None:
        step = int(seconds // self.step_s)
        return None if step >= self.steps else ((step + 1) * self.step_users, max(1.0, self.step_users))


class Spike(Shape):
    """`users`, and in between `spike_users` for `spike_s`."""

    abstract: ClassVar[bool] = True
    users: ClassVar[int] = 10
    spike_users: ClassVar[int] = 100
    before_s: ClassVar[float] = 60.0
    spike_s: ClassVar[float] = 30.0
    after_s: ClassVar[float] = 60.0

    def at(self, seconds: float) -> tuple[int, float] | None:
        if seconds >= self.before_s + self.spike_s + self.after_s:
            return None
        is_spike = self.before_s <= seconds < self.before_s + self.spike_s
        return (self.spike_users if is_spike else self.users), float(max(self.users, self.spike_users, 1))


class Storm(Shape):
    """All `users` leave together after `up_s`, and come back together after `down_s`; `storms` times."""

    abstract: ClassVar[bool] = True
    users: ClassVar[int] = 100
    up_s: ClassVar[float] = 30.0
    down_s: ClassVar[float] = 5.0
    storms: ClassVar[int] = 3

    def at(self, seconds: float) -> tuple[int, float] | None:
        cycle, within_s = divmod(seconds, self.up_s + self.down_s)
        if cycle > self.storms or (cycle == self.storms and within_s >= self.up_s):
            return None
        return (self.users if within_s < self.up_s else 0), float(max(1, self.users))


class Soak(Ramp):
    """A ramp that holds for hours."""

    abstract: ClassVar[bool] = True
    hold_s: ClassVar[float] = 8 * 3600.0
