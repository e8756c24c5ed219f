"""TLS for listeners and clients, and the first steps of a connection that was accepted.

Start with `files`, which turns certificate files into contexts and renews them.
"""
