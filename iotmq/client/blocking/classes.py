"""The blocking forms of the client's classes. What they have is in `classes.pyi`."""

from __future__ import annotations

from iotmq.client.admin.access import AccessAdmin
from iotmq.client.admin.admin import Admin
from iotmq.client.admin.brokers import BrokerViews
from iotmq.client.admin.changes import AdminChanges
from iotmq.client.admin.configs import Configurations
from iotmq.client.admin.dead_letters import DeadLetters
from iotmq.client.admin.groups import GroupViews
from iotmq.client.admin.messages import MessageViews
from iotmq.client.admin.queue_scaling import QueueScaling
from iotmq.client.admin.scheduled import WaitingMessages
from iotmq.client.blocking.facade import blocking
from iotmq.client.client import IotmqClient
from iotmq.client.consuming.pop.pop_consumer import PopConsumer
from iotmq.client.consuming.pop.popped_message import PoppedMessage
from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.sending.producer import Producer
from iotmq.client.sending.requests import Replier, Requester
from iotmq.client.sending.transactions import Transaction, TransactionProducer

SyncTransaction = blocking(Transaction)
SyncProducer = blocking(Producer)
SyncTransactionProducer = blocking(TransactionProducer)
SyncRequester = blocking(Requester)
SyncReplier = blocking(Replier)
SyncPoppedMessage = blocking(PoppedMessage)
SyncPopConsumer = blocking(PopConsumer)
SyncPushConsumer = blocking(PushConsumer)
SyncPullConsumer = blocking(PullConsumer)
SyncGroupViews = blocking(GroupViews)
SyncMessageViews = blocking(MessageViews)
SyncBrokerViews = blocking(BrokerViews)
SyncConfigurations = blocking(Configurations)
SyncAdminChanges = blocking(AdminChanges)
SyncQueueScaling = blocking(QueueScaling)
SyncDeadLetters = blocking(DeadLetters)
SyncAccessAdmin = blocking(AccessAdmin)
SyncAdmin = blocking(Admin)
SyncWaitingMessages = blocking(WaitingMessages)
SyncClient = blocking(IotmqClient)
