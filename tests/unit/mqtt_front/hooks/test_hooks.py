"""Users' programs: what they decide and hear, and what becomes of those that fail, are late or wait."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest
from eventually import until
from fake_gateway import RawClient, connect_packet
from front_site import Site, running, tick_quickly

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.hooks import DECIDING, TOLD, Client, Deny, Hooks, Message, Subscription
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt_front.hooks import hook_calls, hook_thread
from iotmq.mqtt_front.hooks.hook_calls import HookCalls
from iotmq.mqtt_front.hooks.loading import load_hooks, overrides
from iotmq.mqtt_front.settings.mqtt import MqttSettings


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_quickly(monkeypatch)
    heard.clear()


heard: list[tuple[Any, ...]] = []
"""What the programs below were told; appended in their thread."""


@asynccontextmanager
async def hooked(*classes: type[Hooks], **settings: Any) -> AsyncIterator[Site]:
    names = tuple(f"{__name__}:{found.__name__}" for found in classes)
    async with running(hooks=names, **settings) as site:
        site.gateway.automatic = 0
        yield site


def publish(number: int, topic: str = "t", qos: int = 1) -> bytes:
    return packets.encode_publish(topic, str(number).encode(), qos=qos, packet_id=number + 1 if qos else 0)


# Deciding


class Doorkeeper(Hooks):
    """Plain functions, in threads."""

    def before_connect(self, client: Client) -> Deny | None:
        assert threading.current_thread() is not threading.main_thread()
        heard.append(("before_connect", client))
        return Deny("not today") if client.client_id.startswith("bad") else None

    def before_subscribe(
        self, client: Client, subscriptions: Sequence[Subscription]
    ) -> Sequence[Deny | None]:
        return [Deny() if wanted.topic_filter.startswith("secret") else None for wanted in subscriptions]

    def before_publish(self, messages: Sequence[Message]) -> Sequence[Deny | None]:
        heard.append(("before_publish", [message.payload for message in messages]))
        return [Deny() if message.topic == "secret" else None for message in messages]


class Waiting(Hooks):
    """Coroutines, on the loop of their thread."""

    async def after_authenticate(self, client: Client) -> Deny | None:
        await asyncio.sleep(0)
        heard.append(("after_authenticate", client))
        return Deny("no") if client.client_id == "known" else None


async def test_a_hook_decides_who_connects() -> None:
    async with hooked(Doorkeeper) as site:
        await site.connect("good")
        bad = await site.dial()
        bad.send(connect_packet("bad-1"))
        assert await bad.packet() == (packets.CONNACK << 4, b"\x00\x05")
        bad = await site.dial()
        bad.send(connect_packet("bad-2", protocol_level=5))
        first, body = await bad.packet()
        assert (first, body[1]) == (packets.CONNACK << 4, 0x87)
        assert b"not today" in body
        assert heard[0][1] == Client(client_id="good", address="127.0.0.1", listener="tcp")
        hook = f"{__name__}:Doorkeeper"
        assert site.number("iotmq_mqtt_hook_denied_total", hook=hook, method="before_connect") == 2
        assert site.number("iotmq_mqtt_hook_calls_total", hook=hook, method="before_connect") == 3


async def test_a_coroutine_decides_behind_authentication() -> None:
    async with hooked(Waiting) as site:
        await site.connect("other")
        denied = await site.dial()
        denied.send(connect_packet("known"))
        assert await denied.packet() == (packets.CONNACK << 4, b"\x00\x05")


@pytest.mark.parametrize(("level", "code"), [(4, 5), (5, 0x87)])
async def test_a_hook_decides_about_wills_as_about_messages(level: int, code: int) -> None:
    """Or a device would leave as its will what it may not publish."""
    async with hooked(Waiting, Doorkeeper) as site:
        properties = NO_PROPERTIES if level == 5 else None
        denied = await site.dial()
        will = packets.Will("secret", b"w", 1, True, properties)
        denied.send(connect_packet("c", protocol_level=level, will=will))
        assert (await denied.packet())[1][1] == code
        assert await denied.rest() == b""
        good = await site.dial()
        good.send(connect_packet("c", protocol_level=level, will=will._replace(topic="open")))
        assert (await good.packet())[1][1] == 0
        assert heard[-1] == ("before_publish", [b"w"])
        good.abort()
        (handed,) = await site.handed()
        assert [message.topic for message in handed.messages] == ["open"]
        hook = f"{__name__}:Doorkeeper"
        assert site.number("iotmq_mqtt_hook_denied_total", hook=hook, method="before_publish") == 1


async def test_the_first_program_that_denies_decides() -> None:
    async with hooked(Doorkeeper, Waiting) as site:
        await site.connect("good")
        for name in ("bad", "known"):
            denied = await site.dial()
            denied.send(connect_packet(name))
            assert await denied.packet() == (packets.CONNACK << 4, b"\x00\x05")
        # Who was refused at the first question was not asked about at the second.
        assert [call[1].client_id for call in heard if call[0] == "after_authenticate"] == ["good", "known"]


async def test_a_hook_decides_about_each_filter() -> None:
    async with hooked(Doorkeeper) as site:
        client = await site.connect("c")
        client.send(packets.encode_subscribe(1, [("open", 1), ("secret/#", 1), ("also/open", 0)]))
        assert await client.packet() == (packets.SUBACK << 4, b"\0\1\x01\x80\x00")
        site.gateway.push("open", b"x", "open")
        assert (await client.publish_received())[1] == b"x"
        assert "secret/#" not in site.gateway.filters.values()


async def test_messages_of_a_turn_are_asked_about_together_and_stay_in_order() -> None:
    async with hooked(Doorkeeper) as site:
        client = await site.connect("c")
        client.send(publish(0), publish(1, "secret"), publish(2), publish(3, qos=0))
        # Before MQTT 5 a message that is denied is acknowledged all the same.
        for number in range(3):
            assert await client.packet() == (packets.PUBACK << 4, (number + 1).to_bytes(2, "big"))
        await until(lambda: sum(handed.count for handed in site.gateway.handed) == 3)
        payloads = [payload for handed in site.gateway.handed for payload in handed.payloads]
        assert payloads == [b"0", b"2", b"3"]
        assert [call for call in heard if call[0] == "before_publish"] == [
            ("before_publish", [b"0", b"1", b"2", b"3"])
        ]


async def test_a_device_of_mqtt_5_is_told_which_message_was_denied() -> None:
    async with hooked(Doorkeeper) as site:
        client = await site.dial()
        client.send(connect_packet("c", protocol_level=5))
        assert (await client.packet())[0] == packets.CONNACK << 4
        properties = Properties(message_expiry_s=9)
        client.send(packets.encode_publish("secret", b"x", qos=1, packet_id=1, properties=properties))
        assert await client.packet() == (packets.PUBACK << 4, b"\0\1\x87")


async def test_a_subscription_waits_for_what_was_published_before_it() -> None:
    async with hooked(Doorkeeper) as site:
        client = await site.connect("c")
        client.send(publish(0), packets.encode_subscribe(9, [("t", 1)]))
        assert (await client.packet())[0] == packets.PUBACK << 4
        assert (await client.packet())[0] == packets.SUBACK << 4


class Filter(Hooks):
    def before_deliver(self, message: Message) -> Deny | None:
        heard.append(("before_deliver", message))
        return Deny() if message.payload == b"no" else None


async def test_a_hook_decides_what_a_device_gets() -> None:
    async with hooked(Filter) as site:
        client = await site.connect("c")
        client.send(packets.encode_subscribe(1, [("t", 1)]))
        await client.packet()
        for payload in (b"a", b"no", b"b"):
            site.gateway.push("t", payload, "t")
        assert [(await client.publish_received())[1] for _ in range(2)] == [b"a", b"b"]
        assert heard[1][1] == Message(client_id="c", topic="t", payload=b"no", qos=1, is_retained=False)


# Failing and waiting


class Failing(Hooks):
    def before_connect(self, client: Client) -> Deny | None:
        raise OSError("no database")

    def before_deliver(self, message: Message) -> Deny | None:
        raise OSError("no database")

    async def after_connect(self, client: Client, is_resumed: bool) -> None:
        raise OSError("no database")


class Nonsense(Hooks):
    def before_connect(self, client: Client) -> Deny | None:
        return True  # type: ignore[return-value]

    def before_publish(self, messages: Sequence[Message]) -> Sequence[Deny | None]:
        return [None] * (len(messages) + 1)


@pytest.mark.parametrize("program", [Failing, Nonsense])
async def test_a_hook_that_fails_denies(program: type[Hooks], caplog: pytest.LogCaptureFixture) -> None:
    async with hooked(program) as site:
        client = await site.dial()
        client.send(connect_packet("c"))
        assert await client.packet() == (packets.CONNACK << 4, b"\x00\x05")
        assert site.number("iotmq_mqtt_hook_failed_total", method="before_connect") == 1
    (line,) = [line for line in caplog.records if line.message == "a hook failed"]
    assert line.method == "before_connect"  # type: ignore[attr-defined]


release = threading.Event()


class Stuck(Hooks):
    """Never returns by itself."""

    def before_connect(self, client: Client) -> Deny | None:
        if client.client_id == "stuck":
            release.wait(30)
        return None


class Blocking(Hooks):
    """A coroutine that keeps the whole loop of its thread."""

    async def before_connect(self, client: Client) -> Deny | None:
        if client.client_id == "stuck":
            release.wait(30)
        return None


@pytest.mark.parametrize("program", [Stuck, Blocking])
async def test_a_hook_that_is_late_denies_and_nobody_else_waits(program: type[Hooks]) -> None:
    release.clear()
    async with hooked(program, hook_timeout_s=0.5) as site:
        neighbour = await site.connect("neighbour")
        try:
            stuck = await site.dial()
            stuck.send(connect_packet("stuck"))
            await neighbour.ping()
            assert not site.number("iotmq_mqtt_hook_late_total", method="before_connect")
            assert await stuck.packet() == (packets.CONNACK << 4, b"\x00\x05")
            assert site.number("iotmq_mqtt_hook_late_total", method="before_connect") == 1
            await neighbour.ping()
        finally:
            release.set()
        await until(lambda: site.number("iotmq_mqtt_hook_questions") == 0)
        await site.connect("stuck" if program is Stuck else "later")


class Slow(Hooks):
    def before_deliver(self, message: Message) -> Deny | None:
        time.sleep(0.002)  # what it does, not a wait of the test
        return None


async def test_a_slow_decision_about_deliveries_ends_with_denying_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hook_calls, "_DELIVER_S", 0.001)
    monkeypatch.setattr(hook_calls, "_DELIVER_LATE_MAX", 3)
    async with hooked(Slow) as site:
        client = await site.connect("c")
        client.send(packets.encode_subscribe(1, [("t", 0)]))
        await client.packet()
        for number in range(6):
            site.gateway.push("t", str(number).encode(), "t")
        assert [(await client.publish_received())[1] for _ in range(3)] == [b"0", b"1", b"2"]
        await client.ping()
        assert site.number("iotmq_mqtt_hook_denied_total", method="before_deliver") == 3


# Hearing


class Listener(Hooks):
    async def started(self) -> None:
        heard.append(("started",))

    def stopped(self) -> None:
        heard.append(("stopped",))

    async def after_connect(self, client: Client, is_resumed: bool) -> None:
        heard.append(("after_connect", client.client_id, is_resumed))

    def after_subscribe(
        self, client: Client, subscriptions: Sequence[Subscription], codes: Sequence[int]
    ) -> None:
        heard.append(("after_subscribe", [wanted.topic_filter for wanted in subscriptions], list(codes)))

    async def after_unsubscribe(self, client: Client, filters: Sequence[str]) -> None:
        heard.append(("after_unsubscribe", list(filters)))

    def after_publish(self, messages: Sequence[Message]) -> None:
        heard.append(("after_publish", [message.payload for message in messages]))

    async def after_deliver(self, messages: Sequence[Message]) -> None:
        heard.append(("after_deliver", [(message.client_id, message.payload) for message in messages]))

    async def after_disconnect(self, client: Client, reason: str) -> None:
        heard.append(("after_disconnect", client.client_id, reason))


async def test_a_hook_hears_what_happened_in_its_order() -> None:
    async with hooked(Listener) as site:
        client = await site.connect("c")
        client.send(packets.encode_subscribe(1, [("t", 1)]))
        await client.packet()
        client.send(publish(0))
        await client.packet()
        site.gateway.push("t", b"x", "t")
        await client.publish_received()
        client.send(packets.encode_unsubscribe(2, ["t"]))
        await client.packet()
        client.send(packets.DISCONNECT_PACKET)
        await client.rest()
        await until(lambda: any(call[0] == "after_disconnect" for call in heard))
        assert site.number("iotmq_mqtt_hook_events_waiting") == 0
    assert heard == [
        ("started",),
        ("after_connect", "c", False),
        ("after_subscribe", ["t"], [1]),
        ("after_publish", [b"0"]),
        ("after_deliver", [("c", b"x")]),
        ("after_unsubscribe", ["t"]),
        ("after_disconnect", "c", "normal"),
        ("stopped",),
    ]


async def test_events_that_wait_have_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HOOK_EVENTS_WAITING_MAX", 3)
    release.clear()
    calls = HookCalls((f"{__name__}:StuckListener",), asyncio.get_running_loop(), timeout_s=1)
    await calls.start()
    try:
        calls.tell("after_unsubscribe", Client(client_id="c"), ())
        await until(lambda: heard == [("began",)])
        for _ in range(5):
            calls.tell("after_unsubscribe", Client(client_id="c"), ())
        untold = [metric.value for metric in calls.metrics() if metric.name == "iotmq_mqtt_hook_untold_total"]
        assert untold == [2]
    finally:
        release.set()
        await calls.stop()


async def test_messages_that_programs_are_still_to_be_told_have_a_maximum_of_bytes() -> None:
    release.clear()
    calls = HookCalls((f"{__name__}:StuckListener",), asyncio.get_running_loop(), timeout_s=1)
    await calls.start()
    messages = [
        Message(client_id="c", topic="t", payload=bytes(64 * 1024 - 513), qos=0, is_retained=False)
        for _ in range(16)
    ]

    def untold() -> float:
        return sum(metric.value for metric in calls.metrics() if metric.name.endswith("hook_untold_total"))

    try:
        calls.tell("after_unsubscribe", Client(client_id="c"), ())
        await until(lambda: heard == [("began",)])
        for _ in range(limits.HOOK_EVENTS_BYTES_MAX >> 20):
            calls.tell("after_publish", messages)
        assert untold() == 0
        calls.tell("after_publish", messages[:1])
        assert untold() == 1
        release.set()
        await until(lambda: len(heard) == 1 + (limits.HOOK_EVENTS_BYTES_MAX >> 20))
        calls.tell("after_publish", messages)
        await until(lambda: len(heard) == 2 + (limits.HOOK_EVENTS_BYTES_MAX >> 20))
        assert untold() == 1
    finally:
        release.set()
        await calls.stop()


class StuckListener(Hooks):
    def after_publish(self, messages: Sequence[Message]) -> None:
        heard.append(("published",))

    def after_unsubscribe(self, client: Client, filters: Sequence[str]) -> None:
        heard.append(("began",))
        release.wait(30)


async def test_questions_that_wait_have_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HOOK_QUESTIONS_MAX", 2)
    release.clear()
    calls = HookCalls((f"{__name__}:Stuck",), asyncio.get_running_loop(), timeout_s=30)
    await calls.start()
    answers: list[Any] = []
    try:
        for _ in range(3):
            calls.ask("before_connect", (Client(client_id="stuck"),), answers.append)
        await until(lambda: answers)
        assert answers == [[Deny("too much is asked")]]
        release.set()
        await until(lambda: len(answers) == 3)
        assert answers[1:] == [[None], [None]]
    finally:
        release.set()
        await calls.stop()


class StuckConnect(Hooks):
    """Decides about connections once it is let go."""

    def before_connect(self, client: Client) -> None:
        release.wait(30)


async def test_connects_that_wait_have_a_maximum_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MQTT_UNDECIDED_BYTES_MAX", 2 * 2_048 + 2_000)
    release.clear()
    async with hooked(StuckConnect, hook_timeout_s=30) as site:
        will = packets.Will("w", b"x" * 1_997, qos=0, retain=False)

        async def code(client: RawClient) -> int:
            first, body = await client.packet()
            assert first >> 4 == packets.CONNACK
            return body[1]

        try:
            held = []
            for name, left in (("a", None), ("b", will), ("c", None)):
                client = await site.dial()
                client.send(connect_packet(name, protocol_level=5, will=left))
                held.append(client)
            # "a", "b" and their names fill what there is to the byte.
            assert await code(held[2]) == 0x89
        finally:
            release.set()
        assert [await code(client) for client in held[:2]] == [0, 0]
        client = await site.dial()
        client.send(connect_packet("d", protocol_level=5, will=will))
        assert await code(client) == 0


async def test_messages_that_are_held_stop_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    release.clear()
    async with hooked(StuckPublish, hook_timeout_s=30) as site:
        client = await site.connect("c")
        payload = b"x" * 60_000
        try:
            for _ in range(2 * limits.HOOK_HELD_BYTES_MAX // len(payload)):
                client.send(packets.encode_publish("t", payload, qos=0, packet_id=0))
            parts = site.front.parts
            assert parts.hooks is not None
            sink = parts.hooks.sink
            assert sink is not None
            await until(lambda: parts.group.is_congested)
            assert limits.HOOK_HELD_BYTES_MAX < sink.held_bytes < 1.5 * limits.HOOK_HELD_BYTES_MAX
        finally:
            release.set()
        await until(lambda: site.number("iotmq_mqtt_published_total") > 200)
        await until(lambda: not parts.group.is_congested)


class StuckPublish(Hooks):
    def before_publish(self, messages: Sequence[Message]) -> None:
        release.wait(30)


# Loading


def test_nothing_is_called_that_is_not_overridden() -> None:
    assert [method for method in (*DECIDING, *TOLD) if overrides(Filter(), method)] == ["before_deliver"]
    assert not any(overrides(Hooks(), method) for method in (*DECIDING, *TOLD))


class Broken(Hooks):
    is_made: ClassVar[bool] = False

    def __init__(self) -> None:
        raise KeyError("TOKEN")


class NoHooks:
    pass


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_module:X", "ModuleNotFoundError"),
        (f"{__name__}:Missing", "AttributeError"),
        (f"{__name__}:Broken", "KeyError: 'TOKEN'"),
        (f"{__name__}:NoHooks", "not a class derived from iotmq.hooks.Hooks"),
    ],
)
def test_what_cannot_be_loaded_is_named(name: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_hooks((name,))
    assert f"mqtt.hooks[0] = {name!r}" in str(error.value)
    assert problem in str(error.value)


class FailsToStart(Hooks):
    def started(self) -> None:
        raise OSError("no database")


async def test_a_program_that_cannot_start_keeps_the_front_end_from_starting() -> None:
    with pytest.raises(OSError, match="no database"):
        async with hooked(FailsToStart):
            raise AssertionError("it has started")


async def test_without_hooks_there_is_no_thread() -> None:
    before = threading.active_count()
    async with running() as site:
        assert site.front.parts.hooks is None
        assert site.front.parts.group.may_deliver is None
        assert threading.active_count() == before


async def test_a_thread_that_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_thread, "_STOP_TIMEOUT_S", 0.05)
    release.clear()
    calls = HookCalls((f"{__name__}:Blocking",), asyncio.get_running_loop(), timeout_s=0.05)
    await calls.start()
    answers: list[Any] = []
    calls.ask("before_connect", (Client(client_id="stuck"),), answers.append)
    await until(lambda: answers)
    await calls.stop()
    release.set()


async def test_what_is_told_while_the_teller_is_about_to_end_is_told_by_one_teller() -> None:
    """Between the look at what was told and the end, the front end asks for another one."""
    thread = hook_thread.HookThread(asyncio.get_running_loop())
    at_once: list[int] = []
    most: list[int] = []
    told: list[int] = []

    class Told(deque[hook_thread.HookCall]):
        """Says at once, when it is found to be empty, what is to be told, as the other thread may."""

        is_late = False

        def __bool__(self) -> bool:
            if not len(self) and not thread._is_asked and not self.is_late:
                self.is_late = True
                thread.tell(call(2))
                thread.tell(call(3))
            return len(self) > 0

    async def method(number: int) -> None:
        at_once.append(number)
        most.append(len(at_once))
        await asyncio.sleep(0)
        at_once.remove(number)
        told.append(number)

    def call(number: int) -> hook_thread.HookCall:
        return hook_thread.HookCall(method, (number,), lambda *_: None)

    thread._told = Told()
    thread.start()
    thread.tell(call(1))
    await until(lambda: len(told) == 3)
    await thread.stop()
    assert told == [1, 2, 3]
    assert max(most) == 1


_BLOCKED = """
import asyncio, threading
from iotmq.mqtt_front.hooks.hook_thread import HookCall, HookThread

async def main():
    thread, begun = HookThread(asyncio.get_running_loop()), threading.Event()
    thread.start()
    thread.call(HookCall(lambda: (begun.set(), threading.Event().wait()), (), print))
    await asyncio.to_thread(begun.wait)
    await thread.stop()

asyncio.run(main())
"""


def test_a_function_that_never_returns_does_not_keep_the_process() -> None:
    subprocess.run([sys.executable, "-c", _BLOCKED], check=True, timeout=20)


def test_so_many_hooks_may_be_named() -> None:
    from iotmq.config.config import config_from_table

    names = ["m:C"] * limits.MQTT_HOOKS_MAX
    assert config_from_table({"mqtt": {"hooks": names}}).mqtt.hooks == tuple(names)
    with pytest.raises(ConfigError):
        config_from_table({"mqtt": {"hooks": [*names, "m:C"]}})
    assert MqttSettings().hooks == ()
