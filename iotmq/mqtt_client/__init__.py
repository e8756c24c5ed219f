"""An MQTT client for asyncio: `MqttClient` with `MqttClientSettings` (docs/reference/mqtt-client.md)."""
