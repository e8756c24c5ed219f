"""A server's side of one connection: bytes and time in, events and bytes out.

Start with `connection`, which also has the packet ids of QoS 2 that wait for the client's PUBREL;
`outbound` is what is on its way to the client, `outbound_in_flight` its packet ids.
"""
