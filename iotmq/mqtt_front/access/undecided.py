"""Hold devices that are not authenticated yet, within bounds, because anybody may ask for it."""

from __future__ import annotations

from typing import Final

from iotmq import limits
from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_front.connection.device import Device

# An exchange or a place in the queue of passwords, and what belongs to it.
_EACH_BYTES: Final = 2_048


class Undecided:
    """The devices in question, and about how many bytes their CONNECTs and exchanges hold."""

    def __init__(self) -> None:
        self._sizes: dict[Device, int] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, device: Device, connect: Connect | None) -> bool:
        """Keep a device's CONNECT (None: it has been accepted before). False when there is no room for it."""
        size = _EACH_BYTES + (0 if connect is None else _size(connect))
        if self.size + size > limits.MQTT_UNDECIDED_BYTES_MAX:
            return False
        self._sizes[device] = size
        self.size += size
        return True

    def remove(self, device: Device) -> None:
        """The device is known, or gone."""
        self.size -= self._sizes.pop(device, 0)

    def check_invariants(self) -> None:
        """Assert what must always be true; for tests."""
        assert self.size == sum(self._sizes.values())
        assert all(size >= _EACH_BYTES for size in self._sizes.values())


def _size(connect: Connect) -> int:
    size = _bytes_of(connect.client_id, connect.user_name, connect.password)
    size += _properties_size(connect.properties)
    if connect.will is not None:
        size += _bytes_of(connect.will.topic, connect.will.payload)
        size += _properties_size(connect.will.properties)
    return size


def _properties_size(properties: Properties) -> int:
    """Of those that may be long; an exchange keeps its data as it came, and two messages made of it."""
    size = sum(_bytes_of(*pair) for pair in properties.user_properties)
    size += _bytes_of(properties.correlation_data, properties.response_topic, properties.content_type)
    return size + 3 * len(properties.authentication_data or b"")


def _bytes_of(*values: str | bytes | None) -> int:
    """As they are kept: a text with one character beyond ASCII may have four bytes for each."""
    return sum(
        len(value) * (4 if isinstance(value, str) and not value.isascii() else 1)
        for value in values
        if value is not None
    )
