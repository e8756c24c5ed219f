"""The table of current numbers in docs/explanation/performance.md, from what the benchmarks have kept.

`python -m benchmarks --report` writes it. Rows of benchmarks that have not been run keep what the page has.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks import machine
from benchmarks.mqtt_side_by_side import SCENARIOS

PAGE: Final = machine.ROOT / "docs" / "explanation" / "performance.md"
BEGIN: Final = "<!-- the table between these lines is written by `python -m benchmarks --report` -->"
END: Final = "<!-- end of the table -->"
HEADS: Final = ("work", "to reach", "measured", "peer", "ratio", "benchmark", "on")


class Row(NamedTuple):
    """One number of a benchmark. `path` leads to it in the file the benchmark keeps; `*` is the last key."""

    work: str
    mark: str
    benchmark: str
    path: tuple[str, ...]
    form: str = "{:,.0f}"
    # Where the peer's number is, and its name.
    peer: tuple[str, ...] = ()
    peer_name: str = ""
    scale: float = 1.0


def _redis(case: str, work: str) -> Row:
    return Row(
        work,
        "1x",
        "broker_beside_redis",
        ("results", case, "iotmq"),
        "{:,.0f}/s",
        ("results", case, "redis"),
        "Redis Streams",
    )


def _tls(kind: str, work: str) -> Iterator[Row]:
    yield Row(
        f"{work}: processor time of a connection",
        "1,000 us" if kind == "full" else "-",
        "mqtt_tls",
        (f"iotmq {kind}", "cpu_us"),
        "{:,.0f} us",
        (f"mosquitto {kind}", "cpu_us"),
        "Mosquitto",
    )
    yield Row(
        f"{work}: process memory of a connection",
        "30 KB" if kind == "full" else "-",
        "mqtt_tls",
        (f"iotmq {kind}", "memory_bytes"),
        "{:,.1f} KB",
        (f"mosquitto {kind}", "memory_bytes"),
        "Mosquitto",
        1 / 1024,
    )


ROWS: Final = (
    *(
        Row(
            f"MQTT: {scenario.title}",
            scenario.goal or "-",
            "mqtt_side_by_side",
            (name, "sides", "iotmq", scenario.first),
            "{:,.0f}",
            (name, "sides", "mosquitto", scenario.first),
            "Mosquitto",
        )
        for name, scenario in SCENARIOS.items()
    ),
    *_tls("full", "TLS 1.3, P-256"),
    *_tls("resumed", "the same, session resumed"),
    Row(
        "an empty gateway, all in one process: memory",
        "60 MB",
        "gateway_empty",
        ("gateway", "resident_bytes"),
        "{:,.1f} MB",
        scale=1e-6,
    ),
    Row(
        "the same: processor time of its start",
        "-",
        "gateway_empty",
        ("gateway", "start_s"),
        "{:,.0f} ms",
        scale=1e3,
    ),
    Row(
        "idle connection with a kept session and one subscription, front end's memory",
        "3,072 bytes",
        "mqtt_idle_session",
        ("kept session", "front_end_bytes"),
        "{:,.0f} bytes",
    ),
    Row(
        "kept sessions that come back at once over 2 front ends",
        "4,000/s",
        "mqtt_reconnect_storm",
        ("storm", "per_s"),
        "{:,.0f}/s",
    ),
    Row(
        "front end killed at 5,000 commands/s: age of the oldest message that comes twice",
        "1,000 ms",
        "mqtt_front_end_killed",
        ("killed", "oldest_repeat_ms"),
        "{:,.0f} ms",
    ),
    Row(
        "decoding a PUBLISH of 100 bytes, MQTT 3.1.1, one core",
        "5 M/s",
        "mqtt_decoder",
        ("3.1.1", "messages_per_s"),
        "{:,.1f} M/s",
        scale=1e-6,
    ),
    Row(
        "`iotmq pub -l`, QoS 0",
        "100,000/s",
        "mqtt_commands",
        ("pub -l, QoS 0", "iotmq"),
        "{:,.0f}/s",
        ("pub -l, QoS 0", "mosquitto"),
        "mosquitto_pub",
    ),
    Row(
        "`iotmq sub`, QoS 0",
        "100,000/s",
        "mqtt_commands",
        ("sub, QoS 0", "iotmq"),
        "{:,.0f}/s",
        ("sub, QoS 0", "mosquitto"),
        "mosquitto_sub",
    ),
    Row(
        "native batches of 100 x 100 bytes, one connection: records",
        "1,000,000/s",
        "broker_produce",
        ("results", "batches", "records_per_s"),
        "{:,.0f}/s",
    ),
    Row(
        "native single sends, 10 connections",
        "60,000/s",
        "broker_produce",
        ("results", "single", "records_per_s"),
        "{:,.0f}/s",
    ),
    Row(
        "native pulls of 32 records: records",
        "500,000/s",
        "broker_pull",
        ("results", "32 per pull", "records_per_s"),
        "{:,.0f}/s",
    ),
    Row(
        "native pulls of 1,024 records: records",
        "3,000,000/s",
        "broker_pull",
        ("results", "1,024 per pull", "records_per_s"),
        "{:,.0f}/s",
    ),
    Row(
        "native produce to consume at 5,000 messages/s, p99",
        "2 ms",
        "broker_latency",
        ("*", "p99, ms"),
        "{:,.2f} ms",
    ),
    Row(
        "native client, encoded batches, one connection: records",
        "500,000/s",
        "native_produce",
        ("*", "records_per_s", "encoded batches"),
        "{:,.0f}/s",
    ),
    Row(
        "10,000 parked pulls, idle: share of a core",
        "1 %",
        "broker_holds",
        ("*", "idle share of a core, %"),
        "{:,.2f} %",
    ),
    Row(
        "messages that wait for a time, idle: share of a core",
        "1 %",
        "broker_timers",
        ("*", "idle, percent of a core"),
        "{:,.2f} %",
    ),
    Row(
        "10,000 of them due within a second: the last is late by",
        "500 ms",
        "broker_timers",
        ("*", "spread, stored late, ms, most"),
        "{:,.0f} ms",
    ),
    Row(
        "10,000 topics x 8 queues: start and registration",
        "5 s",
        "broker_topics",
        ("10000 topics", "start and registration, s"),
        "{:,.2f} s",
    ),
    Row(
        "10,000 topics x 8 queues: memory",
        "400 MB",
        "broker_topics",
        ("10000 topics", "memory, MB"),
        "{:,.0f} MB",
    ),
    _redis("produce", "native batches beside 100 XADDs: records"),
    _redis("produce singly", "native single sends beside XADD"),
    _redis("consume 32", "reads of 32 beside XREAD: records"),
    _redis("consume 1,024", "reads of 1,024 beside XREAD: records"),
    Row(
        "append with queues and key index, one core: records",
        "1.5 M/s",
        "store_append",
        ("append", "median", "append"),
        "{:,.1f} M/s",
        scale=1e-6,
    ),
    Row(
        "sync flush, 200 senders: records a flush",
        "50",
        "store_sync_flush",
        ("sync_flush", "median", "records_per_flush"),
        "{:,.0f}",
    ),
    Row(
        "sync flush: flushes, as a share of what the disk does alone",
        "0.80",
        "store_sync_flush",
        ("sync_flush", "median", "of_disk"),
        "{:,.2f}",
    ),
    Row(
        "kill -9 while it is written: process start to serving",
        "3 s",
        "store_start",
        ("*", "median", "serving_s"),
        "{:,.2f} s",
    ),
    Row(
        "queues and key index made again from the log, one core",
        "500 MB/s",
        "store_rebuild",
        ("rebuild", "median", "queues and index, the start included"),
        "{:,.0f} MB/s",
        scale=1e-6,
    ),
    Row(
        "stored records into Arrow columns, one core: records",
        "3 M/s",
        "store_read",
        ("read", "rounds", "one queue"),
        "{:,.1f} M/s",
        scale=1e-6,
    ),
    Row(
        "Spark reading stored records on local[2]: rows, default columns",
        "1,000,000/s",
        "spark_read",
        ("*", "rows_per_s", "default columns"),
        "{:,.0f}/s",
    ),
)


def write() -> int:
    """0 when every row has a number."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN + "\n")
    old, after = rest.split(END)
    known = {(cells[0], cells[5]): cells for cells in rows_of(old)}
    lines = [HEADS, ("---",) * len(HEADS)]
    missing = []
    for row in ROWS:
        cells = _measured(row) or known.get((row.work, f"`{row.benchmark}`"))
        if cells is None:
            missing.append(f"{row.benchmark}: {row.work}")
        else:
            lines.append(tuple(cells))
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n{_about()}\n{END}{after}")
    for name in missing:
        print(f"not measured yet: {name}", file=sys.stderr)
    return 1 if missing else 0


def rows_of(text: str) -> list[list[str]]:
    """The cells of a Markdown table's rows, without its two first lines."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def _measured(row: Row) -> list[str] | None:
    file = machine.RESULTS / f"{row.benchmark}.json"
    if not file.exists():
        return None
    found = json.loads(file.read_text())
    ours, theirs = _number(found, row.path), _number(found, row.peer) if row.peer else None
    if ours is None:
        return None
    peer = "-" if theirs is None else f"{row.peer_name} {row.form.format(theirs * row.scale)}"
    ratio = "-" if not theirs else f"{ours / theirs:.2f}x"
    day = time.strftime("%Y-%m-%d", time.localtime(file.stat().st_mtime))
    return [row.work, row.mark, row.form.format(ours * row.scale), peer, ratio, f"`{row.benchmark}`", day]


def _number(found: Any, path: tuple[str, ...]) -> float | None:
    for key in path:
        if key == "*":
            key = list(found)[-1]
        if key not in found:
            return None
        found = found[key]
    if isinstance(found, dict):
        found = found["median"]
    return median(found) if isinstance(found, list) else float(found)


def _about() -> str:
    about = machine.description()
    return (
        f"The newest rows: {about['cores']} cores, {about['processor']}, Linux {about['kernel']}, "
        f"Python {about['python']}."
    )
