"""Streams of server-sent events: a queue for each reader, and what pushes into them."""
