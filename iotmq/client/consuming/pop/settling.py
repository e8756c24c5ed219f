"""Tell brokers what becomes of popped messages: acknowledgements of one turn go in one request."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from iotmq import limits
from iotmq.backoff import Backoff
from iotmq.client.consuming.pop.held_messages import HeldMessages
from iotmq.client.consuming.pop.popped_message import PoppedMessage
from iotmq.client.consuming.pulls import reconnect_backoff
from iotmq.client.transport.calls import asking, broker_address
from iotmq.client.transport.client import ClientTransport, expect_success
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import (
    ClientError,
    ConnectionClosedError,
    IotmqError,
    NotMasterError,
    ReceiptExpiredError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

_log = logging.getLogger(__name__)

_PASSING: Final = (ConnectionClosedError, NotMasterError, RequestTimeoutError, RouteNotFoundError)
# A request says of so many offsets in a row which are acknowledged.
_BITS_MAX: Final = limits.POP_ACK_BITS_BYTES_MAX * 8


class _Ack(msgspec.Struct):
    """Acknowledgements of one pop from one queue, as the body of request 200151 has them."""

    c: str
    t: str
    r: str
    so: int
    q: int
    rq: int
    pt: int
    it: int
    b: str


class _Acks(msgspec.Struct, rename="camel"):
    broker_name: str
    acks: list[_Ack]


class _Call:
    """Collect the answers to the acknowledgements of one call."""

    __slots__ = ("_left", "answered", "failed")

    def __init__(self, count: int) -> None:
        self._left = count
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed: list[tuple[PoppedMessage, Exception]] = []

    def end(self, message: PoppedMessage, error: Exception | None) -> None:
        """Note the answer to one."""
        if error is not None:
            self.failed.append((message, error))
        self._left -= 1
        # Who has given up waiting has cancelled it.
        if not self._left and not self.answered.done():
            self.answered.set_result(None)


class Settling:
    """Ask brokers for what a consumer decides about its messages."""

    def __init__(self, client: ClientTransport, group: str, held: HeldMessages) -> None:
        self._client = client
        self._group = group
        self._held = held
        self._acks: dict[str, list[tuple[PoppedMessage, _Call]]] = {}
        """Broker name -> what was acknowledged in this turn."""
        self._sending: set[asyncio.Task[None]] = set()
        self.acked_total = 0
        self.given_back_total = 0

    async def ack(self, *messages: PoppedMessage) -> None:
        """End messages; all that are acknowledged in one turn go in one request to each broker.

        The first error is raised when all others are ended.
        """
        error: Exception | None = None
        pauses: Backoff | None = None
        left = messages
        while True:
            call = _Call(len(left))
            for message in left:
                self._acknowledge(message, call)
            if left:
                await call.answered
            failed = dict(call.failed)
            now_s = asyncio.get_running_loop().time()
            for message in left:
                failure = failed.get(message)
                if isinstance(failure, _PASSING) and now_s < message.due_s:
                    continue
                self._held.release(message, is_consumed=failure is None)
                if failure is None:
                    self.acked_total += 1
                else:
                    failed.pop(message)
                    error = error or failure
            if not failed:
                break
            left = tuple(failed)
            pauses = pauses or reconnect_backoff(self._client)
            await self._client.masters.moved_within(pauses.next_s())
        if error is not None:
            raise error

    async def nak(self, message: PoppedMessage, delay_ms: int) -> None:
        """Have a message come again after so long."""
        if not 0 <= delay_ms <= limits.POP_INVISIBLE_MS_MAX:
            raise ClientError(f"a delay of {delay_ms} ms: it must be in 0..{limits.POP_INVISIBLE_MS_MAX}")
        await self._repeat(message, lambda tries: self._change(message, delay_ms, is_last=tries > 0))
        self._held.release(message)
        self.given_back_total += 1

    async def in_progress(self, message: PoppedMessage) -> None:
        """Hold a message for its whole time from now on."""
        invisible_ms = message.receipt.invisible_ms
        await self._repeat(message, lambda _: self._change(message, invisible_ms, is_last=False))
        self._held.hold(message)

    async def term(self, message: PoppedMessage) -> None:
        """Have a message among the dead letters now."""
        await self._repeat(message, lambda tries: self._change(message, None, is_last=tries > 0))
        self._held.release(message)

    async def give_back(self, messages: Iterable[PoppedMessage]) -> None:
        """Have messages come again at once that nobody has seen; those that cannot be come later."""
        results = await asyncio.gather(
            *(self._give_back(message) for message in messages), return_exceptions=True
        )
        for result in results:
            if isinstance(result, IotmqError):
                _log.debug("a message of group %s comes again late: %s", self._group, result)
            elif isinstance(result, BaseException):
                raise result

    async def _give_back(self, message: PoppedMessage) -> None:
        ext = {"invisibleTime": "0", "isUnseen": "true"}
        response = await self._request(message, RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME, ext)
        self._expect_held(message, response)

    async def _repeat(self, message: PoppedMessage, ask: Callable[[int], Awaitable[None]]) -> None:
        """Ask again while the broker is away and the time of the message lasts."""
        pauses = reconnect_backoff(self._client)
        loop = asyncio.get_running_loop()
        while True:
            try:
                await ask(pauses.failures)
                return
            except _PASSING:
                if loop.time() >= message.due_s:
                    self._held.release(message)
                    raise
            except ReceiptExpiredError:
                self._held.release(message)
                raise
            await self._client.masters.moved_within(pauses.next_s())

    async def _change(self, message: PoppedMessage, invisible_ms: int | None, *, is_last: bool) -> None:
        """Give a message another time, None to have it dead. With `is_last` a receipt that is used up was
        used by the try before."""
        ext = {} if invisible_ms is None else {"invisibleTime": str(invisible_ms)}
        if invisible_ms is None:
            ext = {"invisibleTime": "0", "isDead": "true"}
        response = await self._request(message, RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME, ext)
        if response.code == ResponseCode.NO_MESSAGE and is_last:
            return
        self._expect_held(message, response)
        if invisible_ms is not None:
            with asking(_doing(message)):
                popped_ms = response.integer("popTime", message.receipt.popped_ms)
                revive_queue = response.integer("reviveQid", message.receipt.revive_queue)
            message.receipt = message.receipt._replace(
                popped_ms=popped_ms,
                revive_queue=revive_queue,
                start_offset=message.queue_offset,
            )

    async def _request(self, message: PoppedMessage, code: int, ext: dict[str, str]) -> Command:
        queue = message.queue
        address = await broker_address(self._client, queue)
        fields = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "offset": str(message.queue_offset),
            "extraInfo": message.receipt.text(queue, message.queue_offset),
            "bname": queue.broker_name,
            **ext,
        }
        with asking(_doing(message)):
            return await self._client.request(address, Command.request(code, fields))

    def _expect_held(self, message: PoppedMessage, response: Command) -> None:
        queue = message.queue
        if response.code == ResponseCode.NO_MESSAGE:
            raise ReceiptExpiredError(
                f"group {self._group} does not hold offset {message.queue_offset} here any more: "
                f"{response.remark or 'its receipt is used up'}",
                topic=queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
            )
        _expect(response, _doing(message))

    # --- acknowledgements ---------------------------------------------------------------------------

    def _acknowledge(self, message: PoppedMessage, call: _Call) -> None:
        of_broker = self._acks.get(message.queue.broker_name)
        if of_broker is None:
            of_broker = self._acks[message.queue.broker_name] = []
            asyncio.get_running_loop().call_soon(self._send, message.queue.broker_name)
        of_broker.append((message, call))

    def _send(self, broker_name: str) -> None:
        pending = self._acks.pop(broker_name)
        for start in range(0, len(pending), limits.POP_ACKS_MAX):
            task = asyncio.ensure_future(self._send_some(pending[start : start + limits.POP_ACKS_MAX]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_some(self, pending: list[tuple[PoppedMessage, _Call]]) -> None:
        try:
            is_done = len(pending) > 1 and await self._acknowledge_many([message for message, _ in pending])
        except Exception as error:
            for message, call in pending:
                call.end(message, error)
            return
        if is_done:
            for message, call in pending:
                call.end(message, None)
            return
        # Some were not held, and the broker has not said which.
        await asyncio.gather(*(self._acknowledge_one(message, call) for message, call in pending))

    async def _acknowledge_one(self, message: PoppedMessage, call: _Call) -> None:
        try:
            self._expect_held(message, await self._request(message, RequestCode.ACK_MESSAGE, {}))
        except Exception as error:
            call.end(message, error)
        else:
            call.end(message, None)

    async def _acknowledge_many(self, messages: list[PoppedMessage]) -> bool:
        """Acknowledge messages of one broker; False when the broker does not hold some of them so."""
        bits: dict[tuple[MessageQueue, int, int], int] = {}
        for message in messages:
            at = message.queue_offset - message.receipt.start_offset
            if not 0 <= at < _BITS_MAX:
                return False
            key = message.queue, message.receipt.popped_ms, message.receipt.start_offset
            bits[key] = bits.get(key, 0) | 1 << at
        receipts = {
            (each.queue, each.receipt.popped_ms, each.receipt.start_offset): each.receipt for each in messages
        }
        body = msgspec.json.encode(
            _Acks(
                messages[0].queue.broker_name,
                [
                    _Ack(
                        c=self._group,
                        t=queue.topic,
                        r=receipts[queue, popped_ms, start].kind,
                        so=start,
                        q=queue.queue_id,
                        rq=receipts[queue, popped_ms, start].revive_queue,
                        pt=popped_ms,
                        it=receipts[queue, popped_ms, start].invisible_ms,
                        b=base64.b64encode(acked.to_bytes((acked.bit_length() + 7) // 8, "little")).decode(),
                    )
                    for (queue, popped_ms, start), acked in bits.items()
                ],
            )
        )
        broker_name = messages[0].queue.broker_name
        doing = f"acknowledging {len(messages)} messages of group {self._group} at broker {broker_name}"
        address = await broker_address(self._client, messages[0].queue)
        with asking(doing):
            response = await self._client.request(
                address, Command.request(RequestCode.BATCH_ACK_MESSAGE, {"bname": broker_name}, body)
            )
        if response.code == ResponseCode.NO_MESSAGE:
            return False
        _expect(response, doing)
        return True


def _doing(message: PoppedMessage) -> str:
    return f"settling offset {message.queue_offset} of {message.queue}"


def _expect(response: Command, doing: str) -> None:
    """Raise what a refusal means; one that passes as NotMasterError."""
    if response.code == ResponseCode.SERVICE_NOT_AVAILABLE:
        raise NotMasterError(response.code, f"{doing}: {response.remark}")
    expect_success(response, doing)
