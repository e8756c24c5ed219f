"""What a front end says of itself in numbers."""

from __future__ import annotations

from iotmq.mqtt_front.server import MqttFront


def number_of(front: MqttFront, name: str, **labels: str) -> float:
    """The sum of the metrics of this name that have these labels, and perhaps more."""
    return sum(
        metric.value
        for metric in front.metrics()
        if metric.name == name and dict(metric.labels).items() >= labels.items()
    )


def number_at(front: MqttFront, listener: str, name: str, **labels: str) -> float:
    """The metric iotmq_mqtt_listener_NAME of that listener, with just these labels; it has to be there."""
    wanted = {"listener": listener, **labels}
    for metric in front.metrics():
        if metric.name == f"iotmq_mqtt_listener_{name}" and dict(metric.labels) == wanted:
            return metric.value
    raise AssertionError(name)
