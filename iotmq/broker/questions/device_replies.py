"""Answers of devices to the requests of native clients, on their way to who asked (`$reply/TOKEN`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.questions.replies import ReplyHandler
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import RequestError
from iotmq.message.hosts import decode_host
from iotmq.message.properties import (
    CORRELATION_ID,
    MQTT_CLIENT_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    REPLY_TYPE,
    encode_properties,
)
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.topics.reply import read_reply_topic
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

logger = logging.getLogger(__name__)

_GROUP: Final = "iotmq_mqtt_front"


class DeviceReplies(RequestProcessor):
    """Pushes answers of devices as the replies they are; front ends hand them over.

    An answer for which nobody waits (any more) is dropped and counted, as any reply; the device is not told,
    which could do nothing about it.
    """

    def __init__(self, replies: ReplyHandler, parts: BrokerParts) -> None:
        self._replies = replies
        self._writer = parts.writer
        self._clock = parts.clock
        self._host = parts.host
        self._address = "{}:{}".format(*decode_host(parts.host))
        self._topic = f"{parts.settings.cluster}_REPLY_TOPIC"
        self._stores_replies = parts.settings.store_replies

    def reply(self, topic: str, client_id: str, body: bytes) -> None:
        """Hand over what a device published to a reply topic.

        Raises RequestError: 13 for a topic or client id that cannot be one, 14 while too many replies wait.
        """
        try:
            address = read_reply_topic(topic)
            properties = encode_properties(
                {
                    MSG_TYPE: REPLY_TYPE,
                    CORRELATION_ID: address.correlation_id,
                    REPLY_TO_CLIENT: address.client_id,
                    MQTT_CLIENT_ID: client_id,
                }
            )
        except (MqttProtocolError, ValueError) as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        if len(properties) > limits.PROPERTIES_BYTES_MAX:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the reply topic is too long")
        self._replies.check_room()
        now_ms = self._clock.now_ms()
        fields = {
            "producerGroup": _GROUP,
            "topic": self._topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "8",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": str(now_ms),
            "flag": "0",
            "reconsumeTimes": "0",
            "unitMode": "false",
        }
        self._replies.push(
            address.client_id, fields, properties.decode(), body, born_host=self._address, ended=_pushed
        )
        if self._stores_replies:
            self._writer.append(
                self._topic,
                0,
                encode_element(body, properties, 0),
                born_timestamp_ms=now_ms,
                born_host=self._host,
                done=_stored,
            )

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.PUBLISH_REPLY: self._publish_reply}

    def _publish_reply(self, connection: ServerConnection, request: Command) -> Command:
        self.reply(request.text("topic"), request.text("clientId"), request.body_bytes())
        return request.reply(ResponseCode.SUCCESS)


def _pushed(problem: str) -> None:
    if problem:
        logger.debug("the answer of a device was not handed over: %s", problem)


def _stored(result: StoredBatch | RefusedBatch) -> None:
    if isinstance(result, RefusedBatch):
        logger.warning("the answer of a device was handed over and not stored: %s", result.remark)
