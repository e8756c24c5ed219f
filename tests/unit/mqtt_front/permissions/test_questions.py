"""Others who are asked about topics: what waits meanwhile, and what becomes of no answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from permissions_site import NOT_AUTHORIZED, REFUSED, rule_text, running

from iotmq import limits
from iotmq.hooks import Hooks, Message
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.permissions.decisions import Everything
from iotmq.mqtt_front.permissions.questions import Answer, AskedPolicy, Questions
from iotmq.mqtt_front.permissions.rule import PUBLISH, SUBSCRIBE
from iotmq.mqtt_front.permissions.topic_template import Subject


class Oracle:
    """Answers by the first letter of the topic when it is let: y yes, n no, e fails, other no opinion."""

    name = "oracle"

    def __init__(self) -> None:
        self.asked: Counter[tuple[str, str]] = Counter()
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def may(self, identity: Identity | None, client_id: str, action: str, topic: str) -> bool | None:
        self.asked[action, topic] += 1
        await self.is_open.wait()
        if topic.startswith("e"):
            raise RuntimeError("it has failed")
        return {"y": True, "n": False}.get(topic[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "permissions.toml"


async def test_answers_come_first_then_the_rules_and_each_topic_is_asked_about_once(path: Path) -> None:
    oracle = Oracle()
    async with running(path, rule_text("allow", "all", "ok/#"), deciders=[oracle]) as site:
        client = await site.connect(level=5)
        for _ in range(2):
            for topic, code in (
                ("yes/x", 0),
                ("no/x", NOT_AUTHORIZED),
                ("ok/x", 0),
                ("other", NOT_AUTHORIZED),
                ("error", NOT_AUTHORIZED),
            ):
                assert await site.published(client, topic, properties=NO_PROPERTIES) == code
        client.send(
            packets.encode_subscribe(
                1, [(name, 0) for name in ("y/#", "$share/g/n", "ok/+", "#")], properties=NO_PROPERTIES
            )
        )
        assert list((await client.packet())[1][-4:]) == [0, NOT_AUTHORIZED, 0, NOT_AUTHORIZED]
        assert set(oracle.asked.values()) == {1}
        assert ("subscribe", "n") in oracle.asked
        assert site.number(REFUSED, rule="oracle") == 5
        assert site.number("iotmq_mqtt_permission_questions_failed_total") == 1


async def test_what_a_device_sends_waits_in_its_order_for_the_answer(path: Path) -> None:
    oracle = Oracle()
    async with running(path, deciders=[oracle]) as site:
        client = await site.connect()
        oracle.is_open.clear()
        sent = [(f"{letter}/{number}", number + 1) for number, letter in enumerate("ynyy")]
        client.send(*(packets.encode_publish(topic, b"p", qos=1, packet_id=at) for topic, at in sent))
        client.send(packets.encode_subscribe(9, (("y/s", 0),)))
        await soon(lambda: len(oracle.asked) == 1, "the first question")
        other = await site.connect("other")
        await other.ping()
        assert site.topics == []
        assert site.number("iotmq_mqtt_paused_connections") == 1, "the rest is left in the kernel"
        oracle.is_open.set()
        assert [await client.puback() for _ in range(4)] == [1, 2, 3, 4]
        assert (await client.packet())[0] == packets.SUBACK << 4
        assert site.topics == ["y/0", "y/2", "y/3"]
        await client.ping()


class Counting(Hooks):
    """Lets everything pass."""

    topics: ClassVar[list[str]] = []

    def before_publish(self, messages: Sequence[Message]) -> None:
        self.topics += [message.topic for message in messages]


async def test_what_has_waited_is_not_for_hooks_again_and_stays_in_its_order(path: Path) -> None:
    oracle = Oracle()
    Counting.topics.clear()
    hooks = (f"{__name__}:Counting",)
    async with running(path, deciders=[oracle], hooks=hooks) as site:
        client = await site.connect()
        oracle.is_open.clear()
        sent = ["y/0", "y/1", "y/0", "y/2"]
        for at, topic in enumerate(sent, 1):
            client.send(packets.encode_publish(topic, b"p", qos=1, packet_id=at))
        await soon(lambda: len(oracle.asked) == 1, "the first question")
        oracle.is_open.set()
        assert [await client.puback() for _ in range(4)] == [1, 2, 3, 4]
        assert site.topics == Counting.topics == sent


async def test_what_a_device_sent_before_it_goes_is_not_lost(path: Path) -> None:
    oracle = Oracle()
    async with running(path, deciders=[oracle]) as site:
        oracle.is_open.clear()
        client = await site.connect()
        for topic in ("yes/1", "no/2", "yes/3"):
            client.send(packets.encode_publish(topic, b"", qos=0))
        client.send(packets.encode_publish("yes/4", b"", qos=1, packet_id=1), packets.DISCONNECT_PACKET)
        client.close()
        await soon(lambda: oracle.asked, "the first question")
        oracle.is_open.set()
        await soon(lambda: site.number("iotmq_mqtt_connections") == 0, "it has gone")
        assert site.topics == ["yes/1", "yes/3", "yes/4"]


@pytest.mark.parametrize(("qos", "topics"), [(0, ["yes"]), (1, []), (2, [])])
async def test_of_a_connection_that_ends_meanwhile_what_wants_a_receipt_is_left_to_come_again(
    path: Path, qos: int, topics: list[str]
) -> None:
    oracle = Oracle()
    async with running(path, deciders=[oracle]) as site:
        oracle.is_open.clear()
        client = await site.connect()
        client.send(packets.encode_publish("yes", b"", qos=qos, packet_id=1 if qos else 0))
        await soon(lambda: oracle.asked, "the question")
        guard = site.front.parts.ingress.guard
        assert guard is not None
        assert guard.waiting_bytes
        other = await site.connect()
        assert await client.rest() == b""
        oracle.is_open.set()
        await soon(lambda: not guard.waiting_bytes, "the answer")
        await other.ping()
        assert site.topics == topics


async def test_a_late_answer_is_a_no(path: Path) -> None:
    oracle = Oracle()
    async with running(path, deciders=[oracle], answer_timeout_s=0.01) as site:
        oracle.is_open.clear()
        client = await site.connect(level=5)
        assert await site.published(client, "yes", properties=NO_PROPERTIES) == NOT_AUTHORIZED
        oracle.is_open.set()
        assert await site.published(client, "yes", properties=NO_PROPERTIES) == NOT_AUTHORIZED
        site.front.parts.permissions._forget()
        assert await site.published(client, "yes", properties=NO_PROPERTIES) == 0


@pytest.mark.parametrize(("topic", "code"), [("yes/will", 0), ("no/will", 5)])
async def test_a_will_waits_for_the_answer(path: Path, topic: str, code: int) -> None:
    async with running(path, deciders=[Oracle()]) as site:
        client = await RawClient.dial(site.front.port)
        client.send(connect_packet("c", will=Will(topic, b"", 0, False)), packets.PINGREQ_PACKET)
        assert (await client.packet())[1][1] == code
        assert (await client.rest() == b"") if code else (await client.packet())[0] == packets.PINGRESP << 4


@pytest.mark.parametrize(("topic", "count"), [("yes/will", 1), ("other/will", 0)])
async def test_a_will_that_the_rules_have_allowed_is_for_the_rules_of_its_time(
    path: Path, topic: str, count: int
) -> None:
    async with running(path, rule_text("allow", "all", "#"), deciders=[Oracle()]) as site:
        client = await site.connect(will=Will(topic, b"", 0, False))
        await site.change(rule_text("deny", "all", "#"))
        client.abort()
        await soon(lambda: site.number("iotmq_mqtt_connections") == 0, "it has gone")
        other = await site.connect("other")
        await other.ping()
        assert site.topics == [topic] * count
        assert site.number(REFUSED, what="will") == 1 - count


async def test_a_message_past_what_may_wait_is_refused(path: Path) -> None:
    """MQTT_PERMISSION_WAITING_BYTES_MAX, from many devices."""
    oracle = Oracle()
    size = 90_000
    async with running(path, deciders=[oracle], answer_timeout_s=30.0) as site:
        oracle.is_open.clear()
        fitting = limits.MQTT_PERMISSION_WAITING_BYTES_MAX // (size + 512 + len("y/100"))
        clients = [await site.connect(f"c{number}", level=5) for number in range(fitting + 1)]
        guard = site.front.parts.ingress.guard
        for number, client in enumerate(clients[:-1]):
            packet = packets.encode_publish(
                f"y/{number:03}", bytes(size), qos=1, packet_id=7, properties=NO_PROPERTIES
            )
            client.send(packet)
            count = number + 1
            await soon(lambda count=count: len(oracle.asked) == count, "it waits", step_s=0.001)  # type: ignore[misc]
        assert guard.waiting_bytes == fitting * (size + 512 + 5)
        code = await site.published(clients[-1], "y/999", bytes(size), properties=NO_PROPERTIES)
        assert code == 0x97
        oracle.is_open.set()
        for client in clients[:-1]:
            assert (await client.packet())[0] == packets.PUBACK << 4
        assert guard.waiting_bytes == 0


async def test_so_many_questions_are_under_way_at_one_time() -> None:
    """MQTT_PERMISSION_QUESTIONS_MAX."""
    oracle = Oracle()
    oracle.is_open.clear()
    questions = Questions([oracle], asyncio.get_running_loop(), timeout_s=30)
    answers: list[Answer] = []
    for number in range(limits.MQTT_PERMISSION_QUESTIONS_MAX):
        questions.ask(Subject("c"), "publish", f"y/{number}", answers.append)
    assert answers == []
    questions.ask(Subject("c"), "publish", "y", answers.append)
    await soon(lambda: bool(answers), "an answer")
    assert [(answer.is_allowed, answer.name) for answer in answers] == [(False, "too many questions")]
    oracle.is_open.set()
    await soon(lambda: len(answers) == limits.MQTT_PERMISSION_QUESTIONS_MAX + 1, "all answers")
    await soon(lambda: not questions._running, "none is under way")
    questions.ask(Subject("c"), "publish", "y", answers.append)
    await soon(lambda: answers[-1].is_allowed and not questions._running, "one more")


def test_so_many_answers_are_remembered() -> None:
    """MQTT_PERMISSION_ANSWERS_MAX."""
    policy = AskedPolicy(Everything())
    for number in range(limits.MQTT_PERMISSION_ANSWERS_MAX + 1):
        policy.tell(PUBLISH, f"{number}", Answer(True, "o"))
    assert [policy.is_known(PUBLISH, f"{number}") for number in (0, 1)] == [False, True]
    assert not policy.is_known(SUBSCRIBE, "1")
