"""A projection to try the key-value database with: the last record of every MQTT topic, written in Python."""

from __future__ import annotations

from iotmq.message.records.record import iter_records, property_value
from iotmq.store.kv.kv import KeyValueStore
from iotmq.store.kv.kv_projection import KeyValueProjection
from iotmq.store.store import Store


class _Collector:
    def __init__(self) -> None:
        self.found: dict[bytes, int] = {}

    @property
    def count(self) -> int:
        return len(self.found)

    def collect(self, view: memoryview) -> None:
        for record in iter_records(view):
            topic = property_value(record.properties, b"MQTT_TOPIC")
            if topic is not None:
                self.found[b"\x01" + topic] = record.position

    def items(self) -> tuple[list[bytes], list[bytes]]:
        return list(self.found), [b"%d" % position for position in self.found.values()]

    def clear(self) -> None:
        self.found.clear()


class LastValues(KeyValueProjection):
    """MQTT topic -> position of its last record."""

    def __init__(self, key_values: KeyValueStore) -> None:
        self._collected = _Collector()
        super().__init__(key_values, "last", format_version=1, collector=self._collected)

    @classmethod
    def add_to(cls, store: Store) -> LastValues:
        return store.add_key_value_projection(cls)

    def find(self, mqtt_topic: bytes) -> int | None:
        """Raises StoreError when its block is damaged."""
        key = b"\x01" + mqtt_topic
        if key in self._collected.found:
            return self._collected.found[key]
        value = self._space.get(key)
        return None if value is None else int(value)

    def places(self) -> dict[bytes, int]:
        self.write_out()
        return {key[1:]: int(value) for key, value in self._space.scan(b"\x01")}
