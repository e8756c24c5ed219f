"""What members ask each other, and answers that no member gives."""

from __future__ import annotations

import pytest

from iotmq.addresses import address_text
from iotmq.errors import BrokerError
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import Introduction
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import RemotingServer, ServerConnection
from iotmq.replication.settings import ReplicationSettings


class Peer:
    """Member 1, which says of itself whatever it is told to."""

    def __init__(self, status: bytes) -> None:
        self._status = status
        self.server = RemotingServer(self)

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        assert request.code == RequestCode.GET_MEMBER_STATUS
        return request.reply(ResponseCode.SUCCESS, body=self._status)

    def connection_lost(self, connection: ServerConnection) -> None:
        """Nothing depends on it."""

    @property
    def connector(self) -> PeerConnector:
        address = address_text("127.0.0.1", self.server.port)
        introduction = Introduction(cluster="C", broker="b", segment_bytes=4096)
        return PeerConnector(ReplicationSettings(members=(f"1={address}",)), introduction)


@pytest.mark.parametrize(
    "status",
    [b"", b"[]", b'{"role": "\xff"}', b'{"role": ' + b"[" * 100_000],
    ids=["empty", "list", "no text", "deep"],
)
async def test_a_status_that_cannot_be_read_is_an_error_of_that_member(status: bytes) -> None:
    peer = Peer(status)
    await peer.server.start()
    try:
        with pytest.raises(BrokerError, match="cannot be read"):
            await peer.connector.status(1, timeout_s=5.0)
    finally:
        await peer.server.stop()
