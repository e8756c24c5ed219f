"""Members of a replicated broker in this process, and the etcd they share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from eventually import soon
from fake_etcd import FakeEtcd
from gateway_process import free_port

from iotmq.broker.settings import BrokerSettings
from iotmq.clock import SystemClock
from iotmq.member.replicated_broker import ReplicatedBroker
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.replication.consensus.settings import EtcdSettings
from iotmq.replication.settings import ReplicationSettings
from iotmq.store.settings import StoreSettings

SEGMENT_BYTES = 4 * 1024 * 1024
ACCOUNTS = """
accounts:
  - {accessKey: members, secretKey: abcdefgh, admin: true}
  - {accessKey: services, secretKey: 12345678, topicPerms: [T=PUB|SUB]}
"""


class Site:
    """Members by their numbers, and the etcd they share."""

    def __init__(self, directory: Path, etcd: FakeEtcd, count: int) -> None:
        self.directory = directory
        self.etcd = etcd
        self.ports = {number: free_port() for number in range(1, count + 1)}
        self.members: dict[int, ReplicatedBroker] = {}

    async def start(
        self,
        number: int,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        directory: str = "",
        broker: dict[str, Any] | None = None,
        replication: dict[str, Any] | None = None,
        port: int | None = None,
    ) -> ReplicatedBroker:
        member = ReplicatedBroker(
            BrokerSettings(
                **{  # type: ignore[arg-type]
                    "name": "b",
                    "registries": (),
                    "listen_port": port or self.ports[number],
                    **(broker or {}),
                }
            ),
            StoreSettings(segment_bytes=segment_bytes),
            ReplicationSettings(
                **{  # type: ignore[arg-type]
                    "mode": "elected",
                    "member": number,
                    "members": tuple(f"{n}=127.0.0.1:{p}" for n, p in self.ports.items()),
                    "etcd": EtcdSettings(endpoints=(self.etcd.url,), timeout_ms=1_000),
                    **(replication or {}),
                }
            ),
            directory=self.directory / (directory or str(number)),
            clock=SystemClock(),
        )
        await member.start()
        self.members[number] = member
        return member

    async def start_all(self, **options: Any) -> int:
        for number in self.ports:
            await self.start(number, **options)
        return await self.master()

    async def master(self) -> int:
        """The member that serves, once there is one."""
        await soon(lambda: any(member.broker for member in self.members.values()), "a member serves")
        return next(number for number, member in self.members.items() if member.broker)

    async def in_sync(self, count: int) -> None:
        def are_in_sync() -> bool:
            status = self.status(next((n for n, m in self.members.items() if m.broker), 0))
            return status is not None and len(status["state"]["in_sync"]) == count

        await soon(are_in_sync, f"{count} members are in sync")

    def run(self, number: int) -> Any:
        """The driver, the store and the broker of a member that runs; None of one that does not."""
        member = self.members.get(number)
        return None if member is None else member._run

    def status(self, number: int) -> dict[str, Any] | None:
        run = self.run(number)
        return None if run is None else run.driver.status()

    async def stop(self, number: int) -> None:
        await self.members.pop(number).stop()

    def connect(self, number: int) -> Awaitable[ClientConnection]:
        return ClientConnection.connect("127.0.0.1", self.ports[number])


MakeSite = Callable[..., Site]


async def send(connection: ClientConnection, body: bytes) -> Command:
    """Send a message to the topic T, which is made with the first one."""
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    return await connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, fields, body), 10.0)


def bodies(site: Site, number: int) -> list[bytes]:
    """What consumers of a member would see in the queue 0 of T."""
    run = site.run(number)
    queue = run.opened.store.find_queue("T", 0)
    if queue is None:
        return []
    found = []
    for offset in range(queue.max_offset):
        entry = queue.entry(offset)
        assert entry is not None
        found.append(bytes(run.opened.store.read_record(entry[0])))
    return found
