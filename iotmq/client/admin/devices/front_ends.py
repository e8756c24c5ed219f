"""List and drain MQTT front ends (requests 30067 and 30068)."""

from __future__ import annotations

from iotmq.client.admin.asking import Asking
from iotmq.client.transport.calls import ask_masters
from iotmq.ports.session_pages import FrontEndsPage, FrontEndSummary
from iotmq.ports.sessions import DrainOrder
from iotmq.remoting.codes import RequestCode, ResponseCode


class FrontEndAdmin(Asking):
    """Ask every broker about MQTT front ends; needs a started client."""

    async def front_ends(self) -> dict[str, FrontEndSummary]:
        """List front ends by name, each with the largest number of clients that a broker knows."""
        pages = await self._of_masters(FrontEndsPage, RequestCode.LIST_FRONT_ENDS, doing="listing front ends")
        found: dict[str, FrontEndSummary] = {}
        for page in pages.values():
            for summary in page.front_ends:
                known = found.get(summary.name, summary)
                found[summary.name] = FrontEndSummary(
                    name=summary.name,
                    clients=max(known.clients, summary.clients),
                    is_draining=known.is_draining or summary.is_draining,
                )
        return found

    async def drain(self, name: str, order: DrainOrder) -> list[str]:
        """Begin or end the draining of a front end; returns the brokers that told it."""
        answers = await ask_masters(
            self._client,
            RequestCode.DRAIN_FRONT_END,
            {
                "frontEnd": name,
                "isDraining": "true" if order.is_draining else "false",
                "perSecond": str(order.per_second),
                "serverReference": order.server_reference,
                "hasMoved": "true" if order.has_moved else "false",
            },
            doing=f"draining the front end {name}",
            none_codes=(ResponseCode.QUERY_NOT_FOUND,),
        )
        return sorted(answers)
