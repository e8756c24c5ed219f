"""Every plug-in of amqtt answers in iotmq as it does in amqtt's own broker with the same configuration.

Where it does not, a test says so, and which of the two would let somebody in.
"""

from __future__ import annotations

import shutil
import ssl
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from amqtt.broker import Broker
from amqtt.contexts import Action
from amqtt.contrib.auth_db.managers import TopicManager, UserManager
from amqtt.contrib.http import ParamsMode, RequestMethod, ResponseMode
from amqtt.events import BrokerEvents
from amqtt.session import Session
from argon2 import PasswordHasher
from certificates import make_certificate, make_root
from postgres_server import INITDB, PostgresServer
from slapd_server import ADMIN, ADMIN_PASSWORD, BASE, SlapdServer
from slapd_server import PROGRAM as SLAPD

from iotmq.clock import SystemClock
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.verdicts import Accepted, Credentials
from iotmq.mqtt_front.plugins.amqtt_link import AmqttLink
from iotmq.mqtt_front.plugins.light_session import CertificateShim, LightSession
from iotmq.mqtt_front.plugins.plugins import Plugins
from iotmq.mqtt_front.settings.plugins import AmqttPluginSettings, PluginsSettings

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ANONYMOUS = "amqtt.plugins.authentication.AnonymousAuthPlugin"
FILE = "amqtt.plugins.authentication.FileAuthPlugin"
TABOO = "amqtt.plugins.topic_checking.TopicTabooPlugin"
ACL = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
USER_DB = "amqtt.contrib.auth_db.UserAuthDBPlugin"
TOPIC_DB = "amqtt.contrib.auth_db.TopicAuthDBPlugin"
USER_HTTP = "amqtt.contrib.http.UserAuthHttpPlugin"
TOPIC_HTTP = "amqtt.contrib.http.TopicAuthHttpPlugin"
USER_JWT = "amqtt.contrib.jwt.UserAuthJwtPlugin"
TOPIC_JWT = "amqtt.contrib.jwt.TopicAuthJwtPlugin"
USER_LDAP = "amqtt.contrib.ldap.UserAuthLdapPlugin"
TOPIC_LDAP = "amqtt.contrib.ldap.TopicAuthLdapPlugin"
CERTIFICATE = "amqtt.contrib.cert.UserAuthCertPlugin"
SECRET = "a secret of at least thirty-two bytes"

DEVICES: tuple[tuple[str | None, str | None, str], ...] = (
    ("pump", "secret", "c1"),
    ("pump", "wrong", "c1"),
    ("pump", "", "c1"),
    ("pump", None, "c1"),
    ("nobody", "secret", "c1"),
    ("valve", "größe", "c2"),
    (None, None, "c1"),
)
TOPICS = ("a/b", "a/c", "x", "a/b/c", "prohibited", "data/classified", "$SYS/a", "a")


class Both:
    """The same plug-ins in amqtt's broker and in ours."""

    def __init__(self, broker: Broker, plugins: Plugins) -> None:
        self.broker = broker
        self.plugins = plugins

    async def amqtt_accepts(
        self, user: str | None, password: str | None, client_id: str, der: bytes | None = None
    ) -> bool:
        session = Session()
        session.client_id, session.username, session.password = client_id, user, password
        if der is not None:
            session.ssl_object = CertificateShim(der)  # type: ignore[assignment]
        try:
            return await self.broker._authenticate(session, self.broker.listeners_config["default"])
        except Exception:
            # It ends the connection.
            return False

    async def we_accept(
        self, user: str | None, password: str | None, client_id: str, der: bytes | None = None
    ) -> bool:
        secret = None if password is None else password.encode()
        asked = Credentials(
            client_id, user, secret, "192.0.2.1", "tcp", certificate=None if der is None else {"der": der}
        )
        link = AmqttLink("plug-ins", self.plugins.authenticating((), "link"))
        try:
            return isinstance(await link.decide(asked), Accepted)
        except LinkFailedError:
            return False

    async def amqtt_lets(
        self, user: str | None, action: str, topic: str, password: str | None = None
    ) -> bool:
        session = Session()
        session.client_id, session.username, session.password = "c1", user, password
        try:
            return bool(await self.broker._topic_filtering(session, topic, Action(action)))
        except Exception:
            return False

    async def we_let(self, user: str | None, action: Any, topic: str, password: str | None = None) -> bool:
        assert self.plugins.topics is not None
        session = LightSession("c1", user, password)
        self.plugins._sessions._sessions["c1"] = session
        self.plugins.topics.forget()
        return bool(await self.plugins.topics.may(Identity(user=user), "c1", action, topic))


@asynccontextmanager
async def both(
    *plugins: tuple[str, dict[str, Any]], ours: Sequence[dict[str, Any]] | None = None
) -> AsyncIterator[Both]:
    """`ours` are options where a config file has other types than Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        broker = Broker({"listeners": {"default": {"bind": "127.0.0.1:0"}}, "plugins": dict(plugins)})
    await broker.plugins_manager.fire_event(BrokerEvents.PRE_START, wait=True)
    options = ours or [given for _, given in plugins]
    settings = PluginsSettings(
        amqtt=tuple(
            AmqttPluginSettings(class_path=path, options=given)
            for (path, _), given in zip(plugins, options, strict=True)
        )
    )
    made = Plugins(settings, lambda *_: None, SystemClock())
    try:
        await made.start()
        yield Both(broker, made)
    finally:
        await made.stop()
        await broker.plugins_manager.fire_event(BrokerEvents.PRE_SHUTDOWN, wait=True)
        await broker.plugins_manager.close()


async def agree_about_devices(
    site: Both, devices: Sequence[tuple[str | None, str | None, str]] = DEVICES
) -> list[bool]:
    ours = [await site.we_accept(*device) for device in devices]
    assert ours == [await site.amqtt_accepts(*device) for device in devices]
    return ours


async def agree_about_topics(
    site: Both,
    users: Sequence[str | None] = ("pump", "nobody", None),
    topics: Sequence[str] = TOPICS,
    password: str | None = None,
) -> int:
    """Return how many of the answers are yes.

    Ours to a subscription is amqtt's to that and to what it asks about each message later.
    """
    count = 0
    for user in users:
        for action in ("publish", "subscribe", "receive"):
            for topic in topics:
                ours = await site.we_let(user, action, topic, password)
                theirs = await site.amqtt_lets(user, action, topic, password)
                if action == "subscribe":
                    theirs = theirs and await site.amqtt_lets(user, "receive", topic, password)
                assert ours == theirs, (user, action, topic)
                count += ours
    return count


# amqtt.plugins


@pytest.mark.parametrize("allows", [True, False])
async def test_anonymous(allows: bool) -> None:
    async with both((ANONYMOUS, {"allow_anonymous": allows})) as site:
        assert await agree_about_devices(site) == [True] * 6 + [allows]


async def test_a_file_of_passwords(tmp_path: Path) -> None:
    hasher = PasswordHasher(1, 1024, 1)
    file = tmp_path / "passwords"
    file.write_text(f"# users\npump:{hasher.hash('secret')}\nvalve:{hasher.hash('größe')}\n")
    async with both((FILE, {"password_file": str(file)})) as site:
        assert await agree_about_devices(site) == [True, False, False, False, False, True, False]


async def test_a_file_together_with_anonymous(tmp_path: Path) -> None:
    """None of the file's, for a device without a name, leaves it to the other."""
    file = tmp_path / "passwords"
    file.write_text(f"pump:{PasswordHasher(1, 1024, 1).hash('secret')}\n")
    async with both((ANONYMOUS, {}), (FILE, {"password_file": str(file)})) as site:
        assert await agree_about_devices(site) == [True, False, False, False, False, False, True]


async def test_taboo_topics() -> None:
    async with both((TABOO, {})) as site:
        assert await agree_about_topics(site, ("pump", "admin", None)) == 3 * 3 * 8 - 2 * 3 * 2


async def test_an_access_control_list() -> None:
    options = {"publish_acl": {"pump": ["a/b", "x/#"]}, "acl": {"pump": ["a/+"], "anonymous": ["a/b"]}}
    async with both((ACL, options)) as site:
        assert await agree_about_topics(site)
        # Its own matcher takes a wildcard that is asked for as the name of a level.
        for asked in ("a/#", "+/b"):
            assert not await site.we_let("pump", "subscribe", asked)
        assert await site.amqtt_lets("pump", "subscribe", "a/#")
        assert await site.we_let("pump", "subscribe", "a/+")


async def test_without_a_list_for_publish_everything_may_be_published() -> None:
    async with both((ACL, {"acl": {"pump": ["a/b"]}})) as site:
        assert await agree_about_topics(site)
        assert await site.we_let("nobody", "publish", "x")


# amqtt.contrib: databases


async def fill(connection: str) -> None:
    users, topics = UserManager(connection), TopicManager(connection)
    await users.db_sync()
    await topics.db_sync()
    await users.create_user_auth("pump", "secret")
    await users.create_user_auth("valve", "größe")
    await topics.create_topic_auth("pump")
    for action, topic in ((Action.PUBLISH, "a/#"), (Action.SUBSCRIBE, "a/+"), (Action.RECEIVE, "a/b")):
        await topics.add_allowed_topic("pump", topic, action)
    await users.close()
    await topics.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    if INITDB is None:
        pytest.skip("needs PostgreSQL: tools/setup.sh")
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
async def connection(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{tmp_path / 'auth.db'}"
        await fill(url)
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url
        server.sql("DROP TABLE IF EXISTS user_auth; DROP TABLE IF EXISTS topic_auth;")
        await fill(url)
    return url


@pytest.mark.slow
async def test_users_in_a_database(connection: str) -> None:
    async with both((USER_DB, {"connection": connection, "sync_schema": True})) as site:
        assert await agree_about_devices(site) == [True, False, False, False, False, True, False]


async def test_topics_in_a_database(connection: str) -> None:
    async with both((TOPIC_DB, {"connection": connection})) as site:
        assert await agree_about_topics(site) == 4 + 1 + 1
        assert not await site.we_let("pump", "subscribe", "a/#")
        assert await site.amqtt_lets("pump", "subscribe", "a/#")


# amqtt.contrib: HTTP


@asynccontextmanager
async def service() -> AsyncIterator[int]:
    """Knows one user, by the rules of the plug-ins, and says so in the way the path asks for."""

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET" and request.query:
            given: dict[str, Any] = dict(request.query)
        elif request.content_type == "application/json":
            given = await request.json()
        else:
            given = dict(await request.post())
        if "password" in given:
            is_right = (given["username"], given["password"]) == ("pump", "secret")
        else:
            is_right = given["username"] == "pump" and (given["topic"], int(given["acc"])) in {
                ("a/b", 2),
                ("x", 4),
                ("a/b", 1),
            }
        mode = request.path.split("/")[1]
        if mode == "status":
            return web.Response(status=200 if is_right else 403 if given.get("username") else 500)
        if mode == "text":
            return web.Response(text="ok" if is_right else "no")
        return web.json_response({"OK": is_right})

    app = web.Application()
    app.router.add_route("*", "/{mode}/{what}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.parametrize("mode", list(ResponseMode))
@pytest.mark.parametrize(
    ("method", "params"),
    [
        (RequestMethod.POST, ParamsMode.JSON),
        (RequestMethod.PUT, ParamsMode.FORM),
        (RequestMethod.GET, ParamsMode.FORM),
    ],
)
async def test_users_and_topics_of_a_service(
    mode: ResponseMode, method: RequestMethod, params: ParamsMode
) -> None:
    async with service() as port:
        given: dict[str, Any] = {"host": "127.0.0.1", "port": port}
        typed = given | {"request_method": method, "params_mode": params, "response_mode": mode}
        text = given | {
            "request-method": str(method.value),
            "params-mode": str(params.value),
            "response-mode": str(mode.value),
        }
        uris = ({"user_uri": f"/{mode.value}/user"}, {"topic_uri": f"/{mode.value}/acl"})
        async with both(
            (USER_HTTP, typed | uris[0]), (TOPIC_HTTP, typed | uris[1]), ours=[text | uris[0], text | uris[1]]
        ) as site:
            devices = [device for device in DEVICES if device[1] is not None]
            assert await agree_about_devices(site, devices) == [True, False, False, False, False]
            for device in DEVICES:
                assert await site.we_accept(*device) == (device == DEVICES[0])
            # One topic may be subscribed and not received.
            assert await agree_about_topics(site, ("pump", "nobody")) == 2


async def test_a_service_that_is_down_lets_nobody_in() -> None:
    options = {"host": "127.0.0.1", "port": 1, "request_method": RequestMethod.POST}
    ours = {**options, "request_method": "post"}
    async with both((USER_HTTP, options), (TOPIC_HTTP, options), ours=[ours, ours]) as site:
        assert not any(await agree_about_devices(site))
        assert await agree_about_topics(site, ("pump",), ("a/b",)) == 0


# amqtt.contrib: tokens


def token(**claims: Any) -> str:
    given = {"sub": "pump", "pub": ["a/#"], "get": ["a/b"], "see": ["a/+"], "exp": time.time() + 600}
    return jwt.encode({**given, **claims}, SECRET, "HS256")


async def test_users_with_tokens() -> None:
    async with both((USER_JWT, {"secret_key": SECRET, "user_claim": "sub"})) as site:
        forged = jwt.encode({"sub": "pump"}, "another secret of thirty-two bytes", "HS256")
        unsigned = jwt.encode({"sub": "pump"}, None, "none")
        devices = [
            ("pump", token(), "c1"),
            ("valve", token(), "c1"),
            ("pump", token(exp=1), "c1"),
            ("pump", forged, "c1"),
            ("pump", unsigned, "c1"),
            ("pump", "no token", "c1"),
            *DEVICES[3:4],
            *DEVICES[6:],
        ]
        assert await agree_about_devices(site, devices) == [True] + [False] * 7


async def test_topics_in_tokens() -> None:
    claims = {"publish_claim": "pub", "subscribe_claim": "get", "receive_claim": "see"}
    async with both((TOPIC_JWT, {"secret_key": SECRET, **claims})) as site:
        assert await agree_about_topics(site, ("pump",), password=token()) == 4 + 1 + 2
        assert await agree_about_topics(site, ("pump",), password=token(exp=1)) == 0
        assert await agree_about_topics(site, ("pump",)) == 0
        wide = token(get=["a/+"])
        assert not await site.we_let("pump", "subscribe", "a/#", wide)
        assert await site.amqtt_lets("pump", "subscribe", "a/#", wide)
        assert await site.we_let("pump", "subscribe", "a/+", wide)


# amqtt.contrib: LDAP

ENTRIES = f"""\
dn: uid=pump,{BASE}
objectClass: inetOrgPerson
uid: pump
cn: Pump
sn: Pump
title: a/b
title: x
description: a/#
mail: a/+
userPassword: secret

dn: uid=valve,{BASE}
objectClass: inetOrgPerson
uid: valve
cn: Valve
sn: Valve
userPassword: größe
""".replace("userPassword: größe", "userPassword:: Z3LDtsOfZQ==").replace("mail: a/+", "employeeType: a/+")


@pytest.fixture(scope="module")
def slapd() -> Iterator[SlapdServer]:
    pytest.importorskip("ldap", reason="needs the headers of OpenLDAP: tools/setup.sh")
    if SLAPD is None:
        pytest.skip("needs slapd: tools/setup.sh")
    directory = Path(tempfile.mkdtemp(prefix="iotmq-plug-ins-"))
    with SlapdServer(directory, ENTRIES) as server:
        yield server
    shutil.rmtree(directory)


def directory_options(slapd: SlapdServer) -> dict[str, str]:
    return {
        "server": slapd.url,
        "base_dn": BASE,
        "user_attribute": "uid",
        "bind_dn": ADMIN,
        "bind_password": ADMIN_PASSWORD,
    }


async def test_users_in_a_directory(slapd: SlapdServer) -> None:
    async with both((USER_LDAP, directory_options(slapd))) as site:
        devices = [device for device in DEVICES if device[1]]
        assert await agree_about_devices(site, devices) == [True, False, False, True]
        assert not await site.we_accept(None, None, "c1")


async def test_guards_in_front_of_a_directory(slapd: SlapdServer) -> None:
    """Both let somebody in at amqtt: an entry that a star finds, and a bind that proves nothing."""
    async with both((USER_LDAP, directory_options(slapd))) as site:
        for device in (("p*", "secret", "c1"), ("pump", "", "c1"), ("pump)(cn=Pump", "secret", "c1")):
            assert not await site.we_accept(*device)
        assert await site.amqtt_accepts("p*", "secret", "c1")
        assert await site.amqtt_accepts("pump", "", "c1")


async def test_topics_in_a_directory(slapd: SlapdServer) -> None:
    attributes = {
        "publish_attribute": "title",
        "subscribe_attribute": "description",
        "receive_attribute": "employeeType",
    }
    async with both((TOPIC_LDAP, directory_options(slapd) | attributes)) as site:
        assert await agree_about_topics(site, ("pump", "nobody")) == 2 + 2 + 2
        assert not await site.we_let(None, "publish", "x")
        assert not await site.we_let("p*", "publish", "x")
        assert await site.amqtt_lets("p*", "publish", "x")
        # It may receive one level below alone.
        assert not await site.we_let("pump", "subscribe", "a/#")
        assert await site.we_let("pump", "subscribe", "a/+")


# amqtt.contrib: certificates


def der_of(directory: Path, name: str, alternatives: str) -> bytes:
    root = make_root(directory, f"root-of-{name}")
    made = make_certificate(directory, root, name, alternatives=alternatives)
    return ssl.PEM_cert_to_DER_cert(Path(made.certificate).read_text())


async def test_certificates(tmp_path: Path) -> None:
    async with both((CERTIFICATE, {"uri_domain": "example.org"})) as site:
        right = der_of(tmp_path, "right", "URI:spiffe://example.org/device/c1")
        foreign = der_of(tmp_path, "foreign", "URI:spiffe://example.com/device/c1")
        without = der_of(tmp_path, "without", "")
        for client_id, der, is_accepted in (
            ("c1", right, True),
            ("c2", right, False),
            ("c1", foreign, False),
            ("c1", without, False),
            ("c1", None, False),
        ):
            device = (None, None, client_id, der)
            assert await site.we_accept(*device) is is_accepted
            assert await site.amqtt_accepts(*device) is is_accepted
