"""The native client behind a pipe, as foreign ones are: a process of its own that can be killed.

Commands come as JSON lines on stdin, results and received messages go to stdout
(tests/oracles/piped_client.py).
"""

from __future__ import annotations

import sys

from piped_script import say, serve

import iotmq.client
from iotmq.client import PushConsumerSettings, ReceivedMessage, SyncPushConsumer


class Client:
    """What was started in this process, by name."""

    def __init__(self, registry: str) -> None:
        self._client = iotmq.client.connect_sync(f"iotmq://{registry}", client_id="native@own")
        self._client.start()
        self._consumers: dict[str, SyncPushConsumer] = {}

    def push(self, group: str, topic: str, instance: str, orderly: bool) -> None:
        """Messages follow as lines of kind "message"."""

        def received(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                say(
                    kind="message",
                    topic=message.topic,
                    consumer=instance,
                    body=message.body.decode(),
                    queue_id=message.queue.queue_id,
                )

        settings = PushConsumerSettings(consume_from="first", orderly=orderly, commit_ms=50)
        consumer = self._client.push_consumer(group, received, settings=settings)
        consumer.subscribe(topic)
        consumer.start()
        self._consumers[instance] = consumer

    def shutdown(self, name: str) -> None:
        self._consumers.pop(name).stop()


if __name__ == "__main__":
    serve(Client(sys.argv[1]))
