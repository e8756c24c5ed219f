"""Follow topics from a terminal: the last messages, and those that come."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from typing import BinaryIO, Final

from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ClientSettings, PullConsumerSettings
from iotmq.client.transport.subscriptions import parse_subscription
from iotmq.commands.messages.produce_consume import ANONYMOUS_GROUP, FORMATS, OutputFormat

LAST_MAX: Final = 100_000
_TOLD_AGAIN_MS: Final = 60_000


async def tail(
    settings: ClientSettings,
    topics: Collection[str],
    output: BinaryIO,
    *,
    tags: str = "*",
    last: int = 0,
    count_max: int | None = None,
    percent: float = 100,
    output_format: OutputFormat = "text",
) -> int:
    """Write the last messages of the topics, oldest first, then all that come, until the task is cancelled.

    Of all these the brokers choose `percent`. Nothing is stored there: neither offsets nor a share of a
    group. A topic that does not exist yet is waited for, and then written whole. Ends after `count_max`
    messages; returns 0.
    """
    # Queues that come later are new from their first message on.
    consumer_settings = PullConsumerSettings(model="broadcasting", consume_from="first")
    written = 0

    def write(messages: Sequence[ReceivedMessage]) -> bool:
        nonlocal written
        picked = messages if count_max is None else messages[: count_max - written]
        output.writelines(map(FORMATS[output_format], picked))
        output.flush()
        written += len(picked)
        return written == count_max

    async with ClientTransport(settings) as client:
        for topic in topics:
            if await client.routes.find(topic) is None:
                print(f"topic {topic} does not exist yet; waiting for it", file=sys.stderr)
        consumer = PullConsumer(client, ANONYMOUS_GROUP, consumer_settings)
        for topic in topics:
            if percent < 100:
                await consumer.subscribe(topic, sql=_sample(topic, tags, percent))
            else:
                await consumer.subscribe(topic, tags)
        async with consumer:
            is_over = write(await _last_messages(consumer, last))
            while not is_over:
                is_over = write(await consumer.getmany(timeout_ms=_TOLD_AGAIN_MS))
    return 0


def _sample(topic: str, tags: str, percent: float) -> str:
    """Write a subscription to a share of the messages, of those with the tags."""
    wanted = parse_subscription(topic, tags, 0).tags
    texts = ", ".join("'" + tag.replace("'", "''") + "'" for tag in sorted(wanted))
    return f"SAMPLE({percent:g})" + (f" AND TAGS IN ({texts})" if texts else "")


async def _last_messages(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    """Read the last messages of all queues; at most `count` of each queue, and so many altogether."""
    ends: dict[MessageQueue, int] = {}
    for queue in consumer.assigned:
        begin, ends[queue] = await consumer.begin_offset(queue), await consumer.end_offset(queue)
        await consumer.seek(queue, max(begin, ends[queue] - count))
    found: list[ReceivedMessage] = []
    while any(consumer.positions().get(queue, end) < end for queue, end in ends.items()):
        found += await consumer.getmany(timeout_ms=100)
        if len(found) > 2 * count:
            found = _newest(found, count)
    return _newest(found, count)


def _newest(messages: list[ReceivedMessage], count: int) -> list[ReceivedMessage]:
    return sorted(messages, key=lambda message: message.store_timestamp_ms)[-count:]


def add_tail_options(command: argparse.ArgumentParser, *, run: Callable[[argparse.Namespace], int]) -> None:
    """Add what the command has beside its connection."""
    command.add_argument("topics", metavar="TOPIC", nargs="+", help="broker topic")
    command.add_argument(
        "-n", "--last", type=_last, default=10, metavar="N", help="begin with the last N messages (10)"
    )
    command.add_argument("--tags", default="*", metavar="EXPRESSION", help="such as 'alarm || fault'")
    command.add_argument(
        "--sample",
        type=_percent,
        default=100.0,
        metavar="PERCENT",
        help="show so many of the messages, which the brokers choose",
    )
    command.add_argument("--count", type=_last, metavar="N", help="end after N messages")
    command.add_argument("--format", choices=tuple(FORMATS), default="text", help="output format")
    command.set_defaults(command=run)


def _last(text: str) -> int:
    number = int(text) if text.isdecimal() else -1
    if not 0 <= number <= LAST_MAX:
        raise argparse.ArgumentTypeError(f"{text}: a number from 0 to {LAST_MAX:,}")
    return number


def _percent(text: str) -> float:
    percent = float(text.removesuffix("%"))
    if not 0 < percent <= 100:
        raise argparse.ArgumentTypeError(f"{text}: more than 0 and at most 100 percent")
    return percent
