"""From records of a broker to the devices that subscribed, and the front end's own topics.

Start with `egress`.
"""
