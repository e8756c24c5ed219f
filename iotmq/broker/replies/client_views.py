"""Encode connected clients: as JSON of the protocol (wire document 5.3) and as iotmq's own list."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from iotmq.addresses import address_text
from iotmq.broker.filters.subscription import TAG_EXPRESSION, SubscriptionData
from iotmq.broker.members.groups import ConsumerGroup, Groups, Member
from iotmq.clock import Clock
from iotmq.message.tags import expression_tags, tag_hash
from iotmq.remoting.codes import LANGUAGE_NAMES


class ConnectionView(msgspec.Struct, kw_only=True, rename="camel"):
    """One member of a group."""

    client_addr: str
    client_id: str
    language: str
    version: int


class SubscriptionView(msgspec.Struct, kw_only=True, rename="camel"):
    """One subscription with what follows from its expression."""

    class_filter_mode: bool = False
    code_set: list[int]
    expression_type: str
    sub_string: str
    sub_version: int
    tags_set: list[str]
    topic: str


class ConsumerConnectionView(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to code 203."""

    connection_set: list[ConnectionView]
    subscription_table: dict[str, SubscriptionView]
    consume_type: str
    message_model: str
    consume_from_where: str


class ProducerConnectionView(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to code 204."""

    connection_set: list[ConnectionView]


class ProducerView(msgspec.Struct, kw_only=True, rename="camel"):
    """One producer in the answer to code 328."""

    client_id: str
    remote_ip: str = msgspec.field(name="remoteIP")
    language: str
    version: int
    last_update_timestamp: int


class ProducerTableView(msgspec.Struct, kw_only=True):
    """The answer to code 328: producers by group."""

    data: dict[str, list[ProducerView]]


class ConsumerOfClientView(msgspec.Struct, kw_only=True, rename="camel"):
    """Describe a client as a member of one consumer group."""

    group: str
    consume_type: str
    message_model: str
    topics: list[str]


class ClientView(msgspec.Struct, kw_only=True, rename="camel"):
    """One client with all it takes part in. `last_update_timestamp` is that of its last heartbeat."""

    client_id: str
    client_addr: str
    language: str
    version: int
    last_update_timestamp: int
    producer_groups: list[str] = []
    consumers: list[ConsumerOfClientView] = []


class ClientListView(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to our code LIST_CLIENTS; `next_after` is None at the end of the list."""

    clients: list[ClientView]
    count: int
    next_after: str | None


def connection_view(member: Member) -> ConnectionView:
    return ConnectionView(
        client_addr=address_text(*member.connection.peer),
        client_id=member.client_id,
        language=language_name(member.language),
        version=member.version,
    )


def subscription_view(subscription: SubscriptionData) -> SubscriptionView:
    tags = expression_tags(subscription.expression) if subscription.is_by_tag else ()
    return SubscriptionView(
        code_set=[tag_hash(tag) for tag in tags],
        expression_type=subscription.expression_type or TAG_EXPRESSION,
        sub_string=subscription.expression,
        sub_version=subscription.sub_version,
        tags_set=list(tags),
        topic=subscription.topic,
    )


def consumer_connection_view(group: ConsumerGroup) -> ConsumerConnectionView:
    return ConsumerConnectionView(
        connection_set=[connection_view(member) for member in group.members.values()],
        subscription_table={
            topic: subscription_view(subscription) for topic, subscription in group.subscriptions.items()
        },
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from_where=group.consume_from_where,
    )


def producer_view(member: Member, clock: Clock) -> ProducerView:
    return ProducerView(
        client_id=member.client_id,
        remote_ip=address_text(*member.connection.peer),
        language=language_name(member.language),
        version=member.version,
        last_update_timestamp=_seen_ms(member, clock),
    )


def client_views(groups: Groups, clock: Clock, client_ids: Iterable[str]) -> list[ClientView]:
    """The clients named, each with its groups, in the order given, without those that are not there."""
    views: dict[str, ClientView | None] = dict.fromkeys(client_ids)
    for name, producers in groups.producer_groups():
        for client_id in views.keys() & producers.keys():
            _view_of(views, producers[client_id], clock).producer_groups.append(name)
    for group in groups.consumer_groups():
        for client_id in views.keys() & group.members.keys():
            _view_of(views, group.members[client_id], clock).consumers.append(
                ConsumerOfClientView(
                    group=group.name,
                    consume_type=group.consume_type,
                    message_model=group.message_model,
                    topics=sorted(group.subscriptions),
                )
            )
    return [view for view in views.values() if view is not None]


def language_name(language: int) -> str:
    return LANGUAGE_NAMES.get(language, "OTHER")


def _view_of(views: dict[str, ClientView | None], member: Member, clock: Clock) -> ClientView:
    """Return the client's view, made from a member when there is none; the last heartbeat counts."""
    view = views[member.client_id]
    seen_ms = _seen_ms(member, clock)
    if view is None:
        view = views[member.client_id] = ClientView(
            client_id=member.client_id,
            client_addr=address_text(*member.connection.peer),
            language=language_name(member.language),
            version=member.version,
            last_update_timestamp=seen_ms,
        )
    elif seen_ms > view.last_update_timestamp:
        view.last_update_timestamp = seen_ms
        view.client_addr = address_text(*member.connection.peer)
    return view


def _seen_ms(member: Member, clock: Clock) -> int:
    return clock.now_ms() - round((clock.monotonic_s() - member.seen_s) * 1_000)
