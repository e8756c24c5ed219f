"""Know the master of each broker name in use, from what several registries say. Pure: time is an argument.

The highest epoch wins, so a registry that is behind, or was restarted, changes nothing. What registries say
without epochs (0) has no order: then a master is another when no registry names the former one any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from iotmq.addresses import parse_address
from iotmq.client.transport.routes import TopicRoute
from iotmq.errors import BrokerError
from iotmq.limits import BROKERS_MAX, EPOCH_MAX, MASTERS_VERSION_CHARACTERS_MAX
from iotmq.remoting.codes import ResponseCode

# So long a broker name without a master keeps its queues: another one is most likely on its way.
AWAITED_S: Final = 30.0
# When no registry has named a master of that epoch for so long, lower ones count again: epochs began anew.
_FORGET_S: Final = 120.0


class Master(NamedTuple):
    """Hold the address of a broker name's master, and the epoch it has registered."""

    address: str
    epoch: int


class Returned(NamedTuple):
    """Broker names whose master is another one, or is back, at the address in use."""

    renewed: list[str]
    """The epoch is a later one: what is in flight was for another process."""
    back: list[str]
    """A registry that did not name the master does again."""


class _MasterData(msgspec.Struct):
    address: str
    epoch: Annotated[int, Meta(ge=0, le=EPOCH_MAX)]


class _MastersData(msgspec.Struct):
    version: Annotated[str, Meta(max_length=MASTERS_VERSION_CHARACTERS_MAX)]
    masters: Annotated[dict[str, _MasterData], Meta(max_length=BROKERS_MAX)]


_DECODER: Final = msgspec.json.Decoder(_MastersData)


def parse_masters(body: bytes) -> tuple[str, dict[str, Master]]:
    """Decode the version and the masters in the answer to request 30080; BrokerError for an invalid body."""
    try:
        data = _DECODER.decode(body)
        for master in data.masters.values():
            parse_address(master.address)
    except (msgspec.DecodeError, ValueError) as error:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, f"the registry's list of masters cannot be read: {error}"
        ) from error
    return data.version, {name: Master(entry.address, entry.epoch) for name, entry in data.masters.items()}


class _Followed:
    """The master that is in use for one broker name."""

    __slots__ = ("master", "said_s")

    def __init__(self, master: Master, said_s: float) -> None:
        self.master = master
        self.said_s = said_s
        """When a registry last named this epoch, or a later one, and does not any more."""


class Masters:
    """The masters in use, and those that registries name."""

    def __init__(self, *, names_max: int = BROKERS_MAX) -> None:
        self._names_max = names_max
        self._said: dict[str, dict[str, Master]] = {}
        """Registry -> broker name -> master, while it answers."""
        self._followed: dict[str, _Followed] = {}
        """The names of routes, at most `names_max`; the one that was not in any for longest comes first."""

    @property
    def are_told(self) -> bool:
        """Return whether a registry tells changes by itself now."""
        return bool(self._said)

    def address(self, name: str) -> str | None:
        """Return the address in use for a broker name; None for a name of no route."""
        followed = self._followed.get(name)
        return None if followed is None else followed.master.address

    @property
    def names(self) -> list[str]:
        """List the broker names of routes."""
        return list(self._followed)

    def present(self, name: str, address: str) -> str:
        """Return the address of a master that a registry has at `address`: another one has a later epoch."""
        known = [said[name] for said in self._said.values() if name in said]
        if name in self._followed:
            known.append(self._followed[name].master)
        latest = max(known, key=lambda master: master.epoch, default=None)
        return latest.address if latest is not None and latest.epoch else address

    def names_at(self, address: str) -> list[str]:
        """List the broker names whose master in use is at an address."""
        return [name for name, followed in self._followed.items() if followed.master.address == address]

    # What registries say

    def tell(self, registry: str, masters: dict[str, Master], *, now_s: float) -> Returned:
        """Take what a registry says; returns what that means for addresses in use."""
        self._note_said(registry, now_s)
        former = self._said.get(registry)
        self._said[registry] = masters
        returned = Returned([], [])
        for name, followed in self._followed.items():
            said = masters.get(name)
            if said is None or said.address != followed.master.address:
                continue
            in_use, followed.master = followed.master, max(followed.master, said)
            if 0 < in_use.epoch < said.epoch:
                returned.renewed.append(name)
            elif former is not None and name not in former:
                returned.back.append(name)
        return returned

    def withdraw(self, registry: str, *, now_s: float) -> None:
        """Forget what a registry said, because it does not answer."""
        self._note_said(registry, now_s)
        self._said.pop(registry, None)

    def later(self, names: Iterable[str], *, now_s: float) -> list[tuple[str, Master]]:
        """List the masters to go to, with their broker names, instead of those in use."""
        found = {(name, said[name]) for name in names for said in self._said.values() if name in said}
        return [(name, master) for name, master in found if self.is_later(name, master, now_s=now_s)]

    def is_later(self, name: str, master: Master, *, now_s: float) -> bool:
        """Return whether to use a master, which a registry names now, instead of the one in use."""
        followed = self._followed.get(name)
        if followed is None or master.address == followed.master.address:
            return False
        if all(said.get(name) != master for said in self._said.values()):
            return False
        in_use = followed.master
        if master.epoch != in_use.epoch:
            return master.epoch > in_use.epoch or self._is_forgotten(name, followed, now_s)
        return all(said.get(name) != in_use for said in self._said.values())

    def adopt(self, name: str, master: Master, *, now_s: float) -> None:
        """Use a master from now on."""
        self._followed[name] = _Followed(max(master, self._named(name, master.address)), now_s)

    # Routes

    def review(self, route: TopicRoute, before: TopicRoute | None, *, now_s: float) -> TopicRoute:
        """Return a route that a registry has given, as far as it does not know less than others.

        Queues of `before` stay where only the master is missing for a while.
        """
        for name in list(route.addresses):
            address = route.master(name)
            if address is not None:
                use = self._reviewed(name, address, now_s)
                if use != address:
                    route = route.with_master(name, use)
        if before is not None:
            for name in before.addresses:
                is_lost = before.master(name) is not None and route.master(name) is None
                if is_lost and self._is_awaited(name, now_s):
                    route = route.with_queues_of(before, name)
        return route

    def _reviewed(self, name: str, address: str, now_s: float) -> str:
        """Return the address to use for a name whose master a route has at `address`."""
        followed = self._followed.pop(name, None)
        if followed is None and len(self._followed) >= self._names_max:
            del self._followed[next(iter(self._followed))]
        named = self._named(name, address)
        if followed is None or self._counts(name, named, followed, now_s):
            followed = _Followed(named, now_s)
        self._followed[name] = followed
        return followed.master.address

    def _named(self, name: str, address: str) -> Master:
        """Return the master at an address, with the highest epoch that a registry gives it."""
        epochs = [
            said[name].epoch for said in self._said.values() if name in said and said[name].address == address
        ]
        return Master(address, max(epochs, default=0))

    def _counts(self, name: str, named: Master, followed: _Followed, now_s: float) -> bool:
        """Return whether a master that a route has replaces the one in use."""
        in_use = followed.master
        if named.address == in_use.address or not in_use.epoch:
            return named.epoch >= in_use.epoch
        return named.epoch > in_use.epoch or self._is_forgotten(name, followed, now_s)

    def _is_awaited(self, name: str, now_s: float) -> bool:
        followed = self._followed.get(name)
        if followed is None or not followed.master.epoch:
            return False
        if self._said and all(name in said for said in self._said.values()):
            # There is a master, which does not have these queues.
            return False
        return self._is_said(name, followed) or now_s - followed.said_s < AWAITED_S

    def _is_said(self, name: str, followed: _Followed) -> bool:
        return any(name in said and said[name].epoch >= followed.master.epoch for said in self._said.values())

    def _is_forgotten(self, name: str, followed: _Followed, now_s: float) -> bool:
        return not self._is_said(name, followed) and now_s - followed.said_s >= _FORGET_S

    def _note_said(self, registry: str, now_s: float) -> None:
        for name, master in self._said.get(registry, {}).items():
            followed = self._followed.get(name)
            if followed is not None and master.epoch >= followed.master.epoch:
                followed.said_s = now_s
