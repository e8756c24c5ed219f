"""Bans of devices, as brokers keep them: retained messages of one broker topic, a message for each ban.

A ban is published to the MQTT topic `$iotmq/bans/KIND/NAME`, NAME being its value in base64url, with an
expiry interval when it ends by itself; an empty message takes it away. Devices cannot publish or subscribe
below `$iotmq/`, and what comes there from another broker topic than BANS_TOPIC is no ban, nor retained.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.message.properties import MQTT_QOS, MQTT_RETAIN, MQTT_TOPIC, TIME_TO_LIVE_MS

BANS_TOPIC: Final = "iotmq_sys_bans"
"""The broker topic."""
BANS_PREFIX: Final = "$iotmq/bans/"
BANS_FILTER: Final = f"{BANS_PREFIX}#"

BanKind: TypeAlias = Literal["client", "user", "address", "network", "client-pattern", "user-pattern"]
KINDS: Final[tuple[BanKind, ...]] = get_args(BanKind)


class Ban(msgspec.Struct, frozen=True, kw_only=True):
    """Say who may not connect, until when, and why."""

    kind: BanKind
    value: Annotated[str, Meta(min_length=1, max_length=limits.MQTT_USER_NAME_BYTES_MAX)]
    """A client id, a user, an IP address, a network such as 192.0.2.0/24, or a regular expression (RE2) that
    has to match the whole name."""
    until_ms: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """When it ends, in milliseconds since 1970; 0: never."""
    reason: Annotated[str, Meta(max_length=limits.MQTT_BAN_REASON_CHARACTERS_MAX)] = ""
    by: Annotated[str, Meta(max_length=limits.MQTT_BAN_REASON_CHARACTERS_MAX)] = ""
    """The maker: an operator, or a setting."""
    made_ms: Annotated[int, Meta(ge=0, le=1 << 53)] = 0

    @property
    def topic(self) -> str:
        """Return the MQTT topic it is retained under."""
        return ban_topic(self.kind, self.value)

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self)

    def is_over(self, now_ms: int) -> bool:
        return 0 < self.until_ms <= now_ms


def normal_value(kind: BanKind, value: str) -> str:
    """Return the one way to write a value; ValueError when it is none of its kind."""
    if kind == "address":
        value = str(_plain(ipaddress.ip_address(value.partition("%")[0])))
    elif kind == "network":
        value = str(ipaddress.ip_network(value, strict=False))
    elif kind.endswith("-pattern") and len(value) > limits.MQTT_BAN_PATTERN_CHARACTERS_MAX:
        raise ValueError(f"a pattern has at most {limits.MQTT_BAN_PATTERN_CHARACTERS_MAX} characters")
    if not 0 < len(value.encode()) <= limits.MQTT_USER_NAME_BYTES_MAX:
        raise ValueError(f"a name has 1 to {limits.MQTT_USER_NAME_BYTES_MAX} bytes")
    return value


def ban_topic(kind: BanKind, value: str) -> str:
    """Return the MQTT topic of the ban of a value, as `normal_value` writes it."""
    return f"{BANS_PREFIX}{kind}/{base64.urlsafe_b64encode(value.encode()).decode()}"


def ban_of_topic(topic: str) -> tuple[BanKind, str]:
    """Return what the ban of a topic is for; ValueError when it is not one of ours."""
    kind, _, name = topic.removeprefix(BANS_PREFIX).partition("/")
    value = base64.urlsafe_b64decode(name).decode()
    for known in KINDS:
        if known == kind and ban_topic(known, value) == topic:
            return known, value
    raise ValueError(f"{topic} is no topic of a ban")


def ban_properties(kind: BanKind, value: str, *, expires_ms: int = 0) -> Mapping[str, str]:
    """Return the properties of the record that makes a ban, for `expires_ms` unless that is 0, or ends it."""
    properties = {MQTT_TOPIC: ban_topic(kind, value), MQTT_QOS: "1", MQTT_RETAIN: "1"}
    if expires_ms:
        properties[TIME_TO_LIVE_MS] = str(expires_ms)
    return properties


def decode_ban(topic: str, body: bytes) -> Ban:
    """Read the ban of a message; ValueError when it is none."""
    kind, value = ban_of_topic(topic)
    try:
        ban = _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a ban: {error}") from None
    if (ban.kind, ban.value) != (kind, value) or normal_value(kind, value) != value:
        raise ValueError(f"a ban of {ban.kind} {ban.value!a} at the topic of {kind} {value!a}")
    return ban


def _plain(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


_decoder: Final = msgspec.json.Decoder(Ban)
