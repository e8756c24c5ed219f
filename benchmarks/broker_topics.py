"""10,000 topics of 8 queues with records in them: start-up, registration, memory, stalls of the loop.

    .venv/bin/python -m benchmarks.broker_topics [--quick] [--topics 10000]

A first broker gets the topics by the wire, and a record for each queue as far as the kernel lets one process
map that many files (vm.max_map_count, 65,530 where nobody changed it), and stops. A second one is started on
what it left: its start and its registration together are to take less than 5 s, its loop is to stand still
for less than 50 ms at a time from then on, also while it registers again, and it is to take less than 400 MB.
The broker has the first core; registry and load have the last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import uvloop

from benchmarks import machine
from benchmarks._broker_process import BrokerProcess, broker
from benchmarks._wire_load import create_topic, frame, pipeline, send_fields
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode

QUEUES: Final = 8
START_S: Final = 5.0
STALL_MS: Final = 50.0
MEMORY_BYTES: Final = 400_000_000
# Changes that each make the broker tell its registries of all topics.
CHANGES: Final = 10
# Of the files a process may map, for everything that is no queue.
SPARE_MAPPINGS: Final = 5_000


def main(words: Sequence[str] | None = None) -> int:
    """0 when every mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_topics", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the topics")
    parser.add_argument("--topics", type=int, default=10_000)
    options = parser.parse_args(words)
    topics = options.topics // 10 if options.quick else options.topics
    about = machine.description()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="data-topics-", dir=machine.RESULTS) as directory,
        registry(Path(directory, "registry")) as address,
    ):
        data = Path(directory, "data")
        with broker(directory=data, registry=address, is_watched=True) as server:
            began_s = time.perf_counter()
            make_topics(server.port, topics)
            made_s = time.perf_counter() - began_s
            filled = fill_queues(server.port, topics)
            filled_s = time.perf_counter() - began_s - made_s
            made_stall_ms = server.stall_ms()
        with broker(directory=data, registry=address, is_watched=True) as server:
            start_stall_ms = server.stall_ms()
            stall_ms = change_topics(server)
            memory = server.memory_bytes()
    found = {
        "topics made, s": made_s,
        f"record in {filled:,} queues, s": filled_s,
        "longest stall while made, ms": made_stall_ms,
        "start, s": server.start_s,
        "start and registration, s": server.registered_s,
        "longest stall at the start, ms": start_stall_ms,
        "longest stall while topics change, ms": stall_ms,
        "memory, MB": memory["rss"] / 1e6,
        "of it no file's, MB": memory["anonymous"] / 1e6,
    }
    print(
        machine.table(
            [f"{topics:,} topics x {QUEUES}", ""], [[name, f"{value:,.2f}"] for name, value in found.items()]
        )
    )
    machine.save("broker_topics", {f"{topics} topics": {"machine": about, **found}})
    missed = [
        name
        for name, limit in (
            ("start and registration, s", START_S),
            ("longest stall while topics change, ms", STALL_MS),
            ("memory, MB", MEMORY_BYTES / 1e6),
        )
        if found[name] >= limit
    ]
    print(f"missed: {'; '.join(missed)}" if missed else "all marks reached")
    return 1 if missed and not options.quick else 0


@contextlib.contextmanager
def registry(directory: Path) -> Iterator[str]:
    """A registry in a thread of this process; its address."""
    started = threading.Event()
    addresses: list[str] = []
    ending: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        server = Registry(RegistrySettings(listen_port=0), directory=directory)
        await server.start()
        ended = asyncio.Event()
        ending.append((asyncio.get_running_loop(), ended))
        addresses.append(f"127.0.0.1:{server.port}")
        started.set()
        await ended.wait()
        await server.stop()

    thread = threading.Thread(target=uvloop.run, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield addresses[0]
    finally:
        loop, ended = ending[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join()


def make_topics(port: int, topics: int) -> None:
    """Make the topics."""
    turn = 0

    def makes(connection: int, count: int) -> bytes:
        nonlocal turn
        first, turn = turn, turn + count
        return b"".join(
            [
                frame(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(number))
                for number in range(first, turn)
            ]
        )

    pipeline(port, makes, connections=1, in_flight=200, count=topics)


def fill_queues(port: int, topics: int) -> int:
    """Store a record in each queue there may be a file of; how many that are."""
    queues = min(topics * QUEUES, int(Path("/proc/sys/vm/max_map_count").read_text()) - SPARE_MAPPINGS)
    turn = 0

    def sends(connection: int, count: int) -> bytes:
        nonlocal turn
        first, turn = turn, turn + count
        return b"".join([send(number) for number in range(first, turn)])

    pipeline(port, sends, connections=1, in_flight=100, count=queues)
    return queues


def send(number: int) -> bytes:
    """A message for one of all queues."""
    fields = send_fields(f"topic-{number // QUEUES}", number % QUEUES)
    return frame(RequestCode.SEND_MESSAGE_V2, fields, b"x" * 100)


def topic_fields(number: int) -> dict[str, str]:
    """The header that makes one topic."""
    return {
        "topic": f"topic-{number}",
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def change_topics(server: BrokerProcess) -> float:
    """Change topics one after the other, each told to the registry; the longest stall in milliseconds."""
    longest_ms = 0.0
    for number in range(CHANGES):
        create_topic(server.port, f"late-{number}", QUEUES)
        time.sleep(0.3)
        longest_ms = max(longest_ms, server.stall_ms())
    return longest_ms


if __name__ == "__main__":
    sys.exit(main())
