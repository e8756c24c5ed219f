"""Who may connect: passwords, certificates and nobody, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from fake_gateway import RawClient, ScriptedGateway, connect_packet
from scram_client import ScramClient, answer, auth, scram_connect
from users_site import REFUSED, WAY, Site, line_of, running

from iotmq import limits
from iotmq.config.config import config_from_table
from iotmq.errors import ConfigError
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES
from iotmq.mqtt_front.access import users_file
from iotmq.mqtt_front.access.links import users as users_link
from iotmq.mqtt_front.access.scram import make_verifier
from iotmq.mqtt_front.access.users_file import write_users
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.connection.peer import Peer
from iotmq.mqtt_front.server import MqttFront


class Gate:
    """Holds every comparison of passwords until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.count = 0

    def __call__(self, *args: Any) -> bool:
        self.count += 1
        self.opened.wait(20)
        return original(*args)


original = users_link.is_password_of


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(users_link, "is_password_of", gate)
    yield gate
    gate.opened.set()


LEVELS = [{"protocol_level": 3}, {"protocol_level": 4}, {"protocol_level": 5}]


# Passwords


@pytest.mark.parametrize("fields", LEVELS)
async def test_the_right_password_opens_a_session_and_it_is_known_whose(
    site: Site, fields: dict[str, int]
) -> None:
    client = await site.dial()
    client.send(connect_packet("d", user_name="pump", password=b"pmup", **fields) + packets.PINGREQ_PACKET)
    assert (await client.packet())[1][:2] == b"\0\0"
    assert await client.packet() == (packets.PINGRESP << 4, b"")
    (device,) = site.devices
    assert device.user == "pump"
    (name,) = (name for name in site.users._users if name == "pump")
    assert device.user is name, "one text for all connections of a user"
    assert site.number(WAY, how="password") == 1


@pytest.mark.parametrize(
    ("user", "password", "cause", "code"),
    [
        ("pump", b"pump", "password", 4),
        ("pump", b"", "credentials", 4),
        ("pump", b"pmup\0", "credentials", 4),
        ("pump", b"\xff\xfe", "password", 4),
        ("Pump", b"pmup", "user", 4),
        ("nobody", b"pmup", "user", 4),
        ("", b"pmup", "credentials", 4),
        ("pump", None, "credentials", 4),
        ("n" * limits.MQTT_USER_NAME_BYTES_MAX, b"x", "user", 4),
        ("n" * (limits.MQTT_USER_NAME_BYTES_MAX + 1), b"x", "credentials", 4),
        ("pump", b"p" * limits.MQTT_PASSWORD_BYTES_MAX, "password", 4),
        ("pump", b"p" * (limits.MQTT_PASSWORD_BYTES_MAX + 1), "credentials", 4),
        ("\u0627a", b"x", "credentials", 4),
        ("pump\x85", b"pmup", "credentials", 4),
        (None, None, "anonymous", 5),
    ],
)
async def test_refusals_by_cause(
    site: Site, user: str | None, password: bytes | None, cause: str, code: int
) -> None:
    assert await site.code(user, password) == code
    v5_code = {4: 0x86, 5: 0x87}[code]
    assert await site.code(user, password, protocol_level=5) == v5_code
    assert site.number(REFUSED, cause=cause) == site.number(REFUSED) == 2
    assert site.number("iotmq_mqtt_sessions") == 0
    # A name without a user takes as long as one with another password.
    assert site.number("iotmq_mqtt_password_checks_total") == (2 if cause in ("password", "user") else 0)


async def test_mqtt_5_has_passwords_without_a_user_name_and_they_are_nobody_s(site: Site) -> None:
    assert await site.code(None, b"pmup", protocol_level=5) == 0x86
    assert site.number(REFUSED, cause="credentials") == 1


async def test_names_and_passwords_are_compared_in_their_saslprep_form(site: Site) -> None:
    assert await site.code("gr\N{SOFT HYPHEN}o\N{COMBINING DIAERESIS}ße", "eßörg".encode()) == 0
    assert await site.code("c,d=e", b"e=d,c") == 0


async def test_a_password_that_was_right_is_not_hashed_again(site: Site) -> None:
    for _ in range(3):
        assert await site.code("pump", b"pmup") == 0
    assert await site.code("pump", b"pump") == 4
    assert await site.code("pump", b"pmup") == 0
    assert site.number("iotmq_mqtt_password_checks_total") == 2
    assert site.number(WAY, how="remembered") == 3
    assert site.number("iotmq_mqtt_link_remembered") == 1


async def test_as_many_are_remembered_as_the_settings_say(path: Path) -> None:
    async with running(path, verified_max=1) as site:
        for user, password in (
            ("pump", b"pmup"),
            ("valve", b"evlav"),
            ("valve", b"evlav"),
            ("pump", b"pmup"),
        ):
            assert await site.code(user, password) == 0
        assert site.number("iotmq_mqtt_password_checks_total") == 3
    async with running(path, verified_max=0) as site:
        for _ in range(2):
            assert await site.code("pump", b"pmup") == 0
        assert site.number("iotmq_mqtt_password_checks_total") == 2


async def test_anonymous_devices_where_they_are_allowed(path: Path) -> None:
    async with running(path, allow_anonymous=True) as site:
        assert await site.code() == 0
        assert await site.code("pump", b"wrong") == 4
        assert await site.code("nobody", None) == 4
        assert site.number(WAY, how="anonymous") == 1


async def test_without_a_file_names_and_passwords_mean_nothing() -> None:
    front = MqttFront(config_from_table({"mqtt": {"listen_port": 0}}).mqtt, ScriptedGateway())
    await front.start()
    client = await RawClient.connect(front.port, "d", user_name="root", password=b"x")
    (device,) = front.parts.sessions.devices()
    assert device.user is None, "nobody has proved it"
    client.close()
    await front.stop()


async def test_what_is_refused_is_logged_without_the_password(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert await site.code("pump", b"secret-of-mine") == 4
    (record,) = (record for record in caplog.records if record.message == "a device may not connect")
    assert (record.cause, record.user, record.peer) == ("password", "pump", "127.0.0.1")
    assert "secret" not in str(vars(record))


# Overload


async def test_what_waits_for_a_thread_is_bounded_and_not_read(path: Path, gate: Gate) -> None:
    async with running(path, threads=1, waiting_max=2) as site:
        clients = [await site.dial() for _ in range(5)]
        for number, client in enumerate(clients):
            client.send(
                connect_packet(f"d{number}", user_name="pump", password=b"pmup") + packets.PINGREQ_PACKET
            )
            if number < 3:
                waiting = max(0, number)
                await soon(
                    lambda waiting=waiting: site.number("iotmq_mqtt_link_waiting") == waiting and gate.count,
                    "it waits",
                )
        assert (await clients[3].packet())[1] == b"\0\3"
        assert (await clients[4].packet())[1] == b"\0\3"
        assert await site.code("pump", b"pmup", protocol_level=5) == 0x89
        assert site.number(REFUSED, cause="busy") == 3
        gate.opened.set()
        for client in clients[:3]:
            assert await client.packet() == (packets.CONNACK << 4, b"\0\0")
            assert await client.packet() == (packets.PINGRESP << 4, b"")


async def test_a_connection_that_has_gone_is_not_looked_at(path: Path, gate: Gate) -> None:
    async with running(path, threads=1) as site:
        clients = [await site.dial() for _ in range(3)]
        for number, client in enumerate(clients):
            client.send(connect_packet(f"d{number}", user_name="pump", password=b"wrong"))
        await soon(lambda: site.number("iotmq_mqtt_link_waiting") == 2, "they wait")
        for client in clients:
            client.abort()
        await soon(lambda: site.number("iotmq_mqtt_connections") <= 3, "the front end knows")
        # A connection that is not read is known to be gone when it is written to, or by its time.
        site.clock.advance(limits.MQTT_CONNECT_TIMEOUT_S + 1)
        await soon(lambda: site.number("iotmq_mqtt_connections") == 0, "they are gone")
        gate.opened.set()
        await soon(lambda: site.number("iotmq_mqtt_link_waiting") == 0, "nobody waits")
        assert await site.code("valve", b"evlav") == 0
        assert gate.count == 2
        assert site.number(REFUSED) == 0


async def test_a_password_has_the_time_of_a_connect(path: Path, gate: Gate) -> None:
    async with running(path) as site:
        client = await site.dial()
        client.send(connect_packet("d", user_name="pump", password=b"pmup", protocol_level=5))
        await soon(lambda: gate.count, "it is looked at")
        site.clock.advance(limits.MQTT_CONNECT_TIMEOUT_S + 1)
        assert (await client.packet())[1][1] == 0x80
        gate.opened.set()
        await soon(lambda: site.number("iotmq_mqtt_password_checks_total") == 1, "it was looked at")
        assert site.number("iotmq_mqtt_sessions") == 0
        assert site.number("iotmq_mqtt_closed_total", reason="connect_timeout") == 1


async def test_a_front_end_that_stops_waits_for_no_password(path: Path, gate: Gate) -> None:
    async with running(path) as site:
        client = await site.dial()
        client.send(connect_packet("d", user_name="pump", password=b"pmup"))
        await soon(lambda: gate.count, "it is looked at")
    assert await client.rest() in (b"", packets.encode_connack(3, session_present=False))


async def test_other_devices_are_served_while_passwords_are_looked_at(path: Path, gate: Gate) -> None:
    gate.opened.set()
    async with running(path, threads=1) as site:
        other = await RawClient.connect(site.front.port, "other", user_name="valve", password=b"evlav")
        gate.opened.clear()
        clients = [await site.dial() for _ in range(8)]
        for number, client in enumerate(clients):
            client.send(connect_packet(f"d{number}", user_name="pump", password=b"pmup"))
        await soon(lambda: site.number("iotmq_mqtt_link_waiting") == 7, "they wait")
        await other.ping()
        gate.opened.set()
        for client in clients:
            assert await client.packet() == (packets.CONNACK << 4, b"\0\0")


async def test_an_address_that_fails_too_often_has_to_wait(path: Path) -> None:
    async with running(path, failures_per_minute_max=2) as site:
        assert await site.code("valve", b"evlav") == 0
        for _ in range(2):
            assert await site.code("pump", b"wrong") == 4
        assert await site.code("pump", b"pmup") == 3
        assert await site.code("pump", b"pmup", protocol_level=5) == 0x9F
        assert (await site.answer(scram_connect(ScramClient("pump", "pmup"))))[1][1] == 0x9F
        assert await site.code("valve", b"evlav") == 0, "remembered"
        assert site.number(REFUSED, cause="address") == 3
        site.clock.advance(60)
        # As by a tick: devices are stamped with what the last one has seen; this one may wait for its answer.
        site.front.parts.group.now_s = site.clock.monotonic_s()
        assert await site.code("pump", b"pmup") == 0


async def test_guesses_at_a_user_who_was_here_before_are_counted(path: Path) -> None:
    """From the address where it was right they are counted apart from those of its neighbours."""
    async with running(path, failures_per_minute_max=3) as site:
        assert await site.code("valve", b"evlav") == 0
        for guess in range(3):
            assert await site.code("valve", b"guess %d" % guess) == 4
        assert await site.code("valve", b"evlav") == 3, "the right one would tell who guesses"
        assert site.number(REFUSED, cause="address") == 1
        assert await site.code("pump", b"pmup") == 0, "others at the address have their own count"


async def test_nothing_is_prepared_for_an_address_that_failed_too_often(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(path, failures_per_minute_max=1) as site:
        assert await site.code("pump", b"wrong") == 4
        looked_at: list[str] = []
        monkeypatch.setattr(users_link, "saslprep", lambda text, **_: looked_at.append(text) or text)
        assert await site.code("\ufdfa" * 100, b"wrong") == 3
        assert looked_at == []


async def test_what_is_kept_of_devices_nobody_knows_yet_is_bounded(
    path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wills and the like of devices that may never prove anything, waiting for a thread or in an exchange."""
    async with running(path, threads=1) as site:
        undecided = site.front.parts.authentication._undecided
        will = Will("pump/gone", b"x" * 50_000, 0, False)
        client, scram = await site.dial(), ScramClient("pump", "pmup")
        client.send(scram_connect(scram, will=will._replace(properties=NO_PROPERTIES)))
        question = await answer(client)
        waiting = await site.dial()
        waiting.send(connect_packet("w", user_name="pump", password=b"pmup", will=will))
        await soon(lambda: gate.count, "it is looked at")
        assert site.number("iotmq_mqtt_undecided_connections") == 2
        assert 100_000 < undecided.size < 120_000
        monkeypatch.setattr(limits, "MQTT_UNDECIDED_BYTES_MAX", undecided.size + 60_000)
        third = await site.dial()
        third.send(
            scram_connect(ScramClient("pump", "pmup"), "c", will=will._replace(properties=NO_PROPERTIES))
        )
        assert (await answer(third))[:2] == (packets.AUTH, 0x18)
        monkeypatch.setattr(limits, "MQTT_UNDECIDED_BYTES_MAX", undecided.size + 2_000)
        assert await site.code("pump", b"pmup") == 3
        busy = await site.dial()
        busy.send(scram_connect(ScramClient("pump", "pmup"), "e"))
        assert (await answer(busy))[:2] == (packets.CONNACK, 0x89)
        assert site.number(REFUSED, cause="busy") == 2
        # Whoever is known, or goes, makes room.
        client.send(auth(scram.final(question[2]["authentication_data"])))
        assert (await answer(client))[:2] == (packets.CONNACK, 0)
        gate.opened.set()
        assert (await waiting.packet())[1] == b"\0\0"
        third.abort()
        await soon(lambda: not len(undecided), "nobody is in question")
        assert undecided.size == 0
        assert await site.code("pump", b"pmup") == 0


# The file


async def test_changes_of_the_file_count_at_once_and_connections_stay(
    site: Site, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = await RawClient.connect(site.front.port, "d", user_name="pump", password=b"pmup")
    other = make_verifier(b"other", iterations=4_096)
    write_users(path, f"pump:{other}\n".encode())
    await site.users.reload()
    assert await site.code("pump", b"pmup") == 4
    assert await site.code("pump", b"other") == 0
    assert await site.code("valve", b"evlav") == 4
    await client.ping()
    assert site.number("iotmq_mqtt_users") == 1
    assert site.number("iotmq_mqtt_users_reloads_total") == 1
    write_users(path, f"{line_of('valve')}pump:broken\n".encode())
    await site.users.reload()
    assert await site.code("pump", b"other") == 0
    assert site.number("iotmq_mqtt_users_failed_reloads_total") == 1
    assert any("line 2" in str(vars(record)) for record in caplog.records)
    await asyncio.to_thread(path.unlink)
    await site.users.reload()
    assert await site.code("pump", b"other") == 0
    assert site.number("iotmq_mqtt_users_failed_reloads_total") == 2
    write_users(path, line_of("valve").encode())
    await site.users.reload()
    assert await site.code("valve", b"evlav") == 0
    assert await site.code("pump", b"other") == 4


async def test_an_empty_file_is_one_that_is_being_written(site: Site, path: Path) -> None:
    for content in (b"", b"\n \n"):
        write_users(path, content)
        await site.users.reload()
        assert await site.code("pump", b"pmup") == 0
    assert site.number("iotmq_mqtt_users_failed_reloads_total") == 2
    write_users(path, b"# nobody\n")
    await site.users.reload()
    assert site.number("iotmq_mqtt_users") == 0
    assert await site.code("pump", b"pmup") == 4


async def test_a_changed_file_that_cannot_be_read_for_a_moment_is_read_the_next_time(
    site: Site, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    write_users(path, line_of("valve").encode())
    with monkeypatch.context() as patch:
        patch.setattr(users_file, "read_users", fail)
        await site.users.reload()
    assert site.number("iotmq_mqtt_users_failed_reloads_total") == 1
    assert await site.code("pump", b"pmup") == 0
    await site.users.reload()
    assert site.number("iotmq_mqtt_users_reloads_total") == 1
    assert await site.code("pump", b"pmup") == 4
    await site.users.reload()
    assert site.number("iotmq_mqtt_users_reloads_total") == 1


async def test_the_file_is_looked_at_by_itself_while_devices_connect(path: Path) -> None:
    async with running(path, reload_interval_s=0.01) as site:
        for number in range(5):
            write_users(
                path, (line_of("pump") + f"new{number}:{make_verifier(b'x', iterations=4_096)}\n").encode()
            )
            await soon(
                lambda number=number: site.number("iotmq_mqtt_users_reloads_total") == number + 1,
                "it is read",
                step_s=0.001,
            )
            assert await site.code("pump", b"pmup") == 0
            assert await site.code(f"new{number}", b"x") == 0
            assert await site.code("valve", b"evlav") == 4


async def test_a_user_who_is_removed_while_the_password_is_looked_at_is_none(path: Path, gate: Gate) -> None:
    async with running(path) as site:
        client = await site.dial()
        client.send(connect_packet("d", user_name="pump", password=b"pmup"))
        await soon(lambda: gate.count, "it is looked at")
        write_users(path, line_of("valve").encode())
        await site.users.reload()
        gate.opened.set()
        assert (await client.packet())[1] == b"\0\4"


@pytest.mark.parametrize(
    ("content", "what"), [(None, "iotmq users add NAME --file"), ("user:x\n", "line 1: it is not name")]
)
async def test_a_front_end_does_not_start_without_users_it_can_read(
    tmp_path: Path, content: str | None, what: str
) -> None:
    if content is not None:
        (tmp_path / "users").write_text(content)
    with pytest.raises(ConfigError, match=what):
        async with running(tmp_path / "users"):
            pass


@pytest.mark.parametrize(
    ("authentication", "is_taken"),
    [
        ({}, False),
        ({"allow_anonymous": True}, False),
        ({"users_file": "users"}, True),
        ({"users_file": "users", "allow_anonymous": True}, False),
    ],
)
def test_beyond_loopback_devices_have_to_prove_who_they_are(
    authentication: dict[str, Any], is_taken: bool
) -> None:
    table = {"mqtt": {"listen_host": "0.0.0.0", "authentication": authentication}}
    if is_taken:
        mqtt = config_from_table(table).mqtt
        assert mqtt.has_to_be_proved_at(mqtt.all_listeners[0])
    else:
        with pytest.raises(ConfigError, match=r"mqtt\.authentication\.users_file or a chain, without"):
            config_from_table(table)


# Certificates


_device_connected = MqttFront.device_connected


def as_peer(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Every connection has this of its listener."""
    real = _device_connected

    def connected(self: MqttFront, device: Device) -> None:
        device.peer = Peer(device.peer.listener, **fields)
        real(self, device)

    monkeypatch.setattr(MqttFront, "device_connected", connected)


async def test_the_name_of_a_certificate_is_the_user_where_the_listener_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_peer(monkeypatch, certificate_identity="meter-7", is_certificate_user=True)
    assert await site.code() == 0
    client = await RawClient.connect(site.front.port, "d", user_name="pump", password=b"wrong")
    assert [device.user for device in site.devices] == ["meter-7"]
    assert site.number(WAY, how="certificate") == 2
    client.close()


async def test_else_a_certificate_proves_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    as_peer(monkeypatch, certificate_identity="meter-7")
    assert await site.code() == 5
    assert await site.code("pump", b"pmup") == 0
    as_peer(monkeypatch, is_certificate_user=True)
    assert await site.code() == 5


@pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "n" * (limits.MQTT_USER_NAME_BYTES_MAX + 1)])
async def test_names_of_certificates_that_are_none_for_a_user(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    as_peer(monkeypatch, certificate_identity=name, is_certificate_user=True)
    assert await site.code() == 5
    assert site.number(REFUSED, cause="certificate") == 1


async def test_the_address_a_proxy_says_is_the_one_that_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(path, failures_per_minute_max=1) as site:
        as_peer(monkeypatch, address="192.0.2.1")
        assert await site.code("pump", b"wrong") == 4
        assert await site.code("pump", b"wrong") == 3
        as_peer(monkeypatch, address="192.0.2.2")
        assert await site.code("pump", b"wrong") == 4


async def test_a_device_is_not_read_while_its_password_is_looked_at_whatever_happens_to_others(
    path: Path, gate: Gate
) -> None:
    async with running(path) as site:
        client = await site.dial()
        client.send(connect_packet("d", user_name="pump", password=b"pmup"))
        await soon(lambda: gate.count, "it is looked at")
        (device,) = site.devices
        assert device.transport is not None
        assert not device.transport.is_reading()
        # The brokers had been behind, and are not any more; the device takes what it is sent again.
        device.group.congest(1)
        device.group.relieve(1)
        device.resume_writing()
        assert not device.transport.is_reading()
        client.send(packets.PINGREQ_PACKET)
        gate.opened.set()
        assert await client.packet() == (packets.CONNACK << 4, b"\0\0")
        assert await client.packet() == (packets.PINGRESP << 4, b"")
        assert device.transport.is_reading()
