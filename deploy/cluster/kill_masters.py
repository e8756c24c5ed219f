"""Kill the master of a local cluster again and again under load, and count what was lost: nothing may be.

    python deploy/cluster/kill_masters.py [--rounds 5] [--how kill|stop|hand-over] [--rate 100000]

MQTT devices publish numbered messages (QoS 1) by way of the front ends all the time, and a consumer group
reads them. In every round the master is killed (SIGKILL), stopped as a dead host would be (SIGSTOP), or asked
to hand over, and started again. At the end every message that was acknowledged must have been received, and
in its device's order; messages that came twice are counted. For each round it prints how long nothing was
acknowledged. With --rate the load generator publishes so many messages a second more, to a topic of their
own, and at the end that many have to be stored as it got acknowledgements for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from replicated_cluster import ROOT, ClusterError, ReplicatedCluster, eventually

from iotmq.client import ClientSettings, IotmqClient, PushConsumer, PushConsumerSettings, ReceivedMessage
from iotmq.client.admin.admin import Admin
from iotmq.errors import IotmqError
from iotmq.mqtt.client.session import OutgoingMessage
from iotmq.mqtt_client.address import Address
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.settings import MqttClientSettings
from iotmq.remoting.codes import RequestCode

_TOPIC: Final = "mqtt"
_WINDOW: Final = 20
_SETTLE_S: Final = 1.0
_HAND_OVER_S: Final = 2.0
_RECEIVED_S: Final = 60.0
_STORM_TOPIC: Final = "storm"
_STORM_FRONT_END: Final = {"routes": [{"filter": "storm/#", "topic": _STORM_TOPIC}]}
_STORM_DEVICES: Final = 100


class Acknowledgement(NamedTuple):
    """When a message was acknowledged, by the monotonic clock."""

    at_s: float
    device: int
    number: int


class Load:
    """Devices and a consumer on an event loop in a thread of its own."""

    def __init__(
        self, cluster: ReplicatedCluster, devices: int, pause_s: float, *, name: str = "kill-masters"
    ) -> None:
        """`name` is that of the group, and of no other load the cluster has had."""
        self._cluster = cluster
        self._name = name
        self._count = devices
        self._pause_s = pause_s
        self.acknowledged: list[Acknowledgement] = []
        self.refused = 0
        self.disconnects = 0
        self.sent = [0] * devices
        self.received: list[list[int]] = [[] for _ in range(devices)]
        self._drained_count = 0
        self._stopping: asyncio.Event | None = None
        self._publishing: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.failure: BaseException | None = None
        self.is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Return when all devices publish."""
        self._thread.start()
        if not self.is_ready.wait(30.0) or self.failure is not None:
            raise ClusterError(f"the load did not start: {self.failure}")

    def end_publishing(self) -> None:
        """Publish nothing more; return when what was sent is acknowledged, and received if it was stored."""
        assert self._loop is not None
        assert self._publishing is not None
        self._loop.call_soon_threadsafe(self._publishing.set)
        eventually(lambda: self._drained_count == self._count, "all is acknowledged", within_s=_RECEIVED_S)
        acknowledged = len({(each.device, each.number) for each in self.acknowledged})
        eventually(lambda: self.received_count >= acknowledged, "all is received", within_s=_RECEIVED_S)

    def stop(self) -> None:
        """End everything. ClusterError when it has failed before."""
        assert self._loop is not None
        assert self._stopping is not None
        with contextlib.suppress(RuntimeError):
            # The loop is closed when the load has failed.
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(30.0)
        if self.failure is not None:
            raise ClusterError("the load failed") from self.failure

    @property
    def received_count(self) -> int:
        """How many different messages were received."""
        return sum(len(set(numbers)) for numbers in self.received)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.failure = error
            self.is_ready.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping, self._publishing = asyncio.Event(), asyncio.Event()
        async with IotmqClient(ClientSettings(registries=self._cluster.registries)) as client:
            consumer = PushConsumer(
                client, self._name, self._receive, settings=PushConsumerSettings(consume_from="first")
            )
            await consumer.subscribe(_TOPIC)
            async with consumer, asyncio.TaskGroup() as tasks:
                devices = [tasks.create_task(self._device(number)) for number in range(self._count)]
                self.is_ready.set()
                await self._stopping.wait()
                for device in devices:
                    device.cancel()

    async def _receive(self, messages: list[ReceivedMessage]) -> None:
        for message in messages:
            name, device, number = message.body.split(b"/")
            if name == self._name.encode():
                self.received[int(device)].append(int(number))

    async def _device(self, device: int) -> None:
        assert self._publishing is not None
        port = self._cluster.mqtt_ports[device % len(self._cluster.mqtt_ports)]
        settings = MqttClientSettings(
            address=Address("mqtt", "127.0.0.1", port),
            client_id=f"{self._name}-{device}",
            in_flight_max=_WINDOW,
        )
        topic = f"devices/{device}/telemetry".encode()

        def finish(number: int) -> Callable[[object], None]:
            def acknowledged(result: object) -> None:
                if getattr(result, "code", 0):
                    self.refused += 1
                else:
                    self.acknowledged.append(Acknowledgement(time.monotonic(), device, number))

            return acknowledged

        def changed(text: str) -> None:
            self.disconnects += "lost" in text

        async with MqttClient(settings, on_change=changed) as client:
            while not self._publishing.is_set():
                await client.room()
                number = self.sent[device]
                self.sent[device] += 1
                payload = b"%s/%d/%d" % (self._name.encode(), device, number)
                client.send(OutgoingMessage(topic, payload, qos=1, token=finish(number)))
                await asyncio.sleep(self._pause_s)
            await client.drain()
            self._drained_count += 1


class Storm:
    """`with` has a process publish at a rate, at planned times; what is stored of it is counted, not read."""

    def __init__(self, cluster: ReplicatedCluster, rate_per_s: int) -> None:
        self._cluster = cluster
        self._rate_per_s = rate_per_s
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.counters: dict[str, int] = {}
        """Totals of the load generator, by its names."""
        self.waited_most_s = 0.0
        """The longest time from when a message was to be sent to its acknowledgement."""

    def __enter__(self) -> Self:
        if not self._rate_per_s:
            return self
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.swarm", "driven"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        plan = {
            "port": self._cluster.mqtt_ports[0],
            "publishers": _STORM_DEVICES,
            "client_id": "storm-{n}",
            "topic": "storm/{n}",
            "rate_per_s": self._rate_per_s,
            "reconnects": True,
            "drain_timeout_s": 30.0,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        self._reader.start()
        eventually(lambda: self.counters.get("acknowledged"), "the load generator publishes")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._reader.join(60.0)
            self._process.kill()
            self._process.wait()

    def stored_count(self) -> int:
        """How many of its messages are stored."""

        async def ask() -> int:
            async with IotmqClient(ClientSettings(registries=self._cluster.registries)) as client:
                offsets = await Admin(client).offsets(_STORM_TOPIC)
                return sum(queue.end for queue in offsets.values())

        return asyncio.run(ask()) if self._process is not None else 0

    def check(self) -> bool:
        """Print the counts; whether everything acknowledged is stored."""
        if self._process is None:
            return True
        acknowledged, stored = self.counters["acknowledged"], self.stored_count()
        print(f"of the load generator: {self.counters['published']:,} sent, {acknowledged:,} acknowledged,")
        print(
            f"  {stored:,} stored; lost connections: {self.counters['lost']:,}; "
            f"longest wait for an acknowledgement {self.waited_most_s * 1000:.0f} ms"
        )
        return stored >= acknowledged

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            report: dict[str, Any] = json.loads(line)
            if report["state"] == "refused":
                print(f"the load generator refused: {report['error']}", file=sys.stderr)
                return
            self.counters = report["counters"]
            self.waited_most_s = report["histograms"]["acknowledgement"]["max_ns"] / 1e9


def gap_s(acknowledged: list[Acknowledgement], begun_s: float, end_s: float) -> float:
    """The longest time between two acknowledgements from `begun_s` on."""
    times = [begun_s, *sorted(each.at_s for each in acknowledged if begun_s <= each.at_s <= end_s), end_s]
    return max(after - before for before, after in pairwise(times))


def hand_over(cluster: ReplicatedCluster, master: int) -> None:
    """Have another member made master; again where a member had not everything in time."""

    async def ask() -> None:
        await cluster.connector.request(master, RequestCode.HAND_OVER, timeout_s=5.0)

    def is_done() -> bool:
        asyncio.run(ask())
        deadline_s = time.monotonic() + _HAND_OVER_S
        while time.monotonic() < deadline_s:
            if cluster.master() not in (None, master):
                return True
        return False

    eventually(is_done, "the master hands over")


class Change:
    """`with` kills or stops the master, or has it hand over, and brings it back at the end."""

    def __init__(self, cluster: ReplicatedCluster, how: str) -> None:
        self._cluster = cluster
        self._how = how
        self.former = self.new = 0

    def __enter__(self) -> Self:
        cluster, how = self._cluster, self._how
        self.former = cluster.wait_for_master()
        if how == "kill":
            cluster.members[self.former].signal(signal.SIGKILL)
        elif how == "stop":
            cluster.members[self.former].signal(signal.SIGSTOP)
        else:
            hand_over(cluster, self.former)
        # One that is stopped is not asked: it does not answer.
        others = [number for number in cluster.members if number != self.former]

        def another() -> int | None:
            return next((n for n in others if (s := cluster.status(n)) and s["isServing"]), None)

        self.new = eventually(another, "another member is master") or 0
        return self

    def __exit__(self, *_: object) -> None:
        part = self._cluster.members[self.former]
        if self._how == "kill":
            part.start()
        elif self._how == "stop":
            part.signal(signal.SIGCONT)


def play(
    cluster: ReplicatedCluster, load: Load, how: str, rounds: int, *, settle_s: float = _SETTLE_S
) -> list[float]:
    """Change the master in each round; how long nothing was acknowledged in each."""
    gaps = []
    for number in range(1, rounds + 1):
        cluster.wait_in_sync()
        time.sleep(settle_s)
        begun_s = time.monotonic()
        with Change(cluster, how) as change:
            before = len(load.acknowledged)
            eventually(lambda before=before: len(load.acknowledged) > before, "acknowledgements go on")
            time.sleep(settle_s)
            gap = gap_s(load.acknowledged, begun_s, time.monotonic())
            gaps.append(gap)
            print(
                f"round {number}: member {change.former} -> {change.new}, "
                f"nothing acknowledged for {gap * 1000:.0f} ms",
                flush=True,
            )
    return gaps


def check(load: Load) -> bool:
    """Print what was acknowledged and received; whether nothing was lost and all was in order."""
    acknowledged = {(each.device, each.number) for each in load.acknowledged}
    received = {(device, number) for device, numbers in enumerate(load.received) for number in numbers}
    lost = acknowledged - received
    phantoms = sum(number >= load.sent[device] for device, number in received)
    disorder = 0
    for numbers in load.received:
        firsts = list(dict.fromkeys(numbers))
        disorder += sum(after < before for before, after in pairwise(firsts))
    total = sum(map(len, load.received))
    print(f"sent          {sum(load.sent):>10,}")
    print(f"acknowledged  {len(acknowledged):>10,}")
    print(f"received      {len(received):>10,}   twice: {total - len(received):,}")
    print(f"lost          {len(lost):>10,}   out of order: {disorder:,}   never sent: {phantoms:,}")
    print(f"refused       {load.refused:>10,}   disconnects: {load.disconnects:,}")
    return not lost and not disorder and not phantoms and load.failure is None


def main() -> int:
    """Run the rounds; 1 when something was lost."""
    parser = argparse.ArgumentParser(description="Kill masters under load and count.")
    parser.add_argument("--rounds", type=int, default=5, help="changes of master (5)")
    parser.add_argument(
        "--how", choices=("kill", "stop", "hand-over"), default="kill",
        help="kill: SIGKILL. stop: SIGSTOP, as if its machine were gone. hand-over: asked to (kill)",
    )  # fmt: skip
    parser.add_argument("--devices", type=int, default=50, help="clients that publish (50)")
    parser.add_argument("--pause-ms", type=float, default=5.0, help="between two messages of a device (5)")
    parser.add_argument("--rate", type=int, default=0, help="more messages/s, by the load generator (0)")
    parser.add_argument(
        "--directory",
        type=Path,
        default=ROOT / "build" / "cluster-kill",
        help="emptied first (build/cluster-kill)",
    )
    parser.add_argument("--port", type=int, default=21_100, help="the first of 100 ports (21100)")
    options = parser.parse_args()
    shutil.rmtree(options.directory, ignore_errors=True)
    try:
        settings = {"mqtt": _STORM_FRONT_END}
        with ReplicatedCluster(options.directory, port=options.port, settings=settings) as cluster:
            load = Load(cluster, options.devices, options.pause_ms / 1000)
            storm = Storm(cluster, options.rate)
            load.start()
            with storm:
                gaps = play(cluster, load, options.how, options.rounds)
            load.end_publishing()
            load.stop()
            print(
                f"nothing acknowledged for: median {statistics.median(gaps) * 1000:.0f} ms, "
                f"longest {max(gaps) * 1000:.0f} ms"
            )
            return 0 if check(load) & storm.check() else 1
    except (ClusterError, IotmqError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
