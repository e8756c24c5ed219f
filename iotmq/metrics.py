"""Report the numbers of a part: the part counts, and nothing is made of it until somebody asks."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

logger = logging.getLogger(__name__)


Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
_Key = TypeVar("_Key")


class Exemplar(NamedTuple):
    """A sampled thing that a bucket has counted: ids in hexadecimal digits, its value, and when it was."""

    trace_id: str
    span_id: str
    value: float
    time_s: float


class Metric(NamedTuple):
    """One sample. Counters end in `_total`; names carry their unit (`_bytes`, `_seconds`).

    A histogram is many of them: names end in `_bucket`, whose label `le` comes last, `_sum` and `_count`.
    """

    name: str
    kind: Kind
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    exemplar: Exemplar | None = None

    @property
    def family(self) -> str:
        """Return the name of the metric that this is a sample of."""
        return self.name.rpartition("_")[0] if self.kind == "histogram" else self.name


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
    """Yield the samples of a table of (name, help, value)."""
    for name, text, value in rows:
        yield Metric(prefix + name, kind_of(name), text, value, labels)


def samples_by(
    label: str,
    name: str,
    text: str,
    values: Mapping[_Key, float],
    *,
    labels: tuple[tuple[str, str], ...] = (),
) -> Iterator[Metric]:
    """Yield a sample of one metric for each key of `values`; the key is the value of `label`."""
    for key, value in sorted((str(key), value) for key, value in values.items()):
        yield from samples((name, text, value), labels=(*labels, (label, key)))


def kind_of(name: str) -> Kind:
    """Return the kind of a metric by its name."""
    return "counter" if name.endswith("_total") else "gauge"
