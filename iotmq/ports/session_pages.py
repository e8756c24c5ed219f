"""Answers about sessions and front ends, as operators see them (requests 30067 and 30070 to 30074)."""

from __future__ import annotations

import msgspec


class FrontEndSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A front end as one broker knows it."""

    name: str
    clients: int
    is_draining: bool


class FrontEndsPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to request 30067."""

    front_ends: list[FrontEndSummary]


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A session as one broker has it. `front_end` is empty and `closed_ms` set while its client is away."""

    client_id: str
    front_end: str = ""
    subscriptions: int = 0
    in_flight: int = 0
    closed_ms: int = 0
    # None: never.
    expires_ms: int | None = None


class SessionsPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to 30070; `next_after` is the field `after` for the next page, None at the end."""

    sessions: list[SessionSummary]
    count: int
    next_after: str | None = None


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One filter of a session at one broker; `behind` counts the messages its client is not done with.

    `is_wide`: the filter matches so much that it is read from the log, and a long `behind` is an estimate.
    """

    topic_filter: str
    qos: int
    queue_id: int
    cursor: int
    behind: int
    is_wide: bool = False
    # No other session may have it exclusively.
    is_exclusive: bool = False


class SessionDetail(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to 30071. `is_kept` is false for a client that is connected with a clean session."""

    client_id: str
    is_kept: bool
    front_end: str = ""
    epoch: int = 0
    expiry_s: int = 0
    closed_ms: int = 0
    expires_ms: int | None = None
    will_topic: str | None = None
    received: int = 0
    in_flight: int = 0
    # Messages it did not get because its queue was past a limit.
    dropped: int = 0
    filters: list[SessionFilter] = []


class ShareMember(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A connected member of a group; `credit` is how many messages more it takes now."""

    client_id: str
    front_end: str
    in_flight: int
    credit: int
    # It let a message's time pass, and has acknowledged nothing since.
    is_slow: bool


class ShareSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A shared subscription as one broker has it, with its first members.

    `behind` counts the messages nobody is done with, of which `in_flight` are with members; `kept_sessions`
    those sessions, connected or not, for which it is kept.
    """

    share: str
    strategy: str
    kept_sessions: int
    member_count: int
    in_flight: int
    behind: int
    cursor: int
    members: list[ShareMember]


class SharesPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to 30074; `next_after` as in SessionsPage."""

    shares: list[ShareSummary]
    next_after: str | None = None
