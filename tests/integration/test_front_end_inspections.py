"""Questions about single processes: brokers, their own front ends, and those in other processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from mqtt_site import MqttSite, open_site

from iotmq import limits
from iotmq.broker.handlers.mqtt import front_end_link
from iotmq.client.admin.inspections import InspectionAdmin
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.settings import ClientSettings
from iotmq.errors import BrokerError, ConnectionClosedError, RequestError, RouteNotFoundError

pytestmark = pytest.mark.uvloop


def answering(name: bytes) -> Callable[[bytes], Awaitable[bytes]]:
    async def answer(body: bytes) -> bytes:
        if body == b"raise":
            raise RequestError(22, "no such thing")
        return name + b":" + body

    return answer


def client_of(site: MqttSite) -> ClientTransport:
    assert site.registry is not None
    return ClientTransport(ClientSettings(registries=(f"127.0.0.1:{site.registry.port}",)))


async def test_every_process_answers_for_itself(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", "two", is_remote=True, brokers=2)
    for name, front in site.fronts.items():
        front.mqtt.inspections.add("name", answering(name.encode()))
    for bench in site.benches:
        bench.broker.parts.inspections.add("name", answering(bench.broker.parts.settings.name.encode()))
    names = [bench.broker.parts.settings.name for bench in site.benches]
    async with client_of(site) as client:
        admin = InspectionAdmin(client)
        assert await admin.front_ends() == ["one", "two"]
        assert await admin.ask("two", "name", b"x") == b"two:x"
        for name in names:
            assert await admin.ask(name, "name", b"x") == name.encode() + b":x"
            assert await admin.ask_broker(name, "name") == name.encode() + b":"
        first, second = sorted(names)
        found = await admin.ask_all_brokers("name", lambda name: b"y" if name == second else None)
        assert found == ({second: f"{second}:y".encode()}, {})
        found = await admin.ask_all_brokers("name", lambda name: b"raise" if name == first else b"y")
        assert (list(found.answers), list(found.failures)) == ([second], [first])
        assert "no such thing" in found.problems[first]
        found = await admin.ask_all_front_ends("name", b"y")
        assert found == ({"one": b"one:y", "two": b"two:y"}, {})
        with pytest.raises(RouteNotFoundError, match="no broker and no connected front end is named three"):
            await admin.ask("three", "name")
        with pytest.raises(BrokerError, match="no inspection 'age' here: there are"):
            await admin.ask("one", "age")
        with pytest.raises(BrokerError, match="no such thing") as caught:
            await admin.ask("one", "name", b"raise")
        assert caught.value.code == 22
        with pytest.raises(BrokerError, match="a question has"):
            await admin.ask("one", "name", bytes(limits.INSPECTION_QUESTION_BYTES_MAX + 1))

        # One of two brokers has lost its link to it.
        requests = site.benches[0].broker.mqtt.session_requests
        connection = requests._by_name["one"].connection
        requests.connection_lost(connection)
        assert await admin.ask("one", "name") == b"one:"
    await site.close()


async def test_a_front_end_that_does_not_answer_takes_nothing_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front_end_link, "_INSPECTION_S", 0.05)
    site = await open_site(tmp_path, "one", "two", "three", is_remote=True)
    gone = asyncio.Event()

    async def silent(body: bytes) -> bytes:
        await gone.wait()
        return b""

    site.fronts["one"].mqtt.inspections.add("name", answering(b"one"))
    site.fronts["two"].mqtt.inspections.add("name", silent)
    async with client_of(site) as client:
        found = await InspectionAdmin(client).ask_all_front_ends("name")
    assert found.answers == {"one": b"one:"}
    assert "did not answer within" in found.problems["two"]
    assert "there is no inspection" in found.problems["three"]
    await site.close()


async def test_a_broker_that_is_away_is_named_and_the_others_are_asked(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "one", is_remote=True, brokers=2)
    site.fronts["one"].mqtt.inspections.add("name", answering(b"one"))
    first, second = site.benches
    away = second.broker.parts.settings.name
    async with client_of(site) as client:
        admin = InspectionAdmin(client)
        assert await admin.front_ends() == ["one"]
        # The registry goes on to name it.
        await second.broker._server.stop()
        found = await admin.ask_all_front_ends("name")
        assert (found.answers, list(found.problems)) == ({"one": b"one:"}, [away])
        await first.broker._server.stop()
        with pytest.raises(ConnectionClosedError):
            await admin.ask_all_front_ends("name")
    await site.close()


async def test_the_front_end_beside_a_broker_is_asked_as_well(tmp_path: Path) -> None:
    site = await open_site(tmp_path, "local")
    site.fronts["local"].mqtt.inspections.add("name", answering(b"local"))
    answer: asyncio.Future[bytes | RequestError] = asyncio.get_running_loop().create_future()
    front_ends = site.bench.broker.sessions.front_ends
    assert front_ends.inspect("local", "name", b"?", answer.set_result)
    assert await answer == b"local:?"
    assert not front_ends.inspect("else", "name", b"?", answer.set_result)
    await site.close()
