"""Create and list topics, and read and set offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, NamedTuple

from iotmq.client.admin.access import AccessAdmin
from iotmq.client.admin.brokers import BrokerViews
from iotmq.client.admin.changes import AdminChanges
from iotmq.client.admin.configs import Configurations
from iotmq.client.admin.dead_letters import DeadLetters
from iotmq.client.admin.groups import GroupViews
from iotmq.client.admin.messages import MessageViews
from iotmq.client.admin.queue_scaling import QueueScaling
from iotmq.client.consuming.offsets import offsets
from iotmq.client.transport.calls import ask, master_addresses
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import check_group, check_topic
from iotmq.client.transport.routes import PERMISSION_READ, PERMISSION_WRITE, MessageQueue, TopicRoute
from iotmq.errors import ClientError, RequestTimeoutError
from iotmq.limits import QUEUES_PER_TOPIC_MAX
from iotmq.remoting.codes import RequestCode

# How often a change is looked for at the registry, until it shows.
_LOOK_AGAIN_S: Final = 0.05


class QueueOffsets(NamedTuple):
    """Hold the offsets of a queue: from `begin` up to, not including, `end`."""

    begin: int
    """The offset of the oldest message that is still there."""
    end: int
    """The offset the next message will get."""


class Admin:
    """Asks brokers and registries through a client that is started."""

    def __init__(self, client: ClientTransport) -> None:
        self._client = client
        self.groups = GroupViews(client)
        """Groups: their connections, their progress, and what their members are doing."""
        self.messages = MessageViews(client, self.groups)
        """Messages by id, key and offset, and their fate in each group."""
        self.statistics = BrokerViews(client)
        """Brokers: their facts and their statistics."""
        self.configurations = Configurations(client)
        """How brokers, topics and groups are set."""
        self.changes = AdminChanges(client)
        """Topics, groups, settings, permissions and values, changed in all places they belong to."""
        self.scaling = QueueScaling(client)
        """More queues or fewer for a topic in use."""
        self.dead_letters = DeadLetters(client)
        """Dead letters of groups: listed, sent again, exported."""
        self.access = AccessAdmin(client)
        """Accounts of brokers with access control."""

    async def brokers(self) -> dict[str, dict[int, str]]:
        """List brokers: broker name -> broker id (0 = master) -> HOST:PORT."""
        return await self._client.registries.cluster()

    async def topics(self) -> list[str]:
        """List the names of all topics, the system's included, sorted."""
        return sorted(await self._client.registries.topics())

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        broker_names: Collection[str] = (),
        permissions: int = PERMISSION_READ | PERMISSION_WRITE,
        timeout_s: float = 5.0,
    ) -> TopicRoute:
        """Make (or change) a topic with so many queues on each broker; returns when it is in the route.

        `broker_names` empty means all brokers. BrokerError when one refuses, RequestTimeoutError when
        the registry does not show it in time.
        """
        check_topic(topic)
        if not 1 <= queues <= QUEUES_PER_TOPIC_MAX:
            raise ClientError(f"{queues} queues: a topic has 1 to {QUEUES_PER_TOPIC_MAX} on each broker")
        masters = await master_addresses(self._client, broker_names)
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(permissions),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        for name, address in masters.items():
            doing = f"creating topic {topic} at broker {name}"
            await ask(self._client, address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext, doing=doing)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            route = await self._client.routes.refresh(topic)
            if route is not None and _has_all(route, masters, queues, permissions):
                return route
            if loop.time() >= deadline_s:
                raise RequestTimeoutError(
                    f"topic {topic} is made, but {self._client.registries.addresses_text} does not show it "
                    f"after {timeout_s} s: do the brokers register there?"
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def queues(self, topic: str, *, timeout_s: float = 1.0) -> tuple[MessageQueue, ...]:
        """List the readable queues of a topic, sorted; RouteNotFoundError when there are none in time."""
        return (await self._client.routes.find_for_reading(topic, timeout_s=timeout_s)).readable

    async def offsets(self, topic: str) -> dict[MessageQueue, QueueOffsets]:
        """Return the offsets of each queue of a topic."""

        async def one(queue: MessageQueue) -> QueueOffsets:
            begin, end = await asyncio.gather(
                offsets.min_offset(self._client, queue), offsets.max_offset(self._client, queue)
            )
            return QueueOffsets(begin, end)

        queues = await self.queues(topic)
        return dict(zip(queues, await asyncio.gather(*map(one, queues)), strict=True))

    async def group_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the offset that a group committed for each queue of a topic; None where it never did."""
        check_group(group)
        queues = await self.queues(topic)
        stored = await asyncio.gather(
            *(offsets.stored_offset(self._client, group, queue) for queue in queues)
        )
        return dict(zip(queues, stored, strict=True))

    async def set_group_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set the group's offset of a queue; stop its consumers before, or they overwrite it."""
        check_group(group)
        await offsets.commit_offset(self._client, group, queue, offset)


def _has_all(route: TopicRoute, masters: dict[str, str], queues: int, permissions: int) -> bool:
    shown = route.writable if permissions & PERMISSION_WRITE else route.readable
    counts = {name: sum(queue.broker_name == name for queue in shown) for name in masters}
    return not permissions & 6 or all(count == queues for count in counts.values())
