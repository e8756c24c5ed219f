"""MQTT devices: connections, sessions, bans, permissions, traces. Start with `clients`."""
