"""The native client: producers, push and pull consumers, for asyncio and for blocking code.

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
    from iotmq.client.client import IotmqClient
    from iotmq.client.message import Message, ReceivedMessage, SendResult, SendStatus
    from iotmq.client.producer import Producer
    from iotmq.client.pull_consumer import PullConsumer
    from iotmq.client.push_consumer import PushConsumer
    from iotmq.client.routes import MessageQueue, TopicRoute, queue_of_key
    from iotmq.client.settings import (
        ClientSettings,
        ProducerSettings,
        PullConsumerSettings,
        PushConsumerSettings,
    )

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
    "SendResult": "message",
    "SendStatus": "message",
    "SyncAdmin": "blocking",
    "SyncClient": "blocking",
    "SyncProducer": "blocking",
    "SyncPullConsumer": "blocking",
    "SyncPushConsumer": "blocking",
    "TopicRoute": "routes",
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
    "SendResult",
    "SendStatus",
    "SyncAdmin",
    "SyncClient",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncPushConsumer",
    "TopicRoute",
    "queue_of_key",
]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
