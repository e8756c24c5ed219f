"""A follower passes requests of its clients on to the master: once, within limits, and as they came."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import soon
from gateway_process import free_port

from iotmq import limits
from iotmq.errors import ConnectionClosedError, RequestError
from iotmq.member import relay as relay_module
from iotmq.member.listener import MemberListener, Seat
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import Introduction
from iotmq.remoting.codes import IS_MASTER_FIELD, LanguageCode, RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.frames.frame import Run
from iotmq.remoting.server import Listening, ServerConnection
from iotmq.replication.settings import ReplicationSettings

WHERE = "the master is elsewhere"
WAIT_S = 20.0


class Site:
    """One member: its port, and the broker it has while it is `serving`."""

    def __init__(self, number: int, port: int, connector: PeerConnector) -> None:
        self.listener = MemberListener(Listening(port=port), tls=None, connector=connector)
        self.listener.refusal = lambda: WHERE
        self.listener.members = self
        self.port = port
        self.is_serving = False
        self.seat: Seat = self.listener.seat(Broker(self), self.take_run)
        self.requests: list[Command] = []
        self.connections: list[ServerConnection] = []
        self.lost: list[ServerConnection] = []
        self.refuses_members = False
        self.answers: Callable[[ServerConnection, Command], Command | None] = self._echo
        self._number = number

    def _echo(self, connection: ServerConnection, request: Command) -> Command:
        ext = {"by": str(self._number)}
        return request.reply(ResponseCode.SUCCESS, ext=ext, body=request.body_bytes())

    async def serve(self) -> None:
        self.is_serving = True
        self.listener.master = lambda: None
        await self.seat.start()

    def take_run(self, connection: ServerConnection, run: Run, at: int) -> int:
        return at

    # Requests of members.

    def handle(self, connection: ServerConnection, request: Command) -> Command:
        return request.reply(
            ResponseCode.SUCCESS, body=b'{"isServing": true}' if self.is_serving else b'{"isServing": false}'
        )

    def check_member(self, connection: ServerConnection, request: Command) -> None:
        if self.refuses_members:
            raise RequestError(ResponseCode.NO_PERMISSION, "not you")

    def connection_lost(self, connection: ServerConnection) -> None:
        """Nothing depends on it."""


class Broker:
    """The broker of a site, as its seat sees it."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        self._site.requests.append(request)
        self._site.connections.append(connection)
        return self._site.answers(connection, request)

    def connection_lost(self, connection: ServerConnection) -> None:
        self._site.lost.append(connection)


@asynccontextmanager
async def sites(count: int = 2) -> AsyncIterator[list[Site]]:
    ports = [free_port() for _ in range(count)]
    settings = ReplicationSettings(
        members=tuple(f"{number}=127.0.0.1:{port}" for number, port in enumerate(ports, 1))
    )
    connector = PeerConnector(settings, Introduction(cluster="c", broker="b", segment_bytes=4096))
    made = [Site(number, port, connector) for number, port in enumerate(ports, 1)]
    for site in made:
        await site.listener.start()
    try:
        yield made
    finally:
        for site in made:
            await site.listener.stop()


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[Site, Site, ClientConnection]]:
    """The master, a follower, and a client of the follower."""
    async with sites() as (master, follower):
        await master.serve()
        follower.listener.master = lambda: 1
        client = await ClientConnection.connect("127.0.0.1", follower.port)
        yield master, follower, client
        await client.close()


def send(body: bytes = b"x", **ext: str) -> Command:
    return Command.request(RequestCode.SEND_MESSAGE, ext, body)


def pull(offset: str = "17") -> Command:
    return Command.request(
        RequestCode.PULL_MESSAGE, {"queueOffset": offset, "suspendTimeoutMillis": "1000", "topic": "t"}
    )


def of_java(request: Command) -> Command:
    request.language = LanguageCode.JAVA
    return request


def own_address(client: ClientConnection) -> tuple[str, int]:
    assert client._transport is not None
    host, port = client._transport.get_extra_info("sockname")
    return host, port


def nothing(connection: ServerConnection, request: Command) -> None:
    """Answer later, or never."""


def samples(site: Site) -> dict[str, float]:
    return {metric.name: metric.value for metric in site.listener.metrics()}


async def in_flight(site: Site, count: int) -> None:
    await soon(
        lambda: samples(site)["iotmq_replication_relayed_in_flight"] == count, f"{count} are in flight"
    )


async def test_a_request_comes_to_the_master_as_the_client_made_it() -> None:
    async with relayed() as (master, follower, client):
        body = bytes(range(256)) * 20_000
        request = send(body, topic="t", Signature="s", AccessKey="a")
        request.version, request.language = 321, 12
        answer = await client.request(request, WAIT_S)
        assert (answer.code, answer.ext, answer.body_bytes()) == (0, {"by": "1"}, body)
        (got,) = master.requests
        assert got.ext == {"topic": "t", "Signature": "s", "AccessKey": "a"}
        assert (got.version, got.language, got.serialize) == (321, 12, request.serialize)
        # Born hosts, permissions and views go by it.
        assert master.connections[0].peer == own_address(client)
        assert samples(follower)["iotmq_replication_relayed_requests_total"] == 1
        await in_flight(follower, 0)


async def test_answers_find_their_requests_in_any_order() -> None:
    async with relayed() as (master, _, client):
        master.answers = nothing
        futures = [client.request(send(b"%d" % number), WAIT_S) for number in range(50)]
        await soon(lambda: len(master.requests) == 50, "all are there")
        assert [request.body_bytes() for request in master.requests] == [b"%d" % n for n in range(50)]
        for request, connection in reversed(list(zip(master.requests, master.connections, strict=True))):
            connection.reply(request.reply(ResponseCode.SUCCESS, body=request.body_bytes()))
        answers = await asyncio.gather(*futures)
        assert [answer.body_bytes() for answer in answers] == [b"%d" % number for number in range(50)]


async def test_each_client_is_a_connection_of_its_own_and_ends_with_it() -> None:
    async with relayed() as (master, follower, client):
        other = await ClientConnection.connect("127.0.0.1", follower.port)
        await client.request(send(), WAIT_S)
        await other.request(send(), WAIT_S)
        first, second = master.connections
        assert first is not second
        # What a client says last is not lost with its connection.
        other.send_oneway(send(b"goodbye"))
        await other.close()
        await soon(lambda: second in master.lost, "the master knows")
        assert master.requests[-1].body_bytes() == b"goodbye"
        assert master.requests[-1].is_oneway
        assert first not in master.lost


async def test_requests_of_the_master_reach_the_client_and_its_answers_come_back() -> None:
    async with sites() as (master, follower):
        await master.serve()
        follower.listener.master = lambda: 1
        asked: list[Command] = []

        def answer(_: ClientConnection, request: Command) -> Command | None:
            asked.append(request)
            return None if request.is_oneway else request.reply(ResponseCode.SUCCESS, body=b"running")

        client = await ClientConnection.connect("127.0.0.1", follower.port, on_request=answer)
        await client.request(send(), WAIT_S)
        (connection,) = master.connections
        connection.send_oneway(Command.request(RequestCode.CHECK_TRANSACTION_STATE, {"offset": "1"}, b"half"))
        told = await connection.request(Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO), WAIT_S)
        assert told.body_bytes() == b"running"
        assert [(request.code, request.body_bytes()) for request in asked] == [
            (RequestCode.CHECK_TRANSACTION_STATE, b"half"),
            (RequestCode.GET_CONSUMER_RUNNING_INFO, b""),
        ]
        client.abort("gone")
        with pytest.raises(ConnectionClosedError):
            await connection.request(Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO), WAIT_S)


async def test_a_request_is_passed_on_once_only() -> None:
    async with sites(3) as (first, second, third):
        # They do not agree on who is master.
        await first.serve()
        third.listener.master = lambda: 2
        second.listener.master = lambda: 1
        second.is_serving = True
        link = await ClientConnection.connect("127.0.0.1", second.port)
        answer = await link.request(
            Command.request(RequestCode.RELAY_CLIENT, {"host": "10.0.0.1", "port": "5"}), WAIT_S
        )
        assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, WHERE)
        await link.close()
        # One that came while it was master.
        link = await ClientConnection.connect("127.0.0.1", first.port)
        introduction = {"host": "10.0.0.1", "port": "5"}
        answer = await link.request(Command.request(RequestCode.RELAY_CLIENT, introduction), WAIT_S)
        assert answer.code == ResponseCode.SUCCESS
        first.listener._seat = None
        first.listener.master = lambda: 2
        answer = await link.request(send(), WAIT_S)
        assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, WHERE)
        assert first.requests == second.requests == third.requests == []
        await link.close()


async def test_requests_wait_for_a_master_in_order() -> None:
    async with sites() as (master, follower):
        client = await ClientConnection.connect("127.0.0.1", follower.port)
        futures = [client.request(send(b"%d" % number), WAIT_S) for number in range(20)]
        await in_flight(follower, 20)
        follower.listener.master = lambda: 1
        await master.serve()
        assert {answer.code for answer in await asyncio.gather(*futures)} == {0}
        assert [request.body_bytes() for request in master.requests] == [b"%d" % n for n in range(20)]
        await in_flight(follower, 0)
        await client.close()


async def test_what_waits_too_long_is_refused_and_pulls_are_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "_HOLD_S", 0.2)
    async with sites() as (_, follower):
        client = await ClientConnection.connect("127.0.0.1", follower.port)
        sent, pulled, garbage = await asyncio.gather(
            client.request(send(), WAIT_S),
            client.request(pull(), WAIT_S),
            client.request(pull("-x"), WAIT_S),
        )
        assert (sent.code, sent.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, WHERE)
        assert pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert pulled.ext == {
            "suggestWhichBrokerId": "0", "nextBeginOffset": "17", "minOffset": "0", "maxOffset": "17",
        }  # fmt: skip
        assert garbage.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await in_flight(follower, 0)
        assert samples(follower)["iotmq_replication_refused_requests_total"] == 3
        await client.close()


@pytest.mark.parametrize("case", ["no master", "silent master", "no master there", "no room"])
async def test_a_client_that_asks_for_a_groups_offset_is_told_nothing_wrong(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Java clients take any refusal for the word that the group has none, and skip what is there."""
    monkeypatch.setattr(relay_module, "_HOLD_S", 0.1)
    async with sites() as (master, follower):
        if case != "no master":
            follower.listener.master = lambda: 1
            await master.serve()
        if case == "silent master":
            monkeypatch.setattr(relay_module, "_ANSWER_S", 0.1)
            master.answers = nothing
        elif case == "no master there":
            # As by a member that has just stopped to be master.
            elsewhere = {IS_MASTER_FIELD: "false"}
            master.answers = lambda _, request: request.reply(
                ResponseCode.SERVICE_NOT_AVAILABLE, ext=elsewhere
            )
        elif case == "no room":
            monkeypatch.setattr(limits, "RELAYED_REQUESTS_MAX", 0)
        client = await ClientConnection.connect("127.0.0.1", follower.port)
        asked = of_java(Command.request(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g"}))
        with pytest.raises(ConnectionClosedError):
            await client.request(asked, WAIT_S)
        await in_flight(follower, 0)


async def test_what_is_in_flight_when_the_master_ends_is_refused_and_the_next_goes_to_the_next_one() -> None:
    async with sites(3) as (first, second, follower):
        await first.serve()
        first.answers = nothing
        follower.listener.master = lambda: 1
        client = await ClientConnection.connect("127.0.0.1", follower.port)
        futures = [client.request(of_java(send()), WAIT_S), client.request(of_java(pull()), WAIT_S)]
        await soon(lambda: len(first.requests) == 2, "they are there")
        # Silent, and master no more: nobody waits for its end.
        await second.serve()
        follower.listener.master = lambda: 2
        assert [answer.code for answer in await asyncio.gather(*futures)] == [
            ResponseCode.SERVICE_NOT_AVAILABLE,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
        ]
        answer = await client.request(send(), WAIT_S)
        assert answer.ext == {"by": "2"}
        await soon(lambda: first.connections[0] in first.lost, "the former link has ended")
        await client.close()


async def test_a_master_that_does_not_answer_in_time_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "_ANSWER_S", 0.1)
    async with relayed() as (master, follower, client):
        master.answers = nothing
        answer = await client.request(of_java(send()), WAIT_S)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        # A pull may be held for as long as it says, in addition.
        slow = client.request(of_java(pull()), WAIT_S)
        await soon(lambda: len(master.requests) == 2, "it is there")
        await client.request(of_java(send()), WAIT_S)
        assert not slow.done()
        master.connections[1].reply(master.requests[1].reply(ResponseCode.PULL_NOT_FOUND))
        assert (await slow).code == ResponseCode.PULL_NOT_FOUND
        await in_flight(follower, 0)


def unpassable(opaque: int) -> bytes:
    """Return the frame of a request whose header is as large as may be, and larger when written again."""
    begin, end = b'{"code":10,"opaque":%d,"extFields":{"topic":"' % opaque, b'"}}'
    header = begin + b"t" * (limits.HEADER_BYTES_MAX - len(begin) - len(end)) + end
    return struct.pack(">ii", 4 + len(header), len(header)) + header


async def test_a_request_that_cannot_be_written_again_is_refused_and_counts_no_more() -> None:
    async with relayed() as (master, follower, client):
        await client.request(send(), WAIT_S)
        assert client._transport is not None
        client._transport.write(unpassable(opaque=7))
        await soon(lambda: client._traffic.responses_unmatched == 1, "it is answered")
        assert (await client.request(send(), WAIT_S)).code == ResponseCode.SUCCESS
        await in_flight(follower, 0)
        assert follower.listener._relay.bytes_in_flight == 0
        assert len(master.requests) == 2


async def test_a_request_that_cannot_be_written_again_and_waited_does_not_hold_up_those_behind_it() -> None:
    async with sites() as (master, follower):
        client = await ClientConnection.connect("127.0.0.1", follower.port)
        assert client._transport is not None
        client._transport.write(unpassable(opaque=7))
        last = client.request(send(b"last"), WAIT_S)
        await soon(lambda: samples(follower)["iotmq_replication_relayed_in_flight"], "it waits for a master")
        follower.listener.master = lambda: 1
        await master.serve()
        assert (await last).body_bytes() == b"last"
        await in_flight(follower, 0)
        assert client._traffic.responses_unmatched == 1
        await client.close()


async def test_a_master_that_the_settings_do_not_name_is_one_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "_HOLD_S", 0.2)
    async with relayed() as (_, follower, client):
        await client.request(send(), WAIT_S)
        # Before it is noticed that this is another one, the former counts as reachable.
        monkeypatch.setattr(follower.listener._relay, "_master", lambda: 9)
        other = await ClientConnection.connect("127.0.0.1", follower.port)
        answer = await other.request(send(), WAIT_S)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        await in_flight(follower, 0)
        await other.close()


async def test_a_client_of_our_own_ends_with_its_link() -> None:
    """It learns that what it has there has ended, and is not told of a refusal of what may be stored."""
    async with sites(3) as (first, second, follower):
        await first.serve()
        follower.listener.master = lambda: 1
        client, idle = [await ClientConnection.connect("127.0.0.1", follower.port) for _ in range(2)]
        await idle.request(Command.request(RequestCode.ATTACH_FILTERS), WAIT_S)
        assert (await client.request(send(), WAIT_S)).code == ResponseCode.SUCCESS
        first.answers = nothing
        unanswered = client.request(send(), WAIT_S)
        await soon(lambda: len(first.requests) == 3, "it is there")
        await second.serve()
        follower.listener.master = lambda: 2
        with pytest.raises(ConnectionClosedError):
            await unanswered
        await soon(lambda: idle.is_closed, "one that waits for nothing ends, too")
        await in_flight(follower, 0)
        again = await ClientConnection.connect("127.0.0.1", follower.port)
        assert (await again.request(send(), WAIT_S)).ext == {"by": "2"}
        await again.close()


async def test_a_client_of_our_own_ends_when_its_member_becomes_master() -> None:
    async with relayed() as (master, follower, client):
        await client.request(Command.request(RequestCode.INTRODUCE_FRONT_END), WAIT_S)
        await follower.serve()
        await soon(lambda: client.is_closed, "what it had at the former master is not here")
        await soon(lambda: master.connections[0].is_closed, "its link has ended")


async def test_a_client_of_our_own_is_not_told_of_a_refusal_when_the_master_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "_ANSWER_S", 0.1)
    async with relayed() as (master, follower, client):
        master.answers = nothing
        with pytest.raises(ConnectionClosedError):
            await client.request(send(), WAIT_S)
        await in_flight(follower, 0)


async def test_bytes_of_a_connection_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    size = relay_module._size(send(bytes(1_000)))
    monkeypatch.setattr(limits, "RELAYED_BYTES_OF_CONNECTION_MAX", 2 * size)
    async with relayed() as (master, follower, client):
        master.answers = nothing
        kept = [client.request(send(bytes(1_000)), WAIT_S) for _ in range(2)]
        past = await client.request(send(), WAIT_S)
        assert past.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "[OVERLOAD]" in str(past.remark)
        # Another connection has its own.
        other = await ClientConnection.connect("127.0.0.1", follower.port)
        third = other.request(send(bytes(1_000)), WAIT_S)
        await soon(lambda: len(master.requests) == 3, "the others are there")
        for request, connection in zip(master.requests, master.connections, strict=True):
            connection.reply(request.reply(ResponseCode.SUCCESS))
        assert {answer.code for answer in await asyncio.gather(*kept, third)} == {0}
        await in_flight(follower, 0)
        await other.close()


async def test_fields_of_a_request_count_as_its_body_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pulls, which wait for long, a client may have thousands on their way, each with a MiB of them."""
    monkeypatch.setattr(limits, "RELAYED_BYTES_OF_CONNECTION_MAX", 1 << 19)
    long, many = {"x": "y" * (1 << 19)}, {f"f{number}": "" for number in range(limits.HEADER_FIELDS_MAX)}
    async with relayed() as (master, _follower, client):
        master.answers = nothing
        past = await client.request(Command.request(RequestCode.PULL_MESSAGE, long), WAIT_S)
        assert "[OVERLOAD]" in str(past.remark)
        pulls = [Command.request(RequestCode.PULL_MESSAGE, many) for _ in range(16)]
        waiting = [client.request(each, WAIT_S) for each in pulls]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert all("[OVERLOAD]" in str(each.result().remark) for each in done)


@pytest.mark.parametrize(
    ("limit", "value"),
    [("RELAYED_REQUESTS_MAX", 3), ("RELAYED_BYTES_MAX", 3 * relay_module._size(send(bytes(10))))],
)
async def test_requests_and_bytes_of_all_are_limited(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, limit, value)
    async with relayed() as (master, follower, client):
        master.answers = nothing
        other = await ClientConnection.connect("127.0.0.1", follower.port)
        kept = [each.request(send(bytes(10)), WAIT_S) for each in (client, other, client)]
        await in_flight(follower, 3)
        past = await other.request(send(), WAIT_S)
        assert past.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "[OVERLOAD]" in str(past.remark)
        await soon(lambda: len(master.requests) == 3, "the others are there")
        for request, connection in zip(master.requests, master.connections, strict=True):
            connection.reply(request.reply(ResponseCode.SUCCESS))
        assert {answer.code for answer in await asyncio.gather(*kept)} == {0}
        await in_flight(follower, 0)
        await other.close()


async def test_a_client_that_does_not_read_is_not_read_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the master sends it stays with the master, whose own limits count."""
    async with relayed() as (master, follower, client):
        await client.request(send(), WAIT_S)
        (connection,) = master.connections
        client.pause()
        sent = 0
        while not connection.is_congested:
            connection.send_oneway(Command.request(RequestCode.DELIVER_RECORDS, {}, bytes(1 << 16)))
            sent += 1
            assert sent < 2_000
            await asyncio.sleep(0)
        (at_follower,) = follower.listener.clients()
        assert at_follower.unsent_bytes < limits.WRITE_BUFFER_BYTES_MAX / 4
        client.resume()
        await soon(lambda: client._traffic.requests == sent, "all of it comes in the end")
        assert not at_follower.is_closed


async def test_a_master_that_does_not_read_is_not_read_for_when_requests_have_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "_CHECK_S", WAIT_S)
    async with sites() as (master, follower):
        links: list[ServerConnection] = []

        def stall(connection: ServerConnection, request: Command) -> None:
            links.append(connection)
            connection.pause()

        monkeypatch.setattr(master, "check_member", stall)
        client = await ClientConnection.connect("127.0.0.1", follower.port)
        # More than a system takes for a peer that does not read.
        waiting = client.request(of_java(send(bytes(12 * 1024 * 1024))), WAIT_S)
        await in_flight(follower, 1)
        (at_follower,) = follower.listener.clients()
        follower.listener.master = lambda: 1
        await master.serve()
        await soon(lambda: samples(follower)["iotmq_replication_relayed_requests_total"] == 1, "it goes on")
        behind = client.request(of_java(send(b"behind")), WAIT_S)
        relay = follower.listener._relay
        relay._check_master()
        assert [client._link is not None for client in relay._clients.values()] == [True], "to the new master"
        assert at_follower._is_paused
        links[0].resume()
        assert {answer.code for answer in await asyncio.gather(waiting, behind)} == {0}
        assert not at_follower._is_paused
        await client.close()


async def test_what_is_taken_by_the_other_side_does_not_end_the_wait_for_a_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "_UNSENT_BYTES_MAX", 0)
    async with relayed() as (_master, follower, client):
        answer = await client.request(of_java(send()), WAIT_S)
        assert answer.code == ResponseCode.SUCCESS
        (at_follower,) = follower.listener.clients()
        relayed_client = follower.listener._relay._clients[at_follower]
        # One that is slowed down, whose link ends before the master has taken what came.
        drained = asyncio.Event()

        async def drain() -> None:
            await drained.wait()

        assert relayed_client._link is not None
        monkeypatch.setattr(ClientConnection, "drain", lambda _: drain())
        second = client.request(of_java(send()), WAIT_S)
        await soon(lambda: at_follower in relayed_client._slowed, "nothing more is read from it")
        await second
        follower.listener.master = lambda: None
        await soon(lambda: relayed_client._link is None, "the link has ended")
        relayed_client.take(of_java(send(b"waits")))
        drained.set()
        await soon(lambda: at_follower not in relayed_client._slowed, "what came was taken")
        assert at_follower._is_paused
        relayed_client.leave()


async def test_a_client_of_a_member_that_becomes_master_is_served_there() -> None:
    async with sites() as (member, _):
        client = await ClientConnection.connect("127.0.0.1", member.port)
        futures = [client.request(send(b"%d" % number), WAIT_S) for number in range(3)]
        await in_flight(member, 3)
        await member.serve()
        answers = await asyncio.gather(*futures)
        assert [answer.body_bytes() for answer in answers] == [b"0", b"1", b"2"]
        assert (await client.request(send(), WAIT_S)).ext == {"by": "1"}
        await in_flight(member, 0)
        assert samples(member)["iotmq_replication_relayed_requests_total"] == 0
        await client.close()


async def leave(client: ClientConnection, site: Site) -> None:
    """Have the only client of a member leave, which reads neither what it sends nor that it leaves."""
    client.abort("another member is master")
    (connection,) = site.listener.clients()
    await soon(lambda: connection.has_peer_left, "the client has left")
    assert not connection.is_closed


@pytest.mark.parametrize("has_sent_more", [False, True])
async def test_what_a_client_that_has_gone_had_sent_is_not_passed_on(has_sent_more: bool) -> None:
    """It has sent it again by another way, and that may be there before."""
    async with sites() as (master, follower):
        client = await ClientConnection.connect("127.0.0.1", follower.port)
        client.send_oneway(send(b"1"))
        await in_flight(follower, 1)
        if has_sent_more:
            # It is not read.
            client.send_oneway(send(b"2"))
            await asyncio.sleep(0)
            await client.drain()
        await leave(client, follower)
        follower.listener.master = lambda: 1
        await master.serve()
        await in_flight(follower, 0)
        other = await ClientConnection.connect("127.0.0.1", follower.port)
        await other.request(send(b"3"), WAIT_S)
        assert [request.body_bytes() for request in master.requests] == [b"3"]
        await soon(lambda: len(follower.listener.clients()) == 1, "its connection is gone")
        await other.close()


async def test_what_a_client_that_has_gone_had_sent_is_not_served_by_its_member_that_becomes_master() -> None:
    async with sites() as (member, _):
        client = await ClientConnection.connect("127.0.0.1", member.port)
        client.send_oneway(send(b"1"))
        await in_flight(member, 1)
        await leave(client, member)
        await member.serve()
        await in_flight(member, 0)
        other = await ClientConnection.connect("127.0.0.1", member.port)
        await other.request(send(b"2"), WAIT_S)
        assert [request.body_bytes() for request in member.requests] == [b"2"]
        await other.close()


async def test_the_broker_refuses_what_waited_as_it_refuses_anything() -> None:
    async with sites() as (member, _):
        client = await ClientConnection.connect("127.0.0.1", member.port)

        def refuse(connection: ServerConnection, request: Command) -> Command:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no topic")

        member.answers = refuse
        future = client.request(send(), WAIT_S)
        await in_flight(member, 1)
        await member.serve()
        answer = await future
        assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "no topic")
        await client.close()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"host": "10.0.0.1"},
        {"host": "10.0.0.1", "port": "65536"},
        {"host": "10.0.0.1", "port": "-1"},
        {"host": "somewhere", "port": "1"},
        {"host": "1" * 100, "port": "1"},
    ],
)
async def test_an_introduction_that_names_no_client_is_refused(fields: dict[str, Any]) -> None:
    async with sites(1) as (master,):
        await master.serve()
        link = await ClientConnection.connect("127.0.0.1", master.port)
        answer = await link.request(Command.request(RequestCode.RELAY_CLIENT, fields), WAIT_S)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        await link.request(send(), WAIT_S)
        assert master.connections[0].peer == own_address(link)
        await link.close()


async def test_an_introduction_counts_once_and_a_client_is_no_member() -> None:
    async with sites(1) as (master,):
        await master.serve()
        link = await ClientConnection.connect("127.0.0.1", master.port)

        async def ask(code: int, **fields: str) -> int:
            return (await link.request(Command.request(code, fields), WAIT_S)).code

        assert await ask(RequestCode.RELAY_CLIENT, host="10.0.0.1", port="65535") == ResponseCode.SUCCESS
        assert await ask(RequestCode.RELAY_CLIENT, host="::1", port="0") == ResponseCode.NO_PERMISSION
        assert await ask(RequestCode.HAND_OVER) == ResponseCode.NO_PERMISSION
        await link.request(send(), WAIT_S)
        assert master.connections[0].peer == ("10.0.0.1", 65_535)
        await link.close()


async def test_only_members_introduce_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_HOLD_S", 0.3)
    async with relayed() as (master, _, client):
        master.refuses_members = True
        answer = await client.request(send(), WAIT_S)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert master.requests == []


async def test_clients_that_wait_for_nothing_stay_when_the_broker_leaves() -> None:
    """A former master passes on what they ask next; those of our own and those that wait have to look."""
    async with sites() as (former, other):
        await former.serve()
        clients = [await ClientConnection.connect("127.0.0.1", former.port) for _ in range(4)]
        client, waiting, own, front_end = clients

        await client.request(of_java(send()), WAIT_S)
        await own.request(Command.request(RequestCode.HEART_BEAT), WAIT_S)
        await front_end.request(of_java(Command.request(RequestCode.ATTACH_FILTERS)), WAIT_S)
        former.answers = nothing
        unanswered = waiting.request(of_java(send()), WAIT_S)
        await soon(lambda: len(former.requests) == 4, "it is there")
        at_former = former.connections[0]
        # As in a hand-over: what comes meanwhile is not read.
        at_former.pause()
        late = client.request(of_java(send(b"late")), WAIT_S)
        await former.seat.stop()
        with pytest.raises(ConnectionClosedError):
            await unanswered
        await soon(lambda: own.is_closed and front_end.is_closed, "they have to look for the master")
        assert set(former.connections) <= set(former.lost)
        await other.serve()
        former.listener.master = lambda: 2
        assert (await late).ext == {"by": "2"}
        assert not client.is_closed
        for each in clients:
            await each.close()


async def test_links_end_when_the_broker_leaves_and_their_clients_stay() -> None:
    async with relayed() as (master, _, client):
        await client.request(of_java(send()), WAIT_S)
        await master.seat.stop()
        await soon(lambda: master.connections[0].is_closed, "its link has ended")
        assert not client.is_closed
