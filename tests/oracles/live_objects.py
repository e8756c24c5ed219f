"""Counts what should be gone with a connection: a test fails when rough ends leave some of it behind."""

from __future__ import annotations

import gc
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from eventually import soon

from iotmq.broker.delivery.delivery import DeliveryChannel
from iotmq.broker.handlers.mqtt import gateway
from iotmq.broker.handlers.mqtt.front_end_link import FrontEndLink
from iotmq.broker.light_queues.light_queues import LightChannel
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.sessions import attachments, ownership
from iotmq.broker.shares import members, share_reader, shares
from iotmq.front_port import session_parts
from iotmq.mqtt_front.connection.deadlines import RECHECK_S
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.deliver import retained_egress
from iotmq.mqtt_front.listen.sockets import SocketLink
from iotmq.mqtt_front.listen.websocket import WebSocketLink, WebSocketProtocol
from iotmq.mqtt_front.publish.batch import Batch
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.sessions.durable import DurableSession
from iotmq.mqtt_front.sessions.kept_session import QueueSubscription
from iotmq.mqtt_front.sessions.shared import SharedSession, SharedSubscription, Source
from iotmq.remoting.server import ServerConnection

KINDS = (
    # Of a front end.
    Batch,
    Device,
    DurableSession,
    QueueSubscription,
    SharedSession,
    SharedSubscription,
    SocketLink,
    Source,
    WebSocketLink,
    WebSocketProtocol,
    retained_egress._Job,
    session_parts.SharedSession,
    # Of a broker.
    DeliveryChannel,
    LightChannel,
    ServerConnection,
    SessionChannel,
    gateway._FrontEnd,
    FrontEndLink,
    attachments.Owner,
    ownership._Request,
    members.Member,
    members.Message,
    share_reader.ShareQueue,
    shares._Live,
    shares._Member,
)

# Batches are kept for the next use, a few of them.
SPARE = Counter({"iotmq.mqtt_front.publish.batch.Batch": 2})


def live_objects() -> Counter[str]:
    """How many there are of each kind."""
    # The kinds of all are fewer than the objects by a thousand times.
    kinds = Counter(map(type, gc.get_objects()))
    return Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in kinds.items()
            if issubclass(kind, KINDS)
        }
    )


@asynccontextmanager
async def leaving_nothing_behind(what: str, *, takes_cycles: bool = False) -> AsyncIterator[None]:
    """No more is alive afterwards than before, as soon as what is under way has ended.

    Without a collection of cycles, unless it `takes_cycles`: a server does not look at what is old again.
    """
    gc.collect()
    before = live_objects()
    gc.disable()
    try:
        yield
        await _all_gone(what, before, takes_cycles=takes_cycles)
    finally:
        gc.enable()


async def growing(round_of: Callable[[int], Awaitable[None]], rounds: int) -> set[str]:
    """Return of which classes of ours there are more after each of some rounds, or more in their containers.

    What comes and goes by itself, or with the first round, does not grow in each.
    """
    found: list[Counter[str]] = []
    for number in range(rounds + 1):
        await round_of(number)
        gc.collect()
        found.append(_kept())
    more = [
        {name for name, count in later.items() if count > earlier[name]}
        for earlier, later in itertools.pairwise(found)
    ]
    return set.intersection(*more)


def _kept() -> Counter[str]:
    """How many objects of each class of ours there are, and how much is in the containers that those have."""
    found: Counter[str] = Counter()
    names: dict[type, str] = {}
    for one in gc.get_objects():
        kind = type(one)
        if kind not in names:
            names[kind] = f"{kind.__module__}.{kind.__qualname__}"
        if (name := names[kind]).startswith("iotmq."):
            found[name] += 1
            fields = getattr(one, "__dict__", {})
            held = [*fields.values(), *(each for each in gc.get_referents(one) if each is not fields)]
            sizes = [len(each) for each in held if isinstance(each, dict | list | set | deque)]
            found[f"in {name}"] += sum(sizes)
    return found


async def _all_gone(what: str, before: Counter[str], *, takes_cycles: bool) -> None:
    grown: Counter[str] = Counter()

    def is_gone() -> bool:
        if takes_cycles:
            gc.collect()
        grown.clear()
        grown.update(live_objects() - before - SPARE)
        return not grown

    try:
        await soon(is_gone, what, step_s=0.05)
    except AssertionError:
        raise AssertionError(f"alive after {what}: {dict(grown)}") from None


async def forget_silent(front: MqttFront) -> None:
    """Let the minutes be over for which a device that has gone may wait to be looked at."""
    parts = front.parts
    await soon(lambda: not list(parts.sessions.devices()), "all devices have gone")
    while front._deadlines._buckets:
        assert not front._deadlines.late(front._deadlines._next_s + RECHECK_S)
