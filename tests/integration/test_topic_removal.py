"""Deleted topics stay deleted: through restarts, crashes, rebuilds, and when they are made again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from broker_site import PULL, WAIT_S, Site

from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command


async def delete(site: Site, topic: str = "T") -> Command:
    return await site.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


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
    """topics.json is written after the answer to a deletion: the one of before may come back."""
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
    assert (await delete(site)).code == 0
    assert (await site.ask(RequestCode.PULL_MESSAGE, PULL)).code == 17
    for _ in range(2):
        await restart(site)
        assert site.broker.topics.find("T") is None
        assert (await site.ask(RequestCode.PULL_MESSAGE, PULL)).code == 17


@pytest.mark.parametrize("restart", [cleanly, crashed, rebuilt])
async def test_a_topic_made_again_has_only_what_was_sent_since(site: Site, restart: Restart) -> None:
    await site.send(b"old")
    await site.send(b"older")
    await delete(site)
    await site.send(b"new")
    assert await site.bodies() == [b"new"]
    await restart(site)
    assert site.broker.topics.find("T") is not None
    assert await site.bodies() == [b"new"]
    await site.send(b"newer")
    assert await site.bodies() == [b"new", b"newer"]


async def test_a_topic_made_again_and_lost_in_a_power_cut_comes_back_for_its_messages(site: Site) -> None:
    await site.send(b"old")
    await delete(site)
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
        assert (await delete(site)).code == 0
        await crashed(site)
        assert site.broker.topics.find("T") is None


async def test_committed_offsets_go_with_the_topic(site: Site) -> None:
    await site.send(b"old")
    site.broker.offsets.commit("g", "T", 0, 1)
    site.broker.offsets.commit("g", "T2", 0, 1)
    await delete(site)
    assert list(site.broker.offsets.each_pair()) == [("T2", "g")]


async def test_a_message_whose_delay_ends_after_the_deletion_is_dropped(site: Site) -> None:
    await site.send(b"now")
    await site.send(b"later", i="DELAY\x011\x02")
    await delete(site)
    site.clock.advance(2)
    site.broker.expire()
    queue = site.store.find_queue("T", 0)
    assert queue is not None
    assert queue.min_offset == queue.max_offset
    await crashed(site)
    assert site.broker.topics.find("T") is None


async def test_when_the_log_has_passed_a_deletion_nothing_is_left_of_it(site: Site) -> None:
    await site.send(b"old")
    await delete(site)
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
    response = await delete(site, topic)
    assert response.code == 1
    assert "field topic" in (response.remark or "")


async def test_a_topic_this_broker_never_had_is_deleted_without_complaint(site: Site) -> None:
    assert (await delete(site, "nobody")).code == 0
    assert len(site.broker.topics.deleted) == 0


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("No space left")])
async def test_a_deletion_that_cannot_be_written_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await site.send(b"old")

    def refuse(data: bytes) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(site.broker.topics.deleted, "write", refuse)
        response = await delete(site)
        assert response.code == 1
        assert "No space left" in (response.remark or "")
    assert (await delete(site)).code == 0
    await crashed(site)
    assert site.broker.topics.find("T") is None


class Receiver:
    def deliver(self, records: object, matches: object) -> None:
        pass


async def test_a_topic_that_devices_publish_to_is_made_again_at_once_and_is_empty(site: Site) -> None:
    gateway = site.broker.local_gateway()
    await gateway.start(["mqtt"], Receiver(), lambda: None, route_of=lambda topic: ("mqtt", topic))
    answers: list[int] = []

    def publish(body: bytes) -> None:
        elements = encode_batch([(body, b"", 0)])
        gateway.append(
            "mqtt",
            0,
            elements,
            count=1,
            is_stored=True,
            has_packet_ids=False,
            is_repeat=False,
            done=lambda code, _: answers.append(code),
        )

    publish(b"old")
    assert (await delete(site, "mqtt")).code == 0
    publish(b"new")
    assert answers == [0, 0]
    assert await site.bodies(topic="mqtt") == [b"new"]
    await crashed(site)
    assert await site.bodies(topic="mqtt") == [b"new"]
    await gateway.stop()
