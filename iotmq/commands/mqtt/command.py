"""The words of `iotmq pub`, `iotmq sub` and `iotmq rr`."""

from __future__ import annotations

import argparse

from iotmq.commands.mqtt.arguments import add_shared_options


def add_publish_options(publish: argparse.ArgumentParser) -> None:
    """Add the options of `pub`; what the three commands need is loaded when one of them runs."""
    publish.set_defaults(command=_publish)
    _add_message_options(publish)
    publish.add_argument("--repeat", type=_count, default=1, metavar="N", help="send the message N times")
    publish.add_argument(
        "--repeat-delay",
        dest="repeat_delay_s",
        type=_delay,
        default=0.0,
        metavar="SECONDS",
        help="between two",
    )
    add_shared_options(publish)


def add_subscribe_options(subscribe: argparse.ArgumentParser) -> None:
    """Add the options of `sub`."""
    subscribe.set_defaults(command=_subscribe)
    _add_subscription_options(subscribe)
    _add_output_options(subscribe)
    add_shared_options(subscribe)


def add_request_options(request: argparse.ArgumentParser) -> None:
    """Add the options of `rr`."""
    request.set_defaults(command=_request)
    _add_message_options(request, has_lines=False)
    request.add_argument(
        "-e", "--response-topic", metavar="TOPIC", help="topic of the answer (with MQTT 5, a generated one)"
    )
    _add_output_options(request)
    add_shared_options(request)


def _add_message_options(command: argparse.ArgumentParser, *, has_lines: bool = True) -> None:
    message = command.add_argument_group("message")
    message.add_argument("-t", "--topic", metavar="TOPIC")
    payload = message.add_mutually_exclusive_group(required=True)
    payload.add_argument("-m", "--message", metavar="TEXT")
    payload.add_argument("-f", "--file", metavar="FILE", help="send the contents of FILE")
    payload.add_argument(
        "-s",
        "--stdin-file",
        dest="is_input",
        action="store_true",
        help="all of standard input is the message",
    )
    if has_lines:
        payload.add_argument(
            "-l",
            "--stdin-line",
            dest="is_lines",
            action="store_true",
            help="each line of standard input is a message",
        )
    payload.add_argument("-n", "--null-message", dest="is_null", action="store_true", help="an empty one")
    message.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="(0)")
    message.add_argument("-r", "--retain", dest="is_retained", action="store_true")


def _add_subscription_options(command: argparse.ArgumentParser) -> None:
    what = command.add_argument_group("subscriptions")
    what.add_argument(
        "-t", "--topic", dest="topics", action="append", default=[], metavar="FILTER", help="may be repeated"
    )
    what.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="(0)")
    what.add_argument(
        "-U",
        "--unsubscribe",
        dest="unsubscribed",
        action="append",
        default=[],
        metavar="FILTER",
        help="end this subscription of a kept session, may be repeated",
    )
    what.add_argument("--no-local", action="store_true", help="nothing that the same client published")
    what.add_argument("--retain-as-published", action="store_true", help="with the retain flag it came with")
    what.add_argument(
        "--retain-handling",
        choices=("always", "new", "never"),
        default="always",
        help="when retained messages are sent (always)",
    )
    what.add_argument(
        "-E",
        dest="is_ended_after_subscribe",
        action="store_true",
        help="end when the subscriptions are acknowledged",
    )
    which = command.add_argument_group("messages")
    which.add_argument(
        "-T",
        "--filter-out",
        dest="filtered_out",
        action="append",
        default=[],
        metavar="FILTER",
        help="do not write messages of these topics, may be repeated",
    )
    which.add_argument("-C", "--count", type=_count, metavar="N", help="end after N messages")
    which.add_argument(
        "--retained-only",
        dest="is_retained_only",
        action="store_true",
        help="write retained messages, and end with the first other one",
    )
    which.add_argument(
        "--remove-retained", action="store_true", help="delete the retained messages that are written"
    )


def _add_output_options(command: argparse.ArgumentParser) -> None:
    output = command.add_argument_group("output")
    output.add_argument("-v", "--verbose", action="store_true", help="write the topic before the payload")
    output.add_argument(
        "-F",
        "--format",
        metavar="FORMAT",
        help="such as '%%t %%q %%p' or %%j; docs/reference/mqtt-client.md has them all",
    )
    output.add_argument(
        "-N", dest="has_no_end", action="store_true", help="no end of line behind each message"
    )
    output.add_argument("-R", dest="has_no_retained", action="store_true", help="no retained messages")


def _publish(options: argparse.Namespace) -> int:
    from iotmq.commands.mqtt.publishing import publish

    return publish(options)


def _subscribe(options: argparse.Namespace) -> int:
    from iotmq.commands.mqtt.subscribing import subscribe

    return subscribe(options)


def _request(options: argparse.Namespace) -> int:
    from iotmq.commands.mqtt.requesting import request

    return request(options)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _delay(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError(text)
    return number
