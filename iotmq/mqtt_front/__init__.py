"""The MQTT front end: devices on one side, brokers on the other.

Start with `server`, which joins the parts; then follow a message: `listen`, `connection`, `publish`,
`deliver`.
"""
