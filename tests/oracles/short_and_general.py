"""Two brokers behind fake transports that get the same bytes, one of them without the fast paths."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eventually import soon
from manual_clock import ManualClock

from iotmq.broker.access.acl import AccessControl, Guard
from iotmq.broker.broker import Broker
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.settings import BrokerSettings
from iotmq.message.hosts import encode_host
from iotmq.metrics import Metric
from iotmq.remoting.frames.frame import FrameReader, Run
from iotmq.remoting.frames.pull_frames import PullFrame
from iotmq.remoting.server import RequestHandler, RunHandler, ServerConnection
from iotmq.remoting.traffic import Traffic
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

RECORD_BYTES_MAX = 4_096
# Counts of time, of disk blocks taken ahead by a thread, and of flushes and saves, which depend on its pace.
NOT_ALIKE = (
    "flushes_total", "flush_seconds_total", "flushed_position_bytes", "confirmed_position_bytes",
    "_ms", "_seconds", "_seconds_bucket", "_seconds_sum", "config_file_behind",
)  # fmt: skip


class Transport:
    """What a connection writes, and who its peer is."""

    def __init__(self, peer: tuple[str, int]) -> None:
        self.peer = peer
        self.written = bytearray()

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return self.peer

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.written += b"".join(pieces)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    abort = close


class Side:
    """One broker behind a connection."""

    def __init__(
        self,
        directory: Path,
        *,
        is_short: bool,
        flush: str,
        peer: str,
        record_bytes_max: int = RECORD_BYTES_MAX,
        accounts: Path | None = None,
    ) -> None:
        """With a file of `accounts` there is access control."""
        self.clock = ManualClock()
        host = encode_host(peer, 10911)
        self.store = Store.open(
            directory,
            StoreSettings(
                flush=flush,  # type: ignore[arg-type]
                segment_bytes=max(1 << 20, 8 * record_bytes_max),
                record_bytes_max=record_bytes_max,
            ),
            store_host=host,
            clock=self.clock,
        )
        settings = BrokerSettings(listen_port=0, registries=(), region='R"<id>')
        self.broker = Broker(settings, self.store, directory=directory, store_host=host, clock=self.clock)
        self.topics = self.broker.topics
        self.writer = self.broker.writer
        self.traffic = Traffic()
        # Requests that went a fast path: sends and pulls.
        self.taken = 0
        self.pulls_taken = 0
        self._is_short = is_short
        self._peer = peer
        self.access = None if accounts is None else AccessControl(accounts, topic_at=lambda _: None)
        self.connect()

    def connect(self) -> None:
        """A new connection in place of the one before."""
        self.transport = Transport((self._peer, 4711))
        requests: RequestHandler = self.broker.requests
        take: RunHandler = self.take
        if self.access is not None:
            cold_reads = ColdReads(self.store, threads_max=1, waiting_max=1)
            requests = guard = Guard(requests, take, self.access, self.store, cold_reads)
            take = guard.handle_run
        self.connection = ServerConnection(
            requests, self.traffic, opened=lambda _: True, lost=requests.connection_lost,
            write_buffer_bytes_max=1 << 26, handle_run=take if self._is_short else None,
        )  # fmt: skip
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    async def start(self) -> None:
        await self.broker.start()
        self.topics.ensure("T", queues=4)
        self.topics.ensure("U", queues=1)

    async def stop(self) -> None:
        await self.broker.stop()
        assert self.store.check() == []
        self.store.close()

    def take(self, connection: ServerConnection, run: Run, at: int) -> int:
        end = self.broker.requests.handle_run(connection, run, at)
        if isinstance(run, PullFrame):
            self.pulls_taken += end - at
        else:
            self.taken += end - at
        return end

    def play(self, data: bytes, *, seed: int) -> None:
        random.seed(seed)
        self.connection.data_received(data)
        # What a slow processor leaves for the next turns: the clock, and topics, change only behind it.
        while self.connection._backlog:
            self.connection._process_backlog()

    def is_on_the_disk(self) -> bool:
        """Records, and the files of topics and groups: a send that makes a topic waits for its file."""
        behind = [m.value for m in self.broker.metrics() if m.name == "iotmq_broker_config_file_behind"]
        return self.writer.waiting_count == 0 and not any(behind)

    async def settle(self) -> None:
        await soon(self.is_on_the_disk, "the disk has everything", step_s=0.001)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def answers(self) -> dict[int, bytes]:
        """Whole frames by opaque, each there once; requests of the broker's own have negative numbers."""
        found: dict[int, bytes] = {}
        data = bytes(self.transport.written)
        reader = FrameReader()
        reader.receive_data(data)
        reader.receive_eof()
        assert reader.error is None
        at = 0
        for command in reader.commands_received():
            end = at + 4 + struct.unpack_from(">I", data, at)[0]
            key = command.opaque if command.is_response else -1 - command.opaque
            assert key not in found
            found[key] = data[at:end]
            at = end
        return found

    def stored(self) -> bytes:
        return bytes(self.store._log.view(0, self.store.appended_position))

    def counts(self) -> list[Metric]:
        metrics = [*self.broker.metrics(), *self.traffic.metrics(1), *self.store.metrics()]
        return [metric for metric in metrics if not metric.name.endswith(NOT_ALIKE)]

    def statistics_counts(self) -> dict[Any, Any]:
        counters = self.broker.statistics.counters
        tables = (counters.topic_puts, counters.queue_puts, counters.broker)
        return {
            (number, key): (counts[0], counts[1][:3])
            for number, table in enumerate(tables)
            for key in table.all_keys()
            if (counts := table.totals(key)) is not None
        }


def check_alike(short: Side, general: Side) -> None:
    assert short.answers() == general.answers()
    assert short.stored() == general.stored()
    pairs = zip(map(str, short.counts()), map(str, general.counts()), strict=True)
    different = [pair for pair in pairs if pair[0] != pair[1]]
    assert different == [], different
    if short.access is not None and general.access is not None:
        assert short.access.refused == general.access.refused
    assert short.statistics_counts() == general.statistics_counts()
