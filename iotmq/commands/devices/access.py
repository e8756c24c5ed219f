"""The words of `iotmq access`: what devices may do, and by which rule, without a device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iotmq.errors import ConfigError

if TYPE_CHECKING:
    from iotmq.config.config import Config
    from iotmq.mqtt_front.settings.permissions import PermissionSettings
    from iotmq.ports.device_access import AccessQuestion

_ALLOWED: Final = 0
_REFUSED: Final = 1


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
    import msgspec

    from iotmq.mqtt_front.publish.access_trial import ConfiguredAccess

    mqtt = msgspec.structs.replace(config.mqtt, permissions=_settings(options, config))
    decision = ConfiguredAccess(mqtt).decide(_question(options))
    said = "allowed" if decision.is_allowed else "refused"
    print(f"{said} by {decision.rule}: {options.action} {decision.topic}")
    if decision.is_allowed and options.action == "subscribe" and decision.qos < options.qos:
        print(f"with QoS {decision.qos} at most")
    if decision.detail:
        print(decision.detail)
    return _ALLOWED if decision.is_allowed else _REFUSED


def _question(options: argparse.Namespace) -> AccessQuestion:
    from iotmq.ports.device_access import AccessQuestion

    attributes = {}
    for text in options.attribute:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"--attribute {text!r} is not NAME=VALUE")
        attributes[name] = value
    return AccessQuestion(
        client_id=options.client,
        action=options.action,
        topic=options.topic,
        user=options.user,
        roles=tuple(options.role),
        groups=tuple(options.group),
        attributes=attributes,
        permissions=None if options.permissions is None else _brought(Path(options.permissions)),
        certificate=options.certificate,
        address=options.address,
        listener=options.listener,
        qos=options.qos,
        retain=options.retain,
        will=options.will,
        payload_bytes=options.payload_bytes,
    )


def _brought(path: Path) -> tuple[dict[str, Any], ...]:
    """Return the rules of an identity; ConfigError says what is wrong with the file."""
    import msgspec

    from iotmq.mqtt_front.permissions.identity_rules import rules_of_identity

    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
        rules_of_identity(found)
    except OSError as error:
        raise ConfigError(f"--permissions {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"--permissions {path}: {error}") from error
    return tuple(found)
