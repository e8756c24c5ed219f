"""Write the messages of topics into files: what an archive has is told by the names of its files.

A file has messages of one queue, one a line. While it grows it is called `BROKER.QUEUE.part`; when it is
whole and on the disk it gets the name `TIME.BROKER.QUEUE.FIRST-END.jsonl.gz`: the time its first message was
stored, and the offsets that it stands for, END not included. Only then the group's offset is committed. So an
archive that was killed goes on behind its last whole file, whatever was committed, and nothing is lost or
twice in one directory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import fcntl
import gzip
import hashlib
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote, unquote

import msgspec

from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.consuming.pulling.queue_fetch import is_passing
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ClientSettings, PullConsumerSettings
from iotmq.clock import Clock
from iotmq.commands.messages.produce_consume import FORMATS, OutputFormat
from iotmq.errors import ClientError, IotmqError
from iotmq.files import make_directory, sync_path

_log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"\d{8}T\d{6}Z\.(.+)\.(\d+)\.(\d{20})-(\d{20})\.(?:jsonl|raw)(?:\.gz)?")
_EXTENSIONS: Final[dict[OutputFormat, str]] = {"json": "jsonl", "raw": "raw"}
# How long messages are waited for before the age of files is looked at.
_LOOK_MS: Final = 200


class ArchiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to, and when a file is whole."""

    directory: Path
    output_format: OutputFormat = "json"
    is_compressed: bool = True
    file_bytes: int = 128 * 1024 * 1024
    """Bytes on the disk after which a file is whole."""
    file_s: float = 3_600
    """Seconds after its first line that a file is whole."""


class ArchiveFile:
    """The file of one queue that grows."""

    def __init__(self, settings: ArchiveSettings, queue: MessageQueue, first: ReceivedMessage) -> None:
        """Begin it over what a killed archive may have left under its name; raises OSError."""
        self._settings = settings
        self._queue = queue
        self._first_offset = first.queue_offset
        self._first_ms = first.store_timestamp_ms
        self.end_offset = first.queue_offset
        """Behind the last message that is in it."""
        self._directory = settings.directory / queue.topic
        make_directory(self._directory)
        self._part = self._directory / f"{_quoted(queue.broker_name)}.{queue.queue_id}.part"
        self._file = self._part.open("wb")
        # Level 1 costs a third of the usual one, for a tenth more bytes.
        self._lines: BinaryIO | gzip.GzipFile = (
            gzip.GzipFile(filename="", fileobj=self._file, mode="wb", compresslevel=1)
            if settings.is_compressed
            else self._file
        )

    def write(self, messages: Iterable[ReceivedMessage]) -> None:
        """Append messages; raises OSError."""
        self._lines.writelines(map(FORMATS[self._settings.output_format], messages))

    @property
    def size(self) -> int:
        """Return the bytes that are on their way to the disk."""
        return self._file.tell()

    def finish(self) -> Path:
        """Put the file on the disk and give it its name; raises OSError."""
        self._lines.close()
        self._file.close()
        sync_path(self._part)
        moment = datetime.datetime.fromtimestamp(self._first_ms / 1_000, datetime.UTC)
        extension = _EXTENSIONS[self._settings.output_format] + (
            ".gz" if self._settings.is_compressed else ""
        )
        path = self._directory / (
            f"{moment:%Y%m%dT%H%M%SZ}.{_quoted(self._queue.broker_name)}.{self._queue.queue_id}."
            f"{self._first_offset:020}-{self.end_offset:020}.{extension}"
        )
        self._part.rename(path)
        sync_path(self._directory)
        return path

    def abandon(self) -> None:
        """Close the file and leave it as it is; another run writes it anew."""
        with contextlib.suppress(OSError):
            self._file.close()


class Archive:
    """Writes what a consumer of a group gets; a rebalance listener, so that its files end with its queues."""

    def __init__(
        self,
        consumer: PullConsumer,
        settings: ArchiveSettings,
        *,
        clock: Clock,
        report: Callable[[str], None],
    ) -> None:
        """`report` is told the name of each whole file, and what may be twice in the archive of several."""
        self._consumer = consumer
        self._settings = settings
        self._clock = clock
        self._report = report
        self._files: dict[MessageQueue, tuple[ArchiveFile, float]] = {}
        """The files that grow, each with the time of its first line."""
        self._ends: dict[MessageQueue, int] = {}
        """Behind what is written of each queue; known from its first messages here on."""
        self._uncommitted: dict[MessageQueue, int] = {}
        """Behind the whole files whose offsets the brokers have not taken yet."""
        self._turn = asyncio.Lock()
        """Held while messages are taken and written: a queue that goes leaves nothing half written."""
        self._is_stopping = False

    async def run(self, *, is_once: bool) -> None:
        """Write until the task is cancelled; with `is_once` until all is written that is there.

        Raises OSError.
        """
        work = asyncio.ensure_future(self._work(is_once=is_once))
        try:
            # A thread that writes cannot be cancelled.
            await asyncio.shield(work)
        except asyncio.CancelledError:
            self._is_stopping = True
            await work
            raise

    def assigned(self, queues: list[MessageQueue]) -> None:
        """Do nothing yet: their places are compared with the files when their first messages are here."""

    async def revoked(self, queues: list[MessageQueue]) -> None:
        """Finish the files of queues that go, so that the next member begins behind them."""
        async with self._turn:
            self._consumer.pause(*queues)
            await self._finish([queue for queue in queues if queue in self._files])
            await self._commit_or_wait()
            for queue in queues:
                self._ends.pop(queue, None)
                self._uncommitted.pop(queue, None)

    async def _work(self, *, is_once: bool) -> None:
        try:
            while not self._is_stopping:
                async with self._turn:
                    messages = await self._consumer.getmany(timeout_ms=_LOOK_MS)
                    if messages:
                        await self._write(messages[0].queue, messages)
                    await self._finish(self._old())
                    await self._commit_or_wait()
                if is_once and not messages and await self._is_at_end():
                    break
            async with self._turn:
                await self._finish(list(self._files))
                await self._commit()
        finally:
            # None of them is finished after a failure, not even when their queues go now.
            files, self._files = self._files, {}
            for file, _ in files.values():
                file.abandon()

    async def _is_at_end(self) -> bool:
        try:
            lag = await self._consumer.lag()
        except IotmqError as error:
            if is_passing(error):
                return False
            raise
        return lag.keys() >= set(self._consumer.assigned) and not any(lag.values())

    async def _write(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> None:
        end = self._ends.get(queue)
        if end is None:
            end = await asyncio.to_thread(archived_until, self._settings.directory, queue)
            self._ends[queue] = end
        if messages[0].queue_offset < end:
            if await self._consumer.end_offset(queue) < end:
                raise ClientError(
                    f"{self._settings.directory} has {queue.topic} {queue.broker_name}/{queue.queue_id} "
                    f"up to offset {end}, which is beyond the end of the queue: the topic was made anew, or "
                    "lost messages. Archive it to another directory"
                )
            self._report(
                f"{queue.topic} {queue.broker_name}/{queue.queue_id}: going on at offset {end}, behind the "
                f"files here; the group was at {messages[0].queue_offset}, so another member's archive may "
                "have what is between, too"
            )
            await self._consumer.seek(queue, end)
            return
        file, _ = self._files.get(queue) or (None, 0.0)
        if file is None:
            file = await asyncio.to_thread(ArchiveFile, self._settings, queue, messages[0])
            self._files[queue] = file, self._clock.monotonic_s()
        # Compressing holds the loop up, and the disk may, too.
        await asyncio.to_thread(file.write, messages)
        file.end_offset = self._ends[queue] = messages[-1].queue_offset + 1
        if file.size >= self._settings.file_bytes:
            await self._finish([queue])

    def _old(self) -> list[MessageQueue]:
        now_s = self._clock.monotonic_s()
        return [queue for queue, (_, at_s) in self._files.items() if now_s - at_s >= self._settings.file_s]

    async def _finish(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            # A second try would give its name to what the disk did not take.
            file, _ = self._files.pop(queue)
            try:
                path = await asyncio.to_thread(file.finish)
            except OSError:
                file.abandon()
                raise
            self._uncommitted[queue] = file.end_offset
            self._report(str(path))

    async def _commit(self) -> None:
        """Commit the ends of whole files."""
        if self._uncommitted:
            ends = dict(self._uncommitted)
            await self._consumer.commit(ends)
            for queue in ends:
                del self._uncommitted[queue]

    async def _commit_or_wait(self) -> None:
        """Commit, or leave it to the next time while brokers are away."""
        try:
            await self._commit()
        except IotmqError as error:
            if not is_passing(error):
                raise
            _log.info("the offsets of whole files are not committed now: %s", error)


def archived_until(directory: Path, queue: MessageQueue) -> int:
    """Look at the names of whole files: the offset behind the last one of the queue; 0 without any."""
    end = 0
    folder = directory / queue.topic
    for name in os.listdir(folder) if folder.is_dir() else ():
        parts = _NAME.fullmatch(name)
        if parts and (unquote(parts[1]), int(parts[2])) == (queue.broker_name, queue.queue_id):
            end = max(end, int(parts[4]))
    return end


async def archive(
    client_settings: ClientSettings,
    topics: Iterable[str],
    group: str,
    settings: ArchiveSettings,
    *,
    tags: str = "*",
    begin: str = "first",
    is_once: bool = False,
    report: Callable[[str], None],
) -> int:
    """Write the topics' messages into files until the task is cancelled, as a member of the group."""
    try:
        make_directory(settings.directory)
        lock = (settings.directory / ".lock").open("wb")
    except OSError as error:
        raise ClientError(f"--directory {settings.directory}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ClientError(f"another archive writes to {settings.directory}") from error
        consumer_settings = PullConsumerSettings(
            auto_commit=False, orderly=True, consume_from="first" if begin == "first" else "last"
        )
        # After a kill the next run is the same member for the brokers: it need not wait for its old locks.
        named = msgspec.structs.replace(client_settings, client_id=_client_id(settings.directory))
        async with ClientTransport(named) as client:
            consumer = PullConsumer(client, group, consumer_settings)
            writer = Archive(consumer, settings, clock=client.clock, report=report)
            consumer.on_rebalance(writer)
            for topic in topics:
                await consumer.subscribe(topic, tags)
            async with consumer:
                await writer.run(is_once=is_once)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ClientError(
            f"the archive cannot be written: {error}. Whole files are safe; run it again for the rest"
        ) from error
    finally:
        lock.close()
    return 0


def _client_id(directory: Path) -> str:
    place = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
    return f"{socket.gethostname().replace('@', '-')[:128]}@archive#{place}"


def _quoted(broker_name: str) -> str:
    """Make a part of a file name of what a broker calls itself."""
    return quote(broker_name, safe="")


def add_archive_options(
    command: argparse.ArgumentParser, *, run: Callable[[argparse.Namespace], int]
) -> None:
    """Add what the command has beside its connection."""
    command.add_argument("topics", metavar="TOPIC", nargs="+", help="broker topic")
    command.add_argument("--directory", type=Path, required=True, metavar="DIR", help="where the files go")
    command.add_argument("--group", default="archive", help="consumer group whose offsets it has (archive)")
    command.add_argument("--tags", default="*", metavar="EXPRESSION", help="such as 'alarm || fault'")
    command.add_argument(
        "--from",
        dest="begin",
        choices=("first", "last"),
        default="first",
        help="where a group without offsets begins: at all that is stored (default), or at what comes",
    )
    command.add_argument(
        "--format", choices=tuple(_EXTENSIONS), default="json", help="lines of JSON, or bodies"
    )
    command.add_argument("--plain", action="store_true", help="do not compress")
    command.add_argument(
        "--file-mib", type=_positive, default=128.0, metavar="N", help="begin another file after N MiB (128)"
    )
    command.add_argument(
        "--file-s", type=_positive, default=3_600.0, metavar="SECONDS", help="and after so long (3600)"
    )
    command.add_argument("--once", action="store_true", help="end when all is written that is there")
    command.set_defaults(command=run)


def archive_settings(options: argparse.Namespace) -> ArchiveSettings:
    """Return what the options say about files."""
    return ArchiveSettings(
        directory=options.directory,
        output_format=options.format,
        is_compressed=not options.plain,
        file_bytes=int(options.file_mib * 1024 * 1024),
        file_s=options.file_s,
    )


def tell(line: str) -> None:
    """Print a line at once."""
    print(line)
    sys.stdout.flush()


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a positive number")
    return number
