"""Add and remove queues of a topic in use, at all its brokers (requests 30040 to 30044)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Final, Literal

import msgspec

from iotmq.client.admin.asking import Asking
from iotmq.client.transport.calls import ask
from iotmq.client.transport.queue_tables import decode_answer
from iotmq.client.transport.routes import TopicRoute
from iotmq.errors import ClientError, RouteNotFoundError
from iotmq.remoting.codes import RequestCode

# How long a change may take to show at the registry, and how often it is looked for.
_SHOWN_S: Final = 3.0
_LOOK_AGAIN_S: Final = 0.02


class QueueState(msgspec.Struct, rename="camel"):
    """The state of one queue. `behind`: the messages that each group has still to consume."""

    queue_id: int
    state: Literal["open", "frozen", "closed"]
    min_offset: int
    max_offset: int
    behind: dict[str, int]
    is_drained: bool


class TopicState(msgspec.Struct, rename="camel"):
    """The queues of a topic at one broker."""

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    queues: list[QueueState]


class DrainProgress(msgspec.Struct):
    """The progress of a drain: messages left to consume in the queues to be removed."""

    queues_left: int
    messages_left: int

    @property
    def is_over(self) -> bool:
        return self.queues_left == 0


class QueueScaling(Asking):
    """Change a topic's queues; methods return the new state by broker name. Counts are per broker.

    BrokerError when a broker refuses, with what to do instead; RouteNotFoundError without the topic.
    """

    async def states(self, topic: str, broker_names: Collection[str] = ()) -> dict[str, TopicState]:
        """Return the state of each queue: if it takes messages, and which groups are behind."""
        return await self._ask(RequestCode.GET_QUEUE_STATES, topic, broker_names, {})

    async def add(
        self, topic: str, queue_count: int, broker_names: Collection[str] = ()
    ) -> dict[str, TopicState]:
        """Raise the number of queues on each broker; the new ones take messages at once."""
        return await self._change(
            RequestCode.ADD_QUEUES, topic, broker_names, {"queueNums": str(queue_count)}
        )

    async def freeze(
        self, topic: str, queue_ids: Collection[int], broker_names: Collection[str] = ()
    ) -> dict[str, TopicState]:
        """Let queues take no more messages; they are still read."""
        return await self._change(RequestCode.FREEZE_QUEUES, topic, broker_names, _ids(queue_ids))

    async def thaw(
        self, topic: str, queue_ids: Collection[int], broker_names: Collection[str] = ()
    ) -> dict[str, TopicState]:
        """Let frozen queues take messages again."""
        return await self._change(RequestCode.THAW_QUEUES, topic, broker_names, _ids(queue_ids))

    async def remove(
        self, topic: str, queue_count: int, broker_names: Collection[str] = (), *, is_forced: bool = False
    ) -> dict[str, TopicState]:
        """Remove queues down to this number per broker. They are frozen first, and drained unless forced."""
        ext = {"queueNums": str(queue_count), "isForce": "true" if is_forced else "false"}
        return await self._change(RequestCode.REMOVE_QUEUES, topic, broker_names, ext)

    async def scale_in(
        self, topic: str, queue_count: int, broker_names: Collection[str] = (), *, interval_s: float = 1.0
    ) -> AsyncIterator[DrainProgress]:
        """Freeze the queues from number `queue_count` on, wait until they are drained, and remove them.

        Yields how far it is, at last with nothing left. Whoever stops asking leaves the queues frozen.
        """
        if queue_count < 1:
            raise ClientError(f"{queue_count} queues: a topic keeps one at least on each broker")
        for name, state in (await self.states(topic, broker_names)).items():
            going = [queue.queue_id for queue in state.queues if queue.queue_id >= queue_count]
            if going:
                await self.freeze(topic, going, [name])
        while True:
            states = await self.states(topic, broker_names)
            full = [
                queue
                for state in states.values()
                for queue in state.queues
                if queue.queue_id >= queue_count and not queue.is_drained
            ]
            messages = sum(
                max(queue.behind.values(), default=queue.max_offset - queue.min_offset) for queue in full
            )
            yield DrainProgress(len(full), messages)
            if not full:
                break
            await asyncio.sleep(interval_s)
        for name, state in states.items():
            if state.read_queue_nums > queue_count:
                await self.remove(topic, queue_count, [name])

    async def _change(
        self, code: int, topic: str, broker_names: Collection[str], ext: dict[str, str]
    ) -> dict[str, TopicState]:
        """Make a change; returns when the registry shows it, so that the next question sees it.

        A registry that does not, for a while, is not waited for: the change is made.
        """
        states = await self._ask(code, topic, broker_names, ext)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _SHOWN_S
        while loop.time() < deadline_s:
            route = await self._client.routes.refresh(topic)
            if route is not None and all(_is_shown(route, name, state) for name, state in states.items()):
                break
            await asyncio.sleep(_LOOK_AGAIN_S)
        return states

    async def _ask(
        self, code: int, topic: str, broker_names: Collection[str], ext: dict[str, str]
    ) -> dict[str, TopicState]:
        route = await self._client.routes.refresh(topic)
        known = {} if route is None else {name: route.master(name) for name in sorted(route.addresses)}
        missing = sorted(set(broker_names) - known.keys())
        if missing or not known:
            raise RouteNotFoundError(
                f"no broker {', '.join(missing)} has topic {topic}: it is at {', '.join(known) or 'none'} of "
                f"those registered with {self._client.registries.addresses_text}"
            )
        states: dict[str, TopicState] = {}
        for name, address in known.items():
            if broker_names and name not in broker_names:
                continue
            if address is None:
                raise RouteNotFoundError(f"broker {name} of topic {topic} has no master now")
            doing = f"queues of topic {topic} at broker {name}"
            answer = await ask(self._client, address, code, {"topic": topic, **ext}, doing=doing)
            states[name] = decode_answer(answer.body, TopicState, doing=doing)
        return states


def _is_shown(route: TopicRoute, broker_name: str, state: TopicState) -> bool:
    readable = sum(queue.broker_name == broker_name for queue in route.readable)
    writable = {queue.queue_id for queue in route.writable if queue.broker_name == broker_name}
    wanted = {queue.queue_id for queue in state.queues if queue.state == "open"}
    # Without a permission there is nothing to be seen of it.
    return readable in (0, state.read_queue_nums) and (not writable or writable == wanted)


def _ids(queue_ids: Collection[int]) -> dict[str, str]:
    return {"queueIds": ",".join(map(str, sorted(queue_ids)))}
