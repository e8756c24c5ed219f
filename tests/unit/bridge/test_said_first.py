"""Errors of ours without the trace of how they came about."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import pytest

from iotmq.bridge.said_first import each_said_first, said_first
from iotmq.errors import ConfigError


def deep(number: int) -> int:
    if number:
        return deep(number - 1)
    try:
        return int("no number")
    except ValueError as error:
        raise ConfigError("option so-and-so: no number") from error


@said_first
def answer(number: int, *, is_good: bool = False) -> int:
    """Say what it does."""
    return number if is_good else deep(number)


@each_said_first
def answers(number: int) -> Iterator[int]:
    yield number
    yield deep(number)


def lines(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def test_an_error_of_ours_is_in_the_first_lines_and_has_its_class() -> None:
    with pytest.raises(ConfigError, match="so-and-so") as caught:
        answer(20)
    told = lines(caught.value)
    assert "deep" not in "".join(told)
    assert told[-1] == "iotmq.errors.ConfigError: option so-and-so: no number"
    steps = answers(20)
    assert next(steps) == 20
    with pytest.raises(ConfigError) as caught:
        next(steps)
    assert "deep" not in "".join(lines(caught.value))


def test_a_fault_keeps_its_trace() -> None:
    with pytest.raises(RecursionError) as caught:
        answer(100_000)
    assert "in deep" in "".join(lines(caught.value))


def test_answers_and_signatures_are_those_of_the_method() -> None:
    assert answer(3, is_good=True) == 3
    assert (answer.__name__, answer.__doc__) == ("answer", "Say what it does.")
