"""Have functions of the application see messages before and after they are sent and consumed.

What is encoded, or read as columns, is seen as a whole, without an object per message. Lists of functions are
made once for each producer and consumer, and only of those that are overridden. What one of them raises is
counted and logged, and changes nothing for the message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from iotmq.client.transport.lifetime import Lifetime
from iotmq.client.transport.measured import Measured
from iotmq.client.transport.message import Message, SendResult, StoredMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, SourceReader, samples

if TYPE_CHECKING:
    import asyncio

    from iotmq.message.records.columns import Columns

_log = logging.getLogger(__name__)

UNSEEN_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""Messages of this producer group, which Java clients call so, too, are those of interceptors themselves."""
_LOG_PAUSE_S: Final = 1.0

_Call = TypeVar("_Call")


class Sending(msgspec.Struct, eq=False):
    """One call of a producer."""

    group: str
    """The producer's group."""
    messages: list[Message]
    """The messages, which are not to be changed; `set_property` puts copies in."""
    begun_s: float
    """When the call began, by `time.perf_counter`."""
    results: Sequence[SendResult] = ()
    """Afterwards: where the messages are stored; of `send_batch` one for each request. Empty when sending has
    failed, and for `send_oneway`."""
    message_ids: Sequence[str] = ()
    """Afterwards: the unique keys of `messages`, in their order, as far as they are known."""
    error: BaseException | None = None
    """Afterwards: why sending has failed; CancelledError where the caller has given it up."""
    notes: dict[object, Any] = msgspec.field(default_factory=dict)
    """Notes of interceptors from `before_send` for `after_send`, each under itself."""

    def set_property(self, name: str, value: str) -> None:
        """Give all messages a property; the application's own objects are not changed."""
        self.messages[:] = [
            msgspec.structs.replace(message, properties={**(message.properties or {}), name: value})
            for message in self.messages
        ]


class SendingEncoded(msgspec.Struct, eq=False):
    """One batch of a producer that the application has encoded."""

    group: str
    """The producer's group."""
    topic: str
    """The topic that it is for."""
    elements: bytes | memoryview
    """The batch, as `encode_batch` makes it."""
    count: int
    """The number of its messages."""
    begun_s: float
    """When the call began, by `time.perf_counter`."""
    result: SendResult | None = None
    """Afterwards: where it is stored; None when sending has failed."""
    error: BaseException | None = None
    """Afterwards: why sending has failed; CancelledError where the caller has given it up."""
    notes: dict[object, Any] = msgspec.field(default_factory=dict)
    """Notes of interceptors from the first call for the second, each under itself."""


class Consuming(msgspec.Struct, eq=False):
    """One call of a listener, or messages that a pull or pop consumer has returned."""

    group: str
    """The consumer group."""
    queue: MessageQueue
    """The queue that the messages were read from; of several that a pop consumer returns, the first one's."""
    messages: Sequence[StoredMessage]
    """The messages that the listener, or the program, gets."""
    begun_s: float
    """When the call began, by `time.perf_counter`."""
    is_asked: bool = False
    """True when the program has asked for them (`getmany`, `async for`), and no listener is called."""
    failed: Sequence[StoredMessage] = ()
    """Afterwards: the messages that have failed."""
    error: BaseException | None = None
    """Afterwards: the exception that the listener, or the `async with` block of a consumer, has raised."""
    notes: dict[object, Any] = msgspec.field(default_factory=dict)
    """Notes of interceptors from `before_consume` for `after_consume`, each under itself."""


class ConsumingColumns(msgspec.Struct, eq=False):
    """One call of a listener of columns, or columns that a pull consumer has returned."""

    group: str
    """The consumer group."""
    queue: MessageQueue
    """The queue that the messages were read from."""
    columns: Columns
    """The messages."""
    begun_s: float
    """When the call began, by `time.perf_counter`."""
    is_asked: bool = False
    """True when the program has asked for them, and no listener is called."""
    error: BaseException | None = None
    """Afterwards: why all of them have failed; None when they are consumed."""
    notes: dict[object, Any] = msgspec.field(default_factory=dict)
    """Notes of interceptors from the first call for the second, each under itself."""


class Interceptor(Measured):
    """Override what is to be called. The functions run on the event loop and must not block."""

    async def start(self, client: Lifetime) -> None:
        """Begin: the client, an `IotmqClient`, has started."""

    async def stop(self) -> None:
        """End: the client's own parts have ended, and its connections are still there."""

    def before_send(self, sending: Sending) -> None:
        """Look at messages before they are encoded."""

    def after_send(self, sending: Sending) -> None:
        """Look at what became of them."""

    def before_send_encoded(self, sending: SendingEncoded) -> None:
        """Look at an encoded batch before it is sent."""

    def after_send_encoded(self, sending: SendingEncoded) -> None:
        """Look at what became of it."""

    def before_consume(self, consuming: Consuming) -> None:
        """Look at messages before their listener is called, in its task and context, or they are returned."""

    def after_consume(self, consuming: Consuming) -> None:
        """Look at what the listener did, in the same task and context, or what became of returned messages.

        Those of a pull consumer are consumed when the program asks for more, or leaves the consumer's block
        without an error; those of a pop consumer when the last one of them is settled or its time is over.
        """

    def before_consume_columns(self, consuming: ConsumingColumns) -> None:
        """Look at columns before their listener is called, in its task and context, or they are returned."""

    def after_consume_columns(self, consuming: ConsumingColumns) -> None:
        """Look at what became of them, as `after_consume`."""


class Interceptors:
    """The interceptors of one client."""

    def __init__(self, interceptors: Iterable[Interceptor] = ()) -> None:
        self.all: Final = tuple(interceptors)
        for each in self.all:
            if not isinstance(each, Interceptor):
                text = f"interceptors are objects of classes that extend Interceptor, not {each!r}"
                raise ConfigError(text)
        self._reader = SourceReader(self.all)
        self.failed_total = 0
        """Calls of interceptors that have raised an exception."""
        self._last_log_s = -_LOG_PAUSE_S

    def for_producer(self, group: str) -> SendCalls | None:
        """Return the calls around the sends of a producer; None when nobody looks."""
        around = self._around("before_send", "after_send")
        return None if around is None or group == UNSEEN_GROUP else SendCalls(group, *around)

    def for_encoded(self, group: str) -> EncodedCalls | None:
        """Return the calls around the encoded batches of a producer; None when nobody looks."""
        around = self._around("before_send_encoded", "after_send_encoded")
        return None if around is None or group == UNSEEN_GROUP else EncodedCalls(group, *around)

    def for_consumer(self, group: str) -> ConsumeCalls | None:
        """Return the calls around the messages of a consumer; None when nobody looks."""
        around = self._around("before_consume", "after_consume")
        return None if around is None else ConsumeCalls(group, *around)

    def for_columns(self, group: str) -> ColumnsCalls | None:
        """Return the calls around the columns of a consumer; None when nobody looks."""
        around = self._around("before_consume_columns", "after_consume_columns")
        return None if around is None else ColumnsCalls(group, *around)

    def metrics(self) -> Iterable[Metric]:
        """Report the counter of failures, and what interceptors count."""
        yield from samples(
            (
                "iotmq_client_interceptors_failed_total",
                "Calls of interceptors that raised an exception",
                self.failed_total,
            )
        )
        yield from self._reader.samples()

    def _around(self, before: str, after: str) -> tuple[Callable[[Any], None], Callable[[Any], None]] | None:
        first, then = self._those(before), self._those(after)
        return (partial(self._call_all, first), partial(self._call_all, then)) if first or then else None

    def _those(self, name: str) -> tuple[Callable[[Any], None], ...]:
        return tuple(
            getattr(each, name)
            for each in self.all
            if getattr(type(each), name) is not getattr(Interceptor, name)
        )

    def _call_all(self, functions: tuple[Callable[[_Call], None], ...], call: _Call) -> None:
        for function in functions:
            try:
                function(call)
            except Exception:
                self.failed_total += 1
                # One that fails for everything must not fill the disk with tracebacks.
                now_s = time.perf_counter()
                if now_s - self._last_log_s >= _LOG_PAUSE_S:
                    self._last_log_s = now_s
                    _log.exception("interceptor %r failed; %d calls so far", function, self.failed_total)


class _Calls(Generic[_Call]):
    """The calls around what one producer or consumer does."""

    def __init__(self, group: str, before: Callable[[_Call], None], after: Callable[[_Call], None]) -> None:
        self._group = group
        self._before = before
        self._after = after


class SendCalls(_Calls[Sending]):
    """The calls around the sends of one producer."""

    def begin(self, messages: Sequence[Message]) -> Sending:
        """Return the call as interceptors have left it."""
        sending = Sending(self._group, list(messages), time.perf_counter())
        self._before(sending)
        return sending

    def end(
        self,
        sending: Sending,
        results: Sequence[SendResult] = (),
        error: BaseException | None = None,
        message_ids: Sequence[str] = (),
    ) -> None:
        """Tell how it ended."""
        sending.results, sending.error = results, error
        sending.message_ids = message_ids or [result.message_id for result in results]
        self._after(sending)

    def send(
        self, message: Message, send: Callable[[Message], asyncio.Future[SendResult]]
    ) -> asyncio.Future[SendResult]:
        """Send one message by `send`, with the calls around it."""
        sending = self.begin((message,))
        try:
            future = send(sending.messages[0])
        except BaseException as error:
            self.end(sending, error=error)
            raise
        future.add_done_callback(partial(self._ended, sending))
        return future

    async def send_unanswered(self, message: Message, send: Callable[[Message], Awaitable[str]]) -> None:
        """Send one message by `send`, which returns its id."""
        sending = self.begin((message,))
        try:
            message_id = await send(sending.messages[0])
        except BaseException as error:
            self.end(sending, error=error)
            raise
        self.end(sending, message_ids=(message_id,))

    def _ended(self, sending: Sending, future: asyncio.Future[SendResult]) -> None:
        try:
            results = (future.result(),)
        except BaseException as error:
            self.end(sending, error=error)
        else:
            self.end(sending, results)


class EncodedCalls(_Calls[SendingEncoded]):
    """The calls around the encoded batches of one producer."""

    def send(
        self,
        topic: str,
        elements: bytes | memoryview,
        count: int,
        send: Callable[[], asyncio.Future[SendResult]],
    ) -> asyncio.Future[SendResult]:
        """Send a batch by `send`, with the calls around it."""
        sending = SendingEncoded(self._group, topic, elements, count, time.perf_counter())
        self._before(sending)
        try:
            future = send()
        except BaseException as error:
            sending.error = error
            self._after(sending)
            raise
        future.add_done_callback(partial(self._ended, sending))
        return future

    def _ended(self, sending: SendingEncoded, future: asyncio.Future[SendResult]) -> None:
        try:
            sending.result = future.result()
        except BaseException as error:
            sending.error = error
        self._after(sending)


class ConsumeCalls(_Calls[Consuming]):
    """The calls around the messages of one consumer."""

    def begin(
        self, queue: MessageQueue, messages: Sequence[StoredMessage], *, is_asked: bool = False
    ) -> Consuming:
        """Tell that a listener, or the program, is about to get messages."""
        consuming = Consuming(self._group, queue, messages, time.perf_counter(), is_asked)
        self._before(consuming)
        return consuming

    def end(
        self,
        consuming: Consuming,
        failed: Sequence[StoredMessage] = (),
        error: BaseException | None = None,
    ) -> None:
        """Tell how it ended."""
        consuming.failed, consuming.error = failed, error
        self._after(consuming)


class ColumnsCalls(_Calls[ConsumingColumns]):
    """The calls around the columns of one consumer."""

    def begin(self, queue: MessageQueue, columns: Columns, *, is_asked: bool = False) -> ConsumingColumns:
        """Tell that a listener, or the program, is about to get columns."""
        consuming = ConsumingColumns(self._group, queue, columns, time.perf_counter(), is_asked)
        self._before(consuming)
        return consuming

    def end(self, consuming: ConsumingColumns, error: BaseException | None = None) -> None:
        """Tell how it ended."""
        consuming.error = error
        self._after(consuming)
