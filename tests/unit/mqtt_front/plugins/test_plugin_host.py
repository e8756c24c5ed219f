"""A plug-in in threads of its own: what it answers, and what happens when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from amqtt_plugins import Listening, Scripted, released
from eventually import soon
from manual_clock import ManualClock

from iotmq import limits
from iotmq.mqtt_front.plugins.host import NoAnswerError, PluginHost, PluginStartError
from iotmq.mqtt_front.plugins.light_session import LightSession
from iotmq.mqtt_front.plugins.loader import load
from iotmq.mqtt_front.settings.plugins import AmqttPluginSettings


@pytest.fixture(autouse=True)
def told() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    Listening.told.clear()
    yield Listening.told
    Listening.told.clear()


async def ask(host: PluginHost, kind: str) -> bool | None:
    return await host.ask("authenticate", {"session": LightSession("c", "u", kind)})


async def cause(host: PluginHost, kind: str) -> str:
    with pytest.raises(NoAnswerError) as caught:
        await ask(host, kind)
    return caught.value.cause


def numbers(host: PluginHost) -> dict[str, float]:
    found = {}
    for metric in host.metrics():
        labels = dict(metric.labels)
        assert labels.pop("plugin") == host.name
        found[labels.get("answer", metric.name.removeprefix("iotmq_mqtt_plugin_"))] = metric.value
    return found


async def test_answers_are_yes_no_and_none(host_of: Any) -> None:
    host = await host_of("Scripted")
    assert [await ask(host, kind) for kind in ("yes", "no", "none")] == [True, False, None]
    found = numbers(host)
    assert (found["asked_total"], found["yes"], found["no"], found["none"]) == (3, 1, 1, 1)
    assert found["seconds_total"] > 0
    assert found["waiting"] == 0


async def test_what_is_no_answer_is_counted_and_told_apart(host_of: Any) -> None:
    host = await host_of("Scripted", timeout_s=0.05)
    assert [await cause(host, kind) for kind in ("fail", "impossible", "sleep", "no-such-kind")] == [
        "failed",
        "failed",
        "late",
        "failed",
    ]
    assert (numbers(host)["failed"], numbers(host)["late"]) == (3, 1)


async def test_every_thread_has_an_instance_of_its_own(host_of: Any) -> None:
    before = Scripted.made
    await host_of("Scripted", hosts=3)
    assert Scripted.made == before + 3


async def test_a_plugin_that_blocks_its_loop_holds_up_nobody_for_longer_than_its_limit(host_of: Any) -> None:
    host = await host_of("Scripted", {"seconds": 30.0}, hosts=2, timeout_s=0.5)
    blocking = asyncio.ensure_future(cause(host, "block"))
    await asyncio.sleep(0)
    assert await ask(host, "yes"), "another thread is free"
    assert await blocking == "late", "and is still blocked"


async def test_what_nobody_waits_for_any_more_is_not_begun(host_of: Any) -> None:
    host = await host_of("Scripted", {"seconds": 30.0}, hosts=1, timeout_s=0.1)
    session = LightSession("c", "u", "yes")
    blocking = asyncio.ensure_future(cause(host, "block"))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(host.ask("authenticate", {"session": session}))
    assert await blocking == "late"
    with pytest.raises(NoAnswerError):
        await waiting
    released.set()
    await soon(lambda: numbers(host)["waiting"] == 0, "the thread is free")
    assert await ask(host, "yes")
    assert session.attributes == {}, "the plug-in has not seen it"


async def test_questions_wait_up_to_their_maximum(host_of: Any) -> None:
    host = await host_of("Scripted", {"seconds": 0.3}, hosts=1, timeout_s=2.0, waiting_max=3)
    waiting = [asyncio.ensure_future(ask(host, "sleep")) for _ in range(3)]
    await asyncio.sleep(0)
    assert await cause(host, "yes") == "refused"
    assert await asyncio.gather(*waiting) == [True] * 3
    assert await ask(host, "yes")
    assert numbers(host)["refused"] == 1


async def test_a_plugin_that_fails_again_and_again_is_left_alone(host_of: Any, clock: ManualClock) -> None:
    host = await host_of("Scripted", failures_max=3, pause_s=5.0)
    assert [await cause(host, "fail") for _ in range(3)] == ["failed"] * 3
    assert await cause(host, "yes") == "refused"
    assert numbers(host)["paused"] == 1
    clock.advance(5)
    assert await ask(host, "yes")
    assert (numbers(host)["paused"], numbers(host)["pauses_total"]) == (0, 1)


async def test_who_goes_away_leaves_no_question_behind(host_of: Any) -> None:
    host = await host_of("Scripted", {"seconds": 0.05}, hosts=1)
    question = asyncio.ensure_future(ask(host, "sleep"))
    await asyncio.sleep(0)
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    await soon(lambda: numbers(host)["waiting"] == 0, "nothing waits")
    assert await ask(host, "yes")


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_plugin_that_does_not_start_says_why(blocks: bool) -> None:
    settings = AmqttPluginSettings(class_path="amqtt_plugins.DoesNotStart", options={"blocks": blocks})
    host = PluginHost(load(settings), {}, lambda *_: None, ManualClock())
    with pytest.raises(PluginStartError, match="start_timeout_s" if blocks else "no service there"):
        await host.start(0.2)
    async with asyncio.timeout(20):
        await host.stop()
    released.set()
    released.clear()


async def test_it_is_told_its_beginning_and_its_end(
    host_of: Any, told: list[tuple[str, dict[str, Any]]]
) -> None:
    host = await host_of("Listening", hosts=1)
    await host.started(1.0)
    await host.stop()
    await host.stop()
    assert [name for name, _ in told] == ["pre_start", "post_start", "pre_shutdown", "post_shutdown", "close"]


async def test_a_stopped_plugin_is_not_asked(host_of: Any) -> None:
    host = await host_of("Scripted")
    await host.stop()
    assert await cause(host, "yes") == "refused"


async def test_a_blocked_plugin_does_not_hold_up_a_stop(host_of: Any) -> None:
    host = await host_of("Scripted", {"seconds": 30.0}, hosts=1, timeout_s=0.05)
    assert await cause(host, "block") == "late"
    async with asyncio.timeout(20):
        await host.stop()


async def test_events_come_in_order_and_a_failure_ends_nothing(
    host_of: Any, told: list[tuple[str, dict[str, Any]]], published: list[Any]
) -> None:
    host = await host_of("Listening")
    host.tell("broker_client_unsubscribed", {"client_id": "c", "topic": "a"})
    host.tell("broker_client_subscribed", {"client_id": "c", "topic": "publish/that", "qos": 1})
    host.tell("broker_message_received", {"client_id": "c", "message": None})
    await soon(lambda: published, "the plug-in publishes")
    assert [name for name, _ in told if "start" not in name] == ["unsubscribed", "subscribed"]
    assert published == [("from/plugin", b"hello", 1, False)]
    assert numbers(host)["events_total"] == 2


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
async def test_no_error_of_an_event_ends_those_behind_it(
    host_of: Any,
    told: list[tuple[str, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Listening, "on_broker_client_unsubscribed", fail)
    host = await host_of("Listening")
    host.tell("broker_client_unsubscribed", {"client_id": "c", "topic": "a"})
    host.tell("broker_client_subscribed", {"client_id": "c", "topic": "a", "qos": 1})
    await soon(lambda: "subscribed" in [name for name, _ in told], "the next is told")
    assert numbers(host)["events_total"] == 2


async def test_events_wait_up_to_their_maximum(host_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MQTT_PLUGIN_EVENTS_MAX", 3)
    host = await host_of("Listening", hosts=1)
    host._threads[0].loop.call_soon_threadsafe(released.wait)
    for _ in range(4):
        host.tell("broker_client_subscribed", {"client_id": "c", "topic": "a", "qos": 0})
    assert numbers(host)["events_dropped_total"] == 1
    released.set()
    await soon(lambda: numbers(host)["events_total"] == 3, "the others are told")


async def test_one_that_was_stopped_is_told_nothing(host_of: Any) -> None:
    """A connection may end behind it, and that has to go on."""
    host = await host_of("Listening")
    await host.stop()
    await soon(lambda: all(thread.loop.is_closed() for thread in host._threads), "it has ended")
    host.tell("broker_client_unsubscribed", {"client_id": "c", "topic": "a"})
    assert numbers(host)["events_total"] == 0
