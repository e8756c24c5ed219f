"""List, disconnect and end kept MQTT sessions (requests 30070 to 30074)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Final

from iotmq.client.admin.asking import Asking
from iotmq.client.transport.calls import ask_masters, master_addresses
from iotmq.ports.session_pages import SessionDetail, SessionsPage, SessionSummary, SharesPage, ShareSummary
from iotmq.remoting.codes import RequestCode, ResponseCode

_PAGE: Final = 1_000
_SHARES_PAGE: Final = 100


class SessionAdmin(Asking):
    """Ask every broker about its part of sessions; needs a started client."""

    async def kept(
        self, *, prefix: str = "", after: str = "", broker_names: Collection[str] = ()
    ) -> AsyncIterator[SessionSummary]:
        """Yield sessions by client id, from behind `after` on, each from the broker that knows most of it."""
        masters = await master_addresses(self._client, broker_names)
        streams = [self._of_broker(name, address, prefix, after) for name, address in sorted(masters.items())]
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

    async def _of_broker(
        self, name: str, address: str, prefix: str, after: str
    ) -> AsyncIterator[SessionSummary]:
        doing = f"listing sessions at broker {name}"
        ext = {"prefix": prefix, "after": after}
        async for page in self._pages(
            SessionsPage, address, RequestCode.LIST_SESSIONS, ext, count=_PAGE, doing=doing
        ):
            for found in page.sessions:
                yield found
