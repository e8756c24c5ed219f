"""Print the result of an action: a table for people, JSON for programs."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

Row = Mapping[str, Any]

# A column whose name ends so holds milliseconds since 1970.
_TIME_SUFFIX: Final = "_ms"


class Result(Protocol):
    """The result of an action."""

    def text(self) -> str:
        """For people; ends with a line end unless it is empty."""

    def data(self) -> object:
        """For programs: one JSON document."""


class Table:
    """Rows with the same columns. Columns named `..._ms` are times, shown to people as such."""

    def __init__(self, rows: Sequence[Row], *, columns: Sequence[str] = (), nothing: str = "nothing") -> None:
        """People see `columns`, by default those of the first row, or `nothing` instead of no rows."""
        self._columns = columns or tuple(rows[0] if rows else ())
        self._rows = rows
        self._nothing = nothing

    def text(self) -> str:
        if not self._rows:
            return f"{self._nothing}\n"
        titles = [column.removesuffix(_TIME_SUFFIX).replace("_", " ") for column in self._columns]
        cells = [
            titles,
            *([_cell(column, row.get(column)) for column in self._columns] for row in self._rows),
        ]
        widths = [max(len(line[index]) for line in cells) for index in range(len(titles))]
        is_number = [
            all(type(row.get(column)) in (int, float) for row in self._rows)
            and not column.endswith(_TIME_SUFFIX)
            for column in self._columns
        ]
        return "".join([_line(line, widths, is_number) for line in cells])

    def data(self) -> object:
        return [dict(row) for row in self._rows]


class Fields:
    """Names and values of one thing."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self) -> str:
        width = max((len(name) for name in self._values), default=0)
        return "".join([f"{name:<{width}}  {_cell(name, value)}\n" for name, value in self._values.items()])

    def data(self) -> object:
        return dict(self._values)


class Done:
    """The result of a change: a sentence for people, and fields for programs."""

    def __init__(self, sentence: str, values: Mapping[str, Any]) -> None:
        self._sentence = sentence
        self._values = values

    def text(self) -> str:
        return f"{printable(self._sentence)}\n"

    def data(self) -> object:
        return dict(self._values)


class Nothing:
    """The result of an action that has printed everything already."""

    def text(self) -> str:
        return ""

    def data(self) -> object:
        return None


def as_json(result: Result) -> str:
    """One document on one line; empty when there is nothing to say."""
    data = result.data()
    return "" if data is None else msgspec.json.encode(data).decode() + "\n"


def printable(text: str) -> str:
    """Remove characters from a text that could steer a terminal."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def time_text(time_ms: int) -> str:
    """Local time to the second."""
    try:
        moment = datetime.datetime.fromtimestamp(time_ms / 1000).astimezone()
    except (OverflowError, OSError, ValueError):
        return str(time_ms)
    return moment.isoformat(sep=" ", timespec="seconds")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith(_TIME_SUFFIX) and isinstance(value, int):
        return time_text(value) if value > 0 else "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_cell('', item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(_cell("", item) for item in value) or "-"
    return printable(str(value)) or "-"


def _line(cells: Sequence[str], widths: Sequence[int], is_number: Sequence[bool]) -> str:
    parts = [
        f"{cell:>{width}}" if right else f"{cell:<{width}}"
        for cell, width, right in zip(cells, widths, is_number, strict=True)
    ]
    return "  ".join(parts).rstrip() + "\n"
