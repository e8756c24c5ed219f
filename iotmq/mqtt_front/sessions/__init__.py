"""What a device subscribed to and what waits for it, kept sessions and shared subscriptions included.

Start with `sessions`, then `subscriptions`; `durable` is a kept session's way to its device.
"""
