"""Map every request code to the permission it needs when access control is on.

A request needs permissions on topics and groups, or an administrator's account, or only a good signature.
`PUB` on a topic is to send to it, `SUB` to read it; `SUB` on a group is to take part in it. `%RETRY%group`
and `%DLQ%group` are the group's. A code that is not in the table needs an administrator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.broker.filters.subscription import decode_heartbeat
from iotmq.broker.tables.topics import DLQ_PREFIX, RETRY_PREFIX
from iotmq.broker.writing.single_message_batch import inflate_batch, split_elements
from iotmq.message.bodies import COMPRESSED
from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import MQTT_TOPIC
from iotmq.message.records.record import property_value
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

_DEVICE_TOPIC: Final = MQTT_TOPIC.encode()

DENY: Final = 1
# Needed only: either of the next two will do.
ANY: Final = 2
PUB: Final = 4
SUB: Final = 8


class RecordTopics(NamedTuple):
    """The topic a record is in, and the one it waits for; empty when it waits for none."""

    topic: str
    real_topic: str = ""
    # The topic under which devices get it; empty when they do not.
    device_topic: str = ""


#: The topics of the record at a position of the log, None when there is none.
TopicAt: TypeAlias = Callable[[int], RecordTopics | None]


class Need(NamedTuple):
    """One permission on one topic or group, or the right to send to devices under an MQTT topic."""

    name: str
    is_group: bool
    permission: int
    is_device: bool = False

    @property
    def kind(self) -> str:
        """Return what the name is one of."""
        return "MQTT topic" if self.is_device else "group" if self.is_group else "topic"


class Rule(NamedTuple):
    """Name the rights a request needs: an administrator, or all of `needs` (none: any signature)."""

    needs: Callable[[Command, TopicAt], Iterable[Need]]
    is_for_admins: bool = False
    # The field with the position of the record that it depends on.
    record_field: str = ""


def topic_need(topic: str, permission: int) -> Need:
    """Return the need for a topic's name, which may be one of a group's own topics."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return Need(topic[len(prefix) :], True, SUB)
    return Need(topic, False, permission)


def _fields(
    *,
    topic: str = "",
    topic_permission: int = SUB,
    groups: tuple[str, ...] = (),
    may_lack: tuple[str, ...] = (),
) -> Rule:
    """A rule over header fields. One that is missing is named in the answer (1), unless it `may_lack`."""

    def needs(request: Command, topic_at: TopicAt) -> Iterable[Need]:
        found = []
        if topic and (topic not in may_lack or request.ext.get(topic)):
            found.append(topic_need(request.text(topic), topic_permission))
        found += [
            Need(request.text(field), True, SUB)
            for field in groups
            if field not in may_lack or request.ext.get(field)
        ]
        return found

    return Rule(needs)


def _sends(*, topic: str, properties: str, sys_flag: str, batch: str) -> Rule:
    """PUB on the topic, and to send to devices also the right to their MQTT topic.

    A record with the property MQTT_TOPIC is delivered to every device that subscribes it, whatever the
    record's topic: PUB on that alone is no right to it. Retries and dead letters, which keep the properties
    of what a consumer got, reach no device.
    """

    def needs(request: Command, topic_at: TopicAt) -> Iterable[Need]:
        need = topic_need(request.text(topic), PUB)
        yield need
        if need.is_group:
            return
        if (own := device_topic(request.ext.get(properties, "").encode("utf-8", "replace"))) is not None:
            yield Need(own, False, PUB, is_device=True)
        if request.code == RequestCode.SEND_BATCH_MESSAGE or request.boolean(batch):
            for each in _device_topics(request.body_bytes(), request.integer(sys_flag, 0)):
                yield Need(each, False, PUB, is_device=True)

    return Rule(needs)


def _device_topics(batch: bytes, sys_flag: int) -> set[str]:
    """Return the MQTT topics in a batch. The send itself refuses what is no batch."""
    if sys_flag & COMPRESSED:
        batch = bytes(inflate_batch(batch, sys_flag)[0])
    if _DEVICE_TOPIC not in batch:
        return set()
    topics: set[str] = set()
    try:
        for _, properties, _ in split_elements(batch):
            if (topic := device_topic(properties)) is not None:
                topics.add(topic)
    except MessageFormatError:
        return set()
    return topics


def device_topic(properties: bytes) -> str | None:
    """Return the MQTT topic of a record with these properties; None for one that no device gets."""
    value = property_value(properties, _DEVICE_TOPIC)
    return None if value is None else value.decode("utf-8", "replace")


def _nothing(request: Command, topic_at: TopicAt) -> Iterable[Need]:
    return ()


def _record(*groups: str) -> Rule:
    """SUB on the topic of the record at the field `offset`, which is read by the request."""
    of_fields = _fields(groups=groups)

    def needs(request: Command, topic_at: TopicAt) -> Iterable[Need]:
        record = topic_at(request.integer("offset", minimum=0))
        found = list(of_fields.needs(request, topic_at))
        return found if record is None else [*found, topic_need(record.topic, SUB)]

    return Rule(needs, record_field="offset")


def _ends_transaction(request: Command, topic_at: TopicAt) -> Iterable[Need]:
    """Need for a committed message what sending it needs; the handler refuses what is none."""
    record = topic_at(request.integer("commitLogOffset", minimum=0))
    if record is None or not record.real_topic:
        return
    yield topic_need(record.real_topic, PUB)
    if record.device_topic:
        yield Need(record.device_topic, False, PUB, is_device=True)


def _heartbeat(request: Command, topic_at: TopicAt) -> Iterable[Need]:
    for consumer in decode_heartbeat(request.body).consumer_data_set or ():
        yield Need(consumer.group_name, True, SUB)
        for subscription in consumer.subscription_data_set or ():
            yield topic_need(subscription.topic, SUB)


class _LockBody(msgspec.Struct, rename="camel"):
    consumer_group: str


def _locks(request: Command, topic_at: TopicAt) -> Iterable[Need]:
    return (Need(lenient_json.decode_request(request.body, _LockBody).consumer_group, True, SUB),)


class _ModeBody(msgspec.Struct, rename="camel"):
    topic: str
    consumer_group: str


def _request_mode(request: Command, topic_at: TopicAt) -> Iterable[Need]:
    body = lenient_json.decode_request(request.body, _ModeBody)
    return (Need(body.consumer_group, True, SUB), topic_need(body.topic, SUB))


class _Ack(msgspec.Struct):
    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")


class _AckBody(msgspec.Struct):
    acks: Annotated[list[_Ack], Meta(max_length=limits.POP_ACKS_MAX)]


def _acks(request: Command, topic_at: TopicAt) -> Iterable[Need]:
    for ack in lenient_json.decode_request(request.body, _AckBody).acks:
        yield Need(ack.group, True, SUB)
        yield topic_need(ack.topic, SUB)


def _one_topic_or_admin(request: Command, topic_at: TopicAt) -> Iterable[Need]:
    topic = request.ext.get("topic")
    return (topic_need(topic, ANY),) if topic else (Need("*", False, ANY),)


_SENDS: Final = _sends(topic="topic", properties="properties", sys_flag="sysFlag", batch="batch")
_SENDS_SHORT: Final = _sends(topic="b", properties="i", sys_flag="f", batch="m")
_SIGNED: Final = Rule(_nothing)
_ADMIN: Final = Rule(_nothing, is_for_admins=True)
_READS: Final = _fields(topic="topic", groups=("consumerGroup",))
_LOOKS: Final = _fields(topic="topic", topic_permission=ANY)
_MEMBER: Final = _fields(groups=("consumerGroup",))
_OF_GROUP: Final = _fields(topic="topic", groups=("group",))

RULES: Final[dict[int, Rule]] = {
    # Sending.
    RequestCode.SEND_MESSAGE: _SENDS,
    RequestCode.SEND_MESSAGE_V2: _SENDS_SHORT,
    RequestCode.SEND_BATCH_MESSAGE: _SENDS_SHORT,
    RequestCode.SEND_REPLY_MESSAGE: _SENDS,
    RequestCode.SEND_REPLY_MESSAGE_V2: _SENDS_SHORT,
    RequestCode.END_TRANSACTION: Rule(_ends_transaction, record_field="commitLogOffset"),
    RequestCode.LAST_BATCH_NUMBER: _fields(topic="topic", topic_permission=PUB),
    RequestCode.RECALL_MESSAGE: _fields(topic="topic", topic_permission=PUB),
    RequestCode.CANCEL_TIMER: _fields(topic="topic", topic_permission=PUB),
    RequestCode.LIST_TIMERS: Rule(_one_topic_or_admin),
    # Consuming.
    RequestCode.PULL_MESSAGE: _READS,
    RequestCode.LITE_PULL_MESSAGE: _READS,
    RequestCode.POP_MESSAGE: _READS,
    RequestCode.PEEK_MESSAGE: _READS,
    RequestCode.ACK_MESSAGE: _READS,
    RequestCode.BATCH_ACK_MESSAGE: Rule(_acks),
    RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME: _READS,
    RequestCode.NOTIFICATION: _READS,
    RequestCode.POLLING_INFO: _READS,
    RequestCode.QUERY_ASSIGNMENT: Rule(_request_mode),
    RequestCode.SET_MESSAGE_REQUEST_MODE: _ADMIN,
    RequestCode.QUERY_CONSUMER_OFFSET: _READS,
    RequestCode.UPDATE_CONSUMER_OFFSET: _READS,
    RequestCode.CONSUMER_SEND_MESSAGE_BACK: _record("group"),
    RequestCode.LOCK_BATCH_QUEUES: Rule(_locks),
    RequestCode.UNLOCK_BATCH_QUEUES: Rule(_locks),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _MEMBER,
    RequestCode.CHECK_CLIENT_CONFIG: _SIGNED,
    RequestCode.HEART_BEAT: Rule(_heartbeat),
    RequestCode.UNREGISTER_CLIENT: _fields(groups=("consumerGroup",), may_lack=("consumerGroup",)),
    # Looking at messages, topics and groups.
    RequestCode.QUERY_MESSAGE: _fields(topic="topic"),
    RequestCode.VIEW_MESSAGE_BY_ID: _record(),
    RequestCode.QUERY_CONSUME_QUEUE: _fields(
        topic="topic", groups=("consumerGroup",), may_lack=("consumerGroup",)
    ),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _LOOKS,
    RequestCode.GET_MAX_OFFSET: _LOOKS,
    RequestCode.GET_MIN_OFFSET: _LOOKS,
    RequestCode.GET_QUEUE_BOUNDS: _LOOKS,
    RequestCode.GET_EARLIEST_MESSAGE_STORE_TIME: _LOOKS,
    RequestCode.GET_TOPIC_STATS_INFO: _LOOKS,
    RequestCode.GET_TOPIC_CONFIG: _LOOKS,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _LOOKS,
    RequestCode.GET_QUEUE_STATES: _LOOKS,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: _MEMBER,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _MEMBER,
    RequestCode.GET_CONSUME_STATS: _MEMBER,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _OF_GROUP,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: _OF_GROUP,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _OF_GROUP,
    RequestCode.QUERY_CORRECTION_OFFSET: _fields(topic="topic", groups=("compareGroup",)),
    RequestCode.CLONE_GROUP_OFFSET: _fields(groups=("srcGroup", "destGroup")),
    RequestCode.GET_BROKER_RUNTIME_INFO: _SIGNED,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _SIGNED,
    RequestCode.VIEW_BROKER_STATS_DATA: _SIGNED,
    # Changing and copying the whole.
    RequestCode.UPDATE_AND_CREATE_TOPIC: _ADMIN,
    RequestCode.DELETE_TOPIC_IN_BROKER: _ADMIN,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: _ADMIN,
    RequestCode.DELETE_SUBSCRIPTION_GROUP: _ADMIN,
    RequestCode.UPDATE_BROKER_CONFIG: _ADMIN,
    RequestCode.GET_BROKER_CONFIG: _ADMIN,
    RequestCode.GET_ALL_TOPIC_CONFIG: _ADMIN,
    RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: _ADMIN,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _ADMIN,
    RequestCode.GET_ALL_DELAY_OFFSET: _ADMIN,
    RequestCode.GET_BROKER_CONSUME_STATS: _ADMIN,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: _ADMIN,
    RequestCode.GET_ALL_PRODUCER_INFO: _ADMIN,
    RequestCode.LIST_CLIENTS: _ADMIN,
    RequestCode.MEMBER_MESSAGE: _ADMIN,
    RequestCode.GET_MEMBER_STATUS: _ADMIN,
    RequestCode.HAND_OVER: _ADMIN,
    RequestCode.ADD_MEMBER: _ADMIN,
    RequestCode.REMOVE_MEMBER: _ADMIN,
    RequestCode.GET_LOG_CHECKSUM: _ADMIN,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _ADMIN,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: _ADMIN,
    RequestCode.TRIGGER_DELETE_FILES: _ADMIN,
    RequestCode.CLEAN_EXPIRED_CONSUME_QUEUE: _ADMIN,
    RequestCode.CLEAN_UNUSED_TOPIC: _ADMIN,
    RequestCode.DELETE_EXPIRED_COMMIT_LOG: _ADMIN,
    RequestCode.ADD_QUEUES: _ADMIN,
    RequestCode.FREEZE_QUEUES: _ADMIN,
    RequestCode.THAW_QUEUES: _ADMIN,
    RequestCode.REMOVE_QUEUES: _ADMIN,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _ADMIN,
    RequestCode.DELETE_ACL_CONFIG: _ADMIN,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _ADMIN,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRESSES: _ADMIN,
    # A front end acts for all devices.
    RequestCode.ATTACH_FILTERS: _ADMIN,
    RequestCode.DETACH_FILTERS: _ADMIN,
    RequestCode.PUBLISH_TRANSIENT: _ADMIN,
    RequestCode.PUBLISH_DELAYED: _ADMIN,
    RequestCode.PUBLISH_REPLY: _ADMIN,
    RequestCode.RELEASE_PACKET_IDS: _ADMIN,
    RequestCode.INTRODUCE_FRONT_END: _ADMIN,
    RequestCode.OPEN_SESSION: _ADMIN,
    RequestCode.SUBSCRIBE_SESSION: _ADMIN,
    RequestCode.UNSUBSCRIBE_SESSION: _ADMIN,
    RequestCode.REPORT_PROGRESS: _ADMIN,
    RequestCode.CLOSE_SESSION: _ADMIN,
    RequestCode.READ_LIGHT_QUEUE: _ADMIN,
    RequestCode.READ_RETAINED: _ADMIN,
    RequestCode.CLAIM_SESSIONS: _ADMIN,
    RequestCode.JOIN_SHARES: _ADMIN,
    RequestCode.REPORT_SHARES: _ADMIN,
    RequestCode.REPORT_CLIENTS: _ADMIN,
    RequestCode.CLAIM_EXCLUSIVE: _ADMIN,
    RequestCode.LIST_FRONT_ENDS: _ADMIN,
    RequestCode.DRAIN_FRONT_END: _ADMIN,
    RequestCode.LIST_SESSIONS: _ADMIN,
    RequestCode.GET_SESSION: _ADMIN,
    RequestCode.KICK_SESSION: _ADMIN,
    RequestCode.PURGE_SESSION: _ADMIN,
    RequestCode.LIST_SHARES: _ADMIN,
    RequestCode.INSPECT: _ADMIN,
}


def rule_of(code: int) -> Rule:
    """Return the rule of a code; what nobody has classified is for administrators."""
    return RULES.get(code, _ADMIN)
