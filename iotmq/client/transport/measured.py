"""Give the numbers of a client's parts to prometheus_client, where that is installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from iotmq.errors import ClientError
from iotmq.metrics import Metric, MetricSource, SourceReader

if TYPE_CHECKING:
    from prometheus_client import Metric as PrometheusMetric


class Measured:
    """A part that has numbers. `REGISTRY.register(part)` of prometheus_client takes it as a collector."""

    def metrics(self) -> Iterable[Metric]:
        """Report the numbers of this part."""
        return ()

    def collect(self) -> list[PrometheusMetric]:
        """Return the numbers as prometheus_client has them, for its registries.

        ClientError when the package prometheus-client is not installed.
        """
        return families((self,))


class Collector(Measured):
    """Collects the numbers of several clients, or parts, as one: their registry has each name once."""

    def __init__(self, *parts: MetricSource) -> None:
        self._reader = SourceReader(parts)

    def metrics(self) -> Iterable[Metric]:
        """Report the numbers of all; of those that cannot be read the log says why."""
        return self._reader.samples()


def families(sources: Iterable[MetricSource]) -> list[PrometheusMetric]:
    """Make families of all samples; those with the same name and labels become their sum."""
    try:
        import prometheus_client
    except ImportError as error:
        raise ClientError("collect() needs the package prometheus-client: install it") from error
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    found: dict[str, PrometheusMetric] = {}
    for source in sources:
        for sample in source.metrics():
            key = sample.name, sample.labels
            sums[key] = sums.get(key, 0) + sample.value
            if sample.name not in found:
                # A family of counters has its name without the end.
                name = sample.name.removesuffix("_total")
                found[sample.name] = prometheus_client.Metric(name, sample.help, sample.kind)
    for (name, labels), value in sums.items():
        found[name].add_sample(name, dict(labels), value)
    return list(found.values())
