"""An MQTT client for asyncio (docs/reference/mqtt-client.md).

Start with `client`; `connection` moves the bytes of one connection, `links` opens it.
"""

from __future__ import annotations

from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.client.session import OutgoingMessage
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_client.address import Address
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.errors import ServerRefusedError
from iotmq.mqtt_client.scram import ScramAuthenticator
from iotmq.mqtt_client.settings import Authenticator, MqttClientSettings
from iotmq.mqtt_client.tls import TlsOptions

__all__ = [
    "Address",
    "Authenticator",
    "MqttClient",
    "MqttClientSettings",
    "OutgoingMessage",
    "Properties",
    "ReceivedMessage",
    "ScramAuthenticator",
    "ServerRefusedError",
    "TlsOptions",
    "Will",
]
