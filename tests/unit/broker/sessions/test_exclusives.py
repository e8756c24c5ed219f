"""Exclusive subscriptions at a broker: who has a filter, what frees it, limits, and requests."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from session_bench import FrontEnd, MakeBench, SessionBench, making_benches, turns

from iotmq import limits
from iotmq.broker.session_store.exclusives import StoredExclusives
from iotmq.broker.session_store.records import FreeExclusive, HoldExclusive
from iotmq.broker.sessions.exclusives import START_GRACE_S, SWEEP_INTERVAL_S
from iotmq.errors import RequestError, StoreCorruptError
from iotmq.front_port.exclusive_claims import claim_exclusive
from iotmq.ports.sessions import ExclusiveClaim, Refused
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeBench]:
    async with making_benches(tmp_path) as make:
        yield make


def begin_claim(
    front: FrontEnd, client_id: str, epoch: int, *filters: str
) -> asyncio.Future[list[Refused | None]]:
    future: asyncio.Future[list[Refused | None]] = asyncio.get_running_loop().create_future()
    front.port.claim_exclusive(
        ExclusiveClaim(client_id=client_id, epoch=epoch, filters=list(filters)), future.set_result
    )
    return future


async def claim(front: FrontEnd, client_id: str, epoch: int, *filters: str) -> list[int]:
    """The response codes of the outcomes, 0 for what the client has."""
    outcomes = await asyncio.wait_for(begin_claim(front, client_id, epoch, *filters), 5)
    return [0 if outcome is None else outcome.code for outcome in outcomes]


def holders(bench: SessionBench) -> dict[str, str]:
    return dict(bench.broker.sessions.projection.exclusives.all())


TAKEN = ResponseCode.NO_PERMISSION


async def test_of_those_who_ask_at_once_the_first_in_the_log_has_it(make: MakeBench) -> None:
    bench = await make()
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    a, b = (await one.open("a")).epoch, (await two.open("b", expiry_s=0)).epoch
    asked = [begin_claim(one, "a", a, "x", "y"), begin_claim(two, "b", b, "z", "y", "x")]
    first, second = await asyncio.gather(*asked)
    assert first == [None, None]
    assert [outcome and outcome.code for outcome in second] == [None, TAKEN, TAKEN]
    assert holders(bench) == {"x": "a", "y": "a", "z": "b"}
    assert await claim(one, "a", a, "x", "x") == [0, 0], "its own"


async def test_what_is_given_back_can_be_had_in_the_same_turn(make: MakeBench) -> None:
    bench = await make()
    one, two = FrontEnd(bench, "one"), FrontEnd(bench, "two")
    a, b = (await one.open("a", expiry_s=0)).epoch, (await two.open("b", expiry_s=0)).epoch
    assert await claim(one, "a", a, "x") == [0]
    given_back = asyncio.ensure_future(one.unsubscribe("a", a, "x", "unknown"))
    await turns(1)
    assert await claim(two, "b", b, "x") == [0]
    assert await given_back is None
    assert holders(bench) == {"x": "b"}
    one.close("a", a, expiry_s=0)
    again = (await one.open("a", expiry_s=0)).epoch
    assert await claim(one, "a", again, "x") == [TAKEN]


async def test_a_client_that_connects_again_at_once_has_what_it_asks_for_anew(make: MakeBench) -> None:
    bench = await make()
    one = FrontEnd(bench, "one")
    epoch = (await one.open("a", expiry_s=0)).epoch
    assert await claim(one, "a", epoch, "x", "y") == [0, 0]
    one.close("a", epoch, expiry_s=0)
    epoch = (await one.open("a", expiry_s=0)).epoch
    assert await claim(one, "a", epoch, "x") == [0]
    await turns()
    assert holders(bench) == {"x": "a"}, "and nothing else of its former session"


async def test_a_former_owner_is_not_heard(make: MakeBench) -> None:
    bench = await make()
    one = FrontEnd(bench, "one")
    epoch = (await one.open("a")).epoch
    assert await claim(one, "a", epoch - 1, "x") == [ResponseCode.SESSION_LOST]
    assert await claim(one, "b", epoch, "x") == [ResponseCode.SESSION_LOST]
    assert holders(bench) == {}


async def test_what_a_client_never_subscribed_is_free_when_it_has_gone(make: MakeBench) -> None:
    bench = await make()
    one = FrontEnd(bench, "one")
    epoch = (await one.open("a")).epoch
    assert await claim(one, "a", epoch, "kept", "left over") == [0, 0]
    await one.subscribe("a", epoch, "kept")
    bench.pass_time(START_GRACE_S)
    await turns()
    assert len(holders(bench)) == 2, "it is connected"
    one.close("a", epoch)
    bench.pass_time(SWEEP_INTERVAL_S)
    await turns()
    assert holders(bench) == {"kept": "a"}
    late = (await one.open("late")).epoch
    asked = begin_claim(one, "late", late, "x")
    one.close("late", late)
    await asked
    await turns()
    assert holders(bench) == {"kept": "a"}, "nor what it gets when it has gone already"


async def test_they_survive_the_broker_and_a_lost_database(make: MakeBench, tmp_path: Path) -> None:
    bench = await make()
    one = FrontEnd(bench, "one")
    kept, gone = (await one.open("kept")).epoch, (await one.open("gone", expiry_s=0)).epoch
    assert await claim(one, "kept", kept, "x") == [0]
    await one.subscribe("kept", kept, "x")
    assert await claim(one, "gone", gone, "y") == [0]
    await bench.close()
    shutil.rmtree(tmp_path / "data" / "kv")
    await bench.start()
    assert holders(bench) == {"x": "kept", "y": "gone"}, "from the log"
    bench.pass_time(START_GRACE_S - 1)
    await turns()
    assert holders(bench) == {"x": "kept", "y": "gone"}, "its front end may be back"
    await bench.close()
    bench.make()
    # Before its start a broker follows another one, for as long as that lives.
    bench.clock.advance(5 * START_GRACE_S)
    await bench.broker.start()
    assert holders(bench) == {"x": "kept", "y": "gone"}, "from the database"
    bench.pass_time(START_GRACE_S - 1)
    await turns()
    assert holders(bench) == {"x": "kept", "y": "gone"}, "its front end may be back"
    bench.pass_time(1)
    await turns()
    assert holders(bench) == {"x": "kept"}
    two = FrontEnd(bench, "two")
    assert await claim(two, "new", (await two.open("new")).epoch, "x", "y") == [TAKEN, 0]
    assert bench.broker.sessions.exclusives.swept_total == 1


async def test_there_are_only_so_many(make: MakeBench) -> None:
    bench = await make(exclusive_subscriptions_max=2)
    one = FrontEnd(bench, "one")
    epoch = (await one.open("a")).epoch
    assert await claim(one, "a", epoch, "1") == [0]
    assert await claim(one, "a", epoch, "2") == [0]
    assert await claim(one, "a", epoch, "2", "3") == [0, ResponseCode.NO_PERMISSION]
    await one.unsubscribe("a", epoch, "1")
    assert await claim(one, "a", epoch, "3") == [0]
    assert bench.broker.sessions.exclusives.refused_total == 1


async def test_there_are_as_many_as_the_limit_without_a_setting(make: MakeBench) -> None:
    one = FrontEnd(await make(), "one")
    epoch = (await one.open("a")).epoch
    names = [str(number) for number in range(limits.EXCLUSIVE_SUBSCRIPTIONS_MAX)]
    step = limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX
    for begin in range(0, len(names), step):
        assert not any(await claim(one, "a", epoch, *names[begin : begin + step]))
    assert await claim(one, "a", epoch, names[0], "more") == [0, ResponseCode.NO_PERMISSION]


async def test_requests_are_refused_past_their_limits(
    make: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await make()
    front = FrontEnd(bench, "one")
    epoch = (await front.open("a")).epoch
    handler = bench.broker.mqtt.session_requests
    monkeypatch.setattr(handler, "channel_of", lambda _: front.port.channel)
    handle = handler.handlers()[RequestCode.CLAIM_EXCLUSIVE]
    answered: list[Command] = []

    class Connection:
        def reply(self, answer: Command) -> None:
            answered.append(answer)

    def ask(body: Any) -> Command | None:
        request = Command.request(RequestCode.CLAIM_EXCLUSIVE, body=msgspec.msgpack.encode(body))
        return handle(Connection(), request)  # type: ignore[arg-type, return-value]

    most = [f"{number}" for number in range(limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX)]
    assert ask(["a", epoch, most]) is None
    await turns()
    (answer,) = answered
    assert msgspec.msgpack.decode(answer.body_bytes()) == [None] * len(most)
    again = ask(["a", epoch + 1, ["x"]])
    assert again is not None
    assert msgspec.msgpack.decode(again.body_bytes())[0][0] == ResponseCode.SESSION_LOST
    for body in (
        ["a", epoch, [*most, "x"]],
        ["a", epoch, ["x" * (limits.MQTT_TOPIC_BYTES_MAX + 1)]],
        ["a", epoch, [""]],
        ["a", epoch, ["a/#/b"]],
        ["a", epoch, ["$share/g/a"]],
        ["a" * (limits.MQTT_CLIENT_ID_BYTES_MAX + 1), epoch, ["x"]],
        {},
    ):
        with pytest.raises(RequestError):
            ask(body)


def test_what_is_stored_is_what_was_said() -> None:
    stored = StoredExclusives()
    stored.apply(HoldExclusive("a", ["x", "ü"]))
    stored.apply(HoldExclusive("b", ["x", "y"]))
    stored.apply(FreeExclusive("b", ["x"]))
    assert dict(stored.all()) == {"x": "a", "ü": "a", "y": "b"}
    again = StoredExclusives()
    for key, value in stored.changes():
        assert value is not None
        again.restore(key, value)
    assert dict(again.all()) == dict(stored.all())
    assert again.changed_count == 0
    stored.clear_changes()
    stored.end("a")
    stored.end("nobody")
    assert sorted(stored.changes()) == [(b"\x0ax", None), (b"\x0a\xc3\xbc", None)]
    assert (dict(stored.all()), stored.of("a"), stored.of("b")) == ({"y": "b"}, frozenset(), {"y"})
    with pytest.raises(StoreCorruptError):
        again.restore(b"\x0a\xff", b"a")


def test_without_its_broker_nobody_decides_about_a_filter() -> None:
    found: list[list[Refused | None]] = []
    request = ExclusiveClaim(client_id="a", epoch=1, filters=["x", "y"])
    claim_exclusive(request, {}, lambda _: None, found.append)
    assert [outcome and outcome.code for outcome in found[0]] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
