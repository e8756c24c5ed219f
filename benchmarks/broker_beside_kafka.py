"""The broker beside Apache Kafka: processor time of the broker for each record, produced and fetched.

    .venv/bin/python -m benchmarks.broker_beside_kafka [--quick] [--rounds 5] [--setting fast]

Records of 100 bytes without keys, in batches of at most 10,000 and of at most 65,536 bytes, to one partition
or queue over one connection, five batches on the way. A fetch brings one batch, a pull as many records as a
batch has. Kafka's load comes from the tools in its own jars, iotmq's from prepared bytes; both brokers have
the first core, both loads the last. Kafka's tools are slower than its broker, so the number that tells
something is the broker's processor time; the rates stand beside it.

"fast" is Kafka with acks=1 and a log that the kernel writes when it likes, and iotmq with asynchronous
flush. "durable" is a sync for each batch and acks=all there, and a sync before each answer here, which
batches share. The first two rounds do not count: Java compiles what it runs often.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks import machine, peers
from benchmarks._broker_process import BrokerProcess, broker
from benchmarks._wire_load import (
    BODY,
    create_topic,
    frame,
    in_turn,
    pipeline,
    pull_all,
    send_fields,
    stored_records,
)
from benchmarks.peers.native import KAFKA
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode

BATCHES: Final = {"10 KB": 10_000, "64 KiB": 65_536}
CASES: Final = tuple(f"{work} {batch}" for batch in BATCHES for work in ("produce", "fetch"))
IN_FLIGHT: Final = 5
WARM_ROUNDS: Final = 2
RECORD_BYTES: Final = 400
_TOOL_TIMEOUT_S: Final = 300.0
_SENT: Final = re.compile(r"(\d+) records sent, ([\d.]+) records/sec")
# Where a line of ConsumerPerformance has how many messages came, and how many a second without joining.
_CONSUMED_COLUMN: Final = 4
_RATE_COLUMN: Final = 9


class Found(NamedTuple):
    """One run of one side."""

    records_per_s: float
    us_per_record: float


def main(words: Sequence[str] | None = None) -> int:
    """0 when Kafka could be measured, or is not there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_beside_kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--setting", choices=peers.SETTINGS, action="append", help="only this one")
    options = parser.parse_args(words)
    rounds = 1 if options.quick else options.rounds
    rows: list[list[str]] = []
    for peer in peers.those_there([KAFKA]):
        for setting in options.setting or peers.SETTINGS:
            records = 500_000 if options.quick else 2_000_000
            # A sync for each batch takes its time.
            records //= 2 if setting == peers.DURABLE else 1
            found = measure(peer, setting, rounds, records)
            machine.save("broker_beside_kafka", {setting: found})
            rows += rows_of(setting, found)
    heads = ["broker us/record", "iotmq", "kafka", "ratio", "iotmq records/s", "kafka records/s"]
    print(machine.table(heads, rows))
    return 0


def measure(peer: peers.Peer, setting: str, rounds: int, records: int) -> dict[str, Any]:
    """All cases; both brokers run all the time, and are loaded in turns."""
    about = machine.description()
    server_core, load_core = machine.cores()
    results: dict[str, dict[str, list[Found]]] = {case: {"iotmq": [], "kafka": []} for case in CASES}
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(broker(is_sync=setting == peers.DURABLE))
        # Children inherit where this process may run; Kafka is moved to its core by its own command.
        os.sched_setaffinity(0, {load_core})
        theirs = stack.enter_context(peers.started(peer, core=server_core, setting=setting))
        tools = KafkaTools(peer.find(), theirs, setting)
        for number in range(WARM_ROUNDS + rounds):
            machine.warm_page_cache(machine.RESULTS, 2 * len(BATCHES) * records * RECORD_BYTES)
            for batch, batch_bytes in BATCHES.items():
                topic = f"B{number}-{batch_bytes}"
                runs = {
                    f"produce {batch}": {
                        "iotmq": produce(ours, topic, batch_bytes, records),
                        "kafka": tools.produce(topic, batch_bytes, records),
                    },
                    f"fetch {batch}": {
                        "iotmq": fetch(ours, topic, batch_bytes, records),
                        "kafka": tools.fetch(topic, batch_bytes, records),
                    },
                }
                for case, sides in runs.items():
                    for side, found in sides.items():
                        if number >= WARM_ROUNDS:
                            results[case][side].append(found)
            print(f"{peer.title}, {setting}: round {number + 1} of {WARM_ROUNDS + rounds}", flush=True)
    return {"machine": about, "setting": peer.settings[setting], **compare(results)}


def compare(results: dict[str, dict[str, list[Found]]]) -> dict[str, Any]:
    """Medians of both sides, and the median of the rounds' ratios of processor time."""
    return {
        case: {
            **{side: median(one.us_per_record for one in found) for side, found in sides.items()},
            **{
                f"{side} records/s": median(one.records_per_s for one in found)
                for side, found in sides.items()
            },
            "ratio": median(
                mine.us_per_record / other.us_per_record
                for mine, other in zip(sides["iotmq"], sides["kafka"], strict=True)
            ),
        }
        for case, sides in results.items()
    }


def rows_of(setting: str, found: dict[str, Any]) -> list[list[str]]:
    """The table of one setting."""
    return [
        [
            f"{setting}: {case}",
            *(f"{found[case][side]:.3f}" for side in ("iotmq", "kafka")),
            f"{found[case]['ratio']:.2f}x",
            *(f"{found[case][f'{side} records/s']:,.0f}" for side in ("iotmq", "kafka")),
        ]
        for case in CASES
    ]


# iotmq ---------------------------------------------------------------------------------------------------


def batch_records(batch_bytes: int) -> int:
    """How many records fit in a batch of ours."""
    return batch_bytes // len(encode_batch([(BODY, b"", 0)]))


def produce(server: BrokerProcess, topic: str, batch_bytes: int, records: int) -> Found:
    """Store at least that many, in whole batches."""
    create_topic(server.port, topic, 1)
    each = batch_records(batch_bytes)
    batches = -(-records // each)
    elements = encode_batch([(BODY, b"", 0)] * each)
    one = frame(RequestCode.SEND_BATCH_MESSAGE, {**send_fields(topic, 0), "m": "true"}, elements)
    used_s = -server.cpu_s()
    took_s = pipeline(server.port, in_turn([one]), connections=1, in_flight=IN_FLIGHT, count=batches)
    used_s += server.cpu_s()
    stored = stored_records(server.port, topic, 1)
    assert stored == batches * each, f"{stored} of {batches * each} records are stored"
    return Found(stored / took_s, used_s / stored * 1e6)


def fetch(server: BrokerProcess, topic: str, batch_bytes: int, records: int) -> Found:
    """Read them, as many at a time as a batch has."""
    each = batch_records(batch_bytes)
    stored = -(-records // each) * each
    used_s = -server.cpu_s()
    took_s = pull_all(
        server.port, topic, queues=1, records_each=stored, records=each, bytes_max=4 * batch_bytes
    )
    used_s += server.cpu_s()
    return Found(stored / took_s, used_s / stored * 1e6)


# Kafka ---------------------------------------------------------------------------------------------------


class KafkaTools:
    """The programs in Kafka's jars that make load and measure."""

    def __init__(self, jars: Path, server: peers.Server, setting: str) -> None:
        self._jars = jars
        self._server = server
        self._setting = setting

    def produce(self, topic: str, batch_bytes: int, records: int) -> Found:
        """Run its producer."""
        words = producer_words(self._server.port, topic, batch_bytes, records, self._setting)
        said, used_s = self._run("ProducerPerformance", words)
        sent, rate = _SENT.findall(said)[-1]
        assert int(sent) == records, f"{sent} of {records} records were sent"
        return Found(float(rate), used_s / records * 1e6)

    def fetch(self, topic: str, batch_bytes: int, records: int) -> Found:
        """Run its consumer."""
        words = consumer_words(self._server.port, topic, batch_bytes, records)
        file = machine.RESULTS / "kafka-consumer.properties"
        file.write_text(f"fetch.max.bytes={batch_bytes}\nfetch.min.bytes=1\n")
        said, used_s = self._run("ConsumerPerformance", [*words, "--consumer.config", str(file)])
        cells = [cell.strip() for cell in said.strip().splitlines()[-1].split(",")]
        consumed = int(cells[_CONSUMED_COLUMN])
        assert consumed >= records, f"{consumed} of {records} records were consumed: {said[-500:]}"
        return Found(float(cells[_RATE_COLUMN]), used_s / consumed * 1e6)

    def _run(self, tool: str, words: Sequence[str]) -> tuple[str, float]:
        """What it said, and the processor time that the broker used meanwhile."""
        command = [*("java", "-Xmx512m", "-cp", f"{self._jars}/*", f"org.apache.kafka.tools.{tool}"), *words]
        used_s = -self._server.cpu_s()
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
        used_s += self._server.cpu_s()
        assert done.returncode == 0, (
            f"{tool} ended with {done.returncode}: {done.stdout}{done.stderr[-1_000:]}"
        )
        return done.stdout, used_s


def producer_words(port: int, topic: str, batch_bytes: int, records: int, setting: str) -> list[str]:
    """Full batches, as fast as they are taken."""
    safety = ["acks=all"] if setting == peers.DURABLE else ["acks=1", "enable.idempotence=false"]
    properties = [
        *(f"bootstrap.servers=127.0.0.1:{port}", f"batch.size={batch_bytes}", "linger.ms=1000"),
        *(f"max.in.flight.requests.per.connection={IN_FLIGHT}", "buffer.memory=67108864", *safety),
    ]
    return [
        *("--topic", topic, "--num-records", str(records), "--record-size", str(len(BODY))),
        *("--throughput", "-1", "--producer-props", *properties),
    ]


def consumer_words(port: int, topic: str, batch_bytes: int, records: int) -> list[str]:
    """All of a topic, in a group of its own."""
    return [
        *("--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic, "--messages", str(records)),
        *("--fetch-size", str(batch_bytes), "--group", f"g-{topic}", "--hide-header"),
        *("--timeout", "60000"),
    ]


if __name__ == "__main__":
    sys.exit(main())
