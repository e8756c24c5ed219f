"""The page docs/explanation/scaling.md: its tables and pictures, from what the benchmarks have kept.

`python -m benchmarks --report` writes it. The numbers are kept beside it, so that the page can be written
anew on a machine that has measured nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from benchmarks import machine
from benchmarks._deployment import Costs, Deployment, Load, Rules, deployment
from benchmarks.mqtt_scale import (
    BARE_MARK_BYTES,
    BY_CONNECTIONS,
    BY_WORKERS,
    P99_MARK_MS,
    RATE_PER_S,
    SEVERAL_BROKERS,
    SUBSCRIBED_MARK_BYTES,
)
from loadtest.reports.charts import Axis, Line, picture

PAGE: Final = machine.ROOT / "docs" / "explanation" / "scaling.md"
FOLDER: Final = PAGE.with_suffix("")
KEPT: Final = FOLDER / "measured.json"
STORM_MARK_PER_S: Final = 10_000
# Of each benchmark what the page needs; None: all that it has kept.
SOURCES: Final[dict[str, tuple[str, ...] | None]] = {
    "mqtt_scale": tuple(map(str, {*BY_CONNECTIONS, *BY_WORKERS, SEVERAL_BROKERS})),
    "mqtt_sessions_connected": ("1000000 sessions, 100000 connected",),
    "mqtt_reconnect_storm": ("storm, 8 workers",),
    "broker_produce": None,
    "broker_pull": None,
}

Measured = dict[str, dict[str, Any]]


def typical(devices: int) -> Load:
    """Every device has one filter, publishes once a minute and gets a command an hour."""
    return Load(
        name="telemetry and commands",
        devices=devices,
        subscribed=1.0,
        kept=0.0,
        stored_per_s=devices / 60,
        delivered_per_s=devices / 3_600,
        payload_bytes=100,
        keep_alive_s=300,
    )


def kept(devices: int) -> Load:
    """The same with kept sessions."""
    return typical(devices)._replace(name="the same, kept sessions", kept=1.0)


def pairs(devices: int) -> Load:
    """The load of EMQX's test: half subscribe a wildcard each, the others publish to them every 90 s."""
    return Load(
        name="pairs, as EMQX",
        devices=devices,
        subscribed=0.5,
        kept=0.0,
        stored_per_s=0.0,
        delivered_per_s=devices / 2 / 90,
        payload_bytes=256,
        keep_alive_s=300,
        exact=0.0,
    )


def trackers(devices: int) -> Load:
    """The load of TBMQ's test: all publish every 33 s, and services read everything."""
    return Load(
        name="trackers, as TBMQ",
        devices=devices,
        subscribed=0.0,
        kept=0.0,
        stored_per_s=devices * 0.03,
        delivered_per_s=0.0,
        payload_bytes=114,
        keep_alive_s=300,
    )


LOADS: Final[tuple[Callable[[int], Load], ...]] = (typical, kept, pairs, trackers)
DEVICES: Final = (1_000_000, 25_000_000, 100_000_000)


class Unit(NamedTuple):
    """Describe one number of `Costs` for people: what it is, and which script measured it."""

    text: str
    form: str
    command: str


UNITS: Final[dict[str, Unit]] = {
    "worker_bytes": Unit("a worker without devices, its part of the supervisor included", "MB", "mqtt_scale"),
    "bare_bytes": Unit("a connected device, in its worker", "B", "mqtt_scale"),
    "subscribed_bytes": Unit("the same with one subscription", "B", "mqtt_scale"),
    "kernel_bytes": Unit("the server's end of a connection, in the kernel", "B", "mqtt_scale"),
    "broker_bytes": Unit("a broker, before the first device", "MB", "mqtt_scale"),
    "connected_bytes": Unit("a connected device without a kept session, at each broker", "B", "mqtt_scale"),
    "filter_bytes": Unit("its filter, at each broker that has it", "B", "mqtt_scale"),
    "session_bytes": Unit("a kept session with one filter, at each broker", "B", "mqtt_sessions_connected"),
    "kept_connected_bytes": Unit("the same while connected, added to it", "B", "mqtt_sessions_connected"),
    "channel_bytes": Unit("a front end, at each broker", "MB", "mqtt_scale"),
    "channel_cores": Unit("the same, while nothing happens", "core", "mqtt_scale"),
    "connect_us": Unit("CONNECT and SUBSCRIBE, in the front end", "us", "mqtt_scale"),
    "connect_more_us": Unit("the same, for each broker past the first", "us", "mqtt_scale"),
    "connect_broker_us": Unit("the same, at each broker", "us", "mqtt_scale"),
    "ping_us": Unit("PINGREQ", "us", "mqtt_scale"),
    "stored_us": Unit("a message to the log (QoS 1), in the front end", "us", "mqtt_scale"),
    "stored_broker_us": Unit("the same in the broker, each in a request of its own", "us", "broker_produce"),
    "delivered_us": Unit(
        "a message to the log and to one device (QoS 1), in the front ends", "us", "mqtt_scale"
    ),
    "delivered_broker_us": Unit("the same in the broker", "us", "broker_produce, mqtt_scale"),
    "consumed_us": Unit("a stored message read by a service, in the broker", "us", "broker_pull"),
    "record_bytes": Unit("a message in the log, beside its payload", "B", "mqtt_scale"),
}
_SCALES: Final = {"MB": 1e-6}
_FORMS: Final = {"B": "{:,.0f} bytes", "MB": "{:,.1f} MB", "us": "{:,.1f} us", "core": "{:.5f} of a core"}


def costs(measured: Measured) -> Costs:
    """What one of each thing costs."""
    scale = measured["mqtt_scale"]
    large, small = scale[str(BY_CONNECTIONS[-1])], scale[str(BY_CONNECTIONS[0])]
    one_worker, many_workers = scale[str(BY_WORKERS[0])], scale[str(BY_WORKERS[-1])]
    more_workers: int = many_workers["workers"] - one_worker["workers"]
    several = scale[str(SEVERAL_BROKERS)]
    sessions = next(iter(measured["mqtt_sessions_connected"].values()))
    bare, subscribed = large["bare"], large["subscribed"]
    # Messages that come together share what their request costs. In a large installation each front end has
    # few messages for each broker, so each is counted as a request of its own.
    request_us = measured["broker_produce"]["results"]["single"]["broker_us_per_request"]["median"]
    pull = measured["broker_pull"]["results"]["1,024 per pull"]

    def a_worker_more(value: Callable[[dict[str, Any]], float]) -> float:
        return max(0.0, float(value(many_workers) - value(one_worker)) / more_workers)

    return Costs(
        worker_bytes=many_workers["worker_bytes"],
        bare_bytes=bare["front_end_bytes"],
        subscribed_bytes=subscribed["front_end_bytes"],
        kernel_bytes=max(bare["kernel_bytes"], subscribed["kernel_bytes"]),
        broker_bytes=small["broker_empty_bytes"],
        connected_bytes=bare["broker_bytes"],
        filter_bytes=max(0.0, subscribed["broker_bytes"] - bare["broker_bytes"]),
        session_bytes=sessions["broker_bytes_a_session"],
        kept_connected_bytes=sessions["back"]["broker_bytes"],
        channel_bytes=a_worker_more(lambda point: point["broker_empty_bytes"]),
        channel_cores=a_worker_more(lambda point: point["quiet"]["broker_cores"]),
        connect_us=subscribed["front_ends_us"],
        connect_more_us=max(
            0.0,
            (several["subscribed"]["front_ends_us"] - many_workers["subscribed"]["front_ends_us"])
            / (several["brokers"] - 1),
        ),
        connect_broker_us=subscribed["broker_us"],
        ping_us=large["quiet"]["front_ends_us_a_ping"],
        stored_us=large["stored"]["front_ends_us"],
        stored_broker_us=request_us,
        delivered_us=large["delivered"]["front_ends_us"],
        delivered_broker_us=request_us
        + max(0.0, large["delivered"]["broker_us"] - large["stored"]["broker_us"]),
        consumed_us=pull["broker_us_per_pull"]["median"] / 1_024,
        record_bytes=large["log_bytes_a_message"] - large["payload_bytes"],
    )


def write() -> int:
    """Keep what was measured, and write tables and pictures. 1 when something was never measured."""
    measured, missing = gathered(json.loads(KEPT.read_text()) if KEPT.exists() else {})
    if missing:
        print(f"docs/explanation/scaling.md stays: not measured yet: {', '.join(missing)}")
        return 1
    FOLDER.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(measured, indent=1) + "\n")
    PAGE.write_text(written(PAGE.read_text(), measured))
    for name, text in pictures(measured).items():
        (FOLDER / name).write_text(text)
    return 0


def gathered(kept: Measured) -> tuple[Measured, list[str]]:
    """What is kept, with all that was measured since; and what is nowhere."""
    measured: Measured = {}
    missing = []
    for name, wanted in SOURCES.items():
        file = machine.RESULTS / f"{name}.json"
        found = json.loads(file.read_text()) if file.exists() else {}
        known = kept.get(name, {}) | found
        names = sorted(known) if wanted is None else sorted(wanted)
        measured[name] = {each: known[each] for each in names if each in known}
        missing += [f"{name}: {each}" for each in names if each not in known]
        if not names:
            missing.append(name)
    return measured, missing


def written(page: str, measured: Measured) -> str:
    """The page with all its tables made anew."""
    for name, table in (
        ("one machine", _one_machine(measured)),
        ("curves", _curves(measured)),
        ("costs", _costs(costs(measured))),
        ("deployments", _deployments(costs(measured))),
    ):
        begin = f"<!-- {name}: written by `python -m benchmarks --report` -->\n"
        end = f"<!-- end of {name} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{table}\n{end}{after}"
    return page


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))


def _one_machine(measured: Measured) -> str:
    large = measured["mqtt_scale"][str(BY_CONNECTIONS[-1])]
    sessions = next(iter(measured["mqtt_sessions_connected"].values()))
    storm = next(iter(measured["mqtt_reconnect_storm"].values()))
    delivered, back = large["delivered"], sessions["back"]
    held, wrong = f"{large['connections']:,} connections", _wrong(large["wrong"])
    rows = [
        (f"{held}: lost, repeated, not acknowledged", "0", wrong),
        (f"messages a second among them, {RATE_PER_S:,} planned", "", f"{delivered['messages_per_s']:,.0f}"),
        ("p99 end to end", f"{P99_MARK_MS:.0f} ms", f"{large['latency_ms']['delivery p99']:.1f} ms"),
        (
            "front end: a bare connection",
            f"{BARE_MARK_BYTES:,.0f} bytes",
            f"{large['bare']['front_end_bytes']:,.0f} bytes",
        ),
        (
            "front end: a connection with one subscription",
            f"{SUBSCRIBED_MARK_BYTES:,.0f} bytes",
            f"{large['subscribed']['front_end_bytes']:,.0f} bytes",
        ),
        (
            "processor time: front ends; broker; load",
            "",
            f"{_cores(delivered, 'front_ends_us')}; {_cores(delivered, 'broker_us')}; "
            f"{delivered['load_cores']:.2f} cores",
        ),
        (
            f"{sessions['sessions']:,} kept sessions, {sessions['connected']:,} connected: lost, repeated",
            "0",
            _wrong(sessions["wrong"]),
        ),
        ("a session at the broker", "", f"{sessions['broker_bytes_a_session']:,.0f} bytes"),
        (
            "a connected one: front end; more at the broker",
            "",
            f"{back['front_end_bytes']:,.0f}; {back['broker_bytes']:,.0f} bytes",
        ),
        ("start of the broker with them", "", f"{sessions['start_s']:.1f} s"),
        (
            f"{storm['sessions']:,} kept sessions come back: a second",
            f"{STORM_MARK_PER_S:,}",
            f"{storm['per_s']:,.0f}",
        ),
        ("lost, repeated, without their session", "0", _wrong(storm["wrong"])),
    ]
    about = large["machine"]
    machine_was = f"{about['cores']} cores, {about['processor']}, Linux {about['kernel']}"
    return _table(("work", "to reach", "measured"), rows) + f"\n{about['time'][:10]}, {machine_was}.\n"


def _cores(messages: dict[str, float], name: str) -> str:
    return f"{messages['messages_per_s'] * messages[name] / 1e6:.2f}"


def _wrong(wrong: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in wrong.items() if count) or "0"


def _curves(measured: Measured) -> str:
    heads = (
        "workers", "connections", "bare, bytes", "subscribed, bytes", "kernel, bytes", "broker, bytes",
        "CONNECT, us", "with SUBSCRIBE, us", "command: front ends, us", "broker, us", "p50, ms", "p99, ms",
    )  # fmt: skip
    rows = []
    for point in (*BY_CONNECTIONS, *BY_WORKERS[:-1]):
        found = measured["mqtt_scale"][str(point)]
        bare, subscribed, delivered = found["bare"], found["subscribed"], found["delivered"]
        values = (
            found["workers"], found["connections"], bare["front_end_bytes"], subscribed["front_end_bytes"],
            subscribed["kernel_bytes"], subscribed["broker_bytes"], bare["front_ends_us"],
            subscribed["front_ends_us"],
        )  # fmt: skip
        rows.append(
            [f"{value:,.0f}" for value in values]
            + [f"{delivered[name]:.1f}" for name in ("front_ends_us", "broker_us")]
            + [f"{found['latency_ms'][name]:.1f}" for name in ("delivery p50", "delivery p99")]
        )
    return _table(heads, rows)


def _costs(found: Costs) -> str:
    rows = []
    for name, unit in UNITS.items():
        shown = _FORMS[unit.form].format(getattr(found, name) * _SCALES.get(unit.form, 1.0))
        rows.append((unit.text, shown, ", ".join(f"`{each}`" for each in unit.command.split(", "))))
    return _table(("what", "costs", "benchmark"), rows)


def _deployments(found: Costs) -> str:
    heads = (
        "load", "devices", "front-end workers", "brokers", "registries", "cores", "memory, GiB",
        "of each broker, GiB", "the same with exact filters at one broker", "log of each broker, MB/s",
        "disk for a day, TB", "all are back in",
    )  # fmt: skip
    rows = []
    for load in LOADS:
        for devices in DEVICES:
            now = deployment(load(devices), found, Rules())
            better = deployment(load(devices), found, Rules(exact_filters_everywhere=False))
            rows.append(list(_deployment_cells(load(devices), now, better)))
    return _table(heads, rows)


def _deployment_cells(load: Load, now: Deployment, better: Deployment) -> Iterator[str]:
    yield load.name
    yield f"{load.devices // 1_000_000} M"
    yield from (f"{count:,}" for count in (now.workers, now.brokers, now.registries))
    yield f"{now.front_end_cores:,.0f} + {now.broker_cores:,.0f}"
    yield f"{now.front_end_gib:,.0f} + {now.kernel_gib:,.0f} + {now.broker_gib:,.0f}"
    yield f"{now.broker_each_gib:,.1f}"
    yield f"{better.broker_each_gib:,.1f}"
    yield f"{now.log_mb_per_s:,.0f}"
    yield f"{now.disk_tb:,.1f}"
    yield _duration(now.return_s)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def pictures(measured: Measured) -> dict[str, str]:
    """Files of SVG by their names."""
    scale = measured["mqtt_scale"]

    def lines(
        points: Sequence[object], along: str, values: dict[str, Callable[[dict[str, Any]], float]]
    ) -> list[Line]:
        found = [scale[str(point)] for point in points]
        return [
            Line(label, [(point[along], value(point)) for point in found], colour)
            for colour, (label, value) in enumerate(values.items())
        ]

    memory: dict[str, Callable[[dict[str, Any]], float]] = {
        "front end, bare": lambda point: point["bare"]["front_end_bytes"],
        "front end, one subscription": lambda point: point["subscribed"]["front_end_bytes"],
        "kernel, the server's end": lambda point: point["subscribed"]["kernel_bytes"],
        "broker, one subscription": lambda point: point["subscribed"]["broker_bytes"],
    }
    processor: dict[str, Callable[[dict[str, Any]], float]] = {
        "front ends": lambda point: point["delivered"]["front_ends_us"],
        "broker": lambda point: point["delivered"]["broker_us"],
    }
    latency: dict[str, Callable[[dict[str, Any]], float]] = {
        "p50": lambda point: point["latency_ms"]["delivery p50"],
        "p99": lambda point: point["latency_ms"]["delivery p99"],
    }
    connections, workers = Axis("", is_logarithmic=True), Axis("")
    by_connections = (BY_CONNECTIONS, "connections")
    by_workers = (BY_WORKERS, "workers")
    return {
        "memory-by-connections.svg": picture(
            "Memory of a connection, by connections", "bytes", lines(*by_connections, memory), connections
        ),
        "time-by-connections.svg": picture(
            "Processor time of a command, by connections",
            "us",
            lines(*by_connections, processor),
            connections,
        ),
        "latency-by-connections.svg": picture(
            "Publisher to subscriber, by connections",
            "ms",
            lines(*by_connections, latency),
            connections,
            is_logarithmic=True,
        ),
        "time-by-workers.svg": picture(
            "Processor time of a command, by workers", "us", lines(*by_workers, processor), workers
        ),
        "latency-by-workers.svg": picture(
            "Publisher to subscriber, by workers",
            "ms",
            lines(*by_workers, latency),
            workers,
            is_logarithmic=True,
        ),
    }
