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
from benchmarks.broker_beside_kafka import CASES as KAFKA_CASES
from benchmarks.mqtt_side_by_side import SCENARIOS, Pair
from benchmarks.native_side_by_side import WIRES
from benchmarks.peers import DURABLE, FAST, Peer, mqtt, native
from benchmarks.peers.native import KAFKA
from benchmarks.peers.sources import Given
from benchmarks.spark_beside_kafka import TIMES as SPARK_TIMES

PAGE: Final = machine.ROOT / "docs" / "explanation" / "performance.md"
BEGIN: Final = "<!-- the table between these lines is written by `python -m benchmarks --report` -->"
END: Final = "<!-- end of the table -->"
PEERS_BEGIN: Final = "<!-- the table of peers is written by `python -m benchmarks --report` -->"
PEERS_END: Final = "<!-- end of the table of peers -->"
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
    is_optional: bool = False
    """Beside a peer that only few have: not missed where it is not."""


_NATIVE_WORK: Final = {
    "produce": "native batches of 100",
    "produce singly": "native single sends",
    "consume 32": "reads of 32",
    "consume 1,024": "reads of 1,024",
}
_NATIVE_MARKS: Final = {
    native.ROCKETMQ.name: dict(zip(_NATIVE_WORK, ("6x", "6x", "3x", "3x"), strict=True)),
    native.REDIS.name: dict.fromkeys(_NATIVE_WORK, "1x"),
}


def _native(peer: Peer) -> Iterator[Row]:
    """In both settings; those marks are for the fast one."""
    for setting in peer.settings:
        marks = _NATIVE_MARKS.get(peer.name, {}) if setting == FAST else {}
        for case, work in _NATIVE_WORK.items():
            path = (f"{peer.name}, {setting}", case)
            yield Row(
                f"{work} beside {peer.title}, {setting}: records",
                marks.get(case, "-"),
                "native_side_by_side",
                (*path, "iotmq"),
                "{:,.0f}/s",
                (*path, peer.name),
                peer.title,
            )


_KAFKA_WORK: Final = {"produce": "native batches of {}", "fetch": "reads of a batch of {}"}


def _kafka() -> Iterator[Row]:
    for setting in KAFKA.settings:
        for case in KAFKA_CASES:
            work, _, batch = case.partition(" ")
            yield Row(
                f"{_KAFKA_WORK[work].format(batch)} beside {KAFKA.title}, {setting}: processor time a record",
                "< 1x" if setting == FAST else "-",
                "broker_beside_kafka",
                (setting, case, "iotmq"),
                "{:,.2f} us",
                (setting, case, "kafka"),
                KAFKA.title,
            )


_SPARK_WORK: Final = {
    "batch to noop": (">= 3x", "rows read in one batch"),
    "batch, sum(length(value))": (">= 3x", "the same, and the length of the values summed"),
    "stream to Parquet": (">= 2x", "rows read in micro-batches of 1 M, and written as Parquet"),
    "sink": (">= 1x", "rows of Parquet files written with their keys"),
    "small batch": ("< 70 ms", "a micro-batch at 200 records a second, low_latency"),
}


def _spark() -> Iterator[Row]:
    for case, (mark, work) in _SPARK_WORK.items():
        sides = ("*", "cases", case, "sides")
        yield Row(
            f"Spark beside its source for Kafka: {work}",
            mark,
            "spark_beside_kafka",
            (*sides, "iotmq"),
            "{:,.0f} ms" if case in SPARK_TIMES else "{:,.0f}/s",
            (*sides, "kafka"),
            KAFKA.title,
            is_optional=True,
        )


_MQTT_WORK: Final = {
    "qos1_window100": "QoS 1, 100 connections, window 100: acknowledged/s",
    "qos1_window1": "QoS 1, 100 connections, window 1: acknowledged/s",
    "qos0_fan_in_paced": "QoS 0, 100 publishers to 1 subscriber: delivered/s",
    "fan_out": "QoS 0, 1 publisher to 1,000 subscribers: deliveries/s",
    "durable": "QoS 1, 100 publishers to 100 kept sessions: in + out/s",
    "latency": "5,000 msg/s QoS 1 end to end: p99 microseconds",
    "idle_subscribed": "idle connection with one filter: bytes",
}
_MQTT_MARKS: Final = {
    "flashmq": {
        "qos1_window100": ">= 1.5x",
        "qos1_window1": ">= 1.3x",
        "qos0_fan_in_paced": ">= 1.3x",
        "fan_out": ">= 3x",
    },
    "mosquitto-2.1": {"latency": "<= 1x"},
}


def _mqtt(pair: Pair) -> Iterator[Row]:
    marks = _MQTT_MARKS.get(pair.peer.name, {}) if pair.setting == FAST else {}
    for scenario in pair.scenarios:
        first = SCENARIOS[scenario].first
        yield Row(
            f"MQTT beside {pair.peer.title}, {pair.setting}: {_MQTT_WORK[scenario]}",
            marks.get(scenario, "-"),
            "mqtt_side_by_side",
            (pair.key(scenario), "sides", "iotmq", first),
            "{:,.0f}",
            (pair.key(scenario), "sides", pair.peer.name, first),
            pair.peer.title,
            is_optional=isinstance(pair.peer.source, Given),
        )


def _mqtt_pairs() -> Iterator[Pair]:
    for peer in mqtt.PEERS.values():
        yield from (pair for setting in peer.settings if not (pair := Pair(peer, setting)).is_first)


def _tls(kind: str, work: str) -> Iterator[Row]:
    yield Row(
        f"{work}: processor time of a connection",
        {"full": "1,000 us", "client": "Mosquitto's"}.get(kind, "-"),
        "mqtt_tls",
        (f"iotmq {kind}", "cpu_us"),
        "{:,.0f} us",
        (f"mosquitto {kind}", "cpu_us"),
        "Mosquitto",
    )
    yield Row(
        f"{work}: process memory of a connection",
        {"full": "30 KB", "client": "Mosquitto's"}.get(kind, "-"),
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
    *(row for pair in _mqtt_pairs() for row in _mqtt(pair)),
    *_tls("full", "TLS 1.3, P-256"),
    *_tls("resumed", "the same, session resumed"),
    *_tls("client", "TLS 1.3, device with a certificate"),
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
        "10,000/s",
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
    Row("1,000 routes: a new topic", "20 us", "mqtt_routes", ("a new topic",), "{:,.1f} us"),
    Row("the same: a topic that was seen", "0.2 us", "mqtt_routes", ("a topic that was seen",), "{:,.3f} us"),
    Row("a route's checksum of 64 bytes", "1 us", "mqtt_routes", ("CRC of 64 bytes",), "{:,.2f} us"),
    Row(
        "a route's condition and key of JSON, a message",
        "-",
        "mqtt_routes",
        ("asked: a condition and a key of JSON",),
        "{:,.1f} us",
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
        "native client, single sends with a linger of 5 ms, one process: acknowledged",
        "400,000/s, 2x",
        "native_sends",
        ("*", "records_per_s", "sends"),
        "{:,.0f}/s",
        ("*", "records_per_s", "confluent-kafka"),
        "confluent-kafka",
        is_optional=True,
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
    *(row for name in WIRES for row in _native(native.PEERS[name])),
    *_kafka(),
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
    Row(
        "the same out of the log's files, without a broker",
        "2x",
        "spark_read",
        ("*", "rows_per_s", "files: default columns"),
        "{:,.0f}/s",
        ("*", "rows_per_s", "default columns"),
        "by the broker",
    ),
    Row(
        "Spark's rows into the broker on local[2], with keys",
        "400,000/s",
        "spark_write",
        ("*", "rows_per_s", "batch"),
        "{:,.0f}/s",
    ),
    Row(
        "job device_state, 100,000 messages into the table of 1,000,000 devices",
        "5 s",
        "spark_device_state",
        ("*", "seconds"),
        "{:,.1f} s",
    ),
    *(
        Row(
            f"MQTT publish to the row in foreachBatch at 1,000 messages/s, low_latency: {part}",
            mark,
            "spark_publish_to_visible",
            ("*", "outputs", "foreachBatch", part),
            "{:,.0f} ms",
            is_optional=True,
        )
        for part, mark in (("p50", "< 120 ms"), ("p99", "< 300 ms"))
    ),
    *_spark(),
)


def write() -> int:
    """0 when every row has a number."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN + "\n")
    old, after = rest.split(END)
    known = {(cells[0], cells[5]): cells[2:] for cells in rows_of(old)}
    lines = [HEADS, ("---",) * len(HEADS)]
    missing = []
    for row in ROWS:
        found = _measured(row) or known.get((row.work, f"`{row.benchmark}`"))
        if found is not None:
            lines.append((row.work, row.mark, *found))
        elif not row.is_optional:
            missing.append(f"{row.benchmark}: {row.work}")
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    page = f"{before}{BEGIN}\n\n{table}\n{_about()}\n{END}{after}"
    before, rest = page.split(PEERS_BEGIN + "\n")
    _, after = rest.split(PEERS_END)
    PAGE.write_text(f"{before}{PEERS_BEGIN}\n\n{peers_table()}\n{PEERS_END}{after}")
    for name in missing:
        print(f"not measured yet: {name}", file=sys.stderr)
    return 1 if missing else 0


def peers_table() -> str:
    """The peers as they are described to the benchmarks."""
    lines = ["| peer | name | from | fast | durable |", "| --- | --- | --- | --- | --- |"]
    for side, known in (("MQTT", mqtt.PEERS), ("native", native.PEERS)):
        lines += [
            f"| {peer.title} | {side}: `{peer.name}` | {peer.source.origin} "
            f"| {peer.settings[FAST]} | {peer.settings.get(DURABLE, '-')} |"
            for peer in known.values()
        ]
    return "".join(f"{line}\n" for line in lines)


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
    return [row.form.format(ours * row.scale), peer, ratio, f"`{row.benchmark}`", day]


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
