"""A gateway of Modbus devices: it publishes their frames as they are, and hears which of them are damaged.

python examples/modbus_frames.py 127.0.0.1:1883

The route that checks the frames is in docs/how-to/routes.md.
"""

from __future__ import annotations

import sys
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

# The answer of device 1: its registers hold 0x0017. The last two bytes are the CRC, the low byte first.
FRAME = bytes.fromhex("0103020017f84a")
# The same frame after a bit was lost on the line.
DAMAGED = bytes.fromhex("0103020016f84a")
TOPIC = "meters/7/frames"


def main(address: str) -> None:
    """Publish both frames, and print what the gateway says to each."""
    host, _, port = address.partition(":")
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    waiting = {}

    def on_connect(*_: object) -> None:
        for frame in (FRAME, DAMAGED):
            waiting[client.publish(TOPIC, frame, qos=1).mid] = frame

    def on_publish(_client: paho.Client, _data: Any, number: int, reason: Any, *_: object) -> None:
        print(f"{waiting.pop(number).hex()}: {reason}")
        if not waiting:
            client.disconnect()

    client.on_connect = on_connect
    client.on_publish = on_publish
    client.connect(host, int(port or 1883))
    client.loop_forever()


if __name__ == "__main__":
    main(sys.argv[1])
