"""The MQTT language, sans-I/O: packets, connection core, topics and filters."""
