"""Format log lines as logfmt or JSON, one event per line, and cut floods short.

A line that is written `within_trace` has the ids of its trace and span.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any, Final, Literal, NamedTuple, TextIO

import msgspec

from iotmq.clock import Clock, SystemClock

# What a LogRecord always has; every other attribute came in through `extra=` and is a field of ours.
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "suppressed_count",
}
_IN_JSON: Final = {"level": "severity", "message": "event"}
_PLACES_MAX: Final = 1_024
_VALUE_CHARACTERS_MAX: Final = 4_096


class LogSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [log]: the level and the format of log lines on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least serious lines to write. At info a healthy gateway writes a line when it is ready and one when
    it stops; debug costs throughput."""
    format: Literal["logfmt", "json"] = "logfmt"
    """One line per event, as key=value pairs for people or as JSON objects, with time, severity and event
    first, and further fields as keys."""
    lines_per_second_max: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 20
    """Lines that one place in the code may write in a second; its next line counts the suppressed ones. Keeps
    a million broken devices from filling the disk. 0 is without limit."""


def set_up_logging(
    settings: LogSettings, stream: TextIO | None = None, clock: Clock | None = None
) -> logging.Handler:
    """Send all log lines of the process to `stream` (standard error), replacing what was set up before."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else LogfmtFormatter())
    if settings.lines_per_second_max:
        handler.addFilter(FloodFilter(settings.lines_per_second_max, clock or SystemClock()))
    root = logging.getLogger()
    for former in list(root.handlers):
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    # Libraries speak up when something is wrong with them, and not otherwise.
    for name in ("asyncio", "aiohttp", "py4j", "concurrent", "urllib3", "opentelemetry"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler


class TraceIds(NamedTuple):
    """The trace and the span that lines are about, in hexadecimal digits."""

    trace_id: str
    span_id: str


_trace_ids: ContextVar[TraceIds | None] = ContextVar("iotmq_trace_ids", default=None)


@contextmanager
def within_trace(trace_id: str, span_id: str) -> Iterator[None]:
    """Have the lines that are written in the block name the trace they are about."""
    token = _trace_ids.set(TraceIds(trace_id, span_id))
    try:
        yield
    finally:
        _trace_ids.reset(token)


def trace_ids() -> TraceIds | None:
    """Return the trace of the block, or of the current span of the program's OpenTelemetry."""
    ids = _trace_ids.get()
    # Not imported for this: who has spans has loaded it.
    loaded = sys.modules.get("opentelemetry.trace")
    if ids is None and loaded is not None:
        context = loaded.get_current_span().get_span_context()
        if context.is_valid:
            ids = TraceIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")
    return ids


class FloodFilter(logging.Filter):
    """Lets each place in the code write `lines_per_second_max` lines a second; bounded itself."""

    def __init__(self, lines_per_second_max: int, clock: Clock) -> None:
        super().__init__()
        self._lines_per_second_max = lines_per_second_max
        self._clock = clock
        # place -> [second, lines in it, lines left out since the last one written]
        self._places: dict[tuple[str, int], list[int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(self._clock.monotonic_s())
        place = (record.pathname, record.lineno)
        state = self._places.get(place)
        if state is None:
            if len(self._places) >= _PLACES_MAX:
                self._places.clear()
            state = self._places[place] = [second, 0, 0]
        if state[0] != second:
            state[0], state[1] = second, 0
        if state[1] >= self._lines_per_second_max:
            state[2] += 1
            return False
        state[1] += 1
        if state[2]:
            record.suppressed_count = state[2]
            state[2] = 0
        return True


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a line, in the order they are written; the exception's traceback comes last."""
    seconds = time.gmtime(record.created)
    fields: dict[str, Any] = {
        "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', seconds)}.{int(record.msecs):03d}Z",
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    fields |= {
        name: value
        for name, value in record.__dict__.items()
        if name not in _STANDARD_ATTRIBUTES and not name.startswith("_")
    }
    ids = trace_ids()
    if ids is not None:
        fields |= ids._asdict()
    suppressed_count = getattr(record, "suppressed_count", 0)
    if suppressed_count:
        fields["suppressed_count"] = suppressed_count
    if record.exc_info and record.exc_info[0] is not None:
        fields["error"] = f"{record.exc_info[0].__name__}: {record.exc_info[1]}"
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return fields


class LogfmtFormatter(logging.Formatter):
    """`time=... level=info logger=iotmq.broker message="..."`: values are quoted only where they must be."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_logfmt_value(value)}" for name, value in fields_of(record).items())


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the names that collectors look for: severity and event."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            _IN_JSON.get(name, name): value
            if isinstance(value, int | float | bool | None)
            else _cut(str(value))
            for name, value in fields_of(record).items()
        }
        fields["severity"] = record.levelname
        return msgspec.json.encode(fields).decode()


def _logfmt_value(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _cut(str(value))
    if text and text.isascii() and text.isprintable() and not any(sign in text for sign in ' "=\\'):
        return text
    # JSON's escapes keep a line one line, whatever a peer put into a name.
    return msgspec.json.encode(text).decode()


def _cut(text: str) -> str:
    """`text`, shortened to what one value may have; lone surrogates cannot be written and are replaced."""
    if len(text) > _VALUE_CHARACTERS_MAX:
        text = f"{text[:_VALUE_CHARACTERS_MAX]}... ({len(text)} characters)"
    return text.encode("utf-8", "replace").decode()
