"""A broker killed again and again while transactions are prepared, ended and asked about."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from crash_load import BACK_S, SMALL_FILES, check_store
from eventually import soon
from gateway_process import GatewayProcess
from log_reader import read_topic

from iotmq.client import (
    ClientSettings,
    IotmqClient,
    Message,
    ProducerSettings,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from iotmq.errors import IotmqError

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "3"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "21"))
WORKERS = 8
TOPIC = "Transactions"

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class Bank:
    """What the application has decided, by message id; the only truth a check asks."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.decisions: dict[str, TransactionState] = {}
        self.ended = 0

    def decide(self, message_id: str) -> TransactionState:
        """Decided for good; whether the producer says so now is another question."""
        decision = self.decisions[message_id] = self.chance.choice((COMMIT, COMMIT, ROLLBACK))
        return UNKNOWN if self.chance.random() < 0.2 else decision

    def check(self, message: ReceivedMessage) -> TransactionState:
        # A half whose answer got lost: the application never heard of it.
        return self.decisions.get(message.message_id, ROLLBACK)

    async def work(self, producer: TransactionProducer, name: str) -> None:
        number = 0
        while True:
            number += 1
            try:
                await producer.send_in_transaction(Message(TOPIC, f"{name}-{number}".encode()), self.decide)
                self.ended += 1
            except IotmqError:
                await asyncio.sleep(0.05)


def pending(gateway: GatewayProcess) -> float:
    return gateway.metrics()["iotmq_broker_transactions_pending"]


@pytest.mark.timeout(60 + 30 * ROUNDS)
async def test_what_was_decided_is_what_is_delivered(tmp_path: Path) -> None:
    print(f"IOTMQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    bank = Bank(chance)
    gateway = GatewayProcess(
        tmp_path / "data", "broker.offsets_interval_s=0.1", "broker.transaction_timeout_s=1",
        "broker.transaction_check_interval_s=0.3", "broker.transaction_checks_max=1000", *SMALL_FILES,
    )  # fmt: skip
    with gateway:
        settings = ClientSettings(
            registries=(gateway.registry,), reconnect_ms_min=10, reconnect_ms_max=100, heartbeat_ms=300,
            request_timeout_ms=1_000, missing_route_refresh_ms=100,
        )  # fmt: skip
        producer_settings = ProducerSettings(send_timeout_ms=2_000)
        async with (
            IotmqClient(settings) as client,
            TransactionProducer(client, "bank", bank.check, producer_settings) as producer,
        ):
            await producer.send(Message(TOPIC, b"first"))
            workers = [asyncio.ensure_future(bank.work(producer, f"w{n}")) for n in range(WORKERS)]
            for _ in range(ROUNDS):
                target = bank.ended + 100 + int(chance.expovariate(1 / 200))
                await soon(lambda target=target: bank.ended >= target, "transactions end", within_s=BACK_S)
                await asyncio.to_thread(gateway.restart)
            target = bank.ended + 100
            await soon(lambda: bank.ended >= target, "they end again", within_s=BACK_S)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await producer.drain()
            await soon(lambda: pending(gateway) == 0, "all are asked about and ended", within_s=BACK_S)
        delivered: Counter[str] = Counter()
        bodies: dict[str, set[bytes]] = {}
        queues = await asyncio.to_thread(read_topic, gateway.registry, TOPIC)
        for message in (each for queue in queues.values() for each in queue):
            if message.body != b"first":
                key = message.properties["UNIQ_KEY"]
                delivered[key] += 1
                bodies.setdefault(key, set()).add(message.body)
    committed = {key for key, decision in bank.decisions.items() if decision is COMMIT}
    assert committed
    assert set(delivered) == committed
    assert all(len(of_key) == 1 for of_key in bodies.values())
    # A kill repeats at most what each worker had under way, and what was asked about at that moment.
    repeated = sum(count - 1 for count in delivered.values())
    assert repeated <= 4 * WORKERS * ROUNDS
    print(f"{len(committed)} of {len(bank.decisions)} committed, {repeated} delivered again")
    check_store(gateway.data)
