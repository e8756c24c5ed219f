"""Write events of traces as lines: for people, and as JSON."""

from __future__ import annotations

import datetime
from typing import Final

import msgspec

from iotmq.ports.traces import TraceEvent

_encode: Final = msgspec.json.Encoder().encode


def json_line(front_end: str, event: TraceEvent) -> bytes:
    """Write an event as one line of JSON."""
    return _encode({"front_end": front_end, **msgspec.to_builtins(event)}) + b"\n"


def text_line(front_end: str, event: TraceEvent) -> str:
    """Write an event as one line of printable text."""
    moment = datetime.datetime.fromtimestamp(event.time_ms / 1000, datetime.UTC)
    words = [
        moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        front_end,
        event.client or "-",
        event.address or "-",
        event.what,
        event.kind,
    ]
    if event.topic:
        words.append(f"topic={_quoted(event.topic)}")
    for name, value in event.facts.items():
        shown = ", ".join(value) if isinstance(value, list) else value
        words.append(f"{name}={_quoted(shown) if isinstance(shown, str) else _plain(shown)}")
    words += [f"{name}={_quoted(value)}" for name, value in event.properties]
    if event.payload:
        words.append(f"payload={_quoted(event.payload)}")
    if event.payload_base64:
        words.append(f"payload_base64={event.payload_base64}")
    return _printable(" ".join(words)) + "\n"


def _plain(value: int | bool) -> str:
    return str(value).lower()


def _quoted(text: str) -> str:
    """Return a text as it is if it is one word, else in quotes."""
    if text and not any(character.isspace() or character in '"=' for character in text):
        return text
    return _encode(text).decode()


def _printable(text: str) -> str:
    """Write what could steer a terminal, or turn the direction of a text, as its number."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )
