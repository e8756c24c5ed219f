"""Bans of devices, as brokers keep them: each is state of operators with a topic `$iotmq/bans/KIND/NAME`."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.mqtt.operator_state import name_of_topic, state_topic

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
    return state_topic(f"{BANS_PREFIX}{kind}/", value)


def ban_of_topic(topic: str) -> tuple[BanKind, str]:
    """Return what the ban of a topic is for; ValueError when it is not one of ours."""
    for kind in KINDS:
        if topic.startswith(f"{BANS_PREFIX}{kind}/"):
            return kind, name_of_topic(f"{BANS_PREFIX}{kind}/", topic)
    raise ValueError(f"{topic} is no topic of a ban")


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
