"""Report the numbers of a part: they are kept by the part, and read only when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, Protocol


class Metric(NamedTuple):
    """One sample. Counters end in `_total`; names carry their unit (`_bytes`, `_seconds`)."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class MetricSource(Protocol):
    """A part that has numbers to report."""

    def metrics(self) -> Iterable[Metric]:
        """The part's samples at this moment."""


def samples(
    *rows: tuple[str, str, float], prefix: str = "", labels: tuple[tuple[str, str], ...] = ()
) -> Iterator[Metric]:
    """The metrics of a table of (name, help, value); what ends in `_total` is a counter, all else a gauge."""
    for name, text, value in rows:
        kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
        yield Metric(prefix + name, kind, text, value, labels)
