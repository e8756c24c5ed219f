"""Keep the sessions of a front end at one broker, over a connection that is made again whenever it ends."""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from iotmq import limits
from iotmq.backoff import Backoff
from iotmq.errors import BrokerError, ConnectionClosedError, RequestError, RequestTimeoutError
from iotmq.event_loop import happens_within
from iotmq.front_port.kept_connection import KeptConnection
from iotmq.front_port.request_turns import RequestTurns
from iotmq.front_port.session_answers import decoded, outcome_of, split_records, tell
from iotmq.ports import bodies
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
    RetainedRead,
    RetainedRecords,
    SessionProgress,
    SessionSubscription,
    ShareJoin,
    ShareReport,
    SubscribeRequest,
    UnsubscribeRequest,
    Will,
)
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.signature import Credentials
from iotmq.supervised import FAILURES, end, supervise

_log = logging.getLogger("iotmq.mqtt")

T = TypeVar("T")

# The broker closes connections on which nothing moves (`broker.idle_s`), and a broker that hangs is noticed.
_HEARTBEAT_S: Final = 20.0
_ANSWER_TIMEOUT_S: Final = 10.0
# So long another member may take to be master.
_ABSENCE_S: Final = 3.0
# A request has one will more at most, of some hundred KiB, and a frame has four times as much.
_CLAIMED_WILLS_BYTES_MAX: Final = limits.FRAME_BYTES_MAX // 4
# Queues whose sessions are told in one turn of the loop that the broker has gone: less than a millisecond.
_MISSED_PER_TURN: Final = 1_024
# The rest of what a broker takes from one connection at a time is for what cannot wait.
_UNDER_WAY_MAX: Final = limits.REQUESTS_IN_FLIGHT_MAX // 2

_opened = msgspec.msgpack.Decoder(OpenedSession)
_subscribed = msgspec.msgpack.Decoder(list[SessionSubscription])
_lost_claims = msgspec.msgpack.Decoder(list[str])
_joined: msgspec.msgpack.Decoder[list[Refused | None]] = msgspec.msgpack.Decoder(list[Refused | None])
_HANDOUT: Final = struct.Struct(">II")
_WITHDRAWN: Final = struct.Struct(">IQ")
_drain = msgspec.msgpack.Decoder(DrainOrder)
_fenced = msgspec.msgpack.Decoder(bodies.FencedBody)


_queues = msgspec.msgpack.Decoder(dict[str, int])
# Sessions with more filters have a dictionary of them.
_ENCODED_QUEUES_MAX: Final = 8


class LinkListener(Protocol):
    """The receiver of what a link's broker pushes; queue ids are the broker's."""

    def link_ready(self, link: SessionLink) -> None:
        """Handle a link that became ready: the sessions of before are claimed again."""

    def link_pushed(self, link: SessionLink, records: memoryview, pushes: memoryview) -> None:
        """Deliver records of light queues, as SessionReceiver.deliver_queued."""

    def link_missed(self, link: SessionLink, queue_ids: Sequence[int]) -> None:
        """Handle that records of these queues were not pushed."""

    def link_handed_out(
        self, link: SessionLink, handouts: Sequence[tuple[int, int]], records: Sequence[memoryview]
    ) -> None:
        """Deliver messages to members of shared subscriptions, as ShareReceiver.hand_out."""

    def link_withdrew(self, link: SessionLink, positions: Sequence[tuple[int, int]]) -> None:
        """Take back shared messages that went to other members."""

    def link_fenced(self, link: SessionLink, client_id: str, epoch: int, reason: str) -> None:
        """Handle that another front end takes a session over."""

    def link_drain_ordered(self, order: DrainOrder) -> None:
        """Handle an operator's order to drain the front end, or to end that."""

    def link_inspected(self, name: str, body: bytes, done: InspectionDone) -> None:
        """Answer an operator's question about the front end, as SessionReceiver.inspect."""


class _Known:
    """Remember the sessions to claim when the connection comes back."""

    __slots__ = ("_queues", "epoch", "will")

    def __init__(self, epoch: int, will: Will | None, queues: dict[str, int]) -> None:
        self.epoch = epoch
        self.will = will
        self.queues = queues

    @property
    def queues(self) -> dict[str, int]:
        """Return a copy of the queue ids by filter; set it to change them."""
        kept = self._queues
        return kept if isinstance(kept, dict) else _queues.decode(kept)

    @queues.setter
    def queues(self, queues: dict[str, int]) -> None:
        # A hundred thousand sessions have one or two filters each, which as MessagePack take a third.
        self._queues = queues if len(queues) > _ENCODED_QUEUES_MAX else msgspec.msgpack.encode(queues)


class FrontEnd(msgspec.Struct, frozen=True, kw_only=True):
    """A front end as it introduces itself to brokers."""

    name: str
    """Unique among all front ends."""
    token: str
    """Tells the runs of one front end apart."""
    credentials: Credentials | None = None
    tls: ssl.SSLContext | None = None


class SessionLink(KeptConnection):
    """Sessions at one broker. Requests fail while the link is not ready, but for reads, which wait.

    Openings wait, too, when the broker has gone just now: another one may have its name in a moment.

    Everything the broker says is passed on in the order it said it: answers come through futures, one turn of
    the loop later, and so do pushes.
    """

    def __init__(
        self,
        broker_name: str,
        address: str,
        listener: LinkListener,
        *,
        number: int,
        front_end: FrontEnd,
    ) -> None:
        super().__init__(address, credentials=front_end.credentials, tls=front_end.tls)
        self.number = number
        self.broker_name = broker_name
        self._listener = listener
        self._introduction = {"name": front_end.name, "token": front_end.token}
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, _Known] = {}
        # Closed while the broker could not be told, with what was known of them.
        self._parted: dict[str, tuple[CloseRequest, _Known]] = {}
        # Filters given up while the broker could not be told: a client's epoch and filters.
        self._given_up: dict[str, tuple[int, set[str]]] = {}
        # Reads that wait for the broker: what to ask, and whom to tell.
        self._held: list[tuple[Callable[[], Command], Callable[[Command | Refused], None]]] = []
        # Openings that wait for a broker that went a moment ago, and the end of that wait.
        self._openings: list[tuple[Command, Callable[[Command | Refused], None]]] = []
        self._absence: asyncio.TimerHandle | None = None
        # Of these, and of those that wait for their turn.
        self._waiting_openings = 0
        self._waiting_opening_bytes = 0
        # The broker has gone, and not all sessions know yet that they have to read.
        self._has_missed = False
        # Openings and reads that are asked, and those that wait to be.
        self._turns = RequestTurns(self._loop, under_way_max=_UNDER_WAY_MAX)
        self._is_stopped = False
        self.problem: str | None = "not connected yet"
        """Why the link is not ready, in words."""
        self.opened_total = 0
        self.malformed_total = 0
        self.refused_openings_total = 0
        self._task = supervise("session link", self._keep_open)

    @property
    def session_count(self) -> int:
        """Return how many sessions this front end has at the broker."""
        return len(self._known)

    def report_draining(self, *, is_draining: bool) -> None:
        """Tell the broker with each heartbeat whether the front end drains."""
        self._introduction["isDraining"] = "true" if is_draining else "false"

    @property
    def is_expected(self) -> bool:
        """Return whether the broker is there, or has just gone: what is asked may wait for it."""
        return self.is_ready or self._absence is not None

    async def stop(self) -> None:
        """Close the link; sessions that were not closed are given up."""
        self._is_stopped = True
        await end([self._task])
        self.problem = "the front end stops"
        self._refuse_openings()
        held, self._held = self._held, []
        for _, done in held:
            done(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the front end stops"))

    # Sessions, as ports.sessions.SessionPort

    def open_session(self, request: OpenRequest, done: Callable[[OpenedSession | Refused], None]) -> None:
        def answered(answer: Command | Refused) -> None:
            opened = decoded(_opened, answer)
            if not isinstance(opened, Refused):
                queues = {entry.topic_filter: entry.queue_id for entry in opened.subscriptions}
                self._known[request.client_id] = _Known(opened.epoch, request.will, queues)
                self._parted.pop(request.client_id, None)
            done(opened)

        self._ask_present(_command(RequestCode.OPEN_SESSION, request), answered)

    def _ask_present(self, command: Command, done: Callable[[Command | Refused], None]) -> None:
        """Ask; a broker that has just gone is waited for, for a while, by a bounded number."""
        size = len(command.body)
        if (
            self._waiting_openings >= limits.SESSION_OPENINGS_WAITING_MAX
            or self._waiting_opening_bytes + size > limits.SESSION_OPENINGS_WAITING_BYTES_MAX
        ):
            self.refused_openings_total += 1
            reason = f"broker {self.broker_name}: {self._waiting_openings} openings and reads wait for it"
            done(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, reason))
            return
        self._waiting_openings += 1
        self._waiting_opening_bytes += size
        self._open(command, done)

    def subscribe(
        self, request: SubscribeRequest, done: Callable[[list[SessionSubscription] | Refused], None]
    ) -> None:
        def answered(answer: Command | Refused) -> None:
            found = decoded(_subscribed, answer)
            known = self._known_as(request.client_id, request.epoch)
            if known is not None and not isinstance(found, Refused):
                queues = known.queues
                queues.update((entry.topic_filter, entry.queue_id) for entry in found)
                known.queues = queues
            done(found)

        self._ask(_command(RequestCode.SUBSCRIBE_SESSION, request), answered)

    def unsubscribe(self, request: UnsubscribeRequest, done: Callable[[Refused | None], None]) -> None:
        known = self._known_as(request.client_id, request.epoch)
        if known is not None:
            queues = known.queues
            for topic_filter in request.filters:
                queues.pop(topic_filter, None)
            known.queues = queues
        self._ask(_command(RequestCode.UNSUBSCRIBE_SESSION, request), partial(tell, done))

    def unsubscribe_later(self, client_id: str, filters: Iterable[str]) -> None:
        """Have a broker that is away take back filters of a session, first of all when it is back.

        Else they would be the session's again when it is opened the next time.
        """
        known = self._known.get(client_id)
        if known is None and client_id in self._parted:
            _, known = self._parted[client_id]
        if known is None:
            return
        given_up = known.queues.keys() & set(filters)
        if given_up:
            self._given_up.setdefault(client_id, (known.epoch, set()))[1].update(given_up)

    def progress(self, changes: Sequence[SessionProgress], done: Callable[[Refused | None], None]) -> None:
        """Report progress; at most SESSIONS_PER_REQUEST_MAX changes."""
        self._ask(_command(RequestCode.REPORT_PROGRESS, list(changes)), partial(tell, done))

    def close_session(self, request: CloseRequest) -> None:
        """Close a session; the broker is told now, or when it is back."""
        known = self._known_as(request.client_id, request.epoch)
        if known is not None:
            del self._known[request.client_id]
            self._part(request, known)

    def drop_will(self, request: CloseRequest) -> None:
        """Have the broker drop the will of a session that is closed, now or when it is back."""
        self._ask_patiently(lambda: _command(RequestCode.CLOSE_SESSION, request), lambda _: None)

    def read_queue(self, request: QueueRead, done: Callable[[QueueRecords | Refused], None]) -> None:
        def decode(answer: Command) -> QueueRecords:
            next_position = answer.integer("nextPosition", minimum=0)
            return QueueRecords(_records(answer), next_position, answer.boolean("isEnd"))

        ext = {
            "queueId": str(request.queue_id),
            "position": str(request.position),
            "clientId": request.client_id,
            **_maxima(request),
        }
        self._ask_patiently(
            lambda: Command.request(RequestCode.READ_LIGHT_QUEUE, ext),
            partial(self._tell_records, done, decode),
        )

    def read_retained(self, request: RetainedRead, done: Callable[[RetainedRecords | Refused], None]) -> None:
        """`after` is what a former answer of this link said."""

        def decode(answer: Command) -> RetainedRecords:
            return RetainedRecords(_records(answer), answer.ext.get("after"))

        ext = {"filter": request.topic_filter, "after": request.after or "", **_maxima(request)}
        command = Command.request(RequestCode.READ_RETAINED, ext)
        self._ask_present(command, partial(self._tell_records, done, decode))

    def join_shares(
        self, joins: Sequence[ShareJoin], done: Callable[[list[Refused | None] | Refused], None]
    ) -> None:
        """At most SHARE_REPORT_MEMBERS_MAX."""
        self._ask(_command(RequestCode.JOIN_SHARES, list(joins)), partial(_tell_outcomes, done))

    def report_shares(self, reports: Sequence[ShareReport], done: Callable[[Refused | None], None]) -> None:
        """At most SHARE_REPORT_MEMBERS_MAX."""
        self._ask(_command(RequestCode.REPORT_SHARES, list(reports)), partial(tell, done))

    def report_clients(self, counts: Sequence[ClientCounts], done: Callable[[Refused | None], None]) -> None:
        self._ask(_command(RequestCode.REPORT_CLIENTS, list(counts)), partial(tell, done))

    def claim_exclusive(
        self, request: ExclusiveClaim, done: Callable[[list[Refused | None] | Refused], None]
    ) -> None:
        self._ask(_command(RequestCode.CLAIM_EXCLUSIVE, request), partial(_tell_outcomes, done))

    # Asking

    def _ask(self, command: Command, done: Callable[[Command | Refused], None]) -> None:
        if self._connection is None:
            done(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"broker {self.broker_name}: {self.problem}"))
            return
        self._connection.request_nowait(command).add_done_callback(lambda future: done(outcome_of(future)))

    def _ask_patiently(self, make: Callable[[], Command], done: Callable[[Command | Refused], None]) -> None:
        """Send a request, and again on the next connection when this one ends."""
        if self._is_stopped:
            done(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the front end stops"))
            return
        if self._connection is None:
            self._held.append((make, done))
            return

        self._turns.request(partial(self._read_in_turn, make, done))

    def _read_in_turn(self, make: Callable[[], Command], done: Callable[[Command | Refused], None]) -> None:
        def answered(future: asyncio.Future[Command]) -> None:
            self._turns.end()
            if not future.cancelled() and isinstance(future.exception(), ConnectionClosedError):
                self._ask_patiently(make, done)
            else:
                done(outcome_of(future))

        if self._connection is None:
            self._turns.end()
            self._ask_patiently(make, done)
        else:
            self._connection.request_nowait(make()).add_done_callback(answered)

    def _open(self, command: Command, done: Callable[[Command | Refused], None]) -> None:
        if self._absence is not None:
            self._openings.append((command, done))
        else:
            self._turns.request(partial(self._open_in_turn, command, done))

    def _open_in_turn(self, command: Command, done: Callable[[Command | Refused], None]) -> None:
        def answered(answer: Command | Refused) -> None:
            self._turns.end()
            done(answer)

        if self._absence is not None:
            self._turns.end()
            self._open(command, done)
        else:
            self._release(command)
            self._ask(command, answered)

    def _release(self, opening: Command) -> None:
        """Count an opening as waiting no more."""
        self._waiting_openings -= 1
        self._waiting_opening_bytes -= len(opening.body)

    def _note_absent(self) -> None:
        """The broker has gone: have openings wait for it, for a while."""
        self._has_missed = True
        self._absence = self._loop.call_later(_ABSENCE_S, self._refuse_openings)

    def _end_absence(self) -> list[tuple[Command, Callable[[Command | Refused], None]]]:
        """End that wait, and return the openings that have waited."""
        if self._absence is not None:
            self._absence.cancel()
            self._absence = None
        waiting, self._openings = self._openings, []
        return waiting

    def _refuse_openings(self) -> None:
        for command, done in self._end_absence():
            self._release(command)
            done(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"broker {self.broker_name}: {self.problem}"))

    def _known_as(self, client_id: str, epoch: int) -> _Known | None:
        known = self._known.get(client_id)
        return known if known is not None and known.epoch == epoch else None

    def _part(self, body: CloseRequest, known: _Known) -> None:
        if self._connection is None:
            self._parted[body.client_id] = body, known
            return

        def answered(future: asyncio.Future[Command]) -> None:
            is_untold = not future.cancelled() and isinstance(future.exception(), ConnectionClosedError)
            if is_untold and not self._is_stopped and body.client_id not in self._known:
                self._parted[body.client_id] = body, known

        self._connection.request_nowait(_command(RequestCode.CLOSE_SESSION, body)).add_done_callback(answered)

    def _give_up(self, client_id: str, epoch: int, filters: list[str]) -> None:
        """Tell the broker of filters that were given up while it was away."""

        def answered(refused: Refused | None) -> None:
            if refused is not None and self._connection is None and not self._is_stopped:
                self._given_up.setdefault(client_id, (epoch, set()))[1].update(filters)

        self.unsubscribe(UnsubscribeRequest(client_id=client_id, epoch=epoch, filters=filters), answered)

    def _tell_records(
        self, done: Callable[[T | Refused], None], decode: Callable[[Command], T], answer: Command | Refused
    ) -> None:
        try:
            done(answer if isinstance(answer, Refused) else decode(answer))
        except RequestError as error:
            self.malformed_total += 1
            done(Refused(ResponseCode.SYSTEM_ERROR, f"broker {self.broker_name}: {error}"))

    # The connection

    async def _keep_open_here(self, stay: asyncio.Timeout) -> None:
        # Devices with sessions are refused while there is no link, so a broker that is back is noticed soon.
        backoff = Backoff(min_s=0.05, max_s=1.0)
        while True:
            lost = asyncio.Event()
            connection: ClientConnection | None = None
            try:
                if self._has_missed:
                    await self._tell_missed()
                connection = await self._connect(partial(self._note_lost, lost))
                await self._introduce(connection)
                await self._claim_all(connection)
                self._become_ready(connection)
                backoff.reset()
                while not await happens_within(lost, _HEARTBEAT_S):
                    await self._introduce(connection)
                self.problem = "the connection was lost"
            except (
                ConnectionClosedError,
                RequestTimeoutError,
                BrokerError,
                ValueError,
            ) as error:
                self.problem = str(error)
            except Exception as error:
                # Sessions that were here have to be read again, whatever it was.
                FAILURES.note("session link")
                self.problem = f"{type(error).__name__}: {error}"
            finally:
                was_ready = self._connection is not None
                self._connection = None
                if was_ready:
                    self._note_absent()
                if stay.expired():
                    self.problem = "the broker is elsewhere now"
                    if connection is not None:
                        connection.abort("the broker is elsewhere")
                elif connection is not None and not connection.is_closed:
                    await connection.close()
            if was_ready or not backoff.failures:
                _log.warning(
                    "kept sessions cannot be reached at a broker; trying again",
                    extra={"broker": self.broker_name, "detail": self.problem},
                )
            await asyncio.sleep(backoff.next_s())

    async def _tell_missed(self) -> None:
        """Have sessions read what comes from the loss of the broker on, some in each turn.

        Before there is another connection: nothing may be pushed to those that do not know yet. Their reads
        wait for it.
        """
        told: set[int] = set()
        untold: set[int] = set()
        for client_id in list(self._known):
            known = self._known.get(client_id)
            if known is not None:
                untold.update(known.queues.values())
            if len(untold) >= _MISSED_PER_TURN:
                self._listener.link_missed(self, sorted(untold - told))
                told |= untold
                untold.clear()
                await asyncio.sleep(0)
        self._listener.link_missed(self, sorted(untold - told))
        self._has_missed = False

    def queue_ids(self) -> list[int]:
        """Return the light queues of all sessions of the link."""
        return sorted({queue_id for known in self._known.values() for queue_id in known.queues.values()})

    async def _introduce(self, connection: ClientConnection) -> None:
        await _answer(
            connection.request(
                Command.request(RequestCode.INTRODUCE_FRONT_END, self._introduction), _ANSWER_TIMEOUT_S
            )
        )

    async def _claim_all(self, connection: ClientConnection) -> None:
        """Claim the sessions of before; those that another front end has meanwhile are lost."""
        for page in _pages(self._claims()):
            answer = await _answer(
                connection.request(_command(RequestCode.CLAIM_SESSIONS, page), _ANSWER_TIMEOUT_S)
            )
            epochs = {claim.client_id: claim.epoch for claim in page}
            for client_id in _lost_claims.decode(answer.body_bytes()):
                known = self._known.get(client_id)
                if known is not None and known.epoch == epochs.get(client_id):
                    del self._known[client_id]
                    self._listener.link_fenced(
                        self, client_id, known.epoch, "the session belongs to somebody else now"
                    )

    def _claims(self) -> Iterator[bodies.ClaimBody]:
        """Yield the claims, each made when it is asked for: there may be a hundred thousand."""
        for client_id in list(self._known):
            known = self._known.get(client_id)
            if known is not None:
                checksum = bodies.queues_checksum(known.queues.items())
                yield bodies.ClaimBody(client_id, known.epoch, checksum, known.will)
        # Among them those that were closed while others were claimed.
        for body, _ in list(self._parted.values()):
            yield bodies.ClaimBody(body.client_id, body.epoch, 0, None)

    def _become_ready(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.problem = None
        self.opened_total += 1
        # Before their sessions are closed.
        given_up, self._given_up = self._given_up, {}
        step = limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX
        for client_id, (epoch, names) in given_up.items():
            filters = sorted(names)
            for start in range(0, len(filters), step):
                self._give_up(client_id, epoch, filters[start : start + step])
        parted, self._parted = self._parted, {}
        for body, known in parted.values():
            self._part(body, known)
        held, self._held = self._held, []
        for make, done in held:
            self._ask_patiently(make, done)
        for command, done in self._end_absence():
            self._open(command, done)
        self._listener.link_ready(self)

    def _note_lost(self, lost: asyncio.Event, connection: ClientConnection) -> None:
        if connection is self._connection:
            self._connection = None
            self._note_absent()
        lost.set()

    # What the broker says by itself

    def _requested(self, connection: ClientConnection, request: Command) -> Command | None:
        if request.code == RequestCode.INSPECT_FRONT_END:
            self._listener.link_inspected(
                request.text("name"), request.body_bytes(), partial(_reply_inspected, connection, request)
            )
            return None
        pushed = _PUSHES.get(request.code)
        if pushed is None:
            return request.not_supported()
        # In the next turn, as answers are: the order between the two means something.
        self._loop.call_soon(self._pushed, pushed, request)
        return None

    def _pushed(self, pushed: Callable[[SessionLink, Command], None], request: Command) -> None:
        try:
            pushed(self, request)
        except (RequestError, msgspec.DecodeError, UnicodeDecodeError) as error:
            if not self.malformed_total:
                _log.warning("malformed push", extra={"broker": self.broker_name, "detail": str(error)})
            self.malformed_total += 1

    def _records_pushed(self, request: Command) -> None:
        body = memoryview(request.body_bytes())
        size = request.integer("pushesBytes", minimum=0, maximum=len(body))
        self._listener.link_pushed(self, body[size:], body[:size])

    def _missed_pushed(self, request: Command) -> None:
        if request.boolean("isAll"):
            self._listener.link_missed(self, self.queue_ids())
            return
        body = request.body_bytes()
        ids = [int.from_bytes(body[at : at + 4], "big") for at in range(0, len(body) - 3, 4)]
        self._listener.link_missed(self, ids)

    def _handouts_pushed(self, request: Command) -> None:
        body = memoryview(request.body_bytes())
        size = request.integer("handoutsBytes", minimum=0, maximum=len(body))
        records = split_records(body[size:])
        if size != len(records) * _HANDOUT.size:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the records handed out are not one a member")
        self._listener.link_handed_out(self, list(_HANDOUT.iter_unpack(body[:size])), records)

    def _withdrawn_pushed(self, request: Command) -> None:
        body = request.body_bytes()
        if len(body) % _WITHDRAWN.size:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "what is withdrawn ends in the middle")
        self._listener.link_withdrew(self, list(_WITHDRAWN.iter_unpack(body)))

    def _drain_pushed(self, request: Command) -> None:
        self._listener.link_drain_ordered(_drain.decode(request.body_bytes()))

    def _fence_pushed(self, request: Command) -> None:
        body = _fenced.decode(request.body_bytes())
        self._listener.link_fenced(self, body.client_id, body.epoch, body.reason)


_PUSHES: Final[dict[int, Callable[[SessionLink, Command], None]]] = {
    RequestCode.DELIVER_QUEUED: SessionLink._records_pushed,
    RequestCode.MISSED_QUEUES: SessionLink._missed_pushed,
    RequestCode.FENCE_SESSION: SessionLink._fence_pushed,
    RequestCode.ORDER_DRAIN: SessionLink._drain_pushed,
    RequestCode.HAND_OUT_SHARES: SessionLink._handouts_pushed,
    RequestCode.WITHDRAW_SHARES: SessionLink._withdrawn_pushed,
}


def _reply_inspected(connection: ClientConnection, request: Command, outcome: bytes | RequestError) -> None:
    if isinstance(outcome, RequestError):
        connection.reply(request.reply(outcome.code, remark=str(outcome)))
    else:
        connection.reply(request.reply(ResponseCode.SUCCESS, body=outcome))


def _tell_outcomes(done: Callable[[list[Refused | None] | Refused], None], answer: Command | Refused) -> None:
    outcomes = decoded(_joined, answer)
    done(outcomes)


def _pages(claims: Iterable[bodies.ClaimBody]) -> Iterator[list[bodies.ClaimBody]]:
    """Split claims among requests, whose number of sessions and size are bounded: wills may be large."""
    page: list[bodies.ClaimBody] = []
    size = 0
    for claim in claims:
        page.append(claim)
        size += 0 if claim.will is None else len(claim.will.elements)
        if len(page) == limits.SESSIONS_PER_REQUEST_MAX or size > _CLAIMED_WILLS_BYTES_MAX:
            yield page
            page, size = [], 0
    if page:
        yield page


def _records(answer: Command) -> list[memoryview]:
    return split_records(memoryview(answer.body_bytes()))


def _command(code: int, body: object) -> Command:
    return Command.request(code, body=bodies.encode(body))


async def _answer(asked: asyncio.Future[Command]) -> Command:
    answer = await asked
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError(answer.code, answer.remark or "")
    return answer


def _maxima(request: QueueRead | RetainedRead) -> dict[str, str]:
    return {
        "maxNums": str(min(request.records_max, limits.QUEUE_READ_RECORDS_MAX)),
        "maxMsgBytes": str(min(request.bytes_max, limits.PULL_BYTES_MAX)),
    }
