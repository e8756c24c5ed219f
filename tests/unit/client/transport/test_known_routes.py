"""The routes a client remembers: how many, and which of them go."""

from __future__ import annotations

from typing import Any

from iotmq.client.transport.registries import Routes
from iotmq.client.transport.routes import MessageQueue, TopicRoute


class Registries:
    """Has every topic but those that are `new`."""

    addresses_text = "here"
    new: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def route(self, topic: str) -> TopicRoute | None:
        self.asked.append(topic)
        if topic in self.new:
            return None
        queues = (MessageQueue(topic, "b", 0),)
        return TopicRoute(topic=topic, readable=queues, writable=queues, addresses={"b": {0: "h:1"}})


def routes_of(registries: Any) -> Routes:
    return Routes(registries, refresh_s=30, missing_refresh_s=1, on_changed=lambda topic: None, known_max=3)


def known(routes: Routes) -> list[str]:
    return [route.topic for route in routes.all_known()]


async def test_of_too_many_the_one_known_longest_goes_and_is_asked_for_again() -> None:
    registries = Registries()
    routes = routes_of(registries)
    for topic in ("a", "b", "c"):
        await routes.find(topic)
    assert known(routes) == ["a", "b", "c"]
    await routes.find("d")
    assert known(routes) == ["b", "c", "d"]
    await routes.find("a")
    assert known(routes) == ["c", "d", "a"]
    assert registries.asked == ["a", "b", "c", "d", "a"]


async def test_what_consumers_need_stays() -> None:
    routes = routes_of(Registries())
    for topic in ("a", "b", "c", "d"):
        routes.want(topic)
        await routes.find(topic)
    assert known(routes) == ["a", "b", "c", "d"]
    routes.unwant("c")
    await routes.find("e")
    assert known(routes) == ["a", "b", "d", "e"]


async def test_topics_that_are_made_by_the_first_send_count_too() -> None:
    registries = Registries()
    registries.new = frozenset("xyz")
    routes = routes_of(registries)
    for topic in ("x", "y", "z"):
        route = await routes.find_for_sending(topic, template_topic="TBW102", queues_max=4)
        assert route.is_provisional
    # The template's, which was asked for first, has gone.
    assert known(routes) == ["x", "y", "z"]
