"""The numbers of a front end's parts, as /metrics shows them."""

from __future__ import annotations

from collections.abc import Iterable

from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.connection.device import DeviceGroup
from iotmq.mqtt_front.deliver.egress import Egress
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites
from iotmq.mqtt_front.sessions.auto_subscriptions import AutoSubscriptions
from iotmq.mqtt_front.sessions.durable_egress import DurableEgress
from iotmq.mqtt_front.sessions.subscriptions import Subscriptions


def traffic_metrics(ingress: Ingress, egress: Egress, group: DeviceGroup) -> Iterable[Metric]:
    """Bytes and messages between devices and brokers."""
    yield from samples(
        ("iotmq_mqtt_received_bytes_total", "Bytes read from devices.", group.received_bytes),
        ("iotmq_mqtt_sent_bytes_total", "Bytes written to devices.", group.sent_bytes),
        (
            "iotmq_mqtt_unopened_bytes",
            "Bytes held for connections whose CONNECT is not accepted yet; past 64 MiB they are closed.",
            group.unopened_bytes,
        ),
        (
            "iotmq_mqtt_unfinished_bytes",
            "Bytes of large packets of connected devices that have not come whole.",
            group.unfinished_bytes,
        ),
        (
            "iotmq_mqtt_shed_published_total",
            "Messages of QoS 0 from devices that were dropped because of overload.",
            ingress.shed,
        ),
        (
            "iotmq_mqtt_shed_deliveries_total",
            "Messages of QoS 0 to devices that were dropped because of overload.",
            egress.shed,
        ),
        ("iotmq_mqtt_paused_connections", "Devices not being read.", group.paused_count),
        ("iotmq_mqtt_published_total", "Messages published by devices.", ingress.messages),
        ("iotmq_mqtt_published_bytes_total", "Payload bytes published by devices.", ingress.message_bytes),
        ("iotmq_mqtt_replies_total", "Answers of devices to requests of native clients.", ingress.replies),
        ("iotmq_mqtt_batches_total", "Batches the broker answered for good.", ingress.batches),
        (
            "iotmq_mqtt_batch_retries_total",
            "Times a batch was not taken and is offered again.",
            ingress.retries,
        ),
        ("iotmq_mqtt_not_stored_total", "Messages the broker refused for good.", ingress.not_stored),
        ("iotmq_mqtt_pending_bytes", "Bytes of messages that wait for the broker.", ingress.pending_bytes),
        ("iotmq_mqtt_filters", "Topic filters with local subscribers.", egress.filter_count),
        (
            "iotmq_mqtt_delivery_backlog_bytes",
            "Bytes of pushed records and their matches that are to be written to subscribers in the next "
            "turns.",
            egress.backlog_bytes,
        ),
        ("iotmq_mqtt_delivered_total", "Messages written to subscribers.", egress.delivered),
        (
            "iotmq_mqtt_dropped_total",
            "Messages dropped for slow subscribers.",
            egress.dropped + group.dropped,
        ),
        ("iotmq_mqtt_expired_total", "Messages whose time was over for a subscriber.", group.expired),
        ("iotmq_mqtt_too_large_total", "Messages larger than a subscriber of MQTT 5 takes.", group.too_large),
        ("iotmq_mqtt_undeliverable_total", "Pushed records that could not be read.", egress.malformed),
        (
            "iotmq_mqtt_misdirected_total",
            "Pushed records of another topic than the filter they came for (marks of filters).",
            egress.misdirected,
        ),
    )


def topic_metrics(
    ingress: Ingress, subscriptions: Subscriptions, rewrites: TopicRewrites, automatic: AutoSubscriptions
) -> Iterable[Metric]:
    """Report topics and filters of settings that could not be created, and messages without a destination."""
    yield from samples(
        (
            "iotmq_mqtt_bridge_notifications_total",
            "Messages below $SYS/broker/connection/ that are not the state of the bridge they come from; "
            "they go nowhere.",
            ingress.bridge_notifications,
        ),
        (
            "iotmq_mqtt_rewrites_refused_total",
            "Messages, wills and filters whose name after mqtt.rewrites is none.",
            ingress.rewrites_refused + rewrites.filters_refused,
        ),
        (
            "iotmq_mqtt_route_dropped_total",
            "Messages that their route drops.",
            ingress.targets.route_dropped,
        ),
        (
            "iotmq_mqtt_route_left_out_total",
            "Messages that are not in the sample of their route.",
            ingress.targets.left_out,
        ),
        (
            "iotmq_mqtt_route_quarantined_total",
            "Messages that their route put into quarantine; the log has some of them with the reason.",
            ingress.targets.put_aside,
        ),
        (
            "iotmq_mqtt_auto_subscriptions_refused_total",
            "Subscriptions of mqtt.auto_subscriptions that a session did not get.",
            automatic.refused + subscriptions.auto_refused,
        ),
    )
    yield from subscriptions.exclusive.metrics()
    yield from subscriptions.shapes.metrics()


def durable_metrics(durable: DurableEgress) -> Iterable[Metric]:
    """Messages of sessions that are kept."""
    yield from samples(
        ("iotmq_mqtt_light_queues", "Light queues that local sessions subscribe.", durable.queue_count),
        (
            "iotmq_mqtt_durable_delivered_total",
            "Messages written to sessions that are kept.",
            durable.delivered,
        ),
        (
            "iotmq_mqtt_durable_read_total",
            "Records read for sessions that had fallen behind or came back.",
            durable.read_records,
        ),
        (
            "iotmq_mqtt_durable_dropped_total",
            "Messages of routes that do not store, which a session could not take at once.",
            durable.dropped,
        ),
        (
            "iotmq_mqtt_durable_malformed_total",
            "Records of light queues that are not messages.",
            durable.malformed,
        ),
        (
            "iotmq_mqtt_refused_progress_total",
            "Reports of sessions' progress that the broker did not take; they are repeated.",
            durable.refused_progress,
        ),
    )
