"""A broker over a real store for tests: it can stop, die as a killed process does, and be asked anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventually import soon
from manual_clock import ManualClock

from iotmq.broker.broker import Broker
from iotmq.broker.settings import BrokerSettings
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import iter_records
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
WAIT_S = 30.0
SEND = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip


class Site:
    """A broker that can stop, or die and leave its files as they are."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.settings = BrokerSettings(**{"listen_port": 0, "registries": (), **settings})

    async def start(self) -> None:
        self.store = Store.open(
            self.directory, StoreSettings(segment_bytes=1 << 20), store_host=HOST, clock=self.clock
        )
        self.broker = Broker(
            self.settings, self.store, directory=self.directory, store_host=HOST, clock=self.clock
        )
        await self.broker.start()
        self.client = await ClientConnection.connect("127.0.0.1", self.broker.port)

    async def stop(self, *, as_crash: bool = False) -> None:
        if as_crash:
            # What a send or a heartbeat has made is in the files a moment later.
            await soon(lambda: not self.broker._files.is_behind, "the files of the broker")
        files = (
            {path: path.read_bytes() for path in (self.directory / "config").iterdir()} if as_crash else {}
        )
        await self.client.close()
        await self.broker.stop()
        assert self.store.check() == []
        self.store.close()
        if as_crash:
            (self.directory / "abort").touch()
            for path in (self.directory / "config").iterdir():
                path.unlink()
            for path, data in files.items():
                path.write_bytes(data)

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return await self.client.request(Command.request(code, ext or {}, body), timeout_s=WAIT_S)

    async def send(self, body: bytes, **fields: str) -> Command:
        response = await self.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, **fields}, body)
        assert response.code == 0, response.remark
        return response

    async def bodies(self, queue_id: int = 0, topic: str = "T") -> list[bytes]:
        """What a new consumer finds in a queue."""
        queue = {"topic": topic, "queueId": str(queue_id)}
        first = await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "new", **queue})
        response = await self.ask(
            RequestCode.PULL_MESSAGE, {**PULL, **queue, "queueOffset": first.ext["offset"]}
        )
        return [record.body for record in iter_records(memoryview(response.body_bytes()))]
