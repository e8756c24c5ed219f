"""Look into single processes: brokers, and the front ends connected to them (request 30075)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from iotmq.client.admin.asking import Asking
from iotmq.client.transport.calls import ask, master_addresses
from iotmq.client.transport.queue_tables import decode_answer
from iotmq.errors import BrokerError, ConnectionClosedError, RequestTimeoutError, RouteNotFoundError
from iotmq.ports.inspections import LOCAL_FRONT_END
from iotmq.ports.replication_state import REPLICATION, ReplicationAnswer, ReplicationState
from iotmq.ports.session_pages import FrontEndsPage
from iotmq.remoting.codes import RequestCode, ResponseCode

# More than a front end and its broker take before they give up.
_TIMEOUT_S: Final = 10.0
# Front ends asked at a time: each answer may have a mebibyte.
_AT_A_TIME: Final = 16
_FAILURES: Final = (BrokerError, ConnectionClosedError, RequestTimeoutError)


class FrontEndAnswers(NamedTuple):
    """Hold the answers of front ends by name, and why others gave none.

    Of several brokers with a front end of their own, these are named `local@BROKER`.
    """

    answers: dict[str, bytes]
    problems: dict[str, str]


class InspectionAdmin(Asking):
    """Ask one process, or all front ends; needs a started client."""

    async def ask(self, target: str, name: str, body: bytes = b"") -> bytes:
        """Ask a broker's process, or a front end through a broker that it is connected to.

        RouteNotFoundError when there is neither, BrokerError when it refuses.
        """
        masters = await master_addresses(self._client)
        if target in masters:
            return await self._ask_at(masters[target], "", target, name, body)
        for front_end, (own_name, broker_names) in (await self._front_ends(masters, {})).items():
            if target in (front_end, own_name):
                return await self._ask_through(masters, broker_names, own_name, name, body)
        raise RouteNotFoundError(f"no broker and no connected front end is named {target[:80]}")

    async def ask_broker(self, broker_name: str, name: str, body: bytes = b"") -> bytes:
        """Ask the process of a broker name's master."""
        address = (await master_addresses(self._client, (broker_name,)))[broker_name]
        return await self._ask_at(address, "", broker_name, name, body)

    async def replication(self, broker_name: str) -> ReplicationState | None:
        """Return how far others have the log of a broker name's master; None where nobody copies it."""
        body = await self.ask_broker(broker_name, REPLICATION)
        doing = f"asking {broker_name} who copies its log"
        return decode_answer(body, ReplicationAnswer, doing=doing).replication

    async def front_ends(self) -> list[str]:
        """List the names of all front ends that are connected."""
        return sorted(await self._front_ends(await master_addresses(self._client), {}))

    async def ask_all_front_ends(
        self, name: str, body: bytes | Callable[[str], bytes] = b""
    ) -> FrontEndAnswers:
        """Ask every connected front end; one that does not answer takes nothing from the others.

        `body` is the same for all, or what is returned for a front end's name.
        """
        masters = await master_addresses(self._client)
        turns = asyncio.Semaphore(_AT_A_TIME)
        answers: dict[str, bytes] = {}
        problems: dict[str, str] = {}

        async def one(front_end: str, own_name: str, broker_names: list[str]) -> None:
            async with turns:
                try:
                    question = body if isinstance(body, bytes) else body(front_end)
                    answers[front_end] = await self._ask_through(
                        masters, broker_names, own_name, name, question
                    )
                except _FAILURES as error:
                    problems[front_end] = str(error)

        found = await self._front_ends(masters, problems)
        await asyncio.gather(*(one(front_end, *where) for front_end, where in sorted(found.items())))
        return FrontEndAnswers(answers, problems)

    async def _front_ends(
        self, masters: dict[str, str], problems: dict[str, str]
    ) -> dict[str, tuple[str, list[str]]]:
        """Return, for each front end, the name that brokers have for it, and these brokers.

        `problems` gets the brokers that do not answer; when none does, this raises as the first.
        """

        async def one(address: str) -> FrontEndsPage | Exception:
            doing = "listing front ends"
            try:
                answer = await ask(
                    self._client, address, RequestCode.LIST_FRONT_ENDS, {"isBrief": "true"}, doing=doing
                )
            except _FAILURES as error:
                return error
            return decode_answer(answer.body, FrontEndsPage, doing=doing)

        pages = await asyncio.gather(*(one(address) for address in masters.values()))
        failures = [page for page in pages if isinstance(page, Exception)]
        if len(failures) == len(pages):
            raise failures[0]
        at: dict[str, list[str]] = {}
        for broker_name, page in sorted(zip(masters, pages, strict=True), key=lambda pair: pair[0]):
            if isinstance(page, Exception):
                problems[broker_name] = str(page)
                continue
            for summary in page.front_ends:
                at.setdefault(summary.name, []).append(broker_name)
        found = {name: (name, broker_names) for name, broker_names in at.items()}
        # Each of them is another one.
        if len(at.get(LOCAL_FRONT_END, ())) > 1:
            _, broker_names = found.pop(LOCAL_FRONT_END)
            found.update((f"{LOCAL_FRONT_END}@{each}", (LOCAL_FRONT_END, [each])) for each in broker_names)
        return found

    async def _ask_through(
        self, masters: dict[str, str], broker_names: list[str], front_end: str, name: str, body: bytes
    ) -> bytes:
        """Ask a front end through the first of its brokers that reaches it."""
        problem: Exception | None = None
        for broker_name in broker_names:
            try:
                return await self._ask_at(masters[broker_name], front_end, front_end, name, body)
            except BrokerError as error:
                if error.code not in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SERVICE_NOT_AVAILABLE):
                    raise
                problem = error
            except ConnectionClosedError as error:
                problem = error
        assert problem is not None, "a front end is known from a broker"
        raise problem

    async def _ask_at(self, address: str, front_end: str, target: str, name: str, body: bytes) -> bytes:
        answer = await ask(
            self._client,
            address,
            RequestCode.INSPECT,
            {"frontEnd": front_end, "name": name},
            body,
            doing=f"looking at {name} of {target}",
            timeout_s=_TIMEOUT_S,
        )
        return answer.body_bytes()
