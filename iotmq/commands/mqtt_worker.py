"""One worker of `iotmq mqtt --workers N`, started by the supervisor: `-m iotmq.commands.mqtt_worker NUMBER`.

It is a front end like any other, but for its HTTP port, which the supervisor has. It ends when the supervisor
does, in an orderly way: devices are told, and what they sent is acknowledged or not stored.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import sys
from collections.abc import Iterable
from typing import Final

from iotmq.assembly import Process, run_process
from iotmq.errors import IotmqError
from iotmq.log_format import set_up_logging
from iotmq.metrics import Metric, samples
from iotmq.supervised import surviving
from iotmq.workers.channel import (
    Ask,
    Begin,
    Failed,
    Listening,
    Show,
    Status,
    frame,
    read_to_worker,
    status,
)

_PAGE_BYTES: Final = resource.getpagesize()
_CHANNEL_FD: Final = 0


def main() -> int:
    """Run until the supervisor says so or ends."""
    import uvloop

    code: int = uvloop.run(_work(_channel()))
    return code


class _OwnProcess:
    """Report the metrics of this process that the supervisor cannot see."""

    def metrics(self) -> Iterable[Metric]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[1])
        used_s = used.ru_utime + used.ru_stime
        return samples(
            ("cpu_seconds_total", "Processor time the worker has used.", used_s),
            ("resident_memory_bytes", "Memory of the worker.", pages * _PAGE_BYTES),
            prefix="iotmq_mqtt_worker_",
        )


async def _work(channel: socket.socket) -> int:
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    begin = await read_to_worker(reader)
    if not isinstance(begin, Begin):
        return 1
    handler = set_up_logging(begin.config.log)
    handler.addFilter(_numbered(begin.number))
    process = Process(begin.config, "mqtt", is_worker=True)
    process.sources.append(_OwnProcess())
    stop_asked = asyncio.Event()
    listening = asyncio.ensure_future(_answer(process, reader, writer, stop_asked))
    try:
        await run_process(
            process, stop_asked, fields={"pid": str(os.getpid())}, on_ready=lambda: _say(writer, Listening())
        )
        return 0
    except (IotmqError, OSError) as error:
        _say(writer, Failed(str(error)))
        return 1
    finally:
        listening.cancel()
        writer.close()


def _channel() -> socket.socket:
    """Return the socket that came as standard input, whose place nothing else can take by mistake."""
    channel = socket.socket(fileno=os.dup(_CHANNEL_FD))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), _CHANNEL_FD)
    return channel


async def _answer(
    process: Process,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    stop_asked: asyncio.Event,
) -> None:
    with surviving("hearing of the supervisor"):
        while (asked := await read_to_worker(reader)) is not None:
            if isinstance(asked, Ask):
                with surviving("answers to the supervisor"):
                    _say(writer, status(asked.ask_id, process.readiness(), process.metrics()))
            elif isinstance(asked, Show):
                _show(process, asked)
    # The supervisor is gone, by whatever death, or cannot be understood: nobody would stop or watch this
    # process any more.
    stop_asked.set()


def _show(process: Process, shown: Show) -> None:
    # The supervisor says nothing of this before devices are served.
    if process.sys_topics is not None:
        if shown.text is None:
            process.sys_topics.drop(shown.topic)
        else:
            process.sys_topics.put(shown.topic, shown.text)


def _say(writer: asyncio.StreamWriter, message: Listening | Failed | Status) -> None:
    if not writer.is_closing():
        writer.write(frame(message))


def _numbered(number: int) -> logging.Filter:
    """Puts the worker's number into each of its lines."""

    class Numbered(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            record.worker = number
            return True

    return Numbered()


if __name__ == "__main__":
    sys.exit(main())
