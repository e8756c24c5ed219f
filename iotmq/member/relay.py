"""Pass requests of clients on to the master, for clients that still have the address of another member.

Clients of RocketMQ look for another master every 30 s at most. A member that follows therefore opens a
connection to the master for each of its clients that asks for something (a *link*), and passes on what comes,
both ways. The first request on a link says who the client is (RELAY_CLIENT). From then on the link is the
client's connection to the master: born hosts, permissions, registrations, queue locks, held pulls and the
master's own requests to the client are right without a table of any of them, and they end with the client.

While no master is known, or it does not serve yet, requests wait for up to `_HOLD_S`, and nothing more is
read from their client. When a link ends, pulls are answered with "again at once", and everything else as by
a broker that takes no requests: the client does not know whether a message was stored, as after a lost
connection.

For clients of iotmq's own the end of the link is the end of their connection. A front end that went on would
believe that the next master knows its filters and sessions, and a producer that it was refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final

from iotmq import limits
from iotmq.errors import BrokerError, ConnectionClosedError, IotmqError, RequestError, RequestTimeoutError
from iotmq.member.peers import PeerConnector
from iotmq.metrics import Metric, samples
from iotmq.remoting.channel import Channel
from iotmq.remoting.codes import IS_MASTER_FIELD, RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.server import RequestHandler, ServerConnection
from iotmq.supervised import end, supervise, surviving

logger = logging.getLogger("iotmq.replication")

# Less than the 3 s that producers of the RocketMQ family wait for an answer.
_HOLD_S: Final = 2.0
# How often a master is looked for while requests wait for it.
_LOOK_S: Final = 0.05
# How often links are compared with who is master.
_CHECK_S: Final = 0.1
_CONNECT_S: Final = 1.0
# A master that is asked answers within this and the time the request itself allows it to be held.
_ANSWER_S: Final = 30.0
# What one side has not taken yet before nothing more is read from the other.
_UNSENT_BYTES_MAX: Final = 1024 * 1024
# A request without its body and fields, and a field without its name and value, roughly.
_REQUEST_BYTES: Final = 1024
_FIELD_BYTES: Final = 200
_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Relay:
    """The links of the clients of one member."""

    def __init__(
        self,
        connector: PeerConnector,
        *,
        master: Callable[[], int | None],
        refusal: Callable[[], str],
        is_own: Callable[[ServerConnection], bool],
    ) -> None:
        """`master` gives the number of the member recorded as master, None for this one or none.

        `refusal` says why this member does not serve, and where the master is. `is_own` tells clients that
        have to see it when what they have at the master has ended.
        """
        self._connector = connector
        self.is_own = is_own
        self._master = master
        self._refusal = refusal
        # The only member that links go to.
        self._checked_master: int | None = None
        self._clients: dict[ServerConnection, _RelayedClient] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._checks: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        # Set while the master is believed to serve.
        self._is_up = asyncio.Event()
        self._opening_count = 0
        self.requests_in_flight = 0
        self.bytes_in_flight = 0
        self._relayed_count = 0
        self._refused_count = 0

    def start(self) -> None:
        """Begin to watch who is master; the loop runs."""
        self._checks = supervise("links to the master", self._check_repeatedly)

    async def stop(self) -> None:
        """End all links. No requests come any more."""
        for client in list(self._clients.values()):
            client.drop("stopped")
        await end([*self._tasks, *(task for task in (self._checks, self._looking) if task is not None)])

    def handle(self, connection: ServerConnection, request: Command) -> None:
        """Pass a request on; its answer follows. RequestError (14) past the limits."""
        client = self._clients.get(connection)
        if client is None:
            client = self._clients[connection] = _RelayedClient(self, connection)
        try:
            client.take(request)
        except RequestError:
            if request.code != RequestCode.QUERY_CONSUMER_OFFSET:
                raise
            client.refuse(request)

    def connection_lost(self, connection: ServerConnection) -> None:
        """End the link of a client that has gone."""
        client = self._clients.pop(connection, None)
        if client is not None:
            client.leave()

    def give_back(self, handler: RequestHandler) -> None:
        """Hand requests that wait to the broker of this member, which serves from now on."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.give_back(handler)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_replication_relayed_requests_total",
                "Requests of clients passed on to the master.",
                self._relayed_count,
            ),
            (
                "iotmq_replication_refused_requests_total",
                "Requests of clients refused because another member is master and could not be asked.",
                self._refused_count,
            ),
            (
                "iotmq_replication_relays",
                "Clients whose requests are passed on to the master.",
                len(self._clients),
            ),
            (
                "iotmq_replication_relayed_in_flight",
                "Requests passed on, or about to be, that are not answered yet.",
                self.requests_in_flight,
            ),
        )

    # For its clients.

    def reserve(self, size: int) -> None:
        """Count a request. RequestError (14) when there is no room for it."""
        if (
            self.requests_in_flight >= limits.RELAYED_REQUESTS_MAX
            or self.bytes_in_flight + size > limits.RELAYED_BYTES_MAX
        ):
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"[OVERLOAD] {self.requests_in_flight} requests of {self.bytes_in_flight} bytes wait",
            )
        self.requests_in_flight += 1
        self.bytes_in_flight += size

    def release(self, size: int) -> None:
        """Count no longer a request that was answered."""
        self.requests_in_flight -= 1
        self.bytes_in_flight -= size

    def count_relayed(self) -> None:
        """Count a request that was passed on."""
        self._relayed_count += 1

    def refuse(self, request: Command) -> Command:
        """Make the answer to a request that the master did not answer, or may not have got."""
        self._refused_count += 1
        if request.code in _PULLS and (offset := request.ext.get("queueOffset", "")).isdecimal():
            return request.reply(
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                remark="the master is another one",
                ext={
                    "suggestWhichBrokerId": "0",
                    "nextBeginOffset": offset,
                    "minOffset": "0",
                    "maxOffset": offset,
                },
            )
        return request.reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark=self._refusal())

    async def open(self, client: _RelayedClient) -> ClientConnection:
        """Open a link, once there is a master that serves. TimeoutError when that takes too long."""
        host, port = client.connection.peer
        self._opening_count += 1
        try:
            async with asyncio.timeout(_HOLD_S):
                while True:
                    if not self._is_up.is_set():
                        self._look_soon()
                        await self._is_up.wait()
                    self._check_master()
                    number = self._checked_master
                    if number is None:
                        self._is_up.clear()
                        continue
                    try:
                        link = await self._connector.connect_for_client(
                            number,
                            host,
                            port,
                            on_request=client.from_master,
                            on_lost=client.link_lost,
                            timeout_s=_CONNECT_S,
                        )
                        if number == self._checked_master:
                            return link
                        link.abort("another member is master")
                    except (ConnectionClosedError, RequestTimeoutError, BrokerError) as error:
                        if getattr(error, "code", None) == ResponseCode.NO_PERMISSION:
                            logger.warning("the master takes no clients from this member: %s", error)
                        self._is_up.clear()
                        await asyncio.sleep(_LOOK_S)
        finally:
            self._opening_count -= 1

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that `stop` ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _look_soon(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = supervise("search for the master", self._look)

    async def _look(self) -> None:
        """Look for a master that serves, for as long as somebody waits for one: all of them share this."""
        while self._opening_count:
            number = self._master()
            if number is not None:
                try:
                    status = await self._connector.status(number, timeout_s=_CONNECT_S)
                except IotmqError:
                    status = {}
                if status.get("isServing") is True:
                    self._is_up.set()
                    return
            await asyncio.sleep(_LOOK_S)

    async def _check_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            self._check_master()

    def _check_master(self) -> None:
        """End links to a member that is master no more: it may be silent for long before they end."""
        number = self._master()
        if number == self._checked_master:
            return
        self._checked_master = number
        self._is_up.clear()
        for client in list(self._clients.values()):
            client.drop("another member is master")


class _RelayedClient:
    """One client, and its link once it has asked for something."""

    def __init__(self, relay: Relay, connection: ServerConnection) -> None:
        self._relay = relay
        self.connection = connection
        self._link: ClientConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        # Requests that wait for the link, with what they count for.
        self._waiting: deque[tuple[Command, int]] = deque()
        self._bytes_in_flight = 0
        # Those from which nothing is read, because the other side has not taken enough.
        self._slowed: set[Channel] = set()

    def take(self, request: Command) -> None:
        """Pass on a request, at once or when there is a link."""
        size = _size(request)
        if self._bytes_in_flight + size > limits.RELAYED_BYTES_OF_CONNECTION_MAX:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"[OVERLOAD] {self._bytes_in_flight} bytes of this connection wait for the master",
            )
        self._relay.reserve(size)
        self._bytes_in_flight += size
        if self._link is not None and not self._link.is_closed:
            self._forward(self._link, request, size)
            return
        self._waiting.append((request, size))
        self.connection.pause()
        if self._opening is None:
            self._opening = self._relay.spawn(self._open())

    async def _open(self) -> None:
        link: ClientConnection | None = None
        try:
            link = await self._relay.open(self)
        except TimeoutError:
            pass
        finally:
            self._opening = None
        if link is None or link.is_closed:
            self._refuse_waiting()
        else:
            self._link = link
            if self._drops_what_waits():
                return
            while self._waiting and self._link is link:
                self._forward(link, *self._waiting.popleft())
        self._read_again(self.connection)

    def _drops_what_waits(self) -> bool:
        """Forget what waits when the client has gone meanwhile; return whether it has.

        It may have sent the same to the master itself by now, and there would be two of it.
        """
        if not self.connection.has_peer_left:
            return False
        # What was not read yet is forgotten, too. The link ends with the connection.
        self.connection.abort("the client has gone")
        return True

    def _refuse_waiting(self) -> None:
        while self._waiting:
            request, size = self._waiting.popleft()
            self._release(size)
            self.refuse(request)

    def refuse(self, request: Command) -> None:
        """Answer a request that has no answer of the master, or end the client's connection."""
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            # Java clients take any refusal for the word that the group has none, and begin somewhere else.
            self.connection.close("the offset of a group is not known")
        else:
            self.connection.reply(self._relay.refuse(request))

    def _release(self, size: int) -> None:
        self._bytes_in_flight -= size
        self._relay.release(size)

    def _forward(self, link: ClientConnection, request: Command, size: int) -> None:
        self._relay.count_relayed()
        opaque = request.opaque
        try:
            answer = self._pass_on(link, request)
        except ValueError as error:
            # Clients may write a header in fewer bytes than we do.
            self._release(size)
            request.opaque = opaque
            self.connection.reply(request.reply(ResponseCode.SYSTEM_ERROR, remark=f"not passed on: {error}"))
            return
        if answer is None:
            self._release(size)
        else:
            # Waiting must not keep it alive.
            request.body = b""
            answer.add_done_callback(partial(self._answered, request, opaque, size))
        self._keep_pace(self.connection, link)

    @staticmethod
    def _pass_on(link: ClientConnection, request: Command) -> asyncio.Future[Command] | None:
        """Send a request on; its answer is to come, unless it is oneway. ValueError when it has no room."""
        if request.is_oneway:
            link.send_oneway(request)
            return None
        held_ms = 0
        if request.code in _PULLS:
            held_ms = _milliseconds(request.ext.get("suspendTimeoutMillis", ""))
        return link.request(request, _ANSWER_S + held_ms / 1000)

    def _answered(self, request: Command, opaque: int, size: int, future: asyncio.Future[Command]) -> None:
        self._release(size)
        request.opaque = opaque
        if future.exception() is not None:
            if not self._part("no answer of the master"):
                self.refuse(request)
            return
        answer = future.result()
        if answer.ext.get(IS_MASTER_FIELD) == "false" and request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            self.refuse(request)
            return
        answer.opaque = opaque
        self.connection.reply(answer)
        if self._link is not None:
            self._keep_pace(self._link, self.connection)

    def from_master(self, link: ClientConnection, request: Command) -> None:
        """Pass a request of the master's own on to the client."""
        if request.is_oneway:
            self.connection.send_oneway(request)
        else:
            opaque = request.opaque
            answer = self.connection.request(request, _ANSWER_S)
            request.body = b""
            answer.add_done_callback(partial(_answer_master, link, request, opaque))
        self._keep_pace(link, self.connection)

    def _keep_pace(self, source: Channel, sink: Channel) -> None:
        """Read nothing more from one side until the other has taken what came."""
        if sink.unsent_bytes > _UNSENT_BYTES_MAX and source not in self._slowed:
            self._slowed.add(source)
            source.pause()
            self._relay.spawn(self._wait_for(sink, source))

    async def _wait_for(self, sink: Channel, source: Channel) -> None:
        try:
            await sink.drain()
        except ConnectionClosedError:
            # What came from the other side has nowhere to go; its own end follows.
            pass
        finally:
            self._slowed.discard(source)
            self._read_again(source)

    def _read_again(self, source: Channel) -> None:
        """Read from one side again, unless it still has to wait for the other, or for a link."""
        is_waiting = source is self.connection and self._opening is not None
        if source not in self._slowed and not is_waiting:
            source.resume()

    def link_lost(self, link: ClientConnection) -> None:
        """Forget the link, whose requests have failed; the next request opens another one."""
        if link is self._link:
            self._link = None
            self._part("the link to the master has ended")

    def _part(self, reason: str) -> bool:
        """End the connection of a client that sees by nothing else what has become of its requests."""
        if not self._relay.is_own(self.connection):
            return False
        self.connection.close(reason)
        return True

    def drop(self, reason: str) -> None:
        """End the link, if there is one."""
        if self._link is not None:
            self._link.abort(reason)

    def leave(self) -> None:
        """End the link behind what the client sent last."""
        if self._opening is not None:
            self._opening.cancel()
        while self._waiting:
            self._release(self._waiting.popleft()[1])
        if self._link is not None:
            self._relay.spawn(self._link.close())

    def give_back(self, handler: RequestHandler) -> None:
        """Have a broker in this process carry out what waits."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self.drop("this member is master")
        is_gone = self._drops_what_waits()
        while self._waiting:
            request, size = self._waiting.popleft()
            self._release(size)
            if is_gone:
                continue
            with surviving("requests that waited for a master"):
                self._serve(handler, request)
        if not is_gone:
            self._read_again(self.connection)

    def _serve(self, handler: RequestHandler, request: Command) -> None:
        response: Command | None
        try:
            response = handler.handle(self.connection, request)
        except RequestError as error:
            response = request.reply(error.code, remark=str(error))
        if response is not None:
            self.connection.reply(response)


def _size(request: Command) -> int:
    """Return what a request takes of the memory while it waits: headers may be as large as bodies."""
    body, ext = request.body, request.ext
    return (
        _REQUEST_BYTES
        + _FIELD_BYTES * len(ext)
        + sum(map(len, ext))
        + sum(map(len, ext.values()))
        + len(request.remark or "")
        + (sum(map(len, body)) if isinstance(body, list) else len(body))
    )


def _answer_master(
    link: ClientConnection, request: Command, opaque: int, future: asyncio.Future[Command]
) -> None:
    error = future.exception()
    if isinstance(error, ConnectionClosedError):
        # The link ends with the client: the master hears it as from any client.
        return
    request.opaque = opaque
    if error is not None:
        link.reply(request.reply(ResponseCode.SYSTEM_ERROR, remark=str(error)))
        return
    answer = future.result()
    answer.opaque = opaque
    link.reply(answer)


def _milliseconds(text: str) -> int:
    """Return how long a pull may be held; garbage is the master's to refuse."""
    if not text.isdecimal() or len(text) > 9:
        return 0
    return min(int(text), limits.HOLD_MS_MAX)
