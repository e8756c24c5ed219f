"""Messages of transactions that want to be delivered at a time: from the commit on they wait for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from transaction_bench import COMMIT, ROLLBACK, Bench, open_bench

from iotmq.message.properties import decode_properties


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await open_bench(tmp_path)
    yield bench
    await bench.close()


async def test_a_committed_message_waits_for_its_time(bench: Bench) -> None:
    due_ms = bench.clock.now_ms() + 7_000
    properties = f"UNIQ_KEY\x01k\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    bench.end(bench.prepare(b"late", properties=properties), COMMIT)
    bench.end(bench.prepare(b"never", properties="TIMER_DELAY_MS\x015\x02"), ROLLBACK)
    bench.clock.advance(6.999)
    bench.broker.expire()
    assert bench.bodies() == []
    bench.clock.advance(0.001)
    bench.broker.expire()
    assert bench.bodies() == [b"late"]
    (record,) = bench.records("T", 1)
    assert decode_properties(record.properties)["TIMER_OUT_MS"] == str(due_ms)
    # What it was part of is over: the record counts as a plain one.
    assert record.sys_flag & 12 == 0


async def test_a_time_that_is_over_at_the_commit_delivers_at_once(bench: Bench) -> None:
    due_ms = bench.clock.now_ms() + 1_000
    prepared = bench.prepare(b"now", properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")
    bench.clock.advance(2)
    bench.end(prepared, COMMIT)
    assert bench.bodies() == [b"now"]


async def test_nonsense_is_refused_before_the_transaction_begins(bench: Bench) -> None:
    response = bench.prepare(b"", properties="TIMER_DELAY_SEC\x01soon\x02")
    assert response.code == 13
    assert "TIMER_DELAY_SEC" in (response.remark or "")
