"""What a broker says about the address it tells its clients."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from eventually import soon

from iotmq.broker.broker import Broker
from iotmq.broker.registration import advertised_address
from iotmq.broker.registration.advertised_address import AdvertisedAddress, resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.remoting.command import Command
from iotmq.remoting.server import RemotingServer, ServerConnection
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

# Addresses for documents (RFC 5737): no machine has them.
FOREIGN = "192.0.2.1"
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertised_address, "_TIMEOUT_S", 0.2)


def dead_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def problems(host: str, port: int, *, listens_on: str = "0.0.0.0", listen_port: int = 0) -> list[str]:
    address = AdvertisedAddress(
        host, port, listen_host=listens_on, listen_port=listen_port or port, runtime_info=dict
    )
    await address.check()
    (metric,) = address.metrics()
    assert metric.value == len(address.problems)
    return address.problems


async def test_the_listening_address_itself_is_right() -> None:
    assert await problems("127.0.0.1", 10911, listens_on="127.0.0.1") == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_a_wildcard_is_no_address(host: str) -> None:
    (problem,) = await problems(host, 10911, listens_on=host)
    assert "reach themselves" in problem


async def test_loopback_is_no_use_to_others(caplog: pytest.LogCaptureFixture) -> None:
    found = await problems("127.0.0.1", dead_port())
    assert "only local clients" in found[0]
    assert "cannot connect to the advertised address" in found[1]
    assert "broker.advertised_host" in caplog.text


async def test_a_foreign_address_is_said_to_be_one() -> None:
    found = await problems(FOREIGN, 10911)
    assert "none of this machine's" in found[0]
    assert "cannot connect" in found[1]


async def test_a_name_nobody_knows() -> None:
    found = await problems("no-such-host.invalid", 10911)
    assert "cannot be resolved" in found[0]


async def test_an_own_address_that_is_not_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertised_address, "_is_own", lambda address: True)
    found = await problems(FOREIGN, 10911, listens_on="127.0.0.1")
    assert "broker.listen_host" in found[0]


class Other:
    """Answers code 28 as another broker does, or as its script says."""

    def __init__(self, code: int = 0) -> None:
        self.code = code

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        return request.reply(self.code, body=b'{"table":{"bootTimestamp":"1"}}')

    def connection_lost(self, connection: ServerConnection) -> None:
        pass


@pytest.mark.parametrize(("code", "expected"), [(0, ["another broker answers"]), (16, [])])
async def test_who_answers_at_the_address_is_looked_at(code: int, expected: list[str]) -> None:
    server = RemotingServer(Other(code))
    await server.start()
    address = AdvertisedAddress(
        "127.0.0.1",
        server.port,
        listen_host="127.0.0.1",
        listen_port=dead_port(),
        runtime_info=lambda: {"bootTimestamp": "2"},
    )
    await address.check()
    await server.stop()
    assert [problem.partition(" at ")[0] for problem in address.problems] == expected


def value(broker: Broker) -> float:
    return next(
        (metric.value for metric in broker.metrics() if metric.name.endswith("advertised_address_problems")),
        -1.0,
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"advertised_host": "localhost"}, 0),
        ({"advertised_host": FOREIGN}, 2),
        ({"advertised_host": "localhost", "listen_host": "0.0.0.0"}, 1),
    ],
)
async def test_a_broker_checks_when_it_starts(tmp_path: Path, words: dict[str, Any], expected: int) -> None:
    settings = BrokerSettings(listen_port=0, registries=(), **words)
    store = Store.open(
        tmp_path, StoreSettings(segment_bytes=16 << 20), store_host=resolve_store_host(settings)
    )
    broker = Broker(settings, store, directory=tmp_path)
    await broker.start()
    if expected:
        await soon(lambda: value(broker) == expected, "the check is done", within_s=WAIT_S)
    else:
        # It knocks, and finds itself.
        await soon(
            lambda: any(
                metric.value
                for metric in broker.metrics()
                if metric.name == "iotmq_broker_requests_total"
                and ("code", "GET_BROKER_RUNTIME_INFO") in metric.labels
            ),
            "the check is done",
            within_s=WAIT_S,
        )
        assert value(broker) == 0
    await broker.stop()
    assert store.check() == []
    store.close()
