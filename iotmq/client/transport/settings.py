"""Settings of the native client; every value has a default that suits one broker on the same machine."""

from __future__ import annotations

import ssl
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq.limits import PULL_BYTES_MAX, PULL_RECORDS_MAX, RECORD_BYTES_MAX
from iotmq.remoting.signature import Credentials
from iotmq.remoting.tls.files import client_tls
from iotmq.setting_types import AccountKey, AccountSecret, FileName

ConsumeFrom = Literal["last", "first", "timestamp"]
MessageModel = Literal["clustering", "broadcasting"]


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that all producers and consumers of a client share."""

    registries: Annotated[
        tuple[str, ...],
        Meta(min_length=1, max_length=64, description="HOST:PORT of each registry; one is asked at a time."),
    ] = ("127.0.0.1:9876",)
    client_id: Annotated[
        str,
        Meta(
            max_length=255,
            description="Name of this client inside its consumer groups; empty makes a unique one. Two live "
            "clients with one name would be given the same queues.",
        ),
    ] = ""
    access_key: Annotated[
        AccountKey,
        Meta(description="Account at brokers with access control; empty sends requests unsigned."),
    ] = ""
    secret_key: Annotated[
        AccountSecret, Meta(description="Secret of the account; it never leaves the client.")
    ] = ""
    tls_enabled: Annotated[
        bool, Meta(description="Connect by TLS to registries and brokers; all of them have to take it.")
    ] = False
    tls_ca_file: Annotated[
        FileName,
        Meta(
            description="PEM file with the roots of the servers' certificates; empty for the machine's own."
        ),
    ] = ""
    tls_is_verified: Annotated[
        bool,
        Meta(
            description="Whether a server has to show a certificate of these roots for its name. Without it "
            "anybody on the way can pass for the server."
        ),
    ] = True
    tls_certificate_file: Annotated[
        FileName, Meta(description="PEM file with this client's certificate, where servers ask for one.")
    ] = ""
    tls_key_file: Annotated[
        FileName, Meta(description="PEM file with its key; empty when that file has it.")
    ] = ""
    connect_timeout_ms: Annotated[
        int, Meta(ge=10, le=60_000, description="Milliseconds for making one connection.")
    ] = 3_000
    request_timeout_ms: Annotated[
        int,
        Meta(ge=10, le=300_000, description="Milliseconds for route, heartbeat, offset and admin requests."),
    ] = 5_000
    route_refresh_ms: Annotated[
        int,
        Meta(
            ge=100, le=3_600_000, description="Milliseconds between two looks at the routes of used topics."
        ),
    ] = 30_000
    missing_route_refresh_ms: Annotated[
        int,
        Meta(
            ge=50,
            le=3_600_000,
            description="Milliseconds between two looks for a topic that has no route yet, so that a "
            "consumer started before its producer waits seconds instead of one whole refresh.",
        ),
    ] = 2_000
    heartbeat_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=60_000,
            description="Milliseconds between heartbeats; a broker forgets a client "
            "after 120,000 without one.",
        ),
    ] = 30_000
    reconnect_ms_min: Annotated[
        int, Meta(ge=1, le=60_000, description="Milliseconds before the first new try of a lost connection.")
    ] = 100
    reconnect_ms_max: Annotated[
        int,
        Meta(
            ge=1,
            le=600_000,
            description="Longest pause between tries, in milliseconds; pauses double up to it, with jitter.",
        ),
    ] = 5_000

    @property
    def credentials(self) -> Credentials | None:
        """Return the credentials that sign requests; None for unsigned ones."""
        return Credentials(self.access_key, self.secret_key) if self.access_key else None

    def tls_context(self) -> ssl.SSLContext | None:
        """Make the TLS context of new connections; None for plain ones, ConfigError for an unusable file."""
        if not self.tls_enabled:
            return None
        return client_tls(
            ca_file=self.tls_ca_file,
            is_verified=self.tls_is_verified,
            certificate_file=self.tls_certificate_file,
            key_file=self.tls_key_file,
        )


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a producer."""

    send_timeout_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=600_000,
            description="Milliseconds for one send with all its tries. A send that got no answer in this "
            "time is not repeated, because it may have been stored.",
        ),
    ] = 10_000
    tries_max: Annotated[
        int, Meta(ge=1, le=100, description="Times a message is handed to a broker before the send fails.")
    ] = 3
    compress_bytes_min: Annotated[
        int,
        Meta(
            ge=0,
            le=RECORD_BYTES_MAX,
            description="Bodies of single sends from this size on are zlib-compressed when that makes them "
            "smaller; 0 never compresses. Batches are never compressed.",
        ),
    ] = 4_096
    compress_level: Annotated[
        int, Meta(ge=1, le=9, description="zlib level; 5 is what Java clients use.")
    ] = 5
    body_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=RECORD_BYTES_MAX,
            description="Largest body of one message, and of one batch request, in bytes; brokers refuse "
            "more than their own maximum, 4 MiB unless configured.",
        ),
    ] = RECORD_BYTES_MAX - 64 * 1024
    in_flight_max: Annotated[
        int,
        Meta(
            ge=1,
            le=16_384,
            description="Unanswered sends; `send` waits past it and `send_nowait` refuses.",
        ),
    ] = 4_096
    in_flight_bytes_max: Annotated[
        int, Meta(ge=1, le=2**31, description="Bytes of unanswered sends, for the same purpose.")
    ] = 32 * 1024 * 1024
    template_topic: Annotated[
        str,
        Meta(max_length=127, description="Topic whose route and settings a topic made by sending inherits."),
    ] = "TBW102"
    new_topic_queues: Annotated[
        int, Meta(ge=1, le=1_024, description="Queues of a topic made by sending to it.")
    ] = 4
    slow_answer_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=600_000,
            description="An answer slower than this many milliseconds makes round-robin pass the broker by "
            "for twice the time it took.",
        ),
    ] = 500
    avoid_failed_ms_max: Annotated[
        int,
        Meta(
            ge=0,
            le=3_600_000,
            description="Longest time round-robin passes a failing broker by, in milliseconds; the time "
            "doubles with each failure in a row.",
        ),
    ] = 30_000


class PushConsumerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a push consumer."""

    model: Annotated[
        MessageModel,
        Meta(
            description="clustering: the group shares the queues. broadcasting: every member gets everything "
            "and keeps its own offsets in memory."
        ),
    ] = "clustering"
    consume_from: Annotated[
        ConsumeFrom,
        Meta(description="Where a group without a stored offset starts: last, first or timestamp."),
    ] = "last"
    consume_from_timestamp_ms: Annotated[
        int, Meta(ge=0, description="Milliseconds since 1970, for consume_from = timestamp.")
    ] = 0
    batch_max: Annotated[
        int,
        Meta(
            ge=1,
            le=PULL_RECORDS_MAX,
            description="Messages handed to the listener in one call; a failed call is retried as a whole "
            "unless the listener names the messages that failed.",
        ),
    ] = 32
    parallel_batches: Annotated[
        int,
        Meta(
            ge=1,
            le=1_024,
            description="Listener calls of one queue at a time. 1 keeps the order of each queue; more suits "
            "listeners that wait for something else.",
        ),
    ] = 1
    pull_records_max: Annotated[
        int,
        Meta(
            ge=1,
            le=PULL_RECORDS_MAX,
            description="Messages asked for in one pull. Brokers of the Java kind give at most 32.",
        ),
    ] = 1_024
    pull_bytes_max: Annotated[
        int,
        Meta(ge=1, le=PULL_BYTES_MAX, description="Bytes asked for in one pull; at least one message comes."),
    ] = 1024 * 1024
    hold_ms: Annotated[
        int,
        Meta(ge=0, le=30_000, description="Milliseconds a broker may park a pull that finds nothing."),
    ] = 15_000
    pull_timeout_ms: Annotated[
        int,
        Meta(ge=100, le=600_000, description="Milliseconds for a pull with its hold; must exceed hold_ms."),
    ] = 30_000
    cached_records_max: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000_000,
            description="Messages fetched and not yet consumed, per queue; pulling pauses past it.",
        ),
    ] = 4_096
    cached_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=2**34,
            description="Bytes fetched and not yet consumed, over all queues; pulling pauses past it.",
        ),
    ] = 64 * 1024 * 1024
    commit_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=600_000,
            description="Milliseconds between commits of offsets; a crash repeats the messages consumed "
            "since.",
        ),
    ] = 5_000
    rebalance_ms: Annotated[
        int,
        Meta(
            ge=50,
            le=600_000,
            description="Milliseconds between looks at the members of the group; changes are also announced.",
        ),
    ] = 20_000
    redeliveries_max: Annotated[
        int,
        Meta(
            ge=-1,
            le=1_000,
            description="Times a failed message comes back before it goes to the dead letters of the group; "
            "-1 leaves it to the group's settings at the broker (16).",
        ),
    ] = -1
    local_retry_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=600_000,
            description="Milliseconds before a failed batch is tried again here, when the broker does not "
            "take it back (and always in broadcasting). Doubles up to 30 times this value.",
        ),
    ] = 1_000
    columns_tries_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Calls of a columns listener with one batch before its records are sent back singly.",
        ),
    ] = 3
    stop_timeout_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=600_000,
            description="Milliseconds that stop() and the loss of a queue wait for running listener calls.",
        ),
    ] = 5_000


class PullConsumerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a pull consumer."""

    pull_records_max: Annotated[
        int, Meta(ge=1, le=PULL_RECORDS_MAX, description="Messages asked for in one pull.")
    ] = 4_096
    pull_bytes_max: Annotated[
        int,
        Meta(ge=1, le=PULL_BYTES_MAX, description="Bytes asked for in one pull; at least one message comes."),
    ] = PULL_BYTES_MAX
    cached_bytes_max: Annotated[
        int,
        Meta(
            ge=1,
            le=2**34,
            description="Bytes fetched and not polled yet, over all queues; pulling pauses past it. Answers "
            "on their way come on top, one per queue at most.",
        ),
    ] = 128 * 1024 * 1024
    hold_ms: Annotated[
        int,
        Meta(ge=0, le=30_000, description="Milliseconds a broker may park a pull that finds nothing."),
    ] = 15_000
    pull_timeout_ms: Annotated[
        int,
        Meta(ge=100, le=600_000, description="Milliseconds for a pull with its hold; must exceed hold_ms."),
    ] = 30_000
