"""Report the numbers of a part: they are kept by the part, and read only when somebody asks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Literal, NamedTuple, Protocol

logger = logging.getLogger(__name__)


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
        """Return the part's samples at this moment."""


class SourceReader:
    """Reads many parts; one whose numbers cannot be read hides those of no other."""

    def __init__(self, sources: Collection[MetricSource]) -> None:
        """`sources` may grow meanwhile."""
        self._sources = sources
        self.errors_count = 0

    def samples(self) -> Iterator[Metric]:
        """Yield the samples of all parts; of those that are left out the log says why."""
        for source in tuple(self._sources):
            try:
                yield from source.metrics()
            except Exception:
                self.errors_count += 1
                logger.exception("the metrics of %s could not be read", type(source).__name__)


def samples(
    *rows: tuple[str, str, float], prefix: str = "", labels: tuple[tuple[str, str], ...] = ()
) -> Iterator[Metric]:
    """The metrics of a table of (name, help, value); what ends in `_total` is a counter, all else a gauge."""
    for name, text, value in rows:
        kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
        yield Metric(prefix + name, kind, text, value, labels)
