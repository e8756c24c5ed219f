"""From a device's PUBLISH to a batch for a broker: routes, rewritten topics, names of devices.

Start with `ingress`; `targets` is what topics map to.
"""
