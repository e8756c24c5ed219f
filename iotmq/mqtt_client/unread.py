"""Keep received messages until the program takes them; with too many, the server is not read."""

from __future__ import annotations

from collections import deque

from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt_client.connection import MqttConnection

Batch = list[ReceivedMessage]


class UnreadMessages:
    """Batches of received messages in order, each with the connection that its acknowledgements go to."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: deque[tuple[MqttConnection, Batch]] = deque()
        # About: what was read from the network since nothing was unread.
        self._bytes = 0
        # What was given out last, until it is acknowledged.
        self._given: tuple[MqttConnection, Batch] | None = None

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, connection: MqttConnection, batch: Batch, size: int) -> None:
        """Add a batch that arrived in `size` bytes."""
        self._batches.append((connection, batch))
        self._bytes += size
        if self._bytes >= self._bytes_max:
            connection.pause_reading()

    def take(self, count_max: int | None) -> Batch:
        """Return the oldest batch, or its first `count_max` messages."""
        connection, batch = self._batches.popleft()
        if count_max is not None and len(batch) > count_max:
            self._batches.appendleft((connection, batch[count_max:]))
            batch = batch[:count_max]
        self._given = (connection, batch)
        if not self._batches:
            self._bytes = 0
            connection.resume_reading()
        return batch

    def acknowledge(self) -> None:
        """Acknowledge the batch that was returned last."""
        if self._given is None:
            return
        (connection, batch), self._given = self._given, None
        for message in batch:
            if message.qos:
                connection.core.acknowledge(message)
        if connection.core.output_bytes:
            connection.send_soon()
