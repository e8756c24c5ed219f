"""The messages of all devices whose client ids begin alike: two additions for each message."""


cdef class ClientTraffic:
    """Count the messages and payload bytes of some devices; totals only grow."""

    def __init__(self, str prefix not None):
        self.prefix = prefix

    def totals(self):
        """Published messages and bytes, delivered messages and bytes, connections."""
        return self.published, self.published_bytes, self.delivered, self.delivered_bytes, self.connections


# Of connections that have no session yet.
UNNAMED = ClientTraffic("")
