"""Define the events a client's connection tells its owner, beside received messages."""

from __future__ import annotations

from typing import NamedTuple

from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.client.server_packets import Answers, ServerAuth
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties


class Connected(NamedTuple):
    """CONNACK: the server took the connection. `client_id` is the one it assigned, or ours."""

    is_session_present: bool
    client_id: str
    properties: Properties = NO_PROPERTIES


class ConnectRefused(NamedTuple):
    """CONNACK: it did not. `code` is a reason code of MQTT 5, whatever the version."""

    code: int
    properties: Properties = NO_PROPERTIES


class Acknowledged(NamedTuple):
    """A message of QoS 1 or 2 is done; refused by the server, or not sendable to it, with 0x80 and above."""

    token: object
    code: int = 0
    reason: str = ""


class Subscribed(NamedTuple):
    """SUBACK, with the codes in the order of the filters."""

    answers: Answers


class Unsubscribed(NamedTuple):
    """UNSUBACK; without codes before MQTT 5."""

    answers: Answers


class Challenged(NamedTuple):
    """AUTH: a step of enhanced authentication."""

    auth: ServerAuth


class Ending(NamedTuple):
    """The end of a connection: a reason code of MQTT 5, words, and whether the server or we ended it."""

    code: int
    text: str
    is_by_server: bool = False
    is_ours: bool = False
    properties: Properties = NO_PROPERTIES


ClientEvent = (
    ReceivedMessage | Connected | ConnectRefused | Acknowledged | Subscribed | Unsubscribed | Challenged
)
