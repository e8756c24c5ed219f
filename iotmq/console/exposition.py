"""The metrics of all parts as Prometheus text, and the process's own beside them.

Two formats: text 0.0.4, and OpenMetrics 1.0.0 for those who name it in `Accept`. They differ in the name of a
counter's family, in the quotes of help texts, in the last line, and in exemplars, which only OpenMetrics has.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from iotmq.metrics import Metric, MetricSource, SourceReader, samples

PREFIX: Final = "iotmq_"
_PROCESS_PREFIX: Final = "process_"
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_LABEL_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_HELP_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n"})


class Exposition:
    """Asks every source when somebody scrapes, and never in between. `sources` may grow meanwhile."""

    def __init__(self, sources: Collection[MetricSource]) -> None:
        self._sources = sources
        self._readers = (SourceReader(sources), SourceReader((_ProcessSource(),)))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type, in the text format that the `Accept` header prefers."""
        return _page(self.samples(), accept)

    def samples(self) -> Iterator[Metric]:
        """Yield what the page has."""
        for reader in self._readers:
            yield from reader.samples()
        errors_count = sum(reader.errors_count for reader in self._readers)
        text = "Times the numbers of a part could not be read."
        yield from samples(("metrics_errors_total", text, errors_count))

    def render_topics(self, pattern: str, accept: str = "") -> tuple[bytes, str]:
        """Return the page of topics that match; ValueError when they are too many."""
        parts = [source for source in self._sources if hasattr(source, "topic_metrics")]
        return _page((sample for part in parts for sample in part.topic_metrics(pattern)), accept)


class _ProcessSource:
    """Memory, processor seconds and open files of this process, under the names every dashboard knows."""

    def __init__(self) -> None:
        boot_s = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text().splitlines()
            if line.startswith("btime ")
        )
        self._started_s = boot_s + int(self._fields()[19]) / _TICKS_PER_S

    def metrics(self) -> Iterable[Metric]:
        fields = self._fields()
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return samples(
            ("virtual_memory_bytes", "Virtual memory size in bytes.", int(fields[20])),
            (
                "resident_memory_bytes",
                "Resident memory size in bytes.",
                int(fields[21]) * resource.getpagesize(),
            ),
            (
                "start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
                self._started_s,
            ),
            (
                "cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
                (int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
            ),
            ("open_fds", "Number of open file descriptors.", len(os.listdir("/proc/self/fd"))),
            ("max_fds", "Maximum number of open file descriptors.", files_max),
            prefix=_PROCESS_PREFIX,
        )

    def _fields(self) -> list[str]:
        """Return /proc/self/stat behind the program's name: the state comes first."""
        return Path("/proc/self/stat").read_text().rpartition(")")[2].split()


def _page(page_samples: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    is_open = "application/openmetrics-text" in accept
    # The text formats want the samples of one name together; the first one gives help text and kind.
    families: dict[str, list[str]] = {}
    for sample in page_samples:
        _add(families, sample, is_open=is_open)
    end = "# EOF\n" if is_open else ""
    page = "".join(line for lines in families.values() for line in lines) + end
    return page.encode(), _OPEN_METRICS if is_open else _TEXT


def _add(families: dict[str, list[str]], sample: Metric, *, is_open: bool) -> None:
    is_whole = sample.name.startswith((PREFIX, _PROCESS_PREFIX))
    name, family = (text if is_whole else PREFIX + text for text in (sample.name, sample.family))
    lines = families.get(family)
    if lines is None:
        # A counter of OpenMetrics has `_total` in the names of its samples only.
        shown = family.removesuffix("_total") if is_open else family
        about = sample.help.translate(_LABEL_ESCAPES if is_open else _HELP_ESCAPES)
        lines = families[family] = [f"# HELP {shown} {about}\n# TYPE {shown} {sample.kind}\n"]
    labels = ",".join(f'{key}="{value.translate(_LABEL_ESCAPES)}"' for key, value in sample.labels)
    place = f"{name}{{{labels}}}" if labels else name
    lines.append(f"{place} {float(sample.value)!r}{_exemplar(sample) if is_open else ''}\n")


def _exemplar(sample: Metric) -> str:
    if sample.exemplar is None:
        return ""
    trace_id, span_id, value, time_s = sample.exemplar
    return f' # {{trace_id="{trace_id}",span_id="{span_id}"}} {value!r} {time_s!r}'
