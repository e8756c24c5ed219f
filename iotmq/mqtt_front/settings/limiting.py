"""Settings of limits on devices, of bans for flapping, and of overload (section `[mqtt.device_limits]`)."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from iotmq import limits

Rate: TypeAlias = Annotated[int, Meta(ge=0, le=limits.MQTT_RATE_MAX)]
"""0 = no limit."""
Burst: TypeAlias = Annotated[int, Meta(ge=0, le=limits.MQTT_RATE_MAX)]
"""0 = as much as a second's worth."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=limits.MQTT_CONNECTIONS_MAX)]
"""0 = no limit."""
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=3_600_000)]
"""0 = not looked at."""


class RateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may pass: `in` is from devices, `out` is to them.

    Devices over a limit are not read until there is room again, so nothing they send is lost. What is for
    them waits with QoS 1 and 2; with QoS 0 it is dropped and counted.
    """

    messages_in_per_s: Rate = 0
    """Messages (PUBLISH) a second that are read from devices; 0 = no limit."""
    messages_in_burst: Burst = 0
    """Messages that may come at once after a pause; 0 = those of a second."""
    bytes_in_per_s: Rate = 0
    """Bytes a second that are read, of packets of every kind; 0 = no limit."""
    bytes_in_burst: Burst = 0
    """Bytes that may come at once after a pause; 0 = those of a second."""
    messages_out_per_s: Rate = 0
    """Messages a second that are sent to devices; 0 = no limit."""
    messages_out_burst: Burst = 0
    """Messages that may be sent at once after a pause; 0 = those of a second."""
    bytes_out_per_s: Rate = 0
    """Bytes of messages a second that are sent to devices; 0 = no limit."""
    bytes_out_burst: Burst = 0
    """Bytes that may be sent at once after a pause; 0 = those of a second."""


class UserLimitSettings(RateSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for all connections of one user together."""

    connections_max: Count = 0
    """Connections of one user; a further CONNECT is refused (0x97, before MQTT 5 return code 3). 0 = no
    limit."""


class PlaceLimitSettings(RateSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits for all connections from one address, or of one listener, together."""

    connections_max: Count = 0
    """Open connections; more are closed at once. 0 = no limit."""
    connects_per_s: Rate = 0
    """New connections a second; more are closed at once, before TLS. 0 = no limit."""
    connects_burst: Burst = 0
    """New connections that may come at once after a pause; 0 = those of a second."""


class ListenerLimitSettings(PlaceLimitSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one listener, in place of all of `[mqtt.device_limits.listener]`."""

    listener: Annotated[str, Meta(min_length=1, max_length=limits.MQTT_LISTENER_NAME_BYTES_MAX)]
    """Name of the listener; that of mqtt.listen_port is "tcp"."""


class FlappingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ban devices that connect again and again."""

    client_connects_max: Rate = 0
    """Sessions that are opened with one client id within window_s, behind authentication; past that the
    client id is banned. 0 = no limit."""
    address_connects_max: Rate = 0
    """Connections of one address (of IPv6, of its /64) within window_s; past that the address is banned. 0 =
    no limit."""
    window_s: Annotated[int, Meta(ge=1, le=86_400)] = 60
    """How long CONNECTs are counted, in seconds."""
    ban_s: Annotated[int, Meta(ge=1, le=366 * 86_400)] = 300
    """How long the ban lasts, in seconds."""


class OverloadSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a front end protects itself.

    At level 1 it refuses new connections (0x89, before MQTT 5 return code 3, or closes them before TLS). At
    level 2 it also drops messages of QoS 0, both ways. A level is left when everything has been a fifth
    below its limits for `calm_s`.
    """

    refuse_loop_lag_ms: Milliseconds = 2_000
    """Level 1 when the event loop is so late, in milliseconds, for a second and longer; 0 = not looked at."""
    shed_loop_lag_ms: Milliseconds = 5_000
    """Level 2 when it is so late; 0 = not looked at."""
    refuse_memory_bytes: Annotated[int, Meta(ge=0, le=1 << 48)] = 0
    """Level 1 when the process has so much memory (RSS); 0 = not looked at."""
    shed_memory_bytes: Annotated[int, Meta(ge=0, le=1 << 48)] = 0
    """Level 2 when it has so much; 0 = not looked at."""
    refuse_broker_latency_ms: Milliseconds = 10_000
    """Level 1 when a broker has not answered a batch of messages for so long; 0 = not looked at."""
    shed_broker_latency_ms: Milliseconds = 0
    """Level 2 when it has not answered for so long; 0 = not looked at."""
    calm_s: Annotated[float, Meta(ge=0, le=3_600)] = 5.0
    """How long everything has to be well before a level is left, in seconds."""


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on devices, for one front-end process; each of several workers has its own.

    Authentication may give a device other limits of its client and user, by the names of these settings:
    `messages_in_per_s` or `client.messages_in_per_s`, `user.connections_max`.
    """

    client: RateSettings = RateSettings()
    """Limits of each client id."""
    user: UserLimitSettings = UserLimitSettings()
    """Limits of each user that devices have proved to be."""
    address: PlaceLimitSettings = PlaceLimitSettings()
    """Limits of each address; of IPv6, of each /64, because one host has that many addresses."""
    listener: PlaceLimitSettings = PlaceLimitSettings()
    """Limits of each listener that has none of its own."""
    listeners: Annotated[tuple[ListenerLimitSettings, ...], Meta(max_length=limits.MQTT_LISTENERS_MAX)] = ()
    """Limits of single listeners."""
    flapping: FlappingSettings = FlappingSettings()
    """When devices that connect again and again are banned."""
    overload: OverloadSettings = OverloadSettings()
    """When the front end protects itself."""
    packet_timeout_s: Annotated[float, Meta(ge=1, le=3_600)] = 30.0
    """How long a packet that has begun may take to come, in seconds, beside the time for its bytes at
    packet_bytes_per_s_min. A connection whose packet takes longer is closed."""
    packet_bytes_per_s_min: Annotated[int, Meta(ge=1, le=1 << 30)] = 128
    """The slowest connection that may send large packets, in bytes a second."""
    unfinished_bytes_max: Annotated[int, Meta(ge=1024 * 1024, le=1 << 40)] = 256 * 1024 * 1024
    """Bytes of packets that have not come whole, of all connected devices together, as far as one has more
    than 64 KiB. Past it the device that sends more of one is disconnected."""
