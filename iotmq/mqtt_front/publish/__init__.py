"""From a device's PUBLISH to a batch for a broker.

Start with `ingress`; `targets` is what topics map to, by the rules of `mqtt_front.routing`.
"""
