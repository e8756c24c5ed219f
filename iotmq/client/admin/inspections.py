"""Look into single processes: brokers, and the front ends connected to them (request 30075)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from iotmq.client.admin.asking import Asking
from iotmq.client.transport.calls import ask, master_addresses
from iotmq.client.transport.queue_tables import decode_answer
from iotmq.errors import BrokerError, ConnectionClosedError, RequestTimeoutError, RouteNotFoundError
from iotmq.event_loop import some_at_once
from iotmq.ports.inspections import LOCAL_FRONT_END
from iotmq.ports.replication_state import REPLICATION, ReplicationAnswer, ReplicationState
from iotmq.ports.session_pages import FrontEndsPage
from iotmq.remoting.codes import RequestCode, ResponseCode

# More than a front end and its broker take before they give up.
_TIMEOUT_S: Final = 10.0
# Front ends asked at a time: each answer may have a mebibyte.
_AT_A_TIME: Final = 16
_FAILURES: Final = (BrokerError, ConnectionClosedError, RequestTimeoutError)


class Answers(NamedTuple):
    """Hold the answers of brokers or front ends by name, and why others gave none.

    Of several brokers with a front end of their own, these front ends are named `local@BROKER`.
    """

    answers: dict[str, bytes]
    failures: dict[str, Exception]

    @property
    def problems(self) -> dict[str, str]:
        """Return the failures in words."""
        return {name: str(error) for name, error in self.failures.items()}


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
        self, name: str, body: bytes | Callable[[str], bytes | None] = b""
    ) -> Answers:
        """Ask every connected front end; one that does not answer takes nothing from the others.

        `body` is the same for all, or what is returned for a front end's name; None: it is not asked.
        """
        masters = await master_addresses(self._client)
        failures: dict[str, Exception] = {}
        found = await self._front_ends(masters, failures)
        asked = await _ask_each(
            {
                front_end: partial(self._ask_through, masters, broker_names, own_name, name)
                for front_end, (own_name, broker_names) in found.items()
            },
            body,
        )
        return asked._replace(failures=failures | asked.failures)

    async def ask_all_brokers(self, name: str, body: bytes | Callable[[str], bytes | None] = b"") -> Answers:
        """Ask the process of every broker name's master, as `ask_all_front_ends` asks front ends."""
        masters = await master_addresses(self._client)
        return await _ask_each(
            {each: partial(self._ask_at, address, "", each, name) for each, address in masters.items()}, body
        )

    async def _front_ends(
        self, masters: dict[str, str], failures: dict[str, Exception]
    ) -> dict[str, tuple[str, list[str]]]:
        """Return, for each front end, the name that brokers have for it, and these brokers.

        `failures` gets the brokers that do not answer; when none does, this raises as the first.
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
        at: dict[str, list[str]] = {}
        for broker_name, page in sorted(zip(masters, pages, strict=True), key=lambda pair: pair[0]):
            if isinstance(page, Exception):
                failures[broker_name] = page
                continue
            for summary in page.front_ends:
                at.setdefault(summary.name, []).append(broker_name)
        if len(failures) == len(pages):
            raise next(iter(failures.values()))
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


async def _ask_each(
    ways: Mapping[str, Callable[[bytes], Awaitable[bytes]]], body: bytes | Callable[[str], bytes | None]
) -> Answers:
    async def one(question: tuple[str, bytes]) -> bytes | Exception:
        try:
            return await ways[question[0]](question[1])
        except _FAILURES as error:
            return error

    questions = {name: body if isinstance(body, bytes) else body(name) for name in sorted(ways)}
    asked = {name: question for name, question in questions.items() if question is not None}
    found = dict(zip(asked, await some_at_once(one, asked.items(), count=_AT_A_TIME), strict=True))
    return Answers(
        {name: each for name, each in found.items() if isinstance(each, bytes)},
        {name: each for name, each in found.items() if isinstance(each, Exception)},
    )
