"""mosquitto_pub and mosquitto_sub: what people type to try a broker out."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from log_reader import read_topic

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        shutil.which("mosquitto_pub") is None or shutil.which("mosquitto_sub") is None,
        reason="the Mosquitto clients are not installed (tools/setup.sh dev)",
    ),
]


class Subscriber:
    """A mosquitto_sub that runs until it is stopped, and the lines it wrote."""

    def __init__(self, gateway: GatewayProcess, output: Path, *words: str) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(gateway.mqtt_port), "-V", "311", *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )

    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    def wait_for(self, count: int, *, within_s: float = 20) -> list[str]:
        eventually(lambda: len(self.lines()) >= count, f"{count} lines", within_s=within_s)
        return self.lines()

    def wait_for_end(self) -> int:
        return self._process.wait(20)

    def kill(self) -> None:
        """kill -9: the broker has to notice by itself."""
        self._process.kill()
        self._process.wait()


@pytest.fixture
def started() -> Iterator[list[Subscriber]]:
    """Those still running at the end are killed."""
    running: list[Subscriber] = []
    yield running
    for each in running:
        each.kill()


def subscribe(gateway: GatewayProcess, started: list[Subscriber], output: Path, *words: str) -> Subscriber:
    """Returns once the gateway has the subscription."""
    before = gateway.metric("iotmq_mqtt_subscriptions")
    subscriber = Subscriber(gateway, output, *words)
    started.append(subscriber)
    eventually(lambda: gateway.metric("iotmq_mqtt_subscriptions") > before, "subscribed")
    return subscriber


def publish(gateway: GatewayProcess, *words: str, lines: str | None = None) -> None:
    done = subprocess.run(
        ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(gateway.mqtt_port), "-V", "311", *words],
        input=lines, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def stored(gateway: GatewayProcess, mqtt_topic: str) -> list[str]:
    return [
        message.body.decode()
        for messages in read_topic(gateway.registry, "mqtt").values()
        for message in messages
        if message.properties["MQTT_TOPIC"] == mqtt_topic
    ]


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_one_message(gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path, qos: str) -> None:
    subscriber = subscribe(gateway, started, tmp_path / "out", "-t", f"one/{qos}", "-q", qos, "-C", "1", "-v")
    publish(gateway, "-t", f"one/{qos}", "-m", "hello world", "-q", qos)
    assert subscriber.wait_for(1) == [f"one/{qos} hello world"]
    assert subscriber.wait_for_end() == 0
    eventually(lambda: stored(gateway, f"one/{qos}") == ["hello world"], "in the log once")


@pytest.mark.parametrize("version", ["311", "5"])
def test_a_shared_subscription_gives_each_line_to_one_member(
    gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path, version: str
) -> None:
    words = ("-t", f"$share/g/shared{version}/#", "-q", "1", "-V", version)
    members = [subscribe(gateway, started, tmp_path / f"out{number}", *words) for number in range(3)]
    lines = [f"line {number}" for number in range(300)]
    publish(gateway, "-t", f"shared{version}/x", "-q", "1", "-l", lines="\n".join(lines[:150]) + "\n")
    eventually(lambda: sum(len(member.lines()) for member in members) == 150, "each at one member")
    assert all(len(member.lines()) > 25 for member in members)
    members[0].kill()
    publish(gateway, "-t", f"shared{version}/x", "-q", "1", "-l", lines="\n".join(lines[150:]) + "\n")

    def got() -> set[str]:
        return {line for member in members for line in member.lines()}

    eventually(lambda: got() == set(lines), "every line at some member")


def test_ten_thousand_lines_in_one_stream(
    gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path
) -> None:
    """QoS 1 with -l: every line is stored and delivered, in order."""
    lines = [f"line {number}" for number in range(10_000)]
    subscriber = subscribe(gateway, started, tmp_path / "out", "-t", "stream/+", "-q", "1")
    publish(gateway, "-t", "stream/lines", "-q", "1", "-l", lines="\n".join(lines) + "\n")
    assert subscriber.wait_for(len(lines), within_s=30) == lines
    assert stored(gateway, "stream/lines") == lines


def test_wildcards_and_several_filters(
    gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path
) -> None:
    words = ["-t", "house/+/temp", "-t", "garden/#", "-T", "garden/shed", "-v"]
    subscriber = subscribe(gateway, started, tmp_path / "out", *words)
    for topic in ("house/kitchen/temp", "house/kitchen/light", "garden", "garden/tree/3", "end"):
        publish(gateway, "-t", topic, "-m", topic, "-q", "1")
    publish(gateway, "-t", "garden/end", "-m", "end", "-q", "1")
    assert subscriber.wait_for(4) == [
        "house/kitchen/temp house/kitchen/temp", "garden garden", "garden/tree/3 garden/tree/3",
        "garden/end end",
    ]  # fmt: skip


def test_a_file_and_an_empty_message(
    gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path
) -> None:
    content = tmp_path / "content"
    content.write_text("x" * 200_000)
    subscriber = subscribe(gateway, started, tmp_path / "out", "-t", "file/#", "-q", "1", "-F", "%t %l")
    publish(gateway, "-t", "file/large", "-f", str(content), "-q", "1")
    publish(gateway, "-t", "file/empty", "-n", "-q", "1")
    assert subscriber.wait_for(2) == ["file/large 200000", "file/empty 0"]


def test_the_will_of_a_killed_client(
    gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path
) -> None:
    watcher = subscribe(gateway, started, tmp_path / "out", "-t", "will/#", "-v", "-q", "1")
    will = ["--will-topic", "will/sub", "--will-payload", "lost", "--will-qos", "1"]
    doomed = subscribe(gateway, started, tmp_path / "doomed", "-t", "nothing", *will)
    doomed.kill()
    assert watcher.wait_for(1) == ["will/sub lost"]


def test_a_user_name_and_password_are_let_through(gateway: GatewayProcess) -> None:
    """There is no access control yet; clients that send credentials are served like the others."""
    publish(gateway, "-t", "login", "-m", "x", "-q", "1", "-u", "someone", "-P", "secret")
    assert stored(gateway, "login") == ["x"]


FIVE = ("-V", "mqttv5")


def test_mqtt_5_properties(gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path) -> None:
    subscriber = subscribe(
        gateway, started, tmp_path / "out", *FIVE, "-t", "five/#", "-q", "1", "-C", "1",
        "-D", "subscribe", "subscription-identifier", "9",
        "-F", "%t %p %q %C %D %E %F %R %S %P",
    )  # fmt: skip
    publish(
        gateway, *FIVE, "-t", "five/a", "-m", "hello", "-q", "1",
        "-D", "publish", "content-type", "text/plain",
        "-D", "publish", "correlation-data", "c17",
        "-D", "publish", "message-expiry-interval", "3600",
        "-D", "publish", "payload-format-indicator", "1",
        "-D", "publish", "response-topic", "five/answers",
        "-D", "publish", "user-property", "site", "north",
    )  # fmt: skip
    (line,) = subscriber.wait_for(1)
    topic, payload, qos, content_type, correlation, expiry, *rest = line.split(" ")
    assert [topic, payload, qos, content_type, correlation] == ["five/a", "hello", "1", "text/plain", "c17"]
    assert 3_590 <= int(expiry) <= 3_600
    assert rest == ["1", "five/answers", "9", "site:north"]


def test_mqtt_5_options_of_subscriptions(
    gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path
) -> None:
    publish(gateway, *FIVE, "-t", "flags", "-m", "kept", "-r", "-q", "1")
    words = (*FIVE, "-t", "flags", "-F", "%r %p")
    kept = subscribe(gateway, started, tmp_path / "kept", *words, "--retain-as-published")
    plain = subscribe(gateway, started, tmp_path / "plain", *words)
    publish(gateway, *FIVE, "-t", "flags", "-m", "live", "-r", "-q", "1")
    assert kept.wait_for(2) == ["1 kept", "1 live"]
    assert plain.wait_for(2) == ["1 kept", "0 live"]


@pytest.mark.skipif(shutil.which("mosquitto_rr") is None, reason="mosquitto_rr is not installed")
def test_mqtt_5_request_and_response(
    gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path
) -> None:
    responder = subscribe(gateway, started, tmp_path / "out", *FIVE, "-t", "ask", "-F", "%R %D", "-C", "1")
    with subprocess.Popen(
        [
            "mosquitto_rr", "-h", "127.0.0.1", "-p", str(gateway.mqtt_port), *FIVE, "-W", "20",
            "-t", "ask", "-e", "answer/here", "-m", "how much", "-D", "publish", "correlation-data", "c1",
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as asking:  # fmt: skip
        (line,) = responder.wait_for(1)
        response_topic, correlation = line.split(" ")
        assert (response_topic, correlation) == ("answer/here", "c1")
        publish(
            gateway, *FIVE, "-t", response_topic, "-m", "42", "-D", "publish", "correlation-data", correlation
        )
        answer, _ = asking.communicate(timeout=30)
    assert answer.split() == ["42"]


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mqtt_3_1(gateway: GatewayProcess, started: list[Subscriber], tmp_path: Path, qos: str) -> None:
    words = ("-V", "mqttv31", "-t", f"old/{qos}", "-q", qos)
    subscriber = subscribe(gateway, started, tmp_path / "out", *words, "-C", "1")
    publish(gateway, *words, "-m", "still here")
    assert subscriber.wait_for(1) == ["still here"]
