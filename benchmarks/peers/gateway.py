"""iotmq as the benchmarks start it: in one process, and as roles of their own."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.machine import RESULTS
from benchmarks.peers.server import Server, free_ports, running

_ROUTES: Final = """
[[mqtt.routes]]
filter = "devices/+/telemetry"
topic = "telemetry"
key = "{1}"
"""
_WEBSOCKET_LISTENER: Final = """
[[mqtt.listeners]]
name = "web"
transport = "ws"
listen_port = {}
allowed_origins = ["*"]
"""


@contextlib.contextmanager
def iotmq(
    *,
    core: int,
    settings: Mapping[str, str] | None = None,
    data_parent: Path | None = None,
    data: Path | None = None,
    is_websocket: bool = False,
    routes: str = _ROUTES,
) -> Iterator[Server]:
    """The all-in-one gateway with a durable log (async flush), in a data directory that goes with it.

    ``settings`` are further ``--set`` assignments, ``section.key`` to value. The directory lies in
    ``data_parent``, by default ``build/benchmarks``: a real disk, as a gateway has. ``data`` is a directory
    that is there already, and stays. With `is_websocket` MQTT is in WebSockets at its port. `routes` is TOML.
    """
    mqtt_port, broker_port, registry_port, http_port = free_ports(4)
    parent = data_parent or RESULTS
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-iotmq-", dir=parent) as directory:
        file = Path(directory, "iotmq.toml")
        file.write_text(
            f"""
[log]
level = "warning"
[store]
flush = "async"
[registry]
listen_port = {registry_port}
[broker]
listen_port = {broker_port}
registries = ["127.0.0.1:{registry_port}"]
[http]
listen_port = {http_port}
[mqtt]
listen_port = {mqtt_port}
tcp_enabled = {"false" if is_websocket else "true"}
{routes}{_WEBSOCKET_LISTENER.format(mqtt_port) if is_websocket else ""}"""
        )
        command = [
            sys.executable,
            "-m",
            "iotmq",
            "serve",
            "--config",
            str(file),
            "--data",
            str(data or Path(directory, "data")),
        ]
        for name, value in (settings or {}).items():
            command += ["--set", f"{name}={value}"]
        with running("iotmq", command, core, mqtt_port, Path(directory)) as server:
            server.http_port = http_port
            yield server


@contextlib.contextmanager
def front_ends(
    count: int,
    *,
    brokers: int = 1,
    settings: Mapping[str, str] | None = None,
    cores: Sequence[int | None] | None = None,
    data: Path | None = None,
) -> Iterator[tuple[Server, list[Server]]]:
    """A broker, with a registry, and so many MQTT front ends for it: each a process of its own.

    Of several ``brokers`` it is the first. ``settings`` with names that begin with ``mqtt.`` are for the
    front ends, the others for the brokers. ``cores`` are for the brokers and the front ends, in this order;
    None leaves one where the system puts it. ``data`` is the directory of one broker when it is to be kept. A
    front end may be killed.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    registry_port, *ports = free_ports(2 * count + 2 * brokers + 2)
    registry = f"127.0.0.1:{registry_port}"
    wanted = dict(settings or {})
    for_front_ends = {name: wanted.pop(name) for name in list(wanted) if name.startswith("mqtt.")}
    pinned = list(cores or [None] * (count + 1))
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="data-roles-", dir=RESULTS)))

        def run(role: str, name: str, port: int, core: int | None, **assignments: str) -> Server:
            home = directory / name
            home.mkdir()
            http_port = ports.pop()
            assignments |= {"http.listen_port": str(http_port), "log.level": "warning"}
            command = [sys.executable, "-m", "iotmq", role]
            command += ["--data", str(data if data is not None and role == "broker" else home / "data")]
            for setting, value in assignments.items():
                command += ["--set", f"{setting}={value}"]
            server = stack.enter_context(running(name, command, core, port, home))
            server.http_port = http_port
            return server

        run("registry", "registry", registry_port, pinned[0], **{"registry.listen_port": str(registry_port)})
        started = []
        for number in range(1, brokers + 1):
            name, port = "broker" if number == 1 else f"broker-{number}", ports.pop()
            own_name = {} if number == 1 else {"broker.name": name}
            started.append(
                run(
                    "broker", name, port, pinned[0],
                    **{"broker.listen_port": str(port), "broker.registries": registry,
                       "broker.registration_interval_s": "1", "store.flush": "async"} | own_name | wanted,
                )
            )  # fmt: skip
        servers = []
        for number in range(1, count + 1):
            name, port = f"front-end-{number}", ports.pop()
            servers.append(
                run(
                    "mqtt", name, port, pinned[number],
                    **{"mqtt.listen_port": str(port), "mqtt.registries": registry, "mqtt.name": name}
                    | for_front_ends,
                )
            )  # fmt: skip
        yield started[0], servers
