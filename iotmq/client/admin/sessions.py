"""List, disconnect and end kept MQTT sessions (requests 30070 to 30074)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Final

import msgspec

from iotmq.client.admin.asking import Asking
from iotmq.client.transport.calls import ask_masters, master_addresses
from iotmq.remoting.codes import RequestCode, ResponseCode

_PAGE: Final = 1_000
_SHARES_PAGE: Final = 100


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


class SessionAdmin(Asking):
    """Ask every broker about its part of sessions; needs a started client."""

    async def kept(
        self, *, prefix: str = "", broker_names: Collection[str] = ()
    ) -> AsyncIterator[SessionSummary]:
        """Yield sessions by client id, each once, from the broker that knows most of it."""
        masters = await master_addresses(self._client, broker_names)
        streams = [self._of_broker(name, address, prefix) for name, address in sorted(masters.items())]
        heads = [await anext(stream, None) for stream in streams]
        while any(head is not None for head in heads):
            client_id = min(head.client_id for head in heads if head is not None)
            same: list[SessionSummary] = []
            for place, head in enumerate(heads):
                if head is not None and head.client_id == client_id:
                    same.append(head)
                    heads[place] = await anext(streams[place], None)
            yield max(same, key=lambda found: (bool(found.front_end), found.subscriptions))

    async def show(self, client_id: str, *, broker_names: Collection[str] = ()) -> dict[str, SessionDetail]:
        """Broker name -> what it knows of a client; those that know nothing are left out."""
        return await self._of_masters(
            SessionDetail,
            RequestCode.GET_SESSION,
            {"clientId": client_id},
            doing=f"looking at the session of {client_id}",
            broker_names=broker_names,
            none_codes=(ResponseCode.QUERY_NOT_FOUND,),
        )

    async def shares(self, *, broker_names: Collection[str] = ()) -> AsyncIterator[tuple[str, ShareSummary]]:
        """(broker name, shared subscription) of every broker, in the order of their names."""
        masters = await master_addresses(self._client, broker_names)
        for name, address in sorted(masters.items()):
            doing = f"listing shared subscriptions at broker {name}"
            async for page in self._pages(
                SharesPage, address, RequestCode.LIST_SHARES, {}, count=_SHARES_PAGE, doing=doing
            ):
                for found in page.shares:
                    yield name, found

    async def kick(self, client_id: str) -> list[str]:
        """Have a client disconnected; the brokers that had it connected."""
        return await self._change(RequestCode.KICK_SESSION, client_id, "disconnecting")

    async def purge(self, client_id: str) -> list[str]:
        """End a session and disconnect its client; the brokers that had it."""
        return await self._change(RequestCode.PURGE_SESSION, client_id, "ending the session of")

    async def _change(self, code: int, client_id: str, doing: str) -> list[str]:
        answers = await ask_masters(
            self._client,
            code,
            {"clientId": client_id},
            doing=f"{doing} {client_id}",
            none_codes=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return sorted(answers)

    async def _of_broker(self, name: str, address: str, prefix: str) -> AsyncIterator[SessionSummary]:
        doing = f"listing sessions at broker {name}"
        async for page in self._pages(
            SessionsPage, address, RequestCode.LIST_SESSIONS, {"prefix": prefix}, count=_PAGE, doing=doing
        ):
            for found in page.sessions:
                yield found
