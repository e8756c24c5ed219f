"""What filters by SQL92 and signed requests cost a broker, in processor time of the thread that does them.

    .venv/bin/python -m benchmarks.broker_security [--quick] [--records 400000] [--rounds 5]

Filters: records of 100-byte bodies with six properties, read in pulls of 1,024 records, with no filter, with
three filters that nothing passes, and with one that everything passes. Beside them the plain way: each record
decoded in Python and its properties made a dictionary.

Accounts: what access control does for one send of 100 bytes with a right signature, and what a client does
to sign it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine
from iotmq.broker.access.acl import AccessControl
from iotmq.broker.filters.property_filter import PropertyFilter
from iotmq.broker.filters.sql import parse_sql
from iotmq.message.properties import decode_properties, encode_properties
from iotmq.message.records.record import encode_batch, iter_records
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import encode
from iotmq.remoting.signature import Credentials, sign
from iotmq.store.log.queue import Queue
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST: Final = b"\x7f\x00\x00\x01" + (10911).to_bytes(4, "big")
BATCH: Final = 1_000
PULL_RECORDS: Final = 1_024
PULL_BYTES: Final = 4 * 1024 * 1024
REQUESTS: Final = 20_000
FILTERS: Final = {
    "no filter": None,
    "one comparison": "number > 1000000000",
    "a range and a list": "number BETWEEN 5 AND 10 AND colour IN ('red', 'green')",
    "a search in a text": "colour CONTAINS 'zzz' OR TAGS = 'x'",
    "everything passes": "number >= 0",
}
ACCOUNTS: Final = "accounts: [{accessKey: producer, secretKey: abcdefgh, topicPerms: [T=PUB]}]"
KEYS: Final = Credentials("producer", "abcdefgh")
SEND: Final = {
    "a": "producers", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
    "i": f"WAIT\x01true\x02UNIQ_KEY\x01{'A' * 32}", "j": "0", "k": "false", "m": "false",
}  # fmt: skip


def fill(store: Store, records: int) -> Queue:
    queue = store.queue("T", 0)
    for at in range(0, records, BATCH):
        elements = [
            (os.urandom(100), encode_properties(properties_of(number)), 0) for number in range(at, at + BATCH)
        ]
        store.append(queue, encode_batch(elements), born_timestamp_ms=1, born_host=HOST)
    return queue


def properties_of(number: int) -> dict[str, str]:
    return {
        "TAGS": "t", "number": str(number), "colour": "blue", "UNIQ_KEY": f"{number:032X}", "WAIT": "true",
        "CLUSTER": "DefaultCluster",
    }  # fmt: skip


def read_all(store: Store, queue: Queue, wanted: PropertyFilter | None) -> int:
    """How many records passed."""
    offset = passed = 0
    while offset < queue.max_offset:
        read = store.read(queue, offset, records_max=PULL_RECORDS, bytes_max=PULL_BYTES, tags=wanted)
        offset = read.next_offset
        passed += read.count
    return passed


def decode_all(store: Store, queue: Queue, records: int) -> int:
    """The plain way over the first `records`: how many have a number above a billion."""
    read = store.read(queue, 0, records_max=records, bytes_max=1 << 30)
    return sum(
        int(decode_properties(record.properties)["number"]) > 1_000_000_000
        for view in read.views
        for record in iter_records(view)
    )


def cpu_ns(action: Callable[[], object], count: int) -> float:
    """Nanoseconds of processor time for one of `count` things that `action` does."""
    began_s = time.thread_time()
    action()
    return (time.thread_time() - began_s) / count * 1e9


def check(access: AccessControl, request: Command) -> None:
    account = access.authenticated(request, "127.0.0.1")
    assert account is not None
    access.check_permitted(account, request)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_security", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    records, rounds = (50_000, 3) if options.quick else (options.records, options.rounds)
    os.sched_setaffinity(0, {machine.cores()[0]})
    before = machine.description()
    results: dict[str, list[float]] = {}
    root = Path(tempfile.mkdtemp(prefix="iotmq-security-"))
    try:
        accounts = root / "plain_acl.yml"
        accounts.touch(0o600)
        accounts.write_text(ACCOUNTS)
        access = AccessControl(accounts, topic_at=lambda _: None)
        request = Command.request(RequestCode.SEND_MESSAGE_V2, SEND, os.urandom(100))
        sign(request, KEYS)
        frame = b"".join(encode(request))
        store = Store.open(root / "data", StoreSettings(), store_host=HOST)
        queue = fill(store, records)
        few = min(records, 20_000)
        cases: dict[str, tuple[Callable[[], object], int]] = {
            f"filter: {name}": (lambda made=made: read_all(store, queue, made), records)
            for name, made in (
                (name, None if text is None else PropertyFilter(parse_sql(text)))
                for name, text in FILTERS.items()
            )
        }
        cases["filter: decoded in Python"] = (lambda: decode_all(store, queue, few), few)
        cases["account: one request checked"] = (
            lambda: [check(access, request) for _ in range(REQUESTS)],
            REQUESTS,
        )
        cases["account: one request let through by the fast path"] = (
            lambda: [access.is_allowed(frame, 0, "127.0.0.1") for _ in range(REQUESTS)],
            REQUESTS,
        )
        cases["account: one request signed"] = (
            lambda: [sign(request, KEYS) for _ in range(REQUESTS)],
            REQUESTS,
        )
        for number in range(rounds + 1):
            for name, (action, count) in cases.items():
                taken_ns = cpu_ns(action, count)
                # The first round maps the pages.
                if number:
                    results.setdefault(name, []).append(taken_ns)
        store.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    rows = [
        [name, *(f"{value:,.0f}" for value in (median(values), min(values), max(values)))]
        for name, values in results.items()
    ]
    print(machine.table(["ns of processor time each", "median", "min", "max"], rows))
    path = machine.save("broker_security", {"security": {"machine": before, "rounds": results}})
    print(f"\nkept in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
