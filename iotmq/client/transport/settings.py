"""Settings of the native client; every value has a default that suits one broker on the same machine."""

from __future__ import annotations

import ssl
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq.errors import ConfigError
from iotmq.limits import (
    BATCH_RECORDS_MAX,
    POP_INVISIBLE_MS_MAX,
    PULL_BYTES_MAX,
    PULL_RECORDS_MAX,
    RECORD_BYTES_MAX,
)
from iotmq.message.compression import Compression
from iotmq.remoting.signature import Credentials
from iotmq.remoting.tls.files import client_tls
from iotmq.secret_text import hide
from iotmq.setting_types import AccountKey, AccountSecret, FileName

ConsumeFrom = Literal["last", "first", "timestamp"]
MessageModel = Literal["clustering", "broadcasting"]


def check_settings(settings: msgspec.Struct | None, kind: type[msgspec.Struct]) -> None:
    """Raise ConfigError for settings of another kind, or with a value of a wrong type or out of range."""
    if settings is None:
        return
    if not isinstance(settings, kind):
        raise ConfigError(f"the settings are {type(settings).__name__}: {kind.__name__} is wanted")
    try:
        msgspec.convert({name: getattr(settings, name) for name in kind.__struct_fields__}, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{kind.__name__}: {str(error).replace('$.', '')}") from None


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that all producers and consumers of a client share."""

    registries: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)] = ("127.0.0.1:9876",)
    """HOST:PORT of each registry; one is asked at a time."""
    client_id: Annotated[str, Meta(max_length=255)] = ""
    """Name of this client inside its consumer groups; empty makes a unique one. Two live clients with one
    name would be given the same queues."""
    access_key: AccountKey = ""
    """Account at brokers with access control; empty sends requests unsigned."""
    secret_key: AccountSecret = ""
    """Secret of the account; it never leaves the client."""
    tls_enabled: bool = False
    """Connect by TLS to registries and brokers; all of them have to take it."""
    tls_ca_file: FileName = ""
    """PEM file with the roots of the servers' certificates; empty for the machine's own."""
    tls_is_verified: bool = True
    """Whether a server has to show a certificate of these roots for its name. Without it anybody on the way
    can pass for the server."""
    tls_certificate_file: FileName = ""
    """PEM file with this client's certificate, where servers ask for one."""
    tls_key_file: FileName = ""
    """PEM file with its key; empty when that file has it."""
    connect_timeout_ms: Annotated[int, Meta(ge=10, le=60_000)] = 3_000
    """Milliseconds for making one connection."""
    request_timeout_ms: Annotated[int, Meta(ge=10, le=300_000)] = 5_000
    """Milliseconds for route, heartbeat, offset and admin requests."""
    route_refresh_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 30_000
    """Milliseconds between two looks at the routes of used topics."""
    missing_route_refresh_ms: Annotated[int, Meta(ge=50, le=3_600_000)] = 2_000
    """Milliseconds between two looks for a topic that has no route yet, so that a consumer started before its
    producer waits seconds instead of one whole refresh."""
    heartbeat_ms: Annotated[int, Meta(ge=100, le=60_000)] = 30_000
    """Milliseconds between heartbeats; a broker forgets a client after 120,000 without one."""
    reconnect_ms_min: Annotated[int, Meta(ge=1, le=60_000)] = 100
    """Milliseconds before the first new try of a lost connection."""
    reconnect_ms_max: Annotated[int, Meta(ge=1, le=600_000)] = 5_000
    """Longest pause between tries, in milliseconds; pauses double up to it, with jitter."""

    def __post_init__(self) -> None:
        hide(self, "secret_key")

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

    send_timeout_ms: Annotated[int, Meta(ge=10, le=600_000)] = 10_000
    """Milliseconds for one send with all its tries. A send that got no answer in this time is not repeated,
    because it may have been stored."""
    tries_max: Annotated[int, Meta(ge=1, le=100)] = 3
    """Times a message is handed to a broker before the send fails."""
    compression: Compression = "zlib"
    """How bodies are compressed: zlib, lz4 or zstd. Every consumer opens zlib. The others need
    `iotmq[compression]` here and at consumers. Java clients open them from RocketMQ 4.9.4 on; older ones lose
    messages by them."""
    compress_bytes_min: Annotated[int, Meta(ge=0, le=RECORD_BYTES_MAX)] = 4_096
    """Bodies from this size on are compressed when that makes them smaller, and sent alone; 0 never
    compresses. Those of `send_batch` are not compressed one by one."""
    compress_batches: bool = False
    """Compress requests of several messages as a whole, from `compress_bytes_min` on, for slow links. Brokers
    open them and store plain messages, so consumers do not notice. Brokers that have not said that they open
    them get plain requests."""
    compress_level: Annotated[int, Meta(ge=1, le=9)] = 5
    """Level of zlib and zstd; 5 is what Java clients use. LZ4 has none."""
    body_bytes_max: Annotated[int, Meta(ge=1, le=RECORD_BYTES_MAX)] = RECORD_BYTES_MAX - 64 * 1024
    """Largest body of one message, and of one batch request, in bytes; brokers refuse more than their own
    maximum, 4 MiB unless configured."""
    linger_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    """Milliseconds that a message may wait for others of its queue, so that one request has many. With 0 it
    waits for none; still, those that came together, or while a request to the queue was unanswered, share
    one."""
    batch_bytes_max: Annotated[int, Meta(ge=1, le=RECORD_BYTES_MAX)] = 256 * 1024
    """Bytes of messages that share a request; so many waiting ones end the lingering."""
    batch_records_max: Annotated[int, Meta(ge=1, le=BATCH_RECORDS_MAX)] = 2_048
    """Messages that share a request; so many waiting ones end the lingering. 1 sends each one alone."""
    in_flight_max: Annotated[int, Meta(ge=1, le=131_072)] = 16_384
    """Unanswered sends; `send` waits past it and `send_nowait` refuses."""
    in_flight_bytes_max: Annotated[int, Meta(ge=1, le=2**31)] = 32 * 1024 * 1024
    """Bytes of unanswered sends, for the same purpose."""
    idempotent: bool = False
    """Number the requests of each queue, so that a message is stored once however often it is tried. It stays
    at its queue over all tries, and a queue has one request at a time. Brokers that are no iotmq are
    refused."""
    template_topic: Annotated[str, Meta(max_length=127)] = "TBW102"
    """Topic whose route and settings a topic made by sending inherits."""
    new_topic_queues: Annotated[int, Meta(ge=1, le=1_024)] = 4
    """Queues of a topic made by sending to it."""
    slow_answer_ms: Annotated[int, Meta(ge=1, le=600_000)] = 500
    """An answer slower than this many milliseconds makes round-robin pass the broker by for twice the time it
    took."""
    avoid_failed_ms_max: Annotated[int, Meta(ge=0, le=3_600_000)] = 30_000
    """Longest time round-robin passes a failing broker by, in milliseconds; the time doubles with each
    failure in a row."""


class PushConsumerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a push consumer."""

    model: MessageModel = "clustering"
    """clustering: the group shares the queues. broadcasting: every member gets everything and keeps its own
    offsets, in memory or in `offsets_file`."""
    offsets_file: FileName = ""
    """File for the offsets of a broadcasting consumer, so that it goes on where it was after a restart; empty
    keeps them in memory. Each consumer needs a file of its own."""
    consume_from: ConsumeFrom = "last"
    """Where a group without a stored offset starts: last, first or timestamp."""
    consume_from_timestamp_ms: Annotated[int, Meta(ge=0)] = 0
    """Milliseconds since 1970, for consume_from = timestamp."""
    batch_max: Annotated[int, Meta(ge=1, le=PULL_RECORDS_MAX)] = 32
    """Messages handed to the listener in one call; a failed call is retried as a whole unless the listener
    names the messages that failed."""
    parallel_batches: Annotated[int, Meta(ge=1, le=1_024)] = 1
    """Listener calls of one queue at a time. 1 keeps the order of each queue; more suits listeners that wait
    for something else."""
    pull_records_max: Annotated[int, Meta(ge=1, le=PULL_RECORDS_MAX)] = 1_024
    """Messages asked for in one pull. Brokers of the Java kind give at most 32."""
    pull_bytes_max: Annotated[int, Meta(ge=1, le=PULL_BYTES_MAX)] = 1024 * 1024
    """Bytes asked for in one pull; at least one message comes."""
    hold_ms: Annotated[int, Meta(ge=0, le=30_000)] = 15_000
    """Milliseconds a broker may park a pull that finds nothing."""
    pull_timeout_ms: Annotated[int, Meta(ge=100, le=600_000)] = 30_000
    """Milliseconds for a pull with its hold; must exceed hold_ms."""
    cached_records_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 4_096
    """Messages fetched and not yet consumed, per queue; pulling pauses past it."""
    cached_bytes_max: Annotated[int, Meta(ge=1, le=2**34)] = 64 * 1024 * 1024
    """Bytes fetched and not yet consumed, over all queues; pulling pauses past it."""
    commit_ms: Annotated[int, Meta(ge=10, le=600_000)] = 5_000
    """Milliseconds between commits of offsets; a crash repeats the messages consumed since."""
    rebalance_ms: Annotated[int, Meta(ge=50, le=600_000)] = 20_000
    """Milliseconds between looks at the members of the group; changes are also announced."""
    redeliveries_max: Annotated[int, Meta(ge=-1, le=1_000)] = -1
    """Times a failed message comes back before it goes to the dead letters of the group; -1 leaves it to the
    group's settings at the broker (16), and is without end for an orderly consumer."""
    local_retry_ms: Annotated[int, Meta(ge=1, le=600_000)] = 1_000
    """Milliseconds before a failed batch is tried again here: when the broker does not take it back, and
    always in broadcasting and by an orderly consumer. Doubles up to 30 times this value."""
    orderly: bool = False
    """Keep the order of each queue also where messages fail: a failed message is tried again here, and its
    queue waits. The queue is locked at its broker, so that no other member of the group has it meanwhile."""
    listener_timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 900_000
    """Milliseconds that a coroutine listener has for one call; then it is cancelled and its messages have
    failed. `in_progress()` of a message gives it the whole time again."""
    probe_ms_max: Annotated[int, Meta(ge=0, le=3_600_000)] = 0
    """Longest pause of the whole consumer after a failed call, in milliseconds; then one message is tried
    before the others. The first pause is local_retry_ms, and they double. 0 never pauses: right where one
    bad message says nothing about the next; pauses are right where all depend on one database."""
    columns_tries_max: Annotated[int, Meta(ge=1, le=1_000)] = 3
    """Calls of a columns listener with one batch before its records are sent back singly."""
    stop_timeout_ms: Annotated[int, Meta(ge=0, le=600_000)] = 5_000
    """Milliseconds that stop() and the loss of a queue wait for running listener calls."""


class PullConsumerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a pull consumer."""

    model: MessageModel = "clustering"
    """clustering: the group shares the queues of subscribed topics. broadcasting: every member gets
    everything and keeps its own offsets, in memory or in `offsets_file`."""
    offsets_file: FileName = ""
    """File for the offsets of a broadcasting consumer, so that it goes on where it was after a restart; empty
    keeps them in memory. Each consumer needs a file of its own."""
    consume_from: ConsumeFrom = "last"
    """Where a group without a stored offset starts: last, first or timestamp."""
    consume_from_timestamp_ms: Annotated[int, Meta(ge=0)] = 0
    """Milliseconds since 1970, for consume_from = timestamp."""
    auto_commit: bool = True
    """Commit the offsets of subscribed queues; of what was returned before the last call only, so that a
    crash repeats messages and loses none. Otherwise, and for assigned queues, only `commit` stores any."""
    commit_ms: Annotated[int, Meta(ge=10, le=600_000)] = 5_000
    """Milliseconds between automatic commits; a crash repeats the messages consumed since."""
    orderly: bool = False
    """Lock the queues of subscribed topics at their brokers: a member that gets a queue waits until the one
    before has committed and let go of it, so that only a crash makes messages come twice."""
    rebalance_ms: Annotated[int, Meta(ge=50, le=600_000)] = 20_000
    """Milliseconds between looks at the members of the group; changes are also announced."""
    pull_records_max: Annotated[int, Meta(ge=1, le=PULL_RECORDS_MAX)] = 4_096
    """Messages asked for in one pull."""
    pull_bytes_max: Annotated[int, Meta(ge=1, le=PULL_BYTES_MAX)] = PULL_BYTES_MAX
    """Bytes asked for in one pull; at least one message comes."""
    cached_bytes_max: Annotated[int, Meta(ge=1, le=2**34)] = 128 * 1024 * 1024
    """Bytes fetched and not polled yet, over all queues; pulling pauses past it. Answers on their way come on
    top, one per queue at most."""
    hold_ms: Annotated[int, Meta(ge=0, le=30_000)] = 15_000
    """Milliseconds a broker may park a pull that finds nothing."""
    pull_timeout_ms: Annotated[int, Meta(ge=100, le=600_000)] = 30_000
    """Milliseconds for a pull with its hold; must exceed hold_ms."""


class PopConsumerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a pop consumer."""

    invisible_ms: Annotated[int, Meta(ge=1, le=POP_INVISIBLE_MS_MAX)] = 60_000
    """Milliseconds that a message is this consumer's, from the moment the broker gave it. Then the next one
    to ask gets it, unless it was acknowledged; `in_progress()` gives it the whole time again. The time that
    it waits here for `getmany` counts."""
    held_max: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """Messages that this consumer holds at a time: fetched or returned, and neither acknowledged nor given
    up. Past it no more are fetched. 1 suits work that takes long, so that other consumers get the rest."""
    held_bytes_max: Annotated[int, Meta(ge=1, le=2**34)] = 64 * 1024 * 1024
    """Bytes of these messages; past it no more are fetched. Answers on their way come on top."""
    consume_from: Literal["last", "first"] = "last"
    """Where a group without a stored offset starts."""
    orderly: bool | Literal["key"] = False
    """Get nothing more of a queue while something of it is held by anybody in the group, so that the order of
    each queue is kept also where messages fail. `"key"`: get one message of each key at a time, and the next
    one when that is done; other keys go on."""
    hold_ms: Annotated[int, Meta(ge=0, le=30_000)] = 15_000
    """Milliseconds a broker may park a pop that finds nothing."""
    pop_timeout_ms: Annotated[int, Meta(ge=100, le=600_000)] = 30_000
    """Milliseconds for a pop with its hold; must exceed hold_ms."""
