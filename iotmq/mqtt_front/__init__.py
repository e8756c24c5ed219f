"""MQTT listeners: connections, ingress batching and egress fan-out."""
