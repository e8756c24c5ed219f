"""Mails, as they are made and as an SMTP server gets them."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator
from email.message import EmailMessage
from typing import Any, NamedTuple

import pytest
from aiosmtpd.handlers import Message
from aiosmtpd.smtp import SMTP, AuthResult, LoginPassword
from certificates import Certificate, make_certificate, make_root
from manual_clock import ManualClock
from msgspec.structs import replace

from iotmq.alarms.alarm import Acknowledgement, Alarm
from iotmq.alarms.delivery import notification_of_test
from iotmq.alarms.notification import Notification
from iotmq.alarms.receivers.alert import ALERTS_MAX
from iotmq.alarms.receivers.email import mail_of
from iotmq.alarms.receivers.sender import DeliveryError
from iotmq.alarms.senders import sender_of
from iotmq.alarms.settings import EmailSettings
from iotmq.errors import ConfigError

CLOCK = ManualClock()
SETTINGS = EmailSettings(
    name="mail",
    host="localhost",
    sender="iotmq@example.com",
    to=("ann@example.com", "bob@example.com"),
    encryption="none",
)
LAG = Alarm(
    id="1",
    name="group-behind",
    labels=(("group", "orders"),),
    level="warning",
    owner="whoever runs the consumers",
    says="the group orders has 7 messages to consume",
    what_to_do="Start more of its consumers.",
    state="firing",
    value=7,
    since_ms=1_700_000_000_000,
    fired_ms=1_700_000_030_000,
)
DISK = replace(LAG, id="2", name="writes-refused", level="critical", says="a disk is too full", labels=())
GROUP = (("alertname", "group-behind"),)


def mail(*firing: Alarm, ended: tuple[Alarm, ...] = (), **more: Any) -> EmailMessage:
    return mail_of(SETTINGS, Notification(GROUP, firing, ended, **more), CLOCK.now_ms())


def test_a_mail_says_what_is_wrong_and_what_to_do() -> None:
    made = mail(LAG)
    assert made["Subject"] == "[iotmq warning] group-behind: the group orders has 7 messages to consume"
    assert (made["From"], made["To"]) == ("iotmq@example.com", "ann@example.com, bob@example.com")
    assert made["Auto-Submitted"] == "auto-generated"
    assert made.get_content() == (
        "Firing: group-behind (warning)\n"
        "  the group orders has 7 messages to consume\n"
        "  group: orders\n"
        "  since: 2023-11-14T22:13:50.000Z\n"
        "  for: whoever runs the consumers\n"
        "  what to do: Start more of its consumers.\n"
        "\n"
    )


def test_the_subject_names_the_most_serious_one() -> None:
    assert mail(LAG, DISK)["Subject"] == "[iotmq critical] writes-refused: a disk is too full and 1 more"
    assert mail(LAG, why="repeated")["Subject"].startswith("[iotmq warning] (still) group-behind")
    ended = replace(LAG, state="ended", ended_ms=1_700_000_090_000)
    made = mail(ended=(ended,))
    assert made["Subject"].startswith("[iotmq ended] group-behind")
    assert "until: 2023-11-14T22:14:50.000Z" in made.get_content()


def test_a_test_says_that_it_is_one() -> None:
    made = mail_of(SETTINGS, notification_of_test(CLOCK.now_ms()), CLOCK.now_ms())
    assert made["Subject"].startswith("TEST: ")
    assert made.get_content().startswith("This is a test. Nothing is wrong.")


def test_what_peers_have_named_begins_no_line_and_no_header() -> None:
    evil = replace(LAG, labels=(("group", "a\r\nBcc: eve@example.com\n\nbody"),), says="x\r\nBcc: eve@e.com")
    made = mail(evil)
    assert made["Bcc"] is None
    assert "\r" not in made["Subject"]
    assert "\nBcc" not in made.as_string()


def test_a_long_subject_is_cut_and_a_long_list_is_counted() -> None:
    assert len(mail(replace(LAG, says="x" * 500))["Subject"]) == 150
    text = mail(*[LAG] * (ALERTS_MAX + 3)).get_content()
    assert text.count("Firing: ") == ALERTS_MAX
    assert "and 3 more" in text


def test_what_is_known_of_an_alarm_is_said() -> None:
    text = mail(replace(LAG, is_flapping=True, acknowledged=Acknowledgement(by="ann", at_ms=1))).get_content()
    assert "looked after by ann" in text
    assert "comes and goes" in text


class Box(Message):
    """A server that wants STARTTLS and a password."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.got.append(message)

    def authenticate(self, _server: object, _session: object, _envelope: object, _how: str, data: Any) -> Any:
        assert isinstance(data, LoginPassword)
        return AuthResult(success=(data.login, data.password) == (b"iotmq", b"hush"), handled=False)


class Server(NamedTuple):
    box: Box
    port: int
    ca_file: str

    def settings(self, **more: Any) -> EmailSettings:
        values = {
            "host": "127.0.0.1",
            "port": self.port,
            "encryption": "starttls",
            "ca_file": self.ca_file,
            "user": "iotmq",
            "password": "hush",
        }
        return replace(SETTINGS, **{**values, **more})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificate, Certificate]:
    directory = tmp_path_factory.mktemp("smtp")
    root = make_root(directory)
    return root, make_certificate(directory, root)


@pytest.fixture
async def server(certificates: tuple[Certificate, Certificate]) -> AsyncIterator[Server]:
    root, pair = certificates
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    box = Box()

    def protocol() -> SMTP:
        return SMTP(
            box,
            hostname="localhost",
            tls_context=context,
            require_starttls=True,
            auth_required=True,
            authenticator=box.authenticate,
        )

    listening = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    yield Server(box, listening.sockets[0].getsockname()[1], root.certificate)
    listening.close()


async def test_a_mail_goes_by_starttls_with_a_password(server: Server) -> None:
    sender = sender_of(server.settings(), CLOCK)
    await sender.send(Notification(GROUP, (LAG,), ()))
    await sender.close()
    (got,) = server.box.got
    assert got["Subject"].startswith("[iotmq warning] group-behind")
    assert got["X-RcptTo"] == "ann@example.com, bob@example.com"


@pytest.mark.parametrize(
    "more",
    [
        {"password": "wrong"},
        {"ca_file": ""},
        {"encryption": "none", "user": ""},
        {"port": 1},
        {"to": ("änn@example.com",)},
    ],
)
async def test_what_a_server_refuses_is_a_failure(server: Server, more: dict[str, Any]) -> None:
    count = len(server.box.got)
    with pytest.raises(DeliveryError):
        await sender_of(server.settings(**more), CLOCK).send(Notification(GROUP, (LAG,), ()))
    assert len(server.box.got) == count


def test_without_the_library_the_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiosmtplib", None)
    with pytest.raises(ConfigError, match=r"pip install iotmq\[email\]"):
        sender_of(SETTINGS, CLOCK)


def test_roots_that_are_none_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere\.pem"):
        sender_of(replace(SETTINGS, encryption="starttls", ca_file="/nowhere.pem"), CLOCK)
