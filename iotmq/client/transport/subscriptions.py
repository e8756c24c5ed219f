"""Describe a consumer's subscriptions, and encode the heartbeat that tells brokers about them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from iotmq.errors import SubscriptionError
from iotmq.message.tags import expression_tags, tag_hash

ALL_TAGS = "*"

_CONSUME_FROM = {
    "last": "CONSUME_FROM_LAST_OFFSET",
    "first": "CONSUME_FROM_FIRST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}


class Subscription(msgspec.Struct, frozen=True):
    """A subscription to one topic: to some tags (none means all messages), or by the expression `sql`."""

    topic: str
    expression: str
    tags: frozenset[str]
    version_ms: int
    is_sql: bool = False

    @property
    def expression_type(self) -> str:
        """Return the name of the expression's language on the wire."""
        return "SQL92" if self.is_sql else "TAG"

    def accepts(self, tags: str) -> bool:
        """Return whether a message with this TAGS value matches; brokers compare only hashes."""
        return not self.tags or tags in self.tags


def parse_subscription(
    topic: str, expression: str, version_ms: int, *, sql: str | None = None
) -> Subscription:
    """`*` or empty for all, else tags separated by `||`, or an SQL92 expression, which brokers understand.

    SubscriptionError for separators without a tag, for an empty `sql`, and when both are given.
    """
    if sql is not None:
        if expression.strip() not in ("", ALL_TAGS):
            raise SubscriptionError(
                f"the subscription to {topic} has tags and sql: write one of them (TAGS is a property, too)"
            )
        if not sql.strip():
            raise SubscriptionError(f"the sql of the subscription to {topic} is empty: write a condition")
        return Subscription(topic, sql, frozenset(), version_ms, is_sql=True)
    tags = expression_tags(expression)
    if not tags and expression.strip() not in ("", ALL_TAGS):
        raise SubscriptionError(
            f"subscription {expression!r} to {topic} names no tag: write 'TagA || TagB', or '*' for all"
        )
    return Subscription(topic, " || ".join(tags) or ALL_TAGS, frozenset(tags), version_ms)


class SubscriptionData(msgspec.Struct, rename="camel"):
    """A subscription as heartbeats carry it."""

    topic: str
    sub_string: str
    tags_set: list[str]
    code_set: list[int]
    sub_version: int
    expression_type: str
    class_filter_mode: bool = False


class ConsumerData(msgspec.Struct, rename="camel"):
    """One consumer as heartbeats carry it."""

    group_name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscription_data_set: list[SubscriptionData]
    unit_mode: bool = False


class _ProducerData(msgspec.Struct, rename="camel"):
    group_name: str


class _Heartbeat(msgspec.Struct):
    clientID: str  # noqa: N815 - the wire's spelling, which camel-casing would not give
    producerDataSet: list[_ProducerData]  # noqa: N815
    consumerDataSet: list[ConsumerData]  # noqa: N815


def consumer_data(
    group: str,
    subscriptions: Iterable[Subscription],
    *,
    is_push: bool,
    model: Literal["clustering", "broadcasting"],
    consume_from: Literal["last", "first", "timestamp"],
) -> ConsumerData:
    """Encode one consumer for the heartbeat."""
    return ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
        message_model=model.upper(),
        consume_from_where=_CONSUME_FROM[consume_from],
        subscription_data_set=[subscription_data(subscription) for subscription in subscriptions],
    )


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """Encode a subscription for brokers."""
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=subscription.expression,
        tags_set=sorted(subscription.tags),
        code_set=sorted(tag_hash(tag) for tag in subscription.tags),
        sub_version=subscription.version_ms,
        expression_type=subscription.expression_type,
    )


def encode_heartbeat(
    client_id: str, producer_groups: Iterable[str], consumers: Iterable[ConsumerData]
) -> bytes:
    """Encode the body of a heartbeat (request 34)."""
    return msgspec.json.encode(
        _Heartbeat(client_id, [_ProducerData(group) for group in sorted(producer_groups)], list(consumers))
    )
