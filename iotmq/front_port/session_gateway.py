"""Keep a front end's sessions at brokers in other processes (ports.sessions.SessionPort).

Every broker keeps what it has of a session: light queues for the records of its own log, and how far the
session has come in them. One of them is the session's home: it decides who has the session and publishes the
will. Which one is a matter of the client id and the brokers' names alone, so every front end knows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from iotmq import limits
from iotmq.client.admin.devices.retained import merged_page
from iotmq.errors import RequestError
from iotmq.front_port.exclusive_claims import claim_exclusive
from iotmq.front_port.gateway import FORGET_S, RemoteGateway
from iotmq.front_port.session_answers import gather
from iotmq.front_port.session_brokers import SessionBrokers
from iotmq.front_port.session_link import SessionLink
from iotmq.front_port.session_parts import (
    SharedSession,
    broker_number_of,
    broker_queue_id,
    own_pushes,
    own_queue_id,
    own_subscriptions,
    progress_pages,
)
from iotmq.metrics import Metric, samples
from iotmq.ports.inspections import InspectionDone
from iotmq.ports.sessions import (
    ClientCounts,
    CloseRequest,
    DrainOrder,
    ExclusiveClaim,
    OpenedSession,
    OpenRequest,
    QueueRead,
    QueueRecords,
    Refused,
    RefusedByBrokers,
    RetainedRead,
    RetainedRecords,
    SessionProgress,
    SessionReceiver,
    SessionSubscription,
    ShareJoin,
    ShareReceiver,
    ShareReport,
    SubscribeRequest,
    UnsubscribeRequest,
)
from iotmq.remoting.codes import ResponseCode

_log = logging.getLogger("iotmq.mqtt")

# How long `start` waits for the brokers; devices are refused until theirs answers.
_START_S: Final = 5.0
# Sessions that are asked to come anew in one turn, because a broker knows nothing of them, and the pause.
_RENEWED_PER_TURN: Final = 64
_RENEW_INTERVAL_S: Final = 0.1
# A broker that answers, and refused its part of a session, is asked again after so long.
_ASK_AGAIN_S: Final = 10.0


class RemoteSessions:
    """Speaks to every broker that `gateway` knows. `name` tells this front end from the others."""

    def __init__(self, gateway: RemoteGateway, *, name: str) -> None:
        self.brokers = SessionBrokers(gateway, self, name=name, forgotten=self._broker_forgotten)
        self._receiver: SessionReceiver | None = None
        self._share_receiver: ShareReceiver | None = None
        self._sessions: dict[str, SharedSession] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._became_ready = asyncio.Event()
        self._is_stopped = False
        # A broker that was away then is unknown until it is back, or for good.
        self._started_s = 0.0
        self.renewed_total = 0

    def serve_shares(self, receiver: ShareReceiver) -> None:
        self._share_receiver = receiver

    async def start(self, receiver: SessionReceiver) -> None:
        """Connect to the brokers; after 5 s without those that are down."""
        self._receiver = receiver
        self._started_s = asyncio.get_running_loop().time()
        self.brokers.follow()
        try:
            async with asyncio.timeout(_START_S):
                while self.not_ready_reason is not None:
                    self._became_ready.clear()
                    await self._became_ready.wait()
        except TimeoutError:
            _log.warning("not all brokers have sessions now", extra={"detail": self.not_ready_reason})

    async def stop(self) -> None:
        """Close all links; sessions that were not closed are given up."""
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self.brokers.stop(), return_exceptions=True)

    @property
    def not_ready_reason(self) -> str | None:
        """Return the brokers that do not answer, as a text; None while all do."""
        return self.brokers.not_ready_reason

    def metrics(self) -> Iterable[Metric]:
        yield from self.brokers.metrics()
        text = "Devices asked to connect again because a broker that was away knows nothing of them."
        yield from samples(("iotmq_mqtt_renewed_sessions_total", text, self.renewed_total))

    # Sessions

    def open_session(self, request: OpenRequest, done: Callable[[OpenedSession | Refused], None]) -> None:
        client_id = request.client_id
        home = self.brokers.chosen_for(client_id)
        if home is None:
            done(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "no broker for sessions"))
            return

        def opened(found: OpenedSession | Refused) -> None:
            if isinstance(found, Refused):
                done(found)
                return
            session = self._sessions[client_id] = SharedSession(
                client_id, found.epoch, home, is_kept=request.expiry_s > 0
            )
            others = [link for link in self.brokers.links if link is not home]
            asked = [link for link in others if link.is_ready]
            session.is_incomplete = len(asked) < len(others)
            part = replace(request, will=None, is_known=found.is_present)
            gather(
                [partial(link.open_session, part) for link in asked],
                lambda answers: self._opened_everywhere(session, part, found, asked, answers, done),
            )

        home.open_session(request, done=opened)

    def subscribe(
        self, request: SubscribeRequest, done: Callable[[list[SessionSubscription] | Refused], None]
    ) -> None:
        session = self._session(request.client_id, request.epoch)
        if session is None:
            done(_LOST)
            return
        parts = list(session.parts.items())

        def answered(answers: list[list[SessionSubscription] | Refused]) -> None:
            found: list[SessionSubscription] = []
            for (link, _), answer in zip(parts, answers, strict=True):
                if not isinstance(answer, Refused):
                    found += own_subscriptions(link, answer)
                elif link is session.home or link.is_ready:
                    done(answer)
                    return
                else:
                    session.is_incomplete = True
            done(found)

        gather([partial(link.subscribe, replace(request, epoch=part)) for link, part in parts], answered)

    def unsubscribe(self, request: UnsubscribeRequest, done: Callable[[Refused | None], None]) -> None:
        session = self._session(request.client_id, request.epoch)
        if session is None:
            done(_LOST)
            return
        calls = []
        for link, part in session.parts.items():
            if link.is_ready or link is session.home:
                calls.append(partial(link.unsubscribe, replace(request, epoch=part)))
        for link in self.brokers.links:
            if not link.is_ready and link is not session.home:
                link.unsubscribe_later(request.client_id, request.filters)
        gather(
            calls,
            lambda answers: done(next((answer for answer in answers if answer is not None), None)),
        )

    def claim_exclusive(self, request: ExclusiveClaim, done: Callable[[list[Refused | None]], None]) -> None:
        session = self._session(request.client_id, request.epoch)
        if session is None:
            done([_LOST] * len(request.filters))
        else:
            claim_exclusive(request, session.parts, self.brokers.chosen_for, done)

    def report_clients(self, counts: Sequence[ClientCounts], done: Callable[[Refused | None], None]) -> None:
        link = next((link for link in self.brokers.links if link.is_ready), None)
        if link is None:
            done(_NO_BROKER)
        else:
            link.report_clients(counts, done)

    def report_draining(self, *, is_draining: bool) -> None:
        self.brokers.report_draining(is_draining=is_draining)

    def progress(self, changes: Sequence[SessionProgress], done: Callable[[Refused | None], None]) -> None:
        by_link: dict[SessionLink, list[SessionProgress]] = {}
        for change in changes:
            session = self._session(change.client_id, change.epoch)
            if session is not None:
                for link, part in session.parts_of(change):
                    by_link.setdefault(link, []).append(part)
        pages = [(link, page) for link, parts in by_link.items() for page in progress_pages(parts)]

        def answered(answers: list[Refused | None]) -> None:
            refusals = {
                link.number: answer
                for (link, _), answer in zip(pages, answers, strict=True)
                if answer is not None
            }
            if refusals:
                first = next(iter(refusals.values()))
                done(RefusedByBrokers(first.code, first.remark, frozenset(refusals)))
            else:
                done(None)

        gather([partial(link.progress, page) for link, page in pages], answered)

    def close_session(self, request: CloseRequest) -> None:
        session = self._session(request.client_id, request.epoch)
        if session is not None:
            del self._sessions[request.client_id]
            for link, part in session.parts.items():
                link.close_session(replace(request, epoch=part))
        elif request.drops_will and request.client_id not in self._sessions:
            home = self.brokers.chosen_for(request.client_id)
            if home is not None:
                home.drop_will(request)

    def read_queue(self, request: QueueRead, done: Callable[[QueueRecords | Refused], None]) -> None:
        number = broker_number_of(request.queue_id)
        link = self.brokers.link_of(number)
        if link is None:
            done(Refused(ResponseCode.QUERY_NOT_FOUND, "the broker of that queue has gone"))
            return
        link.read_queue(replace(request, queue_id=broker_queue_id(request.queue_id)), done)

    def read_retained(self, request: RetainedRead, done: Callable[[RetainedRecords | Refused], None]) -> None:
        """`after` is what brokers say: the last topic of a page."""
        gather(
            [partial(link.read_retained, request) for link in self.brokers.links if link.is_expected],
            lambda answers: done(merged_page(answers)),
        )

    def join_shares(
        self, source: int | None, joins: Sequence[ShareJoin], done: Callable[[list[Refused | None]], None]
    ) -> None:
        """With None: what cannot be joined at a broker that is away is joined when it is back."""
        calls: list[Callable[..., None]] = []
        places: list[list[int]] = []
        step = limits.SHARE_REPORT_MEMBERS_MAX
        for link in self.brokers.links_of(source):
            parts = []
            for place, wanted in enumerate(joins):
                session = self._session(wanted.client_id, wanted.epoch)
                epoch = None if session is None else session.parts.get(link)
                if epoch is not None:
                    parts.append((place, replace(wanted, epoch=epoch)))
            for start in range(0, len(parts), step):
                page = parts[start : start + step]
                places.append([place for place, _ in page])
                calls.append(partial(link.join_shares, [part for _, part in page]))
        gather(calls, lambda answers: done(_outcomes(len(joins), places, answers)))

    def report_shares(
        self, source: int, reports: Sequence[ShareReport], done: Callable[[Refused | None], None]
    ) -> None:
        step = limits.SHARE_REPORT_MEMBERS_MAX
        gather(
            [
                partial(link.report_shares, reports[start : start + step])
                for link in self.brokers.links_of(source)
                for start in range(0, len(reports), step)
            ],
            lambda answers: done(next((answer for answer in answers if answer is not None), None)),
        )

    # Opening

    def _opened_everywhere(
        self,
        session: SharedSession,
        request: OpenRequest,
        found: OpenedSession,
        links: Sequence[SessionLink],
        answers: Sequence[OpenedSession | Refused],
        done: Callable[[OpenedSession | Refused], None],
    ) -> None:
        """Open a session that all brokers have answered for, after making them agree on its filters."""
        opened: dict[SessionLink, OpenedSession] = {session.home: found}
        for link, answer in zip(links, answers, strict=True):
            if isinstance(answer, Refused):
                session.is_incomplete = True
            else:
                session.add_part(link, answer.epoch)
                opened[link] = answer
        options: dict[str, int] = {}
        for part in reversed(list(opened.values())):
            options.update((entry.topic_filter, entry.options) for entry in part.subscriptions)
        missing = {}
        for link, part in opened.items():
            has = {entry.topic_filter for entry in part.subscriptions}
            lacks = [(name, option) for name, option in options.items() if name not in has]
            if lacks:
                missing[link] = lacks
        added: dict[SessionLink, list[SessionSubscription]] = {}

        def agreed(results: list[tuple[SessionLink, list[SessionSubscription] | Refused]]) -> None:
            for link, result in results:
                if isinstance(result, Refused):
                    session.is_incomplete = True
                else:
                    added.setdefault(link, []).extend(result)
            now_s = asyncio.get_running_loop().time()
            done(session.merged(opened, added, are_all_known=now_s >= self._started_s + FORGET_S))
            session.is_opening = False
            if session.fence is not None:
                self._fence(session, session.fence)
                return
            if any(link.is_ready and link not in opened and link not in links for link in self.brokers.links):
                # A broker has come back meanwhile.
                self._renew_later([session])
            elif session.is_kept:
                lacking = {link for link, result in results if isinstance(result, Refused)}
                for link in links:
                    if link not in opened:
                        self._ask_again_later(session, link, request, None)
                    elif link in lacking:
                        wanted = SubscribeRequest(
                            client_id=session.client_id,
                            epoch=session.parts[link],
                            subscriptions=missing[link][:page],
                        )
                        self._ask_again_later(session, link, request, wanted)

        page = limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX
        gather(
            [
                partial(
                    _subscribe_at,
                    link,
                    SubscribeRequest(
                        client_id=session.client_id,
                        epoch=session.parts[link],
                        subscriptions=lacks[start : start + page],
                    ),
                )
                for link, lacks in missing.items()
                for start in range(0, len(lacks), page)
            ],
            agreed,
        )

    def _ask_again_later(
        self,
        session: SharedSession,
        link: SessionLink,
        request: OpenRequest,
        wanted: SubscribeRequest | None,
    ) -> None:
        """Ask a broker that has refused a session, or filters of it, until it does not.

        Then the device comes anew.
        """

        def is_there() -> bool:
            return self._sessions.get(session.client_id) is session

        def answered(found: OpenedSession | list[SessionSubscription] | Refused) -> None:
            if isinstance(found, OpenedSession) and not is_there():
                link.close_session(
                    CloseRequest(
                        client_id=session.client_id,
                        epoch=found.epoch,
                        expiry_s=request.expiry_s,
                        drops_will=True,
                    )
                )
            elif isinstance(found, Refused):
                self._ask_again_later(session, link, request, wanted)
            else:
                if isinstance(found, OpenedSession):
                    session.add_part(link, found.epoch)
                self._renew_later([session])

        def again() -> None:
            # One that is away has the session renewed when it is back.
            if self._is_stopped or not link.is_ready or not is_there():
                return
            if wanted is None:
                link.open_session(request, answered)
            else:
                link.subscribe(wanted, answered)

        asyncio.get_running_loop().call_later(_ASK_AGAIN_S, again)

    # session_link.LinkListener

    def link_ready(self, link: SessionLink) -> None:
        """Send a broker that is back the sessions that it does not know, or not in full."""
        self._became_ready.set()
        renewed = []
        for session in self._sessions.values():
            if session.is_opening:
                # Its answers may be on the way; when this broker's is missing, it is renewed the next time.
                continue
            if not session.is_kept:
                if link not in session.parts:
                    self._open_transient(session, link)
            elif session.is_incomplete or link not in session.parts:
                renewed.append(session)
        self._renew_later(renewed)
        if self._share_receiver is not None:
            self._share_receiver.rejoin(link.number, None)

    def _open_transient(self, session: SharedSession, link: SessionLink) -> None:
        """End the broker's state of a client that started clean; nothing else has to be told."""

        def opened(found: OpenedSession | Refused) -> None:
            if isinstance(found, Refused):
                return
            if self._sessions.get(session.client_id) is session:
                session.add_part(link, found.epoch)
                if self._share_receiver is not None:
                    self._share_receiver.rejoin(link.number, session.client_id)
            else:
                link.close_session(
                    CloseRequest(client_id=session.client_id, epoch=found.epoch, expiry_s=0, drops_will=True)
                )

        link.open_session(
            OpenRequest(client_id=session.client_id, is_clean=True, expiry_s=0, will=None), opened
        )

    def link_pushed(self, link: SessionLink, records: memoryview, pushes: memoryview) -> None:
        """Pass records on, under this front end's queue ids."""
        if self._receiver is not None and not self._is_stopped:
            self._receiver.deliver_queued(records, own_pushes(link.number, pushes))

    def link_missed(self, link: SessionLink, queue_ids: Sequence[int]) -> None:
        if self._receiver is not None and not self._is_stopped:
            self._receiver.missed([own_queue_id(link.number, queue_id) for queue_id in queue_ids])

    def link_handed_out(
        self, link: SessionLink, handouts: Sequence[tuple[int, int]], records: Sequence[memoryview]
    ) -> None:
        if self._share_receiver is not None and not self._is_stopped:
            self._share_receiver.hand_out(link.number, handouts, records)

    def link_withdrew(self, link: SessionLink, positions: Sequence[tuple[int, int]]) -> None:
        if self._share_receiver is not None and not self._is_stopped:
            self._share_receiver.withdraw(link.number, positions)

    def link_fenced(self, link: SessionLink, client_id: str, epoch: int, reason: str) -> None:
        session = self._sessions.get(client_id)
        if session is not None and session.parts.get(link) == epoch:
            self._fence(session, reason)

    def link_drain_ordered(self, order: DrainOrder) -> None:
        if self._receiver is not None and not self._is_stopped:
            self._receiver.drain(order)

    def link_inspected(self, name: str, body: bytes, done: InspectionDone) -> None:
        if self._receiver is not None and not self._is_stopped:
            self._receiver.inspect(name, body, done)
        else:
            done(RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "the front end is not started, or stops"))

    def _fence(self, session: SharedSession, reason: str) -> None:
        if session.is_opening:
            session.fence = reason
        elif self._receiver is not None and not self._is_stopped:
            self._receiver.fenced(session.client_id, session.epoch, reason)

    def _renew_later(self, sessions: list[SharedSession]) -> None:
        if sessions:
            self._run(self._renew(sessions))

    async def _renew(self, sessions: list[SharedSession]) -> None:
        """Disconnect devices so that they connect again, some at a time."""
        for number, session in enumerate(sessions):
            if number and number % _RENEWED_PER_TURN == 0:
                await asyncio.sleep(_RENEW_INTERVAL_S)
            if self._sessions.get(session.client_id) is session and not session.is_opening:
                self.renewed_total += 1
                self._fence(session, "a broker is back that does not know the session")

    def _session(self, client_id: str, epoch: int) -> SharedSession | None:
        session = self._sessions.get(client_id)
        return session if session is not None and session.epoch == epoch else None

    def _broker_forgotten(self, link: SessionLink) -> None:
        """Forget a broker that is gone for long: its sessions get other homes, their devices reconnect."""
        for session in self._sessions.values():
            if session.home is not link:
                session.drop_part(link)
        self._run(link.stop())
        self._renew_later([session for session in self._sessions.values() if session.home is link])

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_NO_BROKER: Final = Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "no broker answers")
_LOST: Final = Refused(ResponseCode.SESSION_LOST, "the session belongs to somebody else now")


def _subscribe_at(
    link: SessionLink,
    request: SubscribeRequest,
    done: Callable[[tuple[SessionLink, list[SessionSubscription] | Refused]], None],
) -> None:
    link.subscribe(request, lambda found: done((link, found)))


def _outcomes(
    count: int, places: Sequence[Sequence[int]], answers: Sequence[list[Refused | None] | Refused]
) -> list[Refused | None]:
    """Merge the outcomes of each join: refused when an answering broker refuses, or when none answers."""
    outcomes: list[Refused | None] = [_NOBODY] * count
    refused: set[int] = set()
    for page, answer in zip(places, answers, strict=True):
        for number, place in enumerate(page):
            found = answer if isinstance(answer, Refused) else answer[number]
            if found is None:
                outcomes[place] = None if place not in refused else outcomes[place]
            elif found.code != ResponseCode.SERVICE_NOT_AVAILABLE:
                outcomes[place] = found
                refused.add(place)
    return outcomes


_NOBODY: Final = Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "no broker answers")
