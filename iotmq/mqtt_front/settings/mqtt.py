"""Settings of the MQTT front end (section `[mqtt]` of the configuration)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.audit_log import MqttEvent
from iotmq.mqtt_front.settings.authentication import NOBODY, AuthenticationSettings
from iotmq.mqtt_front.settings.limiting import LimitSettings
from iotmq.mqtt_front.settings.listeners import ListenerSettings, tcp_listener
from iotmq.mqtt_front.settings.permissions import PermissionSettings
from iotmq.mqtt_front.settings.plugins import PluginsSettings
from iotmq.mqtt_front.settings.routes import RouteSettings
from iotmq.mqtt_front.settings.topics import (
    AutoSubscriptionSettings,
    BridgeClientSettings,
    RewriteSettings,
)
from iotmq.setting_types import (
    AccountKey,
    AccountSecret,
    AddressText,
    FileName,
    ListenHost,
    Port,
    SecretText,
    TopicName,
)


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where devices connect, what they may send, and where their messages go."""

    listen_host: ListenHost = "127.0.0.1"
    listen_port: Port = 1883
    """TCP port for MQTT; 0 takes a free one."""
    tcp_enabled: bool = True
    """False: listen only at the places in [[mqtt.listeners]]."""
    listeners: Annotated[tuple[ListenerSettings, ...], Meta(max_length=limits.MQTT_LISTENERS_MAX)] = ()
    """Further places where devices connect."""
    name: Annotated[str, Meta(max_length=limits.FRONT_END_NAME_BYTES_MAX)] = ""
    """Name of a front end in a process of its own (iotmq mqtt), for brokers; each has another one. Empty:
    host name and process id."""
    gateway_name: Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9_.-]*\Z")] = ""
    """Name of this gateway for others that are bridged with it (letters, digits, _ . -), the same for all
    its front ends and brokers: what has passed a gateway does not come back to it. Empty: the host name."""
    workers: Annotated[int, Meta(ge=1, le=limits.MQTT_WORKERS_MAX)] = 1
    """Processes of iotmq mqtt that share the MQTT port; the kernel spreads new connections over them. A core
    serves one. Each is called name-1, name-2 ... at the brokers; limits such as connections_max hold for
    each. iotmq serve has its front end in its one process."""
    tls_ticket_secret: Annotated[SecretText, Meta(max_length=1_024)] = ""
    """Any long text, the same at all front ends behind one address: a device resumes its TLS session at any
    of them whose listener has the same settings and certificates. Empty: a new one for each start of iotmq,
    which workers share."""
    allow_anonymous_remote: bool = False
    """Must be true when listen_host is not loopback and devices need not authenticate (mqtt.authentication):
    any host that reaches the port may then publish and subscribe."""
    authentication: AuthenticationSettings = AuthenticationSettings()
    """Which devices may connect, and how they authenticate."""
    permissions: PermissionSettings = PermissionSettings()
    """Which topics devices may publish and subscribe."""
    plugins: PluginsSettings = PluginsSettings()
    """Plug-ins that decide about devices and hear of them."""
    device_limits: LimitSettings = LimitSettings()
    """Limits on devices: rates and connections by client, user, address and listener, flapping, overload."""
    connections_max: Annotated[int, Meta(ge=1, le=10_000_000)] = limits.MQTT_CONNECTIONS_MAX
    """Connections of one front-end process; more are closed at once. The limit on open files must allow
    it."""
    packet_bytes_max: Annotated[int, Meta(ge=128, le=16 * 1024 * 1024)] = limits.MQTT_PACKET_BYTES_MAX
    """Largest packet a device may send, in bytes (remaining length); larger ones end the connection."""
    connect_timeout_s: Annotated[float, Meta(gt=0, le=300)] = limits.MQTT_CONNECT_TIMEOUT_S
    """How long a new connection may take to send its CONNECT, in seconds."""
    keep_alive_s_max: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Longest keep-alive honoured, in seconds; a device that asks for more, or for none, is watched with this
    one. 0 = no limit."""
    in_flight_max: Annotated[int, Meta(ge=1, le=65_535)] = 256
    """Messages of QoS 1 and 2 a subscriber may hold unacknowledged; more of them wait in queued_bytes_max,
    or, for a session that is kept, in the log."""
    receive_max: Annotated[int, Meta(ge=1, le=65_535)] = limits.MQTT_RECEIVE_MAX
    """Messages of QoS 1 and 2 that a device of MQTT 5 may have sent without an answer (its receive maximum);
    a device that sends more is disconnected."""
    topic_aliases_max: Annotated[int, Meta(ge=0, le=1_024)] = limits.MQTT_TOPIC_ALIASES_MAX
    """Topic aliases of a connection of MQTT 5, each way; each costs the length of its topic in memory. 0 =
    none."""
    payload_format_checked: bool = False
    """Refuse (0x99) messages of MQTT 5 whose payload format indicator says UTF-8 while the payload is not."""
    response_information: Annotated[str, Meta(max_length=limits.MQTT_TOPIC_BYTES_MAX // 4)] = ""
    """Response information for devices of MQTT 5 that ask for it: the base of their response topics. Empty:
    none."""
    queued_bytes_max: Annotated[int, Meta(ge=16 * 1024, le=1 << 31)] = limits.MQTT_QUEUED_BYTES_MAX
    """Bytes kept in memory for one slow subscriber, for QoS 0 and for QoS 1; further messages are dropped and
    counted."""
    queued_messages_max: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] = 0
    """Messages of QoS 1 and 2 kept in memory behind the window of one subscriber whose session ends with its
    connection; 0 = as many as queued_bytes_max holds. Kept sessions have
    broker.session_queue_messages_max."""
    queued_policy: Literal["refuse-new", "drop-oldest"] = "refuse-new"
    """Which message is dropped when the messages waiting for such a subscriber are past queued_bytes_max or
    queued_messages_max: the new one ("refuse-new"), or the oldest ("drop-oldest")."""
    replay_messages_per_s: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Messages a second that one device is sent of its backlog and of the retained messages of its
    subscriptions. New messages are not held back, except behind a backlog of the same filter. 0 = as fast as
    it acknowledges and reads."""
    replay_bytes_per_s: Annotated[int, Meta(ge=0, le=1 << 32)] = 0
    """Bytes of records a second, as replay_messages_per_s; 0 = no limit."""
    subscriptions_max: Annotated[int, Meta(ge=1, le=1_000_000)] = limits.MQTT_SUBSCRIPTIONS_PER_SESSION_MAX
    """Filters one session may hold; further ones are refused in the SUBACK."""
    server_reference: Annotated[
        str, Meta(max_length=limits.MQTT_SERVER_REFERENCE_CHARACTERS_MAX, pattern=r"^[^\x00-\x1f\x7f]*\Z")
    ] = ""
    """Where devices of MQTT 5 are sent (0x9C) that this front end does not take, such as other:1883: past
    connections_max, when it stops, and when it is drained. Empty: they are not told where."""
    exclusive_subscriptions: bool = True
    """Take $exclusive/FILTER, which one session at a time may subscribe; false refuses it in the SUBACK."""
    session_expiry_s_max: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] = 7 * 24 * 3600
    """How long a session that is not clean is kept after its device went, in seconds; 0 keeps none,
    4,294,967,295 keeps them without an end."""
    sys_interval_s: Annotated[float, Meta(ge=0, le=3_600)] = 10.0
    """How often the values below $SYS/broker/ are made, which tell MQTT clients about this front end, in
    seconds; 0 makes none."""
    client_prefix_ends: Annotated[str, Meta(max_length=32)] = "-_:/."
    """Characters that end the prefix of a client id, for which brokers keep statistics
    (broker.statistics_names_max): with - the clients truck-1 and truck-2 count as truck. Client ids without
    one of them count together. Empty: all count together."""
    shared_credit: Annotated[int, Meta(ge=1, le=limits.SHARE_CREDIT_MAX)] = 64
    """Messages of a shared subscription that a broker may have under way to one member; more is faster, and
    more of them come twice when a member is lost."""
    batch_bytes_max: Annotated[int, Meta(ge=64 * 1024, le=limits.RECORD_BYTES_MAX)] = 1024 * 1024
    """Largest batch handed to the broker, in bytes; one request carries no more."""
    pending_bytes_max: Annotated[int, Meta(ge=1024 * 1024, le=1 << 32)] = 32 * 1024 * 1024
    """Bytes of messages that may wait for the broker before reading from publishers stops."""
    retry_interval_s: Annotated[float, Meta(gt=0, le=60)] = 0.5
    """Pause before a batch that the broker could not take is offered again, in seconds."""
    default_topic: TopicName = "mqtt"
    """Broker topic of messages that no route matches."""
    registries: Annotated[tuple[AddressText, ...], Meta(min_length=1, max_length=64)] = ("127.0.0.1:9876",)
    """host:port of the registries, for a front end without a broker in its process. One in the process of a
    member of a replicated broker asks those of broker.registries, too."""
    broker_access_key: AccountKey = ""
    """Account at brokers with access control, an administrator's: a front end acts for all devices. For a
    front end without a broker in its process; empty sends requests unsigned."""
    broker_secret_key: AccountSecret = ""
    """Secret of that account."""
    broker_tls_enabled: bool = False
    """Connect to registries and brokers by TLS; all of them have to take it."""
    broker_tls_ca_file: FileName = ""
    """PEM file with the roots of their certificates; empty for the machine's own."""
    broker_tls_certificate_file: FileName = ""
    """PEM file with the front end's certificate, where they ask for one; empty for none."""
    broker_tls_key_file: FileName = ""
    """PEM file with its key; empty when the certificate's file has it."""
    audit_events: Annotated[tuple[MqttEvent, ...], Meta(max_length=16)] = (
        "refused",
        "denied",
        "banned",
        "revoked",
    )
    """Events that become records of the topic rmq_sys_iotmq_audit; empty for none. connected and disconnected
    are one for each connection, kicked one for each that was taken over or that an operator ended."""
    audit_records_per_s_max: Annotated[int, Meta(ge=1, le=1_000_000)] = limits.AUDIT_RECORDS_PER_S_MAX
    """Audit records a second; further ones are dropped and counted, so that a hostile device does not fill
    the log."""
    routes: Annotated[tuple[RouteSettings, ...], Meta(max_length=limits.MQTT_ROUTES_MAX)] = ()
    """Routes in order; the first match decides."""
    routes_file: FileName = ""
    """A TOML file with the routes, as [[routes]], in place of mqtt.routes. It is read again when it changes;
    connections stay open. A file with an error changes nothing, and says so in the log."""
    routes_reload_interval_s: Annotated[float, Meta(ge=0.01, le=3_600)] = 5.0
    """How often that file is looked at for changes, in seconds."""
    quarantine_topic: TopicName = "mqtt-quarantine"
    """Broker topic of payloads that a route puts aside, because a checksum is wrong or they are no JSON."""
    json_bytes_max: Annotated[int, Meta(ge=1, le=limits.MQTT_PACKET_BYTES_MAX)] = (
        limits.MQTT_ROUTE_JSON_BYTES_MAX
    )
    """Largest payload that is read for routes that ask for JSON fields, in bytes; a larger one counts as no
    JSON."""
    rewrites: Annotated[tuple[RewriteSettings, ...], Meta(max_length=limits.MQTT_REWRITES_MAX)] = ()
    """Other names for topics and filters; the last rule whose filter matches decides."""
    hooks: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^:]+:[^:]+$", max_length=255)], ...],
        Meta(max_length=limits.MQTT_HOOKS_MAX),
    ] = ()
    """Classes of your own, MODULE:CLASS, derived from iotmq.hooks.Hooks, that decide and hear what devices
    do; asked in this order."""
    hook_timeout_s: Annotated[float, Meta(ge=0.01, le=60)] = 1.0
    """How long a hook may take to decide, in seconds; a late one denies."""
    auto_subscriptions: Annotated[
        tuple[AutoSubscriptionSettings, ...], Meta(max_length=limits.MQTT_AUTO_SUBSCRIPTIONS_MAX)
    ] = ()
    """Subscriptions that every session has from its opening on."""
    bridge_clients: Annotated[
        tuple[BridgeClientSettings, ...], Meta(max_length=limits.MQTT_BRIDGE_CLIENTS_MAX)
    ] = ()
    """Clients that speak for other devices: bridges of brokers at the edge. A bridge of MQTT 3.1 and 3.1.1
    that says that it is one is a bridge without being named here; it has no prefix and no trust."""

    @property
    def all_listeners(self) -> tuple[ListenerSettings, ...]:
        """Return every place where devices connect, the one of listen_port first."""
        first = (tcp_listener(self.listen_host, self.listen_port),) if self.tcp_enabled else ()
        return (*first, *self.listeners)

    def asks_at(self, listener: str) -> bool:
        """Return whether devices of this listener are asked who they are."""
        chain = next((each.chain for each in self.all_listeners if each.name == listener), None)
        return self.authentication.is_asked and chain != (NOBODY,)

    def has_to_be_proved_at(self, listener: ListenerSettings) -> bool:
        """Return whether nobody gets in at a listener without a proof."""
        return listener.needs_client_certificate or self.needs_user_at(listener)

    def needs_user_at(self, listener: ListenerSettings) -> bool:
        """Return whether nobody gets in at a listener without being some user."""
        if listener.chain == (NOBODY,):
            return False
        asked = self.authentication
        return not asked.allow_anonymous if asked.is_asked else listener.client_identity_is_user
