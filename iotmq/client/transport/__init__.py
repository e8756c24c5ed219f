"""Connect the native client: connections, routes, settings and messages, shared by all its parts.

Start with `client`, the object that holds the connections.
"""
