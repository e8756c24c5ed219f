"""The same behaviour from every foreign MQTT client there is, over one front end and over two.

Over two, one client is connected to the one and the other to the other: sessions, retained messages and wills
are the brokers', so nobody can tell. What a client can do beside this is in a test file of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from eventually import eventually
from foreign_mqtt import Clients, CommandLine, Library, Message, Tool
from gateway_process import ROOT, GatewayProcess
from mqtt_roles import mqtt_roles
from piped_client import PipedClient

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
MODULES = ROOT / "build" / "interop" / "node" / "node_modules"

SCRIPTS = {
    "paho": [sys.executable, str(HERE / "paho_client.py")],
    "aiomqtt": [sys.executable, str(HERE / "asyncio_clients.py"), "aiomqtt"],
    "amqtt": [sys.executable, str(HERE / "asyncio_clients.py"), "amqtt"],
    "MQTT.js": ["node", str(HERE / "node" / "mqtt_js_client.js")],
}
SCRIPTS |= {f"{name}-websocket": [*SCRIPTS[name], "websocket"] for name in ("paho", "MQTT.js")}


def read_mosquitto(line: str) -> Message:
    topic, payload, qos, retained = line.split(" ")
    return Message(topic, payload, int(qos), retained == "1")


def read_paho_c(line: str) -> Message | None:
    """The payload alone, or behind the topic where the filter has wildcards; and what it is doing."""
    if line.startswith(("URL is", "Subscribing to", "Connecting", "Connected")):
        return None
    return Message(None, line.rpartition("\t")[2], None, None)


def mosquitto(version: str) -> Tool:
    kept = ("-c",) if version == "311" else ("-c", "-x", "600")
    will = ("--will-topic", "--will-payload", "--will-qos")
    line = ("-F", "%t %p %q %r")
    return Tool("mosquitto_pub", "mosquitto_sub", version, will, kept, line, read_mosquitto)


def paho_c(name: str, version: str) -> Tool:
    """The samples ask for a clean session, always, and print payloads."""
    will = ("--will-topic", "--will-payload", "--will-qos")
    return Tool(f"{name}_pub", f"{name}_sub", version, will, None, (), read_paho_c)


TOOLS = {
    "mosquitto 3.1.1": mosquitto("311"),
    "mosquitto 5": mosquitto("5"),
    # One library below both: each of them, and each version.
    "paho_c 3.1.1": paho_c("paho_c", "311"),
    "paho_cs 5": paho_c("paho_cs", "5"),
}
KINDS = [*(f"{name} {version}" for name in SCRIPTS for version in ("3.1.1", "5")), *TOOLS]
KINDS.remove("amqtt 5")  # it has no MQTT 5
# What carries MQTT asks for no version.
KINDS.remove("paho-websocket 5")
KINDS.remove("MQTT.js-websocket 3.1.1")
LIBRARIES = [kind for kind in KINDS if kind not in TOOLS]
KEEPING = [kind for kind in KINDS if kind not in TOOLS or TOOLS[kind].kept_words is not None]


class Doors(NamedTuple):
    """Where the one client and the other connect."""

    one: int
    other: int


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, GatewayProcess]]:
    with mqtt_roles(tmp_path_factory.mktemp("site")) as roles:
        yield roles


def over(kinds: list[str]) -> list[Any]:
    """Each kind over one front end and over two.

    Commands, whose processes take long, and what differs in the transport alone, over two only.
    """
    return [
        pytest.param(kind, count, id=f"{kind} over {count}")
        for kind in kinds
        for count in (1, 2)
        if count == 2 or not (kind in TOOLS or "websocket" in kind)
    ]


@pytest.fixture
def doors(kind: str, fronts: int, site: dict[str, GatewayProcess]) -> Doors:
    names = ("one", "one" if fronts == 1 else "two")
    return Doors(*(site[name].ports["websocket" if "websocket" in kind else "mqtt"] for name in names))


@pytest.fixture(scope="module")
def pipes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], PipedClient]]:
    """A process per library, once it is asked for."""
    started: dict[str, PipedClient] = {}
    with ExitStack() as stack:

        def get(name: str) -> PipedClient:
            if name not in started:
                directory = tmp_path_factory.mktemp("client")
                environment = {**os.environ, "HOME": str(directory), "NODE_PATH": str(MODULES)}
                client = PipedClient(SCRIPTS[name], directory=directory, environment=environment)
                started[name] = stack.enter_context(client)
            return started[name]

        yield get


@pytest.fixture
def clients(
    kind: str, site: dict[str, GatewayProcess], pipes: Callable[[str], PipedClient], tmp_path: Path
) -> Iterator[Clients]:
    """Those of one kind; a test names them as it likes, and no two tests alike."""
    if kind not in TOOLS:
        name, _, version = kind.partition(" ")
        if name.startswith("MQTT.js") and not (shutil.which("node") and (MODULES / "mqtt").is_dir()):
            pytest.skip("MQTT.js is not installed (tools/setup.sh dev, with npm)")
        yield Library(pipes(name), 5 if version == "5" else 4)
        return
    tool = TOOLS[kind]
    if shutil.which(tool.subscribe) is None:
        pytest.skip(f"{tool.subscribe} is not installed (tools/setup.sh dev)")
    fronts = {front.ports["mqtt"]: front for front in (site["one"], site["two"])}

    def subscribed(port: int, start: Callable[[], None]) -> None:
        before = fronts[port].metric("iotmq_mqtt_subscriptions")
        start()
        eventually(lambda: fronts[port].metric("iotmq_mqtt_subscriptions") > before, "subscribed")

    commands = CommandLine(tool, tmp_path, subscribed)
    yield commands
    commands.close()


@pytest.fixture
def own(request: pytest.FixtureRequest) -> str:
    """A word for the topics and client ids of a test."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-60:]


def payloads(messages: list[Message]) -> list[str]:
    return [message.payload for message in messages]


@pytest.mark.parametrize(("kind", "fronts"), over(KINDS))
def test_every_qos(clients: Clients, doors: Doors, own: str) -> None:
    subscriber, publisher = f"{own}-s", f"{own}-p"
    clients.connect(subscriber, doors.one, subscriber)
    clients.subscribe(subscriber, f"{own}/+", 2)
    clients.connect(publisher, doors.other, publisher)
    for qos in (0, 1, 2):
        clients.publish(publisher, f"{own}/t", f"qos-{qos}", qos)
    found = clients.messages(subscriber, 3)
    assert payloads(found) == ["qos-0", "qos-1", "qos-2"]
    assert {message.topic for message in found} <= {None, f"{own}/t"}
    assert [message.qos for message in found] in ([0, 1, 2], [None] * 3)
    assert not any(message.is_retained for message in found)
    clients.disconnect(subscriber)
    clients.disconnect(publisher)


@pytest.mark.parametrize(("kind", "fronts"), over(KINDS))
def test_what_is_retained(clients: Clients, doors: Doors, own: str) -> None:
    publisher = f"{own}-p"
    clients.connect(publisher, doors.one, publisher)
    for qos in (0, 1, 2):
        clients.publish(publisher, f"{own}/{qos}", f"kept-{qos}", qos, is_retained=True)
    late = f"{own}-s"
    clients.connect(late, doors.other, late)
    clients.subscribe(late, f"{own}/#", 1)
    found = clients.messages(late, 3)
    assert sorted(payloads(found)) == ["kept-0", "kept-1", "kept-2"]
    assert {message.is_retained for message in found} in ({True}, {None})
    clients.disconnect(late)
    clients.disconnect(publisher)


@pytest.mark.parametrize(("kind", "fronts"), over(KINDS))
def test_the_will_of_a_client_that_is_lost(clients: Clients, doors: Doors, own: str) -> None:
    watcher, doomed = f"{own}-w", f"{own}-d"
    clients.connect(watcher, doors.one, watcher)
    clients.subscribe(watcher, f"{own}/will", 1)
    will = {"topic": f"{own}/will", "payload": "lost", "qos": 1, "retain": False}
    clients.connect(doomed, doors.other, doomed, will=will)
    # A command for subscriptions is connected when it has one.
    clients.subscribe(doomed, f"{own}/nothing", 0)
    clients.drop(doomed)
    assert payloads(clients.messages(watcher, 1)) == ["lost"]
    clients.disconnect(watcher)


@pytest.mark.parametrize(("kind", "fronts"), over(KEEPING))
def test_a_session_that_goes_on(clients: Clients, doors: Doors, own: str) -> None:
    kept, publisher = f"{own}-k", f"{own}-p"
    clients.connect(f"{kept}-1", doors.one, kept, clean=False)
    clients.subscribe(f"{kept}-1", f"{own}/#", 2)
    clients.disconnect(f"{kept}-1")
    clients.connect(publisher, doors.one, publisher)
    for qos in (1, 2):
        clients.publish(publisher, f"{own}/{qos}", f"while-away-{qos}", qos)
    clients.connect(f"{kept}-2", doors.other, kept, clean=False)
    assert payloads(clients.messages(f"{kept}-2", 2)) == ["while-away-1", "while-away-2"]
    clients.publish(publisher, f"{own}/1", "live", 1)
    assert payloads(clients.messages(f"{kept}-2", 3))[2:] == ["live"]
    clients.disconnect(f"{kept}-2")
    clients.disconnect(publisher)


@pytest.mark.parametrize(("kind", "fronts"), over(LIBRARIES))
def test_unsubscribing(clients: Clients, doors: Doors, own: str) -> None:
    subscriber, publisher = f"{own}-s", f"{own}-p"
    clients.connect(subscriber, doors.one, subscriber)
    clients.subscribe(subscriber, f"{own}/off", 1)
    clients.subscribe(subscriber, f"{own}/on", 1)
    clients.connect(publisher, doors.other, publisher)
    clients.publish(publisher, f"{own}/off", "1")
    clients.messages(subscriber, 1)
    clients.unsubscribe(subscriber, f"{own}/off")
    clients.publish(publisher, f"{own}/off", "2")
    clients.publish(publisher, f"{own}/on", "3")
    assert payloads(clients.messages(subscriber, 2)) == ["1", "3"]
    clients.disconnect(subscriber)
    clients.disconnect(publisher)


def test_takeover_over_libraries(
    site: dict[str, GatewayProcess], pipes: Callable[[str], PipedClient]
) -> None:
    """One client id, two libraries, two front ends: the session goes to the latter."""
    one, other = Library(pipes("paho"), 5), Library(pipes("aiomqtt"), 4)
    one.connect("alike-a", site["one"].ports["mqtt"], "alike-taken", clean=False)
    one.subscribe("alike-a", "alike/taken", 1)
    other.connect("alike-b", site["two"].ports["mqtt"], "alike-taken", clean=False)
    other.connect("alike-p", site["one"].ports["mqtt"], "alike-p")
    other.publish("alike-p", "alike/taken", "for the second")
    assert payloads(other.messages("alike-b", 1)) == ["for the second"]
    for name in ("alike-b", "alike-p"):
        other.disconnect(name)
