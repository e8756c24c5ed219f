"""The topics every broker has, whether anybody asks for them or not."""

from __future__ import annotations

from collections.abc import Container

from iotmq.audit_log import AUDIT_TOPIC
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.topics import (
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    PERMISSION_INHERIT,
    PERMISSION_READ_WRITE,
    POP_TOPIC,
    RECEIVED_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SESSION_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANSACTION_CHECKS_MAX_TOPIC,
    TopicConfig,
    TopicTable,
)
from iotmq.errors import RefusedError
from iotmq.mqtt.operator_state import OPERATOR_TOPIC
from iotmq.replicated.member_log import EPOCH_TOPIC


def make_system_topics(topics: TopicTable, settings: BrokerSettings) -> None:
    """Make those that are missing, and give the template what `settings` say."""
    for topic in system_topics(
        cluster=settings.cluster,
        broker=settings.name,
        template_queues=settings.default_topic_queues,
        may_inherit=settings.auto_create_topics,
    ):
        if topics.find(topic.topic_name) is None or topic.topic_name == TEMPLATE_TOPIC:
            topics.put(topic)


def system_topic_names(settings: BrokerSettings) -> frozenset[str]:
    """Return the names of the system topics, and of that which replication writes to."""
    topics = system_topics(
        cluster=settings.cluster, broker=settings.name, template_queues=1, may_inherit=False
    )
    return frozenset({EPOCH_TOPIC, *(topic.topic_name for topic in topics)})


def check_not_own(name: str, own_names: Container[str], field: str) -> None:
    """Raise RefusedError when the topic or group that a request would change is one of the broker's own."""
    if name in own_names:
        raise RefusedError(f"the field {field} names {name}, which belongs to the broker")


def system_topics(
    *, cluster: str, broker: str, template_queues: int, may_inherit: bool
) -> tuple[TopicConfig, ...]:
    """Topics made at start when they are not there yet (wire document 15)."""

    def topic(name: str, queues: int, perm: int = PERMISSION_READ_WRITE) -> TopicConfig:
        return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

    inherit = PERMISSION_INHERIT if may_inherit else 0
    return (
        topic(SELF_TEST_TOPIC, 1),
        topic(TEMPLATE_TOPIC, template_queues, PERMISSION_READ_WRITE | inherit),
        topic(BENCHMARK_TOPIC, 1_024),
        topic(cluster, 16, PERMISSION_READ_WRITE | PERMISSION_INHERIT),
        topic(broker, 1, PERMISSION_READ_WRITE | PERMISSION_INHERIT),
        topic(OFFSET_MOVED_TOPIC, 1),
        topic(SCHEDULE_TOPIC, 18),
        topic(TIMER_TOPIC, 1),
        topic(f"{cluster}_REPLY_TOPIC", 1),
        topic(HALF_TOPIC, 1),
        topic(OP_HALF_TOPIC, 1),
        topic(SESSION_TOPIC, 1),
        topic(RECEIVED_TOPIC, 1),
        topic(POP_TOPIC, 1),
        topic(OPERATOR_TOPIC, 1),
        topic(TRACE_TOPIC, 1),
        topic(AUDIT_TOPIC, 1),
        topic(TRANSACTION_CHECKS_MAX_TOPIC, 1),
    )
