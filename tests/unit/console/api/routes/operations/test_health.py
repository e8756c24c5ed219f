"""What checks of health say of a process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from iotmq.console.api.problems import UNHEALTHY, ProblemError
from iotmq.console.api.route import Call, Caller, NoArguments, Role
from iotmq.console.api.routes.operations.health import (
    CertificatesArguments,
    PortArguments,
    check_alarms,
    check_certificates,
    check_port,
    check_ready,
    list_certificates,
)
from iotmq.console.server.messages import Request
from iotmq.metrics import Metric, samples

REQUEST = Request("GET", "/api/v1/health", "", {}, "127.0.0.1")
CALLER = Caller("x", Role.VIEWER, "127.0.0.1")


class Own:
    """A process that looks as a test says."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self.parts: dict[str, str | None] = {}
        self.numbers: list[Metric] = []

    async def states(self) -> Mapping[str, str | None]:
        return self.parts

    def metrics(self) -> Iterable[Metric]:
        return self.numbers

    async def ask(self, handler: Any, arguments: Any = NoArguments()) -> Any:  # noqa: B008 - has no state
        return await handler(SimpleNamespace(own=self), Call(arguments, None, CALLER, REQUEST))

    async def reasons(self, handler: Any, arguments: Any = NoArguments()) -> str:  # noqa: B008
        with pytest.raises(ProblemError) as raised:
            await self.ask(handler, arguments)
        assert raised.value.kind is UNHEALTHY
        return str(raised.value)


async def test_parts_that_are_not_ready_are_named() -> None:
    own = Own()
    own.parts = {"store": None, "mqtt": "no delivery channel"}
    assert await own.reasons(check_ready) == "mqtt: no delivery channel"
    own.parts["mqtt"] = None
    assert (await own.ask(check_ready)).checked == ["store", "mqtt"]


async def test_each_alarm_of_the_store_is_one() -> None:
    own = Own()
    own.numbers = [*samples(("iotmq_store_refusing", "", 0), ("iotmq_store_read_only", "", 0))]
    assert (await own.ask(check_alarms)).checked == ["iotmq_store_read_only", "iotmq_store_refusing"]
    own.numbers = [*samples(("iotmq_store_refusing", "", 1), ("iotmq_store_damaged_ranges", "", 2))]
    assert await own.reasons(check_alarms) == (
        "a disk is too full: the broker takes no messages; the start has found damage in the log"
    )


async def test_certificates_that_expire_soon_are_named() -> None:
    own = Own()
    now_s = time.time()
    name = "iotmq_mqtt_listener_tls_certificate_expires_seconds"
    own.numbers = [
        *samples((name, "", now_s + 10 * 86_400), labels=(("listener", "tls"),)),
        *samples(("iotmq_http_tls_certificate_expires_seconds", "", now_s + 90 * 86_400)),
    ]
    found = (await own.ask(list_certificates)).items
    assert [each.listener for each in found] == ["mqtt listener (listener tls)", "http"]
    assert (await own.ask(check_certificates, CertificatesArguments(within_days=9))).checked
    day = time.strftime("%Y-%m-%d", time.gmtime(now_s + 10 * 86_400))
    assert await own.reasons(check_certificates, CertificatesArguments(within_days=11)) == (
        f"mqtt listener (listener tls): expires {day}"
    )
    own.numbers = [*samples((name, "", now_s - 1))]
    assert "has expired" in await own.reasons(check_certificates, CertificatesArguments())


async def test_a_port_is_looked_for_among_the_listeners() -> None:
    own = Own()
    own.addresses = {"broker": "127.0.0.1:10911", "mqtt.six": "[::1]:1884", "mqtt.unix": "/run/mqtt.sock"}
    assert (await own.ask(check_port, PortArguments(port=1884))).checked == ["mqtt.six"]
    assert await own.reasons(check_port, PortArguments(port=1883)) == "nothing listens on port 1883"
