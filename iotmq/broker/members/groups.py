"""Keep the live members and subscriptions of consumer groups, and producers by group.

Nothing here is stored: clients repeat their heartbeat every 30 s, and a member leaves when it says so,
when its connection ends, or when it was silent for `expiry_s`. Followers of a replicated broker are told who
consumes: clients of the next master would otherwise be strangers to it until their next heartbeat, which
means refused pulls, and members that take the queues of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from iotmq import limits
from iotmq.broker.filters.subscription import (
    Heartbeat,
    SubscriptionData,
    consume_from_where_name,
    consume_type_name,
    message_model_name,
)
from iotmq.broker.filters.tags import parse_tags
from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.copied_table import ChangedKeys
from iotmq.broker.tables.subscription_groups import check_group_name
from iotmq.clock import Clock
from iotmq.errors import RefusedError
from iotmq.metrics import Metric, samples
from iotmq.remoting.server import ServerConnection

BROADCASTING = "BROADCASTING"
# A consumer that came by a former master has so long for its next heartbeat: two of them.
_RESTORED_S: Final = 60.0

# Group, client id; without one it is the group itself.
_ConsumerKey: TypeAlias = tuple[str, str]
_GROUP: Final = ""


class EndListener(Protocol):
    """Takes the name of a group without members, and whether the last one has said goodbye."""

    def __call__(self, name: str, *, is_goodbye: bool) -> None: ...


class Member:
    """One client in one group. `seen_s` is the monotonic time of its last heartbeat."""

    __slots__ = ("client_id", "connection", "language", "seen_s", "version")

    def __init__(
        self, client_id: str, connection: ServerConnection, *, language: int, version: int, seen_s: float
    ) -> None:
        self.client_id = client_id
        self.connection = connection
        self.language = language
        self.version = version
        self.seen_s = seen_s


class CopiedConsumer(NamedTuple):
    """A client in a consumer group, or what the group has; `is_there` is False for one that has left.

    What a group has is sent once, and not with each member: it may be a mebibyte.
    """

    key: _ConsumerKey
    is_there: bool
    language: int = 0
    version: int = 0
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    subscriptions: tuple[SubscriptionData, ...] = ()


class ConsumerGroup:
    """A group with at least one live member. Subscriptions are the group's: the last heartbeat wins."""

    __slots__ = ("consume_from_where", "consume_type", "members", "message_model", "name", "subscriptions")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.consume_type = ""
        self.message_model = ""
        self.consume_from_where = ""

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take the subscriptions of a heartbeat; True when they changed the group's."""
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        changed = False
        for topic, subscription in wanted.items():
            current = self.subscriptions.get(topic)
            if current is None or subscription.sub_version > current.sub_version:
                changed = changed or current is None or not current.is_same_filter(subscription)
                self.subscriptions[topic] = subscription
        for topic in [topic for topic in self.subscriptions if topic not in wanted]:
            del self.subscriptions[topic]
            changed = True
        return changed


class Groups:
    """All live groups. Methods that change membership return the consumer groups to notify."""

    def __init__(
        self,
        clock: Clock,
        *,
        expiry_s: float,
        clients_per_connection_max: int = limits.CLIENTS_PER_CONNECTION_MAX,
    ) -> None:
        self._clock = clock
        self.expiry_s = expiry_s
        self._clients_per_connection_max = clients_per_connection_max
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[str, Member]] = {}
        # The names of the producer groups each client is in.
        self._groups_of_producer: dict[str, set[str]] = {}
        # (group, client id) of what came in over each connection, to find it when the connection ends.
        self._consumers_of: dict[ServerConnection, set[tuple[str, str]]] = {}
        self._producers_of: dict[ServerConnection, set[tuple[str, str]]] = {}
        self.expired_count = 0
        self.changed: ChangedKeys[_ConsumerKey] = ChangedKeys(limits.CHANGED_CONSUMERS_MAX)
        # Consumers of the master, while this is a follower.
        self._copied: dict[_ConsumerKey, CopiedConsumer] = {}
        self.version = DataVersion()
        self._end_listeners: list[EndListener] = []

    def add_end_listener(self, listener: EndListener) -> None:
        """Tell of consumer groups whose last member has left."""
        self._end_listeners.append(listener)

    def heartbeat(
        self, connection: ServerConnection, heartbeat: Heartbeat, *, language: int = 0, version: int = 0
    ) -> list[str]:
        """Register or refresh a client. Raises RequestError and changes nothing when a field is bad."""
        consumers = heartbeat.consumer_data_set or ()
        producers = heartbeat.producer_data_set or ()
        for name in [data.group_name for data in (*consumers, *producers)]:
            check_group_name(name, "groupName")
        kinds = [
            (
                consume_type_name(data.consume_type),
                message_model_name(data.message_model),
                consume_from_where_name(data.consume_from_where),
            )
            for data in consumers
        ]
        for data in consumers:
            for subscription in data.subscription_data_set or ():
                if subscription.is_by_tag:
                    parse_tags(subscription.expression)
        client_id = heartbeat.client_id
        self._check_room(self._consumers_of, connection, [(data.group_name, client_id) for data in consumers])
        self._check_room(self._producers_of, connection, [(data.group_name, client_id) for data in producers])

        now_s = self._clock.monotonic_s()
        changed: list[str] = []
        for data, (consume_type, message_model, from_where) in zip(consumers, kinds, strict=True):
            name = data.group_name
            group = self._consumers.get(name)
            if group is None:
                group = self._consumers[name] = ConsumerGroup(name)
            group.consume_type = consume_type
            group.message_model = message_model
            group.consume_from_where = from_where
            is_new = self._join(
                group.members,
                self._consumers_of,
                name,
                Member(client_id, connection, language=language, version=version, seen_s=now_s),
            )
            if group.subscribe(data.subscription_data_set or ()) or is_new:
                changed.append(name)
            if is_new:
                self.changed.note((name, client_id))
            # Clients raise the versions of subscriptions that are the same, and pull with the new ones.
            self.changed.note((name, _GROUP))
        for producer in producers:
            self._join(
                self._producers.setdefault(producer.group_name, {}),
                self._producers_of,
                producer.group_name,
                Member(client_id, connection, language=language, version=version, seen_s=now_s),
            )
            self._groups_of_producer.setdefault(client_id, set()).add(producer.group_name)
        return changed

    def unregister(
        self,
        connection: ServerConnection,
        client_id: str,
        *,
        producer_group: str | None,
        consumer_group: str | None,
    ) -> list[str]:
        """A client says goodbye: it leaves where it came in over this connection.

        A process started anew under the same client id stays when the goodbye of the former comes late.
        """
        if producer_group and (producer_group, client_id) in self._producers_of.get(connection, ()):
            self._leave_producers(producer_group, client_id)
        if (
            consumer_group
            and (consumer_group, client_id) in self._consumers_of.get(connection, ())
            and self._leave_consumers(consumer_group, client_id, is_goodbye=True)
        ):
            return [consumer_group]
        return []

    def connection_lost(self, connection: ServerConnection) -> list[str]:
        """Everything registered over the connection leaves."""
        for group, client_id in self._producers_of.pop(connection, ()):
            self._leave_producers(group, client_id)
        changed: dict[str, None] = {}
        for group, client_id in self._consumers_of.pop(connection, ()):
            if self._leave_consumers(group, client_id):
                changed[group] = None
        return list(changed)

    def expire(self) -> list[str]:
        """Drop who was silent for too long; call every ten seconds or so."""
        horizon_s = self._clock.monotonic_s() - self.expiry_s
        for name, producers in list(self._producers.items()):
            for member in [member for member in producers.values() if member.seen_s < horizon_s]:
                self._leave_producers(name, member.client_id)
                self.expired_count += 1
        changed: list[str] = []
        for name, group in list(self._consumers.items()):
            silent = [member for member in group.members.values() if member.seen_s < horizon_s]
            for member in silent:
                self._leave_consumers(name, member.client_id)
            self.expired_count += len(silent)
            if silent:
                changed.append(name)
        return changed

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return the group, None when it has no live member."""
        return self._consumers.get(name)

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())

    def producers(self, name: str) -> list[Member]:
        """Return the live producers of a group; their connections take requests of the broker's own."""
        return list(self._producers.get(name, {}).values())

    def producer_groups(self) -> list[tuple[str, Mapping[str, Member]]]:
        """Return every group with live producers, and those by client id."""
        return list(self._producers.items())

    def client_ids(self) -> set[str]:
        """Return the client ids of all groups."""
        entries = (*self._consumers_of.values(), *self._producers_of.values())
        return {client_id for of_connection in entries for _, client_id in of_connection}

    def producer_of(self, client_id: str) -> Member | None:
        """A live producer with this client id, whatever its group."""
        for name in self._groups_of_producer.get(client_id, ()):
            return self._producers[name][client_id]
        return None

    def restore(self, connection: ServerConnection) -> list[ConsumerGroup]:
        """Count consumers of the former master as present, with a connection that stands for theirs.

        Each has time for a heartbeat of its own, by which it comes back with its connection.
        """
        copied, self._copied = self._copied, {}
        seen_s = self._clock.monotonic_s() - self.expiry_s + _RESTORED_S
        restored: dict[str, ConsumerGroup] = {}
        for (name, client_id), consumer in copied.items():
            if client_id == _GROUP:
                continue
            group = restored.get(name)
            if group is None:
                group = restored[name] = self._consumers.setdefault(name, ConsumerGroup(name))
                of_group = copied.get((name, _GROUP), CopiedConsumer((name, _GROUP), False))
                group.consume_type = of_group.consume_type
                group.message_model = of_group.message_model
                group.consume_from_where = of_group.consume_from_where
                group.subscribe(of_group.subscriptions)
                self.changed.note((name, _GROUP))
            member = Member(
                client_id, connection, language=consumer.language, version=consumer.version, seen_s=seen_s
            )
            self._join(group.members, self._consumers_of, name, member)
            self.changed.note((name, client_id))
        return list(restored.values())

    # What followers are sent, and take (copied_table.KeyedTable)

    def copied_entries(self) -> Iterator[CopiedConsumer]:
        """Yield all groups and their consumers."""
        for group in list(self._consumers.values()):
            for client_id in [_GROUP, *group.members]:
                yield self._copied_consumer((group.name, client_id))

    def entries_of(self, keys: set[_ConsumerKey]) -> Iterator[CopiedConsumer]:
        """Yield what is known of some now, and take them out of `keys`."""
        while keys:
            yield self._copied_consumer(keys.pop())

    def new_copy(self) -> dict[_ConsumerKey, CopiedConsumer]:
        """Return a table without consumers."""
        return {}

    def apply(
        self, entries: Sequence[CopiedConsumer], copy: dict[_ConsumerKey, CopiedConsumer] | None
    ) -> None:
        """Change a copy, or the table. What comes past the maximum is left out.

        The master has no such maximum, and would find no follower that takes what it has.
        """
        table = self._copied if copy is None else copy
        for consumer in entries:
            if not consumer.is_there:
                table.pop(consumer.key, None)
            elif consumer.key in table or len(table) < limits.COPIED_CONSUMERS_MAX:
                table[consumer.key] = consumer

    def replace(self, copy: dict[_ConsumerKey, CopiedConsumer]) -> None:
        """Hold what a copy has."""
        self._copied = copy

    def _copied_consumer(self, key: _ConsumerKey) -> CopiedConsumer:
        name, client_id = key
        group = self._consumers.get(name)
        if group is None:
            return CopiedConsumer(key, False)
        if client_id == _GROUP:
            return CopiedConsumer(
                key,
                True,
                consume_type=group.consume_type,
                message_model=group.message_model,
                consume_from_where=group.consume_from_where,
                subscriptions=tuple(group.subscriptions.values()),
            )
        member = group.members.get(client_id)
        return (
            CopiedConsumer(key, False)
            if member is None
            else CopiedConsumer(key, True, member.language, member.version)
        )

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_consumer_groups", "Groups with live consumers.", len(self._consumers)),
            (
                "iotmq_broker_consumers",
                "Live consumers, counted once per group.",
                sum(len(group.members) for group in self._consumers.values()),
            ),
            (
                "iotmq_broker_producers",
                "Live producers, counted once per group.",
                sum(len(members) for members in self._producers.values()),
            ),
            ("iotmq_broker_expired_clients_total", "Clients dropped for silence.", self.expired_count),
        )

    def check_invariants(self) -> None:
        """Raise AssertionError when the books by group, by client and by connection disagree."""
        consumers = {
            (name, member.client_id): member.connection
            for name, group in self._consumers.items()
            for member in group.members.values()
        }
        producers = {
            (name, member.client_id): member.connection
            for name, members in self._producers.items()
            for member in members.values()
        }
        for members, by_connection in ((consumers, self._consumers_of), (producers, self._producers_of)):
            entries = {entry: connection for connection, of in by_connection.items() for entry in of}
            assert entries == members
            assert sum(map(len, by_connection.values())) == len(members)
            assert all(by_connection.values())
        assert all(group.members for group in self._consumers.values())
        assert all(self._producers.values())
        names_of = self._groups_of_producer.items()
        assert {(name, client_id) for client_id, names in names_of for name in names} == producers.keys()
        assert all(names for _, names in names_of)

    def _check_room(
        self,
        by_connection: dict[ServerConnection, set[tuple[str, str]]],
        connection: ServerConnection,
        entries: list[tuple[str, str]],
    ) -> None:
        if not entries:
            return
        if len(by_connection.get(connection, set()).union(entries)) > self._clients_per_connection_max:
            raise RefusedError(
                f"more than {self._clients_per_connection_max} clients and groups on one connection"
            )

    def _join(
        self,
        members: dict[str, Member],
        by_connection: dict[ServerConnection, set[tuple[str, str]]],
        group: str,
        member: Member,
    ) -> bool:
        """Put a member in; True when it was not there. A client on a new connection replaces itself."""
        former = members.get(member.client_id)
        members[member.client_id] = member
        entry = (group, member.client_id)
        if former is not None and former.connection is not member.connection:
            _discard(by_connection, former.connection, entry)
        by_connection.setdefault(member.connection, set()).add(entry)
        return former is None or former.connection is not member.connection

    def _leave_consumers(self, name: str, client_id: str, *, is_goodbye: bool = False) -> bool:
        group = self._consumers.get(name)
        member = None if group is None else group.members.pop(client_id, None)
        if group is None or member is None:
            return False
        if not group.members:
            del self._consumers[name]
            self.changed.note((name, _GROUP))
        _discard(self._consumers_of, member.connection, (name, client_id))
        self.changed.note((name, client_id))
        if not group.members:
            for listener in self._end_listeners:
                listener(name, is_goodbye=is_goodbye)
        return True

    def _leave_producers(self, name: str, client_id: str) -> None:
        members = self._producers.get(name)
        member = None if members is None else members.pop(client_id, None)
        if members is None or member is None:
            return
        groups = self._groups_of_producer[client_id]
        groups.discard(name)
        if not groups:
            del self._groups_of_producer[client_id]
        if not members:
            del self._producers[name]
        _discard(self._producers_of, member.connection, (name, client_id))


def _discard(
    by_connection: dict[ServerConnection, set[tuple[str, str]]],
    connection: ServerConnection,
    entry: tuple[str, str],
) -> None:
    entries = by_connection.get(connection)
    if entries is not None:
        entries.discard(entry)
        if not entries:
            del by_connection[connection]
