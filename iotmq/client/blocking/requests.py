"""Requests and replies for programs without an event loop."""

from __future__ import annotations

from collections.abc import Mapping

from iotmq.client.blocking.client import SyncClient
from iotmq.client.sending.requests import REPLIER_GROUP, REQUESTER_GROUP, Replier, Requester
from iotmq.client.transport.lifetime import BlockingLifetime
from iotmq.client.transport.message import Message, ReceivedMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ProducerSettings


class SyncRequester(BlockingLifetime):
    """A `Requester` for blocking code; `with` starts and stops it."""

    def __init__(
        self, client: SyncClient, group: str = REQUESTER_GROUP, settings: ProducerSettings | None = None
    ) -> None:
        self._client = client
        self._requester = Requester(client.client, group, settings)

    def start(self) -> None:
        """Take replies from now on."""
        self._client.run(self._requester.start())

    def stop(self) -> None:
        """Leave; requests that wait for a reply fail."""
        self._client.run(self._requester.stop())

    def request(
        self, message: Message, *, timeout_ms: int = 3_000, queue: MessageQueue | None = None
    ) -> ReceivedMessage:
        """Return the reply to a message."""
        return self._client.run(self._requester.request(message, timeout_ms=timeout_ms, queue=queue))


class SyncReplier:
    """A `Replier` for blocking code."""

    def __init__(self, client: SyncClient, group: str = REPLIER_GROUP) -> None:
        self._client = client
        self._replier = Replier(client.client, group)

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a reply; returns when the requester has it."""
        self._client.run(
            self._replier.reply(request, body, tags=tags, properties=properties, timeout_ms=timeout_ms)
        )
