"""Fail a run by what it measured: the largest p99, and shares of lost, repeated and failed messages.

Options of Locust's command line, which its web page and its config file have, too. A run with any of them
ends with 1 when one is passed or nothing was measured, and else with 0, whatever failed below the
thresholds.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from locust.runners import WorkerRunner
from locust.stats import RequestStats

from loadtest.users.faults import LOST, REPEATED

if TYPE_CHECKING:
    from locust.env import Environment

_log = logging.getLogger("loadtest.thresholds")

_GROUP: Final = "thresholds"
# Rows that a p99 without a name is not for: they come once a device.
_ONCE: Final = ("connect", "disconnect", "reconnect", "subscribe", "unsubscribe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What a run may have; None where it may have anything."""

    p99_max_ms: tuple[tuple[str, float], ...] = ()
    """(beginning of a row's name, milliseconds); an empty beginning is for all rows of messages."""
    lost_max: float | None = None
    """Share of the messages that receivers should have got, 0 to 1."""
    repeated_max: float | None = None
    """Share of the messages that receivers got."""
    errors_max: float | None = None
    """Share of all requests."""

    @property
    def are_given(self) -> bool:
        return bool(self.p99_max_ms) or any(
            each is not None for each in (self.lost_max, self.repeated_max, self.errors_max)
        )

    def passed(self, stats: RequestStats) -> list[str]:
        """Return a sentence for each threshold that the statistics are past."""
        if not stats.total.num_requests:
            return ["nothing was measured"]
        found = []
        for prefix, limit_ms in self.p99_max_ms:
            rows = [entry for (name, _), entry in stats.entries.items() if _is_for(prefix, name)]
            if not any(entry.num_requests > entry.num_none_requests for entry in rows):
                found.append(f"no row whose name begins with {prefix!r} has a time for --p99-max-ms")
            for entry in rows:
                p99_ms = entry.get_response_time_percentile(0.99)
                if p99_ms > limit_ms:
                    found.append(f"p99 of {entry.name} is {p99_ms:g} ms, {limit_ms:g} ms are allowed")
        received = sum(
            entry.num_requests for (name, _), entry in stats.entries.items() if name.startswith("receive")
        )
        shares = (
            (LOST, self.lost_max, _count(stats, LOST), received),
            (REPEATED, self.repeated_max, _count(stats, REPEATED), received),
            ("failed", self.errors_max, stats.total.num_failures, stats.total.num_requests),
        )
        for word, share_max, count, of in shares:
            if share_max is not None and count > share_max * of:
                found.append(f"{count} of {of} are {word}, a share of {share_max:g} is allowed")
        return found


def _is_for(prefix: str, name: str) -> bool:
    return name.startswith(prefix) if prefix else not name.startswith(_ONCE)


def _count(stats: RequestStats, kind: str) -> int:
    return sum(error.occurrences for error in stats.errors.values() if str(error.error) == kind)


def parse_p99(text: str) -> tuple[str, float]:
    """Parse `[NAME=]MS`."""
    prefix, _, number = text.rpartition("=")
    try:
        limit_ms = float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not [NAME=]MS") from None
    if not limit_ms > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: a time is above 0 ms")
    return prefix, limit_ms


def parse_share(text: str) -> float:
    """Parse a share, 0 to 1 or with a % sign."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: 0.001, or 0.1%") from None
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a share is from 0 to 1")
    return share


def add_options(parser: argparse.ArgumentParser, **_: Any) -> None:
    """Add the options; a listener of `init_command_line_parser`."""
    group = parser.add_argument_group(_GROUP)
    group.add_argument(
        "--p99-max-ms",
        action="append",
        default=[],
        metavar="[NAME=]MS",
        help="fail when the 99th percentile of a row is larger: of rows whose name begins with NAME, "
        "or of all rows of messages. May be repeated",
    )
    for name, text in (
        ("lost", "messages that did not arrive"),
        ("repeated", "messages that came twice"),
        ("errors", "failed requests"),
    ):
        group.add_argument(
            f"--{name}-max",
            default="",
            metavar="SHARE",
            help=f"fail when more {text}: 0, 0.001 or 0.1%%",
        )


def thresholds_of(options: argparse.Namespace) -> Thresholds:
    """Read the options; ArgumentTypeError names the one that is wrong."""
    p99s = options.p99_max_ms
    texts: Iterable[str] = p99s.split() if isinstance(p99s, str) else p99s or ()

    def share(name: str) -> float | None:
        text = getattr(options, name)
        try:
            return parse_share(str(text)) if text not in (None, "") else None
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"--{name.replace('_', '-')}: {error}") from None

    return Thresholds(
        p99_max_ms=tuple(parse_p99(str(text)) for text in texts),
        lost_max=share("lost_max"),
        repeated_max=share("repeated_max"),
        errors_max=share("errors_max"),
    )


def install(environment: Environment) -> None:
    """Judge the run when Locust quits."""
    options = environment.parsed_options
    if options is None or not hasattr(options, "p99_max_ms") or isinstance(environment.runner, WorkerRunner):
        return
    # Wrong ones are refused before the run.
    thresholds_of(options)

    def judge(environment: Environment, **_: Any) -> None:
        thresholds = thresholds_of(options)
        if not thresholds.are_given:
            return
        # Of a run that was interrupted this is the end, too.
        assert environment.runner is not None
        environment.runner.stop()
        passed = thresholds.passed(environment.stats)
        for sentence in passed:
            _log.error("%s", sentence)
        if not environment.process_exit_code:
            environment.process_exit_code = 1 if passed or environment.runner.exceptions else 0

    environment.events.quitting.add_listener(judge)
