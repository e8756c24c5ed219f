"""The servers under comparison: where each comes from, how it is configured, started and watched."""

from benchmarks.peers.gateway import front_ends, iotmq
from benchmarks.peers.peer import DURABLE, FAST, SETTINGS, Launch, Peer, Place, started, those_there
from benchmarks.peers.server import (
    STOP_TIMEOUT_S,
    PeerError,
    Server,
    exact_cpu_s,
    free_ports,
    memory_bytes,
    standing_still,
)

__all__ = [
    "DURABLE",
    "FAST",
    "SETTINGS",
    "STOP_TIMEOUT_S",
    "Launch",
    "Peer",
    "PeerError",
    "Place",
    "Server",
    "exact_cpu_s",
    "free_ports",
    "front_ends",
    "iotmq",
    "memory_bytes",
    "standing_still",
    "started",
    "those_there",
]
