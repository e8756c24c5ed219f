"""The types of the blocking classes. Written by tools/blocking_stub.py; do not edit."""

import concurrent.futures
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from prometheus_client import Metric as PrometheusMetric

from iotmq.client.admin.access import AccessAdmin, AccountsVersion
from iotmq.client.admin.admin import Admin, QueueOffsets
from iotmq.client.admin.brokers import BrokerProgress, BrokerViews, QueueContent, Statistics
from iotmq.client.admin.changes import AdminChanges, ResetOffsets, SkippedQueue
from iotmq.client.admin.configs import BrokerPlace, Configurations, GroupSettings, RoutedQueues, TopicSettings
from iotmq.client.admin.dead_letters import DeadLetter, DeadLetters, Resent
from iotmq.client.admin.groups import (
    ClientInfo,
    Connection,
    ConsumerConnections,
    DirectResult,
    GroupProgress,
    GroupViews,
    ProducerInfo,
    QueueTimes,
    RunningInfo,
)
from iotmq.client.admin.messages import MessageViews, QueueEntries, Track
from iotmq.client.admin.queue_scaling import DrainProgress, QueueScaling, TopicState
from iotmq.client.admin.scheduled import WaitingMessage, WaitingMessages
from iotmq.client.blocking.facade import Blocking, BlockingClient, BlockingLifetime
from iotmq.client.client import IotmqClient
from iotmq.client.consuming.members.membership import RebalanceListener
from iotmq.client.consuming.members.rebalance import Allocation
from iotmq.client.consuming.pop.pop_consumer import PopConsumer
from iotmq.client.consuming.pop.popped_message import PoppedMessage, Receipt
from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.consuming.pushing.listener_calls import ColumnsListener, Listener
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.sending.producer import Producer
from iotmq.client.sending.queue_choice import QueueChoice
from iotmq.client.sending.requests import Replier, Requester
from iotmq.client.sending.transactions import (
    Check,
    Execute,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from iotmq.client.transport.connection_events import ConnectionListener
from iotmq.client.transport.interceptors import Interceptor
from iotmq.client.transport.message import Message, ReceivedMessage, SendResult
from iotmq.client.transport.routes import MessageQueue, TopicRoute
from iotmq.client.transport.settings import (
    ClientSettings,
    PopConsumerSettings,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from iotmq.errors import ListenerError
from iotmq.message.records.columns import Columns
from iotmq.message.records.record import Record
from iotmq.metrics import Metric

_T = TypeVar("_T")

class SyncTransaction(Blocking):
    """The blocking form of `Transaction`, for any thread."""

    result: SendResult
    """Where the prepared message is kept."""
    state: TransactionState
    """COMMIT or ROLLBACK once the broker has confirmed it."""
    @property
    def message_id(self) -> str:
        """Return the message's unique key, which a check names it by."""
    def commit(self) -> None:
        """Have the message delivered. May be repeated after an error; if it is not, the broker asks."""
    def rollback(self) -> None:
        """Have the message dropped. May be repeated after an error; if it is not, the broker asks."""
    asynchronous: Transaction
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncProducer(BlockingLifetime):
    """The blocking form of `Producer`, for any thread. `with` starts and stops it."""
    def __init__(
        self, client: SyncClient, group: str = "DEFAULT_PRODUCER", settings: ProducerSettings | None = None
    ) -> None: ...
    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this producer."""
    def collect(self) -> list[PrometheusMetric]:
        """Return the numbers as prometheus_client has them, for its registries.

        ClientError when the package prometheus-client is not installed.
        """
    def start(self) -> None:
        """Take part in the client's heartbeats; the client must be started."""
    def stop(self) -> None:
        """Wait for the sends in flight (each ends by its own timeout), then leave.

        It goes on when nobody waits for it any more, and all who call it wait for the same end.
        """
    group: str
    """The name of its group."""
    settings: ProducerSettings
    """The settings it was made with."""
    def send(
        self, message: Message, *, queue: QueueChoice | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message and wait until it is stored; waits first while too many are in flight.

        MessageRefusedError for a message that no broker would take, RouteNotFoundError without a broker
        for the topic, RequestTimeoutError without an answer, BrokerError when it is refused,
        SendFailedError when all tries failed.
        """
    def send_nowait(
        self, message: Message, *, queue: QueueChoice | None = None, timeout_ms: int | None = None
    ) -> concurrent.futures.Future[SendResult]:
        """Send one message; the future ends as `send` would. ProducerBusyError past `in_flight_max`."""
    def send_to_device(
        self,
        mqtt_topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        expiry_s: float = 0,
        topic: str = "commands",
    ) -> SendResult:
        """Send a message to every device that subscribes an MQTT topic.

        `topic` is the broker topic that has it. Devices do not get it `expiry_s` after it was stored, unless
        that is 0; with `retain` later subscribers get it, too. Messages of one MQTT topic keep their order.
        Raises what `send` raises.
        """
    def send_oneway(self, message: Message, *, queue: QueueChoice | None = None) -> None:
        """Send one message without asking for an answer: it may get lost without anybody noticing.

        Returns when it is on its way; RouteNotFoundError or ConnectionClosedError when there is none.
        """
    def recall(self, recall_handle: str) -> bool:
        """Take back a message that waits for a time of its own, by the `recall_handle` of its send's result.

        False when it does not wait any more. MessageRefusedError for a text that is no handle,
        RouteNotFoundError when its broker is not there, BrokerError when that refuses.
        """
    def send_batch(
        self, messages: Sequence[Message], *, queue: QueueChoice | None = None, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages with one request per queue; the results are per request, in no fixed order.

        Messages with keys go to their keys' queues, those without share one queue. Groups past
        `body_bytes_max` are split. All requests are waited for; then the first failure, if any, is
        raised, with a note of how many messages are stored. MessageRefusedError, with nothing sent,
        for delayed messages, which a batch cannot carry.
        """
    def send_encoded_batch(
        self, topic: str, queue: MessageQueue | None, elements: bytes | memoryview, count: int
    ) -> SendResult:
        """Send `count` messages encoded by `encode_batch`, as one request.

        `queue` None takes the next by turn. The elements are sent as they are, without a copy; do not
        change them before the result.
        """
    def send_encoded_batch_nowait(
        self,
        topic: str,
        queue: MessageQueue | None,
        elements: bytes | memoryview,
        count: int,
        *,
        is_repeat: bool = False,
        has_packet_ids: bool = False,
        sys_flag: int = 0,
    ) -> concurrent.futures.Future[SendResult]:
        """Like `send_encoded_batch`, without waiting. ProducerBusyError when too many are in flight.

        `is_repeat`: the broker may have stored it before, and looks for it by the unique key of its first
        message that has one. `has_packet_ids`: messages have MQTT_PACKET_ID. `sys_flag` says how their bodies
        are compressed.
        """
    def send_elements_nowait(
        self, queue: MessageQueue, elements: bytes, count: int
    ) -> concurrent.futures.Future[SendResult]:
        """Like `send_encoded_batch_nowait`, in one request with others that wait for the queue.

        The ids that name places in the log are not told of more than one message.
        """
    @property
    def joins_sends(self) -> bool:
        """Return whether `send_elements_nowait` may be used for single messages now: there is room, and no
        interceptor wants to see each of them."""
    def known_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return what `queues` would, if that is known already; empty otherwise."""
    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """List the queues that take messages of `topic` (for a new topic: those it will have), sorted."""
    def room(self) -> None:
        """Wait until `send_nowait` would not refuse."""
    def drain(self) -> None:
        """Wait until nothing is in flight; messages that linger go at once."""
    @property
    def in_flight(self) -> int:
        """Return the number of sends without a result yet."""
    asynchronous: Producer
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncTransactionProducer(SyncProducer):
    """The blocking form of `TransactionProducer`, for any thread. `with` starts and stops it."""
    def __init__(
        self,
        client: SyncClient,
        group: str,
        check: Check,
        settings: ProducerSettings | None = None,
        *,
        topics: Iterable[str] = (),
        threads: int = 4,
    ) -> None: ...
    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this producer."""
    def start(self) -> None:
        """Take part in the client's heartbeats, so that brokers can ask; the client must be started."""
    group: str
    """The name of its group."""
    settings: ProducerSettings
    """The settings it was made with."""
    def begin(
        self,
        message: Message,
        *,
        queue: QueueChoice | None = None,
        timeout_ms: int | None = None,
        check_after_s: int | None = None,
    ) -> SyncTransaction:
        """Prepare a message: it is stored, and delivered once the transaction is committed.

        The broker asks after `check_after_s`, by default after a time of its own (6 s). Raises what `send`
        raises, and BrokerError when the broker's promise (flush, copies) was not kept: a message that is
        lost after all could not be committed, so it is rolled back.
        """
    def send_in_transaction(
        self,
        message: Message,
        execute: Execute,
        *,
        queue: QueueChoice | None = None,
        timeout_ms: int | None = None,
        check_after_s: int | None = None,
    ) -> SyncTransaction:
        """Prepare a message, run `execute`, and end the transaction as it says.

        When `execute` raises, the transaction stays open, the broker asks later, and the error is raised.
        An end that does not get through is only logged (`state` stays UNKNOWN), and the broker asks.
        """
    asynchronous: TransactionProducer
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncRequester(BlockingLifetime):
    """The blocking form of `Requester`, for any thread. `with` starts and stops it."""
    def __init__(
        self, client: SyncClient, group: str = "DEFAULT_REQUESTER", settings: ProducerSettings | None = None
    ) -> None: ...
    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this requester, and of the producer of its requests."""
    def collect(self) -> list[PrometheusMetric]:
        """Return the numbers as prometheus_client has them, for its registries.

        ClientError when the package prometheus-client is not installed.
        """
    def start(self) -> None:
        """Take replies from now on; the client must be started."""
    def stop(self) -> None:
        """Leave; requests that wait for a reply fail with ConnectionClosedError."""
    def request(
        self, message: Message, *, timeout_ms: int = 3000, queue: QueueChoice | None = None
    ) -> ReceivedMessage:
        """Send a request and wait for its reply.

        RequestTimeoutError without one in time (the request may have been carried out), ProducerBusyError
        while `in_flight_max` requests wait, and whatever `Producer.send` raises.
        """
    def ask_device(
        self,
        mqtt_topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        timeout_ms: int = 3000,
        topic: str = "commands",
    ) -> ReceivedMessage:
        """Send a request to the devices that subscribe an MQTT topic, and wait for the first answer.

        A device that is absent until `timeout_ms` has passed does not get it. For devices without MQTT 5 the
        last level of the topic is `{reply}`. `properties["MQTT_CLIENT_ID"]` of the answer names who gave it.
        Raises what `request` raises.
        """
    asynchronous: Requester
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncReplier(Blocking):
    """The blocking form of `Replier`, for any thread."""
    def __init__(self, client: SyncClient, group: str = "DEFAULT_REPLIER") -> None: ...
    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this replier."""
    def collect(self) -> list[PrometheusMetric]:
        """Return the numbers as prometheus_client has them, for its registries.

        ClientError when the package prometheus-client is not installed.
        """
    def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a reply; returns when the requester has it.

        ClientError for a message that is no request, BrokerError when the requester has gone or waits no
        more.
        """
    asynchronous: Replier
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncPoppedMessage(Blocking):
    """The blocking form of `PoppedMessage`, for any thread."""

    queue: MessageQueue
    """The queue it was read from; for a redelivered message that may be one of the retry topic's."""
    record: Record
    """All fields as stored."""
    @property
    def topic(self) -> str:
        """Return the topic it was sent to, also when it is redelivered through the group's retry topic."""
    @property
    def body(self) -> bytes:
        """Return the body as it was sent; MessageFormatError when it cannot be decompressed."""
    @property
    def properties(self) -> dict[str, str]:
        """Return all properties, the system's included."""
    @property
    def keys(self) -> list[str]:
        """Return the keys to look it up by; the sender's `key` is the first."""
    @property
    def tags(self) -> str:
        """Return the tag that consumers filter by, or an empty text."""
    @property
    def message_id(self) -> str:
        """Return the sender's unique key; the same for every redelivery."""
    @property
    def offset_message_id(self) -> str:
        """Return the id that names the broker's address and the position in its log."""
    @property
    def queue_offset(self) -> int:
        """Return the message's offset in `queue`."""
    @property
    def flag(self) -> int:
        """Return the application's own number."""
    @property
    def born_timestamp_ms(self) -> int:
        """Return the time of its send, by the sender's clock."""
    @property
    def store_timestamp_ms(self) -> int:
        """Return the time it was stored, by the broker's clock."""
    @property
    def redeliveries(self) -> int:
        """Return how often this group has given it back; 0 at the first delivery."""
    receipt: Receipt
    """The name of its pop; another one after `in_progress`."""
    @property
    def attempt(self) -> int:
        """Return how often the group has got it, this time included: 1 at first."""
    def ack(self) -> None:
        """End the message: it is consumed. A second time changes nothing."""
    def nak(self, delay_ms: int = 0) -> None:
        """Give the message back. The group gets it again after the delay, or it is a dead letter when that
        was its last attempt."""
    def in_progress(self) -> None:
        """Hold the message for `invisible_ms` from now on."""
    def term(self) -> None:
        """Fail the message for good: it goes to the dead letters of the group now."""
    asynchronous: PoppedMessage
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncPopConsumer(BlockingLifetime):
    """The blocking form of `PopConsumer`, for any thread. `with` starts and stops it."""
    def __init__(
        self, client: SyncClient, group: str, settings: PopConsumerSettings | None = None
    ) -> None: ...
    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this consumer."""
    def collect(self) -> list[PrometheusMetric]:
        """Return the numbers as prometheus_client has them, for its registries.

        ClientError when the package prometheus-client is not installed.
        """
    def start(self) -> None:
        """Begin to fetch; the client must be started. Topics that do not exist yet are waited for."""
    def stop(self) -> None:
        """Fetch no more, and give back what was fetched and not returned.

        Returned messages may be settled as long as the client lives.
        """
    group: str
    """The name of its group."""
    settings: PopConsumerSettings
    """The settings it was made with."""
    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume `topic`: all of it, the tags of an expression such as `TagA || TagB`, or the messages whose
        properties the SQL92 expression `sql` is true for. What passes no filter counts as consumed.

        All consumers of a group must subscribe to the same. May be called before `start` and after it.
        SubscriptionError, here or from `start`, when a broker of the topic does not understand `sql`.
        """
    def unsubscribe(self, topic: str) -> None:
        """Consume `topic` no more. What is held of it may still be settled."""
    def getmany(self, *, timeout_ms: int = 1000, records_max: int = 1024) -> list[SyncPoppedMessage]:
        """Return the messages that are here, at most `records_max`, and wait for one; empty when none came in
        `timeout_ms`.

        BrokerError when a broker refuses, MessageFormatError for bytes that are no records.
        """
    def __iter__(self) -> Iterator[SyncPoppedMessage]:
        """Iterate over messages until the consumer stops; raises what `getmany` raises."""
    def ack(self, messages: Iterable[SyncPoppedMessage]) -> None:
        """End many messages at once, for less than as many calls of `ack` of each.

        ReceiptExpiredError when one is somebody else's already; the others are ended all the same.
        """
    @property
    def held_count(self) -> int:
        """Return how many messages it holds, fetched or returned, and neither settled nor expired."""
    asynchronous: PopConsumer
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncPushConsumer(BlockingLifetime):
    """The blocking form of `PushConsumer`, for any thread. `with` starts and stops it."""
    def __init__(
        self,
        client: SyncClient,
        group: str,
        listener: Listener | None = None,
        *,
        columns_listener: ColumnsListener | None = None,
        settings: PushConsumerSettings | None = None,
        allocate: Allocation = ...,
        threads: int = 4,
    ) -> None: ...
    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this consumer."""
    def collect(self) -> list[PrometheusMetric]:
        """Return the numbers as prometheus_client has them, for its registries.

        ClientError when the package prometheus-client is not installed.
        """
    def start(self) -> None:
        """Join the group and begin consuming; returns when the first division of queues is done.

        Topics that do not exist yet are waited for in the background.
        """
    def stop(self) -> None:
        """Let running listener calls end (`stop_timeout_ms`), commit, and leave the group.

        Calls that take longer are cancelled, and those that go on are left behind after the same time again.
        """
    @property
    def assigned(self) -> list[MessageQueue]:
        """Return the queues assigned to this member now, sorted; without those of the retry topic."""
    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset of each queue below which everything is consumed, where it is known."""
    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue `queue` at `offset`, while this member has it; fetched messages of it are dropped."""
    def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Continue these queues, or all, at the messages stored nearest to a time (as `offset_at_time`)."""
    def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Continue these queues, or all, at the oldest messages that are still there."""
    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Skip to now: continue these queues, or all, behind the newest message."""
    def lag(self) -> dict[MessageQueue, int]:
        """Ask how many messages of each queue lie between its position and its end."""
    def begin_offset(self, queue: MessageQueue) -> int:
        """Ask for the offset of the oldest message that is still there."""
    def end_offset(self, queue: MessageQueue) -> int:
        """Ask for the offset that the next message will get."""
    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Ask for the offset of the message stored nearest to a time; the last one's for any later time."""
    settings: PushConsumerSettings
    """The settings it was made with."""
    @property
    def group(self) -> str:
        """Return the consumer group's name."""
    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume `topic`: all of it, the tags of an expression such as `TagA || TagB`, or the messages whose
        properties an SQL92 expression such as `a > 5 AND b IN ('x', 'y')` is true for.

        All members of a group must subscribe to the same. May be called before `start` and after it.
        SubscriptionError, here or from `start`, when a broker of the topic does not understand `sql`.
        """
    def unsubscribe(self, topic: str) -> None:
        """Stop consuming `topic`; its queues go to other members."""
    def on_rebalance(self, listener: RebalanceListener) -> None:
        """Have `listener` told about queues that come, and about queues before they go."""
    def on_failure(self, call: Callable[[ListenerError], Awaitable[None] | None]) -> None:
        """Have `call` told about each failed call of the listener; its class says why. What `call`
        raises is logged."""
    def pause(self, *queues: MessageQueue) -> None:
        """Hand over nothing of these queues (of all, when none is named) until `resume`; they stay assigned.

        Calls that run end. A queue that goes and comes back is not paused.
        """
    def resume(self, *queues: MessageQueue) -> None:
        """Hand over messages of these queues again, of all when none is named."""
    def move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in this member's queues; fetched messages of them are dropped."""
    asynchronous: PushConsumer
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncPullConsumer(BlockingLifetime):
    """The blocking form of `PullConsumer`, for any thread. `with` starts and stops it."""
    def __init__(
        self,
        client: SyncClient,
        group: str = "DEFAULT_PULL_CONSUMER",
        settings: PullConsumerSettings | None = None,
        *,
        allocate: Allocation = ...,
    ) -> None: ...
    def metrics(self) -> Iterable[Metric]:
        """Report the counters of this consumer."""
    def collect(self) -> list[PrometheusMetric]:
        """Return the numbers as prometheus_client has them, for its registries.

        ClientError when the package prometheus-client is not installed.
        """
    def start(self) -> None:
        """Join the group when topics are subscribed; the client must be started.

        Returns when the first division of queues is done. Topics that do not exist yet are waited for.
        """
    def stop(self) -> None:
        """Commit what is consumed, leave the group, and drop the messages fetched.

        Messages that the last call returned come again, unless `async with` ends without an error or
        `commit` was called: what was done with them is not known.
        """
    @property
    def assigned(self) -> list[MessageQueue]:
        """Return the queues that are read now, sorted."""
    def positions(self) -> dict[MessageQueue, int]:
        """Return `position` of all queues whose position is known."""
    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue reading `queue` at `offset`; fetched messages of it are dropped."""
    def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Continue these queues, or all, at the messages stored nearest to a time (as `offset_at_time`)."""
    def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Continue these queues, or all, at the oldest messages that are still there."""
    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Skip to now: continue these queues, or all, behind the newest message."""
    def lag(self) -> dict[MessageQueue, int]:
        """Ask how many messages of each queue lie between its position and its end."""
    def begin_offset(self, queue: MessageQueue) -> int:
        """Ask for the offset of the oldest message that is still there."""
    def end_offset(self, queue: MessageQueue) -> int:
        """Ask for the offset that the next message will get."""
    def offset_at_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Ask for the offset of the message stored nearest to a time; the last one's for any later time."""
    group: str
    """The name of its group."""
    settings: PullConsumerSettings
    """The settings it was made with."""
    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Take part in consuming `topic`: all of it, the tags of an expression such as `TagA || TagB`, or the
        messages whose properties the SQL92 expression `sql` is true for.

        All members of a group must subscribe to the same. May be called before `start` and after it.
        SubscriptionError, here or from `start`, when a broker of the topic does not understand `sql`.
        """
    def unsubscribe(self, topic: str) -> None:
        """Stop consuming `topic`; its queues go to other members."""
    def on_rebalance(self, listener: RebalanceListener) -> None:
        """Have `listener` told about queues that come, and about queues before they go."""
    def queues(self, topic: str, *, timeout_ms: int = 1000) -> tuple[MessageQueue, ...]:
        """List the queues of `topic`, sorted; RouteNotFoundError when there are none in `timeout_ms`."""
    def assign(
        self,
        positions: Mapping[MessageQueue, int] | Iterable[MessageQueue],
        *,
        tags: str = "*",
        sql: str | None = None,
    ) -> None:
        """Assign these queues, and no others, from these offsets on (without offsets: from their beginning).

        With `tags` or `sql` only the messages that have them, or that the SQL92 expression is true for;
        SubscriptionError when a broker does not understand it. Queues that are read already keep what was
        fetched unless their offset differs. ClientError when topics are subscribed.
        """
    def getmany(self, *, timeout_ms: int = 1000, records_max: int = 1024) -> list[ReceivedMessage]:
        """Return the next messages of one queue, in order; empty when none came in `timeout_ms`.

        OffsetMovedError when an assigned offset is outside of its queue (`seek` to get on; subscribed queues
        go on at the nearest offset by themselves), BrokerError when a broker refuses, MessageFormatError for
        bytes that are no records.
        """
    def getmany_columns(
        self,
        *,
        timeout_ms: int = 1000,
        columns: Sequence[str] = (
            "queue_id",
            "queue_offset",
            "position",
            "born_timestamp",
            "store_timestamp",
            "flag",
            "sys_flag",
            "reconsume_times",
            "tags_code",
            "body",
            "topic",
            "properties",
        ),
        keys: Sequence[str] = (),
    ) -> tuple[MessageQueue, Columns] | None:
        """Return messages of one queue as columns, without an object per message; None after `timeout_ms`.

        `columns` and `keys` (properties by name) name what to decode. A body
        that cannot be inflated is null. Tags are filtered by the broker, which compares their hashes.
        Raises what `getmany` raises.
        """
    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Iterate over the messages of all queues until the consumer stops; raises what `getmany` raises.

        A message counts as consumed when the next one is asked for.
        """
    def pause(self, *queues: MessageQueue) -> None:
        """Return nothing of these queues (of all, when none is named) until `resume`; they stay assigned.

        What was fetched is kept. A queue that goes and comes back is not paused.
        """
    def resume(self, *queues: MessageQueue) -> None:
        """Return messages of these queues again, of all when none is named."""
    def position(self, queue: MessageQueue) -> int:
        """Return the offset behind the last message that was returned, to be kept and assigned again.

        ClientError while the group's offset of a subscribed queue is still being asked for.
        """
    def commit(self, positions: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets of the group: the given ones, else all of `positions()`."""
    def committed(self, queue: MessageQueue) -> int | None:
        """Ask for the offset that the group committed; None when it never did."""
    asynchronous: PullConsumer
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncGroupViews(Blocking):
    """The blocking form of `GroupViews`, for any thread."""
    def __init__(self, client: SyncClient) -> None: ...
    def connections(self, group: str) -> ConsumerConnections | None:
        """Return the live consumers of a group, each once; None when there is none."""
    def producers(self, group: str) -> list[Connection]:
        """Return the live producers of a group, each once."""
    def producer_groups(self) -> dict[str, list[ProducerInfo]]:
        """Return every group that has live producers, with them."""
    def clients(self, broker_name: str) -> Iterator[ClientInfo]:
        """Return every client of an iotmq broker by client id; other brokers do not know this request."""
    def of_topic(self, topic: str) -> list[str]:
        """List the groups that consume a topic: with live members, or with offsets in it.

        RouteNotFoundError when no broker has the topic.
        """
    def progress(self, group: str, topic: str = "") -> GroupProgress:
        """Return a group's progress in every queue it consumes, or in those of one topic.

        RouteNotFoundError when no broker has it.
        """
    def times(self, group: str, topic: str) -> dict[MessageQueue, QueueTimes]:
        """Return the store times of each queue of a topic, and a group's delay."""
    def corrections(
        self, group: str, topic: str, *, broker_name: str, without_groups: Collection[str] = ()
    ) -> dict[int, int]:
        """Return the lowest offset of any group by queue id, for a topic of one broker.

        2^63 - 1 where `group` is behind that already; `without_groups` are not looked at.
        """
    def running_info(self, group: str, client_id: str, *, with_stack: bool = False) -> RunningInfo:
        """Ask a consumer for its running info. BrokerError: 206 not connected, 207 no answer."""
    def consume_directly(
        self, group: str, client_id: str, message_id: str, *, broker_name: str
    ) -> DirectResult:
        """Have one consumer consume one stored message now; nothing of its offsets changes.

        `message_id` is the one with the message's place; the broker is the one that stores it.
        """
    def status(self, group: str, topic: str, *, client_id: str = "") -> dict[str, dict[MessageQueue, int]]:
        """Return the progress of all clients, or of one, in their queues of a topic, by client id."""
    asynchronous: GroupViews
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncMessageViews(Blocking):
    """The blocking form of `MessageViews`, for any thread."""
    def __init__(self, client: SyncClient, groups: SyncGroupViews) -> None: ...
    def by_id(self, message_id: str) -> ReceivedMessage:
        """Read the message that an offset message id names, from the broker whose address is in the id.

        BrokerError when that has no such message, ClientError for an id without a place, RouteNotFoundError
        when no registry knows a broker there: ids come from anybody, and nobody else is connected to.
        """
    def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 9223372036854775807,
        messages_max: int = 64,
    ) -> list[ReceivedMessage]:
        """Find messages of a topic by one of their keys, stored in [begin_ms, end_ms], newest first."""
    def by_unique_key(self, topic: str, key: str) -> list[ReceivedMessage]:
        """Find messages of a topic by their sender's id; several when it was sent more than once."""
    def at_offset(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """Read the message with this offset; None when the queue does not have it (any more, or yet)."""
    def from_offset(
        self, queue: MessageQueue, offset: int, *, messages_max: int, bytes_max: int
    ) -> tuple[list[ReceivedMessage], int]:
        """Read messages of a queue from an offset on, and return the offset to go on from.

        They end before `bytes_max` of records, but for the first. Nothing is returned at the queue's end, and
        from an offset outside of the queue, for which the offset to go on from is the nearest inside.
        """
    def queue_entries(
        self, queue: MessageQueue, offset: int = 0, *, count: int = 32, group: str = ""
    ) -> QueueEntries:
        """Read the entries of a queue from `offset` on; with `group`, matched with its subscription."""
    def track(self, message: ReceivedMessage) -> list[Track]:
        """Track a message in every group that consumes its topic."""
    asynchronous: MessageViews
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncBrokerViews(Blocking):
    """The blocking form of `BrokerViews`, for any thread."""
    def __init__(self, client: SyncClient) -> None: ...
    def runtime_info(self, broker_names: Collection[str] = ()) -> dict[str, dict[str, str]]:
        """Return the runtime information by broker name (keys: docs/reference/wire-protocol.md)."""
    def statistics(self, name: str, key: str, broker_names: Collection[str] = ()) -> dict[str, Statistics]:
        """Return statistics by broker, of a name such as TOPIC_PUT_NUMS and a key such as a topic.

        Brokers that counted nothing under it are left out.
        """
    def progress(self, broker_name: str, *, is_order: bool = False) -> BrokerProgress:
        """Return the progress of a broker's groups; with `is_order` only in topics that keep an order."""
    def system_topics(self) -> list[str]:
        """List the topics that brokers made for themselves, sorted."""
    def topic_content(self, topic: str) -> dict[MessageQueue, QueueContent]:
        """Return the offsets of every queue of a topic, and when its last message was stored."""
    asynchronous: BrokerViews
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncConfigurations(Blocking):
    """The blocking form of `Configurations`, for any thread."""
    def __init__(self, client: SyncClient) -> None: ...
    def brokers(self) -> list[BrokerPlace]:
        """List every broker, sorted."""
    def topics_of_cluster(self, cluster: str) -> list[str]:
        """List the names of a cluster's topics, sorted."""
    def route(self, topic: str) -> list[RoutedQueues]:
        """Ask the registry for the route of a topic; RouteNotFoundError when it does not know it."""
    def topics(self, broker_names: Collection[str] = ()) -> dict[str, dict[str, TopicSettings]]:
        """Return the topics of each broker with their settings: broker name -> topic -> settings."""
    def groups(self, broker_names: Collection[str] = ()) -> dict[str, dict[str, GroupSettings]]:
        """Return the groups of each broker with their settings: broker name -> group -> settings."""
    asynchronous: Configurations
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncAdminChanges(Blocking):
    """The blocking form of `AdminChanges`, for any thread."""
    def __init__(self, client: SyncClient) -> None: ...
    def update_topic(
        self,
        topic: str,
        *,
        read_queues: int,
        write_queues: int,
        permissions: int = 6,
        is_ordered: bool = False,
        broker_names: Collection[str] = (),
    ) -> list[str]:
        """Make a topic, or give it these values, at the brokers named (all); returns their names."""
    def pause_topic(self, topic: str, broker_names: Collection[str] = ()) -> list[str]:
        """Let nobody read a topic, which still takes messages; returns the names of the brokers that have it.

        RouteNotFoundError when none has. It stays paused over restarts, until `resume_topic`.
        """
    def resume_topic(self, topic: str, broker_names: Collection[str] = ()) -> list[str]:
        """Let a paused topic be read again; returns the names of the brokers that have it."""
    def delete_topic(self, topic: str) -> list[str]:
        """Delete a topic with its messages and offsets, everywhere; returns the brokers' names."""
    def clean_unused_topics(self, broker_names: Collection[str] = ()) -> list[str]:
        """Delete what is left of topics that are not configured; returns the brokers' names."""
    def delete_expired(self, broker_names: Collection[str] = ()) -> list[str]:
        """Delete log files past their age now; returns the brokers' names."""
    def update_group(
        self, group: str, settings: Mapping[str, Any], broker_names: Collection[str] = ()
    ) -> list[str]:
        """Make a group, or change it: `settings` as in SubscriptionGroupConfig, such as retryMaxTimes."""
    def change_group(
        self, group: str, settings: Mapping[str, Any], broker_names: Collection[str] = ()
    ) -> list[str]:
        """As `update_group`, but settings that are not named stay as they are at each broker."""
    def pause_group(self, group: str, broker_names: Collection[str] = ()) -> list[str]:
        """Give a group no messages; its offsets stay. It stays paused over restarts, until `resume_group`.

        Returns the brokers' names.
        """
    def resume_group(self, group: str, broker_names: Collection[str] = ()) -> list[str]:
        """Give a paused group messages again; returns the brokers' names."""
    def delete_group(self, group: str, *, with_offsets: bool = True) -> list[str]:
        """Delete a group with its retry and dead letter topics, everywhere; returns the brokers' names."""
    def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, is_forced: bool = True
    ) -> ResetOffsets:
        """Move a group to a time (END_MS: the end). Live members are told, else offsets are set.

        Without force no queue goes forward.
        """
    def skip_to_now(
        self, group: str, topics: Collection[str] = (), *, only_look: bool = False
    ) -> list[SkippedQueue]:
        """Let a group go on at the end of its queues, in all topics it consumes or in some.

        Returns what is skipped, without the queues that have nothing to skip; with `only_look` nothing is
        changed. What consumers by message have in flight counts as done. ClientError when the group does not
        consume one of `topics`.
        """
    def clone_offsets(
        self, source: str, target: str, topic: str = "", *, is_offline: bool = True
    ) -> list[str]:
        """Copy the offsets of a group to another one, in one topic or in all; returns the brokers' names."""
    def resume_transaction(self, message_id: str) -> None:
        """Have a producer asked again about a transaction that was given up.

        `message_id` is the one with the place of its message in TRANS_CHECK_MAX_TIME_TOPIC.
        """
    def broker_settings(self, broker_name: str) -> dict[str, str]:
        """Return every setting of a broker."""
    def change_broker_settings(
        self, settings: Mapping[str, str], broker_names: Collection[str] = ()
    ) -> list[str]:
        """Change settings of running brokers; returns their names."""
    def registry_settings(self) -> dict[str, dict[str, str]]:
        """Return every setting of each registry, by its address."""
    def change_registry_settings(self, settings: Mapping[str, str]) -> None:
        """Change settings of all registries."""
    def set_writable(self, broker_name: str, *, is_writable: bool) -> int:
        """Take the write permission of all topics of a broker from the routes, or give it back.

        Lasts until the broker's topics change. Returns how many topics it has.
        """
    def put_value(self, namespace: str, key: str, value: str) -> None:
        """Set a value at every registry."""
    def delete_value(self, namespace: str, key: str) -> None:
        """Delete a value at every registry."""
    def value(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, None when there is none."""
    def values(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace."""
    asynchronous: AdminChanges
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncQueueScaling(Blocking):
    """The blocking form of `QueueScaling`, for any thread."""
    def __init__(self, client: SyncClient) -> None: ...
    def states(self, topic: str, broker_names: Collection[str] = ()) -> dict[str, TopicState]:
        """Return the state of each queue: if it takes messages, and which groups are behind."""
    def add(self, topic: str, queue_count: int, broker_names: Collection[str] = ()) -> dict[str, TopicState]:
        """Raise the number of queues on each broker; the new ones take messages at once."""
    def freeze(
        self, topic: str, queue_ids: Collection[int], broker_names: Collection[str] = ()
    ) -> dict[str, TopicState]:
        """Let queues take no more messages; they are still read."""
    def thaw(
        self, topic: str, queue_ids: Collection[int], broker_names: Collection[str] = ()
    ) -> dict[str, TopicState]:
        """Let frozen queues take messages again."""
    def remove(
        self, topic: str, queue_count: int, broker_names: Collection[str] = (), *, is_forced: bool = False
    ) -> dict[str, TopicState]:
        """Remove queues down to this number per broker. They are frozen first, and drained unless forced."""
    def scale_in(
        self, topic: str, queue_count: int, broker_names: Collection[str] = (), *, interval_s: float = 1.0
    ) -> Iterator[DrainProgress]:
        """Freeze the queues from number `queue_count` on, wait until they are drained, and remove them.

        Yields how far it is, at last with nothing left. Whoever stops asking leaves the queues frozen.
        """
    asynchronous: QueueScaling
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncDeadLetters(Blocking):
    """The blocking form of `DeadLetters`, for any thread."""
    def __init__(self, client: SyncClient) -> None: ...
    def of_group(
        self,
        group: str,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        original_topic: str = "",
        key: str = "",
        positions: Mapping[MessageQueue, int] | None = None,
    ) -> Iterator[DeadLetter]:
        """Yield the dead letters of a group that were given up in [begin_ms, end_ms], queue by queue; only
        those of a topic, or with a key, where one is given.

        `positions` are offsets to begin at, where a queue has one. RouteNotFoundError when the group has no
        dead letter topic: nothing was ever given up.
        """
    def resend(self, group: str, message_ids: Collection[str], producer: SyncProducer) -> Resent:
        """Send the dead letters with these ids to their original topics; returns when all are stored.

        An id is the sender's or that of the place, as `of_group` shows both. ClientError names ids that are
        not there, and then nothing was sent.
        """
    def resend_all(
        self,
        group: str,
        producer: SyncProducer,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        original_topic: str = "",
        key: str = "",
        per_second: float = 0.0,
        is_again: bool = False,
    ) -> Iterator[Resent]:
        """Send all dead letters of a time to their original topics; yields the progress after each batch.
        Only those of a topic, or with a key, where one is given; at most `per_second` of them, where it is.

        Goes on behind what an earlier call sent, unless `is_again`. Letters that are passed over and were
        never sent stay for a later call, which then sends those behind them once more. So may a crash.
        """
    asynchronous: DeadLetters
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncAccessAdmin(Blocking):
    """The blocking form of `AccessAdmin`, for any thread."""
    def __init__(self, client: SyncClient) -> None: ...
    def put(
        self,
        access_key: str,
        *,
        secret_key: str = "",
        addresses: Sequence[str] = (),
        is_admin: bool | None = None,
        default_topic: str = "",
        default_group: str = "",
        topics: Mapping[str, str] | None = None,
        groups: Mapping[str, str] | None = None,
        default_mqtt_topic: str = "",
        mqtt_topics: Mapping[str, str] | None = None,
        broker_names: Collection[str] = (),
    ) -> list[str]:
        """Make an account, or change what is given of one. Permissions are DENY, PUB, SUB or PUB|SUB.

        `mqtt_topics` are filters of the MQTT topics under which it may send to devices (PUB) or not (DENY);
        the first that matches decides, and none leaves it to `default_mqtt_topic`.
        """
    def delete(self, access_key: str, broker_names: Collection[str] = ()) -> list[str]:
        """Delete an account."""
    def set_white_addresses(self, addresses: Sequence[str], broker_names: Collection[str] = ()) -> list[str]:
        """Let these addresses do everything without an account, and no others."""
    def versions(self, broker_names: Collection[str] = ()) -> dict[str, AccountsVersion]:
        """Return the version of each broker's accounts, by broker name."""
    asynchronous: AccessAdmin
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncAdmin(Blocking):
    """The blocking form of `Admin`, for any thread."""
    def __init__(self, client: SyncClient) -> None: ...
    groups: SyncGroupViews
    """Groups: their connections, their progress, and what their members are doing."""
    messages: SyncMessageViews
    """Messages by id, key and offset, and their fate in each group."""
    statistics: SyncBrokerViews
    """Brokers: their facts and their statistics."""
    configurations: SyncConfigurations
    """How brokers, topics and groups are set."""
    changes: SyncAdminChanges
    """Topics, groups, settings, permissions and values, changed in all places they belong to."""
    scaling: SyncQueueScaling
    """More queues or fewer for a topic in use."""
    dead_letters: SyncDeadLetters
    """Dead letters of groups: listed, sent again, exported."""
    access: SyncAccessAdmin
    """Accounts of brokers with access control."""
    def brokers(self) -> dict[str, dict[int, str]]:
        """List brokers: broker name -> broker id (0 = master) -> HOST:PORT."""
    def topics(self) -> list[str]:
        """List the names of all topics, the system's included, sorted."""
    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        broker_names: Collection[str] = (),
        permissions: int = 6,
        timeout_s: float = 5.0,
    ) -> TopicRoute:
        """Make (or change) a topic with so many queues on each broker; returns when it is in the route.

        `broker_names` empty means all brokers. BrokerError when one refuses, RequestTimeoutError when
        the registry does not show it in time.
        """
    def queues(self, topic: str, *, timeout_s: float = 1.0) -> tuple[MessageQueue, ...]:
        """List the readable queues of a topic, sorted; RouteNotFoundError when there are none in time."""
    def offsets(self, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """Return the offsets of each queue of a topic."""
    def group_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the offset that a group committed for each queue of a topic; None where it never did."""
    def set_group_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the group's offset of a queue; stop its consumers before, or they overwrite it."""
    asynchronous: Admin
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncWaitingMessages(Blocking):
    """The blocking form of `WaitingMessages`, for any thread."""
    def __init__(self, client: SyncClient) -> None: ...
    def list(self, topic: str = "", *, broker_names: Collection[str] = ()) -> Iterator[WaitingMessage]:
        """Yield the waiting messages (for `topic`), broker by broker, the next due first.

        What is stored or delivered meanwhile may be among it or not. BrokerError when one refuses.
        """
    def cancel(self, topic: str, unique_key: str, *, broker_names: Collection[str] = ()) -> bool:
        """Cancel the waiting message of `topic` with this unique key (the `message_id` of its send).

        All brokers are asked unless some are named. False when none has such a message, or not any more.
        """
    def recall(self, recall_handle: str, *, group: str = "DEFAULT_PRODUCER") -> bool:
        """Cancel the message whose send returned this handle. False when it does not wait (any more).

        MessageRefusedError for a text that is no handle, BrokerError when the broker refuses.
        """
    asynchronous: WaitingMessages
    """The object itself, for coroutines that `SyncClient.run` runs."""

class SyncClient(BlockingClient):
    """The blocking form of `IotmqClient`, for any thread. `with` starts and stops it."""

    def __init__(
        self, settings: ClientSettings | None = None, *, interceptors: Iterable[Interceptor] = ()
    ) -> None: ...
    @property
    def client_id(self) -> str:
        """Return the name of this client inside its consumer groups."""
    @property
    def settings(self) -> ClientSettings:
        """Return the settings it was made with."""
    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the client's thread and wait for it: for what `asynchronous` is needed for."""

    def metrics(self) -> Iterable[Metric]:
        """Report the numbers of this client, its interceptors, and all parts that are held."""
    def collect(self) -> list[PrometheusMetric]:
        """Return the numbers as prometheus_client has them, for its registries.

        ClientError when the package prometheus-client is not installed.
        """
    def start(self) -> None:
        """Begin background work; connections are made when they are needed."""
    def stop(self) -> None:
        """End all parts, then the connections; a second time does nothing.

        Consumers first: they take nothing more, finish what their listeners are at, and commit. Then
        requesters and producers, which wait for the sends in flight. The first error is raised at the end.
        """
    @property
    def is_running(self) -> bool:
        """True between `start` and `stop`."""
    def on_connection(self, call: ConnectionListener) -> None:
        """Call a plain or a coroutine function about each event of the connections, one after the other.

        What it raises is counted and logged. While it is at work 1,024 events wait, the latest ones.
        """
    def producer(
        self, group: str = "DEFAULT_PRODUCER", settings: ProducerSettings | None = None
    ) -> SyncProducer:
        """Make a producer for any topic."""
    def transaction_producer(
        self,
        group: str,
        check: Check,
        settings: ProducerSettings | None = None,
        *,
        topics: Iterable[str] = (),
        threads: int = 4,
    ) -> SyncTransactionProducer:
        """Make a producer that prepares messages, too; `check` says how a transaction ended."""
    def requester(
        self, group: str = "DEFAULT_REQUESTER", settings: ProducerSettings | None = None
    ) -> SyncRequester:
        """Make a part that sends requests and waits for their replies."""
    def replier(self, group: str = "DEFAULT_REPLIER") -> SyncReplier:
        """Make a part that replies to requests; it needs no start."""
    def push_consumer(
        self,
        group: str,
        listener: Listener | None = None,
        *,
        columns_listener: ColumnsListener | None = None,
        settings: PushConsumerSettings | None = None,
        allocate: Allocation = ...,
        threads: int = 4,
    ) -> SyncPushConsumer:
        """Make a member of a consumer group that calls a listener; `subscribe` before it starts."""
    def pull_consumer(
        self,
        group: str = "DEFAULT_PULL_CONSUMER",
        settings: PullConsumerSettings | None = None,
        *,
        allocate: Allocation = ...,
    ) -> SyncPullConsumer:
        """Make a consumer that is asked for messages, as a member of its group or from queues it is told."""
    def pop_consumer(self, group: str, settings: PopConsumerSettings | None = None) -> SyncPopConsumer:
        """Make a consumer of single messages; `subscribe` before it starts. A group may have any number."""
    @property
    def admin(self) -> SyncAdmin:
        """Return what asks and changes brokers and registries."""
    @property
    def waiting_messages(self) -> SyncWaitingMessages:
        """Return what lists and cancels scheduled messages."""
    asynchronous: IotmqClient
    """The object itself, for coroutines that `SyncClient.run` runs."""
