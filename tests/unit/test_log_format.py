"""Log lines as logfmt and JSON, and the cut of floods."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import msgspec
import pytest
from manual_clock import ManualClock
from opentelemetry import trace

from iotmq.log_format import (
    FloodFilter,
    JsonFormatter,
    LogfmtFormatter,
    LogSettings,
    set_up_logging,
    within_trace,
)


@pytest.fixture
def _restored_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def record(message: str = "hello", *args: object, **extra: object) -> logging.LogRecord:
    made = logging.getLogger("iotmq.test").makeRecord(
        "iotmq.test", logging.WARNING, __file__, 10, message, args, None, extra=extra
    )
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def test_a_logfmt_line_has_time_level_logger_message_and_fields() -> None:
    line = LogfmtFormatter().format(record("packet of %d bytes", 7, peer="127.0.0.1:99", retained=True))
    assert line == (
        'time=2023-11-14T22:13:20.250Z level=warning logger=iotmq.test message="packet of 7 bytes" '
        "peer=127.0.0.1:99 retained=true"
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("line\nbreak", '"line\\nbreak"'),
        ("esc\x1b[31m", '"esc\\u001b[31m"'),
        ("gerät", '"gerät"'),
        ("\udc80", "?"),
        (None, ""),
        (3, "3"),
        (0.5, "0.5"),
    ],
)
def test_logfmt_quotes_what_needs_it(value: object, written: str) -> None:
    assert LogfmtFormatter().format(record(value=value)).endswith(f" value={written}")


def test_a_peer_cannot_start_a_line_of_its_own() -> None:
    for formatter in (LogfmtFormatter(), JsonFormatter()):
        line = formatter.format(record("client %s", "x\nlevel=error message=forged", client_id="a\r\nb"))
        assert len(line.splitlines()) == 1


def test_a_json_line_is_one_object_with_typed_fields() -> None:
    line = JsonFormatter().format(
        record("stopped", count=3, share=0.5, is_last=False, reason=None, text="\udcff")
    )
    assert msgspec.json.decode(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "severity": "WARNING",
        "logger": "iotmq.test",
        "event": "stopped",
        "count": 3,
        "share": 0.5,
        "is_last": False,
        "reason": None,
        "text": "?",
    }


@pytest.mark.parametrize("formatter", [JsonFormatter(), LogfmtFormatter()])
def test_a_line_names_the_trace_it_is_about(formatter: logging.Formatter) -> None:
    assert "trace_id" not in formatter.format(record())
    with within_trace("0af7", "b7ad"):
        line = formatter.format(record(peer="a"))
    assert line.endswith(
        ('"peer":"a","trace_id":"0af7","span_id":"b7ad"}', " peer=a trace_id=0af7 span_id=b7ad")
    )
    assert "trace_id" not in formatter.format(record())


def test_a_line_names_the_current_span_of_the_program() -> None:
    context = trace.SpanContext(10, 11, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        fields = msgspec.json.decode(JsonFormatter().format(record()))
        with within_trace("0af7", "b7ad"):
            inner = msgspec.json.decode(JsonFormatter().format(record()))
    assert (fields["trace_id"], fields["span_id"]) == (f"{10:032x}", f"{11:016x}")
    assert inner["trace_id"] == "0af7"


def test_an_exception_is_on_the_same_line() -> None:
    made = record("failed")
    try:
        raise ValueError("bad\nthing")
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    line = LogfmtFormatter().format(made)
    assert len(line.splitlines()) == 1
    assert 'error="ValueError: bad\\nthing" traceback="Traceback ' in line


@pytest.mark.parametrize(("size", "is_cut"), [(4096, False), (4097, True)])
def test_values_are_written_up_to_their_limit(size: int, is_cut: bool) -> None:
    line = LogfmtFormatter().format(record(value="x" * size))
    assert line.endswith(f'... ({size} characters)"') is is_cut


def test_a_flood_is_cut_and_counted() -> None:
    clock = ManualClock()
    flood = FloodFilter(3, clock)
    assert [flood.filter(record()) for _ in range(5)] == [True, True, True, False, False]
    clock.advance(1.0)
    first, second = record(), record()
    assert flood.filter(first)
    assert "suppressed_count=2" in LogfmtFormatter().format(first)
    assert flood.filter(second)
    assert "suppressed_count" not in LogfmtFormatter().format(second)


def test_a_flood_in_one_place_leaves_others_alone() -> None:
    flood = FloodFilter(1, ManualClock())
    other = record()
    other.lineno = 99
    assert flood.filter(record())
    assert not flood.filter(record())
    assert flood.filter(other)


def test_the_filter_remembers_a_bounded_number_of_places() -> None:
    flood = FloodFilter(1, ManualClock())
    for line in range(5_000):
        made = record()
        made.lineno = line
        flood.filter(made)
    assert len(flood._places) <= 1_024


@pytest.mark.usefixtures("_restored_root")
def test_the_level_and_the_format_come_from_the_settings() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(level="warning", format="json"), stream)
    logging.getLogger("iotmq.x").info("not written")
    logging.getLogger("iotmq.x").warning("written")
    assert [msgspec.json.decode(line)["event"] for line in stream.getvalue().splitlines()] == ["written"]


@pytest.mark.usefixtures("_restored_root")
def test_without_a_limit_nothing_is_left_out() -> None:
    stream = io.StringIO()
    set_up_logging(LogSettings(lines_per_second_max=0), stream, ManualClock())
    for number in range(100):
        logging.getLogger("iotmq.x").info("line %d", number)
    assert len(stream.getvalue().splitlines()) == 100


@pytest.mark.usefixtures("_restored_root")
def test_setting_up_twice_writes_each_line_once() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logging(LogSettings(), first)
    set_up_logging(LogSettings(), second)
    logging.getLogger("iotmq.x").info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1
