"""Parse arguments: queue numbers, times, permissions, pairs."""

from __future__ import annotations

import argparse
import datetime
import math
import re
from typing import Final

from iotmq.limits import CONNECTIONS_LISTED_MAX, SESSION_QUEUE_LISTED_MAX

_PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0, "6": 6, "4": 4, "2": 2, "0": 0}
_AGO: Final = re.compile(r"(\d{1,9})(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_END_MS: Final = -1
# COLUMN>=NUMBER or COLUMN<=NUMBER.
_CLIENT_BOUND: Final = re.compile(r"(\w+)(>=|<=)(\d+(?:\.\d+)?)")


def queue_ids(text: str) -> list[int]:
    """Parse queue numbers: ``3``, ``0,2`` and ``4-7``."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"{text}: queue numbers are like 3 or 0,2 or 4-7")
        begin, end = int(first), int(last or first)
        if not begin <= end <= 65_535:
            raise argparse.ArgumentTypeError(f"{text}: queue numbers are like 3 or 0,2 or 4-7")
        numbers.update(range(begin, end + 1))
    return sorted(numbers)


def permissions(text: str) -> int:
    """Parse a permission: ``rw``, ``r``, ``w`` or ``none``."""
    if text not in _PERMISSIONS:
        raise argparse.ArgumentTypeError(f"{text}: permissions are rw, r, w or none")
    return _PERMISSIONS[text]


def permission_text(perm: int) -> str:
    """Return the letters of a permission."""
    return ("r" if perm & 4 else "-") + ("w" if perm & 2 else "-")


def time_ms(text: str) -> int:
    """Parse a time: ``2026-08-01T04:00`` (local), milliseconds since 1970, or an age: ``90m``, ``2d``."""
    if text.isdigit():
        return int(text)
    ago = _AGO.fullmatch(text)
    try:
        now = datetime.datetime.now().astimezone()
        if ago is not None:
            moment = now - datetime.timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
        else:
            moment = datetime.datetime.fromisoformat(text)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text}: a time is like 2026-08-01T04:00, or 90m or 2d ago, or milliseconds since 1970"
        ) from None


def duration_ms(text: str) -> int:
    """Parse a length of time: ``30s``, ``90m``, ``12h``, ``7d``."""
    found = _AGO.fullmatch(text)
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text}: a length of time is like 30s, 90m, 12h or 7d")
    return int(found[1]) * _SECONDS[found[2]] * 1_000


def place_ms(text: str) -> int:
    """Parse a time, or ``begin`` or ``end`` of the stored messages."""
    if text == "begin":
        return 0
    return _END_MS if text == "end" else time_ms(text)


def positive(text: str) -> int:
    """Parse a number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on")
    return number


def rate(text: str) -> float:
    """Parse a number of things a second, above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: a number above 0")
    return number


def pair(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text}: the form is NAME=VALUE")
    return name, value


def device_access(text: str) -> tuple[str, str]:
    """Parse ``FILTER=PERM`` with one of the permissions to send to devices."""
    topic_filter, _, permission = text.rpartition("=")
    if not topic_filter or permission not in ("DENY", "PUB"):
        raise argparse.ArgumentTypeError(f"{text}: it is FILTER=PUB or FILTER=DENY")
    return topic_filter, permission


def access(text: str) -> tuple[str, str]:
    """Parse ``NAME=PERM`` with one of the permissions of access control."""
    name, permission = pair(text)
    if permission not in ("DENY", "PUB", "SUB", "PUB|SUB", "SUB|PUB"):
        raise argparse.ArgumentTypeError(f"{text}: permissions are DENY, PUB, SUB or PUB|SUB")
    return name, permission


def client_bound(text: str) -> tuple[str, str, float]:
    """Parse a bound of a column, for argparse."""
    from iotmq.ports.client_pages import NUMBER_COLUMNS

    found = _CLIENT_BOUND.fullmatch(text)
    if found is None or found[1] not in NUMBER_COLUMNS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not COLUMN>=NUMBER or COLUMN<=NUMBER with one of {', '.join(NUMBER_COLUMNS)}"
        )
    return found[1], found[2], float(found[3])


def client_order(text: str) -> tuple[str, bool]:
    """Parse the column of an order, and whether the largest come first, for argparse."""
    from iotmq.ports.client_pages import CLIENT_COLUMNS

    column = text.removeprefix("-")
    if column not in CLIENT_COLUMNS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(CLIENT_COLUMNS)}")
    return column, text != column


def client_count(text: str) -> int:
    """Parse how many rows of a list of clients are wanted, for argparse."""
    return _count(text, CONNECTIONS_LISTED_MAX)


def queue_count(text: str) -> int:
    """Parse how many messages of a session's queue are wanted, for argparse."""
    return _count(text, SESSION_QUEUE_LISTED_MAX)


def _count(text: str, most: int) -> int:
    count = positive(text)
    if count > most:
        raise argparse.ArgumentTypeError(f"at most {most} at a time; --cursor goes on")
    return count
