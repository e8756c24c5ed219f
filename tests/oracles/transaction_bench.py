"""Transactions of a whole broker over a real store, without sockets: prepare, end, check, start again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from eventually import soon
from fake_connection import FakeConnection
from manual_clock import ManualClock

from iotmq.broker.broker import Broker
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.writing.message_writer import MessageWriter, RefusedBatch
from iotmq.errors import RequestError
from iotmq.message.hosts import encode_host
from iotmq.message.message_ids import parse_offset_message_id
from iotmq.message.records.record import Record, iter_records
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
CHECK_INTERVAL_S = 60.0


class AskingConnection(FakeConnection):
    """A client that may take replies."""

    def __init__(self) -> None:
        super().__init__()
        self.pushes: list[tuple[Command, asyncio.Future[Command]]] = []

    def request(self, command: Command, timeout_s: float) -> asyncio.Future[Command]:
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self.pushes.append((command, future))
        return future


class Gate:
    """The way to a writer, for `appends_left` more batches; then nothing ever again, as after a kill."""

    def __init__(self, writer: MessageWriter) -> None:
        self._writer = writer
        self.appends_left = 1 << 60
        self.refused_topic = ""

    def append(self, topic: str, *arguments: Any, **words: Any) -> None:
        if self.appends_left <= 0:
            return
        self.appends_left -= 1
        if topic == self.refused_topic:
            words["done"](RefusedBatch(ResponseCode.SERVICE_NOT_AVAILABLE, "no room"))
        else:
            self._writer.append(topic, *arguments, **words)


class Bench:
    """One broker. `restart` throws away everything but the log and the offsets saved by `save_offsets`."""

    def __init__(self, directory: Path, settings: dict[str, Any], store_settings: dict[str, Any]) -> None:
        """Use `open_bench`."""
        self.directory = directory
        self.clock = ManualClock()
        self.store_settings = StoreSettings(segment_bytes=16 << 20, **store_settings)
        # Of the broker; they may be changed for the next life.
        self.settings = settings
        self.connection = FakeConnection()
        self.producers: dict[str, FakeConnection] = {}

    async def start(self) -> None:
        self.store = Store.open(
            self.directory / "data", self.store_settings, store_host=HOST, clock=self.clock
        )
        settings = BrokerSettings(listen_port=0, registries=(), cluster="C", **self.settings)
        self.broker = Broker(
            settings, self.store, directory=self.directory, store_host=HOST, clock=self.clock
        )
        self.transactions = self.broker.native.transactions
        self.checks = self.broker.native.transaction_checks
        self.handler = self.broker.native.transaction_ends
        self.offsets = self.broker.offsets
        self.writer = self.broker.writer
        self.gate = Gate(self.writer)
        self.transactions._writer = self.gate  # type: ignore[assignment]
        await self.broker.start()
        self.broker.topics.ensure("T", queues=4)
        for name, connection in self.producers.items():
            self.join(name, connection)

    def save_offsets(self) -> None:
        """What the broker does every few seconds; a later life finds it."""
        data = self.offsets.take_unsaved()
        if data is not None:
            self.offsets.write(data)

    async def restart(self, *, is_killed: bool = True) -> None:
        """The next life. After a kill the offsets are those of the last save."""
        config = self.directory / "config"
        kept = {path: path.read_bytes() for path in config.glob("consumerOffset.json*")}
        await self.close()
        if is_killed:
            for path in config.glob("consumerOffset.json*"):
                path.unlink()
            for path, content in kept.items():
                path.write_bytes(content)
        await self.start()

    async def close(self) -> None:
        await self.broker.stop()
        self.store.close()

    def join(self, client_id: str, connection: FakeConnection, group: str = "pg") -> None:
        """A heartbeat of a producer."""
        body = json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": group}]}).encode()
        self.broker.requests.handle(connection, Command.request(RequestCode.HEART_BEAT, {}, body))  # type: ignore[arg-type]

    def add_producer(self, client_id: str) -> FakeConnection:
        connection = self.producers[client_id] = FakeConnection()
        self.join(client_id, connection)
        return connection

    def request(self, request: Command) -> Command:
        """The answer, as the listener would give it; an empty one when there is none."""
        try:
            answer = self.broker.requests.handle(self.connection, request)  # type: ignore[arg-type]
        except RequestError as error:
            return request.reply(error.code, remark=str(error))
        finally:
            self.transactions.check_invariants()
        return answer or request.reply(-1)

    def prepare(
        self,
        body: bytes = b"hello",
        *,
        queue_id: int = 1,
        properties: str = "",
        key: str = "K1",
        **fields: str,
    ) -> Command:
        ext = {
            "a": "pg",
            "b": "T",
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": "4",
            "g": "1700000000000",
            "h": "7",
            "i": f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01pg\x02{properties}",
            **fields,
        }
        return self.request(Command.request(RequestCode.SEND_MESSAGE_V2, ext, body))

    def end(self, prepared: Command, outcome: int, **fields: str) -> Command:
        """End the transaction a prepared message or a check began."""
        ext = prepared.ext
        if "tranStateTableOffset" in ext:
            offset, position = ext["tranStateTableOffset"], ext["commitLogOffset"]
        else:
            offset, position = ext["queueOffset"], str(parse_offset_message_id(ext["msgId"])[2])
        words = {
            "producerGroup": "pg",
            "tranStateTableOffset": offset,
            "commitLogOffset": position,
            "commitOrRollback": str(outcome),
            "msgId": "K1",
            **fields,
        }
        return self.request(
            Command.request(
                RequestCode.END_TRANSACTION, {name: value for name, value in words.items() if value != "-"}
            )
        )

    async def end_later(self, prepared: Command, outcome: int) -> Command:
        """`end`, with an answer that may wait for the disk."""
        count = len(self.connection.replies)
        answer = self.end(prepared, outcome)
        if answer.code != -1:
            return answer
        await soon(lambda: len(self.connection.replies) > count, "the answer")
        return self.connection.replies[-1]

    def check(self, *, after_s: float = CHECK_INTERVAL_S) -> None:
        """One whole round of checks after so many seconds."""
        self.clock.advance(after_s)
        self.checks.check()
        self.finish_round()

    def finish_round(self) -> None:
        """Do what the loop does of a round of checks in the turns that follow."""
        while self.checks._due:
            self.checks._see_to_some()

    def asked(self, client_id: str) -> list[Command]:
        """The checks a producer has got and not looked at yet."""
        connection = self.producers[client_id]
        said, connection.said = connection.said, []
        return [command for command in said if command.code == RequestCode.CHECK_TRANSACTION_STATE]

    def records(self, topic: str = "T", queue_id: int = 1) -> list[Record]:
        queue = self.store.find_queue(topic, queue_id)
        if queue is None or queue.max_offset == queue.min_offset:
            return []
        read = self.store.read(queue, queue.min_offset, records_max=100_000, bytes_max=1 << 28)
        return [record for view in read.views for record in iter_records(view)]

    def bodies(self, topic: str = "T", queue_id: int = 1) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]


async def open_bench(directory: Path, *, flush: str = "async", **settings: Any) -> Bench:
    """A broker with these settings."""
    bench = Bench(directory, settings, {"flush": flush, "flush_interval_ms": 3_600_000})
    await bench.start()
    return bench


def asker(bench: Bench, client_id: str = "asker") -> AskingConnection:
    """A producer that may be handed replies."""
    connection = AskingConnection()
    bench.join(client_id, connection)
    return connection
