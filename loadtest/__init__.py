"""Load tests: the connection swarm and what is built on it."""
