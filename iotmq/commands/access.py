"""The words of `iotmq access`: what devices may do, and by which rule, without a device."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iotmq.errors import ConfigError

if TYPE_CHECKING:
    from iotmq.config.config import Config
    from iotmq.mqtt_front.permissions.rule import Decision, Use
    from iotmq.mqtt_front.permissions.topic_template import Subject
    from iotmq.mqtt_front.publish.device_names import DeviceNames
    from iotmq.mqtt_front.publish.topic_rewrite import TopicRewrites
    from iotmq.mqtt_front.settings.listeners import ListenerSettings
    from iotmq.mqtt_front.settings.mqtt import MqttSettings
    from iotmq.mqtt_front.settings.permissions import PermissionSettings

_ALLOWED: Final = 0
_REFUSED: Final = 1
_NOBODY_ASKED: Final = "nobody is asked who it is (mqtt.authentication), and there are no rules"


def add_access_actions(
    access: argparse.ArgumentParser,
    *,
    add_config_options: Callable[[argparse.ArgumentParser], None],
    load: Callable[[argparse.Namespace], Config],
) -> None:
    """Add the actions of `access`."""
    actions = access.add_subparsers(title="actions", metavar="ACTION", required=True)
    test = actions.add_parser(
        "test",
        help="say whether a device may publish or subscribe, and which rule says so",
        description="Say whether a device may publish or subscribe, and which rule says so. Exit codes: "
        "0 it may, 1 it may not, 2 the settings or the rules are wrong.",
    )
    test.add_argument("--client", required=True, metavar="ID", help="client id of the device")
    test.add_argument("--user", metavar="NAME", help="its user name; without one it is anonymous")
    test.add_argument("--action", required=True, choices=("publish", "subscribe"))
    test.add_argument(
        "--topic",
        required=True,
        metavar="TOPIC",
        help="topic or filter as the device has it, with $share/GROUP/, $exclusive/ or $delayed/SECONDS/",
    )
    for name, what in (("role", "a role"), ("group", "a group")):
        test.add_argument(
            f"--{name}", action="append", default=[], metavar="NAME", help=f"{what} of it; may be repeated"
        )
    test.add_argument(
        "--attribute",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an attribute of it, such as a claim of its token; may be repeated",
    )
    test.add_argument(
        "--permissions",
        metavar="FILE.json",
        help="rules that come with its identity, as in a token, a database or the answer of a service",
    )
    test.add_argument("--certificate", metavar="NAME", help="identity in its client certificate")
    test.add_argument("--address", metavar="IP", help="where it connects from")
    test.add_argument("--listener", metavar="NAME", help="listener it connects to (the first one)")
    test.add_argument(
        "--qos", type=int, choices=(0, 1, 2), default=0, help="QoS of the message or filter (0)"
    )
    test.add_argument("--retain", action="store_true", help="publish with the retain flag")
    test.add_argument("--will", action="store_true", help="as a will")
    test.add_argument("--payload-bytes", type=int, default=0, metavar="N", help="size of the message (0)")
    test.add_argument(
        "--file", metavar="FILE", help="the file (the setting `mqtt.permissions.permissions_file`)"
    )
    add_config_options(test)

    def run(options: argparse.Namespace) -> int:
        return _test(options, load(options))

    test.set_defaults(command=run)
    check = actions.add_parser("check", help="check the file of permissions, and print its mistakes")
    check.add_argument(
        "--file", metavar="FILE", help="the file (the setting `mqtt.permissions.permissions_file`)"
    )
    add_config_options(check)

    def run_check(options: argparse.Namespace) -> int:
        return _check(_settings(options, load(options)))

    check.set_defaults(command=run_check)


def _settings(options: argparse.Namespace, config: Config) -> PermissionSettings:
    import msgspec

    wanted = config.mqtt.permissions
    return wanted if options.file is None else msgspec.structs.replace(wanted, permissions_file=options.file)


def _check(settings: PermissionSettings) -> int:
    from iotmq.mqtt_front.permissions.rules_file import RulesFileError, read_rules

    if not settings.permissions_file:
        raise ConfigError(
            "say which file with --file, or with --config and mqtt.permissions.permissions_file"
        )
    try:
        found = read_rules(Path(settings.permissions_file))
    except OSError as error:
        raise ConfigError(f"{settings.permissions_file}: {error.strerror or error}") from error
    except RulesFileError as error:
        print(error)
        return _REFUSED
    print(f"{len(found.rules)} rules are good")
    return _ALLOWED


def _test(options: argparse.Namespace, config: Config) -> int:
    decision, really = _decided(options, config)
    print(f"{'allowed' if decision.is_allowed else 'refused'} by {decision.rule}: {options.action} {really}")
    if decision.is_allowed and options.action == "subscribe" and decision.qos < options.qos:
        print(f"with QoS {decision.qos} at most")
    if decision.detail:
        print(decision.detail)
    return _ALLOWED if decision.is_allowed else _REFUSED


def _decided(options: argparse.Namespace, config: Config) -> tuple[Decision, str]:
    """Return the decision, and the topic or filter it is about: after rewriting, without a prefix."""
    from iotmq.mqtt.errors import MqttProtocolError
    from iotmq.mqtt_front.access.identity import Identity
    from iotmq.mqtt_front.permissions.policies import Policies
    from iotmq.mqtt_front.permissions.rule import Decision
    from iotmq.mqtt_front.publish.device_names import DeviceNames
    from iotmq.mqtt_front.publish.topic_rewrite import TopicRewrites

    subject = _subject(options, config.mqtt)
    names = DeviceNames(subject.client_id, subject.user)
    rewrites = TopicRewrites(config.mqtt.rewrites)
    are_proved = config.mqtt.authentication.client_ids != "any"
    settings = _settings(options, config)
    policy = Policies(settings, are_client_ids_proved=are_proved).policy_of(subject)
    is_publish = options.action == "publish"
    try:
        really, use = (_published if is_publish else _subscribed)(options, rewrites, names)
    except MqttProtocolError as error:
        raise ConfigError(f"--topic {options.topic!r}: {error}") from error
    decision = policy.may_publish(really, use) if is_publish else policy.may_subscribe(really, use)
    identity = subject.identity
    if identity == Identity() and config.mqtt.needs_user_at(_listener(options, config.mqtt)):
        decision = Decision(False, "mqtt.authentication", "it cannot connect without a user name")
    elif not settings.permissions_file and (identity is None or identity.permissions is None):
        why = f'mqtt.permissions.without_rules = "{settings.without_rules}"'
        decision = decision._replace(detail=_NOBODY_ASKED if identity is None else why)
    return decision, really


def _published(options: argparse.Namespace, rewrites: TopicRewrites, names: DeviceNames) -> tuple[str, Use]:
    from iotmq.mqtt.topics.delayed import split_delayed
    from iotmq.mqtt.topics.topics import decode_topic_name
    from iotmq.mqtt_front.permissions.rule import PUBLISH, Use

    delay_s, name = split_delayed(decode_topic_name(options.topic.encode()))
    really = rewrites.published(name, names)
    if not delay_s:
        delay_s, really = split_delayed(really)
    return really, Use(
        PUBLISH,
        qos=options.qos,
        is_retained=options.retain,
        is_will=options.will,
        is_delayed=delay_s > 0,
        payload_bytes=options.payload_bytes,
    )


def _subscribed(options: argparse.Namespace, rewrites: TopicRewrites, names: DeviceNames) -> tuple[str, Use]:
    from iotmq.mqtt.topics.topics import decode_topic_filter
    from iotmq.mqtt_front.permissions.filter_decisions import Wanted, use_of

    name = rewrites.subscribed(decode_topic_filter(options.topic.encode()), names)
    really, use = (None, None) if name is None else use_of(Wanted(name, options.qos))
    if really is None or use is None:
        raise ConfigError(f"--topic {options.topic!r} is no filter that can be subscribed")
    return really, use


def _subject(options: argparse.Namespace, mqtt: MqttSettings) -> Subject:
    from iotmq.mqtt_front.access.identity import Identity
    from iotmq.mqtt_front.permissions.topic_template import Subject

    attributes = {}
    for text in options.attribute:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--attribute {text!r} is not NAME=VALUE")
        attributes[name] = value
    listener = _listener(options, mqtt)
    identity = None
    user = options.user
    if user is None and listener.client_identity_is_user:
        user = options.certificate
    brought = None if options.permissions is None else _brought(Path(options.permissions))
    if user is not None or options.role or options.group or attributes or brought is not None:
        identity = Identity(
            user=user,
            roles=tuple(options.role),
            groups=tuple(options.group),
            attributes=attributes,
            permissions=brought,
        )
    elif mqtt.asks_at(listener.name) or mqtt.needs_user_at(listener):
        identity = Identity()
    return Subject(
        client_id=options.client,
        identity=identity,
        address=options.address,
        listener=listener.name,
        certificate_identity=options.certificate,
    )


def _listener(options: argparse.Namespace, mqtt: MqttSettings) -> ListenerSettings:
    listeners = {each.name: each for each in mqtt.all_listeners}
    if options.listener is None:
        return mqtt.all_listeners[0]
    if options.listener not in listeners:
        raise ConfigError(f"--listener {options.listener}: there is none; those are {', '.join(listeners)}")
    return listeners[options.listener]


def _brought(path: Path) -> tuple[Mapping[str, object], ...]:
    """Return the rules of an identity; ConfigError says what is wrong with them."""
    import msgspec

    from iotmq.mqtt_front.permissions.identity_rules import rules_of_identity

    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
        rules_of_identity(found)
    except OSError as error:
        raise ConfigError(f"--permissions {path}: {error.strerror or error}") from error
    except ValueError as error:
        # A device with such rules may do nothing.
        raise ConfigError(f"--permissions {path}: {error}") from error
    return tuple(found)
