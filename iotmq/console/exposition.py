"""The metrics of all parts as Prometheus text, and the process's own beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from iotmq.metrics import Metric as Sample
from iotmq.metrics import MetricSource, SourceReader, samples

PREFIX = "iotmq_"


class Exposition:
    """Asks every source when somebody scrapes, and never in between. `sources` may grow meanwhile."""

    def __init__(self, sources: Collection[MetricSource]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_SourceCollector(sources))
        # Memory, CPU seconds and open files of this process, under the names every dashboard knows.
        ProcessCollector(registry=self._registry)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type, in the text format that the `Accept` header prefers."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


class _SourceCollector:
    """Gathers the samples of all sources into families, because the text format wants them together."""

    def __init__(self, sources: Collection[MetricSource]) -> None:
        self._reader = SourceReader(sources)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for sample in self._reader.samples():
            _add(families, sample)
        errors = (
            "metrics_errors_total",
            "Times the numbers of a part could not be read.",
            self._reader.errors_count,
        )
        for sample in samples(errors):
            _add(families, sample)
        yield from families.values()


def _add(families: dict[str, Metric], sample: Sample) -> None:
    """Put one sample into its family; the first sample of a name gives help text and kind."""
    name = sample.name if sample.name.startswith(PREFIX) else PREFIX + sample.name
    family = families.get(name)
    if family is None:
        kind = CounterMetricFamily if sample.kind == "counter" else GaugeMetricFamily
        family = families[name] = kind(name, sample.help)
    # A counter family drops `_total` from its name; its samples carry it.
    sample_name = f"{family.name}_total" if family.type == "counter" else family.name
    family.add_sample(sample_name, dict(sample.labels), sample.value)
