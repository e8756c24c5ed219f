"""An MQTT client for asyncio: `MqttClient` with `MqttClientSettings` (docs/mqtt-client.md)."""
