"""The load engine with TLS: bare and in WebSockets, with certificates of both sides."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import uvloop
from certificates import Certificate, make_certificate, make_root
from fake_gateway import ScriptedGateway

from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.listeners import CertificateSettings, ListenerSettings
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from loadtest.swarm import Plan, Swarm, SwarmError

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")


class Papers(NamedTuple):
    root: Certificate
    server: Certificate
    devices: list[Certificate]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    directory: Path = tmp_path_factory.mktemp("certificates")
    root = make_root(directory)
    devices = [make_certificate(directory, root, f"device{i}", alternatives="") for i in range(2)]
    return Papers(root, make_certificate(directory, root), devices)


@contextmanager
def front_end(papers: Papers, transport: str, *, asks: bool = False) -> Iterator[int]:
    """A front end that stores nothing and acknowledges all, in a thread; its port."""
    loop = uvloop.new_event_loop()
    gateway = ScriptedGateway()
    gateway.automatic = 0
    certificate = CertificateSettings(certificate_file=papers.server.certificate, key_file=papers.server.key)
    listener = ListenerSettings(
        name="secure",
        transport=transport,  # type: ignore[arg-type]
        certificates=(certificate,),
        client_ca_file=papers.root.certificate if asks else "",
    )
    front = MqttFront(MqttSettings(listen_port=0, listeners=(listener,)), gateway)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(front.start(), loop).result(10)
        yield int(front.addresses["secure"].rpartition(":")[2])
        asyncio.run_coroutine_threadsafe(front.stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.mark.parametrize(("transport", "path"), [("tls", ""), ("wss", "/mqtt")])
@pytest.mark.parametrize("payload_bytes", [30, 200, 70_000])
def test_every_message_is_acknowledged(papers: Papers, transport: str, path: str, payload_bytes: int) -> None:
    plan = Plan(
        publishers=3, idle=2, window=20, messages_max=200, payload_bytes=payload_bytes, websocket_path=path,
        tls=True, tls_ca=papers.root.certificate, seconds=20, warmup_s=0,
    )  # fmt: skip
    with front_end(papers, transport) as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        report = swarm.publish()
    assert report.counters["acknowledged"] == report.counters["published"] == 200
    assert report.violations == report.counters["lost"] == 0


def test_qos_2_and_sizes_work_with_tls(papers: Papers) -> None:
    plan = Plan(
        publishers=2, window=7, qos=2, messages_max=150, payload_sizes="30:1,9000:1,40000:1", tls=True,
        tls_ca=papers.root.certificate, seconds=20, warmup_s=0,
    )  # fmt: skip
    with front_end(papers, "tls") as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        report = swarm.publish()
    assert report.counters["acknowledged"] == report.counters["published"] == 150
    assert report.violations == 0


def test_devices_show_their_certificates_in_turn(papers: Papers) -> None:
    names = tuple(f"{each.certificate},{each.key}" for each in papers.devices)
    plan = Plan(idle=4, tls=True, tls_ca=papers.root.certificate, tls_certificates=names)
    with front_end(papers, "tls", asks=True) as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        assert swarm.engine.counters_now()["ready"] == 4


def test_without_a_certificate_that_is_asked_for_nobody_gets_in(papers: Papers) -> None:
    plan = Plan(idle=1, tls=True, tls_ca=papers.root.certificate)
    with front_end(papers, "tls", asks=True) as port, Swarm(replace(plan, port=port)) as swarm:
        with pytest.raises(SwarmError, match="0 of 1"):
            swarm.connect()
        failed = swarm.engine.ends()["failed"]
    assert sum(failed.values()) == 1
    assert set(failed) <= {"tls", "closed", "ECONNRESET"}


@pytest.mark.parametrize(
    "trust",
    [{}, {"tls_ca": "root", "tls_server_name": "elsewhere.example"}],
    ids=["other root", "other name"],
)
def test_a_server_that_is_not_trusted_is_counted(papers: Papers, trust: dict[str, str]) -> None:
    given = {name: papers.root.certificate if value == "root" else value for name, value in trust.items()}
    plan = Plan(idle=2, tls=True, **given)  # type: ignore[arg-type]
    with front_end(papers, "tls") as port, Swarm(replace(plan, port=port)) as swarm:
        with pytest.raises(SwarmError, match="0 of 2"):
            swarm.connect()
        assert swarm.engine.ends()["failed"] == {"tls": 2}
        assert "CERTIFICATE_VERIFY_FAILED" in swarm.engine.last_tls_error


def test_any_certificate_will_do_when_that_is_wanted(papers: Papers) -> None:
    plan = Plan(idle=1, tls=True, tls_insecure=True)
    with front_end(papers, "tls") as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        assert swarm.engine.counters_now()["ready"] == 1


def test_devices_come_back_with_tls(papers: Papers) -> None:
    plan = Plan(idle=2, tls=True, tls_ca=papers.root.certificate, leave_per_s=50, return_after_s=0.01)
    with front_end(papers, "tls") as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        swarm.begin()
        while swarm.engine.counters_now()["reconnected"] < 3:
            swarm.engine.run(0.05)
        assert swarm.engine.counters_now()["failed"] == 0


def test_files_that_are_none_are_named(papers: Papers) -> None:
    with pytest.raises(SwarmError, match="nowhere"):
        Swarm(Plan(idle=1, tls=True, tls_ca="nowhere.pem"))
    with pytest.raises(SwarmError, match="nothing"):
        Swarm(Plan(idle=1, tls=True, tls_certificates=("nothing.pem",)))
