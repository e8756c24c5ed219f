"""The job telemetry_windows under its first name, with options in place of a file of settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from iotmq.bridge.jobs.stream_run import Signals
from iotmq.bridge.jobs.telemetry_windows import Settings, run
from iotmq.bridge.spark_session import JavaMissingError, session

_DEFAULTS: Final = Settings(bootstrap="", topic="", checkpoint="")


class Arguments(NamedTuple):
    """Hold the options of the command line: of the job, and of the session it runs in."""

    settings: Settings
    cores: int | None
    conf: dict[str, str]


def parse_arguments(words: Sequence[str] | None = None) -> Arguments:
    """Return the command line as settings; ends the process with a message for a bad one."""
    parser = argparse.ArgumentParser(
        prog="python -m iotmq.bridge.jobs.device_statistics",
        description="Windowed statistics per device and metric, from JSON measurements.",
    )
    defaults = _DEFAULTS
    add = parser.add_argument
    add("--bootstrap", required=True, metavar="HOST:PORT", help="registries, separated by commas")
    add("--topic", required=True, help="broker topic to read")
    add("--checkpoint", required=True, metavar="DIR", help="where the job keeps its place and its state")
    add("--parquet", default="", metavar="DIR", help="where complete windows are written")
    add("--console", action="store_true", help="print complete windows")
    add("--console-rows", type=int, default=defaults.console_rows, metavar="N", help="at most N per batch")
    add("--window", default=defaults.window, help="length of a window (default: %(default)s)")
    add("--slide", default=defaults.slide, help="a window begins every ... (default: %(default)s)")
    add("--lateness", default=defaults.lateness, help="how late a record may be (default: %(default)s)")
    add("--trigger", default=defaults.trigger, help="time between batches (default: %(default)s)")
    add(
        "--device-level",
        type=int,
        default=defaults.device_level,
        metavar="N",
        help="level of the MQTT topic that names the device, from 1 (default: %(default)s)",
    )
    add("--starting-offsets", default=defaults.starting_offsets, help="earliest, latest or JSON")
    add("--rows-per-trigger-max", type=int, metavar="N", help="limit of a batch")
    add("--seconds", type=float, metavar="N", help="end after N seconds")
    add("--available-now", action="store_true", help="read what is stored, then end")
    add("--cores", type=int, metavar="N", help="tasks at once (default: one per CPU)")
    add(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be repeated",
    )
    add("--report", default="", metavar="FILE.json", help="where to write counts at the end")
    arguments = parser.parse_args(words)
    if not arguments.parquet and not arguments.console:
        parser.error("nothing would be shown or written: give --parquet, --console or both")
    if not all("=" in pair for pair in arguments.conf):
        parser.error("--conf takes NAME=VALUE")
    words_of: dict[str, Any] = vars(arguments)
    cores, conf = words_of.pop("cores"), words_of.pop("conf")
    try:
        # Checked as a file of settings would be.
        settings = msgspec.convert(words_of, Settings)
    except msgspec.ValidationError as error:
        parser.error(str(error))
    return Arguments(settings, cores, dict(pair.split("=", 1) for pair in conf))


def main(words: Sequence[str] | None = None) -> int:
    """Run the job; 0 when it caught up, 1 when it failed, 130 when it was told twice to end."""
    arguments = parse_arguments(words)
    signals = Signals()
    signals.listen()
    try:
        spark = session(
            "iotmq telemetry windows", cores=arguments.cores, profile="low_latency", conf=arguments.conf
        )
    except JavaMissingError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        return run(spark, arguments.settings, signals=signals)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
