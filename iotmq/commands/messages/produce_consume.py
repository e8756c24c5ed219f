"""Send and read messages from a terminal, with the native client."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import BinaryIO, Final, Literal

import msgspec

from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import Message, ReceivedMessage, SendResult
from iotmq.client.transport.settings import ClientSettings, PushConsumerSettings
from iotmq.commands.admin.output import printable
from iotmq.errors import MessageRefusedError
from iotmq.limits import RECORD_BYTES_MAX
from iotmq.message.bodies import body_field
from iotmq.message.errors import MessageFormatError

OutputFormat = Literal["text", "json", "raw"]

# The group of readers that named none. Its members each get everything, and no offset is stored.
ANONYMOUS_GROUP: Final = "by-hand"
_AHEAD_MAX: Final = 1_024


async def produce(
    settings: ClientSettings,
    topic: str,
    bodies: AsyncIterator[bytes],
    *,
    key: str = "",
    tags: str = "",
    properties: Mapping[str, str] | None = None,
    report: Callable[[SendResult], None] | None = None,
) -> int:
    """Send one message per body and return how many are stored; `report` is told about each, in order.

    Raises what `Producer.send` raises, after the sends before it have ended.
    """
    client = ClientTransport(settings)
    pending: deque[asyncio.Future[SendResult]] = deque()
    stored = 0

    async def first_stored() -> None:
        nonlocal stored
        result = await pending[0]
        if report is not None:
            report(result)
        pending.popleft()
        stored += 1

    async with client, Producer(client) as producer:
        try:
            async for body in bodies:
                await producer.room()
                message = Message(topic, body, key=key, tags=tags, properties=properties)
                pending.append(producer.send_nowait(message))
                while pending and (pending[0].done() or len(pending) >= _AHEAD_MAX):
                    await first_stored()
            while pending:
                await first_stored()
        finally:
            # Those behind a failed one were sent too: let them end, so that nothing is left half done.
            await asyncio.gather(*pending, return_exceptions=True)
    return stored


async def lines_of(stream: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the lines of a stream that may block for as long as it likes, without their line ends."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue(_AHEAD_MAX)

    def hand_over(line: bytes | None) -> None:
        putting = lines.put(line)
        try:
            asyncio.run_coroutine_threadsafe(putting, loop).result()
        except RuntimeError:
            putting.close()  # the loop has ended: nobody will
            raise

    def read() -> None:
        # A loop that ended before the stream ends this thread, with an error nobody has to see.
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):
            with contextlib.suppress(OSError, ValueError):
                while line := stream.readline(RECORD_BYTES_MAX + 1):
                    hand_over(line)
            hand_over(None)

    # Not the loop's executor: that would wait at the end for a read that may never return.
    threading.Thread(target=read, name="lines", daemon=True).start()
    while (line := await lines.get()) is not None:
        if len(line) > RECORD_BYTES_MAX:
            raise MessageRefusedError(f"a line has more than {RECORD_BYTES_MAX:,} bytes")
        yield line.removesuffix(b"\n").removesuffix(b"\r")


async def consume(
    settings: ClientSettings,
    topic: str,
    output: BinaryIO,
    *,
    group: str = "",
    tags: str = "*",
    begin: Literal["first", "last"] = "last",
    count_max: int | None = None,
    output_format: OutputFormat = "text",
) -> int:
    """Write messages to `output` until `count_max` are written or the task is cancelled; returns how many.

    ConnectionClosedError when no registry is there, OSError when `output` takes no more.

    With a `group` the messages are shared with its other members and its offsets are stored; messages not
    written stay for the next reader. `begin` counts for groups without offsets, and always without a group.
    """
    write = FORMATS[output_format]
    ended = asyncio.Event()
    failure: OSError | None = None
    written = 0

    async def show(messages: list[ReceivedMessage]) -> None:
        nonlocal written, failure
        for message in messages:
            if ended.is_set():
                # Neither consumed nor failed: the consumer stops before this returns, and its offset stays.
                await asyncio.Event().wait()
            try:
                output.write(write(message))
                output.flush()
            except OSError as error:
                failure = error
                ended.set()
                await asyncio.Event().wait()
            written += 1
            if written == count_max:
                ended.set()

    consumer_settings = PushConsumerSettings(
        model="clustering" if group else "broadcasting",
        consume_from=begin,
        batch_max=1 if count_max is not None else 32,
        stop_timeout_ms=100,
    )
    client = ClientTransport(settings)
    consumer = PushConsumer(client, group or ANONYMOUS_GROUP, show, settings=consumer_settings)
    async with client:
        # A service waits for its registry; a person wants to know. A topic that is not there yet may come.
        if await client.routes.find(topic) is None:
            print(f"topic {topic} does not exist yet; waiting for it", file=sys.stderr)
        await consumer.subscribe(topic, tags)
        async with consumer:
            if count_max != 0:
                await ended.wait()
    if failure is not None:
        raise failure
    return written


def _text(message: ReceivedMessage) -> bytes:
    """One line: where it stands, its key and tags, its body. Nothing in it can steer the terminal."""
    body = _body(message).decode("utf-8", "backslashreplace")
    fields = [
        f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}",
        printable(message.properties.get("MQTT_TOPIC") or " ".join(message.keys) or "-"),
    ]
    if message.tags:
        fields.append(f"[{printable(message.tags)}]")
    return " ".join([*fields, printable(body)]).encode() + b"\n"


def _json(message: ReceivedMessage) -> bytes:
    """One JSON object per line; a body that is no text is in `body_base64`."""
    fields: dict[str, object] = {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "keys": message.keys,
        "tags": message.tags,
        "properties": message.properties,
    }
    return msgspec.json.encode(fields | body_field(_body(message))) + b"\n"


def _raw(message: ReceivedMessage) -> bytes:
    return _body(message) + b"\n"


def _body(message: ReceivedMessage) -> bytes:
    """The body as it was sent, or as it is stored when it cannot be inflated: one must not stop all."""
    try:
        return message.body
    except MessageFormatError:
        return message.record.body


FORMATS: Final[dict[OutputFormat, Callable[[ReceivedMessage], bytes]]] = {
    "text": _text,
    "json": _json,
    "raw": _raw,
}
