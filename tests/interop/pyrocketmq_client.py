"""pyrocketmq behind a pipe: commands as JSON lines on stdin, results and received messages on stdout.

Run as a process of its own (tests/oracles/piped_client.py), because it carries a Java machine. The package is
used as it is published, with the Java client's libraries from the folder named first.
"""

from __future__ import annotations

import sys
from typing import Any

import jpype
import jpype.imports  # The package imports Java classes by name.
from piped_script import say, serve


class Client:
    """What was started in this process, by group. The package is imported here: it needs the Java machine."""

    def __init__(self, registries: str) -> None:
        from pyrocketmq.client import producer
        from pyrocketmq.client.consumer import consumer, listener
        from pyrocketmq.common import common, message

        self.registries = registries
        self.library = {"producer": producer, "consumer": consumer, "listener": listener}
        self.common = common
        self.message = message
        self.started: dict[str, Any] = {}

    def producer(self, group: str) -> None:
        made = self.library["producer"].Producer(group)
        made.setNamesrvAddr(self.registries)
        made.start()
        self.started[group] = made

    def send(self, group: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [self._result(self.started[group].send(self._message(each))) for each in messages]

    def send_oneway(self, group: str, messages: list[dict[str, Any]]) -> None:
        for each in messages:
            self.started[group].sendOneway(self._message(each))

    def offsets(self, group: str, topic: str) -> dict[int, list[int]]:
        """Start and end of the queues of a topic, and where time 0 is."""
        asked = self.started[group]
        return {
            queue.queueId: [asked.minOffset(queue), asked.maxOffset(queue), asked.searchOffset(queue, 0)]
            for queue in asked.fetchPublishMessageQueues(topic)
        }

    def view(self, group: str, message_id: str) -> dict[str, Any]:
        return self._seen(self.started[group].viewMessage(offsetMsgId=message_id))

    def pull(self, group: str, topic: str, expression: str = "*") -> list[dict[str, Any]]:
        """Everything a topic has, by a pull consumer."""
        made = self.library["consumer"].PullConsumer(group)
        made.setNamesrvAddr(self.registries)
        made.start()
        found = []
        for queue in made.fetchSubscribeMessageQueues(topic):
            offset = made.minOffset(queue)
            while offset < made.maxOffset(queue):
                result = made.pull(queue, expression, offset, 32)
                found.extend(self._seen(each) for each in result)
                offset = result.nextBeginOffset
        made.shutdown()
        return found

    def push(
        self, group: str, topic: str, expression: str = "*", fail_first: int = 0, sql: str = "",
        max_reconsume_times: int = -1,
    ) -> None:  # fmt: skip
        """Messages follow as lines of kind "message"; the first `fail_first` tries of each one fail."""
        listener = self.library["listener"]
        tries: dict[str, int] = {}

        class Listener(listener.MessageListenerConcurrently):
            def _consumeMessage(_, messages: list[Any], context: Any) -> Any:  # noqa: N802, N805
                seen = [self._seen(each) for each in messages]
                failing = False
                for each in seen:
                    tries[each["body"]] = tries.get(each["body"], 0) + 1
                    failing |= tries[each["body"]] <= fail_first
                for each in seen:
                    say(kind="message", group=group, is_failing=failing, **each)
                status = listener.ConsumeConcurrentlyStatus
                return status.RECONSUME_LATER if failing else status.CONSUME_SUCCESS

        made = self.library["consumer"].PushConsumer(group)
        made.setNamesrvAddr(self.registries)
        made.setMaxReconsumeTimes(max_reconsume_times)
        made.setConsumeFromWhere(self.common.ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        selector = self.library["consumer"].MessageSelector
        made.subscribe(topic, selector.bySql(sql) if sql else expression)
        made.registerMessageListener(Listener())
        made.start()
        self.started[group] = made

    def shutdown(self, group: str) -> None:
        self.started.pop(group).shutdown()

    def _message(self, values: dict[str, Any]) -> Any:
        made = self.message.Message(
            topic=values["topic"],
            body=values["body"].encode(),
            tags=values.get("tags", ""),
            keys=values.get("keys", ""),
        )
        if "delay_level" in values:
            made.setDelayTimeLevel(values["delay_level"])
        for name, value in values.get("properties", {}).items():
            made.putUserProperty(name, value)
        return made

    def _result(self, result: Any) -> dict[str, Any]:
        return {
            "status": result.sendStatus.name,
            "id": result.msgId,
            "position_id": result.offsetMsgId,
            "queue_offset": result.queueOffset,
        }

    def _seen(self, received: Any) -> dict[str, Any]:
        return {
            "topic": received.topic,
            "body": received.body.decode(),
            "tags": received.tags,
            "reconsume_times": received.reconsumeTimes,
            "born_timestamp_ms": received.bornTimestamp,
            "store_timestamp_ms": received.storeTimestamp,
            "id": received.msgId,
        }


def main() -> None:
    libraries, registries, home = sys.argv[1:]
    # The folder of this script has one called java, which is not the package java.
    del sys.path[0]
    jpype.startJVM(f"-Duser.home={home}", "-Xmx128m", classpath=[f"{libraries}/*"])
    serve(Client(registries))


if __name__ == "__main__":
    main()
