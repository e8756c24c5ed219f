"""Foreign clients at the limits of `mqtt.device_limits`: rates, connections, bans, and users' programs.

Each client comes from an address of its own, so that none uses up what is another one's.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import GatewayProcess, free_port

from iotmq.hooks import Client, Deny, Hooks, Message, Subscription
from iotmq.mqtt_front.access.scram import make_verifier
from iotmq.mqtt_front.access.users_file import write_users

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = [paho.MQTTv311, paho.MQTTv5]
WAIT_S = 30.0
BURST, PER_S = 20, 20
_addresses = itertools.count(2)


def new_address() -> str:
    return f"127.0.7.{next(_addresses)}"


class Peer:
    """A client of paho, and what it was told."""

    def __init__(self, version: int, client_id: str, user: str | None = None) -> None:
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=version,
            reconnect_on_failure=False,
        )
        self.connacks: list[int] = []
        self.granted: list[list[int]] = []
        self.got: list[bytes] = []
        self.told: list[int] = []
        self.ended: list[Any] = []
        self.client.on_connect = lambda _c, _d, _flags, code, _p: self.connacks.append(code.value)
        self.client.on_subscribe = lambda _c, _d, _id, codes, _p: self.granted.append(
            [each.value for each in codes]
        )
        self.client.on_message = lambda _c, _d, message: self.got.append(message.payload)
        self.client.on_publish = lambda _c, _d, _id, code, _p: self.told.append(code.value)
        self.client.on_disconnect = lambda _c, _d, _flags, code, _p: self.ended.append(code.value)
        if user is not None:
            self.client.username_pw_set(user, user[::-1])

    def dial(self, port: int, address: str = "") -> None:
        self.client.connect("127.0.0.1", port, bind_address=address or new_address())
        self.client.loop_start()

    def connect(self, port: int, address: str = "") -> int:
        """Return the code of the CONNACK."""
        self.dial(port, address)
        return eventually(lambda: self.connacks, "CONNACK", within_s=WAIT_S)[0]

    def is_turned_away(self, port: int, address: str = "") -> bool:
        """Whether the connection ends before there is a CONNACK."""
        self.dial(port, address)
        eventually(lambda: self.ended, "the end", within_s=WAIT_S)
        return not self.connacks

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        self.granted.clear()
        self.client.subscribe(list(filters))
        return eventually(lambda: self.granted, "SUBACK", within_s=WAIT_S)[0]

    def publish(self, topic: str, payload: bytes, count: int = 1, qos: int = 1) -> None:
        """Returns when all are acknowledged."""
        sent = [self.client.publish(topic, payload, qos=qos) for _ in range(count)]
        for each in sent:
            each.wait_for_publish(WAIT_S)

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


class Guard(Hooks):
    """A program that decides."""

    def before_connect(self, client: Client) -> Deny | None:
        return Deny("go away") if client.client_id.startswith("hooked-out") else None

    def before_subscribe(
        self, client: Client, subscriptions: Sequence[Subscription]
    ) -> Sequence[Deny | None]:
        return [Deny() if "hooked" in wanted.topic_filter else None for wanted in subscriptions]

    def before_publish(self, messages: Sequence[Message]) -> Sequence[Deny | None]:
        return [Deny() if message.topic == "hooked/publish" else None for message in messages]

    def before_deliver(self, message: Message) -> Deny | None:
        return Deny() if message.payload == b"hooked" else None


SETTINGS = """
[mqtt]
hooks = ["test_limited_clients:Guard"]

[mqtt.permissions]
without_rules = "everything"

[mqtt.authentication]
users_file = "{users}"
allow_anonymous = true

[mqtt.device_limits.user]
connections_max = 1

[mqtt.device_limits.address]
connections_max = 3

[[mqtt.device_limits.listeners]]
listener = "slow"
messages_in_per_s = {rate}
messages_in_burst = {burst}

[[mqtt.device_limits.listeners]]
listener = "slow-out"
messages_out_per_s = {rate}
messages_out_burst = {burst}

[[mqtt.device_limits.listeners]]
listener = "slow-bytes"
bytes_in_per_s = 20_000
bytes_in_burst = 20_000
bytes_out_per_s = 20_000
bytes_out_burst = 20_000

[[mqtt.device_limits.listeners]]
listener = "few"
connections_max = 2

[[mqtt.device_limits.listeners]]
listener = "rare"
connects_per_s = 1
connects_burst = 2
"""
LISTENERS = ("slow", "slow-out", "slow-bytes", "few", "rare")


class Site:
    def __init__(self, directory: Path) -> None:
        users = directory / "users"
        lines = [
            f"{name}:{make_verifier(name[::-1].encode(), iterations=4_096)}\n" for name in ("pump", "valve")
        ]
        write_users(users, "".join(lines).encode())
        text = SETTINGS.format(users=users, rate=PER_S, burst=BURST)
        self.ports = {name: free_port() for name in LISTENERS}
        for name, port in self.ports.items():
            text += f'\n[[mqtt.listeners]]\nname = "{name}"\ntransport = "tcp"\nlisten_port = {port}\n'
        config = directory / "gateway.toml"
        config.write_text(text)
        path = f"PYTHONPATH={Path(__file__).parent}:{ROOT / 'tests' / 'oracles'}"
        self.gateway = GatewayProcess(directory / "data", config=config, prefix=("env", path))

    def waits(self, limit: str) -> float:
        return self.number(f'iotmq_mqtt_limit_waits_total{{limit="{limit}"}}')

    def refused(self, limit: str) -> float:
        return self.number(f'iotmq_mqtt_limit_refused_total{{limit="{limit}"}}')

    def number(self, name: str) -> float:
        return self.gateway.metrics().get(name, 0.0)

    def bans(self, *words: str) -> None:
        command = [sys.executable, "-m", "iotmq", "bans", *words, "--registry", self.gateway.registry]
        subprocess.run(command, check=True, timeout=60, cwd=ROOT)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("limited"))
    with site.gateway:
        yield site


@pytest.mark.parametrize("version", VERSIONS)
def test_a_publisher_over_its_rate_is_slowed_down_and_loses_nothing(site: Site, version: int) -> None:
    watching, peer = Peer(version, ""), Peer(version, "")
    assert watching.connect(site.gateway.mqtt_port) == 0
    assert watching.subscribe((f"rate/{version}", 1)) == [1]
    assert peer.connect(site.ports["slow"]) == 0
    began_s = time.monotonic()
    peer.publish(f"rate/{version}", b"x", BURST + 2 * PER_S)
    assert time.monotonic() - began_s > 1.5
    eventually(lambda: len(watching.got) == BURST + 2 * PER_S, "all of them", within_s=WAIT_S)
    assert site.waits("listener.messages_in_per_s") > 0
    peer.end()
    watching.end()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_subscriber_over_its_rate_gets_qos_1_later_and_qos_0_in_part(
    site: Site, version: int, qos: int
) -> None:
    topic = f"out/{version}/{qos}"
    peer, writer = Peer(version, ""), Peer(version, "")
    assert peer.connect(site.ports["slow-out"]) == 0
    assert peer.subscribe((topic, qos)) == [qos]
    assert writer.connect(site.gateway.mqtt_port) == 0
    began_s = time.monotonic()
    writer.publish(topic, b"x", 5 * BURST)
    if qos:
        eventually(lambda: len(peer.got) == 5 * BURST, "all of them", within_s=WAIT_S)
        assert time.monotonic() - began_s > 1.5
    else:
        eventually(
            lambda: site.number('iotmq_mqtt_limit_dropped_total{scope="listener"}') > 0,
            "some are dropped",
            within_s=WAIT_S,
        )
        assert len(peer.got) < 5 * BURST
    assert site.waits("listener.messages_out_per_s") > 0
    peer.end()
    writer.end()


@pytest.mark.parametrize("version", VERSIONS)
def test_bytes_have_a_rate_both_ways(site: Site, version: int) -> None:
    peer = Peer(version, "")
    assert peer.connect(site.ports["slow-bytes"]) == 0
    assert peer.subscribe((f"bytes/{version}", 1)) == [1]
    began_s = time.monotonic()
    peer.publish(f"bytes/{version}", bytes(5_000), 12)
    assert time.monotonic() - began_s > 1.0
    eventually(lambda: len(peer.got) == 12, "all of them", within_s=WAIT_S)
    for limit in ("bytes_in_per_s", "bytes_out_per_s"):
        assert site.waits(f"listener.{limit}") > 0
    peer.end()


@pytest.mark.parametrize("version", VERSIONS)
def test_connections_have_limits_by_user_address_and_listener(site: Site, version: int) -> None:
    port = site.gateway.mqtt_port
    peer, other = Peer(version, "", "pump"), Peer(version, "", "pump")
    assert peer.connect(port) == 0
    assert other.connect(port) == (0x97 if version == paho.MQTTv5 else 0x88), "paho says 3 in words of MQTT 5"
    other.client.loop_stop()
    valve = Peer(version, "", "valve")
    assert valve.connect(port) == 0
    address = new_address()
    some = [Peer(version, "") for _ in range(3)]
    assert [each.connect(port, address) for each in some] == [0, 0, 0]
    late = Peer(version, "")
    assert late.is_turned_away(port, address)
    few = [Peer(version, "") for _ in range(2)]
    assert [each.connect(site.ports["few"]) for each in few] == [0, 0]
    late = Peer(version, "")
    assert late.is_turned_away(site.ports["few"])
    for scope in ("user", "address", "listener"):
        assert site.refused(f"{scope}.connections_max") > 0
    for each in (peer, valve, *some, *few):
        each.end()
    eventually(lambda: site.gateway.metric("iotmq_mqtt_connections") == 0, "all are gone", within_s=WAIT_S)


@pytest.mark.parametrize("version", VERSIONS)
def test_connects_have_a_rate(site: Site, version: int) -> None:
    before = site.refused("listener.connects_per_s")
    turned_away = 0
    while not turned_away:
        peer = Peer(version, "")
        peer.dial(site.ports["rare"])
        eventually(lambda peer=peer: peer.connacks or peer.ended, "an answer", within_s=WAIT_S)  # type: ignore[misc]
        turned_away += not peer.connacks
        peer.end()
    assert site.refused("listener.connects_per_s") > before

    def comes_in() -> bool:
        peer = Peer(version, "")
        peer.dial(site.ports["rare"])
        eventually(lambda: peer.connacks or peer.ended, "an answer", within_s=WAIT_S)
        peer.end()
        return bool(peer.connacks)

    eventually(comes_in, "there is room again", within_s=WAIT_S)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["client", "user", "address", "network", "client-pattern", "user-pattern"])
def test_a_ban_ends_connections_and_refuses_them_until_it_is_over(
    site: Site, version: int, kind: str
) -> None:
    port, address = site.gateway.mqtt_port, new_address()
    name = f"banned-{kind}-{version}"
    values = {
        "client": name,
        "user": "pump",
        "address": address,
        "network": f"{address}/32",
        "client-pattern": f"banned-{kind}-[0-9]",
        "user-pattern": "pum.",
    }
    user = "pump" if "user" in kind else None
    peer = Peer(version, name, user)
    assert peer.connect(port, address) == 0
    site.bans("add", kind, values[kind], "--reason", "a test", "--for", "5s")
    eventually(lambda: peer.ended, "its end", within_s=WAIT_S)
    if version == paho.MQTTv5:
        assert peer.ended == [0x98]
    banned = Peer(version, name, user)
    if kind in ("address", "network"):
        assert banned.is_turned_away(port, address)
    else:
        assert banned.connect(port, address) == (0x8A if version == paho.MQTTv5 else 0x87)
    other = Peer(version, f"other-{kind}", "valve")
    assert other.connect(port) == 0
    other.end()

    def comes_in() -> bool:
        again = Peer(version, name, user)
        again.dial(port, address)
        eventually(lambda: again.connacks or again.ended, "an answer", within_s=WAIT_S)
        again.end()
        return again.connacks == [0]

    eventually(comes_in, "the ban is over", within_s=WAIT_S)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_program_decides_about_foreign_clients(site: Site, version: int) -> None:
    port, is_v5 = site.gateway.mqtt_port, version == paho.MQTTv5
    out = Peer(version, f"hooked-out-{version}")
    assert out.connect(port) == 0x87
    out.client.loop_stop()
    will = Peer(version, "")
    will.client.will_set("hooked/publish", b"w")
    assert will.connect(port) == 0x87
    will.client.loop_stop()
    peer = Peer(version, "")
    assert peer.connect(port) == 0
    topic = f"free/{version}"
    assert peer.subscribe(("hooked/#", 1), (topic, 1)) == [0x87 if is_v5 else 0x80, 1]
    peer.publish("hooked/publish", b"x")
    peer.publish(topic, b"hooked")
    peer.publish(topic, b"last")
    eventually(lambda: peer.got, "the message that is delivered", within_s=WAIT_S)
    assert peer.got == [b"last"]
    assert peer.told == [0x87 if is_v5 else 0, 0, 0]
    peer.end()
