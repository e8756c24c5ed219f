"""The C++ client behind a pipe: commands as JSON lines on stdin, results and received messages on stdout.

Run as a process of its own (tests/oracles/piped_client.py), because a native library that aborts must not
take the tests with it. The package `rocketmq` is used as it is published.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from piped_script import say, serve

# The package, once `main` has loaded it.
rocketmq: Any = None


def message(values: dict[str, Any]) -> Any:
    made = rocketmq.Message(values["topic"])
    made.set_body(values["body"])
    if "tags" in values:
        made.set_tags(values["tags"])
    if "keys" in values:
        made.set_keys(values["keys"])
    if "delay_level" in values:
        made.set_delay_time_level(values["delay_level"])
    for name, value in values.get("properties", {}).items():
        made.set_property(name, value)
    return made


def seen(received: Any) -> dict[str, Any]:
    def text(value: bytes | None) -> str | None:
        return None if value is None else value.decode()

    return {
        "topic": received.topic,
        "body": text(received.body),
        "tags": text(received.tags),
        "keys": text(received.keys),
        "id": received.id,
        "queue_id": received.queue_id,
        "queue_offset": received.queue_offset,
        "position": received.commit_log_offset,
        "reconsume_times": received.reconsume_times,
        "born_timestamp_ms": received.born_timestamp,
        "store_timestamp_ms": received.store_timestamp,
        "mqtt_topic": text(received.get_property("MQTT_TOPIC")),
        "mqtt_client_id": text(received.get_property("MQTT_CLIENT_ID")),
        "colour": text(received.get_property("colour")),
    }


def once_connected(send: Any, *words: Any, connecting_s: float = 10) -> Any:
    """What `send` returns, once the library has a connection to the broker.

    Its heartbeat opens one in another thread as soon as it knows a broker. A send that comes in that moment
    fails five times within a millisecond and says that there is no route; nothing was sent then. It says the
    same of a send that the broker refused: who expects that gives it less time.
    """
    deadline_s = time.monotonic() + connecting_s
    while True:
        try:
            return send(*words)
        except Exception as error:
            if "No route info" not in str(error) or time.monotonic() > deadline_s:
                raise
            # The library tells nobody when it has connected; asking again is all there is.
            time.sleep(0.02)


def sent(result: Any) -> dict[str, Any]:
    return {"status": int(result.status), "id": result.msg_id, "offset": result.offset}


class Client:
    """What was started in this process, by name."""

    def __init__(self, registry: str) -> None:
        self.registry = registry
        self.producers: dict[str, Any] = {}
        self.consumers: dict[str, Any] = {}

    def producer(
        self, group: str, timeout_ms: int = 5000, compress_level: int = 5, keys: list[str] | None = None
    ) -> None:
        """`keys` are an access key and its secret."""
        made = rocketmq.Producer(group, timeout=timeout_ms, compress_level=compress_level)
        if keys:
            made.set_session_credentials(*keys, "ALIYUN")
        made.set_namesrv_addr(self.registry)
        made.start()
        self.producers[group] = made

    def send(
        self, group: str, messages: list[dict[str, Any]], connecting_s: float = 10
    ) -> list[dict[str, Any]]:
        send, within = self.producers[group].send_sync, {"connecting_s": connecting_s}
        return [sent(once_connected(send, message(each), **within)) for each in messages]

    def send_oneway(self, group: str, messages: list[dict[str, Any]]) -> None:
        for each in messages:
            self.producers[group].send_oneway(message(each))

    def send_batch(self, group: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        return sent(once_connected(self.producers[group].send_batch, [message(each) for each in messages]))

    def send_orderly(self, group: str, messages: list[dict[str, Any]], key: int) -> list[dict[str, Any]]:
        producer = self.producers[group]
        return [sent(once_connected(producer.send_orderly, message(each), key)) for each in messages]

    def send_async(self, group: str, messages: list[dict[str, Any]]) -> None:
        """The results follow as lines of kind "async"."""
        for each in messages:
            body = each["body"]
            self.producers[group].send_async(
                message(each),
                lambda result, body=body: say(kind="async", body=body, **sent(result)),
                lambda error, body=body: say(kind="async", body=body, error=str(error)),
            )

    def push(
        self, group: str, topic: str, expression: str = "*", orderly: bool = False, fail_first: int = 0,
        instance: str = "", broadcast: bool = False, keys: list[str] | None = None,
    ) -> None:  # fmt: skip
        """Messages follow as lines of kind "message"; the first `fail_first` tries of each one fail."""
        models = rocketmq.MessageModel
        model = models.BROADCASTING if broadcast else models.CLUSTERING
        consumer = rocketmq.PushConsumer(group, orderly=orderly, message_model=model)
        consumer.set_namesrv_addr(self.registry)
        consumer.set_instance_name(instance or group)
        if keys:
            consumer.set_session_credentials(*keys, "ALIYUN")
        tries: dict[str, int] = {}

        def received(_consumer: Any, handle: Any) -> int:
            values = seen(rocketmq.RecvMessage(handle))
            tries[values["body"]] = tries.get(values["body"], 0) + 1
            is_failing = tries[values["body"]] <= fail_first
            say(kind="message", consumer=instance or group, is_failing=is_failing, **values)
            return int(is_failing)

        # What `subscribe` does, but for its wrapper of the callback: that one leaves it open what the library
        # gets when a message fails.
        rocketmq.ffi_check(rocketmq.dll.Subscribe(consumer._handle, topic.encode(), expression.encode()))
        consumer._register_callback(received)
        consumer.start()
        self.consumers[instance or group] = consumer

    def pull(
        self, group: str, topic: str, expression: str = "*", records_max: int = 32
    ) -> list[dict[str, Any]]:
        """Everything the pull consumer of `group` has not had yet."""
        consumer = self.consumers.get(group)
        if consumer is None:
            consumer = self.consumers[group] = rocketmq.PullConsumer(group)
            consumer.set_namesrv_addr(self.registry)
            consumer.start()
        return [seen(each) for each in consumer.pull(topic, expression, records_max)]

    def shutdown(self, name: str) -> None:
        (self.consumers.get(name) or self.producers[name]).shutdown()


def main() -> None:
    global rocketmq
    from rocketmq import client as rocketmq

    serve(Client(sys.argv[1]))


if __name__ == "__main__":
    main()
