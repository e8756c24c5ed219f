"""Three members of a broker, a registry, an etcd and a front end, each a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from etcd_node import EtcdNode
from eventually import eventually
from gateway_process import GatewayProcess, free_port

from iotmq.errors import IotmqError
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import Introduction
from iotmq.replication.settings import ReplicationSettings

BROKER = "pair"


class MemberCluster:
    """`with` starts all of it; members can be killed and started again."""

    def __init__(
        self,
        directory: Path,
        *assignments: str,
        members: int = 3,
        has_front: bool = True,
        front_assignments: Sequence[str] = (),
    ) -> None:
        """`assignments` are for --set of every member."""
        self.directory = directory
        self.etcd = EtcdNode(directory)
        ports = {number: free_port() for number in range(1, members + 1)}
        self._member_texts = [f"{number}=127.0.0.1:{port}" for number, port in ports.items()]
        self.connector = PeerConnector(
            ReplicationSettings(members=tuple(self._member_texts)),
            Introduction(cluster="DefaultCluster", broker=BROKER, segment_bytes=16_777_216),
        )
        self.registry = GatewayProcess(directory / "registry", role="registry")
        registries = f'broker.registries=["127.0.0.1:{self.registry.ports["registry"]}"]'
        self.members: dict[int, GatewayProcess] = {}
        texts = ", ".join(f'"{text}"' for text in self._member_texts)
        for number, port in ports.items():
            member = self.members[number] = GatewayProcess(
                directory / f"member-{number}",
                f"broker.name={BROKER}",
                registries,
                "replication.mode=elected",
                f"replication.member={number}",
                f"replication.members=[{texts}]",
                f'replication.etcd.endpoints=["{self.etcd.url}"]',
                *assignments,
                role="broker",
            )
            member.ports["broker"] = port
            member.assignments.append(f"broker.listen_port={port}")
        self.front: GatewayProcess | None = None
        if has_front:
            self.front = GatewayProcess(
                directory / "front",
                f'mqtt.registries=["127.0.0.1:{self.registry.ports["registry"]}"]',
                *front_assignments,
                role="mqtt",
            )

    def __enter__(self) -> Self:
        self.etcd.start()
        self.registry.start()
        for member in self.members.values():
            member.launch()
        self.wait_for_master()
        if self.front is not None:
            self.front.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.etcd.kill)
            for process in (self.registry, *self.members.values(), *filter(None, [self.front])):
                stack.push(process)

    def status(self, number: int) -> dict[str, Any] | None:
        """What a member says of itself; None when it does not answer."""

        async def ask() -> dict[str, Any] | None:
            try:
                return await self.connector.status(number, timeout_s=2.0)
            except IotmqError:
                return None

        return asyncio.run(ask())

    def master(self) -> int | None:
        """The member that serves as master now."""
        for number, member in self.members.items():
            if member.process is not None:
                status = self.status(number)
                if status is not None and status["isServing"]:
                    return number
        return None

    def wait_for_master(self, *, other_than: int | None = None, within_s: float = 30.0) -> int:
        def is_there() -> int | None:
            for member in self.members.values():
                assert member.process is None or member.process.poll() is None, member.log_text()[-4000:]
            number = self.master()
            return None if number == other_than else number

        found = eventually(is_there, "a member serves", within_s=within_s)
        assert found is not None
        return found

    def wait_in_sync(self, count: int, *, within_s: float = 30.0) -> None:
        """Wait until so many members are in sync, the master among them."""

        def are_in_sync() -> bool:
            master = self.master()
            status = None if master is None else self.status(master)
            return status is not None and len(status["state"]["in_sync"]) == count

        eventually(are_in_sync, f"{count} members are in sync", within_s=within_s)
