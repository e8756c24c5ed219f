"""The words of `iotmq routes`: try routes without publishing anything."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from iotmq.errors import ConfigError

if TYPE_CHECKING:
    from iotmq.config.config import Config
    from iotmq.mqtt_front.routing.route_trial import Outcome
    from iotmq.mqtt_front.routing.routes import Router

_OK: Final = 0
_FAILED: Final = 1


def add_routes_actions(
    routes: argparse.ArgumentParser,
    *,
    add_config_options: Callable[[argparse.ArgumentParser], None],
    load: Callable[[argparse.Namespace], Config],
) -> None:
    """Add the actions of `routes`."""
    actions = routes.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="check the routes, and say which are never used, and which "
                               "placeholders stand for nothing")  # fmt: skip
    test = actions.add_parser("test", help="say what becomes of a message, and why; publishes nothing")
    test.add_argument("topic", metavar="TOPIC", help="the MQTT topic a device publishes to")
    payload = test.add_mutually_exclusive_group()
    payload.add_argument("payload", metavar="PAYLOAD", nargs="?", default="", help="the payload, as text")
    payload.add_argument("--hex", metavar="DIGITS", help="the payload, as hexadecimal digits")
    payload.add_argument("--file", metavar="FILE", help="the payload is in a file, - for standard input")
    test.add_argument(
        "--property", metavar="NAME=VALUE", action="append", default=[], dest="properties",
        help="a user property of MQTT 5; may be repeated",
    )  # fmt: skip
    test.add_argument("--content-type", metavar="TEXT", help="content type of MQTT 5")
    test.add_argument("--response-topic", metavar="TOPIC", help="response topic of MQTT 5")
    test.add_argument("--correlation-data", metavar="TEXT", help="correlation data of MQTT 5")
    test.add_argument("--expiry", metavar="SECONDS", type=int, help="message expiry interval of MQTT 5")
    test.add_argument("--qos", type=int, choices=(0, 1, 2), default=0, help="QoS of the message (0)")
    test.add_argument("--retain", action="store_true", help="the message has the retain flag")
    test.add_argument("--client-id", metavar="ID", default="", help="client id of the device")
    test.add_argument("--user", metavar="NAME", help="user name of the device")
    test.add_argument("--queues", metavar="N", type=int, help="queues of the broker topic "
                      "(`broker.default_topic_queues`)")  # fmt: skip
    test.add_argument("--json", dest="is_json", action="store_true", help="print one JSON object")
    for action, function in ((check, _check), (test, _test)):
        add_config_options(action)
        action.set_defaults(command=_command(function, load))


def _command(
    function: Callable[[argparse.Namespace, Config, Router], int],
    load: Callable[[argparse.Namespace], Config],
) -> Callable[[argparse.Namespace], int]:
    def run(options: argparse.Namespace) -> int:
        from iotmq.mqtt_front.routing.route_file import open_router

        config = load(options)
        return function(options, config, open_router(config.mqtt))

    return run


def _check(_options: argparse.Namespace, _config: Config, router: Router) -> int:
    warnings = [*router.warnings, *router.unfilled]
    for warning in warnings:
        print(warning)
    print(f"{router.count} routes, {len(router.warnings)} never used")
    return _FAILED if warnings else _OK


def _test(options: argparse.Namespace, config: Config, router: Router) -> int:
    from iotmq.mqtt.errors import MqttProtocolError
    from iotmq.mqtt.topics.delayed import split_delayed
    from iotmq.mqtt.topics.topics import SYS_PREFIX, decode_topic_name
    from iotmq.mqtt_front.routing.device_names import DeviceNames
    from iotmq.mqtt_front.routing.route_fields import RoutedMessage
    from iotmq.mqtt_front.routing.route_trial import explain
    from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites

    names = DeviceNames(options.client_id, options.user)
    queues = options.queues if options.queues is not None else config.broker.default_topic_queues
    if queues < 1:
        raise ConfigError(f"--queues {queues}: a topic has one at least")
    try:
        topic = decode_topic_name(options.topic.encode())
        delay_s, name = split_delayed(topic)
        name = TopicRewrites(config.mqtt.rewrites).published(name, names)
        if not delay_s:
            delay_s, name = split_delayed(name)
    except MqttProtocolError as error:
        raise ConfigError(f"{options.topic}: {error}") from None
    if name.startswith(SYS_PREFIX):
        raise ConfigError(f"{options.topic}: no device may publish below {SYS_PREFIX}")
    message = RoutedMessage(
        name,
        names,
        payload=_payload(options),
        properties=_properties(options),
        json_bytes_max=config.mqtt.json_bytes_max,
    )
    outcome = explain(router, message, qos=options.qos, queue_count=queues, is_retained=options.retain)
    if options.is_json:
        import msgspec

        print(msgspec.json.encode({**vars(outcome), "delay_s": delay_s}).decode())
    else:
        for what, value in _lines(outcome, delay_s, queues):
            print(f"{what:<12} {value}")
    return _OK


def _payload(options: argparse.Namespace) -> bytes:
    if options.hex is not None:
        try:
            return bytes.fromhex(options.hex)
        except ValueError as error:
            raise ConfigError(f"--hex {options.hex}: {error}") from None
    if options.file is None:
        return str(options.payload).encode()
    try:
        return sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{options.file}: {error.strerror}") from None


def _properties(options: argparse.Namespace) -> dict[str, object]:
    given: dict[str, object] = {}
    if options.properties:
        pairs = [text.partition("=") for text in options.properties]
        if not all(equals for _, equals, _ in pairs):
            raise ConfigError("--property has the form NAME=VALUE")
        given["user_properties"] = tuple((name, value) for name, _, value in pairs)
    if options.content_type is not None:
        given["content_type"] = options.content_type
    if options.response_topic is not None:
        given["response_topic"] = options.response_topic
    if options.correlation_data is not None:
        given["correlation_data"] = options.correlation_data.encode()
    if options.expiry is not None:
        given["message_expiry_s"] = options.expiry
    return given


def _because(why: str) -> str:
    return f" ({why})" if why else ""


def _lines(outcome: Outcome, delay_s: int, queues: int) -> list[tuple[str, str]]:
    lines = [("topic", outcome.topic)]
    lines += [("passed over", text) for text in outcome.passed_over]
    lines.append(("route", f"{outcome.route} (filter {outcome.filter})"))
    lines += [("check", text) for text in outcome.checks]
    if outcome.why:
        lines.append(("put aside" if outcome.is_put_aside else "dropped", outcome.why))
    if outcome.answer:
        lines.append(("answer", outcome.answer))
    if not outcome.goes_to:
        return lines
    lines.append(("goes to", f"{outcome.goes_to}, queue {outcome.queue} of {queues}"))
    lines.append(("key", outcome.key))
    if outcome.tags:
        lines.append(("tags", outcome.tags))
    lines += [("property", f"{name} = {value}") for name, value in outcome.properties.items()]
    lines.append(("QoS", f"{outcome.qos}{_because(outcome.qos_why)}"))
    if outcome.expiry_s is not None:
        lines.append(("expires", f"after {outcome.expiry_s} s{_because(outcome.expiry_why)}"))
    if delay_s and not outcome.is_put_aside:
        lines.append(("delayed", f"{delay_s} s"))
    if not outcome.is_stored and not delay_s:
        lines.append(("stored", "no: for live subscribers only"))
    return lines
