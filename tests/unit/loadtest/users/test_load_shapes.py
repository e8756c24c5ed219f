"""Load shapes as functions of time."""

from __future__ import annotations

import pytest

from loadtest.users.shapes import Ramp, Soak, Spike, Steps, Storm


class Ramped(Ramp):
    users, ramp_s, hold_s = 100, 10.0, 5.0


class Stepped(Steps):
    step_users, step_s, steps = 10, 30.0, 3


class Spiked(Spike):
    users, spike_users, before_s, spike_s, after_s = 10, 200, 60.0, 5.0, 60.0


class Stormy(Storm):
    users, up_s, down_s, storms = 50, 30.0, 5.0, 2


def users_at(shape: Ramp | Steps | Spike | Storm, *seconds: float) -> list[int | None]:
    return [None if (at := shape.at(each)) is None else at[0] for each in seconds]


def test_a_ramp_rises_and_holds() -> None:
    assert users_at(Ramped(), 0, 4, 9, 10, 14.9, 15) == [10, 50, 100, 100, 100, None]
    assert Ramped().at(0) == (10, 10.0)


def test_steps_rise_at_once() -> None:
    assert users_at(Stepped(), 0, 29.9, 30, 60, 89.9, 90) == [10, 10, 20, 30, 30, None]


def test_a_spike_comes_and_goes() -> None:
    assert users_at(Spiked(), 0, 59.9, 60, 64.9, 65, 124.9, 125) == [10, 10, 200, 200, 10, 10, None]
    at = Spiked().at(60)
    assert at is not None
    assert at[1] >= 190, "all within a second"


def test_in_a_storm_all_leave_and_return() -> None:
    assert users_at(Stormy(), 0, 30, 34.9, 35, 65, 70, 99.9, 100) == [50, 0, 0, 50, 0, 50, 50, None]


def test_a_soak_is_a_long_ramp() -> None:
    class Long(Soak):
        users, ramp_s = 5, 10.0

    assert users_at(Long(), 8 * 3_600, 8 * 3_600 + 10) == [5, None]


def test_a_negative_number_is_refused_by_name() -> None:
    class Wrong(Ramp):
        ramp_s = -1.0

    with pytest.raises(ValueError, match=r"Wrong\.ramp_s is -1"):
        Wrong()
