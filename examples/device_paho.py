"""A device in paho-mqtt: it publishes readings and answers requests of services, by MQTT 5.

python examples/device_paho.py 127.0.0.1:1883 pump-7
"""

from __future__ import annotations

import sys
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


def main(address: str, device: str) -> None:
    """Publish one reading, then answer requests until Ctrl-C."""
    host, _, port = address.partition(":")
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=device, protocol=paho.MQTTv5)

    def on_connect(*_: object) -> None:
        client.subscribe(f"devices/{device}/ask", qos=1)

    def on_subscribe(*_: object) -> None:
        client.publish(f"devices/{device}/telemetry", '{"temperature": 21.5}', qos=1)

    def on_message(_client: paho.Client, _data: Any, request: paho.MQTTMessage) -> None:
        """Answer to the topic that the request names, with its correlation data."""
        asked: Any = request.properties
        properties: Any = Properties(PacketTypes.PUBLISH)
        properties.CorrelationData = asked.CorrelationData
        client.publish(asked.ResponseTopic, b"21.5", qos=1, properties=properties)

    client.on_connect = on_connect
    client.on_subscribe = on_subscribe
    client.on_message = on_message
    client.connect(host, int(port or 1883))
    client.loop_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
