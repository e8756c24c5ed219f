"""`iotmq pub`: publish what is given, or what comes on standard input."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from iotmq.commands.mqtt.options import SharedOptions, read_shared_options
from iotmq.commands.mqtt.running import EXIT_FAILED, EXIT_OK, run, speaker
from iotmq.commands.mqtt.standard_streams import all_of, lines_of
from iotmq.errors import ConfigError
from iotmq.mqtt.client.events import Acknowledged
from iotmq.mqtt.client.session import OutgoingMessage
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_client.client import MqttClient


def publish(options: argparse.Namespace) -> int:
    """Run `iotmq pub`."""
    shared = read_shared_options(options)
    topic = publish_topic(options, shared)
    if (options.repeat != 1 or options.repeat_delay_s) and options.is_lines:
        raise ConfigError("--repeat and --repeat-delay are for one message: leave -l away")
    say = speaker(is_quiet=options.quiet)
    return run(_publish(options, shared, topic, say), timeout_s=options.timeout_s, is_quiet=options.quiet)


def publish_topic(options: argparse.Namespace, shared: SharedOptions) -> str:
    """Of -t or of the URL."""
    topic = options.topic if options.topic is not None else shared.url_topic
    if not topic:
        raise ConfigError("a topic is needed: -t TOPIC, or at the end of -L")
    if "+" in topic or "#" in topic:
        raise ConfigError(f"-t {topic}: a topic to publish to may not contain + or #")
    return str(topic)


async def _publish(
    options: argparse.Namespace, shared: SharedOptions, topic: str, say: Callable[[str], None]
) -> int:
    publisher = _Publisher(
        topic.encode(),
        options.qos,
        is_retained=options.is_retained,
        properties=shared.properties_of("publish"),
    )
    # Before a connection is made that would wait for a file that is not there.
    payload = None if options.is_lines else await given_payload(options)
    async with MqttClient(shared.settings, on_change=say) as client:
        if payload is None:
            async for lines in lines_of(sys.stdin.buffer):
                await publisher.send(client, lines)
        else:
            async for count in _turns(options.repeat, options.repeat_delay_s):
                await publisher.send(client, [payload] * count)
        await client.drain()
    if publisher.refused_count:
        say(f"{publisher.refused_count} messages were refused, the first because: {publisher.first_refusal}")
        return EXIT_FAILED
    return EXIT_OK


async def given_payload(options: argparse.Namespace) -> bytes:
    """Return the payload that -m, -f, -s or -n gives."""
    if options.message is not None:
        return os.fsencode(options.message)
    if options.is_input:
        return await all_of(sys.stdin.buffer)
    if options.file is not None:
        try:
            return Path(options.file).read_bytes()  # noqa: ASYNC240 (nothing else runs yet)
        except OSError as error:
            raise ConfigError(f"-f {options.file}: {error.strerror}") from None
    return b""


async def _turns(repeat: int, delay_s: float) -> AsyncIterator[int]:
    """Return how many messages to send at a time."""
    if not delay_s:
        yield repeat
        return
    for turn in range(repeat):
        if turn:
            await asyncio.sleep(delay_s)
        yield 1


class _Publisher:
    """Sends payloads one behind the other, never more than there is room for."""

    def __init__(self, topic: bytes, qos: int, *, is_retained: bool, properties: Properties) -> None:
        self._topic = topic
        self._qos = qos
        self._is_retained = is_retained
        self._properties = properties
        self.refused_count = 0
        self.first_refusal = ""

    async def send(self, client: MqttClient, payloads: list[bytes]) -> None:
        token = self._done if self._qos else None
        for payload in payloads:
            if not client.has_room:
                await client.room()
            client.send(
                OutgoingMessage(
                    self._topic,
                    payload,
                    qos=self._qos,
                    retain=self._is_retained,
                    properties=self._properties,
                    token=token,
                )
            )

    def _done(self, acknowledged: Acknowledged) -> None:
        if acknowledged.code:
            self.first_refusal = self.first_refusal or acknowledged.reason
            self.refused_count += 1
