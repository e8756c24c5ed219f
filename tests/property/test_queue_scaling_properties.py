"""However a topic grows and shrinks in use, nothing stored is lost, and frozen queues stay as they are."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_site import SEND, Site

from iotmq.broker.tables.topics import TopicConfig
from iotmq.errors import RequestError
from iotmq.message.records.record import iter_records
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

ROUNDS = 300
GROUPS = ("g", "h")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.start()
    site.broker.topics.ensure("T", queues=4)
    yield site
    await site.stop()


class FakeConnection:
    peer = ("127.0.0.1", 5000)
    is_closed = False

    def reply(self, response: Command) -> None:
        raise AssertionError("everything here is answered at once")


class Usage:
    """Senders, two groups and an operator, who do one thing after the other."""

    def __init__(self, site: Site, chance: random.Random) -> None:
        self.site = site
        self.chance = chance
        self.stored: set[bytes] = set()
        self.consumed: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.removals = 0
        self._connection: Any = FakeConnection()

    @property
    def topic(self) -> TopicConfig:
        topic = self.site.broker.topics.find("T")
        assert topic is not None
        return topic

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command | None:
        """The answer; None when the broker refuses."""
        try:
            return self.site.broker.requests.handle(self._connection, Command.request(code, ext, body))
        except RequestError as error:
            return None if error.code == 1 else self.fail(error)

    def fail(self, error: RequestError) -> None:
        raise AssertionError(f"refused with {error.code}: {error}")

    def send(self) -> None:
        body = b"%d" % len(self.stored)
        before = self.ends()
        # Some senders do not know yet how many queues there are.
        queue_id = self.chance.randint(-1, self.topic.queue_count + 1)
        properties = "DELAY\x011\x02" if self.chance.random() < 0.2 else ""
        response = self.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "e": str(queue_id), "i": properties}, body)
        if response is None:
            assert queue_id >= self.topic.queue_count
            return
        assert response.code == 0, response.remark
        self.stored.add(body)
        self.check_frozen(before)

    def let_time_pass(self) -> None:
        before = self.ends()
        self.site.clock.advance(self.chance.choice([0.5, 2.0]))
        self.site.broker.expire()
        self.check_frozen(before)

    def consume(self, group: str) -> None:
        """Everything a group has not got yet, of some of the queues."""
        for queue_id in range(self.topic.read_queue_nums):
            if self.chance.random() < 0.3:
                continue
            queue = self.site.store.find_queue("T", queue_id)
            if queue is None:
                continue
            offset = self.site.broker.offsets.find(group, "T", queue_id) or 0
            read = self.site.store.read(queue, offset, records_max=1_000, bytes_max=1 << 24)
            for view in read.views:
                self.consumed[group] |= {record.body for record in iter_records(view)}
            self.site.broker.offsets.commit(group, "T", queue_id, queue.max_offset)

    def operate(self) -> None:
        count = self.topic.queue_count
        some = ",".join(str(self.chance.randrange(count)) for _ in range(self.chance.randint(1, 2)))
        code, fields = self.chance.choice(
            [
                (RequestCode.ADD_QUEUES, {"queueNums": str(min(12, count + self.chance.randint(0, 2)))}),
                (RequestCode.FREEZE_QUEUES, {"queueIds": some}),
                (RequestCode.FREEZE_QUEUES, {"queueIds": str(count - 1)}),
                (RequestCode.THAW_QUEUES, {"queueIds": some}),
                (RequestCode.REMOVE_QUEUES, {"queueNums": str(max(1, count - 1))}),
            ]
        )
        if self.ask(code, {"topic": "T", **fields}) is not None and code == RequestCode.REMOVE_QUEUES:
            self.removals += self.topic.queue_count < count
        topic = self.topic
        assert topic.open_queues
        assert topic.write_queue_nums == topic.open_queues[-1] + 1 <= topic.read_queue_nums
        assert set(topic.frozen) <= set(range(topic.read_queue_nums))

    def ends(self) -> dict[int, int]:
        return {queue.queue_id: queue.next_offset for queue in self.site.store.queues() if queue.topic == "T"}

    def check_frozen(self, before: dict[int, int]) -> None:
        """What was appended since is in open queues only."""
        grown = {queue_id for queue_id, end in self.ends().items() if end != before.get(queue_id, 0)}
        assert grown <= set(self.topic.open_queues)


@pytest.mark.parametrize("seed", range(6))
async def test_every_group_gets_everything_that_was_stored(site: Site, seed: int) -> None:
    chance = random.Random(seed)
    usage = Usage(site, chance)
    for group in GROUPS:
        usage.consume(group)
        site.broker.offsets.commit(group, "T", 0, 0)
    for _ in range(ROUNDS):
        action = chance.choices(
            [usage.send, usage.operate, usage.let_time_pass, lambda: usage.consume(chance.choice(GROUPS))],
            weights=[6, 3, 1, 3],
        )[0]
        action()
    site.clock.advance(60)
    site.broker.expire()
    for group in GROUPS:
        # Each queue is passed over now and then.
        for _ in range(30):
            usage.consume(group)
        assert usage.consumed[group] == usage.stored
    assert usage.removals > 0
