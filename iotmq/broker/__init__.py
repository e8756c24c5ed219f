"""Request handlers, holds, groups, topics and delivery to MQTT over one store."""
