"""The page of a load test, or of two side by side: one file of HTML with everything in it."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from statistics import median
from typing import Any, Final

from loadtest.reports.charts import Line, chart, short_number
from loadtest.runs.result import Result

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #d8dde3; --quiet: #57606a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --paper: #0d1117; --faint: #30363d; --quiet: #9198a1; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 1180px; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.quiet { color: var(--quiet); }
.good, .bad { border-left: 4px solid; padding: .5rem .75rem; margin: 1rem 0; }
.good { border-color: #009e73; } .bad { border-color: #d55e00; } .bad ul { margin: .25rem 0 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 1rem; }
figure { margin: 0; border: 1px solid var(--faint); border-radius: 6px; padding: .5rem; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--quiet); } svg .title { font-size: 13px; fill: var(--ink); }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--faint); } svg polyline { fill: none; stroke-width: 1.8; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .25rem 0 0; padding: 0;
  font-size: .8rem; }
.legend i { display: inline-block; width: 1.4rem; margin-right: .4rem; vertical-align: middle; }
.tables { display: flex; flex-wrap: wrap; gap: 2rem; } .wide { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .2rem .8rem .2rem 0; text-align: right; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 1px solid var(--faint); }
td { font-variant-numeric: tabular-nums; } code { font-size: .85rem; overflow-wrap: anywhere; }
"""

# The times of a result by their names, and what a reader calls them.
_TIMES: Final = {
    "delivery": "publisher to subscriber",
    "acknowledgement": "publisher to acknowledgement",
    "connection": "connect to CONNACK",
    "subscription": "SUBSCRIBE to SUBACK",
    "reconnection": "lost to session back",
    "send_delay": "late by the load generator itself",
}
_PERCENTILES: Final = {
    "p50_ns": "p50",
    "p90_ns": "p90",
    "p99_ns": "p99",
    "p999_ns": "p99.9",
    "p9999_ns": "p99.99",
    "max_ns": "max",
}

Value = Callable[[dict[str, Any]], float | None]


def report_page(results: Sequence[Result]) -> str:
    """The page of one result, or of two that are compared."""
    title = " and ".join(result["name"] for result in results)
    body = "".join(
        [_heading(results), *map(_judged, results), _charts(results), _tables(results), _plans(results)]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _heading(results: Sequence[Result]) -> str:
    lines = []
    for i, result in enumerate(results):
        plan, machine = result["plan"], result.get("machine", {})
        dash = "" if len(results) == 1 else ("solid lines: ", "dashed lines: ")[i]
        lines.append(
            f"<h1>{escape(result['name'])}</h1><p class='quiet'>{dash}{escape(str(result['began_at']))}, "
            f"{escape(str(plan.get('host')))}:{escape(str(plan.get('port')))}, "
            f"{escape(str(machine.get('system', '')))}, {escape(str(machine.get('cores', '?')))} cores, "
            f"load average {machine.get('load_before', 0):.2f} before and "
            f"{machine.get('load_after', 0):.2f} after</p>"
        )
    return "".join(lines)


def _judged(result: Result) -> str:
    notes = "".join(f"<p class='quiet'>{escape(sentence)}</p>" for sentence in result.get("notes", []))
    if not result["verdict"]:
        name = escape(result["name"])
        return f'<div class="good">{name}: nothing was lost, repeated or refused.{notes}</div>'
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in result["verdict"])
    return f'<div class="bad">{escape(result["name"])}:<ul>{items}</ul>{notes}</div>'


# Charts


def _charts(results: Sequence[Result]) -> str:
    def lines(values: dict[str, Value], *, is_rate: bool = False) -> list[Line]:
        return [
            Line(
                label if len(results) == 1 else f"{label}, {result['name']}",
                _points(result, value, is_rate=is_rate),
                colour=colour,
                is_dashed=number == 1,
            )
            for colour, (label, value) in enumerate(values.items())
            for number, result in enumerate(results)
        ]

    messages = {name: _counter(name) for name in ("published", "acknowledged", "delivered")}
    coming = {"opened": _counter("opened"), "got in": _counter("connected"), "left": _counter("left")}
    parts = [
        chart("Messages", "1/s", _moving(lines(messages, is_rate=True))),
        chart("Connections", "now", lines({"ready": _counter("ready")})),
        chart("Connections made", "1/s", _moving(lines(coming, is_rate=True))),
        chart(
            "Lost and failed",
            "in all",
            _moving(lines({"lost": _counter("lost"), "failed": _counter("failed")})),
        ),
    ]
    for name, label in _TIMES.items():
        percentiles = {shown: _latency(name, of) for of, shown in _PERCENTILES.items() if of in _SHOWN}
        parts.append(chart(f"Time: {label}", "ms", lines(percentiles), is_logarithmic=True))
    cpu = {"server": _value("server_cpu_s"), "load generator": _value("load_cpu_s")}
    memory = {"server": lambda tick: _mebibytes(tick.get("server_memory_bytes"))}
    parts.append(chart("Processor time", "cores", lines(cpu, is_rate=True)))
    parts.append(chart("Memory of the server", "MiB", lines(memory)))
    return f'<h2>Over time</h2><div class="charts">{"".join(parts)}</div>'


_SHOWN: Final = ("p50_ns", "p99_ns", "p999_ns", "max_ns")


def _counter(name: str) -> Value:
    return lambda tick: tick["counters"].get(name, 0)


def _value(name: str) -> Value:
    return lambda tick: tick.get(name)


def _latency(name: str, percentile: str) -> Value:
    def value(tick: dict[str, Any]) -> float | None:
        times = tick["latencies"].get(name)
        return None if times is None else times[percentile] / 1e6

    return value


def _mebibytes(size: int | None) -> float | None:
    return None if size is None else size / 2**20


def _points(result: Result, value: Value, *, is_rate: bool) -> list[tuple[float, float]]:
    """The values of a result over its seconds, or how fast they rise."""
    points = [(tick["at_s"], found) for tick in result["ticks"] if (found := value(tick)) is not None]
    if not is_rate or not points:
        return points
    # The last tick comes whenever the test is over: a rate over a moment says nothing.
    shortest_s = median(at - at_before for (at_before, _), (at, _) in _pairs(points)) / 2
    return [
        (at, (found - before) / (at - at_before))
        for (at_before, before), (at, found) in _pairs(points)
        if at > at_before and at - at_before >= shortest_s
    ]


def _pairs(points: list[tuple[float, float]]) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    # What a counter has at the first tick rose since the test began.
    return zip([(0.0, 0.0), *points], points, strict=False)


def _moving(lines: list[Line]) -> list[Line]:
    """Those in which something happens."""
    return [line for line in lines if any(value for _, value in line.points)]


# Tables


def _tables(results: Sequence[Result]) -> str:
    return (
        f'<h2>Times (ms)</h2><div class="wide">{_times(results)}</div>'
        f'<h2>Counts</h2><div class="tables">{_counts(results)}{_ends(results)}</div>'
    )


def _times(results: Sequence[Result]) -> str:
    head = "".join(f"<th>{shown}</th>" for shown in ("", "count", "mean", *_PERCENTILES.values()))
    rows = []
    for name, label in _TIMES.items():
        for result in results:
            times = result["latencies"].get(name)
            if not times or not times["count"]:
                continue
            shown = label if len(results) == 1 else f"{label}, {result['name']}"
            values = [times["mean_ns"], *(times[percentile] for percentile in _PERCENTILES)]
            cells = "".join(f"<td>{value / 1e6:.3f}</td>" for value in values)
            rows.append(f"<tr><td>{escape(shown)}</td><td>{times['count']:,.0f}</td>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _counts(results: Sequence[Result]) -> str:
    rows = [
        (
            "connections",
            [f"{result['connect']['ready']:,} of {result['connect']['wanted']:,}" for result in results],
        ),
        ("connections made a second", [f"{result['connect']['per_s']:,.0f}" for result in results]),
    ]
    rows += [
        (name.replace("_per_s", " a second"), [f"{result['rates'].get(name, 0):,.0f}" for result in results])
        for name in results[0]["rates"]
    ]
    rows.append(("missing", [_count(result.get("missing", 0)) for result in results]))
    rows += [
        (name.replace("_", " "), [f"{result['counters'].get(name, 0):,}" for result in results])
        for name in results[0]["counters"]
        if any(result["counters"].get(name) for result in results)
    ]
    return _table([result["name"] for result in results], rows, change=_change(results))


def _count(number: int | None) -> str:
    return "not known" if number is None else f"{number:,}"


def _change(results: Sequence[Result]) -> dict[str, str]:
    """By how much the second differs from the first, for rates."""
    if len(results) != 2:
        return {}
    first, second = (result["rates"] for result in results)
    return {
        name.replace("_per_s", " a second"): f"{(second[name] / first[name] - 1) * 100:+.1f} %"
        for name in first
        if first[name] and name in second
    }


def _ends(results: Sequence[Result]) -> str:
    names = sorted(
        {(group, kind) for result in results for group in result["ends"] for kind in result["ends"][group]}
    )
    if not names:
        return ""
    rows = [
        (f"{group}: {kind}", [f"{result['ends'].get(group, {}).get(kind, 0):,}" for result in results])
        for group, kind in names
    ]
    return _table([result["name"] for result in results], rows)


def _table(
    heads: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], *, change: dict[str, str] | None = None
) -> str:
    change = change or {}
    head = "".join(f"<th>{escape(each)}</th>" for each in ("", *heads, *(["change"] if change else [])))
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(value)}</td>' for value in values)}"
        f"{f'<td>{change.get(name, str())}</td>' if change else ''}</tr>"
        for name, values in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plans(results: Sequence[Result]) -> str:
    parts = []
    for result in results:
        plan = ", ".join(
            f"{name} {value}" for name, value in result["plan"].items() if value not in (None, "", [], 0)
        )
        processes = result.get("options", {}).get("processes", 1)
        parts.append(
            f"<p><code>{escape(result['name'])}: {processes} processes, "
            f"measured for {short_number(result.get('measured_s', 0))} s; {escape(plan)}</code></p>"
        )
    return f"<h2>Plan</h2>{''.join(parts)}"
