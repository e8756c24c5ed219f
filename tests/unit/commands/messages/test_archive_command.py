"""`iotmq archive` against fake brokers: files, their names, and what is done again after a kill."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from eventually import until
from fake_broker import CLOSE, FakeBroker, FakeRegistry
from file_size_limit import files_end_at

from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ClientSettings
from iotmq.commands.cli import EXIT_USAGE, main
from iotmq.commands.messages.archive import ArchiveFile, ArchiveSettings, archive, archived_until
from iotmq.errors import ClientError
from iotmq.remoting.codes import RequestCode

QUEUE = MessageQueue("T", "broker-a", 0)


def broker_with(count: int, queues: int = 1, name: str = "broker-a") -> FakeBroker:
    broker = FakeBroker(name)
    broker.add_topic("T", queues)
    for number in range(count):
        broker.store("T", number % queues, b"%d" % number, store_timestamp_ms=1_700_000_000_000 + number)
    return broker


@asynccontextmanager
async def settings_of(broker: FakeBroker):
    registry = FakeRegistry(broker)
    await broker.start()
    await registry.start()
    try:
        yield ClientSettings(registries=(registry.address,), reconnect_ms_min=5, request_timeout_ms=1_000)
    finally:
        await broker.stop()
        await registry.stop()


async def archived_once(client: ClientSettings, directory: Path, **options) -> list[str]:
    told: list[str] = []
    await archive(
        client, ["T"], "archive", ArchiveSettings(directory=directory, **options), is_once=True,
        report=told.append,
    )  # fmt: skip
    return told


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "T").iterdir())


def offsets_in(directory: Path) -> list[int]:
    return [
        json.loads(line)["offset"]
        for name in names(directory)
        if name.endswith(".jsonl.gz")
        for line in gzip.decompress((directory / "T" / name).read_bytes()).splitlines()
    ]


async def test_files_are_named_by_what_they_have_and_then_committed(tmp_path: Path) -> None:
    broker = broker_with(4, 2)
    async with settings_of(broker) as client:
        told = await archived_once(client, tmp_path)
    assert names(tmp_path) == [
        f"20231114T221320Z.broker-a.{queue}.{0:020}-{2:020}.jsonl.gz" for queue in (0, 1)
    ]
    assert sorted(told) == [str(tmp_path / "T" / name) for name in names(tmp_path)]
    assert broker.offsets == {("archive", "T", 0): 2, ("archive", "T", 1): 2}


async def test_another_run_goes_on_behind_the_files_and_bodies_may_be_plain(tmp_path: Path) -> None:
    broker = broker_with(3)
    async with settings_of(broker) as client:
        await archived_once(client, tmp_path)
        broker.store("T", 0, b"3", store_timestamp_ms=1_700_000_000_003)
        await archived_once(client, tmp_path, output_format="raw", is_compressed=False)
        assert await archived_once(client, tmp_path) == []
    assert [(tmp_path / "T" / name).suffix for name in names(tmp_path)] == [".gz", ".raw"]
    assert (tmp_path / "T" / names(tmp_path)[1]).read_bytes() == b"3\n"


async def test_an_archive_of_what_comes_misses_nothing_when_it_is_killed_before_its_first_file(
    tmp_path: Path,
) -> None:
    broker = broker_with(2)
    async with settings_of(broker) as client:
        settings = ArchiveSettings(directory=tmp_path)
        running = asyncio.ensure_future(
            archive(client, ["T"], "archive", settings, begin="last", report=lambda line: None)
        )
        await until(lambda: broker.offsets.get(("archive", "T", 0)) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        # What comes between is of the next run.
        broker.store("T", 0, b"2", store_timestamp_ms=1_700_000_000_002)
        await archive(client, ["T"], "archive", settings, begin="last", is_once=True, report=print)
    assert offsets_in(tmp_path) == [2]


async def test_a_large_file_is_followed_by_another(tmp_path: Path) -> None:
    broker = broker_with(3_000)
    async with settings_of(broker) as client:
        await archived_once(client, tmp_path, file_bytes=1)
    assert offsets_in(tmp_path) == list(range(3_000))
    assert len(names(tmp_path)) > 1


async def test_an_old_file_is_finished_while_nothing_comes(tmp_path: Path) -> None:
    broker = broker_with(2)
    told: list[str] = []
    async with settings_of(broker) as client:
        settings = ArchiveSettings(directory=tmp_path, file_s=0.01)
        running = asyncio.ensure_future(archive(client, ["T"], "archive", settings, report=told.append))
        await until(lambda: broker.offsets.get(("archive", "T", 0)) == 2)
        broker.store("T", 0, b"2", store_timestamp_ms=1_700_000_000_002)
        await until(lambda: broker.offsets.get(("archive", "T", 0)) == 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert len(told) == 2
    assert offsets_in(tmp_path) == [0, 1, 2]


async def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClientError, match=r"--directory .*/file/below: Not a directory"):
        await archived_once(ClientSettings(), tmp_path / "file" / "below")


async def test_the_end_of_the_run_finishes_its_files(tmp_path: Path) -> None:
    broker = broker_with(2)
    async with settings_of(broker) as client:
        running = asyncio.ensure_future(
            archive(client, ["T"], "archive", ArchiveSettings(directory=tmp_path), report=print)
        )
        await until(lambda: (tmp_path / "T").is_dir() and names(tmp_path))
        with pytest.raises(ClientError, match="another archive writes"):
            await archived_once(client, tmp_path)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert offsets_in(tmp_path) == [0, 1]
    assert broker.offsets == {("archive", "T", 0): 2}


async def test_what_a_killed_run_did_not_commit_is_not_written_twice(tmp_path: Path) -> None:
    broker = broker_with(5)
    async with settings_of(broker) as client:
        await archived_once(client, tmp_path)
        # As if the kill had come between the name of the file and the commit, and later inside another file.
        broker.offsets["archive", "T", 0] = 2
        (tmp_path / "T" / "broker-a.0.part").write_bytes(b"half a line")
        broker.store("T", 0, b"5", store_timestamp_ms=1_700_000_000_005)
        told = await archived_once(client, tmp_path)
    assert offsets_in(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert "going on at offset 5" in told[0]
    assert "the group was at 2" in told[0]
    assert broker.offsets == {("archive", "T", 0): 6}


async def test_queues_that_go_to_another_member_end_their_files(tmp_path: Path) -> None:
    broker = broker_with(8, 2)
    async with settings_of(broker) as client:
        archives = [
            asyncio.ensure_future(
                archive(client, ["T"], "archive", ArchiveSettings(directory=tmp_path / name), report=print)
            )
            for name in ("one",)
        ]
        await until(lambda: (tmp_path / "one" / "T").is_dir() and len(names(tmp_path / "one")) == 2)
        archives.append(
            asyncio.ensure_future(
                archive(client, ["T"], "archive", ArchiveSettings(directory=tmp_path / "two"), report=print)
            )
        )
        # One of both queues goes.
        await until(lambda: 4 in broker.offsets.values())
        for number in range(8, 12):
            broker.store("T", number % 2, b"%d" % number, store_timestamp_ms=1_700_000_000_000)
        await until(lambda: (tmp_path / "two" / "T").is_dir())
        for running in archives:
            running.cancel()
        await asyncio.gather(*archives, return_exceptions=True)
    found = sorted(offsets_in(tmp_path / "one") + offsets_in(tmp_path / "two"))
    assert found == sorted([*range(6), *range(6)])
    assert broker.offsets == {("archive", "T", 0): 6, ("archive", "T", 1): 6}


async def test_a_disk_that_refuses_ends_the_run_and_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: ArchiveFile) -> Path:
        raise OSError(28, "No space left on device")

    broker = broker_with(2)
    async with settings_of(broker) as client:
        with monkeypatch.context() as patch:
            patch.setattr(ArchiveFile, "finish", refuse)
            with pytest.raises(ClientError, match="No space left on device"):
                await archived_once(client, tmp_path)
        assert broker.offsets == {}
        await archived_once(client, tmp_path)
    assert offsets_in(tmp_path) == [0, 1]


@pytest.mark.parametrize("is_compressed", [True, False])
@pytest.mark.parametrize("size_max", [100, 20_000])
async def test_what_a_full_disk_cuts_short_gets_no_name_and_is_not_committed(
    tmp_path: Path, is_compressed: bool, size_max: int
) -> None:
    broker = broker_with(0)
    for number in range(800):
        body = random.Random(number).randbytes(60)
        broker.store("T", 0, body.hex().encode(), store_timestamp_ms=1_700_000_000_000 + number)
    async with settings_of(broker) as client:
        with files_end_at(size_max), pytest.raises(ClientError, match="File too large"):
            await archived_once(client, tmp_path, is_compressed=is_compressed)
        assert names(tmp_path) == ["broker-a.0.part"]
        assert broker.offsets == {}
        await archived_once(client, tmp_path)
    assert offsets_in(tmp_path) == list(range(800))


async def test_a_broker_that_is_away_when_a_file_is_whole_is_waited_for(tmp_path: Path) -> None:
    broker = broker_with(2)
    told: list[str] = []
    async with settings_of(broker) as client:
        broker.script[RequestCode.UPDATE_CONSUMER_OFFSET].append(CLOSE)
        settings = ArchiveSettings(directory=tmp_path, file_s=0.01)
        running = asyncio.ensure_future(archive(client, ["T"], "archive", settings, report=told.append))
        await until(lambda: len(told) == 1)
        # No other message has to come for it.
        await until(lambda: broker.offsets.get(("archive", "T", 0)) == 2)
        broker.store("T", 0, b"2", store_timestamp_ms=1_700_000_000_002)
        await until(lambda: broker.offsets.get(("archive", "T", 0)) == 3)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert offsets_in(tmp_path) == [0, 1, 2]


async def test_a_topic_that_was_made_anew_is_not_taken_for_the_one_in_the_files(tmp_path: Path) -> None:
    broker = broker_with(5)
    async with settings_of(broker) as client:
        await archived_once(client, tmp_path)
        broker.add_topic("T", 1)
        broker.offsets.clear()
        for number in range(2):
            broker.store("T", 0, b"new %d" % number, store_timestamp_ms=1_700_000_000_000)
        with pytest.raises(ClientError, match="another directory"):
            await archived_once(client, tmp_path)
    assert broker.offsets == {}


async def test_a_brokers_name_cannot_leave_the_directory(tmp_path: Path) -> None:
    broker = broker_with(1, name="../../b.0")
    async with settings_of(broker) as client:
        await archived_once(client, tmp_path)
    (name,) = names(tmp_path)
    assert "..%2F..%2Fb.0.0." in name
    assert archived_until(tmp_path, QUEUE._replace(broker_name="../../b.0")) == 1
    assert archived_until(tmp_path, QUEUE) == 0


@pytest.mark.parametrize(
    "words",
    [("archive", "T"), ("archive", "T", "--directory", "d", "--file-s", "0"), ("tail", "T", "-n", "-1"),
     ("tail", "T", "-n", "100001"), ("tail", "T", "--sample", "0"), ("tail", "T", "--sample", "101")],
)  # fmt: skip
def test_wrong_words_are_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == EXIT_USAGE
    assert capsys.readouterr().err
