"""What all parts of the native client share: connections, routes, settings, messages.

Start with `client`, the object that holds the connections.
"""
