"""Thresholds: how they are written, and what they find."""

from __future__ import annotations

import argparse

import pytest
from locust.stats import RequestStats

from loadtest.users.faults import Fault
from loadtest.users.statistics import Batch, merge
from loadtest.users.thresholds import Thresholds, add_options, parse_p99, parse_share, thresholds_of


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return parser.parse_args(words)


def stats_of(*, lost: int = 0, repeated: int = 0) -> RequestStats:
    stats = RequestStats()
    for name, ms in (("connect", 500), ("publish:1:t", 20), ("receive:1:t", 10)):
        batch = Batch("MQTT", name)
        batch.add_times({ms * 1_000_000: 100}, total_ns=ms * 10**8, max_ns=ms * 10**6)
        if name == "receive:1:t":
            batch.add_failures(Fault("lost"), lost)
            batch.mark_failed(Fault("repeated"), repeated)
        merge(stats, batch)
    return stats


def test_no_option_is_no_threshold() -> None:
    assert not thresholds_of(options()).are_given
    assert Thresholds().passed(stats_of()) == []


def test_options_are_read() -> None:
    given = thresholds_of(
        options("--p99-max-ms", "5", "--p99-max-ms", "connect=500", "--lost-max", "0", "--errors-max", "0.1%")
    )
    assert given == Thresholds(p99_max_ms=(("", 5.0), ("connect", 500.0)), lost_max=0.0, errors_max=0.001)
    assert given.are_given


@pytest.mark.parametrize("text", ["", "fast", "a=", "=x", "0", "-1", "a=nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_p99(text)


@pytest.mark.parametrize("text", ["", "x", "-0.1", "1.01", "101%", "nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_share(text)


def test_a_wrong_option_is_named() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="--lost-max"):
        thresholds_of(options("--lost-max", "much"))


@pytest.mark.parametrize(
    ("p99s", "found"),
    [
        ([("", 20.0)], []),
        ([("", 19.0)], ["publish:1:t"]),
        ([("", 9.0)], ["publish:1:t", "receive:1:t"]),
        ([("connect", 499.0)], ["connect"]),
        ([("connect", 500.0), ("receive", 10.0)], []),
        ([("nothing", 1.0)], ["no row whose name begins with 'nothing'"]),
    ],
)
def test_p99_by_row(p99s: list[tuple[str, float]], found: list[str]) -> None:
    passed = Thresholds(p99_max_ms=tuple(p99s)).passed(stats_of())
    assert len(passed) == len(found)
    assert all(name in sentence for name, sentence in zip(found, passed, strict=True))


def test_shares_at_the_limit_and_past_it() -> None:
    # 100 arrived, 25 are lost, 5 came twice.
    stats = stats_of(lost=25, repeated=5)
    assert Thresholds(lost_max=0.2, repeated_max=0.04).passed(stats) == []
    passed = Thresholds(lost_max=0.199, repeated_max=0.039, errors_max=0.01).passed(stats)
    assert [sentence.split(",")[0] for sentence in passed] == [
        "25 of 125 are lost",
        "5 of 125 are repeated",
        "30 of 325 are failed",
    ]


def test_a_run_without_any_result_fails() -> None:
    assert Thresholds(lost_max=1.0).passed(RequestStats()) == ["nothing was measured"]
