"""What plug-ins say about topics: asked once, remembered, and not believed about wildcards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from amqtt.contexts import Action
from amqtt_plugins import ScriptedTopics
from manual_clock import ManualClock

from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.plugins.host import PluginHost
from iotmq.mqtt_front.plugins.loader import load
from iotmq.mqtt_front.plugins.sessions import PluginSessions
from iotmq.mqtt_front.plugins.topic_questions import PluginTopics
from iotmq.mqtt_front.settings.plugins import AmqttPluginSettings

PUMP = Identity(user="pump")
ACTIONS = {action.value: action for action in Action}
ACL = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
TABOO = "amqtt.plugins.topic_checking.TopicTabooPlugin"


@pytest.fixture(autouse=True)
def told() -> Iterator[list[tuple[str, str, str]]]:
    ScriptedTopics.asked.clear()
    yield ScriptedTopics.asked
    ScriptedTopics.asked.clear()


@pytest.fixture
def topics_of(clock: ManualClock) -> Iterator[Any]:
    return lambda *hosts: PluginTopics(hosts, PluginSessions(keeps_passwords=False), clock, ACTIONS)


async def started(class_path: str, **settings: Any) -> PluginHost:
    host = PluginHost(
        load(AmqttPluginSettings(class_path=class_path, **settings)), {}, lambda *_: None, ManualClock()
    )
    await host.start(5.0)
    return host


async def test_answers_are_remembered_for_a_while(
    host_of: Any, topics_of: Any, clock: ManualClock, told: list[tuple[str, str, str]]
) -> None:
    topics = topics_of(await host_of("ScriptedTopics", cache_s=10.0))
    assert topics.remembered(PUMP, "c", "publish", "yes/a") is None
    assert await topics.may(PUMP, "c", "publish", "yes/a") is True
    assert topics.remembered(PUMP, "c", "publish", "yes/a") == (True,)
    assert await topics.may(PUMP, "c", "publish", "yes/a") is True
    assert await topics.may(PUMP, "c", "publish", "no/a") is False
    assert await topics.may(PUMP, "c", "publish", "none/a") is None
    assert len(told) == 3
    clock.advance(10)
    assert await topics.may(PUMP, "c", "publish", "yes/a") is True
    assert len(told) == 4
    topics.forget()
    assert topics.remembered(PUMP, "c", "publish", "yes/a") is None


async def test_an_answer_is_for_one_device_user_action_and_topic(
    host_of: Any, topics_of: Any, told: list[tuple[str, str, str]]
) -> None:
    topics = topics_of(await host_of("ScriptedTopics"))
    await topics.may(PUMP, "c", "publish", "yes/a")
    await topics.may(PUMP, "d", "publish", "yes/a")
    await topics.may(Identity(user="valve"), "c", "publish", "yes/a")
    await topics.may(PUMP, "c", "receive", "yes/a")
    await topics.may(None, "c", "publish", "yes/a")
    assert len(told) == 5


def connect_of(password: bytes) -> Connect:
    return Connect("c", clean_session=True, keep_alive_s=0, will=None, user_name="pump", password=password)


async def test_an_answer_is_for_one_password_where_plugins_look_at_it(
    host_of: Any, clock: ManualClock, told: list[tuple[str, str, str]]
) -> None:
    """Another token of the same user may allow less."""
    sessions = PluginSessions(keeps_passwords=True)
    topics = PluginTopics([await host_of("ScriptedTopics")], sessions, clock, ACTIONS)
    for password in (b"one", b"two", b"one"):
        session = sessions.opening(PUMP, "c", connect_of(password))
        assert await topics.may(PUMP, "c", "publish", "yes/a") is True
        sessions.opened(session)
        assert await topics.may(PUMP, "c", "publish", "yes/a") is True
        sessions.closed(session)
    assert len(told) == 2
    assert not sessions._former


async def test_an_answer_is_for_one_set_of_attributes(
    host_of: Any, topics_of: Any, told: list[tuple[str, str, str]]
) -> None:
    topics = topics_of(await host_of("ScriptedTopics"))
    for site in ("north", "south", "north"):
        await topics.may(Identity(user="pump", attributes={"site": site}), "c", "publish", "yes/a")
    assert len(told) == 2


async def test_who_is_refused_leaves_the_place_to_the_one_before(host_of: Any, clock: ManualClock) -> None:
    sessions = PluginSessions(keeps_passwords=True)
    first = sessions.opening(PUMP, "c", connect_of(b"one"))
    sessions.opened(first)
    second = sessions.opening(PUMP, "c", connect_of(b"two"))
    assert sessions.shown(PUMP, "c") is second
    assert not sessions.closed(second), "it was never open"
    assert sessions.shown(PUMP, "c") is first
    third = sessions.opening(PUMP, "c", connect_of(b"three"))
    sessions.opened(third)
    assert first.transitions.is_disconnected()
    assert sessions.closed(first)
    assert sessions.shown(PUMP, "c") is third
    assert sessions.closed(third)
    assert len(sessions) == len(sessions._former) == 0


async def test_no_answer_is_a_no_that_is_not_remembered(host_of: Any, topics_of: Any) -> None:
    topics = topics_of(await host_of("ScriptedTopics", timeout_s=0.05))
    for topic in ("fail/a", "impossible/a", "sleep/a"):
        assert await topics.may(PUMP, "c", "publish", topic) is False
        assert topics.remembered(PUMP, "c", "publish", topic) is None


async def test_the_same_question_is_asked_once_at_a_time(
    host_of: Any, topics_of: Any, told: list[tuple[str, str, str]]
) -> None:
    topics = topics_of(await host_of("ScriptedTopics"))
    answers = await asyncio.gather(*(topics.may(PUMP, "c", "publish", "yes/a") for _ in range(20)))
    assert answers == [True] * 20
    assert len(told) == 1


async def test_a_filter_with_wildcards_has_to_allow_topics_that_nobody_uses(
    host_of: Any, topics_of: Any, told: list[tuple[str, str, str]]
) -> None:
    topics = topics_of(await host_of("ScriptedTopics"))
    assert await topics.may(PUMP, "c", "subscribe", "yes/+") is True
    assert next(topic for _, topic, _ in told) == "yes/+"
    assert told[1][1].startswith("yes/iotmq-probe-")
    # A word of the plug-in for the text of a filter, but for none of its topics.
    assert await topics.may(PUMP, "c", "subscribe", "+/a") is False


async def test_a_plugin_can_be_believed_or_not_asked_about_wildcards(host_of: Any, topics_of: Any) -> None:
    believed = topics_of(await host_of("ScriptedTopics", name="believed", wildcards="as-asked"))
    refused = topics_of(await host_of("ScriptedTopics", name="refused", wildcards="refuse"))
    assert await believed.may(PUMP, "c", "subscribe", "yes/#") is True
    assert await refused.may(PUMP, "c", "subscribe", "yes/#") is False
    assert await refused.may(PUMP, "c", "subscribe", "yes/a") is True


async def test_a_shared_subscription_is_one_to_its_filter(
    host_of: Any, topics_of: Any, told: list[tuple[str, str, str]]
) -> None:
    topics = topics_of(await host_of("ScriptedTopics"))
    assert await topics.may(PUMP, "c", "subscribe", "$share/group/yes/a") is True
    assert told == [("pump", "yes/a", "subscribe"), ("pump", "yes/a", "receive")]


async def test_what_may_not_be_received_may_not_be_subscribed(host_of: Any, topics_of: Any) -> None:
    """Amqtt takes the filter, and keeps its messages back."""
    topics = topics_of(await host_of("ScriptedTopics"))
    for asked, may in (
        ("yes/unseen", False),
        ("none/unseen", False),
        ("yes/a", True),
        ("none/a", None),
        ("yes/+/unseen", False),
        ("yes/+/a", True),
    ):
        assert await topics.may(PUMP, "c", "subscribe", asked) is may, asked
    assert await topics.may(PUMP, "c", "publish", "yes/unseen") is True
    believed = topics_of(await host_of("ScriptedTopics", name="believed", wildcards="as-asked"))
    assert await believed.may(PUMP, "c", "subscribe", "yes/+/unseen") is False


async def test_filters_of_an_acl_are_compared_and_not_matched(topics_of: Any) -> None:
    """Amqtt's own answer to both is yes."""
    options = {"acl": {"pump": ["a/+", "b/#"], "anonymous": ["c"]}, "publish_acl": {"pump": ["a/b"]}}
    host = await started(ACL, options=options)
    topics = topics_of(host)
    for asked, may in (
        ("a/#", False),
        ("#", False),
        ("+/b", False),
        ("a/+", True),
        ("b/#", True),
        ("b/+/c", True),
        ("a/b", True),
        ("c", False),
    ):
        assert await topics.may(PUMP, "c", "subscribe", asked) is may, asked
    assert await topics.may(None, "c", "subscribe", "c") is True
    assert await topics.may(PUMP, "c", "publish", "a/b") is True
    assert await topics.may(PUMP, "c", "publish", "a/c") is False
    await host.stop()


async def test_filters_that_match_a_taboo_are_denied(topics_of: Any) -> None:
    host = await started(TABOO)
    topics = topics_of(host)
    for asked, may in (("#", False), ("data/+", False), ("other/#", True), ("prohibited", False)):
        assert await topics.may(PUMP, "c", "subscribe", asked) is may, asked
    assert await topics.may(Identity(user="admin"), "c", "subscribe", "#") is True
    await host.stop()


async def test_a_name_with_control_characters_is_denied_unasked(
    host_of: Any, topics_of: Any, told: list[tuple[str, str, str]]
) -> None:
    topics = topics_of(await host_of("ScriptedTopics"))
    assert await topics.may(Identity(user="a\nb"), "c", "publish", "yes/a") is False
    assert told == []
