"""`iotmq sub`: write received messages to standard output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from iotmq.commands.mqtt import output_format
from iotmq.commands.mqtt.options import FILTER_RULE, SharedOptions, read_shared_options
from iotmq.commands.mqtt.running import EXIT_OK, run, speaker
from iotmq.commands.mqtt.standard_streams import OutputWriter
from iotmq.errors import ConfigError
from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.client.session import OutgoingMessage
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_5
from iotmq.mqtt.codec.subscription_options import (
    SEND_NO_RETAINED,
    SEND_RETAINED,
    SEND_RETAINED_WHEN_NEW,
    SubscriptionOptions,
)
from iotmq.mqtt.topics import topics
from iotmq.mqtt_client.client import MqttClient

_RETAIN_HANDLING = {
    "always": SEND_RETAINED,
    "new": SEND_RETAINED_WHEN_NEW,
    "never": SEND_NO_RETAINED,
}


def subscribe(options: argparse.Namespace) -> int:
    """Run `iotmq sub`."""
    shared = read_shared_options(options)
    filters = _filters(options, shared)
    write = message_writer(options)
    say = speaker(is_quiet=options.quiet)
    work = _subscribe(options, shared, filters, write, say)
    return run(work, timeout_s=options.timeout_s, is_quiet=options.quiet)


def message_writer(options: argparse.Namespace) -> output_format.Writer:
    """Choose the output format: -F, -v or just the payload."""
    end = b"" if options.has_no_end else b"\n"
    if options.format is not None:
        return output_format.compile_format(options.format, end)
    return output_format.verbose(end) if options.verbose else output_format.plain(end)


def _filters(options: argparse.Namespace, shared: SharedOptions) -> list[tuple[str, int]]:
    """Filters with the byte of their options."""
    filters = [*options.topics, *([shared.url_topic] if shared.url_topic else [])]
    if not filters and not options.unsubscribed:
        raise ConfigError("a filter is needed: -t FILTER, or at the end of -L")
    for name, words in (("-t", filters), ("-T", options.filtered_out), ("-U", options.unsubscribed)):
        for word in words:
            if not word or not topics.is_valid_filter(word):
                raise ConfigError(f"{name} {word} is no topic filter: {FILTER_RULE}")
    asked = SubscriptionOptions(
        options.qos,
        options.no_local,
        options.retain_as_published,
        _RETAIN_HANDLING[options.retain_handling],
    )
    if any(asked[1:]) and shared.settings.protocol_level != PROTOCOL_LEVEL_5:
        raise ConfigError(
            "--no-local, --retain-as-published and --retain-handling are there with MQTT 5: leave -V away"
        )
    of_shared = asked._replace(no_local=False).encode()
    return [(word, of_shared if topics.is_shared(word) else asked.encode()) for word in filters]


async def _subscribe(
    options: argparse.Namespace,
    shared: SharedOptions,
    filters: list[tuple[str, int]],
    write: output_format.Writer,
    say: Callable[[str], None],
) -> int:
    selection = Selection(options)
    async with MqttClient(shared.settings, on_change=say) as client:
        if options.unsubscribed:
            unsubscribe = shared.properties_of("unsubscribe")
            await client.unsubscribe(*options.unsubscribed, properties=unsubscribe)
        if filters:
            await client.subscribe(*filters, properties=shared.properties_of("subscribe"))
        if options.is_ended_after_subscribe or not filters or options.count == 0:
            return EXIT_OK
        with OutputWriter(sys.stdout.buffer) as output:
            while not selection.is_over:
                wanted = selection.select(await client.next_batch(selection.missing))
                if wanted:
                    await output.write(b"".join(map(write, wanted)))
                if options.remove_retained:
                    await _remove_retained(client, wanted)
        # What was written is not to come again.
        client.acknowledge()
    return EXIT_OK


async def _remove_retained(client: MqttClient, messages: list[ReceivedMessage]) -> None:
    for message in messages:
        if message.is_retained:
            await client.room()
            client.send(OutgoingMessage(message.topic.encode(), b"", qos=0, retain=True))


class Selection:
    """Which messages are written, and when it is enough."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.is_over = False
        self._count_max: int | None = options.count
        self._written = 0
        self._filtered_out: list[str] = options.filtered_out
        self._has_no_retained: bool = options.has_no_retained
        self._is_retained_only: bool = options.is_retained_only
        self._is_simple = not (self._filtered_out or self._has_no_retained or self._is_retained_only)

    @property
    def missing(self) -> int | None:
        """Return how many may come at most; None for any number."""
        return None if self._count_max is None else self._count_max - self._written

    def select(self, batch: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return those that are written, of a batch that is not larger than `missing`."""
        wanted = batch
        if self._is_retained_only:
            wanted = []
            for message in batch:
                if not message.is_retained:
                    self.is_over = True
                    break
                wanted.append(message)
        if not self._is_simple:
            wanted = [message for message in wanted if self._is_wanted(message)]
        self._written += len(wanted)
        self.is_over |= self._written == self._count_max
        return wanted

    def _is_wanted(self, message: ReceivedMessage) -> bool:
        if self._has_no_retained and message.is_retained:
            return False
        return not any(topics.matches(topic_filter, message.topic) for topic_filter in self._filtered_out)
