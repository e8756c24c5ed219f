"""List scheduled messages that wait at the brokers, and cancel one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Final

import msgspec

from iotmq.client.admin.asking import Asking
from iotmq.client.sending.recall import recall_message
from iotmq.client.transport.calls import ask_masters, master_addresses
from iotmq.client.transport.message import check_topic
from iotmq.remoting.codes import RequestCode, ResponseCode

_PAGE: Final = 500
_NOT_FOUND: Final = (ResponseCode.QUERY_NOT_FOUND,)


class WaitingMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Describe a message that waits for the time of its delivery."""

    topic: str
    """The topic it will be delivered to."""
    queue_id: int
    """The queue of that topic it will be delivered to."""
    due_ms: int
    """When it will be delivered, in milliseconds since 1970 of the broker's clock."""
    level: int = 0
    """The delay level it was sent with, from 1; 0 for a time of its own."""
    unique_key: str = ""
    """The `message_id` of its send result."""
    store_timestamp: int = 0
    """When the broker stored it, in milliseconds since 1970."""
    body_size: int = 0
    """Size of its body as it is stored, in bytes."""
    position: int = 0
    """Where its record begins in the log of the broker, in bytes."""
    broker_name: str = ""
    """The `broker.name` of the broker it waits on."""


class _Page(msgspec.Struct, rename="camel"):
    timers: list[WaitingMessage]
    next_after: str | None = msgspec.field(name="next", default=None)


class WaitingMessages(Asking):
    """List and cancel scheduled messages; needs a started client."""

    async def list(
        self, topic: str = "", *, broker_names: Collection[str] = ()
    ) -> AsyncIterator[WaitingMessage]:
        """Yield the waiting messages (for `topic`), broker by broker, the next due first.

        What is stored or delivered meanwhile may be among it or not. BrokerError when one refuses.
        """
        for name, address in (await master_addresses(self._client, broker_names)).items():
            doing = f"listing waiting messages at broker {name}"
            async for page in self._pages(
                _Page, address, RequestCode.LIST_TIMERS, {"topic": topic}, count=_PAGE, doing=doing
            ):
                for message in page.timers:
                    yield msgspec.structs.replace(message, broker_name=name)

    async def cancel(self, topic: str, unique_key: str, *, broker_names: Collection[str] = ()) -> bool:
        """Cancel the waiting message of `topic` with this unique key (the `message_id` of its send).

        All brokers are asked unless some are named. False when none has such a message, or not any more.
        """
        check_topic(topic)
        answers = await ask_masters(
            self._client,
            RequestCode.CANCEL_TIMER,
            {"topic": topic, "uniqueKey": unique_key},
            doing=f"cancelling {unique_key}",
            broker_names=broker_names,
            none_codes=_NOT_FOUND,
        )
        return bool(answers)

    async def recall(self, recall_handle: str, *, group: str = "DEFAULT_PRODUCER") -> bool:
        """Cancel the message whose send returned this handle. False when it does not wait (any more).

        MessageRefusedError for a text that is no handle, BrokerError when the broker refuses.
        """
        return await recall_message(self._client, recall_handle, group=group)
