"""Whole load tests: processes of the swarm driven as one, and a result with all their times."""
