"""Silences, acknowledgements and ends by hand are those of all processes."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.alarms import shared as shared_module
from iotmq.alarms.alarm import Alarm, Event, Reading, alarm_id
from iotmq.alarms.book import AlarmBook
from iotmq.alarms.settings import AlarmSettings
from iotmq.alarms.shared import SharedWords
from iotmq.alarms.silence import Silence
from iotmq.client.transport.client import ClientTransport
from iotmq.errors import BrokerError, ConnectionClosedError
from iotmq.mqtt.operator_state import state_topic
from iotmq.remoting.codes import ResponseCode

GONE = (("broker", "b"),)
IDENTITY = alarm_id("broker-gone", GONE)
SILENCES = "$iotmq/alarms/silences/"


class Brokers:
    """What brokers keep."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.expiries_ms: list[int] = []
        self.is_away = False
        self.refused_count: int | None = None
        """How often a word was refused; None: words are taken."""

    async def put(self, topic: str, body: bytes, *, expires_ms: int = 0) -> None:
        self._check()
        if self.refused_count is not None:
            self.refused_count += 1
            raise BrokerError(ResponseCode.NO_PERMISSION, "you may not")
        self.expiries_ms.append(expires_ms)
        self.kept[topic] = body
        if not body:
            del self.kept[topic]

    async def read(self, _filter: str, *, most: int) -> list[tuple[str, bytes]]:
        self._check()
        return list(self.kept.items())[:most]

    def _check(self) -> None:
        if self.is_away:
            raise ConnectionClosedError("away")


class Process:
    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.book = AlarmBook(AlarmSettings(), clock)
        self.words = SharedWords(self.book, clock)

    async def exchange(self) -> tuple[bool, list[Event]]:
        found = await self.words.exchange(cast(ClientTransport, None))
        self.book.check_invariants()
        return found

    def look(self, value: float = 1.0) -> list[Event]:
        return self.book.observe([Reading("broker-gone", GONE, value)], {"broker-gone"})

    def silence(self, name: str = "works") -> Silence:
        silence = Silence(
            name=name, alarm="*", until_ms=self.book.now_ms + 60_000, reason="works", by="ann", made_ms=0
        )
        self.book.silence(silence)
        self.words.silence(silence)
        return silence

    @property
    def alarm(self) -> Alarm:
        return self.book.engine.current[IDENTITY]


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.brokers = Brokers()
        self.one, self.two = Process(self.clock), Process(self.clock)

    async def exchange(self) -> None:
        for process in (self.one, self.two, self.one, self.two):
            self.clock.advance(10)
            await process.exchange()

    def fire(self) -> None:
        for _ in range(2):
            for process in (self.one, self.two):
                process.look()
            self.clock.advance(30)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site()
    monkeypatch.setattr(shared_module, "OperatorState", lambda _client: site.brokers)
    return site


async def test_a_silence_is_known_everywhere_until_it_is_ended(site: Site) -> None:
    silence = site.one.silence()
    assert await site.one.exchange() == (False, [])
    assert site.brokers.expiries_ms == [60_000]
    assert await site.two.exchange() == (True, [])
    assert site.two.book.silences == [silence]
    assert await site.two.exchange() == (False, [])
    site.two.book.end_silence("works")
    site.two.words.end_silence("works")
    await site.exchange()
    assert (site.one.book.silences, site.two.book.silences, site.brokers.kept) == ([], [], {})


async def test_what_was_just_told_counts_before_what_an_index_has_not_seen_yet(site: Site) -> None:
    site.one.silence()
    await site.one.exchange()
    site.brokers.kept.clear()
    await site.one.exchange()
    assert len(site.one.book.silences) == 1
    site.clock.advance(2)
    assert await site.one.exchange() == (True, [])
    assert site.one.book.silences == []


async def test_what_no_broker_takes_holds_here_and_is_told_later(site: Site) -> None:
    site.brokers.is_away = True
    site.one.silence()
    with pytest.raises(ConnectionClosedError):
        await site.one.exchange()
    assert len(site.one.book.silences) == 1
    site.brokers.is_away = False
    await site.exchange()
    assert len(site.two.book.silences) == 1


async def test_who_may_only_read_knows_what_others_say_and_asks_seldom_for_more(site: Site) -> None:
    others = site.two.silence("theirs")
    await site.two.exchange()
    site.brokers.refused_count = 0
    own = site.one.silence("own")
    for _ in range(60):
        await site.one.exchange()
        assert site.one.book.silences == [own, others]
    assert site.brokers.refused_count == 1
    site.clock.advance(600)
    await site.one.exchange()
    assert site.brokers.refused_count == 2


async def test_silences_past_what_may_be_are_left_out(site: Site) -> None:
    for number in range(limits.ALARM_SILENCES_MAX):
        site.one.silence(f"one-{number}")
    site.two.silence("two")
    await site.exchange()
    assert len(site.one.book.silences) == len(site.two.book.silences) == limits.ALARM_SILENCES_MAX
    assert site.one.book.silences == site.two.book.silences


async def test_an_acknowledgement_holds_everywhere_until_the_alarm_ends(site: Site) -> None:
    site.fire()
    site.one.words.acknowledge(site.one.book.acknowledge(IDENTITY, by="ann", note="on it"))
    await site.exchange()
    assert site.two.alarm.acknowledged == site.one.alarm.acknowledged
    assert site.two.alarm.acknowledged is not None
    assert site.two.alarm.acknowledged.by == "ann"
    # One that begins to look now knows of it, too.
    late = Process(site.clock)
    late.look()
    site.clock.advance(30)
    late.look()
    assert await late.exchange() == (True, [])
    for process in (site.one, site.two, late):
        process.look(0.0)
        site.clock.advance(30)
        for event in process.look(0.0):
            process.words.ended(event.alarm)
    await site.exchange()
    assert site.brokers.kept == {}


async def test_an_end_by_hand_holds_everywhere_for_what_had_begun_before(site: Site) -> None:
    site.fire()
    event = site.one.book.end(IDENTITY, by="ann")
    site.one.words.ended(event.alarm)
    await site.one.exchange()
    is_changed, (ended,) = await site.two.exchange()
    assert (is_changed, ended.kind, ended.alarm.ended_by) == (True, "ended", "ann")
    # It begins anew: the word was on the former one.
    site.clock.advance(1)
    site.fire()
    assert await site.two.exchange() == (False, [])
    assert site.two.alarm.state == "firing"


async def test_alarms_of_one_process_are_nobody_elses(site: Site) -> None:
    readings = [Reading("store-read-only", (("process", "one"),), 1.0)]
    (event,) = site.one.book.observe(readings, {"store-read-only"})
    site.one.words.acknowledge(site.one.book.acknowledge(event.alarm.id, by="ann", note=""))
    site.one.words.ended(site.one.book.end(event.alarm.id, by="ann").alarm)
    await site.exchange()
    assert site.brokers.expiries_ms == []


@pytest.mark.parametrize(
    ("topic", "body"),
    [
        (state_topic(SILENCES, "works"), b"nonsense"),
        (state_topic(SILENCES, "works"), b"\xff"),
        (state_topic(SILENCES, "works"), b"[" * 100_000),
        (f"{SILENCES}?", b"{}"),
        (state_topic("$iotmq/alarms/acknowledgements/", IDENTITY), b'{"by":1,"at_ms":0}'),
        (state_topic("$iotmq/alarms/acknowledgements/", "0"), b'{"by":"ann","at_ms":0}'),
        (state_topic("$iotmq/alarms/ends/", IDENTITY), b'{"by":"ann","at_ms":0}'),
        ("$iotmq/alarms/more/x", b"{}"),
    ],
)
async def test_what_is_no_word_changes_nothing(site: Site, topic: str, body: bytes) -> None:
    site.fire()
    site.brokers.kept[topic] = body
    assert await site.one.exchange() == (False, [])


@pytest.mark.parametrize(
    ("more", "is_taken"),
    [
        ({}, True),
        ({"name": "other"}, False),
        ({"until_ms": 0}, False),
        ({"alarm": "x" * 64}, True),
        ({"alarm": "x" * 65}, False),
        ({"labels": [["a", "b"]] * 17}, False),
        ({"reason": "x" * (limits.ALARM_TEXT_CHARACTERS_MAX + 1)}, False),
    ],
)
async def test_silences_of_brokers_keep_the_rules(site: Site, more: dict[str, Any], is_taken: bool) -> None:
    values = {"name": "works", "alarm": "*", "until_ms": site.one.book.now_ms + 1000, "reason": "works"}
    body = msgspec.json.encode({**values, "by": "ann", "made_ms": 0, **more})
    site.brokers.kept[state_topic(SILENCES, "works")] = body
    assert await site.one.exchange() == (is_taken, [])


async def test_words_that_are_never_taken_do_not_pile_up(site: Site) -> None:
    site.brokers.is_away = True
    most = limits.ALARM_SILENCES_MAX + 2 * limits.ALARMS_MAX
    for number in range(most + 1):
        site.one.words.end_silence(f"s{number}")
    site.brokers.is_away = False
    await site.one.exchange()
    assert len(site.brokers.expiries_ms) == most


async def test_there_is_no_wait_with_something_to_tell(site: Site) -> None:
    await site.one.exchange()
    site.one.silence()
    await site.one.words.wait()
