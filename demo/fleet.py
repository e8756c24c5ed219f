"""One paho-mqtt client per device: publishes with QoS 1, counts acknowledgements and commands."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Final

from measurements import Measurement
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

DEVICES_MAX: Final = 96
_CONNECT_S: Final = 10.0


class Fleet:
    """The devices that have said something so far; new ones connect when they first do."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._devices: dict[str, _Device] = {}

    @property
    def device_count(self) -> int:
        return len(self._devices)

    @property
    def sent_count(self) -> int:
        """Messages given to the clients."""
        return sum(device.sent_count for device in self._devices.values())

    @property
    def acknowledged_count(self) -> int:
        """Messages whose PUBACK came."""
        return sum(device.acknowledged_count for device in self._devices.values())

    @property
    def command_count(self) -> int:
        """Commands that have come to the devices they are for."""
        return sum(device.command_count for device in self._devices.values())

    def publish(self, measurement: Measurement) -> bool:
        """Publish on the device's topic; False when the fleet has no room for one more device."""
        device = self._devices.get(measurement.device)
        if device is None:
            if len(self._devices) >= DEVICES_MAX:
                return False
            device = self._devices[measurement.device] = _Device(measurement.device, self._host, self._port)
        device.publish(measurement)
        return True

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until every message sent is acknowledged."""
        deadline_s = time.monotonic() + timeout_s
        while self.acknowledged_count < self.sent_count:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        """Disconnect every device."""
        for device in self._devices.values():
            device.close()


class _Device:
    def __init__(self, name: str, host: str, port: int) -> None:
        self._topic = f"devices/{name}/telemetry"
        self._commands = f"devices/{name}/commands"
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv311)
        self._client.max_inflight_messages_set(100)
        self._client.on_connect = self._connected
        self._client.on_subscribe = self._subscribed
        self._client.on_publish = self._published
        self._client.on_message = self._commanded
        self._is_ready = threading.Event()
        self._refusal = ""
        self.sent_count = 0
        self.acknowledged_count = 0  # written by the client's own thread only
        self.command_count = 0  # likewise
        self._client.connect(host, port, keepalive=30)
        self._client.loop_start()
        if not self._is_ready.wait(_CONNECT_S) or self._refusal:
            raise ConnectionError(f"device {name} was not let in: {self._refusal or 'no answer'}")

    def publish(self, measurement: Measurement) -> None:
        payload = {"device": measurement.device, "ts": measurement.timestamp_ms, **measurement.values}
        self._client.publish(self._topic, json.dumps(payload, separators=(",", ":")), qos=1)
        self.sent_count += 1

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _connected(self, client: Any, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if reason.is_failure:
            self._refusal = str(reason)
            self._is_ready.set()
        else:
            client.subscribe(self._commands, qos=1)

    def _subscribed(self, _client: Any, _data: Any, _mid: int, reasons: Any, _properties: Any) -> None:
        if reasons[0].is_failure:
            self._refusal = str(reasons[0])
        self._is_ready.set()

    def _published(self, _client: Any, _data: Any, _mid: int, _reason: Any, _properties: Any) -> None:
        self.acknowledged_count += 1

    def _commanded(self, _client: Any, _data: Any, message: Any) -> None:
        print(f"    {message.topic} gets {message.payload.decode()}", flush=True)
        self.command_count += 1
