"""A master and a slave in the way of RocketMQ 4.9, in this process; both can stop and start again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker_site import PULL, SEND, WAIT_S
from eventually import soon
from gateway_process import free_port

from iotmq.broker.settings import BrokerSettings
from iotmq.clock import SystemClock
from iotmq.master_slave.master import MasterBroker
from iotmq.master_slave.slave import SlaveBroker
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import iter_records
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.replication.settings import ReplicationSettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

SEGMENT_BYTES = 1 << 20


class Node:
    """One broker of the name, over its own directory."""

    def __init__(self, directory: Path, **replication: Any) -> None:
        self.directory = directory
        self.replication = replication
        self.broker_settings: dict[str, Any] = {}
        self.store_settings: dict[str, Any] = {}
        self.port = free_port()

    async def start(self) -> None:
        """Open the directory and start, in the role of the settings."""
        replication = ReplicationSettings(mode="static", **self.replication)
        assert replication.problems() == []
        settings = BrokerSettings(listen_port=self.port, registries=(), **self.broker_settings)
        self.store = Store.open(
            self.directory,
            StoreSettings(**{"segment_bytes": SEGMENT_BYTES, **self.store_settings}),
            store_host=encode_host("127.0.0.1", self.port),
        )
        make = SlaveBroker if replication.role == "slave" else MasterBroker
        self.role: Any = make(
            settings, self.store, replication, directory=self.directory, clock=SystemClock()
        )
        try:
            await self.role.start()
        except BaseException:
            self.store.close()
            raise
        self.broker = self.role.broker
        self.client = await ClientConnection.connect("127.0.0.1", self.port)

    async def stop(self) -> None:
        """Stop, and check what is left."""
        await self.client.close()
        await self.role.stop()
        assert self.store.check() == []
        self.store.close()

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return await self.client.request(Command.request(code, ext or {}, body), timeout_s=WAIT_S)

    async def send(self, body: bytes, **fields: str) -> int:
        """The code of the answer to a send."""
        return (await self.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, **fields}, body)).code

    async def pull(self, **fields: str) -> Command:
        return await self.ask(RequestCode.PULL_MESSAGE, {**PULL, **fields})

    async def bodies(self, **fields: str) -> list[bytes]:
        """The messages of an answer to a pull."""
        answer = await self.pull(**fields)
        return [record.body for record in iter_records(memoryview(answer.body_bytes()))]


class Pair:
    """Use with `async with`: both have started and the slave is connected."""

    def __init__(self, directory: Path, role: str = "async_master", **replication: Any) -> None:
        self.master = Node(directory / "master", role=role, **replication)
        self.slave = Node(
            directory / "slave",
            role="slave",
            broker_id=1,
            master_address=f"127.0.0.1:{self.master.port + 1}",
        )

    async def __aenter__(self) -> Pair:
        await self.master.start()
        try:
            await self.slave.start()
        except BaseException:
            await self.master.stop()
            raise
        await self.connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in (self.slave, self.master):
            if not node.client.is_closed:
                await node.stop()

    async def connected(self) -> None:
        """Wait until the master counts the slave."""
        await soon(lambda: self.master.role.ha.reported_position >= 0, "the slave is connected")

    async def level(self) -> None:
        """Wait until the slave has, and shows, all that the master has."""
        await soon(
            lambda: self.slave.store.confirmed_position == self.master.store.appended_position,
            "the slave has everything",
        )

    async def poll(self) -> None:
        """Have the slave ask for its master's tables now."""
        await self.slave.role.tables.poll()
