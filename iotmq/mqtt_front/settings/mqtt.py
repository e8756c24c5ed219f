"""Settings of the MQTT front end (sections `[mqtt]` and `[[mqtt.routes]]` of the configuration)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.mqtt_front.settings.authentication import AuthenticationSettings
from iotmq.mqtt_front.settings.listeners import ListenerSettings, tcp_listener
from iotmq.mqtt_front.settings.topics import AutoSubscriptionSettings, RewriteSettings
from iotmq.setting_types import AccountKey, AccountSecret, AddressText, FileName, ListenHost, Port, TopicName


class RouteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the messages of some MQTT topics go; the first route whose filter matches decides."""

    filter: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.MQTT_TOPIC_BYTES_MAX,
            description="MQTT topic filter, such as devices/+/telemetry.",
        ),
    ]
    topic: Annotated[TopicName, Meta(description="Broker topic the messages are stored under.")]
    key: Annotated[
        str,
        Meta(
            max_length=1_024,
            description=(
                "Key of a message: text with {0}, {1}, ... for the levels of the MQTT topic and {topic} for "
                "all of it. Messages of one key stay in one queue, in order."
            ),
        ),
    ] = "{topic}"
    tags: Annotated[
        str,
        Meta(
            max_length=1_024,
            description="Tag of a message for native consumers' filters; levels as in key; empty = none.",
        ),
    ] = ""
    store: Annotated[
        bool,
        Meta(
            description=(
                "False: live subscribers get the message, the log does not; an acknowledgement promises "
                "nothing then."
            ),
        ),
    ] = True


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where devices connect, what they may send, and where their messages go."""

    listen_host: ListenHost = "127.0.0.1"
    listen_port: Annotated[Port, Meta(description="TCP port for MQTT; 0 takes a free one.")] = 1883
    tcp_enabled: Annotated[
        bool, Meta(description="False: listen only at the places in [[mqtt.listeners]].")
    ] = True
    listeners: Annotated[
        tuple[ListenerSettings, ...],
        Meta(max_length=limits.MQTT_LISTENERS_MAX, description="Further places where devices connect."),
    ] = ()
    name: Annotated[
        str,
        Meta(
            max_length=limits.FRONT_END_NAME_BYTES_MAX,
            description=(
                "What brokers call a front end in a process of its own (iotmq mqtt); each has another name. "
                "Empty: host name and process id."
            ),
        ),
    ] = ""
    workers: Annotated[
        int,
        Meta(
            ge=1,
            le=limits.MQTT_WORKERS_MAX,
            description=(
                "Processes of iotmq mqtt that share the MQTT port; the kernel spreads new connections over "
                "them. A core serves one. Each is called name-1, name-2 ... at the brokers; limits such as "
                "connections_max hold for each. iotmq serve has its front end in its one process."
            ),
        ),
    ] = 1
    allow_anonymous_remote: Annotated[
        bool,
        Meta(
            description=(
                "Must be true when listen_host is not loopback and devices need not authenticate "
                "(mqtt.authentication): any host that reaches the port may then publish and subscribe."
            ),
        ),
    ] = False
    authentication: Annotated[
        AuthenticationSettings,
        Meta(description="Which devices may connect, and how they authenticate."),
    ] = AuthenticationSettings()
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000_000,
            description=(
                "Connections of one front-end process; more are closed at once. The limit on open files must "
                "allow it."
            ),
        ),
    ] = limits.MQTT_CONNECTIONS_MAX
    packet_bytes_max: Annotated[
        int,
        Meta(
            ge=128,
            le=16 * 1024 * 1024,
            description=(
                "Largest packet a device may send, in bytes (remaining length); larger ones end the "
                "connection."
            ),
        ),
    ] = limits.MQTT_PACKET_BYTES_MAX
    connect_timeout_s: Annotated[
        float,
        Meta(gt=0, le=300, description="How long a new connection may take to send its CONNECT, in seconds."),
    ] = limits.MQTT_CONNECT_TIMEOUT_S
    keep_alive_s_max: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description=(
                "Longest keep-alive honoured, in seconds; a device that asks for more, or for none, is "
                "watched with this one. 0 = no limit."
            ),
        ),
    ] = 0
    in_flight_max: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description=(
                "Messages of QoS 1 and 2 a subscriber may hold unacknowledged; more of them wait in "
                "queued_bytes_max, or, for a session that is kept, in the log."
            ),
        ),
    ] = 256
    receive_max: Annotated[
        int,
        Meta(
            ge=1,
            le=65_535,
            description=(
                "Messages of QoS 1 and 2 that a device of MQTT 5 may have sent without an answer (its "
                "receive maximum); a device that sends more is disconnected."
            ),
        ),
    ] = limits.MQTT_RECEIVE_MAX
    topic_aliases_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_024,
            description=(
                "Topic aliases of a connection of MQTT 5, each way; each costs the length of its topic in "
                "memory. 0 = none."
            ),
        ),
    ] = limits.MQTT_TOPIC_ALIASES_MAX
    payload_format_checked: Annotated[
        bool,
        Meta(
            description=(
                "Refuse (0x99) messages of MQTT 5 whose payload format indicator says UTF-8 while the "
                "payload is not."
            )
        ),
    ] = False
    response_information: Annotated[
        str,
        Meta(
            max_length=limits.MQTT_TOPIC_BYTES_MAX // 4,
            description=(
                "Response information for devices of MQTT 5 that ask for it: the base of their response "
                "topics. Empty: none."
            ),
        ),
    ] = ""
    queued_bytes_max: Annotated[
        int,
        Meta(
            ge=16 * 1024,
            le=1 << 31,
            description=(
                "Bytes kept in memory for one slow subscriber, for QoS 0 and for QoS 1; further messages "
                "are dropped and counted."
            ),
        ),
    ] = limits.MQTT_QUEUED_BYTES_MAX
    queued_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=0xFFFF_FFFF,
            description=(
                "Messages of QoS 1 and 2 kept in memory behind the window of one subscriber whose session "
                "ends with its connection; 0 = as many as queued_bytes_max holds. Kept sessions have "
                "broker.session_queue_messages_max."
            ),
        ),
    ] = 0
    queued_policy: Annotated[
        Literal["refuse-new", "drop-oldest"],
        Meta(
            description=(
                "Which message is dropped when the messages waiting for such a subscriber are past "
                'queued_bytes_max or queued_messages_max: the new one ("refuse-new"), or the oldest '
                '("drop-oldest").'
            )
        ),
    ] = "refuse-new"
    replay_messages_per_s: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description=(
                "Messages a second that one device is sent of its backlog and of the retained messages of "
                "its subscriptions. New messages are not held back, except behind a backlog of the same "
                "filter. 0 = as fast as it acknowledges and reads."
            ),
        ),
    ] = 0
    replay_bytes_per_s: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 32,
            description="Bytes of records a second, as replay_messages_per_s; 0 = no limit.",
        ),
    ] = 0
    subscriptions_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Filters one session may hold; further ones are refused in the SUBACK.",
        ),
    ] = limits.MQTT_SUBSCRIPTIONS_PER_SESSION_MAX
    server_reference: Annotated[
        str,
        Meta(
            max_length=limits.MQTT_SERVER_REFERENCE_CHARACTERS_MAX,
            pattern=r"^[^\x00-\x1f\x7f]*\Z",
            description=(
                "Where devices of MQTT 5 are sent (0x9C) that this front end does not take, such as "
                "other:1883: past connections_max, when it stops, and when it is drained. Empty: they are "
                "not told where."
            ),
        ),
    ] = ""
    exclusive_subscriptions: Annotated[
        bool,
        Meta(
            description=(
                "Take $exclusive/FILTER, which one session at a time may subscribe; false refuses it in the "
                "SUBACK."
            )
        ),
    ] = True
    session_expiry_s_max: Annotated[
        int,
        Meta(
            ge=0,
            le=0xFFFF_FFFF,
            description=(
                "How long a session that is not clean is kept after its device went, in seconds; 0 keeps "
                "none, 4,294,967,295 keeps them without an end."
            ),
        ),
    ] = 7 * 24 * 3600
    sys_interval_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3_600,
            description=(
                "How often the values below $SYS/broker/ are made, which tell MQTT clients about this front "
                "end, in seconds; 0 makes none."
            ),
        ),
    ] = 10.0
    shared_credit: Annotated[
        int,
        Meta(
            ge=1,
            le=limits.SHARE_CREDIT_MAX,
            description=(
                "Messages of a shared subscription that a broker may have under way to one member; more is "
                "faster, and more of them come twice when a member is lost."
            ),
        ),
    ] = 64
    batch_bytes_max: Annotated[
        int,
        Meta(
            ge=64 * 1024,
            le=limits.RECORD_BYTES_MAX,
            description="Largest batch handed to the broker, in bytes; one request carries no more.",
        ),
    ] = 1024 * 1024
    pending_bytes_max: Annotated[
        int,
        Meta(
            ge=1024 * 1024,
            le=1 << 32,
            description=(
                "Bytes of messages that may wait for the broker before reading from publishers stops."
            ),
        ),
    ] = 32 * 1024 * 1024
    retry_interval_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="Pause before a batch that the broker could not take is offered again, in seconds.",
        ),
    ] = 0.5
    default_topic: Annotated[
        TopicName, Meta(description="Broker topic of messages that no route matches.")
    ] = "mqtt"
    registries: Annotated[
        tuple[AddressText, ...],
        Meta(
            min_length=1,
            max_length=64,
            description="host:port of the registries, for a front end without a broker in its process.",
        ),
    ] = ("127.0.0.1:9876",)
    broker_access_key: Annotated[
        AccountKey,
        Meta(
            description="Account at brokers with access control, an administrator's: a front end acts for "
            "all devices. For a front end without a broker in its process; empty sends requests unsigned.",
        ),
    ] = ""
    broker_secret_key: Annotated[AccountSecret, Meta(description="Secret of that account.")] = ""
    broker_tls_enabled: Annotated[
        bool, Meta(description="Connect to registries and brokers by TLS; all of them have to take it.")
    ] = False
    broker_tls_ca_file: Annotated[
        FileName,
        Meta(description="PEM file with the roots of their certificates; empty for the machine's own."),
    ] = ""
    routes: Annotated[
        tuple[RouteSettings, ...],
        Meta(max_length=10_000, description="Routes in order; the first match decides."),
    ] = ()
    rewrites: Annotated[
        tuple[RewriteSettings, ...],
        Meta(
            max_length=limits.MQTT_REWRITES_MAX,
            description="Other names for topics and filters; the last rule whose filter matches decides.",
        ),
    ] = ()
    auto_subscriptions: Annotated[
        tuple[AutoSubscriptionSettings, ...],
        Meta(
            max_length=limits.MQTT_AUTO_SUBSCRIPTIONS_MAX,
            description="Subscriptions that every session has from its opening on.",
        ),
    ] = ()

    @property
    def all_listeners(self) -> tuple[ListenerSettings, ...]:
        """Return every place where devices connect, the one of listen_port first."""
        first = (tcp_listener(self.listen_host, self.listen_port),) if self.tcp_enabled else ()
        return (*first, *self.listeners)
