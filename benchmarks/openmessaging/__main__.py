"""The OpenMessaging Benchmark's RocketMQ and MQTT 5 drivers, unchanged, in front of iotmq and its peers.

    .venv/bin/python -m benchmarks.openmessaging --checkout DIRECTORY [--driver mqtt5] [WORKLOAD ...]

rocketmq   iotmq; RocketMQ 4.9.7's broker, with iotmq's registry
mqtt5      iotmq; Mosquitto

The benchmark is in no package registry, so it is built from a checkout of its repository, which is
openmessaging/benchmark: --checkout, or IOTMQ_OPENMESSAGING_CHECKOUT. Without one, or where it cannot be
built, nothing is measured: the reason is on standard error and the exit code is 77. Results, as the benchmark
writes them, go to benchmarks/openmessaging/results with the machine they are from. A table of them is written
there, too; --report writes it anew.

The servers are on one core, the benchmark on another. With `producerRate: 0` in a workload the benchmark
looks for the highest rate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from benchmarks import machine, peers
from benchmarks.openmessaging import report
from benchmarks.openmessaging.build import UnavailableError, build

sys.path.insert(0, str(machine.ROOT / "tests" / "oracles"))
from gateway_process import GatewayProcess
from java_process import LIBRARIES, JavaBroker

HERE: Final = Path(__file__).resolve().parent
DRIVERS: Final = HERE / "drivers"
WORKLOADS: Final = HERE / "workloads"
CHECKOUT: Final = "IOTMQ_OPENMESSAGING_CHECKOUT"
MAIN: Final = "io.openmessaging.benchmark.Benchmark"
SKIPPED: Final = 77
SEGMENT_BYTES: Final = 1 << 30
# Topics, consumers and producers come before the first minute, and all must leave after the last.
_AROUND_S: Final = 300.0
_LEAVE_S: Final = 30.0

Addresses: TypeAlias = dict[str, str]
"""What a driver has to know of a server, by the names its file has for it."""


class FailedError(Exception):
    """The benchmark has ended without a result."""


@contextlib.contextmanager
def iotmq(directory: Path) -> Iterator[Addresses]:
    """The whole gateway in one process."""
    settings = (f"store.segment_bytes={SEGMENT_BYTES}", "store.allocation_step_bytes=4194304")
    with contextlib.ExitStack() as stack:
        with on_core(machine.cores()[0]):
            gateway = stack.enter_context(GatewayProcess(directory / "data", *settings))
        yield {"namesrvAddr": gateway.registry, "serverUri": f"tcp://127.0.0.1:{gateway.mqtt_port}"}


@contextlib.contextmanager
def rocketmq(directory: Path) -> Iterator[Addresses]:
    """RocketMQ's broker, where clients learn of it from iotmq's registry."""
    if not list(LIBRARIES.glob("rocketmq-broker-*.jar")):
        raise peers.PeerError("rocketmq-broker is not installed (tools/setup.sh dev, with Maven)")
    with contextlib.ExitStack() as stack:
        with on_core(machine.cores()[0]):
            registry = stack.enter_context(GatewayProcess(directory / "registry", role="registry"))
            settings = (f"namesrvAddr={registry.registry}", f"mappedFileSizeCommitLog={SEGMENT_BYTES}")
            # It refuses what has waited for 200 ms; the benchmark counts that, and goes on without it.
            stack.enter_context(JavaBroker(directory / "data", *settings, heap="2g"))
        yield {"namesrvAddr": registry.registry}


@contextlib.contextmanager
def mosquitto(_directory: Path) -> Iterator[Addresses]:
    """Mosquitto at its fastest, which stores nothing."""
    with peers.mosquitto(core=machine.cores()[0]) as server:
        yield {"serverUri": f"tcp://127.0.0.1:{server.port}"}


Side: TypeAlias = Callable[[Path], contextlib.AbstractContextManager[Addresses]]
SIDES: Final[dict[str, dict[str, Side]]] = {
    "rocketmq": {"iotmq": iotmq, "RocketMQ": rocketmq},
    "mqtt5": {"iotmq": iotmq, "Mosquitto": mosquitto},
}
"""Driver -> the servers it is put in front of."""


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """What is started inside stays on this core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def driver_settings(driver: str, addresses: Addresses) -> str:
    """The file of a driver, with the addresses of a server."""
    document = yaml.safe_load((DRIVERS / f"{driver}.yaml").read_text())
    place = document if driver == "rocketmq" else document["client"]
    for name in place.keys() & addresses.keys():
        place[name] = addresses[name]
    return yaml.safe_dump(document, sort_keys=False)


def workload_settings(workload: str, minutes: int | None) -> str:
    """The file of a workload; with `minutes` it runs so long, without a minute to warm up."""
    text = (WORKLOADS / f"{workload}.yaml").read_text()
    if minutes is None:
        return text
    document = yaml.safe_load(text) | {"warmupDurationMinutes": 0, "testDurationMinutes": minutes}
    return yaml.safe_dump(document, sort_keys=False)


def measure(class_path: str, driver: str, side: str, workload: str, minutes: int | None) -> dict[str, Any]:
    """Start the server, have the benchmark run one workload, and return its result."""
    directory = machine.RESULTS / f"openmessaging-{os.getpid()}-{driver}-{side}-{workload}"
    directory.mkdir(parents=True)
    try:
        with SIDES[driver][side](directory) as addresses:
            files = {
                "driver": directory / "driver.yaml",
                "workload": directory / f"{workload}.yaml",
                "result": directory / "result.json",
            }
            files["driver"].write_text(driver_settings(driver, addresses))
            settings = workload_settings(workload, minutes)
            files["workload"].write_text(settings)
            document = yaml.safe_load(settings)
            within_s = 60.0 * (document["warmupDurationMinutes"] + document["testDurationMinutes"])
            run(class_path, files, within_s=within_s + _AROUND_S)
            found: dict[str, Any] = json.loads(files["result"].read_text())
            return found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(class_path: str, files: dict[str, Path], *, within_s: float) -> None:
    """Run the benchmark until its result is there; FailedError when it is not."""
    log = files["result"].with_suffix(".log")
    command = [
        "java", "-Xms512m", "-Xmx2g", "-cp", class_path, MAIN,
        "--drivers", str(files["driver"]), "--output", str(files["result"]), str(files["workload"]),
    ]  # fmt: skip
    deadline_s = time.monotonic() + within_s
    with log.open("wb") as output, on_core(machine.cores()[1]):
        process = subprocess.Popen(
            command, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        # Threads of a driver may keep it from ending: the result, once it is whole, is what to wait for.
        while process.poll() is None and time.monotonic() < deadline_s and not _is_whole(files["result"]):
            time.sleep(0.2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LEAVE_S if _is_whole(files["result"]) else 0)
    finally:
        process.kill()
        process.wait()
    if not _is_whole(files["result"]):
        raise FailedError(f"no result; it said at the end:\n{log.read_text(errors='replace')[-4_000:]}")


def _is_whole(result: Path) -> bool:
    try:
        json.loads(result.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True


def main(words: Sequence[str] | None = None) -> int:
    """0 when everything was measured, 77 when there is no benchmark, 1 when a run failed."""
    known = sorted(path.stem for path in WORKLOADS.glob("*.yaml"))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.openmessaging",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(known)}; default: all"
    )
    parser.add_argument("--checkout", type=Path, default=os.environ.get(CHECKOUT) or None)
    parser.add_argument("--driver", choices=SIDES, action="append", help="only this one")
    parser.add_argument("--minutes", type=int, help="so long, instead of what the workloads say")
    parser.add_argument("--report", action="store_true", help="run nothing; write the table of the results")
    options = parser.parse_args(words)
    for name in options.workloads:
        if name not in known:
            parser.error(f"unknown workload {name}: one of {', '.join(known)}")
    if options.minutes is not None and options.minutes < 1:
        parser.error("--minutes must be at least 1")
    if options.report:
        return report.write()
    checkout = None if options.checkout is None else options.checkout.resolve()
    try:
        class_path = build(checkout, machine.ROOT / "build" / "openmessaging")
    except UnavailableError as error:
        print(f"SKIPPED, nothing is measured: the OpenMessaging Benchmark: {error}", file=sys.stderr)
        return SKIPPED
    failed = []
    for workload in options.workloads or known:
        for driver in options.driver or SIDES:
            for side in SIDES[driver]:
                name = f"{workload}, {driver}, {side}"
                print(f"== {name}", flush=True)
                try:
                    found = measure(class_path, driver, side, workload, options.minutes)
                except (FailedError, peers.PeerError, AssertionError) as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    failed.append(name)
                else:
                    report.keep(driver, side, workload, found)
                    print(report.line(found), flush=True)
    report.write()
    if failed:
        print(f"failed: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
