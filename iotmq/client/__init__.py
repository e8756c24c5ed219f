"""The native client: producers, transactions, requests, consumers, for asyncio and for blocking code.

Names are loaded when they are first used, so that a program pays only for the parts it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iotmq.client.admin.admin import Admin, QueueOffsets
    from iotmq.client.admin.scheduled import WaitingMessage, WaitingMessages
    from iotmq.client.blocking.classes import (
        SyncAdmin,
        SyncClient,
        SyncPopConsumer,
        SyncPoppedMessage,
        SyncProducer,
        SyncPullConsumer,
        SyncPushConsumer,
        SyncReplier,
        SyncRequester,
        SyncTransaction,
        SyncTransactionProducer,
        SyncWaitingMessages,
    )
    from iotmq.client.blocking.connecting import connect_sync
    from iotmq.client.client import IotmqClient
    from iotmq.client.connecting import ConnectOptions, connect
    from iotmq.client.consuming.members.membership import RebalanceListener
    from iotmq.client.consuming.members.rebalance import (
        allocate_averagely,
        allocate_in_circle,
        allocate_stickily,
    )
    from iotmq.client.consuming.pop.pop_consumer import PopConsumer
    from iotmq.client.consuming.pop.popped_message import PoppedMessage
    from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
    from iotmq.client.consuming.pushing.push_consumer import PushConsumer
    from iotmq.client.observing.message_trace import MessageTrace
    from iotmq.client.observing.open_telemetry import OpenTelemetry
    from iotmq.client.sending.producer import Producer
    from iotmq.client.sending.requests import Replier, Requester
    from iotmq.client.sending.transactions import Transaction, TransactionProducer, TransactionState
    from iotmq.client.transport.connection_events import ConnectionEvent
    from iotmq.client.transport.interceptors import (
        Consuming,
        ConsumingColumns,
        Interceptor,
        Sending,
        SendingEncoded,
    )
    from iotmq.client.transport.measured import Collector
    from iotmq.client.transport.message import Message, ReceivedMessage, SendResult, SendStatus, StoredMessage
    from iotmq.client.transport.routes import MessageQueue, TopicRoute, queue_of_key
    from iotmq.client.transport.settings import (
        ClientSettings,
        PopConsumerSettings,
        ProducerSettings,
        PullConsumerSettings,
        PushConsumerSettings,
    )
    from iotmq.message.records.columns import Columns
    from iotmq.message.records.record import encode_batch

_MODULES = {
    "Admin": ".admin.admin",
    "ClientSettings": ".transport.settings",
    "Collector": ".transport.measured",
    "Columns": "iotmq.message.records.columns",
    "ConnectOptions": ".connecting",
    "ConnectionEvent": ".transport.connection_events",
    "Consuming": ".transport.interceptors",
    "ConsumingColumns": ".transport.interceptors",
    "Interceptor": ".transport.interceptors",
    "IotmqClient": ".client",
    "Message": ".transport.message",
    "MessageQueue": ".transport.routes",
    "MessageTrace": ".observing.message_trace",
    "OpenTelemetry": ".observing.open_telemetry",
    "PopConsumer": ".consuming.pop.pop_consumer",
    "PopConsumerSettings": ".transport.settings",
    "PoppedMessage": ".consuming.pop.popped_message",
    "Producer": ".sending.producer",
    "ProducerSettings": ".transport.settings",
    "PullConsumer": ".consuming.pulling.pull_consumer",
    "PullConsumerSettings": ".transport.settings",
    "PushConsumer": ".consuming.pushing.push_consumer",
    "PushConsumerSettings": ".transport.settings",
    "QueueOffsets": ".admin.admin",
    "RebalanceListener": ".consuming.members.membership",
    "ReceivedMessage": ".transport.message",
    "Replier": ".sending.requests",
    "Requester": ".sending.requests",
    "SendResult": ".transport.message",
    "SendStatus": ".transport.message",
    "Sending": ".transport.interceptors",
    "SendingEncoded": ".transport.interceptors",
    "StoredMessage": ".transport.message",
    "SyncAdmin": ".blocking.classes",
    "SyncClient": ".blocking.classes",
    "SyncPopConsumer": ".blocking.classes",
    "SyncPoppedMessage": ".blocking.classes",
    "SyncProducer": ".blocking.classes",
    "SyncPullConsumer": ".blocking.classes",
    "SyncPushConsumer": ".blocking.classes",
    "SyncReplier": ".blocking.classes",
    "SyncRequester": ".blocking.classes",
    "SyncTransaction": ".blocking.classes",
    "SyncTransactionProducer": ".blocking.classes",
    "SyncWaitingMessages": ".blocking.classes",
    "TopicRoute": ".transport.routes",
    "Transaction": ".sending.transactions",
    "TransactionProducer": ".sending.transactions",
    "TransactionState": ".sending.transactions",
    "WaitingMessage": ".admin.scheduled",
    "WaitingMessages": ".admin.scheduled",
    "allocate_averagely": ".consuming.members.rebalance",
    "allocate_in_circle": ".consuming.members.rebalance",
    "allocate_stickily": ".consuming.members.rebalance",
    "connect": ".connecting",
    "connect_sync": ".blocking.connecting",
    "encode_batch": "iotmq.message.records.record",
    "queue_of_key": ".transport.routes",
}

__all__ = [
    "Admin",
    "ClientSettings",
    "Collector",
    "Columns",
    "ConnectOptions",
    "ConnectionEvent",
    "Consuming",
    "ConsumingColumns",
    "Interceptor",
    "IotmqClient",
    "Message",
    "MessageQueue",
    "MessageTrace",
    "OpenTelemetry",
    "PopConsumer",
    "PopConsumerSettings",
    "PoppedMessage",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullConsumerSettings",
    "PushConsumer",
    "PushConsumerSettings",
    "QueueOffsets",
    "RebalanceListener",
    "ReceivedMessage",
    "Replier",
    "Requester",
    "SendResult",
    "SendStatus",
    "Sending",
    "SendingEncoded",
    "StoredMessage",
    "SyncAdmin",
    "SyncClient",
    "SyncPopConsumer",
    "SyncPoppedMessage",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncReplier",
    "SyncRequester",
    "SyncTransaction",
    "SyncTransactionProducer",
    "SyncWaitingMessages",
    "TopicRoute",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
    "WaitingMessage",
    "WaitingMessages",
    "allocate_averagely",
    "allocate_in_circle",
    "allocate_stickily",
    "connect",
    "connect_sync",
    "encode_batch",
    "queue_of_key",
]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(module, __name__), name)
    globals()[name] = value
    return value
