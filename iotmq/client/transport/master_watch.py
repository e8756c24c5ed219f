"""Watch at registries for other masters, and go to one as soon as it can be reached."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from iotmq.backoff import Backoff
from iotmq.client.transport.connections import Connections
from iotmq.client.transport.masters import AWAITED_S, Master, Masters, Returned, parse_masters
from iotmq.client.transport.routes import MASTER_ID, TopicRoute
from iotmq.clock import Clock
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ConnectionClosedError,
    IotmqError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.event_loop import happens_within
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)

# How long a registry may park a request.
_WATCH_MS: Final = 30_000
# A registry that cannot be watched, as those of RocketMQ, may be another one after so long. Some of them do
# not even answer.
_UNWATCHED_S: Final = 30.0
_TRY_S_MIN: Final = 0.02
_TRY_S_MAX: Final = 1.0
_REGISTRY_S_MIN: Final = 0.05
_REGISTRY_S_MAX: Final = 5.0
# Between answers that tell something, so that a registry that always does is not asked without a pause.
_PAUSE_S: Final = 0.005
# An answer that comes sooner, and says nothing new, was not parked.
_PARKED_S_MIN: Final = 0.1

OnMoved: TypeAlias = Callable[[str, str, str], None]
"""Told a broker name whose master in use is another: the name, its former and its present address."""
OnBack: TypeAlias = Callable[[str, bool], None]
"""Told a broker name whose master is back where it was, and whether it is one of a later epoch."""


class MasterCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that `MasterWatch` calls."""

    moved: OnMoved
    back: OnBack


class MasterWatch:
    """One watch at each registry, and what follows from it.

    A master is gone to when a connection to it stands, so one that a registry makes up does no harm.
    """

    def __init__(
        self,
        registries: tuple[str, ...],
        connections: Connections,
        *,
        clock: Clock,
        timeout_s: float,
        ask: Callable[[], Awaitable[dict[str, dict[int, str]]]],
        callbacks: MasterCallbacks,
    ) -> None:
        """`ask` returns all brokers as a registry knows them: broker name -> broker id -> HOST:PORT."""
        self._registries = registries
        self._connections = connections
        self._clock = clock
        self._timeout_s = timeout_s
        self._ask = ask
        self._callbacks = callbacks
        self._masters = Masters()
        self._watchers: list[asyncio.Task[None]] = []
        self._visits: dict[tuple[str, Master], asyncio.Task[None]] = {}
        """Tries to reach a later master."""
        self._searches: dict[str, asyncio.Task[None]] = {}
        """Broker name -> the task that looks for its master, where no registry tells it."""
        self._next_move = asyncio.Event()
        """Set, and replaced, when a master is another, or is back."""

    def start(self) -> None:
        """Begin to watch."""
        self._watchers = [
            supervise("watch of masters", partial(self._watch, registry)) for registry in self._registries
        ]

    async def stop(self) -> None:
        """End everything."""
        await end([*self._watchers, *self._visits.values(), *self._searches.values()])

    def review(self, route: TopicRoute, before: TopicRoute | None) -> TopicRoute:
        """Return a registry's route with the masters that are known to be later."""
        reviewed = self._masters.review(route, before, now_s=self._clock.monotonic_s())
        self._visit_later(reviewed.addresses)
        return reviewed

    def present(self, name: str, address: str) -> str:
        """Return the address of a master that a registry has at `address`: another one has a later epoch."""
        return self._masters.present(name, address)

    async def moved_within(self, timeout_s: float) -> bool:
        """Wait until the master of some broker is another, or is back; False when none is after so long."""
        return await happens_within(self._next_move, timeout_s)

    def lost(self, address: str) -> None:
        """Look for other masters after the end of a connection, where registries do not tell them."""
        if self._masters.are_told:
            return
        for name in self._masters.names_at(address):
            if name not in self._searches:
                self._searches[name] = asyncio.ensure_future(self._search(name, address))

    # --- registries ---------------------------------------------------------------------------------

    async def _watch(self, registry: str) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(min_s=_REGISTRY_S_MIN, max_s=_REGISTRY_S_MAX)
        version = ""
        while True:
            asked_s = loop.time()
            try:
                former, (version, masters) = version, await self._ask_registry(registry, version)
            except (RequestTimeoutError, ConnectionClosedError, BrokerError) as error:
                _log.debug("registry %s tells no masters: %s", registry, error)
                self._masters.withdraw(registry, now_s=self._clock.monotonic_s())
                self._visit_later(self._masters.names)
                await asyncio.sleep(self._rest_s(registry, error, backoff, has_answered=bool(version)))
                # It is to say at once what holds.
                version = ""
                continue
            self._welcome(self._masters.tell(registry, masters, now_s=self._clock.monotonic_s()))
            self._visit_later(self._masters.names)
            if version == former and loop.time() - asked_s < _PARKED_S_MIN:
                # It says the same again and again, and parks no request.
                await asyncio.sleep(backoff.next_s())
            else:
                backoff.reset()
                await asyncio.sleep(_PAUSE_S)

    def _rest_s(self, registry: str, error: IotmqError, backoff: Backoff, *, has_answered: bool) -> float:
        """Return how long not to ask a registry that did not say its masters."""
        if isinstance(error, RequestTimeoutError):
            if not has_answered:
                return _UNWATCHED_S
            # Its host is gone without a word.
            self._connections.drop(registry)
        elif isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return _UNWATCHED_S
        return max(backoff.next_s(), self._connections.rest_s(registry))

    async def _ask_registry(self, registry: str, version: str) -> tuple[str, dict[str, Master]]:
        connection = await self._connections.get(registry)
        ext = {"version": version, "timeoutMillis": str(_WATCH_MS)}
        parked_s = _WATCH_MS / 1000 if version else 0.0
        response = await connection.request(
            Command.request(RequestCode.WATCH_MASTERS, ext), timeout_s=self._timeout_s + parked_s
        )
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark or "the registry gave no reason")
        return parse_masters(response.body_bytes())

    def _welcome(self, returned: Returned) -> None:
        """Have masters that are back tried again at once."""
        for name in returned.renewed:
            self._connections.drop(self._masters.address(name) or "")
            self._callbacks.back(name, True)
        for name in returned.back:
            self._connections.hasten(self._masters.address(name) or "")
            self._callbacks.back(name, False)
        if returned.renewed or returned.back:
            self._wake()

    def _wake(self) -> None:
        self._next_move.set()
        self._next_move = asyncio.Event()

    # --- masters ------------------------------------------------------------------------------------

    def _visit_later(self, names: Iterable[str]) -> None:
        """Go to the masters that are later than those in use."""
        for visit in self._masters.later(names, now_s=self._clock.monotonic_s()):
            if visit not in self._visits:
                self._visits[visit] = asyncio.ensure_future(self._visit(*visit))

    async def _visit(self, name: str, master: Master) -> None:
        try:
            await self._go_to(name, master)
        finally:
            del self._visits[name, master]

    async def _go_to(self, name: str, master: Master) -> None:
        """Connect to a later master, and use it, while a registry names it."""
        backoff = Backoff(min_s=_TRY_S_MIN, max_s=_TRY_S_MAX)
        while self._masters.is_later(name, master, now_s=self._clock.monotonic_s()):
            try:
                await self._connections.get(master.address)
            except ClientClosedError:
                return
            except ConnectionClosedError as error:
                _log.debug("master of %s: %s", name, error)
                await asyncio.sleep(max(backoff.next_s(), self._connections.rest_s(master.address)))
                continue
            if self._masters.is_later(name, master, now_s=self._clock.monotonic_s()):
                self._move(name, master)

    async def _search(self, name: str, address: str) -> None:
        try:
            await self._look_elsewhere(name, address)
        finally:
            del self._searches[name]

    async def _look_elsewhere(self, name: str, address: str) -> None:
        """Ask registries for another master than one whose connection was lost, until that is back."""
        backoff = Backoff(min_s=_TRY_S_MIN, max_s=_TRY_S_MAX)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + AWAITED_S
        while loop.time() < deadline_s and self._is_sought(name, address):
            await asyncio.sleep(backoff.next_s())
            try:
                found = (await self._ask()).get(name, {}).get(MASTER_ID)
                if found is not None and found != address:
                    await self._connections.get(found)
                    if self._is_sought(name, address):
                        self._move(name, Master(found, 0))
            except ClientClosedError:
                return
            except (RouteNotFoundError, BrokerError, ConnectionClosedError) as error:
                _log.debug("master of %s: %s", name, error)

    def _is_sought(self, name: str, address: str) -> bool:
        return (
            not self._masters.are_told
            and self._masters.address(name) == address
            and self._connections.ready(address) is None
        )

    def _move(self, name: str, master: Master) -> None:
        former = self._masters.address(name)
        assert former is not None, "only masters of names in use are gone to"
        self._masters.adopt(name, master, now_s=self._clock.monotonic_s())
        _log.info("the master of %s is %s now (epoch %d)", name, master.address, master.epoch)
        self._callbacks.moved(name, former, master.address)
        self._wake()
