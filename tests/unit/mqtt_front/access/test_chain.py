"""The chain: which link is asked, what its answers mean, chains of listeners, and whose a client id is."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from chain_site import chained
from eventually import soon
from fake_gateway import RawClient, connect_packet
from front_site import tick_quickly
from http_service import serving
from manual_clock import ManualClock
from mqtt5_oracle import read_properties
from tokens import key_of
from users_site import file_of_all

from iotmq import limits
from iotmq.config.config import config_from_table
from iotmq.errors import ConfigError
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt_front.access.chain_link import ChainLink
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials

USERS = {"kind": "users", "name": "users"}


def tokens(directory: Path, **settings: Any) -> dict[str, Any]:
    key = key_of("ES256")
    return {"kind": "jwt", "name": "tokens", "algorithms": ["ES256"], "key_files": [key.pem_file(directory)],
            **settings}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(file_of_all(tmp_path))


async def test_the_first_link_that_knows_a_device_decides(tmp_path: Path, file: str) -> None:
    async with chained(tokens(tmp_path), USERS, users_file=file) as site:
        assert await site.code("pump", b"pmup") == 0
        assert site.device().identity == Identity(user="pump", decided_by="users")
        assert await site.code("valve", key_of("ES256").token({"sub": "valve"})) == 0
        assert site.device().identity.decided_by == "tokens"
        assert await site.code("pump", b"wrong") == 4
        assert await site.code("nobody", b"x") == 4
        assert await site.code("pump", key_of("ES256", "other").token()) == 4
        assert site.answers("users", "denied") == 1, "a token that is wrong is nobody else's"
        assert await site.code() == 5
        assert site.number("iotmq_mqtt_authenticated_total", how="password") == 1
        assert site.number("iotmq_mqtt_authenticated_total", how="jwt") == 1


async def test_anonymous_devices_at_the_end_of_the_chain(file: str) -> None:
    async with chained(USERS, users_file=file, allow_anonymous=True) as site:
        assert await site.code() == 0
        assert site.device().user is None
        assert await site.code("nobody", b"x") == 4
        assert await site.code(None, b"x", protocol_level=5) == 0x86


async def test_conditions(file: str) -> None:
    async with serving() as service:
        service.says({"result": "allow"})

        def link(name: str, **when: Any) -> dict[str, Any]:
            return {"kind": "http", "name": name, "url": service.url(), **when}

        chain = [
            link("meters", when_user="meter-[0-9]+"),
            link("new", when_protocols=["5"]),
            link("old", when_protocols=["3.1", "3.1.1"], when_user="old"),
            link("certified", when_certificate=True),
        ]
        async with chained(*chain) as site:
            for user, level, name in (
                ("meter-7", 4, "meters"),
                ("meter-x", 5, "new"),
                ("meter-7-not", 5, "new"),
                (None, 5, "new"),
                ("old", 3, "old"),
                ("old", 4, "old"),
            ):
                assert await site.code(user, protocol_level=level) == 0
                assert site.device().identity.decided_by == name
            assert await site.code("other", b"x") == 4
            assert await site.code(None) == 5
        assert service.count == 6


async def test_a_pattern_that_is_none_stops_the_start(file: str) -> None:
    with pytest.raises(ConfigError, match="link users: when_user"):
        async with chained({**USERS, "when_user": "("}, users_file=file):
            pass


async def test_each_listener_has_its_own_chain(tmp_path: Path, file: str) -> None:
    mqtt = {
        "listeners": [
            {"name": "inside", "transport": "tcp", "chain": ["anonymous"]},
            {"name": "outside", "transport": "tcp", "chain": ["tokens"]},
        ]
    }
    async with chained(tokens(tmp_path), USERS, users_file=file, mqtt=mqtt) as site:
        inside, outside = (
            int(site.front.addresses[name].rpartition(":")[2]) for name in ("inside", "outside")
        )

        async def code(port: int, user: str | None, password: bytes | None) -> int:
            return (await site.connect(connect_packet("d", user_name=user, password=password), port))[1]

        assert await code(inside, None, None) == 0
        assert await code(inside, "pump", b"wrong") == 0
        assert site.device().user is site.device().identity is None
        assert await code(outside, "pump", b"pmup") == 4
        assert await code(outside, None, None) == 5
        assert await code(outside, "pump", key_of("ES256").token()) == 0
        assert await code(site.front.port, "pump", b"pmup") == 0
        assert await code(site.front.port, "pump", key_of("ES256").token()) == 0


OF_FILE = {**USERS, "file": "x"}


def listener(**settings: Any) -> dict[str, Any]:
    return {"listeners": [{"name": "a", "transport": "tcp", **settings}]}


def with_chain(*chain: Any, **settings: Any) -> dict[str, Any]:
    return {"authentication": {"chain": list(chain), **settings}}


@pytest.mark.parametrize(
    ("mqtt", "what"),
    [
        (listener(chain=["nobody"]), "there is no link nobody"),
        (listener(chain=[]), "lets nobody in"),
        (with_chain(USERS), "has no file"),
        (with_chain(OF_FILE, OF_FILE), "two links of the name"),
        (with_chain({**OF_FILE, "name": "anonymous"}), "name anonymous"),
        (with_chain(OF_FILE, users_file="y"), "users_file beside a chain"),
        (with_chain(OF_FILE, allow_anonymous=True, client_ids="user"), "client_ids"),
        (
            {**listener(chain=["anonymous"]), "authentication": {"users_file": "y", "client_ids": "user"}},
            "client_ids",
        ),
        (with_chain({"kind": "amqtt", "name": "x"}), "there is none in"),
        ({"authentication": {"client_ids": "user"}}, "client_ids.*neither a users_file nor a chain"),
        ({"authentication": {"client_ids": "prefix"}}, "client_ids"),
        (listener(proxy_protocol=True), "anybody who reaches the load balancer"),
        (
            listener(proxy_protocol=True, proxy_identity_trusted=True, client_identity_is_user=True)
            | {"authentication": {"client_ids": "user"}},
            "client_ids.* at mqtt:",
        ),
        (with_chain({"name": "x"}), "kind is missing"),
        (with_chain({"kind": "magic", "name": "x"}), 'kind is "magic", which is unknown'),
        (with_chain("users"), "kind is missing"),
        (with_chain({"kind": "users"}), "name is missing"),
        (with_chain({**USERS, "fiel": "x"}), "fiel is unknown"),
        (with_chain(*({**OF_FILE, "name": f"u{n}"} for n in range(limits.MQTT_LINKS_MAX + 1))), "chain"),
        (
            {**listener(listen_host="0.0.0.0", chain=["anonymous"]), "authentication": {"users_file": "y"}},
            "anybody who reaches this address",
        ),
    ],
)
def test_settings_that_do_not_go_together(mqtt: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        config_from_table({"mqtt": mqtt})


def test_a_chain_makes_devices_prove_who_they_are() -> None:
    table = {"listen_host": "0.0.0.0", **with_chain(OF_FILE)}
    mqtt = config_from_table({"mqtt": table}).mqtt
    assert mqtt.has_to_be_proved_at(mqtt.all_listeners[0])


# Links that fail


async def test_a_link_that_breaks_or_answers_nonsense_denies(file: str) -> None:
    async with chained(USERS, users_file=file) as site:
        link = site.link("users").link

        async def broken(_asked: Credentials) -> Any:
            raise RuntimeError("a mistake of ours")

        async def none(_asked: Credentials) -> Any:
            return None

        async def a_yes_without_an_identity(_asked: Credentials) -> Any:
            return Accepted("pump")  # type: ignore[arg-type]

        for decide in (broken, none, a_yes_without_an_identity):
            link.decide = decide  # type: ignore[method-assign]
            assert await site.code("pump", b"pmup", protocol_level=5) == 0x88
        assert site.answers("users", "failed") == 3
        assert site.number("iotmq_mqtt_authentication_refused_total", cause="failed") == 3


async def test_a_link_whose_start_fails_is_started_again(file: str) -> None:
    async with chained({**USERS, "timeout_s": 20.0}, users_file=file) as site:
        assert await site.code("pump", b"pmup") == 0
    starts = 0
    from iotmq.mqtt_front.access.links.users import UsersLink

    original = UsersLink.start

    async def start(self: UsersLink) -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise OSError("not yet")
        await original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UsersLink, "start", start)
        async with chained({**USERS, "timeout_s": 20.0}, users_file=file) as site:
            assert await site.code("pump", b"pmup") == 0, "it waits for the start"
            assert starts == 2


async def test_links_run_on_a_thread_of_their_own_in_batches(file: str) -> None:
    """What a turn asks goes over at once, and no device waits for another link's answer."""
    threads = set()
    async with chained({**USERS, "cache_s": 0.0}, users_file=file) as site:
        link = site.link("users").link

        async def decide(asked: Credentials) -> Any:
            threads.add(threading.current_thread().name)
            await asyncio.sleep(0)
            return Accepted(Identity(user=asked.user_name)) if asked.user_name != "x" else NOT_MINE

        link.decide = decide  # type: ignore[method-assign]
        codes = await asyncio.gather(*(site.code(f"u{n}", b"p", client_id=f"d{n}") for n in range(50)))
        assert set(codes) == {0}
        assert await site.code("x", b"p") == 4
        assert threads == {"iotmq-access"}
        assert not any(decision for decision in site.front.parts.authentication._deciding), (
            "nobody is in question any more"
        )


async def test_the_connect_of_a_device_that_has_gone_waits_for_no_turn(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who sends large wills and hangs up would fill the memory with what waits for a slow service."""
    going_on = threading.Event()
    ask = ChainLink.ask

    async def late(*arguments: Any) -> Any:
        await asyncio.to_thread(going_on.wait, 10)
        return await ask(*arguments)

    monkeypatch.setattr(ChainLink, "ask", late)
    tick_quickly(monkeypatch)
    clock = ManualClock()
    async with chained(USERS, users_file=file, clock=clock) as site:
        try:
            client = await RawClient.dial(site.front.port)
            client.send(connect_packet("c", user_name="pump", password=b"x", will=Will("a", b"w", 0, False)))
            deciding = site.front.parts.authentication._deciding
            await soon(lambda: deciding, "it is asked about")
            (decision,) = deciding.values()
            asked_for = decision.done
            client.abort()
            clock.advance(limits.MQTT_CONNECT_TIMEOUT_S + 1)
            await soon(lambda: decision.is_given_up, "it has gone")
            assert decision.done is not asked_for
            assert not hasattr(decision.done, "args"), "nothing of the CONNECT"
        finally:
            going_on.set()


async def test_the_thread_ends_with_the_front_end(file: str) -> None:
    async with chained(USERS, users_file=file) as site:
        assert await site.code("pump", b"pmup") == 0
    await soon(
        lambda: not any(thread.name == "iotmq-access" for thread in threading.enumerate()), "it has ended"
    )


async def test_a_front_end_that_stops_waits_for_no_link() -> None:
    async with serving() as service:
        released = service.hangs()
        async with chained({"kind": "http", "name": "own", "url": service.url()}) as site:
            client = await RawClient.dial(site.front.port)
            client.send(connect_packet("d", user_name="pump"))
            await soon(lambda: service.count, "it is asked")
            async with asyncio.timeout(5):
                await site.front.stop()
            client.abort()
        released.set()


# Client ids


@pytest.mark.parametrize(
    ("rule", "asked_for", "expected"),
    [
        ("any", "whatever", "whatever"),
        ("user", "pump", "pump"),
        ("user", "", "pump"),
        ("user", "valve", None),
        ("user", "pump:1", None),
        ("prefix", "pump", "pump"),
        ("prefix", "pump:1", "pump:1"),
        ("prefix", "pump:1:2", "pump:1:2"),
        ("prefix", "pump1", None),
        ("prefix", "pum", None),
        ("prefix", "valve:1", None),
    ],
)
async def test_client_ids_that_a_user_may_have(
    file: str, rule: str, asked_for: str, expected: str | None
) -> None:
    async with chained(USERS, users_file=file, client_ids=rule) as site:
        code = await site.code("pump", b"pmup", client_id=asked_for, protocol_level=5)
        assert code == (0x85 if expected is None else 0)
        if expected is not None:
            assert site.device(expected).user == "pump"
        else:
            assert site.number("iotmq_mqtt_authentication_refused_total", cause="client id") == 1


@pytest.mark.parametrize("rule", ["user", "prefix"])
async def test_who_a_link_lets_in_without_a_name_has_no_users_client_id(rule: str) -> None:
    """Else it would have the session of the user with that name."""
    async with serving() as service:
        service.says({"result": "allow"})
        async with chained({"kind": "http", "name": "own", "url": service.url()}, client_ids=rule) as site:
            assert await site.code(client_id="pump", protocol_level=5) == 0x85
            assert site.number("iotmq_mqtt_authentication_refused_total", cause="client id") == 1
            assert await site.code(client_id="", protocol_level=5) == 0, "it gets one that nobody has"


async def test_a_device_without_a_client_id_is_told_the_one_it_gets(file: str) -> None:
    async with chained(USERS, users_file=file, client_ids="prefix", client_id_separator="/") as site:
        client = await RawClient.dial(site.front.port)
        client.send(connect_packet("", user_name="pump", password=b"pmup", protocol_level=5))
        first, body = await client.packet()
        assert (first >> 4, body[1]) == (packets.CONNACK, 0)
        assigned = read_properties(body[2:], packets.CONNACK)[1]["assigned_client_id"]
        assert assigned.startswith("pump/")
        assert site.device(assigned).user == "pump"
        client.abort()


async def test_a_user_name_with_the_separator_is_refused() -> None:
    """Else `a:b` could have what is `a`'s."""
    async with serving() as service:
        service.says({"result": "allow", "user": "a:b"})
        link = {"kind": "http", "name": "own", "url": service.url()}
        async with chained(link, client_ids="prefix") as site:
            assert await site.code("x", client_id="a:b", protocol_level=5) == 0x85
        async with chained(link, client_ids="prefix", client_id_separator="::") as site:
            assert await site.code("x", client_id="a:b::c", protocol_level=5) == 0
