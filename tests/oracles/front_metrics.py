"""What a front end, or another part with metrics, says of itself in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from iotmq.metrics import Metric
from iotmq.mqtt_front.server import MqttFront


class Measured(Protocol):
    def metrics(self) -> Iterable[Metric]: ...


def number_of(part: Measured, name: str, **labels: str) -> float:
    """The sum of the metrics of this name that have these labels, and perhaps more."""
    return sum(
        metric.value
        for metric in part.metrics()
        if metric.name == name and dict(metric.labels).items() >= labels.items()
    )


def number_at(front: MqttFront, listener: str, name: str, **labels: str) -> float:
    """The metric iotmq_mqtt_listener_NAME of that listener, with just these labels; it has to be there."""
    wanted = {"listener": listener, **labels}
    for metric in front.metrics():
        if metric.name == f"iotmq_mqtt_listener_{name}" and dict(metric.labels) == wanted:
            return metric.value
    raise AssertionError(name)
