"""Registering with registries: many topics, what cannot be said, who waits, and how often it is encoded."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from eventually import soon
from loop_turns import LoopTurns, turn_s_max

from iotmq import limits
from iotmq.broker.registration import registration
from iotmq.broker.registration.body import encode_registration
from iotmq.broker.registration.registration import Registration, ToldTopics
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.topics import TopicConfig
from iotmq.errors import StoreError
from iotmq.registry.registration import decode_registration
from iotmq.registry.routes import DataVersion as RegisteredVersion
from iotmq.remoting.command import Command
from iotmq.remoting.server import RemotingServer, ServerConnection

VERSION = DataVersion(counter=7, timestamp=8)


def named(number: int) -> str:
    return f"topic-{number:06}-".ljust(limits.TOPIC_BYTES_MAX, "x")


def many(count: int) -> list[TopicConfig]:
    return [TopicConfig(topic_name=named(number)) for number in range(count)]


# --- what is said -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_as_many_topics_as_there_may_be_with_the_longest_names_fit() -> None:
    body = encode_registration(VERSION, many(limits.TOPICS_MAX), perm_mask=-1)
    assert body.is_compressed
    assert len(body.data) < limits.REGISTRATION_BYTES_MAX
    heard = decode_registration(body.data, is_compressed=True, crc=0)
    assert len(heard.topics) == limits.TOPICS_MAX
    assert heard.data_version is not None
    assert (heard.data_version.counter, heard.data_version.timestamp) == (7, 8)


@pytest.mark.parametrize("plain_topics_max", [2, 1])
def test_both_forms_say_the_same(plain_topics_max: int) -> None:
    topics = [
        TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=2, perm=6, frozen_queues=(0, 1)),
        TopicConfig(topic_name="U", topic_sys_flag=2, order=True),
    ]
    body = encode_registration(VERSION, topics, perm_mask=~2, plain_topics_max=plain_topics_max)
    assert body.is_compressed == (plain_topics_max == 1)
    heard = decode_registration(body.data, is_compressed=body.is_compressed, crc=0).topics
    assert (heard["T"].read_queue_count, heard["T"].write_queue_count) == (3, 2)
    assert (heard["T"].permissions, heard["T"].frozen) == (4, (0, 1))
    assert (heard["U"].permissions, heard["U"].sys_flag) == (4, 2)


@pytest.mark.parametrize("plain_topics_max", [1, 0])
@pytest.mark.parametrize("epoch", [0, 1, limits.EPOCH_MAX])
def test_the_epoch_is_part_of_the_data_version_and_absent_without(plain_topics_max: int, epoch: int) -> None:
    topics = [TopicConfig(topic_name="T")]
    body = encode_registration(VERSION, topics, perm_mask=-1, epoch=epoch, plain_topics_max=plain_topics_max)
    heard = decode_registration(body.data, is_compressed=body.is_compressed, crc=0)
    assert heard.data_version == RegisteredVersion(7, 8, epoch)
    data = zlib.decompress(body.data) if body.is_compressed else body.data
    assert (b"stateVersion" in data) == (epoch > 0)


def test_the_compressed_form_is_the_one_others_read() -> None:
    plain = zlib.decompress(
        encode_registration(VERSION, [TopicConfig(topic_name="T")], perm_mask=-1, plain_topics_max=0).data
    )
    version, topic = b'{"counter":7,"timestamp":8}', b"T 8 8 6 SINGLE_TAG"
    size = (len(topic)).to_bytes(4, "big")
    assert plain == b"\0\0\0\x1b" + version + b"\0\0\0\1" + size + topic + b"\0\0\0\2[]"


@pytest.mark.parametrize(
    ("count", "is_compressed"),
    [(limits.REGISTRATION_PLAIN_TOPICS_MAX, False), (limits.REGISTRATION_PLAIN_TOPICS_MAX + 1, True)],
)
def test_so_many_topics_are_told_plainly(count: int, is_compressed: bool) -> None:
    assert encode_registration(VERSION, many(count), perm_mask=-1).is_compressed is is_compressed


def test_what_is_too_long_is_an_error_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = many(9)
    size = len(encode_registration(VERSION, topics, perm_mask=-1, plain_topics_max=0).data)
    monkeypatch.setattr(limits, "REGISTRATION_BYTES_MAX", size)
    assert encode_registration(VERSION, topics, perm_mask=-1).is_compressed
    monkeypatch.setattr(limits, "REGISTRATION_BYTES_MAX", size - 1)
    with pytest.raises(StoreError, match="9 topics"):
        encode_registration(VERSION, topics, perm_mask=-1)


# --- how it is told ---------------------------------------------------------------------------------


class Registries:
    """Some that take whatever they are told, unless they are made to keep silent; and one broker's topics."""

    def __init__(self) -> None:
        self.told: list[Command] = []
        self.is_silent = False
        self.topics: Callable[[], ToldTopics] = self.as_they_are
        self.version = VERSION
        self.configs = many(3)

    def as_they_are(self) -> ToldTopics:
        return ToldTopics(self.version, -1, lambda: self.configs)

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        self.told.append(request)
        return None if self.is_silent else request.reply(0)

    def connection_lost(self, connection: ServerConnection) -> None:
        pass

    async def start(self, count: int = 1) -> Registration:
        self.servers = [RemotingServer(self) for _ in range(count)]
        for server in self.servers:
            await server.start()
        settings = BrokerSettings(
            cluster="C",
            name="b",
            registries=tuple(f"127.0.0.1:{server.port}" for server in self.servers),
            registration_interval_s=30,
            registration_timeout_s=30,
        )
        self.registration = Registration(settings, lambda: self.topics(), broker_address="127.0.0.1:1")
        self.registration.start()
        return self.registration

    async def stop(self) -> None:
        await self.registration.stop()
        for server in self.servers:
            await server.stop()


@pytest.fixture
async def registries(tmp_path: Path) -> AsyncIterator[Registries]:
    registries = Registries()
    yield registries
    await registries.stop()


async def test_a_registration_that_cannot_be_made_is_counted_said_and_tried_again(
    registries: Registries, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registration, "_RETRY_FIRST_S", 0.01)
    wrong = ValueError("a frame of more than there may be")

    def refuse() -> ToldTopics:
        raise wrong

    registries.topics = refuse
    told = await registries.start()
    link = told.links[0]
    await soon(lambda: link.failures_count >= 2, "a second try")
    assert told.not_ready_reason is not None
    assert "a frame of more than there may be" in caplog.text
    registries.topics = registries.as_they_are
    await soon(lambda: link.is_registered, "the registration")
    assert told.not_ready_reason is None


async def test_a_version_is_encoded_once_for_all_registries(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: list[DataVersion] = []

    def counted(version: DataVersion, topics: list[TopicConfig], *, perm_mask: int, epoch: int) -> object:
        versions.append(version)
        return encode_registration(version, topics, perm_mask=perm_mask, epoch=epoch)

    monkeypatch.setattr(registration, "encode_registration", counted)
    told = await registries.start(3)
    await soon(lambda: all(link.is_registered for link in told.links), "three registrations")
    told.wake()
    await soon(lambda: all(link.registrations_count == 2 for link in told.links), "three more")
    assert versions == [VERSION]
    registries.version = DataVersion(counter=8, timestamp=8)
    told.wake()
    await soon(lambda: all(link.registrations_count == 3 for link in told.links), "three more")
    assert versions == [VERSION, registries.version]


async def test_changes_that_wait_for_a_slow_registry_share_one_place(
    registries: Registries, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = await registries.start()
    link = told.links[0]
    await soon(lambda: link.is_registered, "the registration")
    registries.is_silent = True
    monkeypatch.setattr(registration, "_TOLD_S", 0.05)
    answered: list[int] = []
    for number in range(1_000):
        told.when_told(lambda number=number: answered.append(number))  # type: ignore[misc]
        if number % 100 == 0:
            await asyncio.sleep(0)
        assert len(link._awaiting) <= 1
    await soon(lambda: len(answered) == 1_000, "all answers")
    assert answered == list(range(1_000))
    assert link._awaiting == []


async def test_so_many_topics_are_told_without_holding_up_the_loop(registries: Registries) -> None:
    registries.configs = many(limits.TOPICS_MAX)
    with LoopTurns() as turns:
        told = await registries.start()
        await soon(lambda: told.links[0].is_registered, "the registration")
    assert registries.told[0].ext["compressed"] == "true"
    # A registry adds what it is told to what it has, unless this is all.
    assert registries.told[0].ext["isWhole"] == "true"
    assert turns.longest_s < turn_s_max()
