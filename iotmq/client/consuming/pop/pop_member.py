"""Name the pop consumers of a client in its heartbeats: however many they are, they are one member."""

from __future__ import annotations

from typing import Protocol

from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.subscriptions import ConsumerData, Subscription, consumer_data
from iotmq.errors import ClientError


class PopUser(Protocol):
    """A pop consumer, as its member knows it."""

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        """Return its subscriptions by topic."""

    def route_changed(self, topic: str) -> None:
        """Handle a change of the brokers of `topic`."""


class PopMember:
    """The pop consumers of one client and group (transport.client.GroupConsumer)."""

    def __init__(self, client: ClientTransport, group: str) -> None:
        self._client = client
        self.group = group
        """The consumer group's name."""
        self._users: list[PopUser] = []
        self._announced: set[str] = set()
        """Topics that brokers have heard of."""

    @classmethod
    def enter(cls, client: ClientTransport, group: str, user: PopUser) -> PopMember:
        """Name a consumer from now on; ClientError when this client is another kind of member."""
        member = client.find_consumer(group)
        if member is None:
            member = cls(client, group)
            client.add_consumer(member)
        if not isinstance(member, PopMember):
            raise ClientError(
                f"this client has a consumer of group {group} that shares its queues: use another "
                "IotmqClient to pop"
            )
        member._users.append(user)
        return member

    async def announce(self, user: PopUser) -> None:
        """Tell brokers at once about topics that are new; a thousand consumers of one are no news."""
        new = user.subscriptions.keys() - self._announced
        if new:
            self._announced |= new
            await self._client.heartbeat()

    async def leave(self, user: PopUser) -> None:
        """Name a consumer no more; the last one tells the brokers."""
        self._users.remove(user)
        if not self._users:
            await self._client.remove_consumer(self)

    def heartbeat(self) -> ConsumerData:
        """Return this member's part of the heartbeat."""
        subscriptions = {
            topic: subscription for user in self._users for topic, subscription in user.subscriptions.items()
        }
        return consumer_data(
            self.group, subscriptions.values(), is_push=False, model="clustering", consume_from="last"
        )

    def members_changed(self) -> None:
        """Do nothing: nobody shares queues."""

    def route_changed(self, topic: str) -> None:
        """Tell the consumers of a topic that it may have other brokers."""
        for user in self._users:
            user.route_changed(topic)
