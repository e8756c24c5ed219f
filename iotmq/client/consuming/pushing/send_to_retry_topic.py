"""Send a consumer's failed message to its retry topic when its own broker does not take it back.

An ordinary message to the group's retry topic at any broker, with what the broker would have put into it: the
broker lets it wait for its time, or makes it a dead letter when it came back too often.
"""

from __future__ import annotations

import logging

from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import RETRY_PREFIX, ReceivedMessage, SendStatus
from iotmq.client.transport.routes import MASTER_ID, TopicRoute
from iotmq.errors import IotmqError
from iotmq.message.bodies import COMPRESSED, METHOD_MASK
from iotmq.message.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TRANSACTION_PREPARED,
    WAIT,
    encode_properties,
)
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

_log = logging.getLogger(__name__)

# The first attempt waits for level 3 (10 s), each further one a level longer.
_FIRST_LEVEL = 3
_STORED = frozenset(status.value for status in SendStatus)
_NOT_COPIED = (DELAY, REAL_TOPIC, REAL_QUEUE_ID, TRANSACTION_PREPARED, WAIT)


async def send_to_retry_topic(
    client: ClientTransport, group: str, message: ReceivedMessage, *, redeliveries_max: int, level: int = 0
) -> bool:
    """Send the message to the group's retry topic, preferably at another broker; True when it is stored.

    `redeliveries_max` below 0 leaves it to the group's settings when a message is a dead letter; `level` 0
    makes the delay longer with each attempt.
    """
    topic = RETRY_PREFIX + group
    try:
        route = await client.routes.find(topic)
    except IotmqError as error:
        _log.info("no way to the retry topic of group %s: %s", group, error)
        return False
    if route is None:
        return False
    for broker_name, address in _masters(route, last=message.queue.broker_name):
        try:
            response = await client.request(
                address, _command(client, topic, group, broker_name, message, redeliveries_max, level)
            )
        except (IotmqError, ValueError) as error:
            _log.info("broker %s does not take a failed message: %s", broker_name, error)
            continue
        if response.code in _STORED:
            return True
        _log.info("broker %s does not take a failed message: %s", broker_name, response.remark)
    return False


def _masters(route: TopicRoute, *, last: str) -> list[tuple[str, str]]:
    names = sorted({queue.broker_name for queue in route.writable}, key=lambda name: (name == last, name))
    known = ((name, route.addresses.get(name, {}).get(MASTER_ID)) for name in names)
    return [(name, address) for name, address in known if address is not None]


def _command(
    client: ClientTransport,
    topic: str,
    group: str,
    broker_name: str,
    message: ReceivedMessage,
    redeliveries_max: int,
    level: int,
) -> Command:
    """Build the send; ValueError when the message's properties cannot be encoded again."""
    record = message.record
    properties = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    properties.setdefault(RETRY_TOPIC, message.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
    properties[DELAY] = str(level or _FIRST_LEVEL + record.reconsume_times)
    ext = {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "1",
        # Any queue of the topic.
        "e": "-1",
        "f": str(record.sys_flag & (COMPRESSED | METHOD_MASK)),
        "g": str(client.clock.now_ms()),
        "h": str(record.flag),
        "i": encode_properties(properties).decode(),
        "j": str(record.reconsume_times + 1),
        "k": "false",
        "m": "false",
        "n": broker_name,
    }
    if redeliveries_max >= 0:
        # RocketMQ 4 makes a dead letter of try number `l`, RocketMQ 5 of the one behind it: both of what is
        # past the maximum here, and neither of what is not.
        times = record.reconsume_times + 1
        ext["l"] = str(redeliveries_max if times > redeliveries_max else times + 1)
    return Command.request(RequestCode.SEND_MESSAGE_V2, ext, record.body)
