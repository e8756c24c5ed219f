"""A broker with access control and TLS, met by the native clients with right, wrong and no keys."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificates import make_certificate, make_root
from eventually import soon
from local_cluster import LocalCluster

from iotmq.bridge.options.reading import parse_options
from iotmq.client import (
    Admin,
    ClientSettings,
    IotmqClient,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
    SyncClient,
    SyncProducer,
    TransactionProducer,
    TransactionState,
)
from iotmq.errors import BrokerError, IotmqError, RouteNotFoundError
from iotmq.front_port.gateway import RemoteGateway
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.signature import Credentials

WAIT_S = 20.0
FILE = """
accounts:
  - {accessKey: operator, secretKey: abcdefgh, admin: true}
  - {accessKey: producer, secretKey: 12345678, topicPerms: [T=PUB]}
  - {accessKey: consumer, secretKey: 12345678, topicPerms: [T=SUB], groupPerms: [g=SUB]}
"""
OPERATOR = {"access_key": "operator", "secret_key": "abcdefgh"}
PRODUCER = {"access_key": "producer", "secret_key": "12345678"}
CONSUMER = {"access_key": "consumer", "secret_key": "12345678"}


class Site(LocalCluster):
    def __init__(self, directory: Path, *, tls: dict[str, Any] | None = None, **broker: Any) -> None:
        super().__init__(
            directory,
            client={"request_timeout_ms": int(WAIT_S * 1000)},
            registry=tls,
            topics=("T",),
            acl_enabled=True,
            acl_reload_interval_s=0.05,
            **(tls or {}),
            **broker,
        )
        self.accounts = directory / "data" / "config" / "plain_acl.yml"
        self.accounts.parent.mkdir(parents=True)
        self.write(FILE)

    def write(self, text: str) -> None:
        fresh = self.accounts.with_name("fresh.yml")
        fresh.touch(0o600)
        fresh.write_text(text)
        fresh.replace(self.accounts)

    @property
    def has_messages(self) -> bool:
        """Whether anything was stored for T; records of an audit of refusals are elsewhere."""
        queues = [self.store.find_queue("T", number) for number in range(4)]
        return any(queue is not None and queue.max_offset for queue in queues)

    def settings_with(self, **more: Any) -> ClientSettings:
        return msgspec.structs.replace(self.client_settings, **more)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.start()
    yield site
    await site.stop()


async def send(site: Site, body: bytes = b"hello", topic: str = "T", **keys: str) -> None:
    async with IotmqClient(site.settings_with(**keys)) as client, Producer(client) as producer:
        await producer.send(Message(topic, body))


async def test_a_producer_may_send_and_nothing_else(site: Site) -> None:
    await send(site, **PRODUCER)
    async with IotmqClient(site.settings_with(**PRODUCER)) as client:
        with pytest.raises(BrokerError) as caught:
            await Admin(client).create_topic("U")
        assert caught.value.code == ResponseCode.NO_PERMISSION
        assert "producer is not an administrator" in str(caught.value)
        async with PullConsumer(client, "g") as consumer:
            await consumer.assign(await consumer.queues("T"))
            with pytest.raises(IotmqError, match="lacks"):
                await consumer.getmany(timeout_ms=5_000)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "not signed"),
        ({"access_key": "nobody99", "secret_key": "12345678"}, "no account 'nobody99'"),
        ({"access_key": "producer", "secret_key": "87654321"}, "signature of account producer"),
        (CONSUMER, "consumer lacks PUB on topic 'T'"),
    ],
)
async def test_who_may_not_send_is_told_why(site: Site, keys: dict[str, str], words: str) -> None:
    with pytest.raises(IotmqError) as caught:
        await send(site, **keys)
    reasons = f"{caught.value} {caught.value.__cause__}"
    assert words in reasons
    assert not site.has_messages


SEND = {
    "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0",
}  # fmt: skip
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip


async def test_no_request_of_many_in_one_write_gets_past(site: Site) -> None:
    """Sends and pulls have shorter ways through a broker that does not look at each of them."""
    connection = await ClientConnection.connect("127.0.0.1", site.broker.port)
    asked = [
        connection.request(Command.request(code, ext, body), timeout_s=WAIT_S)
        for _ in range(100)
        for code, ext, body in (
            (RequestCode.SEND_MESSAGE_V2, SEND, b"body"),
            (RequestCode.PULL_MESSAGE, PULL, b""),
        )
    ]
    answers = await asyncio.gather(*asked)
    assert {answer.code for answer in answers} == {ResponseCode.NO_PERMISSION}
    assert not site.has_messages
    await connection.close()


TO_DEVICES = """
accounts:
  - {accessKey: operator, secretKey: abcdefgh, admin: true}
  - accessKey: producer
    secretKey: 12345678
    topicPerms: [T=PUB|SUB, DefaultCluster_REPLY_TOPIC=PUB]
    groupPerms: [g=SUB]
    mqttTopicPerms: [devices/+/commands=PUB]
  - {accessKey: replier1, secretKey: 12345678, topicPerms: [T=SUB], groupPerms: [g=SUB]}
"""


def to_devices(topic: str, **fields: Any) -> Message:
    return Message("T", b"x", properties={"MQTT_TOPIC": topic}, **fields)


async def test_every_way_of_sending_needs_the_right_to_the_devices_topic(site: Site) -> None:
    site.write(TO_DEVICES)
    assert site.broker.access is not None
    await site.broker.access.reload()
    may, may_not = "devices/7/commands", "devices/7/reset"
    async with IotmqClient(site.settings_with(**PRODUCER)) as client, Producer(client) as producer:
        refused = pytest.raises(BrokerError, match=f"producer lacks PUB on MQTT topic '{may_not}'")
        await producer.send(to_devices(may))
        with refused:
            await producer.send(to_devices(may_not))
        await producer.send_batch([to_devices(may), to_devices(may)])
        with refused:
            await producer.send_batch([to_devices(may), to_devices(may_not)])
        await producer.send(to_devices(may, delay_level=18))
        with refused:
            await producer.send(to_devices(may_not, delay_level=18))
        in_a_minute_ms = int(time.time() * 1000) + 60_000
        await producer.send(to_devices(may, deliver_at_ms=in_a_minute_ms))
        with refused:
            await producer.send(to_devices(may_not, deliver_at_ms=in_a_minute_ms))
        async with TransactionProducer(
            client, "transactions", lambda _: TransactionState.COMMIT
        ) as transactions:
            await (await transactions.begin(to_devices(may), check_after_s=60)).commit()
            with refused:
                await transactions.begin(to_devices(may_not), check_after_s=60)
    # Two alone, two of a batch, one of a transaction; two wait for their time.
    assert stored_in(site, "T") == 4


def stored_in(site: Site, topic: str) -> int:
    queues = (site.store.find_queue(topic, queue_id) for queue_id in range(2))
    return sum(queue.max_offset for queue in queues if queue is not None)


async def test_a_right_that_was_taken_away_keeps_a_prepared_message_from_devices(site: Site) -> None:
    site.write(TO_DEVICES)
    access = site.broker.access
    assert access is not None
    await access.reload()
    async with (
        IotmqClient(site.settings_with(**PRODUCER)) as client,
        TransactionProducer(client, "transactions", lambda _: TransactionState.UNKNOWN) as transactions,
    ):
        prepared = await transactions.begin(to_devices("devices/7/commands"), check_after_s=60)
        site.write(TO_DEVICES.replace("commands=PUB", "commands=DENY"))
        await access.reload()
        with pytest.raises(BrokerError, match="producer lacks PUB on MQTT topic 'devices/7/commands'"):
            await prepared.commit()
        assert stored_in(site, "T") == 0
        site.write(TO_DEVICES)
        await access.reload()
        await prepared.commit()
    assert stored_in(site, "T") == 1


async def test_a_reply_needs_the_right_to_the_topic_of_replies(site: Site) -> None:
    site.write(TO_DEVICES)
    assert site.broker.access is not None
    await site.broker.access.reload()
    host, port = "127.0.0.1", site.broker.port
    ext = {
        **SEND,
        "b": "DefaultCluster_REPLY_TOPIC",
        "i": "REPLY_TO_CLIENT\x01nobody\x02CORRELATION_ID\x01c\x02",
    }
    for account, is_refused in (("replier1", True), ("producer", False)):
        connection = await ClientConnection.connect(host, port, credentials=Credentials(account, "12345678"))
        answer = await connection.request(Command.request(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"yes"))
        # Whom it is for is not connected, which is found out behind the question whether it may be sent.
        assert (answer.code == ResponseCode.NO_PERMISSION) is is_refused, answer
        await connection.close()


async def test_a_push_consumer_gets_what_its_account_may_read(site: Site) -> None:
    got: list[bytes] = []

    def listener(batch: list[ReceivedMessage]) -> None:
        got.extend(message.body for message in batch)

    settings = PushConsumerSettings(consume_from="first", rebalance_ms=500, commit_ms=50)
    async with IotmqClient(site.settings_with(**CONSUMER)) as client:
        consumer = PushConsumer(client, "g", listener, settings=settings)
        await consumer.subscribe("T")
        async with consumer:
            await send(site, b"one", **PRODUCER)
            await soon(lambda: got == [b"one"], "the message comes", within_s=WAIT_S)
            await soon(
                lambda: sum(site.broker.offsets.of_topic("g", "T").values()) == 1,
                "the offset is committed",
                within_s=WAIT_S,
            )
    assert site.broker.groups.consumer_group("g") is None


async def test_a_changed_file_counts_for_the_connections_that_are_open(site: Site) -> None:
    async with IotmqClient(site.settings_with(**PRODUCER)) as client, Producer(client) as producer:
        await producer.send(Message("T", b"before"))
        site.write(FILE.replace("T=PUB", "T=DENY"))
        access = site.broker.access
        assert access is not None
        await soon(lambda: access.reloads_count == 1, "the file is read again", within_s=WAIT_S)
        with pytest.raises(IotmqError) as caught:
            await producer.send(Message("T", b"after"))
        assert "lacks PUB" in f"{caught.value} {caught.value.__cause__}"


async def test_an_operator_changes_accounts_over_the_wire(site: Site) -> None:
    def change() -> int:
        port = site.broker.port
        with BlockingConnection(
            "127.0.0.1", port, WAIT_S, credentials=Credentials("operator", "abcdefgh")
        ) as asked:
            ext = {"accessKey": "newcomer", "secretKey": "abcdefgh", "topicPerms": "T=PUB"}
            return asked.request(Command.request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, ext)).code

    assert await asyncio.to_thread(change) == ResponseCode.SUCCESS
    await send(site, access_key="newcomer", secret_key="abcdefgh")


async def test_a_remote_front_end_needs_an_administrators_account(site: Site) -> None:
    gateway = RemoteGateway((site.address,), settings=ClientSettings(**OPERATOR))

    class Receiver:
        def deliver(self, *words: Any) -> None:
            raise AssertionError("nothing is published here")

    receiver: Any = Receiver()
    async with asyncio.timeout(WAIT_S):
        await gateway.start(["T"], receiver, lambda: None, route_of=lambda topic: ("T", topic))
        while gateway.not_ready_reason is not None:  # noqa: ASYNC110 - it has no event for this
            await asyncio.sleep(0.01)
    await gateway.stop()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")
async def test_everything_over_tls(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    made = make_certificate(tmp_path, root)
    files = {"tls_certificate_file": made.certificate, "tls_key_file": made.key, "tls_mode": "enforcing"}
    site = Site(tmp_path, tls=files, registry_tls_enabled=True, registry_tls_ca_file=root.certificate)
    await site.start()
    by_tls = {"tls_enabled": True, "tls_ca_file": root.certificate}
    try:
        async with (
            IotmqClient(site.settings_with(**PRODUCER, **by_tls)) as client,
            Producer(client) as producer,
        ):
            for number in range(50):
                await producer.send(Message("T", b"%d" % number * 1_000))
        async with (
            IotmqClient(site.settings_with(**CONSUMER, **by_tls)) as client,
            PullConsumer(client, "g") as consumer,
        ):
            await consumer.assign(await consumer.queues("T"))
            got: list[bytes] = []
            async with asyncio.timeout(WAIT_S):
                while len(got) < 50:
                    got += [message.body for message in await consumer.getmany(timeout_ms=1_000)]
        assert sorted(got) == sorted(b"%d" % number * 1_000 for number in range(50))

        def send_blocking() -> None:
            with (
                SyncClient(site.settings_with(**PRODUCER, **by_tls)) as client,
                SyncProducer(client) as producer,
            ):
                producer.send(Message("T", b"sync"))

        await asyncio.to_thread(send_blocking)

        def bounds_by_spark(account: dict[str, str]) -> int:
            options = {
                "iotmq.bootstrap.servers": site.address, "subscribe": "T", "retryTimeoutMs": "0",
                "groupIdPrefix": "g", "tls": "true", "tlsCaFile": root.certificate,
                "accessKey": account["access_key"], "secretKey": account["secret_key"],
            }  # fmt: skip
            cluster = parse_options(options, streaming=False).connection.open()
            try:
                return sum(
                    bounds.max_offset for bounds in cluster.bounds("T", lambda _: True).held.bounds.values()
                )
            finally:
                cluster.close()

        assert await asyncio.to_thread(bounds_by_spark, CONSUMER) == 51
        with pytest.raises(BrokerError, match="signature"):
            await asyncio.to_thread(bounds_by_spark, {**CONSUMER, "secret_key": "87654321"})
        with pytest.raises(RouteNotFoundError):
            await send(site, **PRODUCER)
    finally:
        await site.stop()


async def test_an_account_is_asked_only_about_transactions_of_topics_it_may_send_to(tmp_path: Path) -> None:
    """The question has the prepared message, and every account may name itself a producer of any group."""
    site = Site(tmp_path, transaction_timeout_s=0.0, transaction_check_interval_s=0.05)
    await site.start()
    asked: dict[str, list[bytes]] = {"consumer": [], "producer": []}

    def noting(account: str) -> Any:
        def check(message: ReceivedMessage) -> TransactionState:
            asked[account].append(message.body)
            return TransactionState.UNKNOWN

        return check

    try:
        async with (
            IotmqClient(site.settings_with(**CONSUMER)) as other,
            IotmqClient(site.settings_with(**PRODUCER)) as client,
            TransactionProducer(other, "payments", noting("consumer"), topics=("T",)),
            TransactionProducer(client, "payments", noting("producer")) as producer,
        ):
            groups = site.broker.parts.groups
            await soon(lambda: len(groups.producers("payments")) == 1, "the first one is known")
            await producer.begin(Message("T", b"secret"))
            assert len(groups.producers("payments")) == 2
            # Those that are asked take turns.
            await soon(lambda: len(asked["producer"]) >= 3, "the question came several times")
    finally:
        await site.stop()
    assert asked["consumer"] == []
