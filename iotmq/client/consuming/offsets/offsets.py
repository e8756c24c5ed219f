"""Ask a queue's broker for offsets, and commit a group's offset."""

from __future__ import annotations

from iotmq.client.transport.calls import ask, asking, broker_address
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import BrokerError
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


async def max_offset(client: ClientTransport, queue: MessageQueue) -> int:
    """Ask for the offset that the next message of the queue will get."""
    return await _ask_offset(client, queue, RequestCode.GET_MAX_OFFSET, {})


async def min_offset(client: ClientTransport, queue: MessageQueue) -> int:
    """Ask for the offset of the oldest message that is still there."""
    return await _ask_offset(client, queue, RequestCode.GET_MIN_OFFSET, {})


async def offset_at_time(client: ClientTransport, queue: MessageQueue, timestamp_ms: int) -> int:
    """Ask for the offset of the message stored nearest to a time; the last one's for any later time."""
    return await _ask_offset(
        client, queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(timestamp_ms)}
    )


async def stored_offset(client: ClientTransport, group: str, queue: MessageQueue) -> int | None:
    """Ask for the offset that the group committed; None when it never did."""
    try:
        return await _ask_offset(client, queue, RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": group})
    except BrokerError as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise


async def commit_offset(client: ClientTransport, group: str, queue: MessageQueue, offset: int) -> None:
    """Commit the group's offset of a queue."""
    ext = {"consumerGroup": group, "commitOffset": str(offset)}
    await _ask(client, queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext, doing=f"commit of {group} at {queue}")


async def _ask_offset(client: ClientTransport, queue: MessageQueue, code: int, ext: dict[str, str]) -> int:
    doing = f"offset of {queue}"
    answer = await _ask(client, queue, code, ext, doing=doing)
    with asking(doing):
        return answer.integer("offset")


async def _ask(
    client: ClientTransport, queue: MessageQueue, code: int, ext: dict[str, str], *, doing: str
) -> Command:
    place = {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}
    return await ask(client, await broker_address(client, queue), code, {**ext, **place}, doing=doing)
