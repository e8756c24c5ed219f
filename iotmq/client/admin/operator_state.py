"""Read and change the state that operators make for all processes (mqtt.operator_state)."""

from __future__ import annotations

from typing import Final

from iotmq.client.admin.asking import Asking
from iotmq.client.admin.devices.retained import RetainedAdmin
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.calls import master_addresses
from iotmq.client.transport.message import Message
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ProducerSettings
from iotmq.message.properties import MQTT_TOPIC
from iotmq.mqtt.operator_state import OPERATOR_TOPIC, state_properties

_GROUP: Final = "iotmq_operators"


class OperatorState(Asking):
    """State at all brokers; needs a started client."""

    async def read(self, topic_filter: str, *, most: int | None = None) -> list[tuple[str, bytes]]:
        """Return MQTT topics and bodies, each topic once; at `most` of them, where that is given."""
        found: list[tuple[str, bytes]] = []
        cursor: str | None = ""
        while cursor is not None and (most is None or len(found) < most):
            page = await RetainedAdmin(self._client).page(topic_filter, cursor)
            found += [
                (message.properties.get(MQTT_TOPIC, ""), bytes(message.record.body))
                for message in page.messages
                # Others were written by hand into a topic; nobody takes them for state.
                if message.topic == OPERATOR_TOPIC
            ]
            cursor = page.next_cursor
        return found[:most]

    async def put(self, topic: str, body: bytes, *, expires_ms: int = 0) -> list[str]:
        """Make or change a piece at every broker, end it with an empty body; returns the brokers' names."""
        names = sorted(await master_addresses(self._client))
        producer = Producer(self._client, _GROUP, ProducerSettings())
        await producer.start()
        try:
            for name in names:
                properties = state_properties(topic, expires_ms=expires_ms)
                message = Message(OPERATOR_TOPIC, body, properties=properties)
                await producer.send(message, queue=MessageQueue(OPERATOR_TOPIC, name, 0))
        finally:
            await producer.stop()
        return names
