"""Ask brokers and registries, and decode their answers: the base of everything that operators ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Protocol, TypeVar

from iotmq.client.transport.calls import ask, ask_masters, master_addresses
from iotmq.client.transport.client import ClientTransport, expect_success
from iotmq.client.transport.queue_tables import decode_answer


class Page(Protocol):
    """A part of a list; `next_after` is the field `after` for the next page, None at the end."""

    @property
    def next_after(self) -> str | None: ...


T = TypeVar("T")
P = TypeVar("P", bound=Page)


class Asking:
    """Asks through a client that is started. `doing` says in errors what was asked.

    BrokerError when one refuses, ClientError for an answer that cannot be read.
    """

    def __init__(self, client: ClientTransport) -> None:
        self._client = client

    async def _of_masters(
        self,
        shape: type[T],
        code: int,
        ext: Mapping[str, str] | None = None,
        *,
        doing: str,
        broker_names: Collection[str] = (),
        none_codes: Collection[int] = (),
    ) -> dict[str, T]:
        """Ask all masters, or those named; their answers by broker name, without those of `none_codes`."""
        answers = await ask_masters(
            self._client, code, ext, doing=doing, broker_names=broker_names, none_codes=none_codes
        )
        return {
            name: decode_answer(answer.body, shape, doing=f"{doing} at broker {name}")
            for name, answer in answers.items()
        }

    async def _of_master(
        self,
        shape: type[T],
        broker_name: str,
        code: int,
        ext: Mapping[str, str],
        *,
        doing: str,
        timeout_s: float | None = None,
    ) -> T:
        """Ask the master of a broker name."""
        address = (await master_addresses(self._client, (broker_name,)))[broker_name]
        answer = await ask(self._client, address, code, ext, doing=doing, timeout_s=timeout_s)
        return decode_answer(answer.body, shape, doing=doing)

    async def _of_registry(self, shape: type[T], code: int, ext: dict[str, str], *, doing: str) -> T:
        """Ask the registries, one after the other until one answers."""
        answer = expect_success(await self._client.registries.request(code, ext), doing)
        return decode_answer(answer.body, shape, doing=doing)

    async def _pages(
        self, shape: type[P], address: str, code: int, ext: Mapping[str, str], *, count: int, doing: str
    ) -> AsyncIterator[P]:
        """Ask the broker at HOST:PORT for a list, `count` rows at a time; from behind `after` of `ext` on."""
        after: str | None = ext.get("after", "")
        while after is not None:
            wanted = {**ext, "after": after, "maxNums": str(count)}
            answer = await ask(self._client, address, code, wanted, doing=doing)
            page = decode_answer(answer.body, shape, doing=doing)
            yield page
            after = page.next_after
