"""Refuse settings that no bridge can have, and say what to do instead."""

from __future__ import annotations

from iotmq.errors import ConfigError, IotmqError
from iotmq.mqtt.topics.topics import is_shared, split_shared
from iotmq.mqtt_bridge.settings import BridgeSettings
from iotmq.mqtt_bridge.topic_maps import ReceiveMap, SendMap
from iotmq.mqtt_client.address import Address, parse_url
from iotmq.mqtt_client.tls import TlsOptions


def check_bridge(settings: BridgeSettings) -> None:
    """Raise ConfigError for settings that no bridge can have."""
    where = f"bridges[{settings.name}]"
    address_of(settings, where)
    SendMap(settings.send, gateway="gateway", where=where)
    ReceiveMap(settings.receive, gateway="gateway", where=where)
    if settings.version == "3.1.1" and not settings.bridge_bit:
        echo = echo_of(settings, gateway="gateway")
        if echo is not None:
            raise ConfigError(f"{where}.bridge_bit: without it {echo}")


def echo_of(settings: BridgeSettings, *, gateway: str) -> str | None:
    """Say what the other broker would send back by MQTT 3.1.1, were this no bridge for it; else None."""
    sent = SendMap(settings.send, gateway=gateway, where="").filters()
    for rule in settings.receive:
        received = split_shared(rule.filter)[1] if is_shared(rule.filter) else rule.filter
        for each in sent:
            if _meet(each.split("/"), received.split("/")):
                return (
                    f"receive {rule.filter!r} would bring back what is sent to {each!r}: use MQTT 5, or "
                    "topics for each direction that the other does not have"
                )
    return None


def _meet(sent: list[str], received: list[str]) -> bool:
    """Return whether both filters may match one topic; what stands behind # in `sent` is not looked at."""
    for ours, theirs in zip(sent, received, strict=False):
        if "#" in ours or theirs == "#":
            return True
        if ours != theirs and theirs != "+" and "+" not in ours:
            return False
    rest = sent[len(received) :] or received[len(sent) :]
    return not rest or rest[0] == "#"


def address_of(settings: BridgeSettings, where: str) -> tuple[Address, str | None, bytes | None]:
    """Return where the other broker is, user name and password; ConfigError."""
    try:
        parsed = parse_url(settings.address)
    except IotmqError as error:
        raise ConfigError(
            f"{where}.address: {error}; a bridge takes mqtt, mqtts and unix, without a topic"
        ) from None
    if parsed.user_name or parsed.password or parsed.topic:
        raise ConfigError(
            f"{where}.address: user_name and password are settings of their own, and there is no topic"
        )
    if parsed.address.scheme in ("ws", "wss"):
        raise ConfigError(f"{where}.address: a bridge connects by mqtt, mqtts or unix")
    if not settings.send and not settings.receive:
        raise ConfigError(f"{where}: a bridge has send, receive or both")
    if settings.version == "3.1.1" and settings.password and not settings.user_name:
        raise ConfigError(f"{where}.password: before MQTT 5 a password needs a user_name")
    if settings.version == "3.1.1" and settings.receive and settings.send and settings.connections > 1:
        raise ConfigError(
            f"{where}.connections: with MQTT 3.1.1, send and receive need one connection, because the "
            "other broker would send back on the first what comes on the others"
        )
    return (
        parsed.address,
        settings.user_name or None,
        settings.password.encode() if settings.password else None,
    )


def tls_of(settings: BridgeSettings) -> TlsOptions:
    """Return how the other broker is known."""
    return TlsOptions(
        ca_file=settings.tls_ca_file or None,
        certificate_file=settings.tls_certificate_file or None,
        key_file=settings.tls_key_file or None,
        is_unverified=not settings.tls_is_verified,
    )
