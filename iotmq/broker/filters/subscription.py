"""The body of a heartbeat, in all the forms clients send it (wire document 5.2, 13.4)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.errors import RefusedError
from iotmq.remoting import lenient_json
from iotmq.remoting.command import Body

TAG_EXPRESSION = "TAG"

_CONSUME_TYPES = {0: "CONSUME_ACTIVELY", 1: "CONSUME_PASSIVELY", 2: "CONSUME_POP"}
_MESSAGE_MODELS = {0: "BROADCASTING", 1: "CLUSTERING"}
_CONSUME_FROM_WHERE = {
    0: "CONSUME_FROM_LAST_OFFSET",
    1: "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    2: "CONSUME_FROM_MIN_OFFSET",
    3: "CONSUME_FROM_MAX_OFFSET",
    4: "CONSUME_FROM_FIRST_OFFSET",
    5: "CONSUME_FROM_TIMESTAMP",
}


class SubscriptionData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One topic of a consumer. `tags_set` and `code_set` are derived from `sub_string`, never trusted."""

    topic: str
    sub_string: str | None = None
    sub_version: int = 0
    expression_type: str | None = None

    @property
    def expression(self) -> str:
        return self.sub_string or "*"

    @property
    def is_by_tag(self) -> bool:
        return self.expression_type in (None, "", TAG_EXPRESSION)

    def is_same_filter(self, other: SubscriptionData) -> bool:
        """Return whether the other one wants the same messages in the same words."""
        return self.expression == other.expression and self.is_by_tag == other.is_by_tag


class ProducerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    group_name: str


class ConsumerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    group_name: str
    consume_type: int | str = "CONSUME_PASSIVELY"
    message_model: int | str = "CLUSTERING"
    consume_from_where: int | str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: (
        Annotated[list[SubscriptionData], Meta(max_length=limits.HEARTBEAT_SUBSCRIPTIONS_MAX)] | None
    ) = None


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    client_id: str = msgspec.field(name="clientID")
    producer_data_set: Annotated[list[ProducerData], Meta(max_length=limits.HEARTBEAT_GROUPS_MAX)] | None = (
        None
    )
    consumer_data_set: Annotated[list[ConsumerData], Meta(max_length=limits.HEARTBEAT_GROUPS_MAX)] | None = (
        None
    )


def decode_heartbeat(body: Body) -> Heartbeat:
    """Return the heartbeat in `body`. Raises RequestError (1) naming the field at fault."""
    size = sum(map(len, body)) if isinstance(body, list) else len(body)
    if size > limits.HEARTBEAT_BYTES_MAX:
        raise RefusedError(f"the body has {size} bytes; a heartbeat has at most {limits.HEARTBEAT_BYTES_MAX}")
    heartbeat = lenient_json.decode_request(body, Heartbeat)
    check_client_id(heartbeat.client_id)
    count = sum(len(data.subscription_data_set or ()) for data in heartbeat.consumer_data_set or ())
    if count > limits.HEARTBEAT_SUBSCRIPTIONS_TOTAL_MAX:
        raise RefusedError(
            f"{count} subscriptions; a heartbeat has at most {limits.HEARTBEAT_SUBSCRIPTIONS_TOTAL_MAX}"
        )
    return heartbeat


def check_client_id(client_id: str) -> None:
    """Raise RequestError (1) for an empty or overlong client id."""
    size = len(client_id.encode())
    if not 1 <= size <= limits.CLIENT_ID_BYTES_MAX:
        raise RefusedError(
            f"the field clientID has {size} bytes; 1 to {limits.CLIENT_ID_BYTES_MAX} are allowed"
        )


def consume_type_name(value: int | str) -> str:
    return _name(value, _CONSUME_TYPES, "consumeType")


def message_model_name(value: int | str) -> str:
    return _name(value, _MESSAGE_MODELS, "messageModel")


def consume_from_where_name(value: int | str) -> str:
    return _name(value, _CONSUME_FROM_WHERE, "consumeFromWhere")


def _name(value: int | str, names: dict[int, str], field: str) -> str:
    """Return the enum's name: clients send names, or ordinals as numbers or text."""
    if isinstance(value, str):
        if value in names.values():
            return value
        value = int(value) if value.isdecimal() and len(value) < 4 else -1
    if value not in names:
        raise RefusedError(f"the field {field} has an unknown value")
    return names[value]
