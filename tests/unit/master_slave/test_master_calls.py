"""How a slave calls its master, and looks for it at registries that may say anything."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from iotmq.broker.settings import BrokerSettings
from iotmq.errors import ConnectionClosedError
from iotmq.master_slave import master_calls
from iotmq.master_slave.master_calls import MasterCalls, find_master
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.server import RemotingServer, ServerConnection
from iotmq.replication.settings import ReplicationSettings


class Peer:
    """Gives one body for an answer to everything."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.server = RemotingServer(self)

    async def __aenter__(self) -> Peer:
        await self.server.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.server.stop()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.server.port

    def handle(self, connection: ServerConnection, request: Command) -> Command:
        return request.reply(ResponseCode.SUCCESS, body=self._body)

    def connection_lost(self, connection: ServerConnection) -> None:
        """Nothing depends on it."""


def knows(address: str) -> bytes:
    """Return what a registry says that has the broker b's master at an address."""
    return msgspec.json.encode({"brokerAddrTable": {"b": {"brokerAddrs": {"0": address}}}})


@pytest.mark.parametrize("address", ["", "garbage", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536"])
async def test_a_registry_that_has_the_master_at_no_address_is_passed_over(address: str) -> None:
    async with Peer(knows(address)) as lying, Peer(knows("10.0.0.1:10911")) as other:

        def registries(*peers: Peer) -> BrokerSettings:
            return BrokerSettings(
                name="b", registries=tuple(f"127.0.0.1:{peer.address[1]}" for peer in peers)
            )

        assert await find_master(registries(lying, other)) == ("10.0.0.1", 10911)
        assert await find_master(registries(lying)) is None


async def test_a_master_that_moves_while_the_former_is_called_is_called_at_its_new_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Peer(b"former") as former, Peer(b"present") as present:
        calls = MasterCalls(ReplicationSettings())
        calls.call_at(former.address)
        is_connected, goes_on = asyncio.Event(), asyncio.Event()

        class Slow(ClientConnection):
            @classmethod
            async def connect(cls, *arguments, **options):  # type: ignore[no-untyped-def, override]
                connection = await super().connect(*arguments, **options)
                is_connected.set()
                await goes_on.wait()
                return connection

        monkeypatch.setattr(master_calls, "ClientConnection", Slow)
        calling = asyncio.ensure_future(calls.body(RequestCode.GET_ALL_TOPIC_CONFIG))
        await is_connected.wait()
        calls.call_at(present.address)
        goes_on.set()
        with pytest.raises(ConnectionClosedError, match="another address"):
            await calling
        assert await calls.body(RequestCode.GET_ALL_TOPIC_CONFIG) == b"present"
        calls.stop()
