"""More work, of which some runs have some: groups of devices, wills, transactions, pops."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from sim_cluster import MQTT_PORT, FrontNode, RegistryNode
from sim_load import BAD, Devices, History, Sender, ServiceNode
from sim_world import Process, World

from iotmq.client.sending.transactions import TransactionProducer, TransactionState
from iotmq.client.transport.calls import ask
from iotmq.client.transport.message import Message, ReceivedMessage
from iotmq.client.transport.routes import MASTER_ID
from iotmq.client.transport.settings import ProducerSettings
from iotmq.errors import IotmqError
from iotmq.message.records.record import Record, iter_records
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt_client.address import Address
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.settings import MqttClientSettings
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

SHARES: Final = "shares"
TRANSACTIONS: Final = "transactions"
POPS: Final = "pops"
WILLS: Final = "wills"
EXTRAS: Final = (SHARES, TRANSACTIONS, POPS, WILLS)

TRADES_TOPIC: Final = "trades"
# Bodies of transactions say how those end.
COMMITTED: Final = b"commit"
ROLLED_BACK: Final = b"rollback"
JOBS_TOPIC: Final = "jobs"
POP_GROUP: Final = "poppers"
POP_RETRIES_MAX: Final = 2
INVISIBLE_MS: Final = 3_000


class GroupDevices(Devices):
    """Devices that share a subscription; its history has what each has got."""

    filters = (("$share/team/d/#", 1),)

    async def serve(self, process: Process) -> None:
        for number in range(2):
            process.run(self._subscribe(f"member-{number}", process))


class Mortal(ServiceNode):
    """A device with a will; each life of its process is another device."""

    def __init__(
        self, world: World, name: str, registry: RegistryNode, history: History, fronts: list[FrontNode]
    ) -> None:
        super().__init__(world, name, registry, history)
        self._fronts = fronts
        # Wills of those that were connected.
        self.wills: list[bytes] = []

    @property
    def living(self) -> bytes | None:
        """The will of the device that lives."""
        return None if self.process is None else will_of(self.process)

    async def serve(self, process: Process) -> None:
        process.run(self._connect(process))

    async def _connect(self, process: Process) -> None:
        will = will_of(process)
        while True:
            client = MqttClient(
                MqttClientSettings(
                    address=Address(host=self.world.random.choice(self._fronts).host, port=MQTT_PORT),
                    client_id=process.name.replace("#", "-"),
                    clean_session=False,
                    session_expiry_s=3_600,
                    keep_alive_s=4,
                    topic_aliases_max=0,
                    gives_aliases=False,
                    connect_timeout_s=3.0,
                    reconnect_max_s=2.0,
                    will=Will("wills", will, qos=1, retain=False),
                )
            )
            try:
                await client.start()
            except IotmqError as error:
                self.world.note("no connection", process.name, repr(error))
                await asyncio.sleep(0.5)
            else:
                self.wills.append(will)
                return


def will_of(process: Process) -> bytes:
    return f"will {process.name}".encode()


class Trade(NamedTuple):
    """One transaction, as its sender knows it."""

    body: bytes
    is_prepared: bool


class Trader(ServiceNode):
    """Sends transactions; ends some itself, and leaves others to the questions of brokers."""

    def __init__(self, world: World, name: str, registry: RegistryNode, history: History) -> None:
        super().__init__(world, name, registry, history)
        self.trades: list[Trade] = []

    async def serve(self, process: Process) -> None:
        client = self.client(process)
        await client.start()
        producer = TransactionProducer(
            client, "traders", self._check, ProducerSettings(send_timeout_ms=4_000), topics=(TRADES_TOPIC,)
        )
        await producer.start()
        process.run(self._trade(process, producer))

    def _check(self, message: ReceivedMessage) -> TransactionState:
        is_committed = message.body.startswith(COMMITTED)
        return TransactionState.COMMIT if is_committed else TransactionState.ROLLBACK

    async def _trade(self, process: Process, producer: TransactionProducer) -> None:
        draw = self.world.random
        number = 0
        while not self.history.is_over:
            number += 1
            outcome = COMMITTED if draw.random() < 0.6 else ROLLED_BACK
            body = outcome + f" {process.name} {number}".encode()
            self.history.sent[body] = TRADES_TOPIC
            is_prepared = False
            try:
                transaction = await producer.begin(Message(TRADES_TOPIC, body))
                is_prepared = True
                if draw.random() < 0.7:
                    await (transaction.commit() if outcome is COMMITTED else transaction.rollback())
            except IotmqError as error:
                self.world.note("transaction failed", body, type(error).__name__)
            self.trades.append(Trade(body, is_prepared))
            await asyncio.sleep(draw.expovariate(5))


class JobSender(Sender):
    """Sends the messages that are popped."""

    group = "employers"

    def message(self, sender: str, number: int) -> Message:
        kind = BAD + b" " if self.world.random.random() < 0.1 else b""
        return Message(JOBS_TOPIC, kind + f"job {sender} {number}".encode())


class Popped(NamedTuple):
    """One message that a consumer was given."""

    broker: str
    body: bytes
    queue_id: int
    offset: int
    times: int
    # By the clock of its broker.
    popped_ms: int
    asked_s: float
    at_s: float


class Acknowledged(NamedTuple):
    """One acknowledgement that a broker has confirmed."""

    broker: str
    queue_id: int
    offset: int
    at_s: float


class Popper(ServiceNode):
    """Pops from every broker in turn, and acknowledges what it has not failed."""

    def __init__(self, world: World, name: str, registry: RegistryNode, history: History) -> None:
        super().__init__(world, name, registry, history)
        self.popped: list[Popped] = []
        # Places of what was acknowledged, whether that came through or not.
        self.asked: set[tuple[str, int, int]] = set()
        self.acknowledged: list[Acknowledged] = []

    async def serve(self, process: Process) -> None:
        client = self.client(process)
        await client.start()
        process.run(self._consume(client))

    async def _consume(self, client: Any) -> None:
        draw = self.world.random
        while True:
            try:
                route = await client.routes.find(JOBS_TOPIC)
                addresses = {} if route is None else route.addresses
                brokers = sorted(
                    (name, by_id[MASTER_ID]) for name, by_id in addresses.items() if MASTER_ID in by_id
                )
            except IotmqError:
                brokers = []
            for name, address in brokers:
                try:
                    await self._pop(client, name, address)
                except IotmqError as error:
                    self.world.note("not popped", name, type(error).__name__)
            await asyncio.sleep(draw.expovariate(10))

    async def _pop(self, client: Any, broker: str, address: str) -> None:
        draw = self.world.random
        ext = {
            "consumerGroup": POP_GROUP,
            "topic": JOBS_TOPIC,
            "queueId": "-1",
            "maxMsgNums": "8",
            "invisibleTime": str(INVISIBLE_MS),
            "pollTime": str(draw.choice((0, 1_000))),
            "bornTime": str(client.clock.now_ms()),
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        asked_s = self.world.now_s
        answer = await client.request(address, Command.request(RequestCode.POP_MESSAGE, ext), timeout_s=4.0)
        if answer.code != ResponseCode.SUCCESS:
            return
        starts = {
            int(queue_id): start
            for _, queue_id, start in (each.split(" ") for each in answer.ext["startOffsetInfo"].split(";"))
        }
        times = f"{answer.ext['popTime']} {answer.ext['invisibleTime']} {answer.ext['reviveQid']} 0 b"
        records = list(iter_records(answer.body_bytes()))
        for record in records:
            self.popped.append(
                Popped(
                    broker,
                    record.body,
                    record.queue_id,
                    record.queue_offset,
                    record.reconsume_times,
                    int(answer.ext["popTime"]),
                    asked_s,
                    self.world.now_s,
                )
            )
        for record in records:
            await asyncio.sleep(draw.choice((0.0, 0.01, 0.01, 0.1, 1.0)))
            if not record.body.startswith(BAD) and draw.random() < 0.9:
                receipt = f"{starts[record.queue_id]} {times} {record.queue_id} {record.queue_offset}"
                await self._acknowledge(client, broker, address, record, receipt)

    async def _acknowledge(
        self, client: Any, broker: str, address: str, record: Record, receipt: str
    ) -> None:
        ext = {
            "consumerGroup": POP_GROUP,
            "topic": JOBS_TOPIC,
            "queueId": str(record.queue_id),
            "offset": str(record.queue_offset),
            "extraInfo": receipt,
        }
        self.asked.add((broker, record.queue_id, record.queue_offset))
        await ask(client, address, RequestCode.ACK_MESSAGE, ext, doing="an acknowledgement")
        self.acknowledged.append(Acknowledged(broker, record.queue_id, record.queue_offset, self.world.now_s))
