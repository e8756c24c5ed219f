"""The HTTP API. Read `route.py` first: a route is data, from which everything about it is made."""
