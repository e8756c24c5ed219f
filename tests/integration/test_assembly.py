"""Whole processes: all roles in one, roles apart, refusals at the start, and clean stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from eventually import STOP_S, WITHIN_S, soon
from gateway_process import free_port

from iotmq.assembly import Process, RoleName, StartError
from iotmq.client.client import IotmqClient
from iotmq.client.consuming.offsets.offsets import max_offset
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import Message
from iotmq.client.transport.settings import ClientSettings
from iotmq.config.config import Config, load_config
from iotmq.errors import StoreError, StoreLockedError
from iotmq.message.hosts import encode_host
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

pytestmark = pytest.mark.uvloop

ROOT = Path(__file__).resolve().parents[2]
ANY_PORTS = tuple(f"{section}.listen_port=0" for section in ("registry", "broker", "mqtt", "http"))
CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01d"
PUBLISH = b"\x32\x0a\x00\x03a/b\x00\x07hey"  # QoS 1, packet id 7, topic a/b
PUBACK = b"\x40\x02\x00\x07"
SMALL_STORE = ("store.segment_bytes=16777216", "store.allocation_step_bytes=65536")


def config_for(data: Path, *assignments: str) -> Config:
    return load_config(assignments=[*ANY_PORTS, *SMALL_STORE, *assignments], data=str(data))


@contextlib.asynccontextmanager
async def running(config: Config, role: RoleName = "serve") -> AsyncIterator[Process]:
    process = Process(config, role)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def http_status(process: Process, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{process.addresses['http']}{path}") as answer,
    ):
        return answer.status, await answer.text()


async def publish_one(address: str) -> None:
    """Connect as a device, publish with QoS 1 and wait for the PUBACK."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(address))
    writer.write(CONNECT)
    assert await reader.readexactly(4) == b"\x20\x02\x00\x00"
    writer.write(PUBLISH)
    assert await reader.readexactly(4) == PUBACK
    writer.close()


async def stored(registry: str, topic: str) -> int:
    async with IotmqClient(ClientSettings(registries=(registry,))) as client:
        async with asyncio.timeout(WITHIN_S):
            # The broker may not have told its registry yet.
            while (route := await client.routes.find(topic)) is None:
                continue
        return sum([await max_offset(client, queue) for queue in route.readable])


def check_store(data: Path) -> None:
    settings = StoreSettings(segment_bytes=16_777_216, allocation_step_bytes=65_536)
    store = Store.open(data, settings, store_host=encode_host("127.0.0.1", 1))
    try:
        assert store.check() == []
    finally:
        store.close()


async def test_all_roles_in_one_process_carry_a_message_from_device_to_log(tmp_path: Path) -> None:
    async with running(config_for(tmp_path)) as process:
        assert set(process.addresses) == {"http", "registry", "broker", "mqtt"}
        await publish_one(process.addresses["mqtt"])
        assert await stored(process.addresses["registry"], "mqtt") == 1
        status, text = await http_status(process, "/readyz")
        assert (status, '"ready":true' in text) == (200, True)
        status, text = await http_status(process, "/metrics")
        assert status == 200
        assert re.search(r"^iotmq_\w+ \d", text, re.M)
        assert "iotmq_metrics_errors_total 0.0" in text
    check_store(tmp_path)


async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(config_for(tmp_path)) as process:
        for _ in range(3):
            await publish_one(process.addresses["mqtt"])
    async with running(config_for(tmp_path)) as process:
        assert await stored(process.addresses["registry"], "mqtt") == 3


async def test_roles_apart_do_the_same(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        registry = await stack.enter_async_context(running(config_for(tmp_path / "r"), "registry"))
        address = registry.addresses["registry"]
        broker = await stack.enter_async_context(
            running(config_for(tmp_path / "b", f"broker.registries={address}"), "broker")
        )
        assert set(registry.addresses) == {"http", "registry"}
        assert set(broker.addresses) == {"http", "broker"}
        async with (
            IotmqClient(ClientSettings(registries=(address,))) as client,
            Producer(client) as producer,
        ):
            await producer.send(Message("mqtt", b"first"))
        front = await stack.enter_async_context(
            running(config_for(tmp_path / "m", f"mqtt.registries={address}"), "mqtt")
        )
        assert set(front.addresses) == {"http", "mqtt"}
        await publish_one(front.addresses["mqtt"])
        assert await stored(address, "mqtt") == 2


async def test_a_new_slave_that_waits_for_its_master_says_so_and_can_be_stopped(tmp_path: Path) -> None:
    settings = ("mode=static", "role=slave", "broker_id=1", f"master_address=127.0.0.1:{free_port()}")
    config = config_for(
        tmp_path, f"broker.listen_port={free_port()}", *(f"replication.{setting}" for setting in settings)
    )
    process = Process(config, "broker")
    starting = asyncio.ensure_future(process.start())
    await soon(lambda: "a new slave waits" in str(process.readiness().get("broker")), "it is not ready")
    status, text = await http_status(process, "/readyz")
    assert status == 503
    assert "a new slave waits for its master: no connection" in text
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    check_store(tmp_path)


async def test_a_second_process_on_the_data_is_refused_by_the_name_of_the_lock(tmp_path: Path) -> None:
    async with running(config_for(tmp_path)) as process:
        with pytest.raises(StoreLockedError) as caught:
            await Process(config_for(tmp_path), "serve").start()
        assert str(tmp_path / "lock") in str(caught.value)
        await publish_one(process.addresses["mqtt"])


@pytest.mark.parametrize("section", ["http", "registry", "broker", "mqtt"])
async def test_a_taken_port_is_named_and_everything_else_is_given_back(tmp_path: Path, section: str) -> None:
    taken = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    process = Process(config_for(tmp_path, f"{section}.listen_port={port}"), "serve")
    expected = rf"{section} cannot start: .*{port}.*\(settings: .*{section}\.listen_port"
    with pytest.raises(StartError, match=expected):
        await process.start()
    taken.close()
    for name, address in process.addresses.items():
        if name != section:
            with pytest.raises(OSError, match=r"(?i)connect"):
                await asyncio.open_connection("127.0.0.1", port_of(address))
    check_store(tmp_path)


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
async def test_an_address_that_is_not_ours_is_an_error_without_a_traceback(tmp_path: Path, host: str) -> None:
    with pytest.raises(StartError, match="broker"):
        await Process(config_for(tmp_path, f"broker.listen_host={host}"), "broker").start()


async def test_an_advertised_name_that_is_unknown_now_is_no_wrong_setting(tmp_path: Path) -> None:
    """A service manager tries again after a start that failed, and not after a wrong setting."""
    config = config_for(tmp_path, "broker.advertised_host=no-such-host.invalid")
    with pytest.raises(StartError, match=r"broker\.advertised_host .*cannot be resolved"):
        await Process(config, "broker").start()


async def test_a_log_that_takes_long_to_open_is_why_it_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    open_store = Store.open

    def open_slowly(*given: Any, **named: Any) -> Store:
        goes_on.wait()
        return open_store(*given, **named)

    monkeypatch.setattr(Store, "open", open_slowly)
    process = Process(config_for(tmp_path), "serve")
    starting = asyncio.ensure_future(process.start())
    try:
        await soon(lambda: "store" in process.readiness(), "the log is all it waits for")
        assert str(process.readiness()["store"]).startswith("the log is being opened, for ")
    finally:
        goes_on.set()
        await starting
    assert set(process.readiness().values()) == {None}
    await process.stop()


async def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        await Process(config_for(tmp_path / "file"), "serve").start()


async def serve_process(data: Path, *assignments: str) -> tuple[asyncio.subprocess.Process, dict[str, str]]:
    """`iotmq serve` as people start it; returns when it has said that it is ready."""
    words = [word for each in (*ANY_PORTS, *SMALL_STORE, *assignments) for word in ("--set", each)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "iotmq", "serve", "--data", str(data), *words,
        cwd=ROOT, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while line := (await process.stderr.readline()).decode():
            if "is ready" in line:
                return process, dict(re.findall(r"(\w+)=(127\.0\.0\.1:\d+)", line))
    raise AssertionError(f"ended with {await process.wait()}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_in_time_with_nothing_lost(tmp_path: Path, number: signal.Signals) -> None:
    process, addresses = await serve_process(tmp_path)
    await publish_one(addresses["mqtt"])
    # Peers that stay connected and say nothing do not hold it up.
    idle = [
        await asyncio.open_connection("127.0.0.1", port_of(address))
        for address in addresses.values()
        for _ in range(3)
    ]
    process.send_signal(number)
    async with asyncio.timeout(STOP_S):
        code = await process.wait()
    assert process.stderr is not None
    rest = (await process.stderr.read()).decode()
    assert code == 0
    assert "stopped" in rest
    assert "Traceback" not in rest
    for _reader, writer in idle:
        writer.close()
    assert not (tmp_path / "abort").exists()
    async with running(config_for(tmp_path)) as again:
        assert await stored(again.addresses["registry"], "mqtt") == 1


def proc_text(process: asyncio.subprocess.Process, file: str) -> str:
    return Path(f"/proc/{process.pid}/{file}").read_text()


def proc_number(process: asyncio.subprocess.Process, file: str, begins: str) -> int:
    """The first number of a line of the kernel's about a process."""
    lines = proc_text(process, file).splitlines()
    (line,) = [line for line in lines if line.startswith(begins)]
    return int(line.removeprefix(begins).split()[0])


async def test_a_start_makes_room_for_connections_and_loads_nothing_that_no_setting_asks_for(
    tmp_path: Path,
) -> None:
    """The kernel's table of open files has room for 65,536, or for as many as there may be."""
    process, _ = await serve_process(tmp_path)
    size = proc_number(process, "status", "FDSize:")
    allowed = proc_number(process, "limits", "Max open files")
    loaded = proc_text(process, "maps")
    process.terminate()
    await process.wait()
    assert size >= min(allowed, 65_536)
    # They take 10 to 15 MB, and together as long as all else.
    assert [each for each in ("aiohttp", "cryptography", "numpy") if f"/{each}/" in loaded] == []
    assert "/iotmq/" in loaded


async def test_after_kill_9_the_next_start_needs_no_hand(tmp_path: Path) -> None:
    process, addresses = await serve_process(tmp_path)
    for _ in range(5):
        await publish_one(addresses["mqtt"])
    process.kill()
    await process.wait()
    assert (tmp_path / "abort").exists()
    async with running(config_for(tmp_path)) as again:
        assert await stored(again.addresses["registry"], "mqtt") == 5
    check_store(tmp_path)


async def test_start_errors_reach_the_shell_as_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "iotmq", "serve", "--data", str(tmp_path / "file"),
        "--set", "http.listen_port=0", cwd=ROOT, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        _output, error = await process.communicate()
    assert process.returncode == 1
    assert error.decode().startswith("iotmq: ")
    assert len(error.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_read_only_data_directory_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o500)
    try:
        with pytest.raises(StoreError, match=re.escape(str(tmp_path))):
            await Process(config_for(tmp_path), "serve").start()
    finally:
        os.chmod(tmp_path, 0o700)


async def test_bridges_without_any_in_the_settings_do_not_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"\[\[bridges\]\] is missing"):
        await Process(config_for(tmp_path), "bridges").start()
