"""Rows of Spark that have all come, and rows that have broken off."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pyarrow
import pytest

pytest.importorskip("pyspark")

from pyspark.serializers import SpecialLengths, write_int

from iotmq.bridge.sink.errors import SinkInputError
from iotmq.bridge.sink.input_end import is_broken_off
from iotmq.bridge.sink.options import parse_sink_options
from iotmq.bridge.sink.task import Identity, SinkTask

ROWS = pyarrow.record_batch({"value": pyarrow.array([b"1", b"2"])})
# A worker of PySpark has the stream from Java as `infile`, and calls what writes from there.
WORKER = "def main(infile, write):\n    return write(infile)\n"


def worker(write: object, *, is_whole: bool, module: str = "pyspark.worker") -> object:
    """Give rows to `write` as a worker does, with the end of the data or without."""
    java, python = socket.socketpair()
    with java, python, os.fdopen(os.dup(python.fileno()), "rb") as infile:
        with java.makefile("wb") as out:
            writer = pyarrow.ipc.new_stream(out, ROWS.schema)
            writer.write_batch(ROWS)
            if is_whole:
                writer.close()
                write_int(SpecialLengths.END_OF_STREAM, out)
        if not is_whole:
            java.shutdown(socket.SHUT_WR)
        found: dict[str, object] = {"__name__": module}
        exec(WORKER, found)
        return found["main"](infile, write)  # type: ignore[operator]


def rows_of(infile: object) -> Iterator[pyarrow.RecordBatch]:
    yield from pyarrow.ipc.open_stream(infile)


def test_arrow_takes_rows_that_broke_off_for_all_and_the_stream_from_java_tells() -> None:
    def write(infile: object) -> tuple[int, bool]:
        return sum(batch.num_rows for batch in rows_of(infile)), is_broken_off()

    assert worker(write, is_whole=True) == (2, False)
    assert worker(write, is_whole=False) == (2, True)
    # The stream is that of PySpark alone, and without one nothing is said.
    assert worker(write, is_whole=False, module="somebodys.program") == (2, False)
    assert not is_broken_off()


def test_a_task_whose_rows_broke_off_ends_with_an_error() -> None:
    options = parse_sink_options({"iotmq.bootstrap.servers": "127.0.0.1:1", "topic": "T"}, streaming=False)
    cluster = options.connection.open()

    def nothing_of(infile: object) -> Iterator[pyarrow.RecordBatch]:
        return (batch for batch in rows_of(infile) if batch.num_rows > 2)

    def write(infile: object) -> int:
        return SinkTask(options, cluster, Identity("query/0", 0, 0)).write(nothing_of(infile))

    assert worker(write, is_whole=True) == 0
    with pytest.raises(SinkInputError, match="the rows of partition 0 broke off after 0"):
        worker(write, is_whole=False)
