"""Who is at the other end of a connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Peer:
    """What a listener knows of a connection; one for all of them where it knows nothing of each."""

    listener: str
    """The listener's name."""
