"""iotmq: an MQTT-first IoT gateway with a RocketMQ-compatible queue backend."""

__version__ = "0.1.0"
