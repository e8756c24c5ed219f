"""The places where devices connect: settings that are refused, what listens, and what is left behind."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from fake_gateway import RawClient, connect_packet
from listener_site import config, directory_for_sockets, running
from websocket_peer import WebSocketPeer, request

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.server import MqttFront

CONNACK = (packets.CONNACK << 4, b"\0\0")


@pytest.fixture
def directory() -> Iterator[Path]:
    with directory_for_sockets() as directory:
        yield directory


def unix(path: Path, **settings: Any) -> dict[str, Any]:
    return {"name": "local", "transport": "unix", "socket_path": str(path), **settings}


TCP = {"name": "second", "transport": "tcp"}


def open_connections(front: MqttFront) -> dict[str, float]:
    return {
        dict(metric.labels)["listener"]: metric.value
        for metric in front.metrics()
        if metric.name == "iotmq_mqtt_listener_connections"
    }


@pytest.mark.parametrize(
    ("listeners", "mqtt", "said"),
    [
        ([TCP, TCP], {}, r"listeners\[1\]\.name = \"second\" is refused: mqtt\.listeners\[0\] has that name"),
        ([TCP | {"name": "tcp"}], {}, "mqtt.listen_port has that name"),
        ([TCP | {"name": "x" * (limits.MQTT_LISTENER_NAME_BYTES_MAX + 1)}], {}, r"listeners\[0\]\.name"),
        ([TCP | {"transport": "udp"}], {}, r"listeners\[0\]\.transport"),
        ([{"name": "a", "transport": "unix"}], {}, "which has to have one"),
        ([TCP | {"socket_path": "/x"}], {}, 'socket_path is for transport = "unix"'),
        ([unix(Path("/s"), socket_mode="0680")], {}, "socket_mode"),
        ([unix(Path("/" + "s" * limits.UNIX_SOCKET_PATH_BYTES_MAX))], {}, "socket_path"),
        ([unix(Path("/s"))], {"workers": 2}, r"has to have \{worker\} in it"),
        ([], {"tcp_enabled": False}, "no device could connect"),
        ([TCP], {"device_limits": {"listeners": [{"listener": "tls"}]}}, "tls is no listener"),
        ([TCP], {"device_limits": {"listeners": [{"listener": "second"}] * 2}}, "second has limits before"),
        (
            [TCP],
            {"device_limits": {"listeners": [{"listener": "tcp"}] * (limits.MQTT_LISTENERS_MAX + 1)}},
            r"device_limits\.listeners",
        ),
        ([TCP | {"listen_host": "0.0.0.0"}], {}, r"mqtt\.listeners\[0\]\.listen_host = .* is refused"),
        ([TCP | {"listen_port": 1884}], {"listen_port": 1884}, r"mqtt\.listen_port has the same address"),
    ],
)
def test_settings_that_do_not_go_together(
    listeners: list[dict[str, Any]], mqtt: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        config(*listeners, **mqtt)


def test_settings_at_their_limits() -> None:
    made = config(
        TCP | {"name": "x" * limits.MQTT_LISTENER_NAME_BYTES_MAX, "listen_port": 1884},
        unix(Path("/{worker}" + "s" * (limits.UNIX_SOCKET_PATH_BYTES_MAX - 9))),
        workers=2,
        tcp_enabled=False,
        listen_port=1884,  # nobody listens there
    )
    assert [listener.transport for listener in made.mqtt.all_listeners] == ["tcp", "unix"]


WEB = {"name": "web", "transport": "ws", "allowed_origins": ["*"]}
LONGEST_PATH = "/" + "p" * (limits.MQTT_WEBSOCKET_PATH_BYTES_MAX - 1)
LONGEST_ORIGIN = "https://".ljust(limits.MQTT_WEBSOCKET_ORIGIN_BYTES_MAX, "o")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"websocket_path": LONGEST_PATH + "p"}, "websocket_path"),
        ({"allowed_origins": [LONGEST_ORIGIN + "o"]}, "allowed_origins"),
        ({"allowed_origins": ["null"] * (limits.MQTT_WEBSOCKET_ORIGINS_MAX + 1)}, "allowed_origins"),
    ],
)
def test_settings_of_websockets_past_their_limits(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"listeners\[0\]\.{said}"):
        config(WEB | settings)


@pytest.mark.parametrize(
    ("listener", "mqtt", "is_refused"),
    [
        ({}, {}, True),
        ({"allowed_origins": ["*"]}, {}, False),
        ({"allowed_origins": ["https://a.example"]}, {}, False),
        ({}, {"authentication": {"users_file": "users"}}, False),
        ({}, {"authentication": {"users_file": "users", "allow_anonymous": True}}, True),
        ({"listen_host": "0.0.0.0"}, {"allow_anonymous_remote": True}, False),
    ],
)
def test_pages_of_any_origin_on_a_browsers_machine_have_to_be_meant(
    listener: dict[str, Any], mqtt: dict[str, Any], is_refused: bool
) -> None:
    made = {"name": "web", "transport": "ws"} | listener
    if is_refused:
        with pytest.raises(ConfigError, match=r"listeners\[0\]\.allowed_origins = \[\] is refused"):
            config(made, **mqtt)
    else:
        assert config(made, **mqtt).mqtt.listeners[0].name == "web"


async def test_a_page_of_any_origin_where_that_is_meant() -> None:
    async with running(WEB) as front:
        peer = await WebSocketPeer.dial(int(front.addresses["web"].rpartition(":")[2]))
        peer.send(request("/mqtt", Origin="https://anybody.example"))
        assert (await peer.response())[0] == 101
        peer.writer.close()


async def test_a_websocket_with_the_longest_path_from_the_last_of_all_origins() -> None:
    origins = [f"https://{n}.example" for n in range(limits.MQTT_WEBSOCKET_ORIGINS_MAX - 1)]
    most = {"websocket_path": LONGEST_PATH, "allowed_origins": [*origins, LONGEST_ORIGIN]}
    async with running(WEB | most) as front:
        peer = await WebSocketPeer.dial(int(front.addresses["web"].rpartition(":")[2]))
        peer.send(request(LONGEST_PATH, Origin=LONGEST_ORIGIN))
        status, _ = await peer.response()
        assert status == 101
        peer.writer.close()


def test_as_many_listeners_as_there_may_be() -> None:
    many = [{"name": f"l{number}", "transport": "tcp"} for number in range(limits.MQTT_LISTENERS_MAX + 1)]
    assert len(config(*many[:-1]).mqtt.listeners) == limits.MQTT_LISTENERS_MAX
    with pytest.raises(ConfigError, match=r"mqtt\.listeners"):
        config(*many)


async def test_devices_of_all_listeners_are_of_one_front_end(directory: Path) -> None:
    async with running(TCP, unix(directory / "s"), TCP | {"name": "v6", "listen_host": "::1"}) as front:
        assert list(front.addresses) == ["tcp", "second", "local", "v6"]
        assert front.addresses["local"] == str(directory / "s")
        assert front.addresses["v6"].startswith("[::1]:")
        port = int(front.addresses["second"].rpartition(":")[2])
        here, there = await RawClient.connect(port, "here"), await RawClient.dial_unix(str(directory / "s"))
        there.send(connect_packet("there"))
        assert await there.packet() == CONNACK
        await here.ping()
        assert open_connections(front) == {"tcp": 0, "second": 1, "local": 1, "v6": 0}
        there.send(connect_packet("here"))  # a second CONNECT
        await soon(lambda: open_connections(front)["local"] == 0, "it was closed")
        again = await RawClient.dial_unix(str(directory / "s"))
        again.send(connect_packet("here"))
        assert await again.packet() == CONNACK
        assert await here.rest() == b"", "its session is taken over"


async def test_without_the_tcp_listener(directory: Path) -> None:
    async with running(unix(directory / "s"), tcp_enabled=False) as front:
        assert list(front.addresses) == ["local"]
        assert front.not_ready_reason is None


@pytest.mark.parametrize("mode", ["600", "0660", "0666"])
async def test_a_socket_has_its_mode_and_goes_with_the_front_end(directory: Path, mode: str) -> None:
    async with running(unix(directory / "s", socket_mode=mode)):
        assert stat.S_IMODE((directory / "s").stat().st_mode) == int(mode, 8)
    assert not (directory / "s").exists()


async def test_a_socket_left_by_a_killed_process_is_replaced(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / "s"))
    async with running(unix(directory / "s")):
        client = await RawClient.dial_unix(str(directory / "s"))
        client.send(connect_packet("d"))
        assert await client.packet() == CONNACK


async def test_a_socket_that_is_in_use_is_left_alone(directory: Path) -> None:
    async with running(unix(directory / "s")):
        with pytest.raises(OSError, match=f"cannot listen on {directory}/s for MQTT: .*in use"):
            async with running(unix(directory / "s")):
                pass
        (await RawClient.dial_unix(str(directory / "s"))).send(connect_packet("d"))


async def test_a_file_that_is_no_socket_is_left_alone(directory: Path) -> None:
    (directory / "s").write_text("mine")
    with pytest.raises(OSError, match="not a socket is in its place"):
        async with running(unix(directory / "s")):
            pass
    assert (directory / "s").read_text() == "mine"


async def test_a_start_that_fails_leaves_nobody_listening(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port} for MQTT"):
            async with running(unix(directory / "s"), TCP | {"listen_port": port}):
                pass
    assert not os.listdir(directory)
