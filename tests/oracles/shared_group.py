"""A consumer of others and one of ours in one group: each has queues, and takes over the other's."""

from __future__ import annotations

from collections import Counter

from eventually import eventually
from piped_client import PipedClient

from iotmq.client import (
    ClientSettings,
    Message,
    MessageQueue,
    PushConsumerSettings,
    ReceivedMessage,
    SyncClient,
    SyncProducer,
    SyncPushConsumer,
)

QUEUES = 4


class SharedGroup:
    """The group's messages, as both have consumed them."""

    def __init__(self, producer: SyncProducer, foreign: PipedClient, topic: str) -> None:
        self._producer = producer
        self._foreign = foreign
        self._topic = topic
        self._queues: tuple[MessageQueue, ...] = producer.queues(topic)
        self._number = 0
        self.own: list[str] = []

    def listen(self, messages: list[ReceivedMessage]) -> None:
        self.own.extend(message.body.decode() for message in messages)

    @property
    def others(self) -> list[str]:
        return [line["body"] for line in self._foreign.said("message", topic=self._topic)]

    def send(self, rounds: int) -> set[str]:
        """Send so many to each queue; returns them when all are consumed."""
        names = {f"{self._number + at:04}" for at in range(rounds * QUEUES)}
        for name in sorted(names):
            queue = self._queues[int(name) % QUEUES]
            self._producer.send(Message(self._topic, name.encode(), tags="t"), queue=queue)
        self._number += len(names)
        eventually(lambda: names <= {*self.own, *self.others}, "all is consumed", within_s=60)
        return names

    def settle(self) -> None:
        """Send until each queue has one reader, and each consumer half of them."""
        for _ in range(200):
            names = self.send(1)
            if len(names & {*self.own}) == len(names & {*self.others}) == QUEUES // 2:
                return
        raise AssertionError("they do not share the queues")

    def check_once(self, names: set[str]) -> None:
        counts = Counter(self.own) + Counter(self.others)
        assert {name: counts[name] for name in names} == dict.fromkeys(names, 1)


def share_a_group(registry: str, foreign: PipedClient, *, topic: str, group: str, leaves: str) -> None:
    """`foreign` joins first; `leaves` is the name that its consumer has for its command "shutdown"."""
    settings = ClientSettings(registries=(registry,), reconnect_ms_max=100)
    with SyncClient(settings) as client, client.producer() as producer:
        client.admin.create_topic(topic, queues=QUEUES)
        shared = SharedGroup(producer, foreign, topic)
        foreign.call("push", group=group, topic=topic)
        shared.send(1)

        def member() -> SyncPushConsumer:
            consumer = client.push_consumer(group, shared.listen, settings=PushConsumerSettings(commit_ms=20))
            consumer.subscribe(topic)
            return consumer

        with member():
            shared.settle()
            once = shared.send(10)
            assert len(once & {*shared.own}) == len(once & {*shared.others}) == 20
        # It has left, and what it consumed is committed: nothing of that comes to the other one.
        once |= shared.send(5)
        shared.check_once(once)
        with member():
            shared.settle()
            foreign.call("shutdown", name=leaves)
            rest = shared.send(5)
            assert rest <= {*shared.own}
            shared.check_once(rest)
