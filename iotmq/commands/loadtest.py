"""The words of `iotmq loadtest`: a load on any MQTT broker, and the pages that show what it did."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args, get_origin, get_type_hints

from iotmq.errors import ConfigError
from iotmq.spelling import did_you_mean
from loadtest.plan_options import WORDS, add_words

if TYPE_CHECKING:
    from loadtest.runs.load_run import Options, Progress
    from loadtest.swarm.plan import Plan

_OK: Final = 0
_FAILED: Final = 1
# Signals that end a test early, with its result.
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_SOURCES_MAX: Final = 254


def add_loadtest_actions(command: argparse.ArgumentParser) -> None:
    """Add the actions of `loadtest`."""
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_run(actions)
    report = actions.add_parser(
        "report",
        help="write the page of a result, or of two side by side",
        description="Write one HTML page that shows a result of `run --json`, or compares two.",
    )
    report.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    report.add_argument("--output", type=Path, default=Path("loadtest.html"), metavar="FILE.html",
                        help="where to (loadtest.html)")  # fmt: skip
    report.set_defaults(command=_report)
    _add_own_speed(actions)


def _add_run(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = actions.add_parser(
        "run",
        help="connect devices, publish, and say what happened",
        description="Connect devices, publish, and say what happened. Templates: %i or {n} is the number of "
        "a device, %c its client id, %u its user name, {kind} pub, sub or idle; in topics %s is the number "
        "of the message; in payloads %s too, %t the time in milliseconds, and %x the stamp that subscribers "
        "check. "
        "Exit codes: 0 all is well, 1 something was lost, refused or too slow, 2 it could not be done.",
    )
    run.add_argument("--plan", type=Path, metavar="FILE.toml",
                     help="take settings from this file; options win")  # fmt: skip
    run.add_argument("--name", default="load test", help="what reports call it (load test)")
    run.add_argument(
        "--processes", type=int, default=1, metavar="N", help="processes that share the work (1)"
    )
    run.add_argument("--core", type=int, action="append", default=[], metavar="N",
                     help="pin the processes to this processor core; may be repeated")  # fmt: skip
    run.add_argument("--server-pid", type=int, metavar="PID",
                     help="measure this process and its children, too")  # fmt: skip
    run.add_argument("--p99-ms", type=float, metavar="MILLISECONDS", help="a longer p99 is a failure")
    run.add_argument("--prometheus", type=int, metavar="PORT",
                     help="serve /metrics on 127.0.0.1 meanwhile; 0 takes a free port")  # fmt: skip
    run.add_argument("--json", dest="json_file", type=Path, metavar="FILE.json",
                     help="write the result there; - prints it")  # fmt: skip
    run.add_argument("--html", dest="html_file", type=Path, metavar="FILE.html", help="write a page there")
    run.add_argument("--quiet", action="store_true", help="print no progress")
    for title, words in WORDS.items():
        add_words(run.add_argument_group(title), words)
    run.set_defaults(command=_run)


def _types() -> dict[str, Any]:
    """The types of a plan's fields."""
    from loadtest.swarm.plan import Plan

    return get_type_hints(Plan)


def _plain_type(kind: Any) -> type:
    """The type of a value that may be None, or of the items of a tuple."""
    plain: type = next((each for each in get_args(kind) if each not in (type(None), ...)), kind)
    return plain


def _add_own_speed(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sink = actions.add_parser("sink", help="a server that acknowledges and discards, for trying a load")
    sink.add_argument("--port", type=int, default=0, metavar="PORT", help="0 takes a free one (0)")
    sink.add_argument("--relay", action="store_true", help="hand every message to every subscriber")
    sink.add_argument("--seconds", type=float, default=3_600.0, metavar="SECONDS", help="ends then (3600)")
    sink.add_argument("--core", type=int, metavar="N", help="pin to this processor core")
    sink.set_defaults(command=_sink)
    calibrate = actions.add_parser(
        "calibrate", help="how fast the load generator itself is, against the sink"
    )
    calibrate.add_argument("--core", type=int, metavar="N", help="pin to this processor core")
    calibrate.add_argument("--sink-core", type=int, metavar="N", help="pin the sink to this one")
    calibrate.add_argument(
        "--payload-bytes", type=int, default=100, metavar="N", help="bytes of a payload (100)"
    )
    calibrate.add_argument("--seconds", type=float, default=2.0, metavar="SECONDS", help="of each load (2)")
    calibrate.set_defaults(command=_calibrate)


def _sink(options: argparse.Namespace) -> int:
    from loadtest.swarm.errors import SwarmError
    from loadtest.swarm.own_speed import serve_sink

    try:
        return serve_sink(
            port=options.port, has_relay=options.relay, seconds=options.seconds, core=options.core
        )
    except SwarmError as error:
        raise ConfigError(str(error)) from error


def _calibrate(options: argparse.Namespace) -> int:
    from loadtest.swarm.errors import SwarmError
    from loadtest.swarm.own_speed import calibrate

    try:
        return calibrate(
            payload_bytes=options.payload_bytes,
            seconds=options.seconds,
            core=options.core,
            sink_core=options.sink_core,
        )
    except SwarmError as error:
        raise ConfigError(str(error)) from error


# Running ------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from loadtest.reports.page import report_page
    from loadtest.runs.live_metrics import LiveMetrics
    from loadtest.runs.load_run import LoadRun, Options
    from loadtest.runs.result import write_result
    from loadtest.swarm.errors import SwarmError

    metrics: LiveMetrics | None = None
    for path in (options.html_file, options.json_file):
        _check_writable(path)

    def watch(progress: Progress) -> None:
        if metrics is not None:
            metrics.show(progress)
        if not options.quiet:
            print(_progress_line(progress), file=sys.stderr)

    try:
        run = LoadRun(_plan(options), _options(options, Options), watch=watch)
        if options.prometheus is not None:
            metrics = LiveMetrics(options.prometheus)
            print(f"metrics: http://127.0.0.1:{metrics.port}/metrics", file=sys.stderr)
        before = {number: signal.signal(number, lambda *_: run.stop()) for number in _ENDING}
        try:
            result = run.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if metrics is not None:
                metrics.close()
    except SwarmError as error:
        raise ConfigError(str(error)) from error
    if options.html_file is not None:
        options.html_file.write_text(report_page([result]))
    if options.json_file is not None and str(options.json_file) == "-":
        print(json.dumps(result))
    else:
        _show(result)
        if options.json_file is not None:
            write_result(result, options.json_file)
    return _FAILED if result["verdict"] else _OK


def _plan(options: argparse.Namespace) -> Plan:
    """The plan of a file, and of the options that were given."""
    from loadtest.swarm.plan import Plan

    types = _types()
    given: dict[str, Any] = {"answer_timeout_s": 30.0, "measures_acks": True}
    if options.plan is not None:
        given |= _plan_file(options.plan, types)
    given |= {
        field.name: getattr(options, field.name) for field in fields(Plan) if hasattr(options, field.name)
    }
    if "password" not in given and "IOTMQ_LOADTEST_PASSWORD" in os.environ:
        given["password"] = os.environ["IOTMQ_LOADTEST_PASSWORD"]
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    given["source_addresses"] = _addresses(given.get("source_addresses", ()))
    return Plan(**given)


def _check_writable(path: Path | None) -> None:
    """Refuse a file that could not be written when the test is over."""
    if path is None or str(path) == "-":
        return
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _plan_file(path: Path, types: dict[str, Any]) -> dict[str, Any]:
    """The fields of a file, each of its type. ConfigError names one that is not."""
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    for name, value in given.items():
        if name not in types:
            raise ConfigError(
                f"{path}: a plan has no {name!r}{did_you_mean(name, {each: each for each in types})}"
            )
        plain = _plain_type(types[name])
        is_list = get_origin(types[name]) is tuple
        if is_list and not isinstance(value, list):
            raise ConfigError(f"{path}: {name} is a list, not {value!r}")
        values = value if is_list else [value]
        for each in values:
            is_number = plain is float and isinstance(each, int) and not isinstance(each, bool)
            if type(each) is not plain and not is_number:
                raise ConfigError(f"{path}: {name} is {plain.__name__}, not {each!r}")
    return given


def _addresses(given: tuple[str, ...]) -> tuple[str, ...]:
    """Addresses, with FIRST-LAST spelled out. ConfigError for others."""
    import ipaddress

    addresses: list[str] = []
    for text in given:
        first, _, last = text.partition("-")
        try:
            low, high = ipaddress.IPv4Address(first), ipaddress.IPv4Address(last or first)
        except ValueError as error:
            raise ConfigError(f"source address {text!r}: {error}") from error
        if not 0 <= int(high) - int(low) < _SOURCES_MAX:
            raise ConfigError(
                f"source address {text!r} is not FIRST-LAST with at most {_SOURCES_MAX} of them"
            )
        addresses += [str(low + i) for i in range(int(high) - int(low) + 1)]
    return tuple(addresses)


def _options(options: argparse.Namespace, kind: type[Options]) -> Options:
    return kind(
        name=options.name,
        processes=options.processes,
        cores=tuple(options.core),
        server_pid=options.server_pid,
        p99_ms_max=options.p99_ms,
    )


# Telling ------------------------------------------------------------------------------------------------


def _progress_line(progress: Progress) -> str:
    """One line a second."""
    counters, latencies = progress.counters, progress.tick["latencies"]
    times = latencies.get("delivery") or latencies.get("acknowledgement")
    words = [
        f"{progress.tick['at_s']:6.1f} s {progress.phase:8}",
        f"{counters.get('ready', 0):,} connected",
        f"{counters.get('published', 0):,} published",
        f"{counters.get('delivered', 0):,} delivered",
    ]
    if times:
        words.append(f"p99 {times['p99_ns'] / 1e6:.2f} ms")
    if lost := counters.get("lost", 0) + counters.get("failed", 0):
        words.append(f"{lost:,} lost or failed")
    return ", ".join(words)


def _show(result: dict[str, Any]) -> None:
    """The result in a few lines."""
    connect, rates = result["connect"], result["rates"]
    print(f"connections: {connect['ready']:,} of {connect['wanted']:,} in {connect['seconds']:.2f} s")
    if result["counters"].get("published"):
        planned = result["plan"]["rate_per_s"]
        print(
            f"published {rates['published_per_s']:,.0f}/s{f' of {planned:,}/s' if planned else ''}, "
            f"acknowledged {rates['acknowledged_per_s']:,.0f}/s, "
            f"delivered {rates['delivered_per_s']:,.0f}/s for {result['measured_s']:.1f} s"
        )
    for name, times in result["latencies"].items():
        if times["count"]:
            print(
                f"{name}: p50 {times['p50_ns'] / 1e6:.3f} ms, p99 {times['p99_ns'] / 1e6:.3f} ms, "
                f"p99.9 {times['p999_ns'] / 1e6:.3f} ms, max {times['max_ns'] / 1e6:.3f} ms "
                f"({times['count']:,.0f})"
            )
    for group, kinds in result["ends"].items():
        for kind, count in kinds.items():
            print(f"{group}: {count:,} {kind}")
    if result["tls_error"]:
        print(f"tls: {result['tls_error']}")
    for sentence in result["notes"]:
        print(f"note: {sentence}")
    for sentence in result["verdict"] or ["nothing was lost, repeated or refused"]:
        print(sentence)


def _report(options: argparse.Namespace) -> int:
    from loadtest.reports.page import report_page
    from loadtest.runs.result import read_result
    from loadtest.swarm.errors import SwarmError

    if len(options.results) > 2:
        raise ConfigError(f"a page shows one result or compares two, not {len(options.results)}")
    _check_writable(options.output)
    try:
        results = [read_result(path) for path in options.results]
    except SwarmError as error:
        raise ConfigError(str(error)) from error
    if len(results) == 2 and results[0]["name"] == results[1]["name"]:
        results = [
            result | {"name": f"{result['name']} ({path.stem})"}
            for result, path in zip(results, options.results, strict=True)
        ]
    options.output.write_text(report_page(results))
    print(f"wrote {options.output}")
    return _OK
