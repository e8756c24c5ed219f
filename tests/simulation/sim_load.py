"""The work of a simulated gateway: services that send and consume, devices that publish and subscribe.

`History` is what those who use the gateway know: what was sent, acknowledged, and received.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, Final, NamedTuple

from sim_cluster import MQTT_PORT, FrontNode, Node, RegistryNode
from sim_world import Process, World

from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import Message, ReceivedMessage
from iotmq.client.transport.settings import (
    ClientSettings,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from iotmq.errors import IotmqError
from iotmq.mqtt_client.address import Address
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.settings import MqttClientSettings

TOPIC: Final = "orders"
LATER_TOPIC: Final = "reminders"
GROUP: Final = "workers"
REDELIVERIES_MAX: Final = 2
# Messages whose consumer always fails.
BAD: Final = b"bad"


class Consumed(NamedTuple):
    """One message that a listener of the group was called with."""

    body: bytes
    reconsume_times: int
    has_failed: bool
    at_s: float


class Received(NamedTuple):
    """One message that a device got."""

    topic: str
    payload: bytes
    qos: int
    is_retained: bool


class History:
    """What was done and seen from outside."""

    def __init__(self) -> None:
        # Body -> topic, from before it is sent.
        self.sent: dict[bytes, str] = {}
        # Body -> where it is stored, by the broker's word; in the order of the words.
        self.acknowledged: dict[bytes, tuple[str, int, int] | None] = {}
        # Whether some messages are delayed.
        self.has_delays = True
        # Body -> when it was sent, and the milliseconds it is to wait.
        self.delayed: dict[bytes, tuple[float, int]] = {}
        self.consumed: list[Consumed] = []
        # (broker, queue id) -> (offset, body) as those saw it who read queues.
        self.pulled: dict[tuple[str, int], list[tuple[int, bytes]]] = defaultdict(list)
        # Payloads of devices -> QoS.
        self.published: dict[bytes, int] = {}
        self.published_acknowledged: list[bytes] = []
        # Topic -> retained payloads in the order they were published, and how many of them are acknowledged.
        self.retained: dict[str, list[bytes]] = defaultdict(list)
        self.retained_acknowledged: dict[str, int] = defaultdict(int)
        self.received: dict[str, list[Received]] = {}
        # Device -> what was published before it had subscribed.
        self.published_before: dict[str, set[bytes]] = {}
        self.is_over = False


class ServiceNode(Node):
    """A process of a backend service: killed and started again, it goes on with what it does."""

    kind = "service"

    def __init__(self, world: World, name: str, registry: RegistryNode, history: History) -> None:
        super().__init__(world, name)
        self.registry = registry
        self.history = history

    def client(self, process: Process) -> ClientTransport:
        return ClientTransport(
            ClientSettings(
                registries=(self.registry.address,),
                client_id=process.name,
                heartbeat_ms=2_000,
                route_refresh_ms=2_000,
                reconnect_ms_max=1_000,
                request_timeout_ms=2_000,
            )
        )


class Sender(ServiceNode):
    """Sends one message after the other, each when the one before is acknowledged or has failed."""

    group = "senders"

    def __init__(self, *arguments: Any, pause_s: float) -> None:
        super().__init__(*arguments)
        self._pause_s = pause_s

    async def serve(self, process: Process) -> None:
        client = self.client(process)
        await client.start()
        producer = Producer(client, self.group, ProducerSettings(send_timeout_ms=4_000))
        await producer.start()
        process.run(self._send(process, producer))

    async def _send(self, process: Process, producer: Producer) -> None:
        history = self.history
        number = 0
        while not history.is_over:
            number += 1
            message = self.message(process.name, number)
            history.sent[message.body] = message.topic
            try:
                result = await producer.send(message)
            except IotmqError as error:
                self.world.note("send failed", message.body, type(error).__name__)
            else:
                self.world.note("acknowledged", message.body, result.queue.queue_id, result.queue_offset)
                queue = result.queue
                is_later = message.topic == LATER_TOPIC
                history.acknowledged[message.body] = (
                    None if is_later else (queue.broker_name, queue.queue_id, result.queue_offset)
                )
            await asyncio.sleep(self.world.random.expovariate(1 / self._pause_s))

    def message(self, sender: str, number: int) -> Message:
        """The next message of a life."""
        draw = self.world.random
        name = f"{sender} {number}"
        kind = draw.random()
        if kind < 0.1 and self.history.has_delays:
            message = Message(LATER_TOPIC, f"later {name}".encode(), delay_ms=draw.randint(1, 5_000))
            self.history.delayed[message.body] = (self.world.now_s, message.delay_ms)
            return message
        if kind < 0.15:
            return Message(TOPIC, BAD + f" {name}".encode())
        return Message(TOPIC, name.encode() + bytes(draw.choice((0, 50, 3_000))), key=sender)


class Worker(ServiceNode):
    """A member of the consumer group; fails some messages."""

    async def serve(self, process: Process) -> None:
        client = self.client(process)
        await client.start()
        consumer = PushConsumer(
            client,
            GROUP,
            self._consume,
            settings=PushConsumerSettings(
                consume_from="first",
                commit_ms=500,
                rebalance_ms=2_000,
                redeliveries_max=REDELIVERIES_MAX,
                hold_ms=2_000,
                pull_timeout_ms=4_000,
                batch_max=8,
            ),
        )
        for topic in (TOPIC, LATER_TOPIC):
            await consumer.subscribe(topic)
        await consumer.start()

    async def _consume(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        draw = self.world.random
        await asyncio.sleep(draw.expovariate(200))
        failed = []
        for message in messages:
            has_failed = message.body.startswith(BAD) or draw.random() < 0.02
            if has_failed:
                failed.append(message)
            self.history.consumed.append(
                Consumed(
                    message.body,
                    message.record.reconsume_times,
                    has_failed,
                    self.world.now_s,
                )
            )
        return failed


class Reader(ServiceNode):
    """Reads every queue of the topic from its beginning, in each of its lives."""

    async def serve(self, process: Process) -> None:
        client = self.client(process)
        await client.start()
        consumer = PullConsumer(client, "readers", PullConsumerSettings(hold_ms=2_000, pull_timeout_ms=4_000))
        await consumer.start()
        process.run(self._read(consumer))

    async def _read(self, consumer: PullConsumer) -> None:
        assigned: set[Any] = set()
        while True:
            try:
                queues = set(await consumer.queues(TOPIC))
                if not queues <= assigned:
                    new = sorted(queues - assigned)
                    begins = {queue: await consumer.begin_offset(queue) for queue in new}
                    at = {queue: consumer.position(queue) for queue in sorted(assigned)}
                    await consumer.assign({**at, **begins})
                    assigned |= queues
                for message in await consumer.getmany(timeout_ms=1_000):
                    queue = message.queue
                    place = (queue.broker_name, queue.queue_id)
                    self.history.pulled[place].append((message.record.queue_offset, message.body))
            except IotmqError as error:
                self.world.note("read failed", repr(error))
                await asyncio.sleep(0.5)


class Devices(Node):
    """Devices that are never killed; what fails is their network, and who serves them."""

    kind = "devices"
    filters: tuple[tuple[str, int], ...] = (("d/#", 2), ("state/#", 1))

    def __init__(self, world: World, name: str, fronts: list[FrontNode], history: History) -> None:
        super().__init__(world, name)
        self.fronts = fronts
        self.history = history
        self.unfinished = 0
        # The new device has subscribed.
        self.is_told = False
        self.clients: dict[str, MqttClient] = {}

    async def serve(self, process: Process) -> None:
        for number in range(2):
            process.run(self._subscribe(f"screen-{number}", process))
            process.run(self._publish(f"sensor-{number}", process))

    async def connected(self, client_id: str, process: Process) -> MqttClient:
        draw = self.world.random
        while True:
            front = draw.choice(self.fronts)
            client = MqttClient(
                MqttClientSettings(
                    address=Address(host=front.host, port=MQTT_PORT),
                    client_id=client_id,
                    clean_session=False,
                    session_expiry_s=3_600,
                    keep_alive_s=4,
                    # Which topics get one is drawn when the module is loaded.
                    topic_aliases_max=0,
                    gives_aliases=False,
                    connect_timeout_s=3.0,
                    reconnect_max_s=2.0,
                )
            )
            try:
                await client.start()
            except IotmqError as error:
                self.world.note("no connection", client_id, repr(error))
                await asyncio.sleep(0.5)
            else:
                self.clients[client_id] = client
                return client

    async def _subscribe(self, client_id: str, process: Process) -> None:
        client = await self.connected(client_id, process)
        while True:
            try:
                await client.subscribe(*self.filters)
                break
            except IotmqError as error:
                self.world.note("not subscribed", client_id, repr(error))
                await asyncio.sleep(0.5)
        self.world.note("subscribed", client_id)
        self.history.published_before[client_id] = set(self.history.published)
        self.history.received[client_id] = []
        while True:
            for message in await client.next_batch():
                self.history.received[client_id].append(
                    Received(message.topic, bytes(message.payload), message.qos, message.is_retained)
                )

    async def ask_retained(self, found: dict[str, list[bytes]]) -> None:
        """Have a new device told what is retained."""
        assert self.process is not None
        client = await self.connected("newcomer", self.process)
        await client.subscribe(("state/#", 1))
        self.is_told = True
        while True:
            for message in await client.next_batch():
                found.setdefault(message.topic, []).append(bytes(message.payload))

    async def _publish(self, client_id: str, process: Process) -> None:
        draw, history = self.world.random, self.history
        client = await self.connected(client_id, process)
        number = 0
        while not history.is_over:
            number += 1
            qos = draw.choice((0, 1, 2, 2))
            payload = f"{client_id} {number}".encode()
            self.unfinished += 1
            if draw.random() < 0.2:
                topic = f"state/{client_id}"
                history.retained[topic].append(payload)
                if await self._published(client, topic, payload, 1, is_retained=True):
                    history.retained_acknowledged[topic] = len(history.retained[topic])
            else:
                history.published[payload] = qos
                if await self._published(client, f"d/{client_id}/{qos}", payload, qos) and qos:
                    history.published_acknowledged.append(payload)
            self.unfinished -= 1
            await asyncio.sleep(draw.expovariate(4))

    async def _published(
        self, client: MqttClient, topic: str, payload: bytes, qos: int, *, is_retained: bool = False
    ) -> bool:
        try:
            await client.publish(topic, payload, qos=qos, retain=is_retained)
        except IotmqError as error:
            self.world.note("not published", payload, repr(error))
            return False
        return True
