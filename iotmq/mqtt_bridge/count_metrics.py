"""Metrics of what a bridge has counted."""

from __future__ import annotations

from collections.abc import Iterable

from iotmq.metrics import Metric, samples
from iotmq.mqtt_bridge.connection import BridgeCounts


def count_metrics(name: str, counts: BridgeCounts) -> Iterable[Metric]:
    """Return the metrics of one bridge."""
    return samples(
        ("sent_total", "Messages sent to the other broker, repeats included.", counts.sent),
        ("sent_bytes_total", "Bytes of their records.", counts.sent_bytes),
        ("acknowledged_total", "Messages that the other broker has acknowledged.", counts.acknowledged),
        ("refused_total", "Of these, messages that it has refused for good.", counts.refused),
        (
            "put_aside_total",
            "Messages left out because the other broker ended connections for them; the log says which.",
            counts.put_aside,
        ),
        ("unreadable_total", "Records that are none, and were left out.", counts.unreadable),
        ("received_total", "Messages received from the other broker.", counts.received),
        ("looped_total", "Messages left out, or not taken, because they have been there.", counts.looped),
        (
            "not_forwarded_total",
            "Messages left out because they came here over another bridge (forwards_bridged).",
            counts.not_forwarded,
        ),
        ("skipped_total", "Records that no rule of send is for.", counts.skipped),
        ("expired_total", "Messages whose time was over before they were sent.", counts.expired),
        ("dropped_total", "Messages of QoS 0 left out after an outage.", counts.dropped),
        (
            "too_large_total",
            "Messages left out that the other broker takes no packet for.",
            counts.too_large,
        ),
        prefix="iotmq_bridge_",
        labels=(("bridge", name),),
    )
