"""A broker alone in a child process on the server core, as the broker benchmarks measure it.

Started as ``python -m benchmarks._broker_process DIRECTORY [--sync]``: prints its port and the seconds its
start took, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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

    def __init__(self, process: subprocess.Popen[str], port: int, start_s: float) -> None:
        self.process = process
        self.port = port
        # From the opening of the store to the first accepted connection.
        self.start_s = start_s

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu_s(self) -> float:
        """Processor time of the whole process so far, from the scheduler's nanosecond counters."""
        total_ns = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            total_ns += int((task / "schedstat").read_text().split()[0])
        return total_ns / 1e9

    def memory_bytes(self) -> dict[str, int]:
        """Resident bytes: all of them, and those that are no file's."""
        return peers.memory_bytes([self.pid])


@contextlib.contextmanager
def broker(*, directory: Path | None = None, is_sync: bool = False) -> Iterator[BrokerProcess]:
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
            command + ["--sync"] * is_sync,
            cwd=machine.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(_end, process)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        if len(words) != 2:
            raise peers.PeerError("the broker did not start")
        os.sched_setaffinity(0, {load_core})
        yield BrokerProcess(process, int(words[0]), float(words[1]))


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(peers.STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def serve(directory: Path, *, is_sync: bool) -> None:
    """The broker and nothing else: it knows no registry."""
    from iotmq.broker.broker import Broker, resolve_store_host
    from iotmq.broker.settings import BrokerSettings
    from iotmq.store.settings import StoreSettings
    from iotmq.store.store import Store

    began_s = time.perf_counter()
    settings = BrokerSettings(listen_port=0, registries=(), idle_s=3_600)
    store = Store.open(
        directory,
        StoreSettings(flush="sync" if is_sync else "async"),
        store_host=resolve_store_host(settings),
    )
    broker = Broker(settings, store, directory=directory)
    await broker.start()
    print(broker.port, time.perf_counter() - began_s, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await broker.stop()
    store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sync", action="store_true")
    options = parser.parse_args()
    uvloop.run(serve(options.directory, is_sync=options.sync))


if __name__ == "__main__":
    main()
