"""Define what an MQTT front end asks of the brokers behind it.

The all-in-one process plugs in `iotmq.broker.handlers.mqtt.gateway.LocalGateway`, where each of these is a
method call on the broker; separate processes plug in `iotmq.front_port.gateway.RemoteGateway`, which speaks
the native protocol (docs/reference/wire-protocol.md, codes from 30001). Nothing else differs between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

from typing_extensions import Buffer

from iotmq.metrics import Metric, samples

AppendDone = Callable[[int, str], None]
"""Told a response code (0 = as durable as promised) and a remark, once, possibly before `append` returns."""

RouteOf = Callable[[str], tuple[str, str]]
"""The broker topic and the key of what a front end publishes to an MQTT topic."""


class DeliveryReceiver(Protocol):
    """Where a gateway pushes the records that match a front end's filters."""

    def deliver(self, records: Buffer, matches: Buffer) -> None:
        """Take records for subscribers; both buffers are kept until these have them, and may not change.

        `records` holds whole records; `matches` is a run of: u32 place of a record in `records`, u32 count,
        count x u32 filter ids of `GatewayPort.attach`, all big-endian. A record may come for a filter without
        wildcards that is not its topic.
        """


class GatewayPort(Protocol):
    """One front end's channel to the brokers."""

    @property
    def record_bytes_max(self) -> int:
        """Return the largest record the brokers take."""

    @property
    def not_ready_reason(self) -> str | None:
        """Return None while messages can be handed over, else what is missing, in words."""

    async def start(
        self,
        topics: Collection[str],
        receiver: DeliveryReceiver,
        queues_changed: Callable[[], None],
        *,
        route_of: RouteOf,
    ) -> None:
        """Connect, make sure that every broker topic of `topics` exists, and learn its queues.

        `queues_changed` is called whenever `queue_count` or `record_bytes_max` answers differently than
        before. `route_of` says where messages go as a rule.
        """

    async def add_topics(self, topics: Collection[str]) -> None:
        """Make sure that further broker topics exist, and learn their queues; those that are known stay.

        Raises IotmqError when that cannot be done now.
        """

    async def stop(self) -> None:
        """Give up the channel; batches that were not confirmed are reported as not stored."""

    def queue_count(self, topic: str) -> int:
        """Return how many queues a topic of `start` has, over all brokers.

        Queue ids below are 0 to count - 1.
        """

    @property
    def may_lose_answers(self) -> bool:
        """Whether a batch may be stored although its answer says otherwise; then its first message needs a
        unique key."""

    def append(
        self,
        topic: str,
        queue_id: int,
        elements: Buffer,
        *,
        count: int,
        is_stored: bool,
        has_packet_ids: bool,
        is_repeat: bool,
        done: AppendDone,
    ) -> None:
        """Hand over `count` messages in batch encoding, to the log or (not stored) to live subscribers only.

        `elements` stays untouched until `done` was called. The caller keeps at most one batch of a queue
        under way, which keeps their order; one that was not confirmed it hands over again, with `is_repeat`,
        before any other. `has_packet_ids`: messages have MQTT_PACKET_ID.
        """

    def append_delayed(
        self,
        topic: str,
        queue_id: int,
        elements: Buffer,
        *,
        count: int,
        has_packet_ids: bool,
        is_repeat: bool,
        done: AppendDone,
    ) -> None:
        """As `append`, but an element comes into its queue when the time its TIMER_DELAY_SEC says is over."""

    def append_own(
        self, topic: str, elements: Buffer, *, count: int, is_repeat: bool, done: AppendDone
    ) -> None:
        """Hand over messages for a topic that every broker has; one of them stores them.

        As `append`, but what was not confirmed may be stored twice.
        """

    def broker_of(self, topic: str, queue_id: int, *, is_delayed: bool) -> str:
        """Return the broker that has the last confirmed batch of this queue."""

    def release(self, broker: str | None, body: bytes, done: AppendDone) -> None:
        """Have a broker (None: all) forget packet ids, as broker.exactly_once.received_ids encodes them.
        Repeatable."""

    def reply(self, broker: str, topic: str, client_id: str, body: bytes) -> None:
        """Hand what a device published to `topic`, a reply topic (mqtt.topics.reply), to the broker it names.

        An answer that cannot be handed over is dropped and counted: who waits for it knows how long to.
        """

    def attach(self, filters: Sequence[tuple[int, str]], done: Callable[[bool], None]) -> None:
        """Ask for the records that match these filters, under ids of the caller; `done(False)` = refused."""

    def detach(self, filter_ids: Sequence[int]) -> None:
        """Take filters back; a few records may still arrive for them."""

    def metrics(self) -> Iterable[Metric]:
        """Report the metrics of the channel."""


def dropped_replies_metric(count: int) -> Iterator[Metric]:
    """Make the metric of replies that were dropped."""
    text = "Answers of devices to requests that could not be handed to their broker."
    return samples(("iotmq_mqtt_dropped_replies_total", text, count))
