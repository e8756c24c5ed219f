"""Reads everything a broker has of a topic, with plain requests and the slow record codec.

The checker of crash and interop tests: it shares no code with the compiled path from log to consumer.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from record_oracle import OracleRecord, decode_all, properties_of

from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


@dataclass(frozen=True)
class StoredMessage:
    """One record of a queue, as a checker wants it."""

    topic: str
    queue_id: int
    offset: int
    position: int
    body: bytes
    properties: dict[str, str]
    reconsume_times: int


def read_topic(registry: str, topic: str) -> dict[int, list[StoredMessage]]:
    """Queue id -> all its messages in order. A topic nobody knows has no queues.

    Offsets without a gap are part of what is checked.
    """
    queues: dict[int, list[StoredMessage]] = {}
    for address, count in _route(registry, topic):
        host, _, port = address.rpartition(":")
        with BlockingConnection(host, int(port), timeout_s=30) as broker:
            for queue_id in range(count):
                queues[queue_id] = _read_queue(broker, topic, queue_id)
    return queues


def read_bodies(registry: str, topic: str) -> list[bytes]:
    """The bodies of a topic, queue after queue."""
    return [message.body for messages in read_topic(registry, topic).values() for message in messages]


def stored_count(registry: str, topic: str) -> int:
    """How many messages a topic has, without reading them."""
    count = 0
    for address, queues in _route(registry, topic):
        host, _, port = address.rpartition(":")
        with BlockingConnection(host, int(port), timeout_s=30) as broker:
            for queue_id in range(queues):
                count += _end(broker, RequestCode.GET_MAX_OFFSET, topic, queue_id)
                count -= _end(broker, RequestCode.GET_MIN_OFFSET, topic, queue_id)
    return count


def _route(registry: str, topic: str) -> list[tuple[str, int]]:
    host, _, port = registry.rpartition(":")
    with BlockingConnection(host, int(port), timeout_s=30) as connection:
        answer = connection.request(Command.request(RequestCode.GET_ROUTE_INFO_BY_TOPIC, {"topic": topic}))
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer
    # Keys of brokerAddrs are bare numbers.
    route = json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', answer.body_bytes()))
    addresses = {each["brokerName"]: each["brokerAddrs"]["0"] for each in route["brokerDatas"]}
    return [(addresses[each["brokerName"]], each["readQueueNums"]) for each in route["queueDatas"]]


def _read_queue(broker: BlockingConnection, topic: str, queue_id: int) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    offset = _end(broker, RequestCode.GET_MIN_OFFSET, topic, queue_id)
    while True:
        answer = broker.request(
            Command.request(
                RequestCode.PULL_MESSAGE,
                {
                    "consumerGroup": "log-reader", "topic": topic, "queueId": str(queue_id),
                    "queueOffset": str(offset), "maxMsgNums": "1000", "sysFlag": "4", "commitOffset": "0",
                    "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
                    "expressionType": "TAG",
                },
            )
        )  # fmt: skip
        if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            return messages
        assert answer.code == ResponseCode.SUCCESS, answer
        records = decode_all(answer.body_bytes())
        assert records, "an answer with code 0 and no records"
        for record in records:
            assert (record.queue_id, record.queue_offset) == (queue_id, offset), record
            messages.append(_message(record))
            offset += 1


def _end(broker: BlockingConnection, code: int, topic: str, queue_id: int) -> int:
    answer = broker.request(Command.request(code, {"topic": topic, "queueId": str(queue_id)}))
    assert answer.code == ResponseCode.SUCCESS, answer
    return int(answer.ext["offset"])


def _message(record: OracleRecord) -> StoredMessage:
    return StoredMessage(
        topic=record.topic,
        queue_id=record.queue_id,
        offset=record.queue_offset,
        position=record.position,
        body=record.body,
        properties={
            name.decode(): value.decode("utf-8", "replace")
            for name, value in properties_of(record.properties).items()
        },
        reconsume_times=record.reconsume_times,
    )
