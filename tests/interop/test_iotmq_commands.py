"""`iotmq pub`, `sub` and `rr` beside Mosquitto's clients, at Mosquitto's broker and at our gateway."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from unittest.mock import patch

import pytest
from certificates import make_certificate, make_root
from cutting_proxy import CuttingProxy
from eventually import eventually
from gateway_process import ROOT, GatewayProcess, free_port
from mosquitto_broker import PROGRAM, MosquittoBroker

from iotmq.commands import cli
from iotmq.config.setting_text import toml_value

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        PROGRAM is None or shutil.which("mosquitto_pub") is None,
        reason="Mosquitto and its clients are not installed (tools/setup.sh dev)",
    ),
]

IOTMQ = [sys.executable, "-m", "iotmq"]
VERSIONS = ("31", "311", "5")
# What a subscriber publishes to itself, from the outside, to know that its subscription is there.
_HERE = "are you there"


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoBroker]:
    with MosquittoBroker(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker


@pytest.fixture(params=["mosquitto", "iotmq"])
def port(request: pytest.FixtureRequest) -> int:
    """Of a broker, ours or the other."""
    if request.param == "mosquitto":
        broker: MosquittoBroker = request.getfixturevalue("mosquitto")
        return broker.port
    gateway: GatewayProcess = request.getfixturevalue("gateway")
    return gateway.mqtt_port


def run(*words: str, data: bytes = b"", expected: int = 0) -> bytes:
    """A command of ours, in this process; its output."""
    with (
        TemporaryFile() as given,
        TemporaryFile() as output,
        TemporaryFile() as errors,
        ExitStack() as streams,
    ):
        given.write(data)
        given.seek(0)
        for name, file in (("stdin", given), ("stdout", output), ("stderr", errors)):
            stream = io.TextIOWrapper(file, "utf-8", write_through=True)
            streams.callback(stream.detach)
            streams.enter_context(patch.object(sys, name, stream))
        code = cli.main(words)
        for file in (output, errors):
            file.seek(0)
        assert code == expected, errors.read().decode()
        return output.read()


def run_theirs(*words: str, data: bytes | None = None) -> None:
    done = subprocess.run(list(words), input=data, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


class Listener:
    """A subscriber that runs until it is stopped, and what it wrote."""

    def __init__(self, output: Path, *command: str) -> None:
        self._output = output
        self._errors = output.with_suffix(".err")
        with output.open("wb") as file, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                list(command), stdout=file, stderr=errors, cwd=ROOT, env={**os.environ, "LC_ALL": "C.UTF-8"}
            )

    def lines(self) -> list[str]:
        return [line for line in self._output.read_text().splitlines() if _HERE not in line]

    def is_there(self, ask: Callable[[], None]) -> bool:
        """Whether it hears what `ask` publishes."""
        assert self.process.poll() is None, self._errors.read_text()
        ask()
        return _HERE in self._output.read_text()

    def wait_for(self, count: int) -> list[str]:
        eventually(lambda: len(self.lines()) >= count, f"{count} lines", within_s=30)
        return self.lines()


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Callable[..., Listener]]:
    """Start a subscriber with a topic to ask it at; those still running at the end are killed."""
    running: list[Listener] = []

    def start(port: int, *command: str, topic: str) -> Listener:
        listener = Listener(tmp_path / f"out{len(running)}", *command, "-p", str(port), "-t", topic)
        running.append(listener)
        ask = ["mosquitto_pub", "-p", str(port), "-q", "1", "-t", topic.replace("#", _HERE), "-m", _HERE]
        eventually(lambda: listener.is_there(lambda: run_theirs(*ask)), "subscribed", within_s=30, step_s=0.2)
        return listener

    yield start
    for each in running:
        each.process.kill()
        each.process.wait()


# Both ways, at both brokers ---------------------------------------------------------------------------


def test_mosquitto_sub_hears_pub(port: int, listen: Callable[..., Listener]) -> None:
    theirs = listen(port, "mosquitto_sub", "-V", "5", "-q", "2", "-F", "%t %q %p", topic="pub/#")
    expected = []
    for version, qos in (("31", 0), ("311", 1), ("311", 2), ("5", 0), ("5", 1), ("5", 2)):
        topic = f"pub/{version}/{qos}"
        run("pub", "-p", str(port), "-V", version, "-q", str(qos), "-t", topic, "-m", "m\u00e4ssage")
        expected.append(f"{topic} {qos} m\u00e4ssage")
    # What has another quality of service may come earlier.
    assert sorted(theirs.wait_for(len(expected))) == sorted(expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_sub_hears_mosquitto_pub(port: int, listen: Callable[..., Listener], version: str) -> None:
    topic = f"sub/{version}/#"
    ours = listen(port, *IOTMQ, "sub", "-V", version, "-q", "2", "-F", "%t %q %l %p", topic=topic)
    for qos in ("0", "1", "2"):
        run_theirs("mosquitto_pub", "-p", str(port), "-q", qos, "-t", f"sub/{version}/{qos}", "-m", "\u00e4")
    assert ours.wait_for(3) == [f"sub/{version}/{qos} {qos} 2 \u00e4" for qos in (0, 1, 2)]


@pytest.mark.parametrize("qos", ["0", "2"])
def test_lines_of_standard_input_in_order(port: int, listen: Callable[..., Listener], qos: str) -> None:
    """Past the receive maximum of both servers, and the last line has no end."""
    lines = [f"line {number}" for number in range(3_000)]
    topic = f"lines/{qos}"
    ours = listen(port, *IOTMQ, "sub", "-q", "2", topic=topic)
    run("pub", "-p", str(port), "-q", qos, "-t", topic, "-l", data="\n".join(lines).encode())
    assert ours.wait_for(len(lines)) == lines


def test_a_file_all_of_the_input_and_an_empty_message(
    port: int, listen: Callable[..., Listener], tmp_path: Path
) -> None:
    content = tmp_path / "content"
    content.write_bytes(b"x\n" * 100_000)
    ours = listen(port, *IOTMQ, "sub", "-q", "1", "-F", "%t %l", topic="kinds/#")
    words = ("pub", "-p", str(port), "-q", "1")
    run(*words, "-t", "kinds/file", "-f", str(content))
    run(*words, "-t", "kinds/input", "-s", data=b"all\nof it\n")
    run(*words, "-t", "kinds/empty", "-n")
    run(*words, "-t", "kinds/often", "-m", "x", "--repeat", "3", "--repeat-delay", "0.01")
    assert (
        ours.wait_for(6) == ["kinds/file 200000", "kinds/input 10", "kinds/empty 0"] + ["kinds/often 1"] * 3
    )


def test_retained_messages(port: int) -> None:
    at = ("-p", str(port))
    run("pub", *at, "-t", "kept/a", "-m", "1", "-r", "-q", "1")
    run("pub", *at, "-t", "kept/b", "-m", "2", "-r", "-q", "1")
    sub = ("sub", *at, "-t", "kept/#", "-W", "20")
    assert sorted(run(*sub, "-C", "2", "-v").split(b"\n")) == [b"", b"kept/a 1", b"kept/b 2"]
    assert run(*sub, "-C", "1", "-T", "kept/a", "-F", "%r %p") == b"1 2\n"
    # None but retained ones; and the first other one ends it.
    assert run("sub", *at, "-t", "kept/#", "-W", "0.5", "-R", expected=27) == b""
    run(*sub, "-C", "2", "--remove-retained")
    left = ("sub", *at, "-t", "kept/#", "-W", "0.5")
    eventually(lambda: run(*left, expected=27) == b"", "the broker has deleted them")


def test_retained_only_ends_with_the_first_other_message(port: int) -> None:
    run("pub", "-p", str(port), "-t", "only/a", "-m", "1", "-r", "-q", "1")
    words = ("sub", "-p", str(port), "-t", "only/#", "--retained-only", "-W", "30")
    with subprocess.Popen([*IOTMQ, *words], stdout=subprocess.PIPE, cwd=ROOT) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"1\n"
        run_theirs("mosquitto_pub", "-p", str(port), "-t", "only/b", "-m", "2")
        assert ours.wait(30) == 0
        assert ours.stdout.read() == b""


def test_the_will_of_a_killed_and_of_a_stopped_subscriber(port: int, listen: Callable[..., Listener]) -> None:
    watcher = listen(port, *IOTMQ, "sub", "-v", "-q", "1", topic="will/#")
    for name, number in (("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)):
        will = ("--will-topic", f"will/{name}", "--will-payload", "gone", "--will-qos", "1")
        doomed = listen(port, *IOTMQ, "sub", *will, topic=f"nothing/{name}")
        doomed.process.send_signal(number)
        assert doomed.process.wait(20) == (130 if number == signal.SIGTERM else -9)
    assert watcher.wait_for(1) == ["will/killed gone"]


def test_properties_both_ways(port: int, listen: Callable[..., Listener]) -> None:
    letters = "%t %p %q %C %D %F %R %P"
    expected = "props/x hi 1 text/plain c17 1 props/answer site:north site:south"
    theirs = listen(port, "mosquitto_sub", "-V", "5", "-q", "1", "-F", letters, topic="props/#")
    numbered = ("-D", "subscribe", "subscription-identifier", "9")
    ours = listen(port, *IOTMQ, "sub", "-q", "1", "-F", letters + " %S", *numbered, topic="props/#")
    as_json = listen(port, *IOTMQ, "sub", "-q", "1", "-F", "%j", topic="props/#")
    words = [
        "-p", str(port), "-t", "props/x", "-m", "hi", "-q", "1", "-V", "5",
        "-D", "publish", "content-type", "text/plain",
        "-D", "publish", "correlation-data", "c17",
        "-D", "publish", "message-expiry-interval", "3600",
        "-D", "publish", "payload-format-indicator", "1",
        "-D", "publish", "response-topic", "props/answer",
        "-D", "publish", "user-property", "site", "north",
        "-D", "publish", "user-property", "site", "south",
    ]  # fmt: skip
    run("pub", *words)
    run_theirs("mosquitto_pub", *words)
    assert theirs.wait_for(2) == [expected] * 2
    assert ours.wait_for(2) == [expected + " 9"] * 2
    for line in as_json.wait_for(2):
        found = json.loads(line)
        assert (found["topic"], found["payload"], found["qos"]) == ("props/x", "hi", 1)
        assert found["properties"]["content-type"] == "text/plain"
        assert found["properties"]["user-properties"] == [{"site": "north"}, {"site": "south"}]
        assert 3_590 <= found["properties"]["message-expiry-interval"] <= 3_600


@pytest.mark.parametrize("version", ["311", "5"])
def test_a_kept_session_goes_on_where_it_was(port: int, version: str) -> None:
    client = ("sub", "-p", str(port), "-V", version, "-c", "-i", f"kept-{version}")
    words = (*client, "-t", f"session/{version}")
    run(*words, "-q", "1", "-E")
    run("pub", "-p", str(port), "-q", "1", "-t", f"session/{version}", "-l", data=b"0\n1\n2\n")
    # One is written and acknowledged, the others stay.
    assert run(*words, "-q", "1", "-C", "1", "-W", "20") == b"0\n"
    assert run(*words, "-q", "1", "-C", "2", "-W", "20") == b"1\n2\n"
    run(*client, "-U", f"session/{version}")
    run("pub", "-p", str(port), "-q", "1", "-t", f"session/{version}", "-m", "late")
    assert run(*client, "-t", "other", "-W", "0.5", expected=27) == b""


@pytest.mark.parametrize("version", ["311", "5"])
def test_a_publisher_whose_connection_is_cut_again_and_again(
    port: int, listen: Callable[..., Listener], version: str
) -> None:
    """With QoS 2 and a session that is kept meanwhile, each line comes once."""
    lines = [f"line {number}" for number in range(400)]
    topic = f"cut/{version}"
    theirs = listen(port, "mosquitto_sub", "-V", "311", "-q", "2", topic=topic)
    keep = ("-c", "-i", "cut") if version == "311" else ()
    with CuttingProxy(port, cuts=3, cut_bytes=(500, 3_000)) as proxy:
        words = ("pub", "-p", str(proxy.port), "-V", version, "-q", "2", "-t", topic, "-l", "--quiet")
        run(*words, *keep, data="\n".join(lines).encode())
        assert proxy.cuts == 3
    run_theirs("mosquitto_pub", "-p", str(port), "-q", "2", "-t", topic, "-m", "end")
    assert theirs.wait_for(len(lines) + 1) == [*lines, "end"]


@pytest.mark.parametrize("version", ["311", "5"])
def test_a_subscriber_whose_connection_is_cut_writes_each_message_once(port: int, version: str) -> None:
    """With QoS 2, and a session that the server keeps meanwhile."""
    topic = f"again/{version}"
    lines = [b"%d" % number for number in range(200)]
    with CuttingProxy(port, cuts=3, cut_bytes=(300, 1_500)) as proxy:
        words = ("-V", version, "-q", "2", "-t", topic, "-W", "60", "-c", "-i", f"again-{version}")
        run("sub", "-p", str(port), *words, "-E")
        run("pub", "-p", str(port), "-q", "2", "-t", topic, "-l", data=b"\n".join(lines))
        done = subprocess.run(
            [*IOTMQ, "sub", "-p", str(proxy.port), *words, "-C", str(len(lines))],
            capture_output=True, cwd=ROOT, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr.count(b"connecting again") == proxy.cuts == 3
    assert done.stdout.split() == lines


# Requests ---------------------------------------------------------------------------------------------


def test_a_request_and_its_answer_with_mqtt_5(port: int, listen: Callable[..., Listener]) -> None:
    responder = listen(port, "mosquitto_sub", "-V", "5", "-F", "%R %D %p", topic="ask/5")
    words = ("rr", "-p", str(port), "-t", "ask/5", "-m", "how much", "-W", "30")
    with subprocess.Popen([*IOTMQ, *words], stdout=subprocess.PIPE, cwd=ROOT) as asking:
        (line,) = responder.wait_for(1)
        answer_topic, correlation, rest = line.split(" ", 2)
        assert rest == "how much"
        say = (
            "mosquitto_pub",
            "-p",
            str(port),
            "-V",
            "5",
            "-t",
            answer_topic,
            "-D",
            "publish",
            "correlation-data",
        )
        run_theirs(*say, "of another", "-m", "wrong")
        run_theirs(*say, correlation, "-m", "42")
        output, _ = asking.communicate(timeout=30)
    assert (asking.returncode, output) == (0, b"42\n")


def test_a_request_and_its_answer_with_mqtt_3_1_1(port: int, listen: Callable[..., Listener]) -> None:
    responder = listen(port, *IOTMQ, "sub", "-V", "311", "-v", topic="ask/311/#")
    with subprocess.Popen(
        [
            *IOTMQ, "rr", "-p", str(port), "-V", "311", "-t", "ask/311/{reply}", "-e", "answer/{reply}",
            "-m", "how much", "-W", "30", "-v",
        ],
        stdout=subprocess.PIPE, cwd=ROOT,
    ) as asking:  # fmt: skip
        (line,) = responder.wait_for(1)
        token = line.split(" ")[0].rpartition("/")[2]
        run_theirs("mosquitto_pub", "-p", str(port), "-t", "answer/other", "-m", "wrong")
        run_theirs("mosquitto_pub", "-p", str(port), "-t", f"answer/{token}", "-m", "42")
        output, _ = asking.communicate(timeout=30)
    assert (asking.returncode, output) == (0, f"answer/{token} 42\n".encode())


def test_a_request_that_nobody_answers(port: int) -> None:
    assert run("rr", "-p", str(port), "-t", "nobody", "-n", "-W", "0.5", expected=27) == b""


# Transports of Mosquitto ------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["mqtts", "ws", "wss", "unix"])
def test_every_transport(mosquitto: MosquittoBroker, transport: str) -> None:
    trust = ("--cafile", mosquitto.root.certificate)
    words = {
        "mqtts": ("-p", str(mosquitto.tls_port), *trust),
        "ws": ("-L", f"ws://127.0.0.1:{mosquitto.websocket_port}/mqtt"),
        "wss": ("-L", f"wss://localhost:{mosquitto.secure_websocket_port}/mqtt", *trust),
        "unix": ("--unix", str(mosquitto.socket_path)),
    }[transport]
    large = b"x" * 50_000
    run("pub", *words, "-t", f"via/{transport}", "-r", "-q", "2", "-s", data=large)
    assert run("sub", *words, "-t", f"via/{transport}", "-q", "2", "-C", "1", "-W", "30") == large + b"\n"


def test_a_server_nobody_vouches_for_is_refused_with_what_to_do(mosquitto: MosquittoBroker) -> None:
    words = ("pub", "-p", str(mosquitto.tls_port), "-t", "t", "-m", "x")
    done = subprocess.run([*IOTMQ, *words, "--tls"], capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 1
    assert b"--cafile" in done.stderr
    run(*words, "--insecure")


def test_accounts_of_mosquitto(tmp_path: Path) -> None:
    accounts = tmp_path / "accounts"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(accounts), "ann", "s\u00e4cret"], check=True)
    secret = tmp_path / "secret"
    secret.write_text("s\u00e4cret\n")
    with MosquittoBroker(tmp_path, "allow_anonymous false", f"password_file {accounts}") as broker:
        words = ("pub", "-p", str(broker.port), "-t", "t", "-m", "x", "-q", "1", "-u", "ann")
        run(*words, "--password-file", str(secret))
        run(*words, "-P", "s\u00e4cret")
        run("pub", "-L", f"mqtt://ann:s%C3%A4cret@127.0.0.1:{broker.port}/t", "-m", "x", "-q", "1")
        for version in ("311", "5"):
            wrong = [*IOTMQ, *words, "-P", "wrong", "-V", version]
            done = subprocess.run(wrong, capture_output=True, cwd=ROOT, timeout=60, check=False)
            assert done.returncode == 1
            assert b"-u and -P" in done.stderr


# Transports of our gateway ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, ...]]]:
    """What to say to reach a gateway, by transport; ann has to prove her password there."""
    directory = tmp_path_factory.mktemp("listeners")
    (directory / "secret").write_text("s\u00e4cret\n")
    users = str(directory / "users")
    run("users", "add", "ann", "--password-file", str(directory / "secret"), "--file", users)
    root = make_root(directory)
    server = make_certificate(directory, root)
    files = [{"certificate_file": server.certificate, "key_file": server.key}]
    ports = {name: free_port() for name in ("tls", "ws", "wss")}
    listeners: list[dict[str, Any]] = [
        {"name": name, "transport": name, "listen_port": number} for name, number in ports.items()
    ]
    for listener in listeners:
        if listener["name"] != "ws":
            listener["certificates"] = files
    socket_path = str(directory / "mqtt.sock")
    listeners.append({"name": "unix", "transport": "unix", "socket_path": socket_path})
    settings = (
        f"mqtt.listeners={toml_value(listeners)}",
        f"mqtt.authentication.users_file={users}",
        # The commands are tried with all kinds of topics.
        "mqtt.permissions.without_rules=everything",
    )
    trust = ("--cafile", root.certificate)
    account = ("-u", "ann", "--password-file", str(directory / "secret"))
    with GatewayProcess(directory / "data", *settings) as gateway:
        yield {
            "tcp": ("-p", str(gateway.mqtt_port), *account),
            "tls": ("-p", str(ports["tls"]), *trust, *account),
            "ws": ("-L", f"ws://127.0.0.1:{ports['ws']}/mqtt", *account),
            "wss": ("-L", f"wss://localhost:{ports['wss']}/mqtt", *trust, *account),
            "unix": ("--unix", socket_path, *account),
        }


@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "wss", "unix"])
def test_every_transport_of_the_gateway_with_scram(
    own_listeners: dict[str, tuple[str, ...]], transport: str
) -> None:
    words = (*own_listeners[transport], "--auth-method", "SCRAM-SHA-256")
    payload = b"x" * 100_000
    run("pub", *words, "-t", f"via/{transport}", "-r", "-q", "2", "-s", data=payload)
    assert run("sub", *words, "-t", f"via/{transport}", "-q", "2", "-C", "1", "-W", "30") == payload + b"\n"


@pytest.mark.parametrize("method", [(), ("--auth-method", "SCRAM-SHA-256")])
def test_a_wrong_password_is_refused(
    own_listeners: dict[str, tuple[str, ...]], method: tuple[str, ...]
) -> None:
    where = own_listeners["tcp"][:2]
    run("pub", *own_listeners["tcp"], *method, "-t", "t", "-m", "x", "-q", "1")
    done = subprocess.run(
        [*IOTMQ, "pub", *where, *method, "-u", "ann", "-P", "wrong", "-t", "t", "-m", "x"],
        capture_output=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert b"-u and -P" in done.stderr


def test_a_reader_who_has_seen_enough_ends_it(
    gateway: GatewayProcess, listen: Callable[..., Listener]
) -> None:
    """As `iotmq sub | head -1` does: no error, and no will."""
    port = gateway.mqtt_port
    watcher = listen(port, *IOTMQ, "sub", "-v", topic="enough/will/#")
    run("pub", "-p", str(port), "-t", "enough/first", "-m", "1", "-r", "-q", "1")
    words = ("sub", "-p", str(port), "-t", "enough/+", "--will-topic", "enough/will/x")
    with subprocess.Popen([*IOTMQ, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as ours:
        assert ours.stdout is not None
        assert ours.stderr is not None
        assert ours.stdout.readline() == b"1\n"
        ours.stdout.close()
        run("pub", "-p", str(port), "-t", "enough/second", "-m", "2", "-q", "1")
        assert ours.wait(20) == 0
        assert ours.stderr.read() == b""
    run_theirs("mosquitto_pub", "-p", str(port), "-t", "enough/will/end", "-m", "end", "-q", "1")
    assert watcher.wait_for(1) == ["enough/will/end end"]
