"""Bridges between two gateways, and bans by command, with everything in the process of the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import soon

from iotmq.assembly import Process
from iotmq.commands.admin.command import run_action
from iotmq.commands.cli import parser
from iotmq.config.config import load_config
from iotmq.errors import ClientError
from iotmq.mqtt_client import Address, MqttClient, MqttClientSettings

pytestmark = pytest.mark.uvloop

PORTS = "".join(f"[{section}]\nlisten_port = 0\n" for section in ("registry", "broker", "http"))
STORE = "[store]\nsegment_bytes = 16777216\nallocation_step_bytes = 65536\n"


def settings_file(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / "gateway.toml"
    file.write_text(text)
    return file


@contextlib.asynccontextmanager
async def gateway(directory: Path, more: str = "", mqtt: str = "") -> AsyncIterator[Process]:
    file = settings_file(directory, f"{PORTS}[mqtt]\nlisten_port = 0\n{mqtt}\n{STORE}{more}")
    process = Process(load_config(file, data=str(directory / "data")), "serve")
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


def port_of(process: Process, name: str = "mqtt") -> int:
    return int(process.addresses[name].rpartition(":")[2])


def device(process: Process, client_id: str) -> MqttClient:
    address = Address(host="127.0.0.1", port=port_of(process))
    return MqttClient(MqttClientSettings(address=address, client_id=client_id))


def bridge(centre_port: int, version: str) -> str:
    return f"""
[[bridges]]
name = "centre"
address = "mqtt://127.0.0.1:{centre_port}"
version = "{version}"
connections = {2 if version == "5" else 1}
reconnect_min_s = 0.05
reconnect_max_s = 0.2

[[bridges.send]]
filter = "devices/#"
topic = "site/{{topic}}"

[[bridges.receive]]
filter = "commands/#"
topic = "{{1:}}"
"""


@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_a_bridge_sends_what_is_published_here_and_brings_what_is_there(
    tmp_path: Path, version: str
) -> None:
    async with gateway(tmp_path / "centre", mqtt='gateway_name = "centre"') as centre:
        table = bridge(port_of(centre), version)
        async with (
            gateway(tmp_path / "edge", table, 'gateway_name = "edge"') as edge,
            device(centre, "service") as service,
            device(edge, "pump") as pump,
        ):
            await service.subscribe(("site/#", 1))
            await pump.subscribe(("pump/do", 1))
            for number in range(200):
                await pump.publish(f"devices/{number % 7}", b"%d" % number, qos=1)
            came: dict[str, list[int]] = {}
            async with asyncio.timeout(30):
                while sum(map(len, came.values())) < 200:
                    for message in await service.next_batch():
                        came.setdefault(message.topic, []).append(int(bytes(message.payload)))
                    service.acknowledge()
            assert came == {f"site/devices/{key}": list(range(key, 200, 7)) for key in range(7)}
            await service.publish("commands/pump/do", b"open", qos=1)
            async with asyncio.timeout(30):
                (command,) = await pump.next_batch()
            assert (command.topic, bytes(command.payload)) == ("pump/do", b"open")


async def test_what_is_published_while_the_centre_is_away_is_sent_when_it_is_back(tmp_path: Path) -> None:
    async with gateway(tmp_path / "centre") as centre:
        port = port_of(centre)
        table = bridge(port, "5")
    async with gateway(tmp_path / "edge", table, 'gateway_name = "edge"') as edge:
        async with device(edge, "pump") as pump:
            for number in range(20):
                await pump.publish("devices/1", b"%d" % number, qos=1)
        # At the port where the bridge looks for it.
        back = gateway(
            tmp_path / "centre",
            f'[[mqtt.listeners]]\nname = "bridges"\ntransport = "tcp"\nlisten_port = {port}\n',
        )
        async with back as centre, device(centre, "service") as service:
            await service.subscribe(("site/#", 1))
            async with device(edge, "pump") as pump:
                await pump.publish("devices/1", b"20", qos=1)
            came: list[int] = []
            async with asyncio.timeout(30):
                while 20 not in came:
                    came += [int(bytes(message.payload)) for message in await service.next_batch()]
                    service.acknowledge()
            # What came before the subscription is in the log of the centre.
            assert came == list(range(came[0], 21))


async def test_an_operator_bans_a_device_and_lets_it_in_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway(tmp_path / "one") as running:
        registry = f"127.0.0.1:{port_of(running, 'registry')}"

        async def bans(*words: str) -> str:
            options = parser().parse_args(["bans", *words, "--registry", registry])
            assert await run_action(options, (registry,)) == 0
            return capsys.readouterr().out

        async with device(running, "pump") as pump:
            await bans("add", "client", "pump", "--for", "1h", "--reason", "stolen")
            await soon(lambda: not pump.is_connected, "its connection ends")
        (row,) = json.loads(await bans("list", "--json"))
        assert (row["kind"], row["value"], row["reason"]) == ("client", "pump", "stolen")
        await bans("remove", "client", "pump")
        with pytest.raises(ClientError, match="client pump is not banned"):
            await bans("remove", "client", "pump")
        assert "nobody is banned" in await bans("list")
        async with device(running, "pump") as pump:
            await pump.publish("a", b"1", qos=1)
