"""`iotmq produce` and `iotmq consume` against a running gateway."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from eventually import soon

from iotmq.assembly import Process
from iotmq.client.transport.message import ReceivedMessage, SendResult
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ClientSettings
from iotmq.commands.messages import produce_consume as by_hand
from iotmq.config.config import load_config
from iotmq.errors import MessageRefusedError
from iotmq.limits import RECORD_BYTES_MAX
from iotmq.message.records.record import decode_record, encode_record

pytestmark = pytest.mark.uvloop


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[ClientSettings]:
    ports = [f"{section}.listen_port=0" for section in ("registry", "broker", "mqtt", "http")]
    sizes = ["store.segment_bytes=16777216", "store.allocation_step_bytes=65536"]
    process = Process(load_config(assignments=[*ports, *sizes], data=str(tmp_path)), "serve")
    await process.start()
    yield ClientSettings(registries=(process.addresses["registry"],))
    await process.stop()


async def bodies(*given: bytes) -> AsyncIterator[bytes]:
    for body in given:
        yield body


class ClosedPipe(io.BytesIO):
    """Standard output whose reader has gone after `lines_left` lines."""

    lines_left = 1

    def write(self, data: object) -> int:
        if not self.lines_left:
            raise BrokenPipeError(32, "Broken pipe")
        self.lines_left -= 1
        return super().write(data)  # type: ignore[arg-type]


async def test_what_is_produced_is_consumed_in_the_order_of_its_key(settings: ClientSettings) -> None:
    reports: list[SendResult] = []
    sent = [b"%d" % number for number in range(20)]
    count = await by_hand.produce(settings, "t", bodies(*sent), key="k", report=reports.append)
    assert count == len(reports) == 20
    assert [report.queue_offset for report in reports] == list(range(20))
    output = io.BytesIO()
    written = await by_hand.consume(settings, "t", output, begin="first", count_max=20, output_format="raw")
    assert written == 20
    assert output.getvalue().splitlines() == sent


async def test_a_group_goes_on_where_its_last_reader_ended(settings: ClientSettings) -> None:
    await by_hand.produce(settings, "t", bodies(b"a", b"b", b"c", b"d"), key="k")
    read = []
    for _ in range(2):
        output = io.BytesIO()
        await by_hand.consume(
            settings, "t", output, group="g", begin="first", count_max=2, output_format="raw"
        )
        read += output.getvalue().splitlines()
    assert read == [b"a", b"b", b"c", b"d"]


async def test_a_reader_without_group_begins_at_the_end_and_waits(settings: ClientSettings) -> None:
    await by_hand.produce(settings, "t", bodies(b"before"), key="k")
    output = io.BytesIO()
    reading = asyncio.ensure_future(by_hand.consume(settings, "t", output, count_max=1, output_format="raw"))
    # Which message is its first depends on when it has found the end of the queue; "before" it never is.
    while not reading.done():
        await by_hand.produce(settings, "t", bodies(b"after"), key="k")
    assert await reading == 1
    assert output.getvalue() == b"after\n"


async def test_a_topic_that_does_not_exist_is_waited_for_and_said_so_once(
    settings: ClientSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    output = io.BytesIO()
    reading = asyncio.ensure_future(
        by_hand.consume(settings, "t", output, begin="first", count_max=1, output_format="raw")
    )
    said: list[str] = []

    def is_said() -> bool:
        said.append(capsys.readouterr().err)
        return said[-1] != ""

    await soon(is_said, "it is said")
    assert said[-1] == "topic t does not exist yet; waiting for it\n"
    await by_hand.produce(settings, "t", bodies(b"first"))
    assert await reading == 1
    assert output.getvalue() == b"first\n"
    output = io.BytesIO()
    await by_hand.consume(settings, "t", output, begin="first", count_max=1, output_format="raw")
    assert capsys.readouterr().err == ""


async def test_an_archive_that_is_killed_and_run_again_has_every_message_once(
    settings: ClientSettings, tmp_path: Path
) -> None:
    directory = tmp_path / "archived"
    words = [sys.executable, "-m", "iotmq", "archive", "t", "--directory", str(directory), "--file-s", "0.01"]
    words += ["--plain", "--registry", settings.registries[0]]

    async def send(first: int, end: int) -> None:
        await by_hand.produce(settings, "t", bodies(*(b"%d" % number for number in range(first, end))))

    def whole_files() -> list[Path]:
        return sorted(directory.glob("t/*.jsonl"))

    await send(0, 500)
    killed = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)
    await soon(whole_files, "the first file is whole")
    await send(500, 1_000)
    killed.kill()
    await killed.wait()
    again = await asyncio.create_subprocess_exec(*words, "--once", stdout=asyncio.subprocess.DEVNULL)
    assert await again.wait() == 0
    rows = [msgspec.json.decode(line) for path in whole_files() for line in path.read_bytes().splitlines()]
    assert sorted(int(row["body"]) for row in rows) == list(range(1_000))
    assert list(directory.glob("t/*.part")) == []


async def test_json_has_everything_about_a_message(settings: ClientSettings) -> None:
    await by_hand.produce(
        settings, "t", bodies(b"text", b"\xff\x00"), key="k", tags="A", properties={"unit": "kelvin"}
    )
    output = io.BytesIO()
    await by_hand.consume(settings, "t", output, begin="first", count_max=2, output_format="json")
    text, binary = [msgspec.json.decode(line) for line in output.getvalue().splitlines()]
    assert (text["topic"], text["offset"], text["keys"], text["tags"]) == ("t", 0, ["k"], "A")
    assert text["properties"]["unit"] == "kelvin"
    assert text["body"] == "text"
    assert binary["body_base64"] == "/wA="
    assert "body" not in binary


async def test_text_cannot_steer_the_terminal(settings: ClientSettings) -> None:
    await by_hand.produce(settings, "t", bodies(b"\x1b[2Jtwo\nlines\xff"), key="k")
    output = io.BytesIO()
    await by_hand.consume(settings, "t", output, begin="first", count_max=1)
    line = output.getvalue().decode()
    assert line.endswith(" k \\x1b[2Jtwo\\nlines\\xff\n")
    assert line.removesuffix("\n").isprintable()


async def test_tags_choose_what_is_read(settings: ClientSettings) -> None:
    await by_hand.produce(settings, "t", bodies(b"no"), key="k", tags="A")
    await by_hand.produce(settings, "t", bodies(b"yes"), key="k", tags="B")
    output = io.BytesIO()
    await by_hand.consume(
        settings, "t", output, tags="B || C", begin="first", count_max=1, output_format="raw"
    )
    assert output.getvalue() == b"yes\n"


async def test_a_reader_whose_output_is_gone_ends_and_loses_nothing(settings: ClientSettings) -> None:
    await by_hand.produce(settings, "t", bodies(b"a", b"b", b"c"), key="k")
    with pytest.raises(BrokenPipeError):
        await by_hand.consume(
            settings, "t", ClosedPipe(), group="g", begin="first", count_max=3, output_format="raw"
        )
    output = io.BytesIO()
    await by_hand.consume(settings, "t", output, group="g", begin="first", count_max=2, output_format="raw")
    assert output.getvalue() == b"b\nc\n"


@pytest.mark.parametrize("output_format", ["text", "json", "raw"])
def test_a_body_that_cannot_be_inflated_is_shown_as_it_is_stored(output_format: by_hand.OutputFormat) -> None:
    record = decode_record(encode_record(topic="t", body=b"no zlib", queue_id=0, sys_flag=1))
    line = by_hand.FORMATS[output_format](ReceivedMessage(MessageQueue("t", "b", 0), record))
    assert b"no zlib" in line


async def test_lines_of_a_stream_come_without_their_ends() -> None:
    stream = io.BytesIO(b"one\ntwo\r\n\nlast")
    assert [line async for line in by_hand.lines_of(stream)] == [b"one", b"two", b"", b"last"]


@pytest.mark.parametrize(("size", "is_taken"), [(RECORD_BYTES_MAX, True), (RECORD_BYTES_MAX + 1, False)])
async def test_a_line_is_taken_up_to_its_limit(size: int, is_taken: bool) -> None:
    stream = io.BytesIO(b"x" * size)
    if is_taken:
        assert [len(line) async for line in by_hand.lines_of(stream)] == [size]
    else:
        with pytest.raises(MessageRefusedError):
            [line async for line in by_hand.lines_of(stream)]


async def test_more_than_fits_in_flight_is_sent_all_the_same(settings: ClientSettings) -> None:
    assert await by_hand.produce(settings, "t", bodies(*[b"x"] * 3_000)) == 3_000


async def test_a_body_no_broker_takes_is_refused_and_those_before_it_are_stored(
    settings: ClientSettings,
) -> None:
    reports: list[SendResult] = []
    with pytest.raises(MessageRefusedError):
        await by_hand.produce(
            settings, "t", bodies(b"good", b"x" * (RECORD_BYTES_MAX + 1)), report=reports.append
        )
    output = io.BytesIO()
    await by_hand.consume(settings, "t", output, begin="first", count_max=1, output_format="raw")
    assert output.getvalue() == b"good\n"
