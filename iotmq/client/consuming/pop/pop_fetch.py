"""Pop from the queues of one topic at one broker, as long as the consumer has credit."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Final, Protocol

import msgspec

from iotmq.client.consuming.pop.held_messages import HeldMessages
from iotmq.client.consuming.pop.popped_message import PoppedMessage, Receipt
from iotmq.client.consuming.pop.settling import Settling
from iotmq.client.consuming.pulls import PollBackoff, reconnect_backoff
from iotmq.client.transport.calls import asking, broker_address
from iotmq.client.transport.client import ClientTransport, expect_success
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import PopConsumerSettings
from iotmq.client.transport.subscriptions import Subscription
from iotmq.errors import (
    BrokerError,
    ConnectionClosedError,
    IotmqError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.limits import PULL_RECORDS_DEFAULT_MAX
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import iter_records
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.supervised import supervise

_log = logging.getLogger(__name__)

_ANY_QUEUE: Final = -1
_BACKOFF_S_MIN: Final = 0.01
_BACKOFF_S_MAX: Final = 1.0
_NOTHING: Final = (ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT)
# Worth trying again without telling the application: a broker that is away, an operator who has paused the
# group, and a topic that is being made or deleted.
_PASSING: Final = (ConnectionClosedError, RequestTimeoutError, RouteNotFoundError)
_PASSING_CODES: Final = (
    ResponseCode.NO_PERMISSION,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.TOPIC_NOT_EXIST,
)


class FetchOwner(Protocol):
    """Define what a fetch needs of its consumer."""

    @property
    def sharers(self) -> int:
        """Return how many fetches want a part of the credit, the one that asks included."""

    def arrived(self, messages: list[PoppedMessage]) -> None:
        """Take messages, which count already."""

    def failed(self, error: Exception) -> None:
        """Tell the application of an error that does not pass."""

    def in_background(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it ends."""


class PopParts(msgspec.Struct, frozen=True):
    """The parts of a consumer that all its fetches use."""

    client: ClientTransport
    group: str
    settings: PopConsumerSettings
    held: HeldMessages
    settling: Settling


class PopFetch:
    """Asks one broker for messages of a topic; waits there when there are none, here when credit is used up.

    A pop that waits takes a part of the credit with it. Where the credit is too small for that, the broker is
    asked to say when there is something.
    """

    def __init__(
        self, parts: PopParts, queue: MessageQueue, subscription: Subscription, owner: FetchOwner
    ) -> None:
        """`queue` names the topic and the broker."""
        self.subscription = subscription
        self.is_asking = False
        """True while it has a part of the credit."""
        self._parts = parts
        self._queue = queue
        self._owner = owner
        self._empty = PollBackoff(shortest_s=_BACKOFF_S_MIN, longest_s=_BACKOFF_S_MAX)
        self._failures = reconnect_backoff(parts.client)
        self._attempt_id = uuid.uuid4().hex
        self._task = supervise("pops", self._fetch_forever)

    def cancel(self) -> asyncio.Task[None]:
        """Ask no more; the task has ended soon. What is on its way is given back when it comes."""
        self._task.cancel()
        return self._task

    async def _fetch_forever(self) -> None:
        while True:
            try:
                await self._fetch_once()
                self._failures.reset()
            except Exception as error:
                is_passing = isinstance(error, _PASSING) or (
                    isinstance(error, BrokerError) and error.code in _PASSING_CODES
                )
                if is_passing:
                    _log.log(
                        logging.WARNING if isinstance(error, BrokerError) else logging.DEBUG,
                        "pops from %s at %s wait: %s",
                        self._queue.topic,
                        self._queue.broker_name,
                        error,
                    )
                else:
                    self._owner.failed(error)
                await self._parts.client.masters.moved_within(self._failures.next_s())

    async def _fetch_once(self) -> None:
        held = self._parts.held
        await held.wait_for_room()
        count = min(PULL_RECORDS_DEFAULT_MAX, held.free // self._owner.sharers)
        may_wait = count > 0
        if not may_wait:
            if not await self._is_notified():
                await self._empty.after_empty()
                return
            await held.wait_for_room()
            count = min(PULL_RECORDS_DEFAULT_MAX, held.free)
        held.reserved += count
        self.is_asking = True
        try:
            messages = await self._pop(count, poll_ms=self._parts.settings.hold_ms if may_wait else 0)
            for message in messages:
                held.hold(message)
        finally:
            self.is_asking = False
            held.unreserve(count)
        if not messages:
            await self._empty.after_empty()
            return
        self._empty.reset()
        accepts = self.subscription.accepts if self.subscription.tags else None
        if accepts is not None:
            # Brokers compare hashes: what only has the same one is of no interest to the group.
            for message in [each for each in messages if not accepts(each.tags)]:
                messages.remove(message)
                self._owner.in_background(asyncio.ensure_future(self._pass_over(message)))
        self._owner.arrived(messages)

    async def _pass_over(self, message: PoppedMessage) -> None:
        try:
            await self._parts.settling.ack(message)
        except IotmqError as error:
            _log.info("%r has another tag and comes again: %s", message, error)

    async def _is_notified(self) -> bool:
        response = await self._request(RequestCode.NOTIFICATION, poll_ms=self._parts.settings.hold_ms)
        return expect_success(response, self._doing()).ext.get("hasMsg") == "true"

    async def _pop(self, count: int, *, poll_ms: int) -> list[PoppedMessage]:
        asked = asyncio.ensure_future(self._request(RequestCode.POP_MESSAGE, count=count, poll_ms=poll_ms))
        try:
            await asyncio.wait([asked])
        except asyncio.CancelledError:
            # The broker does not know, and holds for us what it gives.
            self._owner.in_background(asyncio.ensure_future(self._give_back(asked)))
            raise
        response = asked.result()
        # One without an answer is made again under the same name, and gets what was given to it.
        self._attempt_id = uuid.uuid4().hex
        with asking(self._doing()):
            return self._read(response)

    async def _give_back(self, asked: asyncio.Task[Command]) -> None:
        try:
            await self._parts.settling.give_back(self._read(await asked))
        except (IotmqError, MessageFormatError) as error:
            _log.debug("%s came to nothing: %s", self._doing(), error)

    async def _request(self, code: int, *, count: int = 0, poll_ms: int) -> Command:
        parts = self._parts
        settings = parts.settings
        fields = {
            "consumerGroup": parts.group,
            "topic": self._queue.topic,
            "queueId": str(_ANY_QUEUE),
            "maxMsgNums": str(count),
            "invisibleTime": str(settings.invisible_ms),
            "pollTime": str(poll_ms),
            "bornTime": str(parts.client.clock.now_ms()),
            "initMode": "1" if settings.consume_from == "last" else "0",
            "expType": self.subscription.expression_type,
            "exp": self.subscription.expression,
            "order": "true" if settings.orderly is True else "false",
            "isKeyOrdered": "true" if settings.orderly == "key" else "false",
            "bname": self._queue.broker_name,
            "attemptId": self._attempt_id,
        }
        address = await broker_address(parts.client, self._queue)
        return await parts.client.request(
            address, Command.request(code, fields), timeout_s=settings.pop_timeout_ms / 1000
        )

    def _read(self, response: Command) -> list[PoppedMessage]:
        """Read the answer to a pop; BrokerError for a refusal, MessageFormatError for what is none."""
        if response.code in _NOTHING:
            return []
        expect_success(response, self._doing())
        popped_ms = response.integer("popTime")
        receipts: dict[int, Receipt] = {}
        for each in response.ext.get("startOffsetInfo", "").split(";"):
            try:
                kind, queue_id, start = each.split(" ")
                receipts[int(queue_id)] = Receipt(
                    start_offset=int(start),
                    popped_ms=popped_ms,
                    invisible_ms=response.integer("invisibleTime"),
                    revive_queue=response.integer("reviveQid"),
                    kind=kind,
                )
            except ValueError:
                raise MessageFormatError(
                    f"{self._doing()}: the broker has given receipts that cannot be read: {each[:80]!r}"
                ) from None
        messages = []
        queues = {queue_id: self._queue._replace(queue_id=queue_id) for queue_id in receipts}
        body = response.body
        for view in body if isinstance(body, list) else [body]:
            for record in iter_records(view):
                receipt = receipts.get(record.queue_id)
                if receipt is None:
                    raise MessageFormatError(
                        f"{self._doing()}: the broker has given a message of queue {record.queue_id} without "
                        "a receipt"
                    )
                messages.append(PoppedMessage(queues[record.queue_id], record, receipt, self._parts.settling))
        return messages

    def _doing(self) -> str:
        return (
            f"popping from topic {self._queue.topic} at broker {self._queue.broker_name} "
            f"for group {self._parts.group}"
        )
