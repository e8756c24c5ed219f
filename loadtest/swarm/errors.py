"""The one error of a swarm."""


class SwarmError(Exception):
    """The plan cannot be carried out here, or the server did not let the swarm in."""
