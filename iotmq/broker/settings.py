"""Settings of the broker role (section `[broker]` of the configuration)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.remoting.tls.files import (
    TLS_HANDSHAKE_S,
    TlsCertificateFile,
    TlsClientCaFile,
    TlsHandshakesMax,
    TlsHandshakeTimeout,
    TlsKeyFile,
    TlsMode,
)
from iotmq.setting_types import (
    TOPIC_NAME_PATTERN,
    AddressText,
    FileName,
    ListenHost,
    NativePort,
    Port,
    TopicName,
)

QueuePolicy = Literal["drop-oldest", "refuse-new"]
"""Choice of the messages that a session past its limits loses."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limit the messages that wait for a kept session; 0 is no limit."""

    messages_max: int = 0
    bytes_max: int = 0
    age_s_max: int = 0
    policy: QueuePolicy = "drop-oldest"

    @property
    def has_any(self) -> bool:
        return bool(self.messages_max or self.bytes_max or self.age_s_max)


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set a broker's name, its addresses, its registries, and the limits of its clients."""

    name: Annotated[
        TopicName,
        Meta(
            description="Broker name, which no other broker of the cluster has; a topic of this name is "
            "made. Renaming a broker with data strands the consumer offsets clients keep by broker name.",
        ),
    ] = "broker-a"
    cluster: Annotated[
        str,
        Meta(
            pattern=TOPIC_NAME_PATTERN,
            max_length=limits.TOPIC_BYTES_MAX - len("_REPLY_TOPIC"),
            description="Cluster name, written as property CLUSTER into every record.",
        ),
    ] = "DefaultCluster"
    broker_id: Annotated[
        int,
        Meta(
            ge=0,
            le=0,
            description="0, the master of its name; there is no replication, so a slave would have no data.",
        ),
    ] = 0
    listen_host: ListenHost = "127.0.0.1"
    listen_port: NativePort = 10_911
    advertised_host: Annotated[
        str,
        Meta(
            min_length=1,
            description="IP address or name that clients connect to; registries are told, and the address "
            "is part of every record and message id. Clients cannot reach the broker when it is wrong.",
        ),
    ] = "127.0.0.1"
    advertised_port: Annotated[
        Port, Meta(description="Port that clients connect to; 0 means the listening port.")
    ] = 0
    registries: Annotated[
        tuple[AddressText, ...],
        Meta(
            max_length=64, description="host:port of every registry; the broker registers with each of them."
        ),
    ] = ("127.0.0.1:9876",)
    registration_interval_s: Annotated[
        float,
        Meta(
            ge=0.05,
            le=60.0,
            description="Seconds between registrations; registries forget a broker after 120 s.",
        ),
    ] = 30.0
    registration_timeout_s: Annotated[
        float, Meta(ge=0.05, le=60.0, description="Seconds a registry may take to connect or to answer.")
    ] = 6.0
    auto_create_topics: Annotated[
        bool,
        Meta(
            description="Make a topic on the first send to it. A mistyped name becomes a topic, too: "
            "turn it off where topics are administered."
        ),
    ] = True
    auto_create_groups: Annotated[
        bool, Meta(description="Make a consumer group on its first heartbeat or pull.")
    ] = True
    default_topic_queues: Annotated[
        int,
        Meta(
            ge=1,
            le=limits.QUEUES_PER_TOPIC_MAX,
            description="Queues of the template topic TBW102, and of topics the gateway itself makes; "
            "a client's own delivery_time (4 by default) wins where it is smaller.",
        ),
    ] = 8
    delay_levels: Annotated[
        str,
        Meta(
            pattern=r"^(\s*\d{1,6}[smhd]\b)+\s*$",
            max_length=1_024,
            description="How long each delay level waits, from level 1 on. Consumers' retries start at 3. A "
            "change holds for messages stored from then on; waiting messages wait no longer than their "
            "level does after the change.",
        ),
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    retained_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description=(
                "MQTT topics that may have a retained message; past it further topics get none, which is "
                "counted."
            ),
        ),
    ] = 1_000_000
    retained_bytes_max: Annotated[
        int,
        Meta(ge=0, le=1 << 40, description="Bytes of all retained messages together, on the disk."),
    ] = 1 << 30
    wide_filter_percent: Annotated[
        int,
        Meta(
            ge=0,
            le=100,
            description="Percentage of all records that makes a filter of kept sessions wide. A wide filter "
            "has no entry for each record; its sessions read the log and skip other records. It stops being "
            "wide when it has matched less than half of this for a whole window. 0: no filter is ever wide. "
            "Not used while session_queue_messages_max, _bytes_max or _age_s_max is set.",
        ),
    ] = 25
    wide_filter_window_records: Annotated[
        int,
        Meta(
            ge=1,
            le=1 << 30,
            description="Records of the log over which that share is measured: enough that a burst to one "
            "filter in a quiet hour does not make the filter wide.",
        ),
    ] = 65_536
    timers_pending_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000_000,
            description="Messages that may wait for their time, by delay level or any other; more are "
            "refused, but for consumers' retries. Each costs about 150 bytes of disk besides its record.",
        ),
    ] = limits.TIMERS_PENDING_MAX
    is_writable: Annotated[bool, Meta(description="Take sends; false drains a broker before removal.")] = True
    is_readable: Annotated[bool, Meta(description="Answer pulls.")] = True
    offsets_interval_s: Annotated[
        float,
        Meta(
            ge=0.05,
            le=3_600.0,
            description="Seconds between writes of consumerOffset.json: so much consumption a crash repeats.",
        ),
    ] = 5.0
    client_expiry_s: Annotated[
        float, Meta(ge=1.0, le=3_600.0, description="A client silent for so many seconds leaves its groups.")
    ] = 120.0
    connections_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Native connections at one time; more are closed at once.")
    ] = limits.NATIVE_CONNECTIONS_MAX
    idle_s: Annotated[
        float,
        Meta(ge=1.0, le=86_400.0, description="A connection without traffic for so many seconds is closed."),
    ] = limits.NATIVE_IDLE_S
    held_pulls_max: Annotated[
        int,
        Meta(ge=0, le=10_000_000, description="Parked pulls at one time; more are answered empty at once."),
    ] = limits.HELD_PULLS_MAX
    relay_timeout_s: Annotated[
        float,
        Meta(
            ge=0.05,
            le=600.0,
            description="Seconds a client has to answer an administrator's question.",
        ),
    ] = 10.0
    cold_read_threads: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Threads that read from the disk for pulls far behind the end of the log; about as "
            "many as the disk serves at a time.",
        ),
    ] = 4
    cold_reads_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Pulls that wait for the disk; more are told SYSTEM_BUSY."),
    ] = limits.COLD_READS_MAX
    transaction_timeout_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=86_400.0,
            description="A producer is asked about a transaction that it has not ended for so many seconds, "
            "unless the message says otherwise (CHECK_IMMUNITY_TIME_IN_SECONDS).",
        ),
    ] = 6.0
    transaction_check_interval_s: Annotated[
        float,
        Meta(ge=0.05, le=86_400.0, description="Seconds between questions about a transaction."),
    ] = 60.0
    transaction_checks_max: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="A transaction that is still open after so many questions goes to "
            "TRANS_CHECK_MAX_TIME_TOPIC. Questions without a connected producer count as well.",
        ),
    ] = 15
    transactions_pending_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Transactions without an end at one time, about 300 bytes of memory each; prepared "
            "messages past it are refused.",
        ),
    ] = limits.TRANSACTIONS_PENDING_MAX
    property_filter_enabled: Annotated[
        bool,
        Meta(
            description="Serve subscriptions by SQL92 over properties. Java brokers have it off, because it "
            "costs them a decoded record each; here it costs some 100 ns a record, and a pull has a limit."
        ),
    ] = True
    session_queue_messages_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="Messages that may wait for one kept MQTT session at this broker, besides those it "
            "was sent and has not acknowledged; one that two of its filters match counts twice. 0 = as many "
            "as the log keeps.",
        ),
    ] = 0
    session_queue_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="Bytes of records that may wait for one kept MQTT session at this broker, counted "
            "like session_queue_messages_max. A look at a session past it goes through the entries of so "
            "many bytes: some 20 ms for 10 MB of small messages. 0 = no limit.",
        ),
    ] = 0
    session_queue_age_s_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10 * 366 * 86_400,
            description="Seconds a message may wait for a kept MQTT session since it was stored. 0 = as long "
            "as the log keeps it.",
        ),
    ] = 0
    session_queue_policy: Annotated[
        QueuePolicy,
        Meta(
            description="Which messages a kept session loses past its number of messages or bytes: "
            'with "drop-oldest" those that have waited longest, with "refuse-new" the new ones.'
        ),
    ] = "drop-oldest"
    store_replies: Annotated[
        bool,
        Meta(
            description="Store the replies of request-reply in CLUSTER_REPLY_TOPIC, besides handing them to "
            "the requester."
        ),
    ] = True
    shared_strategy: Annotated[
        Literal["round_robin", "sticky", "hash_topic", "hash_client", "local_first"],
        Meta(
            description="Which member of a shared subscription gets a message: round_robin one after the "
            "other; sticky one until it goes; hash_topic and hash_client the same for all of an MQTT topic "
            "or of a publisher, in order; local_first one at the publisher's front end, if it can take it.",
        ),
    ] = "round_robin"
    shared_timeout_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=86_400.0,
            description="Seconds a member of a shared subscription may hold a message before it is for "
            "another one; only where there is another one that keeps up.",
        ),
    ] = 30.0
    shared_groups_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Groups of shared subscriptions, one for each name and filter; more are refused.",
        ),
    ] = limits.SHARE_GROUPS_MAX
    exclusive_subscriptions_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000_000,
            description="Exclusive subscriptions ($exclusive/FILTER) that one broker decides about; more are "
            "refused.",
        ),
    ] = limits.EXCLUSIVE_SUBSCRIPTIONS_MAX
    shared_members_max: Annotated[
        int,
        Meta(ge=1, le=100_000, description="Connected members of one group; more are refused."),
    ] = limits.SHARE_MEMBERS_MAX
    shared_in_flight_max: Annotated[
        int,
        Meta(
            ge=1,
            le=65_536,
            description="Messages of one group that were read and not acknowledged; further ones wait in "
            "the log. They are recorded in the log five times a second: more messages make larger records.",
        ),
    ] = limits.SHARE_IN_FLIGHT_MAX
    tls_mode: TlsMode = "permissive"
    tls_certificate_file: TlsCertificateFile = ""
    tls_key_file: TlsKeyFile = ""
    tls_client_ca_file: TlsClientCaFile = ""
    tls_handshake_timeout_s: TlsHandshakeTimeout = TLS_HANDSHAKE_S
    tls_handshakes_max: TlsHandshakesMax = limits.TLS_HANDSHAKES_MAX
    registry_tls_enabled: Annotated[
        bool, Meta(description="Register by TLS; for registries that take nothing else.")
    ] = False
    registry_tls_ca_file: Annotated[
        FileName,
        Meta(
            description="PEM file with the roots of the registries' certificates; empty for the machine's "
            "own."
        ),
    ] = ""
    acl_enabled: Annotated[
        bool,
        Meta(
            description="Require an account with the right permission for every request. Clients must sign "
            "their requests; a send costs some 10 us instead of less than one."
        ),
    ] = False
    acl_file: Annotated[
        FileName,
        Meta(
            description="The file of accounts, in the format of RocketMQ's plain_acl.yml; empty means "
            "config/plain_acl.yml in the data directory. It holds secrets: no other user may read it.",
        ),
    ] = ""
    acl_reload_interval_s: Annotated[
        float,
        Meta(
            ge=0.05,
            le=3_600.0,
            description="Seconds between looks at whether the file of accounts changed; until then a removed "
            "account is let in.",
        ),
    ] = 1.0
    region: Annotated[
        str,
        Meta(max_length=64, description="Value of MSG_REGION in send answers; clients copy it into traces."),
    ] = "DefaultRegion"
    is_tracing_allowed: Annotated[
        bool, Meta(description="Value of TRACE_ON in send answers: clients with tracing send traces.")
    ] = True

    @property
    def trace_on(self) -> str:
        """Return the field TRACE_ON of answers to sends."""
        return "true" if self.is_tracing_allowed else "false"

    @property
    def session_limits(self) -> QueueLimits:
        """Return the limits of messages that wait for one kept session."""
        return QueueLimits(
            messages_max=self.session_queue_messages_max,
            bytes_max=self.session_queue_bytes_max,
            age_s_max=self.session_queue_age_s_max,
            policy=self.session_queue_policy,
        )
