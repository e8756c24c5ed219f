"""Servers that fail devices in every way: counted by kind, in time, and without a traceback."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest
from gateway_process import free_port
from locust_run import LocustRun, run_locust
from scripted_server import publish_packet, stamped
from socket_server import SocketServer
from swarm_runs import running_sink

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CONNACK: Final = b"\x20\x02\x00\x00"
PACKETS_MAX: Final = 10_000


class BadServer(SocketServer):
    """A server that does the same to each connection; `serve` has the socket behind the CONNECT."""

    def __init__(self, serve: Callable[[socket.socket], None], *, reads_connect: bool = True) -> None:
        self._serve = serve
        self._reads_connect = reads_connect
        super().__init__()

    def connected(self, connection: socket.socket) -> None:
        self.spawn(self._run, connection)

    def _run(self, connection: socket.socket) -> None:
        if self._reads_connect:
            connection.recv(65_536)
        self._serve(connection)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()


def swallow(connection: socket.socket) -> None:
    """Read, and never say a word."""
    while connection.recv(65_536):
        continue


def close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def greet(then: Callable[[socket.socket], None]) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.sendall(CONNACK)
        then(connection)

    return serve


def vanish_with_the_first_message(connection: socket.socket) -> None:
    connection.recv(65_536)
    connection.close()


def answer_with(data: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.sendall(data)
        swallow(connection)

    return serve


# Row and error of what is to be found; and who does it.
WAYS: Final[dict[str, tuple[str, str, Callable[[socket.socket], None]]]] = {
    "resets": ("connect", "reset by the server", reset),
    "closes": ("connect", "closed by the server", close),
    "silent": ("connect", "no answer in time", swallow),
    "refuses": ("connect", "refused by the server: not authorized", answer_with(b"\x20\x02\x00\x05")),
    "garbage": (
        "connect",
        "the server broke a rule of MQTT",
        answer_with(b"\x48\x02ok"),
    ),
    "never_acknowledges": ("publish", "no answer in time", greet(swallow)),
    "vanishes": ("disconnect", "closed by the server", greet(vanish_with_the_first_message)),
    "wrong_packet": ("disconnect", "the server broke a rule of MQTT", greet(answer_with(b"\x10\x00"))),
}


@contextmanager
def bad_servers() -> Iterator[dict[str, int]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(BadServer(serve)).port for name, (_row, _error, serve) in WAYS.items()
        } | {"nobody": free_port()}


def found(run: LocustRun, row: str, kind: str) -> list[str]:
    """The errors of a row that begin with a kind."""
    return [
        error
        for (name, error), count in run.failures.items()
        if name.startswith(row) and kind in error and count
    ]


def test_devices_count_every_fault_by_kind(tmp_path: Path) -> None:
    head = """
        from locust import constant_throughput, task
        from loadtest.users import MqttDeviceUser

        class Device(MqttDeviceUser):
            abstract = True
            host = "127.0.0.1"
            wait_time = constant_throughput(5)
            answer_timeout_s = 1
            reconnect_max_s = 0.5

            def event_name(self, action, qos, topic):
                return f"{action}:{type(self).__name__}"

            @task
            def publish(self):
                self.client.publish("t", b"x", qos=1)
    """
    with bad_servers() as ports:
        users = "\n".join(
            f"class {name.title().replace('_', '')}(Device):\n    fixed_count = 5\n    port = {port}\n"
            for name, port in ports.items()
        )
        (tmp_path / "bad.py").write_text(dedent(head) + users)
        count = str(5 * len(ports))
        run = run_locust(tmp_path / "bad.py", tmp_path, "-u", count, "-r", count, seconds=3)
    assert run.code == 1
    for name, (row, error, _serve) in WAYS.items():
        assert found(run, row, error), (name, run.failures)
    assert found(run, "connect", "refused: nobody listens there")
    # A thousand messages that wait are no thousand lines.
    assert len(run.failures) < 40


def test_a_message_of_qos_1_may_come_again_when_the_server_says_so(tmp_path: Path) -> None:
    def publish_three_times(connection: socket.socket) -> None:
        connection.recv(65_536)
        first = bytearray(publish_packet(stamped(7, 0, time.monotonic_ns()), qos=1, packet_id=1))
        again = bytearray(first)
        again[0] |= 8
        connection.sendall(b"\x90\x03\x00\x01\x01" + first + again + first)
        swallow(connection)

    text = """
        from locust import constant, task
        from loadtest.users import MqttDeviceUser

        class Device(MqttDeviceUser):
            wait_time = constant(1)

            def on_start(self):
                self.client.subscribe("t", qos=1)

            @task
            def nothing(self):
                pass
    """
    with BadServer(greet(publish_three_times)) as server:
        (tmp_path / "again.py").write_text(dedent(text))
        run = run_locust(tmp_path / "again.py", tmp_path, "-H", f"mqtt://127.0.0.1:{server.port}", seconds=1)
    assert run.count("receive:1:t") == 3
    assert run.failures == {("receive:1:t", "repeated"): 1}


def test_swarms_count_every_fault_by_kind(tmp_path: Path) -> None:
    names = ("resets", "closes", "silent", "refuses", "garbage", "vanishes", "wrong_packet", "nobody")
    with bad_servers() as ports:
        text = "from loadtest.users import Plan, SwarmUser\n" + "".join(
            f"""
class {name.title().replace("_", "")}(SwarmUser):
    fixed_count = 1
    plan = Plan(port={ports[name]}, publishers=20, connect_timeout_s=1, drain_timeout_s=0.5)
"""
            for name in names
        )
        (tmp_path / "bad.py").write_text(text)
        run = run_locust(
            tmp_path / "bad.py", tmp_path, "-u", str(len(names)), "-r", str(len(names)), seconds=3
        )
    for name in names:
        row, error = ("connect", "refused: nobody") if name == "nobody" else WAYS[name][:2]
        assert found(run, row, error), (name, run.failures)
    # Of each swarm all 20, each once or more.
    assert run.failed("connect") + run.failed("disconnect") >= 20 * len(names)
    assert run.code == 1


def test_a_swarm_whose_process_is_killed_fails_the_run(tmp_path: Path) -> None:
    """No message is lost as far as anybody knows; but nobody knows what the swarm had to say."""
    (tmp_path / "killed.py").write_text(
        dedent("""
        import gevent, os, signal
        from locust import events
        from loadtest.users import Plan, SwarmUser

        class Swarm(SwarmUser):
            plan = Plan(publishers=5, subscribers=1, rate_per_s=100)

        def kill():
            pids = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()
            os.kill(int(pids[0]), signal.SIGKILL)

        @events.spawning_complete.add_listener
        def kill_later(**_):
            gevent.spawn_later(2, kill)
        """)
    )
    with running_sink(relay=True) as sink:
        words = ["-u", "1", "-H", f"127.0.0.1:{sink.port}", "--lost-max", "0"]
        run = run_locust(tmp_path / "killed.py", tmp_path, *words, seconds=4)
    assert run.failures == {("connect", "a swarm's process ended with -9"): 1}
    assert run.code == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plan = Plan(publishers=5, rate_per_s=-1)", "rate_per_s is -1"),
        ("plan = Plan(publishers=5, rate_per_s=10**9)", "rate_per_s is 1000000000"),
        ("plan = Plan(rate_per_s=5, idle=1)", "a rate needs publishers"),
        ("plan = Plan(idle=10**7)", "raise it"),
        ("pass", "Swarm has no plan"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_before_the_run(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "bad.py").write_text(
        f"from loadtest.users import Plan, SwarmUser\nclass Swarm(SwarmUser):\n    {text}\n"
    )
    done = run_locust(tmp_path / "bad.py", tmp_path, seconds=1)
    assert done.code not in (0, None)
    assert said in done.output
    assert done.count("connect") == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keepalive_s = 5", "did you mean keep_alive_s"),
        ("protocol = 4\n    stamps = 'property'", "needs protocol = 5"),
        ("keep_alive_s = 70000", "keep_alive_s must be"),
        ("transport = 'quic'", "transport is 'tcp' or 'websockets'"),
    ],
)
def test_a_device_that_cannot_be_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.py").write_text(
        "from locust import task\nfrom loadtest.users import MqttDeviceUser\n"
        f"class Device(MqttDeviceUser):\n    {text}\n    @task\n    def nothing(self):\n        pass\n"
    )
    run = run_locust(tmp_path / "bad.py", tmp_path, seconds=1)
    assert run.code not in (0, None)
    assert said in run.output
