"""The last batch of a producer, as the broker tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from once_bench import Bench, element

from iotmq.broker.exactly_once.batch_numbers import NUMBER_BITS, key_of
from iotmq.broker.handlers.native.batch_numbers import BatchNumberHandler
from iotmq.broker.replies.request_table import RequestTable
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command


class WarmReads:
    """Reads of a log that is in memory."""

    def finish(self, steps: Iterator[Any], done: Callable[[Any], object], _refused: object) -> None:
        try:
            while True:
                next(steps)
        except StopIteration as stop:
            done(stop.value)


async def test_a_number_is_told_with_the_words_that_stand_beside_it(tmp_path: Path) -> None:
    """Another task of the same producer may have appended more, which is in no projection yet."""
    bench = Bench(tmp_path)
    parts: Any = SimpleNamespace(
        writer=bench.writer, store=bench.store, stored_once=bench.once, cold_reads=WarmReads()
    )
    table = RequestTable([BatchNumberHandler(parts)])
    request = {"topic": "T", "producer": "q/0"}

    def last() -> dict[str, str]:
        answer = table.handle(None, Command.request(RequestCode.LAST_BATCH_NUMBER, request))  # type: ignore[arg-type]
        assert answer is not None
        assert answer.code == 0
        return {name: answer.ext[name] for name in ("batch", "number", "queues") if name in answer.ext}

    assert last() == {}
    bench.send(element(b"x", BATCH_NUMBER="q/0 3 0 0 1 0000abcd 4096 a:0-1"), is_numbered=True)
    stands = {"batch": "3", "number": "0", "queues": "0000abcd 4096 a:0-1"}
    assert last() == stands
    end_position = bench.store.appended_position
    bench.numbers.begin_append()
    bench.numbers.end_append({key_of("T", b"q/0"): 3 << NUMBER_BITS | 1}, end_position + 1)
    assert bench.numbers.last(key_of("T", b"q/0")) == 3 << NUMBER_BITS | 1
    assert last() == stands
    bench.store.close()
