"""Ask registries, one at a time, and keep the routes of the topics in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from iotmq.client.transport.connections import Connections, shared_result
from iotmq.client.transport.routes import (
    TopicRoute,
    parse_cluster,
    parse_route,
    parse_topics,
    route_from_template,
)
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ConnectionClosedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.limits import ROUTES_KNOWN_MAX
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 0.05
_EVERY_REGISTRY_KNOWS: Final = frozenset(
    {
        RequestCode.GET_ROUTE_INFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY,
    }
)

T = TypeVar("T")


class Registries:
    """Requests to one registry; the next one in the list takes over when it does not answer."""

    def __init__(self, addresses: tuple[str, ...], connections: Connections, *, timeout_s: float) -> None:
        self.addresses = addresses
        """HOST:PORT of each registry, for requests to all of them."""
        self._connections = connections
        self._timeout_s = timeout_s
        self._current = 0

    async def request(self, code: int, ext: dict[str, str]) -> Command:
        """Ask registries until one answers, whatever the response code.

        RouteNotFoundError naming every registry and its failure when none answers.
        """
        return await self._first(code, ext, lambda response: response)

    async def route(self, topic: str) -> TopicRoute | None:
        """Ask for the route of `topic`; None when the registry knows no such topic."""
        return await self._first(
            RequestCode.GET_ROUTE_INFO_BY_TOPIC,
            {"topic": topic, "acceptStandardJsonOnly": "true"},
            lambda response: _route_of(topic, response),
        )

    async def cluster(self) -> dict[str, dict[int, str]]:
        """Ask for all brokers: broker name -> broker id -> HOST:PORT."""

        def read(response: Command) -> dict[str, dict[int, str]]:
            return parse_cluster(_body(response, "its list of brokers"))

        return await self._first(RequestCode.GET_BROKER_CLUSTER_INFO, {}, read)

    async def topics(self) -> list[str]:
        """Ask for all topic names."""

        def read(response: Command) -> list[str]:
            return parse_topics(_body(response, "its list of topics"))

        return await self._first(RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY, {}, read)

    async def _first(self, code: int, ext: dict[str, str], read: Callable[[Command], T]) -> T:
        """Return `read` of the first answer for which it does not raise BrokerError.

        When all have failed, BrokerError of the last that answered, or RouteNotFoundError.
        """
        failures: list[str] = []
        refusal: BrokerError | None = None
        for step in range(len(self.addresses)):
            index = (self._current + step) % len(self.addresses)
            address = self.addresses[index]
            try:
                connection = await self._connections.get(address)
                response = await connection.request(Command.request(code, ext), timeout_s=self._timeout_s)
                value = read(response)
            except (ConnectionClosedError, RequestTimeoutError) as error:
                failures.append(str(error) if address in str(error) else f"{address}: {error}")
                continue
            except BrokerError as error:
                refusal = error
                if code in _EVERY_REGISTRY_KNOWS and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    remark = (
                        f"{address} is no registry, perhaps a broker: registries have port 9876, as a rule"
                    )
                    refusal = BrokerError(error.code, remark)
                continue
            self._current = index
            return value
        if refusal is not None:
            raise refusal
        raise RouteNotFoundError(
            f"no registry answered: {'; '.join(failures)}. Is one running there (iotmq registry, or "
            "iotmq serve)?"
        )

    @property
    def addresses_text(self) -> str:
        """Return all addresses as one text, for errors."""
        return ", ".join(self.addresses)


def _route_of(topic: str, response: Command) -> TopicRoute | None:
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    return parse_route(topic, _body(response, f"the route of {topic}"))


def _body(response: Command, what: str) -> bytes:
    if response.code != ResponseCode.SUCCESS:
        raise BrokerError(response.code, response.remark or f"the registry refused {what}")
    return response.body_bytes()


class Routes:
    """The routes of the topics in use, looked up once and refreshed in the background.

    A route that was known stays in use while registries do not answer or say the topic is unknown (a
    broker that restarts is unknown for a moment); what its brokers answer then decides.
    """

    def __init__(
        self,
        registries: Registries,
        *,
        refresh_s: float,
        missing_refresh_s: float,
        on_changed: Callable[[str], None],
        review: Callable[[TopicRoute, TopicRoute | None], TopicRoute] = lambda route, _: route,
        known_max: int = ROUTES_KNOWN_MAX,
    ) -> None:
        """`review` returns a registry's route corrected; it is given the one known before, too."""
        self._registries = registries
        self._review = review
        self._known_max = known_max
        self._refresh_s = refresh_s
        self._missing_refresh_s = min(missing_refresh_s, refresh_s)
        self._on_changed = on_changed
        self._known: dict[str, TopicRoute] = {}
        """At most `known_max`, beside those that consumers need."""
        self._wanted: dict[str, int] = {}
        """Topic -> how many consumers need it; looked for also while it has no route."""
        self._running: dict[str, asyncio.Task[TopicRoute | None]] = {}
        self._refresher: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin refreshing in the background."""
        self._refresher = supervise("refresh of routes", self._refresh_forever)

    async def stop(self) -> None:
        """End refreshing."""
        tasks: list[asyncio.Task[Any]] = [*self._running.values()]
        if self._refresher is not None:
            tasks.append(self._refresher)
        await end(tasks)

    def known(self, topic: str) -> TopicRoute | None:
        """Return the route as last seen, without asking."""
        return self._known.get(topic)

    def all_known(self) -> list[TopicRoute]:
        """Return the routes of all topics in use."""
        return list(self._known.values())

    def want(self, topic: str) -> None:
        """Keep looking for the route of `topic`, which a consumer needs."""
        self._wanted[topic] = self._wanted.get(topic, 0) + 1

    def unwant(self, topic: str) -> None:
        """Undo one `want`."""
        left = self._wanted.get(topic, 0) - 1
        if left > 0:
            self._wanted[topic] = left
        else:
            self._wanted.pop(topic, None)

    async def find(self, topic: str) -> TopicRoute | None:
        """Return the known route, else ask the registry; None when there is no such topic."""
        route = self._known.get(topic)
        return route if route is not None and not route.is_provisional else await self.refresh(topic)

    async def find_for_reading(self, topic: str, *, timeout_s: float) -> TopicRoute:
        """The registry's route of now. One without queues is asked for again until `timeout_s`, because a
        topic made a moment ago is still on its way from its broker to the registry.

        RouteNotFoundError when the topic has no queue to read then.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            route = await self.refresh(topic)
            if route is not None and route.readable:
                return route
            if loop.time() >= deadline_s:
                raise RouteNotFoundError(
                    f"no route for topic {topic}: does it exist, and is its broker registered with "
                    f"{self._registries.addresses_text}?"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def find_for_sending(self, topic: str, *, template_topic: str, queues_max: int) -> TopicRoute:
        """Like `find`; for an unknown topic the template's route, so that a first send can make it.

        RouteNotFoundError when no broker can take a message for the topic.
        """
        route = self._known.get(topic)
        if route is None or not route.writable:
            route = await self.refresh(topic)
        if route is None:
            template = await self.refresh(template_topic)
            if template is not None and template.writable:
                route = route_from_template(topic, template, queues_max)
                # A refresh that ran meanwhile may have found the real one.
                found = self._known.get(topic)
                if found is None:
                    self._keep(topic, route)
                route = found or route
        if route is None or not route.writable:
            raise RouteNotFoundError(self._no_route_text(topic, route))
        return route

    async def refresh(self, topic: str) -> TopicRoute | None:
        """Ask the registry now; the known route again when it has none. Calls at one time share a request."""
        task = self._running.get(topic)
        if task is None:
            task = asyncio.ensure_future(self._ask(topic))
            self._running[topic] = task
            task.add_done_callback(lambda done: self._finished(topic, done))
        return await shared_result(task)

    def move_master(self, broker_name: str, address: str) -> list[str]:
        """Use another address for the master of a broker; returns the topics whose routes change."""
        moved = []
        for topic, route in list(self._known.items()):
            if route.master(broker_name) not in (None, address):
                self._known[topic] = route.with_master(broker_name, address)
                moved.append(topic)
        return moved

    def _finished(self, topic: str, task: asyncio.Task[TopicRoute | None]) -> None:
        self._running.pop(topic, None)
        if not task.cancelled():
            task.exception()

    async def _ask(self, topic: str) -> TopicRoute | None:
        route = await self._registries.route(topic)
        before = self._known.get(topic)
        # An empty route means its brokers are gone for the moment, which must not lose their names.
        if route is None or (before is not None and not route.addresses):
            return before
        route = self._review(route, before)
        if route != before:
            self._keep(topic, route)
            self._on_changed(topic)
        return route

    def _keep(self, topic: str, route: TopicRoute) -> None:
        self._known[topic] = route
        if len(self._known) > self._known_max:
            # Who still uses it asks for it again.
            oldest = next(
                (known for known in self._known if known not in self._wanted and known != topic), None
            )
            if oldest is not None:
                del self._known[oldest]

    async def _refresh_forever(self) -> None:
        loop = asyncio.get_running_loop()
        next_full_s = loop.time() + self._refresh_s
        failing = False
        while True:
            await asyncio.sleep(min(self._missing_refresh_s, max(0.0, next_full_s - loop.time())))
            topics = {topic for topic in self._wanted if topic not in self._known}
            topics.update(topic for topic, route in self._known.items() if route.is_provisional)
            if loop.time() >= next_full_s:
                topics.update(self._known)
                next_full_s = loop.time() + self._refresh_s
            for topic in topics:
                try:
                    await self.refresh(topic)
                    failing = False
                except (RouteNotFoundError, BrokerError, ClientClosedError) as error:
                    if not failing:
                        _log.warning("routes are not refreshed: %s", error)
                    failing = True
                    break

    def _no_route_text(self, topic: str, route: TopicRoute | None) -> str:
        registries = self._registries.addresses_text
        if route is None:
            return (
                f"no route for topic {topic}: is a broker registered with {registries}? Create the topic "
                f"(Admin.create_topic) or enable broker.auto_create_topics"
            )
        if not any(0 in by_id for by_id in route.addresses.values()):
            return (
                f"no route for topic {topic}: none of its brokers has a master registered with {registries}"
            )
        return f"topic {topic} takes no messages: its queues are read-only (perm without 2) on every broker"
