"""Questions that plug-ins would answer wrongly are not asked."""

from __future__ import annotations

import pytest

from iotmq.mqtt_front.access.verdicts import Credentials
from iotmq.mqtt_front.plugins.guards import guarded_answer, is_ldap_name
from iotmq.mqtt_front.plugins.known_classes import KNOWN, OTHERS, KnownClass
from iotmq.mqtt_front.settings.plugins import AmqttPluginSettings

PLUGIN = AmqttPluginSettings(class_path="m.C")
LDAP = KNOWN["amqtt.contrib.ldap.UserAuthLdapPlugin"]
FILE = KNOWN["amqtt.plugins.authentication.FileAuthPlugin"]
ANONYMOUS = KNOWN["amqtt.plugins.authentication.AnonymousAuthPlugin"]


def answer(
    user: str | None,
    password: bytes | None,
    known: KnownClass = OTHERS,
    settings: AmqttPluginSettings = PLUGIN,
    client_id: str = "c",
) -> tuple[bool, bool | None]:
    asked = Credentials(client_id, user, password, None, "tcp")
    try:
        text = None if password is None else password.decode()
    except UnicodeDecodeError:
        text = None
    return guarded_answer(settings, known, asked, text)


@pytest.mark.parametrize("known", [OTHERS, LDAP, FILE], ids=["others", "ldap", "file"])
def test_an_empty_password_reaches_no_plugin_that_checks_one(known: KnownClass) -> None:
    for password in (None, b""):
        assert answer("pump", password, known) == (False, False)
    assert answer("pump", b"secret", known) == (True, None)
    assert answer("", b"secret", known) == (False, False)


def test_who_says_nothing_gets_the_answer_that_the_plugin_would_give() -> None:
    assert answer(None, None, OTHERS) == (False, False)
    assert answer(None, None, FILE) == (False, None)
    assert answer(None, None, ANONYMOUS) == (True, None)
    assert answer(None, b"secret", FILE) == (False, False)


def test_a_setting_says_who_sees_to_it() -> None:
    none = AmqttPluginSettings(class_path="m.C", guard="none")
    password = AmqttPluginSettings(class_path="m.C", guard="password")
    assert answer("pump", b"", OTHERS, none) == (True, None)
    assert answer("pump", b"", ANONYMOUS, password) == (False, False)


@pytest.mark.parametrize("name", ["a\nb", "a\x7f", "a\u2028b", "\x00"])
def test_names_with_control_characters_reach_no_plugin(name: str) -> None:
    assert answer(name, b"secret", ANONYMOUS) == (False, False)
    assert answer("pump", b"secret", ANONYMOUS, client_id=name) == (False, False)


@pytest.mark.parametrize("name", ["*", "a*", "(a", "a)", "a\\2a", "*)(uid=*"])
def test_names_that_mean_something_in_a_filter_reach_no_ldap_plugin(name: str) -> None:
    assert answer(name, b"secret", LDAP) == (False, False)
    assert answer(name, b"secret", OTHERS) == (True, None)
    assert not is_ldap_name(name)


def test_a_password_that_is_no_text_reaches_no_plugin() -> None:
    assert answer("pump", b"\xff\xfe", ANONYMOUS) == (False, False)
