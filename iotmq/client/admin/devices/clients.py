"""Connected clients over all front ends: listed, shown, disconnected; their subscriptions; who was refused.

Each front end answers for its own connections (`inspections`), and the answers are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import msgspec

from iotmq.client.admin.cursors import decode_cursor, encode_cursor
from iotmq.client.admin.inspections import Answers, InspectionAdmin
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import StoredMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import BrokerError, ClientError, ConnectionClosedError, RequestTimeoutError
from iotmq.event_loop import Pace
from iotmq.limits import KICKED_CLIENTS_MAX, KICKED_NAMES_MAX
from iotmq.message.records.record import decode_record
from iotmq.ports import client_pages
from iotmq.ports.client_pages import (
    CLIENT_COLUMNS,
    ClientDetail,
    ClientFilter,
    ClientRow,
    ClientsAnswer,
    ClientsQuestion,
    KickAnswer,
    KickQuestion,
    Order,
    QueueAnswer,
    QueueQuestion,
    Refusal,
    RefusedAnswer,
    RefusedQuestion,
    SubscriptionOrder,
    SubscriptionRow,
    SubscriptionsAnswer,
    SubscriptionsQuestion,
)
from iotmq.ports.inspections import KICK
from iotmq.remoting.codes import ResponseCode

# Bytes of a merged page, as they come: past them the page is shorter.
_PAGE_BYTES_MAX: Final = 2 * 1024 * 1024
_NAMES_SHOWN: Final = 100

SlowBy: TypeAlias = Literal["latency_ms", "queued", "queued_bytes", "unsent_bytes", "dropped", "in_flight"]
SLOW_BY: Final = get_args(SlowBy)
_ALL: Final = ClientFilter()
_LAST: Final = RefusedQuestion()

T = TypeVar("T")
RowT = TypeVar("RowT", bound=ClientRow | SubscriptionRow)
OrderT = TypeVar("OrderT", Order, SubscriptionOrder)


class ClientsPage(NamedTuple):
    """Hold a page of clients. `problems` says why front ends are missing in it."""

    rows: list[ClientRow]
    next_cursor: str | None
    """The cursor of the page behind it; None behind the last one."""
    matched: int
    """Clients that are meant, on all pages."""
    connected: int
    """Clients of all front ends that have answered."""
    problems: dict[str, str]


class SubscriptionsPage(NamedTuple):
    """Hold a page of subscriptions. `problems` says why front ends and brokers are missing in it."""

    rows: list[SubscriptionRow]
    next_cursor: str | None
    problems: dict[str, str]


class QueuePage(NamedTuple):
    """Hold messages that a session is not done with. `left_out` are those too large to be shown.

    `is_in_flight` says of each whether the client was sent it, and has not acknowledged it.
    """

    messages: list[StoredMessage]
    is_in_flight: list[bool]
    left_out: int
    behind: int
    next_cursor: str | None
    problems: dict[str, str]


class Kicked(msgspec.Struct, frozen=True):
    """The clients that were disconnected, or would be."""

    matched: int
    """Those that are connected and meant."""
    kicked: int
    """Those that were disconnected."""
    client_ids: list[str]
    """The first hundred of them."""
    problems: dict[str, str]
    """The front ends that did not answer, and why."""


class RefusedClients(NamedTuple):
    """Hold the last refusals, the newest first."""

    refusals: list[Refusal]
    problems: dict[str, str]


class ClientAdmin:
    """Ask all front ends about their clients; needs a started client."""

    def __init__(self, client: ClientTransport) -> None:
        self._inspections = InspectionAdmin(client)

    async def page(
        self,
        wanted: ClientFilter = _ALL,
        *,
        sort_by: str = "client_id",
        is_descending: bool = False,
        limit: int = 100,
        cursor: str = "",
    ) -> ClientsPage:
        """List connected clients, in the order of a column and then by client id.

        What changes meanwhile may be on two pages or on none. CursorError for a cursor of another list.
        """
        if sort_by not in CLIENT_COLUMNS:
            raise ClientError(f"clients are not sorted by {sort_by[:40]!r}: {', '.join(CLIENT_COLUMNS)}")
        _check_bounds(wanted)
        list_name = f"{'-' if is_descending else ''}{sort_by}"
        question = ClientsQuestion(
            wanted=wanted,
            sort_by=sort_by,
            is_descending=is_descending,
            limit=limit,
            behind=decode_cursor(cursor, list_name, Order),
        )
        asked = await self._ask_all(client_pages.CONNECTIONS, question)
        answers = _decoded_all(ClientsAnswer, asked.answers)
        # By and by: the process may be one that serves devices.
        pace = Pace()
        parts: list[tuple[str, list[ClientRow], list[Order], bool]] = []
        for name, each in answers.items():
            decoded: list[ClientRow] = []
            for row in each.rows:
                await pace.step()
                decoded.append(_decoded(ClientRow, row, name))
            parts.append((name, decoded, each.orders, each.has_more))
        await pace.step()
        rows, orders, has_more = _merged(
            parts, limit, is_descending=is_descending, bytes_all=_bytes_of(asked.answers)
        )
        await pace.step()
        return ClientsPage(
            rows=rows,
            next_cursor=encode_cursor(list_name, orders[-1]) if has_more and orders else None,
            matched=sum(each.matched for each in answers.values()),
            connected=sum(each.connected for each in answers.values()),
            problems=asked.problems,
        )

    async def slow(self, *, by: SlowBy = "latency_ms", limit: int = 100) -> ClientsPage:
        """List the clients with most of what slow ones have, first those with most; none without any."""
        least: dict[str, float] = {by: 0.001 if by == "latency_ms" else 1.0}
        return await self.page(ClientFilter(least=least), sort_by=by, is_descending=True, limit=limit)

    async def show(self, client_id: str) -> ClientDetail | None:
        """Show a connected client; None when no front end has it."""
        found = await self._inspections.ask_all_front_ends(client_pages.CONNECTION, _text_body(client_id))
        details = _decoded_all(ClientDetail, found.answers)
        for name, detail in details.items():
            detail.row.front_end = name
        # Of two connections the front ends have not settled which one has the session.
        newest = max(details.values(), key=lambda each: each.row.connected_ms, default=None)
        others = {name: error for name, error in found.failures.items() if not _is_not_found(error)}
        if newest is None and others:
            why = "; ".join(f"{name}: {error}" for name, error in sorted(others.items()))
            raise ClientError(f"not all front ends answer: {why}")
        return newest

    async def kick(self, client_ids: Sequence[str], *, is_dry_run: bool = False) -> Kicked:
        """Disconnect clients by id; those that are not connected are left out."""
        if len(client_ids) > KICKED_NAMES_MAX:
            raise ClientError(f"{len(client_ids)} clients: at most {KICKED_NAMES_MAX} are named at a time")
        question = KickQuestion(client_ids=list(client_ids), limit=KICKED_CLIENTS_MAX, is_dry_run=is_dry_run)
        return _kicked(await self._ask_all(KICK, question))

    async def find_to_kick(self, wanted: ClientFilter) -> Kicked:
        """Find the clients that `kick_all` would disconnect."""
        _check_bounds(wanted)
        return _kicked(
            await self._ask_all(KICK, KickQuestion(wanted=wanted, limit=_NAMES_SHOWN, is_dry_run=True))
        )

    async def kick_all(self, wanted: ClientFilter, *, limit: int) -> Kicked:
        """Disconnect the clients that are meant; when they are more than `limit`, none at all."""
        found = await self.find_to_kick(wanted)
        if found.matched > limit or not found.matched:
            return found
        names: list[str] = []
        problems = dict(found.problems)
        kicked = 0
        # One after the other, so that together they are no more than was allowed.
        for front_end in await self._inspections.front_ends():
            question = KickQuestion(wanted=wanted, limit=limit - kicked)
            try:
                answer = await self._inspections.ask(front_end, KICK, _body(question))
            except (BrokerError, ConnectionClosedError, RequestTimeoutError) as error:
                problems[front_end] = str(error)
                continue
            one = _decoded(KickAnswer, answer, front_end)
            kicked += one.kicked
            names += one.client_ids
        return Kicked(found.matched, kicked, sorted(names)[:_NAMES_SHOWN], problems)

    async def subscriptions(
        self,
        *,
        client_id: str = "",
        topic_filter: str = "",
        topic: str = "",
        limit: int = 100,
        cursor: str = "",
    ) -> SubscriptionsPage:
        """List subscriptions by client id and filter: of connected clients, and of kept sessions.

        `client_id` and `topic_filter` are patterns; with `topic` only filters that it matches are listed.
        """
        question = SubscriptionsQuestion(
            client_id=client_id,
            topic_filter=topic_filter,
            topic=topic,
            limit=limit,
            behind=decode_cursor(cursor, "subscriptions", SubscriptionOrder),
        )
        of_front_ends = await self._ask_all(client_pages.SUBSCRIPTIONS, question)
        of_brokers = await self._inspections.ask_all_brokers(client_pages.SUBSCRIPTIONS, _body(question))
        parts = [
            (name, each.rows, each.orders, each.has_more)
            for name, each in _decoded_all(SubscriptionsAnswer, of_front_ends.answers).items()
        ]
        # A kept session is at all brokers.
        parts += [
            ("", each.rows, each.orders, each.has_more)
            for each in _decoded_all(SubscriptionsAnswer, of_brokers.answers).values()
        ]
        size = _bytes_of(of_front_ends.answers) + _bytes_of(of_brokers.answers)
        rows, orders, has_more = _merged(parts, limit, is_descending=False, bytes_all=size)
        return SubscriptionsPage(
            rows=rows,
            next_cursor=encode_cursor("subscriptions", orders[-1]) if has_more and orders else None,
            problems=of_front_ends.problems | of_brokers.problems,
        )

    async def queue(
        self, client_id: str, topic_filter: str, *, limit: int = 20, cursor: str = ""
    ) -> QueuePage | None:
        """Read messages that a kept session is not done with, of one of its filters; they stay there.

        `limit` counts for each broker. None when no broker has such a session with the filter.
        """
        positions = decode_cursor(cursor, "queue", dict[str, int]) or {}

        def question(broker: str) -> bytes | None:
            if cursor and broker not in positions:
                # It has no more of them.
                return None
            return _body(
                QueueQuestion(
                    client_id=client_id,
                    topic_filter=topic_filter,
                    limit=limit,
                    position=positions.get(broker, 0),
                )
            )

        asked = await self._inspections.ask_all_brokers(client_pages.SESSION_QUEUE, question)
        answers = _decoded_all(QueueAnswer, asked.answers)
        problems = {name: str(error) for name, error in asked.failures.items() if not _is_not_found(error)}
        if not answers and not problems:
            return None
        messages = [
            StoredMessage(MessageQueue(record.topic, broker, record.queue_id), record)
            for broker, answer in answers.items()
            for record in map(decode_record, answer.records)
            if record.position not in answer.done
        ]
        in_flight = {(broker, position) for broker, each in answers.items() for position in each.in_flight}
        messages.sort(key=lambda message: message.store_timestamp_ms)
        more = {broker: each.next_position for broker, each in answers.items() if not each.is_end}
        # One that had more of them, and does not answer now, is asked again for the next page.
        more |= {broker: positions[broker] for broker in problems if broker in positions}
        return QueuePage(
            messages=messages,
            is_in_flight=[(each.queue.broker_name, each.record.position) in in_flight for each in messages],
            left_out=sum(each.left_out for each in answers.values()),
            behind=sum(each.behind for each in answers.values()),
            next_cursor=encode_cursor("queue", more) if more else None,
            problems=problems,
        )

    async def refused(self, question: RefusedQuestion = _LAST) -> RefusedClients:
        """List who was not let in, by front ends and brokers, as far as they remember it."""
        of_front_ends = await self._ask_all(client_pages.REFUSED, question)
        of_brokers = await self._inspections.ask_all_brokers(client_pages.REFUSED, _body(question))
        found: list[Refusal] = []
        for answers in (of_front_ends.answers, of_brokers.answers):
            for name, each in _decoded_all(RefusedAnswer, answers).items():
                for refusal in each.refusals:
                    refusal.source = name
                    found.append(refusal)
        found.sort(key=lambda refusal: refusal.time_ms, reverse=True)
        return RefusedClients(found[: question.limit], of_front_ends.problems | of_brokers.problems)

    async def _ask_all(self, name: str, question: object) -> Answers:
        return await self._inspections.ask_all_front_ends(name, _body(question))


def _bytes_of(answers: dict[str, bytes]) -> int:
    return sum(map(len, answers.values()))


def _merged(
    parts: Iterable[tuple[str, list[RowT], list[OrderT], bool]],
    limit: int,
    *,
    is_descending: bool,
    bytes_all: int,
) -> tuple[list[RowT], list[OrderT], bool]:
    """Merge parts of a list, of so many bytes in all. What one of them may have more of ends the page."""
    found: list[tuple[OrderT, str, RowT]] = []
    ends: list[OrderT] = []
    for front_end, rows, orders, has_more in parts:
        if len(rows) != len(orders):
            raise ClientError(f"the answer of {front_end or 'a broker'} has not a place for each row")
        found += [(order, front_end, row) for order, row in zip(orders, rows, strict=True)]
        if has_more and orders:
            ends.append(orders[-1])
    found.sort(key=lambda each: each[0], reverse=is_descending)
    end = (max(ends) if is_descending else min(ends)) if ends else None
    page: list[RowT] = []
    orders_of_page: list[OrderT] = []
    size = 0
    for order, front_end, row in found:
        if end is not None and (order < end if is_descending else order > end):
            return page, orders_of_page, True
        if orders_of_page and orders_of_page[-1] == order:
            # The same of a kept session, at another broker or at the front end that has just got it.
            continue
        if bytes_all > _PAGE_BYTES_MAX:
            size += len(msgspec.msgpack.encode(row))
        if len(page) == limit or (page and size > _PAGE_BYTES_MAX):
            return page, orders_of_page, True
        row.front_end = front_end
        page.append(row)
        orders_of_page.append(order)
    return page, orders_of_page, end is not None


def _kicked(asked: Answers) -> Kicked:
    answers = _decoded_all(KickAnswer, asked.answers).values()
    names = sorted({name for each in answers for name in each.client_ids})
    return Kicked(
        sum(each.matched for each in answers),
        sum(each.kicked for each in answers),
        names[:_NAMES_SHOWN],
        asked.problems,
    )


def _check_bounds(wanted: ClientFilter) -> None:
    unknown = sorted((wanted.least.keys() | wanted.most.keys()) - set(client_pages.NUMBER_COLUMNS))
    if unknown:
        raise ClientError(f"{unknown[0][:40]!r} is no number of clients")


def _is_not_found(error: Exception) -> bool:
    return isinstance(error, BrokerError) and error.code == ResponseCode.QUERY_NOT_FOUND


def _body(question: object) -> bytes:
    try:
        return msgspec.msgpack.encode(question)
    except UnicodeEncodeError as error:
        raise _no_text(error) from None


def _text_body(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _no_text(error) from None


def _no_text(error: UnicodeEncodeError) -> ClientError:
    return ClientError(f"{str(error.object)[:80]!r} is no text that a client can have: {error.reason}")


def _decoded_all(form: type[T], answers: dict[str, bytes]) -> dict[str, T]:
    return {name: _decoded(form, answer, name) for name, answer in answers.items()}


def _decoded(form: type[T], answer: bytes, name: str) -> T:
    try:
        return msgspec.msgpack.decode(answer, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(f"the answer of {name} cannot be read: {error}") from error
