"""Connect the supervisor of MQTT workers and a worker by one socket pair.

A frame is u32 size, big-endian, and a message in MessagePack. The worker's end is its standard input, so it
is there before anything else of the process is, and when the supervisor dies, of whatever, it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from iotmq import limits
from iotmq.config.config import Config
from iotmq.config.setting_text import hide_secrets
from iotmq.metrics import Metric


class Begin(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the worker, first of all: who it is and what it runs."""

    number: int
    config: Config


class Ask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the worker: how is it?"""

    ask_id: int


class Show(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """To the worker: what its clients read at a topic below $SYS/; None: nothing any more."""

    topic: str
    text: str | None


class Listening(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From the worker, once: devices are served."""


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From the worker, before it ends: why it cannot start."""

    reason: str


class Status(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """From the worker: the answer to an Ask."""

    ask_id: int
    # Part -> why it is not ready, None when it is.
    parts: dict[str, str | None]
    metrics: list[Metric]


ToWorker: TypeAlias = Begin | Ask | Show
FromWorker: TypeAlias = Listening | Failed | Status

# Secrets go as the text they are: nobody else has an end of the socket.
_encode = msgspec.msgpack.Encoder(enc_hook=str).encode
_to_worker: Final[msgspec.msgpack.Decoder[ToWorker]] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: Final[msgspec.msgpack.Decoder[FromWorker]] = msgspec.msgpack.Decoder(FromWorker)


def frame(message: ToWorker | FromWorker) -> bytes:
    """Encode a message."""
    body = _encode(message)
    return len(body).to_bytes(4, "big") + body


def status(ask_id: int, parts: Mapping[str, str | None], metrics: Iterable[Metric]) -> Status:
    """With numbers as they are read: parts give booleans, too."""
    numbers = [metric._replace(value=float(metric.value)) for metric in metrics]
    return Status(ask_id, dict(parts), numbers)


async def read_to_worker(reader: asyncio.StreamReader) -> ToWorker | None:
    """Read a message of the supervisor; None when it is gone."""
    body = await _body(reader)
    if body is None:
        return None
    message = _to_worker.decode(body)
    if isinstance(message, Begin):
        hide_secrets(message.config)
    return message


async def read_from_worker(reader: asyncio.StreamReader) -> FromWorker | None:
    """Read a message of a worker; None when it is gone."""
    body = await _body(reader)
    return None if body is None else _from_worker.decode(body)


async def _body(reader: asyncio.StreamReader) -> bytes | None:
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > limits.WORKER_FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes between worker and supervisor")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
