"""Deleted topics stay deleted: through restarts, crashes, rebuilds, and when they are made again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from iotmq.broker.broker import Broker
from iotmq.broker.settings import BrokerSettings
from iotmq.clock import ManualClock
from iotmq.message.hosts import encode_host
from iotmq.message.record import iter_records
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
WAIT_S = 10.0
SEND = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
}  # fmt: skip


class Site:
    """A broker that can stop, or die and leave its files as they are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock()

    async def start(self) -> None:
        self.store = Store.open(
            self.directory, StoreSettings(segment_bytes=1 << 20), store_host=HOST, clock=self.clock
        )
        settings = BrokerSettings(listen_port=0, registries=())
        self.broker = Broker(
            settings, self.store, directory=self.directory, store_host=HOST, clock=self.clock
        )
        await self.broker.start()
        self.client = await ClientConnection.connect("127.0.0.1", self.broker.port)

    async def stop(self, *, as_crash: bool = False) -> None:
        files = (
            {path: path.read_bytes() for path in (self.directory / "config").iterdir()} if as_crash else {}
        )
        await self.client.close()
        await self.broker.stop()
        assert self.store.check() == []
        self.store.close()
        if as_crash:
            (self.directory / "abort").touch()
            for path in (self.directory / "config").iterdir():
                path.unlink()
            for path, data in files.items():
                path.write_bytes(data)

    async def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return await self.client.request(Command.request(code, ext or {}, body), timeout_s=WAIT_S)

    async def send(self, body: bytes, **fields: str) -> None:
        response = await self.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, **fields}, body)
        assert response.code == 0, response.remark

    async def bodies(self) -> list[bytes]:
        """What a new consumer finds in queue 0 of T."""
        first = await self.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "new", "topic": "T", "queueId": "0"}
        )
        response = await self.ask(RequestCode.PULL_MESSAGE, {**PULL, "queueOffset": first.ext["offset"]})
        return [record.body for record in iter_records(memoryview(response.body_bytes()))]

    async def delete(self, topic: str = "T") -> Command:
        return await self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.start()
    yield site
    await site.stop()


Restart = Callable[[Site], Awaitable[None]]


async def cleanly(site: Site) -> None:
    await site.stop()
    await site.start()


async def crashed(site: Site) -> None:
    await site.stop(as_crash=True)
    await site.start()


async def rebuilt(site: Site) -> None:
    await site.stop(as_crash=True)
    (site.directory / "consumequeue" / ".applied").unlink()
    await site.start()


async def power_cut(site: Site) -> None:
    """topics.json is not synced when a topic changes: the one of before the deletion comes back."""
    topics = site.directory / "config" / "topics.json"
    await site.stop(as_crash=True)
    document = json.loads(topics.read_bytes())
    if "T" not in document["topicConfigTable"]:
        document["topicConfigTable"]["T"] = {**document["topicConfigTable"]["TBW102"], "topicName": "T"}
    document["dataVersion"]["counter"] = 1
    topics.write_text(json.dumps(document))
    await site.start()


@pytest.mark.parametrize("restart", [cleanly, crashed, rebuilt, power_cut])
async def test_a_deleted_topic_does_not_come_back(site: Site, restart: Restart) -> None:
    await site.send(b"old")
    assert (await site.delete()).code == 0
    assert (await site.ask(RequestCode.PULL_MESSAGE, PULL)).code == 17
    for _ in range(2):
        await restart(site)
        assert site.broker.topics.find("T") is None
        assert (await site.ask(RequestCode.PULL_MESSAGE, PULL)).code == 17


@pytest.mark.parametrize("restart", [cleanly, crashed, rebuilt])
async def test_a_topic_made_again_has_only_what_was_sent_since(site: Site, restart: Restart) -> None:
    await site.send(b"old")
    await site.send(b"older")
    await site.delete()
    await site.send(b"new")
    assert await site.bodies() == [b"new"]
    await restart(site)
    assert site.broker.topics.find("T") is not None
    assert await site.bodies() == [b"new"]
    await site.send(b"newer")
    assert await site.bodies() == [b"new", b"newer"]


async def test_a_topic_made_again_and_lost_in_a_power_cut_comes_back_for_its_messages(site: Site) -> None:
    await site.send(b"old")
    await site.delete()
    topics = (site.directory / "config" / "topics.json").read_bytes()
    await site.send(b"new")
    await site.stop(as_crash=True)
    (site.directory / "config" / "topics.json").write_bytes(topics)
    await site.start()
    assert await site.bodies() == [b"new"]


async def test_it_can_be_deleted_again_and_again(site: Site) -> None:
    for round_number in range(3):
        await site.send(b"%d" % round_number)
        assert await site.bodies() == [b"%d" % round_number]
        assert (await site.delete()).code == 0
        await crashed(site)
        assert site.broker.topics.find("T") is None


async def test_committed_offsets_go_with_the_topic(site: Site) -> None:
    await site.send(b"old")
    site.broker.offsets.commit("g", "T", 0, 1)
    site.broker.offsets.commit("g", "T2", 0, 1)
    await site.delete()
    assert site.broker.offsets.pairs() == [("T2", "g")]


async def test_a_message_whose_delay_ends_after_the_deletion_is_dropped(site: Site) -> None:
    await site.send(b"now")
    await site.send(b"later", i="DELAY\x011\x02")
    await site.delete()
    site.clock.advance(2)
    site.broker.expire()
    queue = site.store.find_queue("T", 0)
    assert queue is not None
    assert queue.min_offset == queue.max_offset
    await crashed(site)
    assert site.broker.topics.find("T") is None


async def test_when_the_log_has_passed_a_deletion_nothing_is_left_of_it(site: Site) -> None:
    await site.send(b"old")
    await site.delete()
    body = b"x" * 200_000
    for _ in range(24):
        await site.send(body, b="U")
    site.clock.advance(80 * 3600)
    site.store.request_flush()
    await site.send(body, b="U")
    await site.stop()
    await site.start()
    site.store.delete_expired()
    assert site.store._trimmer.remover.wait_idle(WAIT_S)
    site.store.retain()
    assert "T" in site.broker.topics.deleted
    site.broker.expire()
    assert "T" not in site.broker.topics.deleted
    assert not (site.directory / "consumequeue" / "T").exists()
    await site.send(b"new")
    assert await site.bodies() == [b"new"]


async def test_unused_topics_are_cleaned(site: Site) -> None:
    await site.send(b"old")
    await site.send(b"kept", b="U")
    # As a broker before deletions were remembered left it.
    site.broker.topics.delete("T")
    assert (await site.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert site.broker.topics.find("U") is not None
    await crashed(site)
    assert site.broker.topics.find("T") is None


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", ""])
async def test_the_brokers_own_topics_stay(site: Site, topic: str) -> None:
    response = await site.delete(topic)
    assert response.code == 1
    assert "field topic" in (response.remark or "")


async def test_a_topic_this_broker_never_had_is_deleted_without_complaint(site: Site) -> None:
    assert (await site.delete("nobody")).code == 0
    assert len(site.broker.topics.deleted) == 0


async def test_a_deletion_that_cannot_be_written_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.send(b"old")

    def refuse(data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(site.broker.topics.deleted, "write", refuse)
        response = await site.delete()
        assert response.code == 1
        assert "No space left" in (response.remark or "")
    assert (await site.delete()).code == 0
    await crashed(site)
    assert site.broker.topics.find("T") is None
