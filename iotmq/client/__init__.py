"""The native client: producers, transactions, requests, consumers, for asyncio and for blocking code.

Names are loaded when they are first used, so that a program pays only for the parts it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iotmq.client.admin import Admin, QueueOffsets
    from iotmq.client.blocking import (
        SyncAdmin,
        SyncClient,
        SyncProducer,
        SyncPullConsumer,
        SyncPushConsumer,
    )
    from iotmq.client.blocking_requests import SyncReplier, SyncRequester
    from iotmq.client.blocking_transactions import SyncTransaction, SyncTransactionProducer
    from iotmq.client.client import IotmqClient
    from iotmq.client.message import Message, ReceivedMessage, SendResult, SendStatus
    from iotmq.client.producer import Producer
    from iotmq.client.pull_consumer import PullConsumer
    from iotmq.client.push_consumer import PushConsumer
    from iotmq.client.requests import Replier, Requester
    from iotmq.client.routes import MessageQueue, TopicRoute, queue_of_key
    from iotmq.client.settings import (
        ClientSettings,
        ProducerSettings,
        PullConsumerSettings,
        PushConsumerSettings,
    )
    from iotmq.client.transactions import Transaction, TransactionProducer, TransactionState
    from iotmq.client.waiting_messages import WaitingMessage, WaitingMessages

_MODULES = {
    "Admin": "admin",
    "ClientSettings": "settings",
    "IotmqClient": "client",
    "Message": "message",
    "MessageQueue": "routes",
    "Producer": "producer",
    "ProducerSettings": "settings",
    "PullConsumer": "pull_consumer",
    "PullConsumerSettings": "settings",
    "PushConsumer": "push_consumer",
    "PushConsumerSettings": "settings",
    "QueueOffsets": "admin",
    "ReceivedMessage": "message",
    "Replier": "requests",
    "Requester": "requests",
    "SendResult": "message",
    "SendStatus": "message",
    "SyncAdmin": "blocking",
    "SyncClient": "blocking",
    "SyncProducer": "blocking",
    "SyncPullConsumer": "blocking",
    "SyncPushConsumer": "blocking",
    "SyncReplier": "blocking_requests",
    "SyncRequester": "blocking_requests",
    "SyncTransaction": "blocking_transactions",
    "SyncTransactionProducer": "blocking_transactions",
    "TopicRoute": "routes",
    "Transaction": "transactions",
    "TransactionProducer": "transactions",
    "TransactionState": "transactions",
    "WaitingMessage": "waiting_messages",
    "WaitingMessages": "waiting_messages",
    "queue_of_key": "routes",
}

__all__ = [
    "Admin",
    "ClientSettings",
    "IotmqClient",
    "Message",
    "MessageQueue",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullConsumerSettings",
    "PushConsumer",
    "PushConsumerSettings",
    "QueueOffsets",
    "ReceivedMessage",
    "Replier",
    "Requester",
    "SendResult",
    "SendStatus",
    "SyncAdmin",
    "SyncClient",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "SyncReplier",
    "SyncRequester",
    "SyncTransaction",
    "SyncTransactionProducer",
    "TopicRoute",
    "Transaction",
    "TransactionProducer",
    "TransactionState",
    "WaitingMessage",
    "WaitingMessages",
    "queue_of_key",
]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
