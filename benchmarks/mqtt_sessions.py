"""A million durable MQTT sessions at one broker: memory, what a publish costs, what a return costs.

    .venv/bin/python -m benchmarks.mqtt_sessions [--sessions 1000000] [--quick]

Each session has one wildcard filter of its own (`dev/ID/cmd/#`) and nobody is connected. Measured is the
broker's part without sockets: the log, the sessions and their light queues.

1. Making them: records of the log, and the memory of the process that is not files, per session.
2. Publishing to random ones: processor time per message, with and without the sessions.
3. Devices that return: reading what waits for each, which has to be exactly theirs.
4. A start that loads all of it.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import machine
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.records import Close, Open, Subscribe, encode_changes
from iotmq.broker.tables.topics import SESSION_TOPIC
from iotmq.message.records.record import decode_record, encode_batch
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
BATCH = 100
RETURNING = 1_000


def private_bytes() -> int:
    """Memory of this process that is not a file's."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["Anonymous"].split()[0]) * 1024


def open_store(directory: Path) -> tuple[Store, SessionProjection]:
    store = Store.open(directory, StoreSettings(), store_host=HOST)
    projection = SessionProjection(store.key_values())
    store.add_projection(projection)
    return store, projection


def append(store: Store, topic: str, elements: list[tuple[bytes, bytes, int]]) -> list[int]:
    appended = store.append(
        store.queue(topic, 0), encode_batch(elements), born_timestamp_ms=1, born_host=HOST
    )
    return list(appended.positions())


def make_sessions(store: Store, count: int, *, first: int = 0) -> None:
    """Connect, subscribe and go, in batches as a busy broker has them."""
    for begin in range(first, first + count, BATCH):
        names = [f"device-{number:07d}" for number in range(begin, min(begin + BATCH, first + count))]
        epochs = append(
            store,
            SESSION_TOPIC,
            [(encode_changes([Open(name, "front", False, 604_800)]), b"", 0) for name in names],
        )
        changes = [
            encode_changes(
                [
                    Subscribe(name, epoch, [(f"dev/{begin + place:07d}/cmd/#", 1)]),
                    Close(name, epoch, 604_800, True),
                ]
            )
            for place, (name, epoch) in enumerate(zip(names, epochs, strict=True))
        ]
        append(store, SESSION_TOPIC, [(change, b"", 0) for change in changes])


def messages(devices: list[int]) -> list[tuple[bytes, bytes, int]]:
    return [
        (b"%07d" % device + bytes(93), b"MQTT_TOPIC\x01dev/%07d/cmd/reboot\x02MQTT_QOS\x011\x02" % device, 0)
        for device in devices
    ]


def publish_us(store: Store, count: int, sessions: int, seed: int) -> tuple[float, Counter[int]]:
    """Processor time of a message in microseconds, in batches; and who was meant."""
    source = random.Random(seed)
    devices = [source.randrange(sessions) for _ in range(count)]
    batches = [messages(devices[first : first + BATCH]) for first in range(0, count, BATCH)]
    encoded = [encode_batch(batch) for batch in batches]
    queue = store.queue("mqtt", 0)
    began_s = time.process_time()
    for elements in encoded:
        store.append(queue, elements, born_timestamp_ms=1, born_host=HOST)
    return (time.process_time() - began_s) / count * 1e6, Counter(devices)


def check_returns(store: Store, projection: SessionProjection, meant: Counter[int]) -> tuple[float, int]:
    """Devices come back: microseconds each, and how many got anything else than theirs."""
    wrong = 0
    devices = sorted(meant)[:: max(1, len(meant) // RETURNING)][:RETURNING]
    began_s = time.process_time()
    for device in devices:
        session = projection.session(f"device-{device:07d}")
        assert session is not None
        ((_, subscription),) = session.subscriptions.items()
        cursor, _ = projection.cursor(subscription.queue_id, f"device-{device:07d}")
        read = projection.next_entries(subscription.queue_id, cursor, entries_max=1_000)
        bodies = [store.read_record(position) for position, _ in read.entries]
        wrong += [decode_record(view).body[:7] for view in bodies if view is not None] != [
            b"%07d" % device
        ] * meant[device]
    return (time.process_time() - began_s) / len(devices) * 1e6, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="50,000 sessions, for a look")
    arguments = parser.parse_args()
    sessions = 50_000 if arguments.quick else arguments.sessions
    count = 20_000 if arguments.quick else 60_000
    machine_is = machine.description()
    print(", ".join(f"{name} {machine_is[name]}" for name in ("time", "processor", "cores", "revision")))
    with tempfile.TemporaryDirectory(prefix="iotmq-sessions-") as directory:
        store, projection = open_store(Path(directory))
        plain_us, _ = publish_us(store, count, sessions, 1)
        gc.collect()
        before = private_bytes()
        began_s = time.process_time()
        make_sessions(store, sessions)
        made_us = (time.process_time() - began_s) / sessions * 1e6
        projection.sync()
        gc.collect()
        grown = private_bytes() - before
        print(f"{sessions:,} sessions made, {made_us:.0f} us of processor time each")
        print(
            f"memory: {grown / sessions:.0f} bytes a session in all, of which "
            f"{projection.queues.memory_bytes / sessions:.0f} are filters and queues (goal 600)"
        )
        with_us, meant = publish_us(store, count, sessions, 2)
        print(
            f"a publish to one of them: {with_us:.2f} us of processor time, {plain_us:.2f} us before there "
            "were sessions (goal 20 us)"
        )
        return_us, wrong = check_returns(store, projection, meant)
        print(
            f"{RETURNING:,} devices return: {return_us:.0f} us each, {wrong} with other messages than theirs"
        )
        store.close()
        began_s = time.monotonic()
        store, projection = open_store(Path(directory))
        print(
            f"start: {time.monotonic() - began_s:.1f} s with {projection.count:,} sessions and "
            f"{len(projection.queues):,} filters"
        )
        store.close()


if __name__ == "__main__":
    main()
