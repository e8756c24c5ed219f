"""Who has a session, and what becomes of it: takeovers, vanished front ends, wills, expiry, restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from loop_turns import LoopTurns, turn_s_max
from session_bench import FrontEnd, SessionBench, open_bench, turns

from iotmq import limits
from iotmq.broker.session_store import log as session_log
from iotmq.broker.session_store.records import End, WillSent, encode_changes
from iotmq.broker.sessions import ownership, wills
from iotmq.broker.sessions.ownership import FENCE_TIMEOUT_S, OWNER_GRACE_S
from iotmq.broker.sessions.unclaimed import START_GRACE_S
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import StoreError, StoreFullError
from iotmq.event_loop import CANCELLED_ACTIONS_KEPT, LoopSlice
from iotmq.ports.sessions import InFlight, Refused, SessionProgress, Will
from iotmq.remoting.codes import ResponseCode
from iotmq.store.kv.kv_projection import KeyValueProjection
from iotmq.supervised import FAILURES


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SessionBench]:
    made = await open_bench(tmp_path)
    yield made
    await made.close()


def will(body: bytes, *, delay_s: int = 0, is_stored: bool = True) -> Will:
    return Will("T", 0, encode_element(body, b"MQTT_TOPIC\x01will\x02", 0), is_stored, delay_s)


async def test_a_session_is_there_when_its_client_comes_back(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c")
    assert (opened.is_present, opened.subscriptions) == (False, [])
    subscribed = await front.subscribe("c", opened.epoch, "a/#")
    assert not isinstance(subscribed, Refused)
    bench.publish("a/b", b"1")
    assert front.pushed == [(subscribed[0].queue_id, b"1")]
    front.close("c", opened.epoch)
    bench.publish("a/b", b"2")
    assert len(front.pushed) == 1
    again = await front.open("c")
    assert again.is_present
    assert again.epoch > opened.epoch
    (subscription,) = again.subscriptions
    assert (subscription.topic_filter, subscription.options) == ("a/#", 1)
    assert front.backlog(subscription) == [b"1", b"2"]


async def test_what_was_done_is_not_sent_again(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c")
    await front.subscribe("c", opened.epoch, "a")
    bench.publish("a", b"1", b"2")
    again = await front.open("c")  # nobody fences a connection of one's own that is gone
    queue_id = again.subscriptions[0].queue_id
    read = front.read(queue_id, 0, records_max=1)
    await front.progress(SessionProgress("c", again.epoch, [(queue_id, read.next_position, 0)]))
    await bench.restart()
    front = FrontEnd(bench, "one")
    (subscription,) = (await front.open("c")).subscriptions
    assert front.backlog(subscription) == [b"2"]


async def test_a_taken_session_is_given_up_first(bench: SessionBench) -> None:
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    opened = await one.open("c")
    await one.subscribe("c", opened.epoch, "a")
    waiting = two.begin_open("c")
    assert one.fences == [("c", opened.epoch)]
    await turns()
    assert not waiting.done()
    bench.publish("a", b"1")
    position = one.read(0, 0).next_position
    assert await one.progress(SessionProgress("c", opened.epoch, [(0, position, position)])) is None
    one.close("c", opened.epoch)
    taken = await waiting
    assert not isinstance(taken, Refused)
    assert taken.is_present
    assert two.backlog(taken.subscriptions[0]) == []
    bench.publish("a", b"2")
    assert [body for _, body in two.pushed] == [b"2"]
    assert [body for _, body in one.pushed] == [b"1"]
    # What the former owner says now is too late.
    await one.progress(SessionProgress("c", opened.epoch, [(0, 1 << 40, 1 << 40)]))
    one.close("c", opened.epoch, expiry_s=0, drops_will=True)
    refused = await one.subscribe("c", opened.epoch, "b")
    assert isinstance(refused, Refused)
    assert refused.code == ResponseCode.SESSION_LOST
    assert bench.broker.sessions.owners.front_end_of("c") == "two"
    assert two.backlog(taken.subscriptions[0]) == [b"2"]
    assert bench.broker.sessions.fenced_total == 2


async def test_an_owner_that_does_not_answer_loses_the_session(bench: SessionBench) -> None:
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    await one.open("c", will=will(b"will of one"))
    waiting = two.begin_open("c")
    bench.pass_time(FENCE_TIMEOUT_S - 0.1)
    await turns()
    assert not waiting.done()
    bench.pass_time(0.2)
    taken = await waiting
    assert not isinstance(taken, Refused)
    assert bench.broker.sessions.owners.front_end_of("c") == "two"
    assert bench.stored() == [b"will of one"]


async def test_takeovers_leave_nothing_to_be_done_later(bench: SessionBench) -> None:
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    opened = await one.open("c")
    for former, front in [(one, two), (two, one)] * 50:
        waiting = front.begin_open("c")
        assert len(bench.broker.sessions.owners._actions) == 1, "the former owner has its time"
        former.close("c", opened.epoch)
        taken = await waiting
        assert not isinstance(taken, Refused)
        opened = taken
        assert len(bench.broker.sessions.owners._actions) == 0
        bench.broker.sessions.owners.check_invariants()


async def test_of_two_that_want_a_session_the_last_gets_it(bench: SessionBench) -> None:
    one, two, three = (FrontEnd(bench, name) for name in ("one", "two", "three"))
    opened = await one.open("c")
    second, third = two.begin_open("c"), three.begin_open("c")
    one.close("c", opened.epoch)
    refused, taken = await second, await third
    assert isinstance(refused, Refused)
    assert not isinstance(taken, Refused)
    assert bench.broker.sessions.owners.front_end_of("c") == "three"


async def test_sessions_that_are_not_kept_are_taken_over_too(bench: SessionBench) -> None:
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    opened = await one.open("c", is_clean=True, expiry_s=0)
    assert opened.epoch < 0
    waiting = two.begin_open("c", is_clean=True, expiry_s=0)
    assert one.fences == [("c", opened.epoch)]
    one.close("c", opened.epoch, expiry_s=0, drops_will=True)
    taken = await waiting
    assert not isinstance(taken, Refused)
    assert not taken.is_present
    two.close("c", taken.epoch, expiry_s=0, drops_will=True)
    assert bench.broker.sessions.owners.front_end_of("c") is None
    assert bench.stored("rmq_sys_mqtt_session") == []


async def test_a_client_that_wants_nothing_kept_ends_what_was(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c")
    await front.subscribe("c", opened.epoch, "a")
    front.close("c", opened.epoch)
    transient = await front.open("c", is_clean=True, expiry_s=0)
    front.close("c", transient.epoch, expiry_s=0, drops_will=True)
    again = await front.open("c")
    assert not again.is_present
    assert again.subscriptions == []


async def test_wills_of_a_vanished_front_end_are_published_once(bench: SessionBench) -> None:
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    for client_id in ("a", "b", "c"):
        await one.open(client_id, will=will(client_id.encode()))
    await one.open("transient", is_clean=True, expiry_s=0, will=will(b"transient"))
    await two.open("other", will=will(b"other"))
    one.stop()
    taken = await two.open("b", will=will(b"second will of b"))
    assert taken.is_present
    assert bench.stored() == [b"b"], "taken from a front end that is gone"
    bench.pass_time(OWNER_GRACE_S - 0.1)
    assert len(bench.stored()) == 1
    bench.pass_time(0.2)
    assert sorted(bench.stored()) == [b"a", b"b", b"c", b"transient"]
    bench.pass_time(100)
    assert len(bench.stored()) == 4
    assert bench.broker.sessions.owners.front_end_of("b") == "two"
    assert bench.broker.sessions.owners.front_end_of("a") is None


async def test_a_front_end_that_comes_back_in_time_keeps_its_sessions(bench: SessionBench) -> None:
    one = FrontEnd(bench, "one")
    epochs = {
        client_id: (await one.open(client_id, expiry_s=expiry_s, will=will(b"will"))).epoch
        for client_id, expiry_s in (("durable", 60), ("transient", 0))
    }
    await one.subscribe("durable", epochs["durable"], "a")
    one.stop()
    back = FrontEnd(bench, "one")
    channel = back.port.channel
    for client_id, epoch in epochs.items():
        assert bench.broker.sessions.owners.claim(channel, client_id, epoch, will(b"will"))
        assert not bench.broker.sessions.owners.claim(channel, client_id, epoch + 1, None)
    bench.pass_time(OWNER_GRACE_S + 1)
    assert bench.stored() == []
    bench.publish("a", b"1")
    assert [body for _, body in back.pushed] == [b"1"]
    assert isinstance(await back.subscribe("durable", epochs["durable"], "b"), list)


async def test_after_a_start_sessions_nobody_claims_count_as_left(bench: SessionBench) -> None:
    one = FrontEnd(bench, "one")
    epochs = {}
    for client_id in ("claimed", "left"):
        epochs[client_id] = (await one.open(client_id, expiry_s=30, will=will(client_id.encode()))).epoch
    bench.broker.sessions.owners._owners.clear()  # as a kill leaves it: nobody said good-bye
    one.port._channel = None
    await bench.restart()
    back = FrontEnd(bench, "one")
    claim = bench.broker.sessions.owners.claim
    assert claim(back.port.channel, "claimed", epochs["claimed"], will(b"claimed"))
    assert not claim(back.port.channel, "claimed", epochs["claimed"] - 1, None)
    assert not claim(FrontEnd(bench, "two").port.channel, "left", epochs["left"], None)
    bench.pass_time(START_GRACE_S + 0.1)
    await turns()
    bench.pass_time(1)
    assert bench.stored() == [b"left"]
    bench.pass_time(31)
    await turns()
    assert bench.broker.sessions.owners.expired_total == 1
    assert not (await FrontEnd(bench, "three").open("left")).is_present


async def test_front_ends_have_their_time_from_the_start_of_the_broker_on(bench: SessionBench) -> None:
    one = FrontEnd(bench, "one")
    await one.open("c", expiry_s=30, will=will(b"left"))
    bench.broker.sessions.owners._owners.clear()  # as a kill leaves it
    one.port._channel = None
    await bench.close()
    bench.make()
    # It follows another broker for so long.
    bench.clock.advance(5 * START_GRACE_S)
    await bench.broker.start()
    bench.pass_time(START_GRACE_S - 0.1)
    await turns()
    assert bench.stored() == []
    bench.pass_time(0.2)
    await turns()
    bench.pass_time(1)
    assert bench.stored() == [b"left"]


@pytest.mark.parametrize(
    ("lives", "delay_s", "is_clean", "stored"),
    [
        (False, 0, False, [b"left"]),
        (False, 0, True, [b"left"]),
        (False, 20, True, [b"left"]),
        (False, 20, False, []),  # back in time
        (True, 0, False, []),  # its front end sends the will
    ],
)
async def test_the_will_of_a_client_that_is_back_before_a_start_has_settled(
    bench: SessionBench, lives: bool, delay_s: int, is_clean: bool, stored: list[bytes]
) -> None:
    one = FrontEnd(bench, "one")
    before = await one.open("c", expiry_s=30, will=will(b"left", delay_s=delay_s))
    bench.broker.sessions.owners._owners.clear()  # as a kill leaves it
    one.port._channel = None
    await bench.restart()
    bench.pass_time(START_GRACE_S / 2)
    again = await FrontEnd(bench, "two").open("c", expiry_s=30, is_clean=is_clean, will=will(b"next"))
    if lives:
        back = FrontEnd(bench, "one")
        assert not bench.broker.sessions.owners.claim(back.port.channel, "c", before.epoch, will(b"left"))
    bench.pass_time(START_GRACE_S / 2 + 0.1)
    await turns()
    assert bench.stored() == stored
    bench.pass_time(30)
    await turns()
    assert bench.stored() == stored, "once"
    assert again.epoch == bench.broker.sessions.stored("c").epoch


@pytest.mark.parametrize("is_back", [False, True])
async def test_a_will_waits_for_its_delay(bench: SessionBench, is_back: bool) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c", expiry_s=60, will=will(b"late", delay_s=10))
    front.close("c", opened.epoch, expiry_s=60, drops_will=False)
    await turns()
    bench.pass_time(9)
    assert bench.stored() == []
    if is_back:
        await front.open("c")
    bench.pass_time(2)
    assert bench.stored() == ([] if is_back else [b"late"])


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_front_end_drops_a_will_that_waits(bench: SessionBench, restarts: bool) -> None:
    """Its device may not publish it any more."""
    front = FrontEnd(bench, "one")
    epochs = {}
    for client_id in ("dropped", "other", "back"):
        opened = await front.open(client_id, expiry_s=600, will=will(client_id.encode(), delay_s=10))
        epochs[client_id] = opened.epoch
        front.close(client_id, opened.epoch, expiry_s=600, drops_will=False)
    await turns()
    again = await front.open("back", expiry_s=600, will=will(b"again", delay_s=10))
    if restarts:
        front.close("back", again.epoch, expiry_s=600, drops_will=False)
        await turns()
        await bench.restart()
        front = FrontEnd(bench, "one")
    for client_id in ("dropped", "back", "unknown"):
        front.close(client_id, epochs.get(client_id, 1), expiry_s=0, drops_will=True)
    await turns()
    for _ in range(2):
        bench.pass_time(START_GRACE_S + 11)
        await turns()
    # The session that has gone on has another will, and keeps it.
    assert sorted(bench.stored()) == ([b"again", b"other"] if restarts else [b"other"])
    stored = bench.broker.sessions.stored("dropped")
    assert (stored.will, stored.expiry_s) == (None, 600), "the session is as it was"
    bench.broker.sessions.owners.wills.check_invariants()


async def test_a_will_does_not_wait_longer_than_its_session_lasts(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c", expiry_s=5, will=will(b"will", delay_s=10))
    front.close("c", opened.epoch, expiry_s=5, drops_will=False)
    await turns()
    bench.pass_time(5)
    assert bench.stored() == [b"will"]


async def test_sessions_expire(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c", expiry_s=60)
    await front.subscribe("c", opened.epoch, "a")
    front.close("c", opened.epoch)
    await turns()
    bench.pass_time(59)
    await turns()
    assert bench.broker.sessions.owners.expired_total == 0
    bench.pass_time(2)
    bench.pass_time(0)
    await turns()
    assert bench.broker.sessions.owners.expired_total == 1
    assert not (await front.open("c")).is_present


async def test_operators_disconnect_and_end_sessions(bench: SessionBench) -> None:
    sessions = bench.broker.sessions
    front = FrontEnd(bench, "one")
    assert not sessions.owners.kick("c")
    opened = await front.open("c")
    assert sessions.owners.kick("c")
    assert front.fences == [("c", opened.epoch)]
    front.close("c", opened.epoch)
    ended: list[Refused | None] = []
    assert sessions.owners.purge("c", ended.append)
    await turns()
    assert ended == [None]
    assert not sessions.owners.purge("c", ended.append)


@pytest.mark.parametrize("bytes_max", [0, 1 << 20])
async def test_a_session_that_an_operator_ends_has_its_delayed_will_sent_at_once(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    """[MQTT-3.1.3-9]: however long it had to wait yet, and whether it is in memory or on the disk."""
    monkeypatch.setattr(wills, "WAITING_BYTES_MAX", bytes_max)
    front = FrontEnd(bench, "one")
    opened = await front.open("c", expiry_s=1_000, will=will(b"gone", delay_s=100))
    front.close("c", opened.epoch, expiry_s=1_000, drops_will=False)
    await turns()
    assert bench.stored() == []
    assert bench.broker.sessions.owners.purge("c", lambda _: None)
    await turns()
    assert bench.stored() == [b"gone"]
    bench.pass_time(1_001)
    await turns()
    assert bench.stored() == [b"gone"]
    check(bench)


async def test_a_broker_that_takes_nothing_refuses_sessions_but_not_clients_that_keep_none(
    bench: SessionBench,
) -> None:
    front = FrontEnd(bench, "one")
    bench.broker.writer.close("full")
    refused = await front.begin_open("c")
    assert isinstance(refused, Refused)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert bench.broker.sessions.owners.front_end_of("c") is None
    assert (await front.open("c", is_clean=True, expiry_s=0)).epoch < 0


@pytest.mark.parametrize("is_taken", [False, True])
async def test_who_waits_for_a_session_whose_opening_is_refused_is_next(
    bench: SessionBench, is_taken: bool
) -> None:
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    refusing, waiting = one.begin_open("c"), two.begin_open("c")
    bench.broker.writer.close("full")
    if is_taken:
        # The end of the turn refuses the first; the broker takes records again before the second is stored.
        refusing.add_done_callback(lambda _: bench.broker.writer.open())
    assert isinstance(await asyncio.wait_for(refusing, 30), Refused)
    outcome = await asyncio.wait_for(waiting, 30)
    assert isinstance(outcome, Refused) == (not is_taken)
    assert bench.broker.sessions.owners.front_end_of("c") == ("two" if is_taken else None)
    assert len(bench.broker.sessions.owners._actions) == 0, "nobody has to be given time"
    check(bench)


async def test_shapes_of_filters_at_their_limit_and_past_it(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FILTER_SHAPES_MAX", 2)
    front = FrontEnd(bench, "one")
    one, two = await front.open("a"), await front.open("b")
    for topic_filter in ("+/a", "b/#", "+/b", "plain"):
        assert not isinstance(await front.subscribe("a", one.epoch, topic_filter), Refused)
    assert not isinstance(await front.subscribe("b", two.epoch, "+/c"), Refused)
    refused = await front.subscribe("b", two.epoch, "+/#")
    assert isinstance(refused, Refused)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert "no more than 2 shapes" in refused.remark
    # One after the other, before the first is in the log.
    monkeypatch.setattr(limits, "FILTER_SHAPES_MAX", 3)
    first, second = await asyncio.gather(
        front.subscribe("a", one.epoch, "x/+/y"), front.subscribe("b", two.epoch, "x/+/+")
    )
    assert not isinstance(first, Refused)
    assert isinstance(second, Refused)
    bench.broker.sessions.owners.check_invariants()
    numbers = {metric.name: metric.value for metric in bench.broker.sessions.metrics()}
    assert numbers["iotmq_broker_filter_shapes"] == 3
    assert numbers["iotmq_broker_filter_shapes_refused_total"] == 2


async def test_numbers_are_reported(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c")
    await front.subscribe("c", opened.epoch, "a/+", "b")
    bench.publish("a/1", b"x")
    values = {metric.name: metric.value for metric in bench.broker.sessions.metrics()}
    assert values["iotmq_broker_sessions"] == values["iotmq_broker_connected_clients"] == 1
    assert values["iotmq_broker_light_queues"] == 2
    assert values["iotmq_broker_light_queue_entries_total"] == 1


async def test_a_database_that_refuses_is_in_the_log_once_and_what_is_due_stays_due(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c", expiry_s=1)
    front.close("c", opened.epoch, expiry_s=1, drops_will=True)
    await turns()

    def refuse(*arguments: object, **words: object) -> None:
        raise StoreFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(bench.broker.sessions.projection, "due", refuse)
        bench.pass_time(2)
        bench.pass_time(1)
    assert [record.getMessage() for record in caplog.records if "key-value" in record.getMessage()] == [
        "sessions wait for the key-value database: no room"
    ]
    assert bench.broker.sessions.owners.expired_total == 0
    bench.pass_time(1)
    assert bench.broker.sessions.owners.expired_total == 1


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_a_will_is_published_once_while_sessions_of_before_the_start_are_looked_at(
    bench: SessionBench, is_claimed: bool
) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c", will=will(b"once"))
    if is_claimed:
        await bench.restart()
        front = FrontEnd(bench, "one")
        assert bench.broker.sessions.owners.claim(front.port.channel, "c", opened.epoch, will(b"once"))
    front.stop()
    # Published now; that it was is stored in the next turn of the loop, which comes after the look.
    bench.pass_time(OWNER_GRACE_S + 0.1)
    assert bench.stored() == [b"once"]
    bench.pass_time(START_GRACE_S)
    bench.pass_time(1)
    assert bench.stored() == [b"once"]


@pytest.mark.parametrize("count", [1, limits.SESSION_NAMES_PER_CHANGE_MAX, 1_100])
async def test_a_report_about_the_longest_filters_is_stored_whole(bench: SessionBench, count: int) -> None:
    """A record has room for some of the filters; nothing is lost of the others, nor of other sessions."""
    front = FrontEnd(bench, "one")
    small, large = await front.open("small"), await front.open("large")
    found = await front.subscribe("small", small.epoch, "t")
    assert not isinstance(found, Refused)
    filters = [b"%04d/" % number + b"x" * (limits.MQTT_TOPIC_BYTES_MAX - 5) for number in range(count)]
    queue_ids: list[int] = []
    for start in range(0, count, 500):
        page = await front.subscribe(
            "large", large.epoch, *(name.decode() for name in filters[start : start + 500])
        )
        assert not isinstance(page, Refused)
        queue_ids += [entry.queue_id for entry in page]
    base = bench.store.appended_position
    flights = [InFlight(number + 1, queue_ids[number % count], base + 9, False) for number in range(1_000)]
    done = [(queue_ids[number % count], base + 10 + number) for number in range(limits.MQTT_FLIGHTS_MAX)]
    told = [
        SessionProgress("small", small.epoch, [(found[0].queue_id, base, base)]),
        SessionProgress(
            "large", large.epoch, [(one, base, base + 1) for one in queue_ids], [7], flights, done
        ),
    ]
    assert await front.progress(*told) is None
    for _ in range(2):
        again = await front.open("large")
        by_name = {entry.topic_filter: entry.queue_id for entry in again.subscriptions}
        assert [by_name[name.decode()] for name in filters] == queue_ids
        assert {(entry.cursor, entry.sent) for entry in again.subscriptions} == {(base, base + 1)}
        assert again.received == [7]
        assert again.in_flight == flights
        assert sorted(again.done) == sorted(done)
        await bench.restart()
        front = FrontEnd(bench, "one")
    again = await front.open("large")
    assert await front.progress(SessionProgress("large", again.epoch, [], None, [], [])) is None
    again = await front.open("large")
    assert (again.in_flight, list(again.done)) == ([], [])
    assert (await front.open("small")).subscriptions[0].cursor == base


@pytest.mark.parametrize("name", ["one", "two"])
async def test_a_session_begins_anew_right_after_one_that_ended_with_its_connection(
    bench: SessionBench, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    front, other = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    for _ in range(3):
        opened = await front.open("c", expiry_s=1)
        await front.subscribe("c", opened.epoch, "a")
        front.close("c", opened.epoch, expiry_s=0)
        again = await {"one": front, "two": other}[name].open("c", expiry_s=1)
        assert (again.is_present, again.subscriptions) == (False, [])
        {"one": front, "two": other}[name].close("c", again.epoch, expiry_s=0)
    assert not [record for record in caplog.records if "full disk" in record.getMessage()]
    check(bench)


@pytest.mark.parametrize("how", ["expired", "purged", "replaced", "taken over"])
async def test_a_session_begins_anew_while_the_end_of_the_one_before_is_on_its_way(
    bench: SessionBench, how: str
) -> None:
    front, other = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    opened = await front.open("c")
    await front.subscribe("c", opened.epoch, "a")
    if how == "taken over":
        waiting = other.begin_open("c", is_clean=True, expiry_s=60)
        front.close("c", opened.epoch, expiry_s=0)
        again = await waiting
    else:
        front.close("c", opened.epoch)
        await turns()
        if how == "expired":
            bench.pass_time(61)
        elif how == "purged":
            assert bench.broker.sessions.owners.purge("c", lambda _: None)
        else:
            front.begin_open("c", is_clean=True)
        again = await front.begin_open("c")
    assert not isinstance(again, Refused)
    assert (again.is_present, again.subscriptions) == (False, [])
    check(bench)


async def test_the_delayed_will_of_a_session_that_has_just_ended_is_published(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c", will=will(b"due", delay_s=10))
    front.close("c", opened.epoch, expiry_s=0, drops_will=False)
    await front.open("c")
    assert bench.stored() == [b"due"]
    check(bench)


async def test_the_will_of_a_connection_that_was_never_accepted_is_not_published(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    front.begin_open("c", will=will(b"never accepted"))
    front.stop()
    bench.pass_time(OWNER_GRACE_S + 0.1)
    await turns()
    assert bench.broker.sessions.stored("c").owner == "", "nobody has what was opened"
    bench.pass_time(100)
    assert bench.stored() == []
    check(bench)


async def test_a_device_that_comes_and_goes_has_one_will_waiting(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    for number in range(300):
        opened = await front.open("c", expiry_s=100_000, will=will(b"%d" % number, delay_s=86_400 - number))
        front.close("c", opened.epoch, expiry_s=100_000, drops_will=False)
        await turns()
        check(bench)
    actions = bench.broker.sessions.owners._actions
    assert len(actions) == 1
    assert len(actions._heap) <= CANCELLED_ACTIONS_KEPT + 2
    bench.pass_time(86_400)
    assert bench.stored() == [b"299"]


async def test_wills_that_wait_at_their_limit_of_memory_and_past_it(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = FrontEnd(bench, "one")
    late = will(b"0", delay_s=100)
    monkeypatch.setattr(wills, "WAITING_BYTES_MAX", 3 * wills._size(late))
    waiting = bench.broker.sessions.owners.wills._waiting

    async def lose(name: str, body: bytes, *, expiry_s: int = 1_000) -> None:
        opened = await front.open(name, expiry_s=expiry_s, will=will(body, delay_s=100))
        front.close(name, opened.epoch, expiry_s=expiry_s, drops_will=False)
        await turns()
        check(bench)

    for number in range(3):
        await lose(f"c{number}", b"%d" % number)
    assert all(found.will is not None for found in waiting.values()), "at the limit"
    await lose("past", b"3")
    await lose("back", b"not sent")
    await lose("replaced", b"4")
    await lose("ended", b"5", expiry_s=50)
    assert [name for name, found in waiting.items() if found.will is None] == [
        "past", "back", "replaced", "ended"
    ]  # fmt: skip
    await front.open("back", expiry_s=1_000)
    await turns()
    check(bench)
    assert bench.stored() == []
    # A session that ends has its will sent, however long that had to wait yet.
    await front.open("replaced", is_clean=True, expiry_s=1_000)
    await turns()
    check(bench)
    assert bench.stored() == [b"4"]
    bench.pass_time(51)
    await turns()
    bench.pass_time(1)
    await turns()
    check(bench)
    assert bench.stored() == [b"4", b"5"]
    bench.pass_time(50)
    await turns()
    check(bench)
    assert sorted(bench.stored()[2:]) == [b"0", b"1", b"2", b"3"]
    assert not waiting
    await lose("again", b"6")
    assert waiting["again"].will is not None, "there is room again"


async def test_changes_of_sessions_past_what_a_turn_has_room_for_come_in_the_next_in_their_order(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.broker.sessions._log
    one = encode_element(encode_changes([End("client", 0)]), b"", 0)
    monkeypatch.setattr(session_log, "APPENDED_BYTES_PER_TURN", 2 * len(one))
    stored: list[int] = []

    def write(*numbers: int) -> None:
        for number in numbers:
            log.write([End("client", 0)], lambda position, number=number: stored.append(number))

    before = log.records_total
    write(0, 1, 2)
    await turns(1)
    assert log.records_total - before == 2
    write(3, 4)
    await turns(1)
    assert log.records_total - before == 4
    await turns(1)
    assert log.records_total - before == 5
    write(5, 6, 7, 8, 9)
    log.flush()
    assert log.records_total - before == 10, "nothing is left for a turn that may not come"
    await turns(1)
    monkeypatch.setattr(session_log, "APPENDED_BYTES_PER_TURN", 1)
    write(10, 11)
    await turns(1)
    assert log.records_total - before == 11, "one at least"
    await turns()
    assert stored == list(range(12))


@pytest.mark.slow
async def test_a_session_of_very_many_filters_keeps_nobody_waiting_when_its_client_comes_and_goes(
    bench: SessionBench,
) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c")
    known: list[str] = []
    for start in range(0, limits.MQTT_SUBSCRIPTIONS_PER_SESSION_MAX, 500):
        some = [f"own/{number}" for number in range(start, start + 500)]
        known += some
        assert not isinstance(await front.subscribe("c", opened.epoch, *some), Refused)
    owner, attachments = bench.broker.sessions.owners._owners["c"], bench.broker.sessions.owners.attachments
    ids = owner.queue_ids
    assert len(ids) == len(known)
    taken_s: list[float] = []
    # Neighbours slow the processor down for a moment, so the best of some tries is what the code costs.
    for _ in range(5):
        began_s = time.thread_time()
        attachments.detach(owner, ids)
        attachments.attach(owner, ids[: len(ids) // 2])
        attachments.attach(owner, ids)
        taken_s.append(time.thread_time() - began_s)
        assert owner.queue_ids == ids
    # Either is less than a turn.
    assert min(taken_s) < 2 * turn_s_max()
    check(bench)
    longest_s: list[float] = []
    for _ in range(5):
        with LoopTurns() as looks:
            front.close("c", opened.epoch)
            opened = await front.open("c")
        assert [entry.topic_filter for entry in opened.subscriptions] == known
        longest_s.append(looks.longest_s)
    assert min(longest_s) < turn_s_max()
    check(bench)


@pytest.mark.parametrize("meanwhile", ["a message", "another front end", "its front end goes"])
async def test_a_session_of_many_filters_is_opened_over_several_turns(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    front, other = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    opened = await front.open("c")
    names = [f"own/{number}" for number in range(400)]
    await front.subscribe("c", opened.epoch, *names)
    front.close("c", opened.epoch)
    await turns()
    monkeypatch.setattr(ownership, "LoopSlice", lambda steps=1: LoopSlice(1))
    opening = front.begin_open("c")
    owner = bench.broker.sessions.owners._owners["c"]
    while not owner.queue_ids:
        await turns(1)
    assert len(owner.queue_ids) < 100, "some of them in each turn"
    check(bench)
    queues = bench.broker.sessions.projection.queues
    channel = front.port.channel
    if meanwhile == "its front end goes":
        front.stop()
        assert isinstance(await asyncio.wait_for(opening, 30), Refused)
        assert channel.light.filter_ids == []
        check(bench)
        return
    taken = other.begin_open("c") if meanwhile == "another front end" else None
    bench.publish("own/0", b"first")
    bench.publish("own/399", b"last")
    assert not opening.done()
    opened = await asyncio.wait_for(opening, 30)
    if taken is not None:
        front.close("c", opened.epoch)
        assert len(channel.light.filter_ids) == 0
        opened, channel = await asyncio.wait_for(taken, 30), other.port.channel
    check(bench)
    assert [entry.topic_filter for entry in opened.subscriptions] == names
    assert channel.light.filter_ids == sorted(queues.id_of(name) for name in names)
    reader = front if taken is None else other
    assert [reader.backlog(opened.subscriptions[at]) for at in (0, 1, 399)] == [[b"first"], [], [b"last"]]


async def test_subscriptions_of_a_front_end_that_has_gone_attach_nothing(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c")
    subscribing = asyncio.ensure_future(front.subscribe("c", opened.epoch, "a"))
    await asyncio.sleep(0)
    channel = front.port.channel
    front.stop()
    refused = await subscribing
    assert isinstance(refused, Refused)
    queues = bench.broker.sessions.projection.queues
    assert queues.id_of("a") is not None
    assert channel.light.filter_ids == []
    with pytest.raises(ValueError, match="closed channel"):
        queues.attach(channel.light, queues.id_of("a"))
    check(bench)


async def test_two_subscriptions_at_once_attach_once(bench: SessionBench) -> None:
    front = FrontEnd(bench, "one")
    opened = await front.open("c")
    found = await asyncio.gather(*(front.subscribe("c", opened.epoch, "a") for _ in range(2)))
    assert not any(isinstance(each, Refused) for each in found)
    other = await front.open("other")
    await front.subscribe("other", other.epoch, "a")
    await front.unsubscribe("other", other.epoch, "a")
    bench.publish("a", b"1")
    assert [body for _, body in front.pushed] == [b"1"]
    await front.unsubscribe("c", opened.epoch, "a")
    assert front.port.channel.light.filter_ids == []
    check(bench)


async def test_a_front_end_that_fails_at_what_it_is_pushed_reads_it(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = FrontEnd(bench, "one")
    epoch = (await front.open("c")).epoch
    subscribed = await front.subscribe("c", epoch, "a")
    assert not isinstance(subscribed, Refused)
    fail = [True]
    deliver = front.deliver_queued

    def failing(records: object, pushes: object) -> None:
        if fail:
            fail.clear()
            raise ValueError("no")
        deliver(records, pushes)

    front.stop()
    monkeypatch.setattr(front, "deliver_queued", failing)
    await front.port.start(front)
    await front.open("c")
    bench.publish("a", b"1")
    assert front.missing == [subscribed[0].queue_id]
    bench.publish("a", b"2")
    assert front.pushed == [(subscribed[0].queue_id, b"2")]
    assert front.backlog(subscribed[0]) == [b"1", b"2"]


async def test_connected_sessions_are_pushed_on_after_the_database_was_opened_again(
    bench: SessionBench,
) -> None:
    front = FrontEnd(bench, "one")
    epochs = {}
    for client_id in ("c", "d"):
        epochs[client_id] = (await front.open(client_id)).epoch
        subscribed = await front.subscribe(client_id, epochs[client_id], "a")
    assert not isinstance(subscribed, Refused)
    bench.store.key_values().reopen()
    bench.publish("a", b"1")  # what is applied meanwhile is pushed to nobody
    await level(bench)
    bench.pass_time(1)
    await turns(10)
    (queue_id,) = {*front.missing}
    assert queue_id == bench.broker.sessions.projection.queues.id_of("a")
    assert b"1" in front.backlog(subscribed[0])
    front.pushed.clear()
    bench.publish("a", b"2")
    assert front.pushed == [(queue_id, b"2")]
    assert front.fences == []
    check(bench)
    for client_id, epoch in epochs.items():
        front.close(client_id, epoch)
    assert front.port.channel.light.filter_ids == []


async def test_a_session_whose_queues_have_other_numbers_after_that_comes_anew(bench: SessionBench) -> None:
    # The database is to lack what comes last, however slow the test is.
    bench.store_settings.update(checkpoint_interval_ms=600_000, flush_thorough_interval_ms=600_000)
    await bench.close()
    await bench.start()
    front = FrontEnd(bench, "one")
    kept = {}
    for name in ("first", "second", "third"):
        kept[name] = await front.open(name)
        await front.subscribe(name, kept[name].epoch, name)
    projection = bench.broker.sessions.projection
    projection.sync()
    # Numbers that are free are taken in another order by who has loaded the queues.
    for name in ("second", "first"):
        await front.unsubscribe(name, kept[name].epoch, name)
    projection.sync()
    known = {}
    for name in ("x", "y"):
        subscribed = await front.subscribe("third", kept["third"].epoch, name)
        assert not isinstance(subscribed, Refused)
        known[name] = subscribed[0].queue_id
    bench.store.key_values().reopen()
    await level(bench)
    assert known != {name: projection.queues.id_of(name) for name in known}
    bench.pass_time(1)
    await turns(10)
    assert front.fences == [("third", kept["third"].epoch)]
    check(bench)


@pytest.mark.parametrize("what", ["close", "orphans", "due will", "takeover"])
async def test_nothing_that_ends_is_lost_while_the_database_is_closed(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    delay_s = 10 if what == "due will" else 0
    opened = {name: await one.open(name, will=will(name.encode(), delay_s=delay_s)) for name in ("c", "d")}
    sessions = bench.broker.sessions
    if what == "due will":
        for name, session in opened.items():
            one.close(name, session.epoch, drops_will=False)
        await turns()
    sessions.projection.sync()
    sessions.projection._recent.clear()
    sessions.projection._recent_bytes = 0
    key_values = bench.store.key_values()

    def refuse() -> None:
        raise StoreFullError("No space left")

    with monkeypatch.context() as patch:
        patch.setattr(key_values, "_open", refuse)
        with pytest.raises(StoreError):
            key_values.reopen()
        if what == "close":
            for name, session in opened.items():
                one.close(name, session.epoch, drops_will=False)
        elif what == "orphans":
            one.stop()
        elif what == "takeover":
            taken = {name: two.begin_open(name) for name in opened}
        bench.pass_time(11)
        bench.pass_time(1)
        await turns()
        assert isinstance(await two.begin_open("e"), Refused)
        assert bench.stored() == []
    key_values.reopen()
    await level(bench)
    # A first look into a database that was just opened may take all that a turn has room for.
    for _ in range(4):
        bench.pass_time(0.5)
        await turns()
    assert sorted(bench.stored()) == [b"c", b"d"]
    for name in opened:
        if what == "takeover":
            assert not isinstance(await taken[name], Refused)
        else:
            assert sessions.stored(name).owner == ""
            assert sessions.owners.front_end_of(name) is None
    check(bench)


async def test_a_session_that_cannot_be_read_keeps_no_other_waiting(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = FrontEnd(bench, "one")
    epochs = {name: (await front.open(name)).epoch for name in ("c", "d")}
    projection = bench.broker.sessions.projection
    read = projection.cursor

    def refuse(queue_id: int, client_id: str) -> tuple[int, int]:
        if client_id == "c":
            raise StoreError("no room")
        return read(queue_id, client_id)

    with monkeypatch.context() as patch:
        subscribing = [
            asyncio.ensure_future(front.subscribe(name, epoch, "a")) for name, epoch in epochs.items()
        ]
        opening = front.begin_open("e")
        patch.setattr(projection, "cursor", refuse)
        refused, found = await asyncio.gather(*subscribing)
        assert not isinstance(await opening, Refused)
    assert isinstance(refused, Refused)
    assert not isinstance(found, Refused)
    await front.unsubscribe("c", epochs["c"], "a")
    assert sorted(projection.session("d").subscriptions) == ["a"]
    check(bench)


async def test_what_cannot_be_read_is_refused_and_nobody_else_waits_for_it(
    bench: SessionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = FrontEnd(bench, "one")
    epoch = (await front.open("c")).epoch
    await front.subscribe("c", epoch, "a")
    sessions = bench.broker.sessions
    outcomes: list[object] = []

    def refuse(client_id: str) -> None:
        raise StoreError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(sessions.projection, "session", refuse)
        assert isinstance(await front.unsubscribe("c", epoch, "a"), Refused)
    assert sorted(sessions.projection.session("c").subscriptions) == ["a"]

    def fail(position: int | Refused) -> None:
        raise StoreError("no room")

    sessions._log.write([WillSent("nobody", 1)], fail)
    sessions._log.write([WillSent("nobody", 1)], outcomes.append)
    before = FAILURES.count("answers to changes of sessions")
    sessions._log.flush()
    assert FAILURES.count("answers to changes of sessions") == before + 1
    assert [type(outcome) for outcome in outcomes] == [int]
    check(bench)


async def level(bench: SessionBench) -> None:
    """Let the projections notice that the database was opened again, and take in what they have not."""
    for _ in range(2):
        for projection in bench.store._projections:
            if isinstance(projection, KeyValueProjection):
                with suppress(StoreError):
                    projection.sync()
        bench.store.catch_up()
        await turns()


def check(bench: SessionBench) -> None:
    """The books of everything that knows of sessions agree."""
    sessions = bench.broker.sessions
    sessions.owners.check_invariants()
    sessions.owners.wills.check_invariants()
    sessions.projection.check_invariants()
