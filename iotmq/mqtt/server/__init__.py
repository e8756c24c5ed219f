"""A server's side of one connection: bytes and time in, events and bytes out.

Start with `connection`; `outbound` is what is on its way to the client.
"""
