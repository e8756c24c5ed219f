"""`iotmq rr`: publish a request, and write the answer to standard output.

With MQTT 5 the request has a response topic and correlation data, and the answer is the first message with
the same correlation data. MQTT 3.1.1 has no fields for that: there the level `{reply}` in the topic of the
request and in that of the answer stands for a token made by chance, so a device can take it from the one and
put it into the other; without it, the first message to the topic of the answer is it.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace

from iotmq.commands.mqtt import output_format
from iotmq.commands.mqtt.options import FILTER_RULE, SharedOptions, read_shared_options
from iotmq.commands.mqtt.publishing import given_payload, publish_topic
from iotmq.commands.mqtt.running import EXIT_OK, run, speaker
from iotmq.commands.mqtt.standard_streams import OutputWriter
from iotmq.commands.mqtt.subscribing import message_writer
from iotmq.errors import ConfigError
from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_5
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.topics import topics
from iotmq.mqtt_client.client import MqttClient

_REPLY = "{reply}"
_RESPONSE_BASE = "iotmq-rr"


def request(options: argparse.Namespace) -> int:
    """Run `iotmq rr`."""
    shared = read_shared_options(options)
    topic = publish_topic(options, shared)
    is_v5 = shared.settings.protocol_level == PROTOCOL_LEVEL_5
    if options.response_topic is None:
        if shared.properties_of("publish").response_topic is not None:
            options.response_topic = shared.properties_of("publish").response_topic
        elif not is_v5:
            raise ConfigError("before MQTT 5 the topic of the answer has to be named: -e TOPIC")
    if options.response_topic is not None and not topics.is_valid_filter(options.response_topic):
        raise ConfigError(f"-e {options.response_topic} is no topic filter: {FILTER_RULE}")
    if is_v5 and options.response_topic is not None and {"+", "#"} & set(options.response_topic):
        raise ConfigError(f"-e {options.response_topic}: a response topic has no wildcards")
    if is_v5 and options.response_topic is None:
        wanted = replace(shared.settings.connect_properties, request_response_information=1)
        shared = replace(shared, settings=replace(shared.settings, connect_properties=wanted))
    write = message_writer(options)
    say = speaker(is_quiet=options.quiet)
    work = _request(options, shared, topic, write, say)
    return run(work, timeout_s=options.timeout_s, is_quiet=options.quiet)


async def _request(
    options: argparse.Namespace,
    shared: SharedOptions,
    topic: str,
    write: output_format.Writer,
    say: Callable[[str], None],
) -> int:
    payload = await given_payload(options)
    token = secrets.token_hex(8)
    async with MqttClient(shared.settings, on_change=say) as client:
        response_topic = options.response_topic
        if response_topic is None:
            response_topic = _own_response_topic(client)
        response_topic = response_topic.replace(_REPLY, token)
        properties = NO_PROPERTIES
        if shared.settings.protocol_level == PROTOCOL_LEVEL_5:
            properties = _request_properties(shared, response_topic, token)
        subscribe = shared.properties_of("subscribe")
        await client.subscribe((response_topic, options.qos), properties=subscribe)
        await client.publish(
            topic.replace(_REPLY, token),
            payload,
            qos=options.qos,
            retain=options.is_retained,
            properties=properties,
        )
        answer = await _answer(client, properties.correlation_data, has_no_retained=options.has_no_retained)
        with OutputWriter(sys.stdout.buffer) as output:
            await output.write(write(answer))
        client.acknowledge()
    return EXIT_OK


def _own_response_topic(client: MqttClient) -> str:
    """Below what the server says is for that [MQTT 5 section 4.10.1], else below a word of ours."""
    base = client.connected_with.properties.response_information or _RESPONSE_BASE
    return f"{base.rstrip('/')}/{client.connected_with.client_id}"


def _request_properties(shared: SharedOptions, response_topic: str, token: str) -> Properties:
    given = shared.properties_of("publish")
    data = given.correlation_data if given.correlation_data is not None else token.encode()
    return replace(given, response_topic=response_topic, correlation_data=data)


async def _answer(client: MqttClient, data: bytes | None, *, has_no_retained: bool) -> ReceivedMessage:
    """Return the first message that answers; others to the same topic may be for somebody else."""
    while True:
        (message,) = await client.next_batch(1)
        if has_no_retained and message.is_retained:
            continue
        if data is None or message.properties.correlation_data in (data, None):
            return message
