"""Classes and options of plug-ins are made of the settings, and what is wrong is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from amqtt_plugins import Kind, Scripted

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt_front.plugins.known_classes import KNOWN, OTHERS, known
from iotmq.mqtt_front.plugins.loader import LoadedPlugin, load
from iotmq.mqtt_front.settings.plugins import AmqttPluginSettings


def loaded(class_path: str, **options: Any) -> LoadedPlugin:
    return load(AmqttPluginSettings(class_path=class_path, options=options))


def said(class_path: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(class_path, **options)
    return str(caught.value)


def test_options_are_text_as_a_config_file_has_them() -> None:
    plugin = loaded(
        "amqtt_plugins.Scripted", **{"kind": "no", "seconds": 2, "some-file": "/tmp/x", "some_list": ["a"]}
    )
    assert plugin.options == Scripted.Config(Kind.NO, 2, Path("/tmp/x"), ["a"])
    assert (plugin.authenticates, plugin.filters_topics) == (True, False)
    assert plugin.known == OTHERS


@pytest.mark.parametrize(
    ("class_path", "options"),
    [
        ("amqtt.contrib.http.UserAuthHttpPlugin", {"host": "h", "port": 1, "request-method": "post"}),
        ("amqtt.plugins.authentication.AnonymousAuthPlugin", {"allow-anonymous": False}),
        ("amqtt.plugins.authentication.FileAuthPlugin", {"password-file": "/etc/passwords"}),
        ("amqtt.plugins.topic_checking.TopicAccessControlListPlugin", {"publish-acl": {"u": ["a/#"]}}),
    ],
)
def test_what_amqtt_itself_refuses_is_taken(class_path: str, options: dict[str, Any]) -> None:
    assert loaded(class_path, **options).plugin_class.__name__ == class_path.rpartition(".")[2]


def test_options_that_are_wrong_are_named() -> None:
    path = "amqtt_plugins.Scripted"
    assert "has no option colour; there are: kind, seconds, some_file, some_list" in said(path, colour=1)
    assert "option seconds is not of its type" in said(path, seconds="secret-value")
    assert "secret-value" not in said(path, seconds="secret-value")
    assert "twice" in said(path, **{"some-file": "a", "some_file": "b"})
    assert "wrong" in said(path, kind="loud")
    assert "needs the option port" in said("amqtt.contrib.http.UserAuthHttpPlugin", host="h")
    acl = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
    assert "has no option subscribe-acl" in said(acl, **{"subscribe-acl": {}})


def test_classes_that_are_wrong_are_named() -> None:
    assert "cannot be imported" in said("no_such_module.Plugin")
    assert "has no Nothing" in said("amqtt_plugins.Nothing")
    assert "derives from" in said("pathlib.Path")
    assert "derives from" in said("os.path.join")
    assert "authenticate is no coroutine" in said("amqtt_plugins.NotAsynchronous")
    assert "has no dataclass Config" in said("amqtt_plugins.NoConfig")


def test_events_that_it_will_not_hear_are_known() -> None:
    plugin = loaded("amqtt_plugins.Listening")
    assert plugin.unheard == ("broker_message_received",)
    assert len(plugin.events) == 4


def test_every_class_that_is_known_is_there() -> None:
    import importlib

    for path in KNOWN:
        module, _, name = path.rpartition(".")
        if "ldap" in module:
            pytest.importorskip("ldap")
        assert known(getattr(importlib.import_module(module), name)) == KNOWN[path], path


def test_a_class_that_derives_from_a_known_one_may_look_at_passwords() -> None:
    from amqtt.plugins.authentication import AnonymousAuthPlugin

    class Own(AnonymousAuthPlugin):
        pass

    assert known(Own).asks_password
    assert known(Own).without_user is False


def test_secret_options_are_options_that_are_not_shown() -> None:
    path = "amqtt.contrib.jwt.UserAuthJwtPlugin"
    settings = AmqttPluginSettings(
        class_path=path, options={"user-claim": "sub"}, secret_options={"secret-key": "xyzzy"}
    )
    options: Any = load(settings).options
    assert (options.user_claim, options.secret_key) == ("sub", "xyzzy")

    from iotmq.config.config import config_from_table

    table = {
        "mqtt": {"plugins": {"amqtt": [{"class_path": "a.B", "secret_options": {"secret_key": "xyzzy"}}]}}
    }
    from iotmq.config.setting_text import toml_document

    shown = toml_document(config_from_table(table))
    assert "xyzzy" not in shown
    assert re.search(r'class_path = "a\.B"', shown)


def test_there_are_so_many_plugins() -> None:
    from iotmq.config.config import config_from_table

    def table(count: int) -> dict[str, Any]:
        return {
            "mqtt": {"plugins": {"amqtt": [{"class_path": "a.B", "name": f"p{n}"} for n in range(count)]}}
        }

    assert (
        len(config_from_table(table(limits.MQTT_PLUGINS_MAX)).mqtt.plugins.amqtt) == limits.MQTT_PLUGINS_MAX
    )
    with pytest.raises(ConfigError, match=r"mqtt\.plugins\.amqtt"):
        config_from_table(table(limits.MQTT_PLUGINS_MAX + 1))
