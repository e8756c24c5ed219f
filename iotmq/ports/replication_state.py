"""The state of replication, as the master of a broker tells it to operators, in JSON.

The answer to the inspection `replication`, and part of what the HTTP API shows of a broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

REPLICATION: Final = "replication"
"""Name of the inspection."""


class Follower(msgspec.Struct, frozen=True, kw_only=True):
    """Another process that copies the log of the master."""

    name: str
    """Number of a member, or the address that a slave connects from."""
    address: str = ""
    """host:port of its native protocol, where it is known."""
    is_connected: bool
    is_in_sync: bool
    """Whether it may become master and nothing is lost; of a slave, whether it is near the master."""
    position: int | None = None
    """The end of what it has of the log, in bytes; null before it has said so."""
    behind_bytes: int | None = None
    """Bytes of the master's log that it has not; null as `position`."""


class ReplicationState(msgspec.Struct, frozen=True, kw_only=True):
    """How far others have the log of a master."""

    mode: Literal["elected", "master_slave"]
    """`elected`: members that choose their master; `master_slave`: slaves as of RocketMQ 4.9."""
    master: int = 0
    """Number of the member that is master; 0 of one with slaves."""
    epoch: int = 0
    """Counts masters; 0 of one with slaves."""
    in_sync: int
    """Processes that have all that was acknowledged, with the master."""
    in_sync_min: int = 1
    """The master takes messages while there are so many."""
    end: int
    """Where the log ends, in bytes."""
    confirmed: int
    """The end of what is confirmed, in bytes: what is behind that is not shown yet."""
    followers: Sequence[Follower]
    alarms: Sequence[str] = ()
    """Sentences for operators; empty when all is well."""


class ReplicationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the inspection; null of a master whose log nobody copies."""

    replication: ReplicationState | None
