"""Ports and what comes before MQTT: limits on connections, TLS, PROXY headers, WebSocket.

Start with `listeners`.
"""
