"""The front ends that have sessions at a broker: how many clients each has, and which are drained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from iotmq.broker.session_store.channel import SessionChannel
from iotmq.ports.inspections import InspectionDone
from iotmq.ports.sessions import DrainOrder


class FrontEndView(NamedTuple):
    """One front end as the broker knows it."""

    name: str
    clients: int
    is_draining: bool


class FrontEnds:
    """The front ends that are connected, by name."""

    def __init__(self) -> None:
        self._channels: dict[str, SessionChannel] = {}

    def add(self, channel: SessionChannel) -> None:
        self._channels[channel.name] = channel

    def remove(self, channel: SessionChannel) -> None:
        if self._channels.get(channel.name) is channel:
            del self._channels[channel.name]

    def views(self, owners: Iterable[str]) -> list[FrontEndView]:
        """All of them by name; `owners` has, for each client, the name of the one it is connected to."""
        clients = Counter(owners)
        return [
            FrontEndView(name, clients[name], channel.is_draining)
            for name, channel in sorted(self._channels.items())
        ]

    def drain(self, name: str, order: DrainOrder) -> bool:
        """Have a front end drained, or not any more; False when none of that name is connected."""
        channel = self._channels.get(name)
        if channel is None:
            return False
        channel.is_draining = order.is_draining
        channel.receiver.drain(order)
        return True

    def inspect(self, name: str, question: str, body: bytes, done: InspectionDone) -> bool:
        """Pass an operator's question on to a front end; False when none of that name is connected."""
        channel = self._channels.get(name)
        if channel is None:
            return False
        channel.receiver.inspect(question, body, done)
        return True
