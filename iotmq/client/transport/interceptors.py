"""Have functions of the application see messages before and after they are sent and consumed.

Their lists are made once for each producer and consumer, and only of those that are overridden. What one of
them raises is counted and logged, and changes nothing for the message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from iotmq.client.transport.lifetime import Lifetime
from iotmq.client.transport.message import Message, ReceivedMessage, SendResult
from iotmq.client.transport.routes import MessageQueue
from iotmq.metrics import Metric, samples

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)

UNSEEN_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""Messages of this producer group, which Java clients call so, too, are those of interceptors themselves."""
_LOG_PAUSE_S: Final = 1.0

_Call = TypeVar("_Call", "Sending", "Consuming")


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


class Consuming(msgspec.Struct, eq=False):
    """One call of a listener."""

    group: str
    """The consumer group."""
    queue: MessageQueue
    """The queue that the messages were read from."""
    messages: Sequence[ReceivedMessage]
    """The messages that the listener gets."""
    begun_s: float
    """When the call began, by `time.perf_counter`."""
    failed: Sequence[ReceivedMessage] = ()
    """Afterwards: the messages that have failed."""
    error: BaseException | None = None
    """Afterwards: the exception that the listener has raised."""
    notes: dict[object, Any] = msgspec.field(default_factory=dict)
    """Notes of interceptors from `before_consume` for `after_consume`, each under itself."""


class Interceptor:
    """Override what is to be called. The functions run on the event loop and must not block."""

    async def start(self, client: Lifetime) -> None:
        """Begin: the client, an `IotmqClient`, has started."""

    async def stop(self) -> None:
        """End: the client's own parts have ended, and its connections are still there."""

    def before_send(self, sending: Sending) -> None:
        """Look at messages before they are encoded."""

    def after_send(self, sending: Sending) -> None:
        """Look at what became of them."""

    def before_consume(self, consuming: Consuming) -> None:
        """Look at messages before their listener is called, in its task and context."""

    def after_consume(self, consuming: Consuming) -> None:
        """Look at what the listener did, in the same task and context."""


class Interceptors:
    """The interceptors of one client."""

    def __init__(self, interceptors: Iterable[Interceptor] = ()) -> None:
        self.all: Final = tuple(interceptors)
        self.failed_total = 0
        """Calls of interceptors that have raised an exception."""
        self._last_log_s = -_LOG_PAUSE_S

    def for_producer(self, group: str) -> SendCalls | None:
        """Return the calls around the sends of a producer; None when nobody looks."""
        before, after = self._those("before_send"), self._those("after_send")
        if group == UNSEEN_GROUP or not (before or after):
            return None
        return SendCalls(group, partial(self._call_all, before), partial(self._call_all, after))

    def for_consumer(self, group: str) -> ConsumeCalls | None:
        """Return the calls around those of a consumer's listener; None when nobody looks."""
        before, after = self._those("before_consume"), self._those("after_consume")
        if not (before or after):
            return None
        return ConsumeCalls(group, partial(self._call_all, before), partial(self._call_all, after))

    def metrics(self) -> Iterable[Metric]:
        """Report the counter of failures."""
        yield from samples(
            (
                "iotmq_client_interceptors_failed_total",
                "Calls of interceptors that raised an exception",
                self.failed_total,
            )
        )

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


class SendCalls:
    """The calls around the sends of one producer."""

    def __init__(
        self, group: str, before: Callable[[Sending], None], after: Callable[[Sending], None]
    ) -> None:
        self._group = group
        self._before = before
        self._after = after

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

    def _ended(self, sending: Sending, future: asyncio.Future[SendResult]) -> None:
        try:
            results = (future.result(),)
        except BaseException as error:
            self.end(sending, error=error)
        else:
            self.end(sending, results)


class ConsumeCalls:
    """The calls around those of one consumer's listener."""

    def __init__(
        self, group: str, before: Callable[[Consuming], None], after: Callable[[Consuming], None]
    ) -> None:
        self._group = group
        self._before = before
        self._after = after

    def begin(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> Consuming:
        """Tell that a listener is about to be called."""
        consuming = Consuming(self._group, queue, messages, time.perf_counter())
        self._before(consuming)
        return consuming

    def end(
        self,
        consuming: Consuming,
        failed: Sequence[ReceivedMessage] = (),
        error: BaseException | None = None,
    ) -> None:
        """Tell how it ended."""
        consuming.failed, consuming.error = failed, error
        self._after(consuming)
