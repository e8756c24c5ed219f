"""The whole journey on this machine's own measurements.

Starts the gateway in one process, connects every CPU core, disk, network interface and busy process as an
MQTT device, and consumes what they publish with a native consumer group and with two Spark jobs: statistics
of every device, and alerts, which go back to busy cores as commands. At the end counts are compared:
published, stored, consumed, read by Spark, and commands sent and received. Ends with Ctrl-C, or after
DEMO_SECONDS.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final, TextIO

from fleet import Fleet
from measurements import Machine

from iotmq.client.admin.admin import Admin
from iotmq.client.client import IotmqClient
from iotmq.client.consuming.offsets.offsets import max_offset, min_offset
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.settings import ClientSettings, PushConsumerSettings
from iotmq.errors import IotmqError

ROOT: Final = Path(__file__).resolve().parents[1]
TOPIC: Final = "telemetry"
COMMANDS: Final = "commands"
GROUP: Final = "demo-rate"

_SAMPLE_S: Final = 0.5
_GATEWAY_READY_S: Final = 30.0
_ACKNOWLEDGED_S: Final = 10.0
_CONSUMED_S: Final = 20.0
_SPARK_END_S: Final = 120.0
_COMMANDED_S: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1

# Spark itself keeps cores busy, so there is something to tell.
_ALERTS: Final = """\
bootstrap = "{bootstrap}"
topic = "{topic}"
checkpoint = "{directory}/alerts-checkpoint"
state = "{directory}/alerts-state"
report = "{directory}/alerts-report.json"
trigger = "1 second"
command_topic = "{commands}"
console = true

[[rules]]
name = "busy"
metric = "idle_percent"
below = 40
clear = 60
topic = "devices/{{device}}/commands"
raised = '{{"fan": "on", "idle_percent": {{reading}}}}'
cleared = '{{"fan": "off"}}'

[spark]
progress = false
conf = {{"spark.driver.memory" = "1g"}}
"""


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


def say(text: str) -> None:
    print(f"\033[1m==>\033[0m {text}" if sys.stdout.isatty() else f"==> {text}", flush=True)


# The parts that run ----------------------------------------------------------------------------------


class Ports:
    """Free ports for one run; taken all at once so that they differ."""

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            self.registry, self.broker, self.mqtt, self.http = (each.getsockname()[1] for each in sockets)


@contextlib.asynccontextmanager
async def child(
    name: str, *command: str, log: TextIO, shows_output: bool = False
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that ends with us: Ctrl-C in the terminal is ours alone, and our death is its end.

    What it writes goes to `log`, its standard output to a pipe when it is to be shown.
    """

    def in_child() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE if shows_output else log,
        stderr=log,
        start_new_session=True,
        preexec_fn=in_child,
    )
    try:
        yield process
    finally:
        await end(name, process, timeout_s=5.0)


async def end(name: str, process: asyncio.subprocess.Process, *, timeout_s: float) -> None:
    """SIGTERM, and SIGKILL to its whole session when that does not help."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        say(f"{name} did not stop within {timeout_s:.0f} s and is killed")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def gateway_ready(process: asyncio.subprocess.Process, ports: Ports, log: Path) -> None:
    """Wait until /readyz says so."""
    url = f"http://127.0.0.1:{ports.http}/readyz"

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=1.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    deadline_s = time.monotonic() + _GATEWAY_READY_S
    while not await asyncio.to_thread(is_ready):
        if process.returncode is not None or time.monotonic() > deadline_s:
            raise DemoError(f"the gateway did not become ready; {log} ends with:\n{tail(log)}")
        await asyncio.sleep(0.05)


class Consumer:
    """Counts what the group consumes. Every offset counts once: delivery is at least once."""

    def __init__(self) -> None:
        self._seen: dict[object, set[int]] = {}
        self.count = 0

    async def listen(self, messages: list[ReceivedMessage]) -> None:
        seen = self._seen.setdefault(messages[0].queue, set())
        before = len(seen)
        seen.update(message.queue_offset for message in messages)
        self.count += len(seen) - before


async def show_lines(process: asyncio.subprocess.Process, name: str) -> None:
    """What a child says, among our own lines."""
    assert process.stdout is not None
    while line := await process.stdout.readline():
        print(f"    {name} | {line.decode(errors='replace').rstrip()}", flush=True)


# The demo ---------------------------------------------------------------------------------------------


class Demo:
    def __init__(self, directory: Path, seconds: float | None, *, with_spark: bool) -> None:
        self._directory = directory
        self._seconds = seconds
        self._with_spark = with_spark
        self._ports = Ports()
        self._fleet = Fleet("127.0.0.1", self._ports.mqtt)
        self._consumer = Consumer()
        self._report = directory / "spark-report.json"
        self._alerts_report = directory / "alerts-report.json"
        self.stopping = asyncio.Event()

    async def run(self) -> bool:
        """True when the counts agree."""
        log = self._directory / "gateway.log"
        say("starting the gateway: registry, broker and MQTT front end in one process")
        with log.open("w") as stream:
            async with child("the gateway", *self._gateway_command(), log=stream) as gateway:
                await gateway_ready(gateway, self._ports, log)
                say(
                    f"ready: MQTT {self._ports.mqtt}, broker {self._ports.broker}, registry "
                    f"{self._ports.registry}, http://127.0.0.1:{self._ports.http}/metrics"
                )
                return await self._with_gateway(gateway, log)

    def _gateway_command(self) -> list[str]:
        route = '[{filter = "devices/+/telemetry", topic = "telemetry", key = "{1}"}]'
        settings = {
            "registry.listen_port": self._ports.registry,
            "broker.listen_port": self._ports.broker,
            "mqtt.listen_port": self._ports.mqtt,
            "http.listen_port": self._ports.http,
            "mqtt.routes": route,
        }
        pairs = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        return ["-m", "iotmq", "serve", "--data", str(self._directory / "data"), *pairs]

    async def _with_gateway(self, gateway: asyncio.subprocess.Process, log: Path) -> bool:
        async with contextlib.AsyncExitStack() as stack:
            client = IotmqClient(ClientSettings(registries=(f"127.0.0.1:{self._ports.registry}",)))
            await stack.enter_async_context(client)
            consumer = PushConsumer(
                client,
                GROUP,
                self._consumer.listen,
                settings=PushConsumerSettings(consume_from="first"),
            )
            await consumer.subscribe(TOPIC)
            await stack.enter_async_context(consumer)
            jobs: dict[str, asyncio.subprocess.Process] = {}
            if self._with_spark:
                await Admin(client).create_topic(COMMANDS)
                say("starting two Spark jobs (the first statistics and alerts take some seconds)")
                for name, command in (("spark", self._statistics()), ("alerts", self._alerts())):
                    jobs[name] = await self._start_job(stack, name, command)
            await self._publish_until_stopped(client, gateway, log, jobs)
            return await self._compare(client, jobs)

    def _alerts(self) -> list[str]:
        file = self._directory / "alerts.toml"
        file.write_text(
            _ALERTS.format(
                bootstrap=f"127.0.0.1:{self._ports.registry}",
                topic=TOPIC,
                commands=COMMANDS,
                directory=self._directory,
            )
        )
        return ["-m", "iotmq", "spark", "run", "alerts", "--config", str(file)]

    def _statistics(self) -> list[str]:
        return [
            "-m",
            "iotmq.bridge.jobs.device_statistics",
            "--bootstrap",
            f"127.0.0.1:{self._ports.registry}",
            "--topic",
            TOPIC,
            "--parquet",
            str(self._directory / "statistics"),
            "--checkpoint",
            str(self._directory / "checkpoint"),
            "--report",
            str(self._report),
            "--console",
            "--console-rows",
            "12",
            "--lateness",
            "2 seconds",  # the devices are on this machine, and so are their clocks
        ]

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    async def _start_job(
        self, stack: contextlib.AsyncExitStack, name: str, command: list[str]
    ) -> asyncio.subprocess.Process:
        stream = stack.enter_context(self._log(name).open("w"))
        process = await stack.enter_async_context(
            child(f"the Spark job ({name})", *command, log=stream, shows_output=True)
        )
        showing = asyncio.ensure_future(show_lines(process, name))
        stack.callback(showing.cancel)
        return process

    async def _publish_until_stopped(
        self,
        client: IotmqClient,
        gateway: asyncio.subprocess.Process,
        log: Path,
        jobs: dict[str, asyncio.subprocess.Process],
    ) -> None:
        how_long = f"for {self._seconds:.0f} s" if self._seconds else "until Ctrl-C"
        say(f"this machine's measurements are published {how_long}")
        machine = await asyncio.to_thread(Machine)
        began_s = next_s = last_s = time.monotonic()
        last = (0, 0)
        rounds = 0
        while not self.stopping.is_set():
            if gateway.returncode is not None:
                raise DemoError(f"the gateway ended by itself; {log} ends with:\n{tail(log)}")
            for name, job in jobs.items():
                if job.returncode is not None:
                    its_log = self._log(name)
                    raise DemoError(f"a Spark job ended by itself; {its_log} ends with:\n{tail(its_log)}")
            await asyncio.to_thread(self._publish_round, machine)
            rounds += 1
            now_s = time.monotonic()
            if rounds % 4 == 0:
                last = await self._show_rates(client, now_s - began_s, now_s - last_s, last)
                last_s = now_s
            if self._seconds and now_s - began_s >= self._seconds:
                break
            next_s = max(next_s + _SAMPLE_S, now_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(next_s - now_s):
                    await self.stopping.wait()

    def _publish_round(self, machine: Machine) -> None:
        for measurement in machine.sample():
            self._fleet.publish(measurement)

    async def _show_rates(
        self, client: IotmqClient, at_s: float, passed_s: float, last: tuple[int, int]
    ) -> tuple[int, int]:
        published, consumed = self._fleet.acknowledged_count, self._consumer.count
        stored = await stored_count(client)
        print(
            f"    {at_s:5.0f} s  {self._fleet.device_count:3} devices"
            f"   published {published:7,} ({(published - last[0]) / passed_s:5.0f}/s)"
            f"   stored {stored:7,}"
            f"   consumed {consumed:7,} ({(consumed - last[1]) / passed_s:5.0f}/s)",
            flush=True,
        )
        return published, consumed

    async def _compare(self, client: IotmqClient, jobs: dict[str, asyncio.subprocess.Process]) -> bool:
        say("stopping the devices and letting every stage catch up")
        if not await asyncio.to_thread(self._fleet.wait_acknowledged, _ACKNOWLEDGED_S):
            say(f"not every message was acknowledged within {_ACKNOWLEDGED_S:.0f} s")
        stored = await stored_count(client)
        await reaches(lambda: self._consumer.count, stored, _CONSUMED_S)
        if jobs:
            say("the Spark jobs read what is left and end")
            await asyncio.gather(
                *(end(f"the Spark job ({name})", job, timeout_s=_SPARK_END_S) for name, job in jobs.items())
            )
        commands = self._counted(self._alerts_report, "commands") if jobs else 0
        await reaches(lambda: self._fleet.command_count, commands, _COMMANDED_S)
        await asyncio.to_thread(self._fleet.close)
        counts = {
            "sent by the devices": self._fleet.sent_count,
            "published (acknowledged to the devices)": self._fleet.acknowledged_count,
            "stored in the log": stored,
            "consumed by the group": self._consumer.count,
        }
        back: dict[str, int] = {}
        if jobs:
            counts["read by Spark for statistics"] = self._counted(self._report, "rows_read")
            counts["read by Spark for alerts"] = self._counted(self._alerts_report, "rows_read")
            back = {
                "commands sent by Spark": commands,
                "commands that reached their devices": self._fleet.command_count,
            }
        for each in (counts, back):
            print()
            for name, count in each.items():
                print(f"    {name:40} {count:10,}")
        print()
        is_equal = len(set(counts.values())) == 1 and stored > 0 and len(set(back.values())) <= 1
        say("all counts agree" if is_equal else "THE COUNTS DIFFER")
        if jobs:
            files = list((self._directory / "statistics").rglob("*.parquet"))
            say(f"one-minute statistics as Parquet: {self._directory / 'statistics'} ({len(files)} files)")
        return is_equal

    def _counted(self, report: Path, name: str) -> int:
        """From the report that a job writes when it ends; 0 when it could not."""
        try:
            return int(json.loads(report.read_text()).get(name, 0))
        except (OSError, ValueError, KeyError):
            return 0


async def stored_count(client: IotmqClient) -> int:
    """What the queues of the topic hold, by their offsets."""
    route = await client.routes.find(TOPIC)
    if route is None:
        return 0
    ends = await asyncio.gather(*(max_offset(client, queue) for queue in route.readable))
    starts = await asyncio.gather(*(min_offset(client, queue) for queue in route.readable))
    return sum(ends) - sum(starts)


async def reaches(count: Callable[[], int], target: int, timeout_s: float) -> None:
    """Wait until `count()` is `target` or time is up."""
    deadline_s = time.monotonic() + timeout_s
    while count() < target and time.monotonic() < deadline_s:  # noqa: ASYNC110 - counts only grow
        await asyncio.sleep(0.05)


def tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"    (unreadable: {error})"


@contextlib.contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """One demo at a time in a directory, because each begins with an empty one."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DemoError(f"another demo is running in {directory}") from error
        yield


async def run(directory: Path, seconds: float | None, *, with_spark: bool) -> bool:
    demo = Demo(directory, seconds, with_spark=with_spark)
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def interrupted() -> None:
        if demo.stopping.is_set():
            task.cancel()  # asked twice: at once
        demo.stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    return await demo.run()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "demo", help="where its files go")
    parser.add_argument("--without-spark", action="store_true", help="leave the Spark job out")
    options = parser.parse_args()
    try:
        seconds = float(os.environ.get("DEMO_SECONDS") or 0) or None
    except ValueError:
        parser.error("DEMO_SECONDS has to be a number")
    directory = options.directory.resolve()
    try:
        with only_one(directory):
            run_directory = directory / "run"
            shutil.rmtree(run_directory, ignore_errors=True)
            run_directory.mkdir()
            agrees = asyncio.run(run(run_directory, seconds, with_spark=not options.without_spark))
    except (DemoError, IotmqError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 130
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
