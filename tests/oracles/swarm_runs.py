"""Runs of the load engine, and the sink that stands in for a broker."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.swarm import Plan, Sink, Swarm


@contextmanager
def running_sink(*, relay: bool = False) -> Iterator[Sink]:
    """A sink in a thread; with `relay` it hands on to its subscribers what it gets."""
    server = Sink(relay=relay)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)
    assert not thread.is_alive()


def counters_of(plan: Plan) -> dict[str, int]:
    """Connects, publishes and closes; the counters of the phase."""
    with Swarm(plan) as swarm:
        swarm.connect()
        return swarm.publish().counters
