"""A broker alone in a child process on the server core, as the broker benchmarks measure it.

Started as ``python -m benchmarks._broker_process DIRECTORY``, with ``--sync``, ``--watch`` and ``--registry
HOST:PORT`` where asked for: prints its port and the seconds its start and its registration took. Every line
of its standard input is answered with the longest time its loop stood still since the last one, if it is to
watch that; it ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks import machine, peers


class BrokerProcess:
    """The running child: where it listens, and what it has used."""

    def __init__(
        self, process: subprocess.Popen[str], port: int, start_s: float, registered_s: float
    ) -> None:
        self.process = process
        self.port = port
        # From the opening of the store to the first accepted connection, and to the registry's answer.
        self.start_s = start_s
        self.registered_s = registered_s

    def stall_ms(self) -> float:
        """The longest time its loop stood still since it was asked last."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu_s(self) -> float:
        """Processor time of the whole process so far."""
        return peers.exact_cpu_s(self.pid)

    def memory_bytes(self) -> dict[str, int]:
        """Resident bytes: all of them, and those that are no file's."""
        return peers.memory_bytes([self.pid])


@contextlib.contextmanager
def broker(
    *, directory: Path | None = None, is_sync: bool = False, is_watched: bool = False, registry: str = ""
) -> Iterator[BrokerProcess]:
    """A broker with a durable log on a real disk; its data goes with it unless `directory` is given."""
    server_core, load_core = machine.cores()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="data-broker-", dir=machine.RESULTS))
            )
        command = [
            "taskset", "-c", str(server_core),
            sys.executable, "-m", "benchmarks._broker_process", str(directory),
        ]  # fmt: skip
        process = subprocess.Popen(
            command + ["--sync"] * is_sync + ["--watch"] * is_watched + ["--registry", registry],
            cwd=machine.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(_end, process)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if len(words) != 3:
            raise peers.PeerError("the broker did not start")
        os.sched_setaffinity(0, {load_core})
        yield BrokerProcess(process, int(words[0]), float(words[1]), float(words[2]))


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(peers.STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class StallWatch:
    """Notes how late a timer of the loop comes."""

    STEP_S = 0.002

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._longest_s = 0.0
        self._due_s = 0.0
        self._arm()

    def take_ms(self) -> float:
        """The longest delay since the last call."""
        # One that is under way counts, too.
        longest_s, self._longest_s = max(self._longest_s, self._loop.time() - self._due_s), 0.0
        return longest_s * 1_000

    def _arm(self) -> None:
        self._due_s = self._loop.time() + self.STEP_S
        self._loop.call_later(self.STEP_S, self._look)

    def _look(self) -> None:
        self._longest_s = max(self._longest_s, self._loop.time() - self._due_s)
        self._arm()


async def serve(
    directory: Path, *, is_sync: bool = False, is_watched: bool = False, registry: str = ""
) -> None:
    """The broker and nothing else."""
    from iotmq.broker.broker import Broker
    from iotmq.broker.registration.advertised_address import resolve_store_host
    from iotmq.broker.settings import BrokerSettings
    from iotmq.store.settings import StoreSettings
    from iotmq.store.store import Store

    began_s = time.perf_counter()
    settings = BrokerSettings(listen_port=0, registries=(registry,) if registry else (), idle_s=3_600)
    store = Store.open(
        directory,
        StoreSettings(flush="sync" if is_sync else "async"),
        store_host=resolve_store_host(settings),
    )
    broker = Broker(settings, store, directory=directory)
    # Its timer costs two percent of a core.
    watch = StallWatch() if is_watched else None
    await broker.start()
    started_s = time.perf_counter() - began_s
    if registry:
        await broker.wait_registered(60)
    print(broker.port, started_s, time.perf_counter() - began_s, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(watch.take_ms() if watch else 0.0, flush=True)
    await broker.stop()
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--registry", default="")
    options = parser.parse_args()
    # As the real process does: what is there at the start is not gone through again and again.
    gc.freeze()
    uvloop.run(
        serve(options.directory, is_sync=options.sync, is_watched=options.watch, registry=options.registry)
    )


if __name__ == "__main__":
    main()
