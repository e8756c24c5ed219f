"""`$reply/TOKEN`: the topic a device answers a request of a native client on.

The token says who waits for the answer and where, so that any front end can hand it over, and nobody has to
remember a request: base64url, without padding, of broker name, client id and correlation id with a NUL
between each two. It has no character with a meaning in topics.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_NAME_INVALID

REPLY_PREFIX: Final = "$reply/"
# The last level of a request's MQTT topic that brokers put the token in the place of.
REPLY_PLACEHOLDER: Final = "{reply}"

_SEPARATOR: Final = "\0"


class ReplyAddress(NamedTuple):
    """Address a reply: to a client of a broker, with the correlation id of its request."""

    broker: str
    client_id: str
    correlation_id: str


def reply_token(address: ReplyAddress) -> str:
    """Encode the part of a topic behind `$reply/`. ValueError when a part is empty or has a NUL."""
    if not all(address) or any(_SEPARATOR in part for part in address):
        raise ValueError(f"{address} cannot be written as a topic")
    raw = _SEPARATOR.join(address).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def read_reply_topic(topic: str) -> ReplyAddress:
    """Whom a device answers that publishes to `topic`, which begins with REPLY_PREFIX.

    Raises MqttProtocolError for one that no broker has made.
    """
    token = topic.removeprefix(REPLY_PREFIX)
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        broker, client_id, correlation_id = raw.decode().split(_SEPARATOR)
        if not (broker and client_id and correlation_id):
            raise ValueError
    except (binascii.Error, ValueError):
        raise MqttProtocolError(
            TOPIC_NAME_INVALID, f"{topic[:80]!r} is not the reply topic of a request ($reply/TOKEN)"
        ) from None
    return ReplyAddress(broker, client_id, correlation_id)
