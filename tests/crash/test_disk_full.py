"""A disk that fills up, and one that turns read-only, under a running gateway.

The full disk is a small tmpfs in a mount namespace of its own, which needs no root where users may make
namespaces; the failing one an ext4 image that is told to abort, which needs root and a loop device.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from eventually import eventually, soon
from gateway_process import GatewayProcess
from log_reader import read_bodies
from mqtt_publisher import Publisher

from iotmq.errors import ConnectionClosedError
from iotmq.message.hosts import encode_host
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

pytestmark = pytest.mark.crash

SEGMENT_BYTES = 1 << 20
DISK_BYTES = 24 << 20


class Disk:
    """A file system that only one process's namespace has mounted, seen from here through /proc."""

    def __init__(self, directory: Path, mount: str) -> None:
        """`mount` is a line of shell that mounts it at "$0"."""
        is_root = os.geteuid() == 0
        unshare = ["unshare", "--mount", *([] if is_root else ["--user", "--map-root-user"])]
        mount = f"{mount} && echo mounted && exec cat"
        self._keeper = subprocess.Popen(
            [*unshare, "sh", "-c", mount, str(directory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._keeper.stdout is not None
        self.is_mounted = self._keeper.stdout.readline() == b"mounted\n"
        pid = self._keeper.pid
        self.prefix = ["nsenter", "--mount", f"--target={pid}"]
        if not is_root:
            self.prefix += ["--user", "--preserve-credentials"]
        self.directory = directory
        """Where processes behind `prefix` see it."""
        self.here = Path(f"/proc/{pid}/root{directory}")
        """Where this process sees it."""

    def close(self) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._keeper.wait(10)


class SmallDisk(Disk):
    """A tmpfs with room for little."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, f'mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0"')

    def fill(self) -> None:
        """Take every block that is left."""
        with (self.here / "filler").open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(1 << 16))

    def make_room(self) -> None:
        (self.here / "filler").unlink()


class FailingDisk(Disk):
    """An ext4 file system in a file.

    Mounted in the namespace of every process, each test beside this one that makes a namespace of its own
    would get a copy of the mount: unmounted here, the broken file system would live on there, and be what
    the next mount gives back.
    """

    def __init__(self, directory: Path, image: Path) -> None:
        with image.open("wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, timeout=60)
        super().__init__(directory, f'mount -o loop {shlex.quote(str(image))} "$0"')
        self._image = image

    def abort(self) -> None:
        """Have it do what it does after an I/O error: read-only at once, open files included."""
        self._run("mount", "-o", "remount,abort", str(self.directory))

    def mend(self) -> None:
        """What an operator does, with nobody having files open in it."""
        self._run("umount", str(self.directory))
        checked = subprocess.run(
            ["e2fsck", "-p", "-f", str(self._image)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        # 1: there was something to mend, and it is mended.
        assert checked.returncode in (0, 1), checked.stdout + checked.stderr
        self._run("mount", "-o", "loop", str(self._image), str(self.directory))

    def _run(self, *words: str) -> None:
        subprocess.run([*self.prefix, *words], check=True, timeout=60)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("no unshare and nsenter (util-linux)")
    directory = tmp_path / "disk"
    directory.mkdir()
    disk = SmallDisk(directory)
    try:
        if not disk.is_mounted:
            pytest.skip("this user may not mount in a namespace of its own")
        yield disk
    finally:
        disk.close()


def send(gateway: GatewayProcess, body: bytes) -> Command:
    """One native send; its answer whatever it is."""
    fields = {
        "a": "disk-producer", "b": "Disk", "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": "1700000000000", "h": "0", "i": "",
    }  # fmt: skip
    with BlockingConnection("127.0.0.1", gateway.ports["broker"], timeout_s=30) as connection:
        return connection.request(Command.request(RequestCode.SEND_MESSAGE_V2, fields, body))


@contextlib.asynccontextmanager
async def publishing(gateway: GatewayProcess) -> AsyncIterator[Publisher]:
    """A device that publishes all the time; at the end it has its last acknowledgement."""
    publisher = Publisher(gateway.mqtt_port, "device", "devices/1/telemetry", window=20, padding=200)
    async with asyncio.TaskGroup() as group:
        group.create_task(publisher.run())
        await soon(lambda: len(publisher.acknowledged) > 100, "messages are acknowledged")
        yield publisher
        publisher.finish()


async def goes_on(publisher: Publisher) -> None:
    before = len(publisher.acknowledged)
    await soon(lambda: len(publisher.acknowledged) > before + 50, "the publisher is acknowledged again")


async def pings(gateway: GatewayProcess) -> None:
    """A device that connects now is served, though what it publishes would wait."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.mqtt_port)
    async with asyncio.timeout(30):
        writer.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01p" + b"\xc0\x00")
        assert await reader.readexactly(6) == b"\x20\x02\x00\x00\xd0\x00"
    writer.close()


async def stored(gateway: GatewayProcess, topic: str) -> list[bytes]:
    return await asyncio.to_thread(read_bodies, gateway.registry, topic)


async def is_refused(gateway: GatewayProcess, accepted: list[bytes]) -> Command:
    """The first send that is refused, by 14; what is taken before it is added to `accepted`."""

    def refused() -> Command | None:
        body = b"native-%d" % len(accepted) + bytes(8_000)
        answer = send(gateway, body)
        if answer.code == ResponseCode.SUCCESS:
            accepted.append(body)
            return None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer
        return answer

    answer = await asyncio.to_thread(eventually, refused, "a send is refused", step_s=0)
    assert answer is not None
    return answer


def small_gateway(
    data: Path, disk: Disk | None = None, *more: str, log: Path, flush: str = "async"
) -> GatewayProcess:
    return GatewayProcess(
        data, f"store.segment_bytes={SEGMENT_BYTES}", "store.record_bytes_max=524288",
        "store.queue_file_entries=5000", f"store.flush={flush}", "mqtt.retry_interval_s=0.05", *more,
        prefix=disk.prefix if disk else (), log=log,
    )  # fmt: skip


def check_store(data: Path) -> None:
    settings = StoreSettings(
        segment_bytes=SEGMENT_BYTES, queue_file_entries=5_000, allocation_step_bytes=65_536,
        record_bytes_max=524_288,
    )  # fmt: skip
    store = Store.open(data, settings, store_host=encode_host("127.0.0.1", 1))
    try:
        assert store.check() == []
    finally:
        store.close()


async def test_a_full_disk_holds_senders_back_and_passes(tmp_path: Path, disk: SmallDisk) -> None:
    accepted: list[bytes] = []
    with small_gateway(disk.directory / "data", disk, log=tmp_path / "log.txt") as gateway:
        assert send(gateway, b"first").code == ResponseCode.SUCCESS
        async with publishing(gateway) as publisher:
            disk.fill()
            answer = await is_refused(gateway, accepted)
            assert answer.remark is not None
            assert "No space left" in answer.remark
            assert str(gateway.data) in answer.remark

            # The device waits with its window full, without a PUBACK and without losing its connection.
            retries = gateway.metric("iotmq_mqtt_batch_retries_total")
            await soon(
                lambda: gateway.metric("iotmq_mqtt_batch_retries_total") > retries + 5,
                "batches are offered again",
            )
            held = len(publisher.acknowledged)
            assert gateway.metric("iotmq_broker_writable") == 0
            assert publisher.unacknowledged_count == 20
            assert publisher.connections == 1
            await pings(gateway)
            # Reads go on.
            bodies = await stored(gateway, "mqtt")
            assert len(bodies) >= held
            assert b"first" in await stored(gateway, "Disk")
            assert len(publisher.acknowledged) == held
            assert (await is_refused(gateway, accepted)).code == ResponseCode.SERVICE_NOT_AVAILABLE

            disk.make_room()
            await goes_on(publisher)
            await soon(lambda: send(gateway, b"again").code == ResponseCode.SUCCESS, "sends are taken again")
            assert publisher.connections == 1
            assert gateway.metric("iotmq_broker_writable") == 1

            # A crash on a full disk: the next start has what was acknowledged.
            disk.fill()
            await is_refused(gateway, accepted)
            gateway.kill()
            disk.make_room()
            gateway.launch()
            await asyncio.to_thread(gateway.wait_ready)
            await goes_on(publisher)
        bodies = await stored(gateway, "mqtt")
        assert {publisher.body(number) for number in publisher.acknowledged} <= set(bodies)
        once = list(dict.fromkeys(bodies))
        assert once == [publisher.body(number) for number in range(publisher.sent_count)]
        assert {b"first", b"again", *accepted} <= set(await stored(gateway, "Disk"))
    check_store(disk.here / "data")


async def test_a_gateway_outlives_a_small_disk_by_itself(tmp_path: Path, disk: SmallDisk) -> None:
    """Twice what the disk holds goes through; the oldest makes room, and nobody restarts anything."""
    retention = ("store.retention_delay_ms=0", "store.retention_interval_ms=20", "store.delete_pause_ms=0")
    refused_count = 0

    def refused(answer: Command) -> bool:
        nonlocal refused_count
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            refused_count += 1
            return True
        assert answer.code == ResponseCode.SUCCESS, answer
        return False

    with small_gateway(disk.directory / "data", disk, *retention, log=tmp_path / "log.txt") as gateway:
        for number in range(2 * DISK_BYTES // 400_000):
            body = b"%06d" % number + bytes(400_000)
            await soon(
                lambda body=body: not refused(send(gateway, body)), "the message is taken", step_s=0.01
            )
        assert gateway.metric("iotmq_store_deleted_segments_total") > DISK_BYTES // SEGMENT_BYTES // 2
        left = [body[:6] for body in await stored(gateway, "Disk")]
        assert left == sorted(left)
        assert 1 < len(left) < 2 * DISK_BYTES // 400_000

        # Others fill the disk: refused by the watermark, and taken again when they have gone.
        disk.fill()
        await soon(
            lambda: gateway.metric("iotmq_store_refusing") == 1 and refused(send(gateway, b"refused")),
            "sends are refused",
        )
        answer = send(gateway, b"refused")
        assert answer.remark is not None
        assert "store.disk_full_percent = 90" in answer.remark
        assert gateway.http("/readyz")[0] == 503
        disk.make_room()
        await soon(lambda: not refused(send(gateway, b"again")), "sends are taken again", step_s=0.1)
        assert gateway.http("/readyz")[0] == 200
    check_store(disk.here / "data")


async def test_a_gateway_stops_and_starts_on_a_full_disk(tmp_path: Path, disk: SmallDisk) -> None:
    """Stopping is clean, and starting either works or says why in one line; nothing is lost by either."""
    accepted: list[bytes] = []
    gateway = small_gateway(disk.directory / "data", disk, log=tmp_path / "log.txt")
    with gateway:
        disk.fill()
        await is_refused(gateway, accepted)
    gateway.launch()
    assert gateway.process is not None
    process = gateway.process
    is_up = eventually(
        lambda: "ended" if process.poll() is not None else gateway.http("/readyz")[0] == 200 and "ready",
        "it is ready or has ended",
    )
    if is_up == "ready":
        assert {*accepted} <= set(await stored(gateway, "Disk"))
        gateway.terminate()
    else:
        gateway.process = None
        assert gateway.log_text().splitlines()[-1].startswith("iotmq: ")
    disk.make_room()
    with gateway:
        await soon(lambda: send(gateway, b"after").code == ResponseCode.SUCCESS, "sends are taken")
        assert {b"after", *accepted} <= set(await stored(gateway, "Disk"))
    check_store(disk.here / "data")


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[FailingDisk]:
    if os.geteuid() != 0:
        pytest.skip("mounting an image needs root")
    if any(shutil.which(name) is None for name in ("mkfs.ext4", "unshare", "nsenter")):
        pytest.skip("no mkfs.ext4 (e2fsprogs), or no unshare and nsenter (util-linux)")
    directory = tmp_path / "disk"
    directory.mkdir()
    disk = FailingDisk(directory, tmp_path / "image")
    try:
        if not disk.is_mounted:
            pytest.skip("no loop device to be had")
        yield disk
    finally:
        disk.close()


async def test_a_disk_that_turns_read_only_stops_sends_and_not_reads(
    tmp_path: Path, failing_disk: FailingDisk
) -> None:
    """The kernel does this after an I/O error. Under sync flush all that was acknowledged is on the disk."""
    data = failing_disk.directory / "data"
    accepted: list[bytes] = []
    # What cannot be written is an error with its cause in the log.
    gateway = small_gateway(data, failing_disk, log=tmp_path / "log.txt", flush="sync")
    with gateway:
        for number in range(20):
            accepted.append(b"before-%d" % number)
            assert send(gateway, accepted[-1]).code == ResponseCode.SUCCESS
        async with publishing(gateway) as publisher:
            failing_disk.abort()
            answer = await is_refused_read_only(gateway)
            assert answer.remark is not None
            # The sync that was under way gets the one, those after it the other.
            assert re.search("Read-only file system|Input/output error", answer.remark)
            await soon(lambda: publisher.unacknowledged_count == 20, "the device waits")
            assert publisher.connections == 1
            held = len(publisher.acknowledged)
            assert {*accepted} <= set(await stored(gateway, "Disk"))
            assert held <= len(await stored(gateway, "mqtt"))
            assert gateway.http("/readyz")[0] == 503
            assert gateway.http("/healthz")[0] == 200
            assert gateway.metric("iotmq_store_read_only") == 1
            assert len(publisher.acknowledged) == held
            # It needs a hand now: the operator mends the disk and starts the gateway again.
            gateway.kill()
            failing_disk.mend()
            gateway.launch()
            await asyncio.to_thread(gateway.wait_ready)
            await goes_on(publisher)
        assert {publisher.body(n) for n in publisher.acknowledged} <= set(await stored(gateway, "mqtt"))
        assert {*accepted} <= set(await stored(gateway, "Disk"))
    check_store(failing_disk.here / "data")


async def is_refused_read_only(gateway: GatewayProcess) -> Command:
    """Sends that meet the failure are not known to be on the disk; those after it are refused by 14."""

    def refused() -> Command | None:
        try:
            answer = send(gateway, b"during")
        except ConnectionClosedError:
            return None
        assert answer.code in (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SERVICE_NOT_AVAILABLE), answer
        return answer if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE else None

    answer = await asyncio.to_thread(eventually, refused, "a send is refused")
    assert answer is not None
    return answer
