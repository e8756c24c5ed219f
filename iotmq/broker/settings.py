"""Settings of the broker role (section `[broker]` of the configuration)."""

from __future__ import annotations

import ssl
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.audit_log import BrokerEvent
from iotmq.remoting.signature import Credentials
from iotmq.remoting.tls.files import (
    TLS_HANDSHAKE_S,
    TlsCertificateFile,
    TlsClientCaFile,
    TlsHandshakesMax,
    TlsHandshakeTimeout,
    TlsKeyFile,
    TlsMode,
    client_tls,
)
from iotmq.secret_text import hide
from iotmq.setting_types import (
    TOPIC_NAME_PATTERN,
    AccountKey,
    AccountSecret,
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

    name: TopicName = "broker-a"
    """Broker name, which no other broker of the cluster has; a topic of this name is made. Renaming a broker
    with data strands the consumer offsets clients keep by broker name."""
    cluster: Annotated[
        str, Meta(pattern=TOPIC_NAME_PATTERN, max_length=limits.TOPIC_BYTES_MAX - len("_REPLY_TOPIC"))
    ] = "DefaultCluster"
    """Cluster name, written as property CLUSTER into every record."""
    broker_id: Annotated[int, Meta(ge=0, le=0)] = 0
    """Always 0; a slave's number is `replication.broker_id`."""
    listen_host: ListenHost = "127.0.0.1"
    listen_port: NativePort = 10_911
    advertised_host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """IP address or name that clients connect to; registries are told, and the address is part of every
    record and message id. Clients cannot reach the broker when it is wrong."""
    advertised_port: Port = 0
    """Port that clients connect to; 0 means the listening port."""
    registries: Annotated[tuple[AddressText, ...], Meta(max_length=64)] = ("127.0.0.1:9876",)
    """host:port of every registry; the broker registers with each of them."""
    registration_interval_s: Annotated[float, Meta(ge=0.05, le=60.0)] = 30.0
    """Seconds between registrations; registries forget a broker after 120 s."""
    registration_timeout_s: Annotated[float, Meta(ge=0.05, le=60.0)] = 6.0
    """Seconds a registry may take to connect or to answer."""
    auto_create_topics: bool = True
    """Make a topic on the first send to it. A mistyped name becomes a topic, too: turn it off where topics
    are administered."""
    auto_create_groups: bool = True
    """Make a consumer group on its first heartbeat or pull."""
    default_topic_queues: Annotated[int, Meta(ge=1, le=limits.QUEUES_PER_TOPIC_MAX)] = 8
    """Queues of the template topic TBW102, and of topics the gateway itself makes; a client's own
    number (4 by default) wins where it is smaller."""
    delay_levels: Annotated[str, Meta(pattern=r"^(\s*\d{1,6}[smhd]\b)+\s*$", max_length=1_024)] = (
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )
    """How long each delay level waits, from level 1 on. Consumers' retries start at 3. A change holds for
    messages stored from then on; waiting messages wait no longer than their level does after the change."""
    retained_messages_max: Annotated[int, Meta(ge=0, le=100_000_000)] = 1_000_000
    """MQTT topics that may have a retained message; past it further topics get none, which is counted."""
    retained_bytes_max: Annotated[int, Meta(ge=0, le=1 << 40)] = 1 << 30
    """Bytes of all retained messages together, on the disk."""
    wide_filter_percent: Annotated[int, Meta(ge=0, le=100)] = 25
    """Percentage of all records that makes a filter of kept sessions wide. A wide filter has no entry for
    each record; its sessions read the log and skip other records. It stops being wide when it has matched
    less than half of this for a whole window. 0: no filter is ever wide. Not used while
    session_queue_messages_max, _bytes_max or _age_s_max is set."""
    wide_filter_window_records: Annotated[int, Meta(ge=1, le=1 << 30)] = 65_536
    """Records of the log over which that share is measured: enough that a burst to one filter in a quiet hour
    does not make the filter wide."""
    timers_pending_max: Annotated[int, Meta(ge=0, le=1_000_000_000)] = limits.TIMERS_PENDING_MAX
    """Messages that may wait for their time, by delay level or any other; more are refused, but for
    consumers' retries. Each costs about 150 bytes of disk besides its record."""
    is_writable: bool = True
    """Take sends; false drains a broker before removal."""
    is_readable: bool = True
    """Answer pulls."""
    offsets_interval_s: Annotated[float, Meta(ge=0.05, le=3_600.0)] = 5.0
    """Seconds between writes of consumerOffset.json: so much consumption a crash repeats."""
    client_expiry_s: Annotated[float, Meta(ge=1.0, le=3_600.0)] = 120.0
    """A client silent for so many seconds leaves its groups."""
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = limits.NATIVE_CONNECTIONS_MAX
    """Native connections at one time; more are closed at once."""
    idle_s: Annotated[float, Meta(ge=1.0, le=86_400.0)] = limits.NATIVE_IDLE_S
    """A connection without traffic for so many seconds is closed."""
    held_pulls_max: Annotated[int, Meta(ge=0, le=10_000_000)] = limits.HELD_PULLS_MAX
    """Parked pulls at one time; more are answered empty at once."""
    relay_timeout_s: Annotated[float, Meta(ge=0.05, le=600.0)] = 10.0
    """Seconds a client has to answer an administrator's question."""
    cold_read_threads: Annotated[int, Meta(ge=1, le=256)] = 4
    """Threads that read from the disk for pulls far behind the end of the log; about as many as the disk
    serves at a time."""
    cold_reads_max: Annotated[int, Meta(ge=1, le=1_000_000)] = limits.COLD_READS_MAX
    """Pulls that wait for the disk; more are told SYSTEM_BUSY."""
    transaction_timeout_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 6.0
    """A producer is asked about a transaction that it has not ended for so many seconds, unless the message
    says otherwise (CHECK_IMMUNITY_TIME_IN_SECONDS)."""
    transaction_check_interval_s: Annotated[float, Meta(ge=0.05, le=86_400.0)] = 60.0
    """Seconds between questions about a transaction."""
    transaction_checks_max: Annotated[int, Meta(ge=1, le=10_000)] = 15
    """A transaction that is still open after so many questions goes to TRANS_CHECK_MAX_TIME_TOPIC. Questions
    without a connected producer count as well."""
    transactions_pending_max: Annotated[int, Meta(ge=0, le=10_000_000)] = limits.TRANSACTIONS_PENDING_MAX
    """Transactions without an end at one time, about 300 bytes of memory each; prepared messages past it are
    refused."""
    lag_groups: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=limits.GROUP_BYTES_MAX)], ...], Meta(max_length=64)
    ] = ()
    """Groups whose lag is in /metrics, by name or pattern (`billing`, `alerts-*`), looked at every 10 s. A
    broker shows 1,000 pairs of group and topic; further ones are counted."""
    property_filter_enabled: bool = True
    """Serve subscriptions by SQL92 over properties. Java brokers have it off, because it costs them a decoded
    record each; here it costs some 100 ns a record, and a pull has a limit."""
    session_queue_messages_max: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """Messages that may wait for one kept MQTT session at this broker, besides those it was sent and has not
    acknowledged; one that two of its filters match counts twice. 0 = as many as the log keeps."""
    session_queue_bytes_max: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    """Bytes of records that may wait for one kept MQTT session at this broker, counted like
    session_queue_messages_max. A look at a session past it goes through the entries of so many bytes: some 20
    ms for 10 MB of small messages. 0 = no limit."""
    session_queue_age_s_max: Annotated[int, Meta(ge=0, le=10 * 366 * 86_400)] = 0
    """Seconds a message may wait for a kept MQTT session since it was stored. 0 = as long as the log keeps
    it."""
    session_queue_policy: QueuePolicy = "drop-oldest"
    """Which messages a kept session loses past its number of messages or bytes: with "drop-oldest" those that
    have waited longest, with "refuse-new" the new ones."""
    store_replies: bool = True
    """Store the replies of request-reply in CLUSTER_REPLY_TOPIC, besides handing them to the requester."""
    shared_strategy: Literal["round_robin", "sticky", "hash_topic", "hash_client", "local_first"] = (
        "round_robin"
    )
    """Which member of a shared subscription gets a message: round_robin one after the other; sticky one until
    it goes; hash_topic and hash_client the same for all of an MQTT topic or of a publisher, in order;
    local_first one at the publisher's front end, if it can take it."""
    shared_timeout_s: Annotated[float, Meta(ge=0.1, le=86_400.0)] = 30.0
    """Seconds a member of a shared subscription may hold a message before it is for another one; only where
    there is another one that keeps up."""
    shared_groups_max: Annotated[int, Meta(ge=0, le=1_000_000)] = limits.SHARE_GROUPS_MAX
    """Groups of shared subscriptions, one for each name and filter; more are refused."""
    exclusive_subscriptions_max: Annotated[int, Meta(ge=0, le=10_000_000)] = (
        limits.EXCLUSIVE_SUBSCRIPTIONS_MAX
    )
    """Exclusive subscriptions ($exclusive/FILTER) that one broker decides about; more are refused."""
    shared_members_max: Annotated[int, Meta(ge=1, le=100_000)] = limits.SHARE_MEMBERS_MAX
    """Connected members of one group; more are refused."""
    shared_in_flight_max: Annotated[int, Meta(ge=1, le=65_536)] = limits.SHARE_IN_FLIGHT_MAX
    """Messages of one group that were read and not acknowledged; further ones wait in the log. They are
    recorded in the log five times a second: more messages make larger records."""
    tls_mode: TlsMode = "permissive"
    tls_certificate_file: TlsCertificateFile = ""
    tls_key_file: TlsKeyFile = ""
    tls_client_ca_file: TlsClientCaFile = ""
    tls_handshake_timeout_s: TlsHandshakeTimeout = TLS_HANDSHAKE_S
    tls_handshakes_max: TlsHandshakesMax = limits.TLS_HANDSHAKES_MAX
    registry_tls_enabled: bool = False
    """Register by TLS; for registries that take nothing else."""
    registry_tls_ca_file: FileName = ""
    """PEM file with the roots of the registries' certificates; empty for the machine's own."""
    registry_tls_certificate_file: FileName = ""
    """PEM file with the broker's certificate, where registries ask for one; empty for none."""
    registry_tls_key_file: FileName = ""
    """PEM file with its key; empty when the certificate's file has it."""
    registry_access_key: AccountKey = ""
    """Account at registries with access control (registry.access), an administrator's; empty sends
    registrations unsigned."""
    registry_secret_key: AccountSecret = ""
    """Secret of that account."""
    audit_events: Annotated[tuple[BrokerEvent, ...], Meta(max_length=16)] = (
        "administered",
        "refused",
        "denied",
    )
    """Events that become records of the topic rmq_sys_iotmq_audit; empty for none. administered: an operator
    changed something; refused, denied: access control did not know an account, or it lacked a right."""
    audit_records_per_s_max: Annotated[int, Meta(ge=1, le=1_000_000)] = limits.AUDIT_RECORDS_PER_S_MAX
    """Audit records a second; further ones are dropped and counted."""
    acl_enabled: bool = False
    """Require an account with the right permission for every request. Clients must sign their requests; a
    send costs some 10 us instead of less than one."""
    acl_file: FileName = ""
    """The file of accounts, in the format of RocketMQ's plain_acl.yml; empty means config/plain_acl.yml in
    the data directory. It holds secrets: no other user may read it."""
    acl_reload_interval_s: Annotated[float, Meta(ge=0.05, le=3_600.0)] = 1.0
    """Seconds between looks at whether the file of accounts changed; until then a removed account is let
    in."""
    statistics_names_max: Annotated[int, Meta(ge=0, le=10_000)] = limits.STATISTICS_NAMES_MAX
    """Topics, groups and prefixes of client ids whose counts are kept for each minute, hour and day, so many
    of each kind; the ones with fewest messages count together. A minute takes up to 44 bytes of disk for
    each name that has messages. 0 keeps none."""
    statistics_minute_days: Annotated[int, Meta(ge=1, le=366)] = 3
    """Days whose minutes are kept, today among them."""
    statistics_hour_months: Annotated[int, Meta(ge=1, le=1_200)] = 3
    """Months whose hours are kept, this one among them."""
    statistics_day_years: Annotated[int, Meta(ge=1, le=100)] = 5
    """Years whose days are kept, this one among them."""
    region: Annotated[str, Meta(max_length=64)] = "DefaultRegion"
    """Value of MSG_REGION in send answers; clients copy it into traces."""
    is_tracing_allowed: bool = True
    """Value of TRACE_ON in send answers: clients with tracing send traces."""

    def __post_init__(self) -> None:
        hide(self, "registry_secret_key")

    @property
    def registry_credentials(self) -> Credentials | None:
        """Return what signs requests to registries; None for unsigned ones."""
        if not self.registry_access_key:
            return None
        return Credentials(self.registry_access_key, self.registry_secret_key)

    def registry_tls(self) -> ssl.SSLContext | None:
        """Make the TLS context for registries; None for plain ones. ConfigError for an unusable file."""
        if not self.registry_tls_enabled:
            return None
        return client_tls(
            ca_file=self.registry_tls_ca_file,
            certificate_file=self.registry_tls_certificate_file,
            key_file=self.registry_tls_key_file,
        )

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
