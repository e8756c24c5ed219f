"""Questions about the history of a process and the statistics of a broker, and their answers.

They travel as JSON between processes (inspections), and are what the HTTP API answers with.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.errors import RequestError

HISTORY: Final = "history"
STATISTICS: Final = "statistics"
"""Names of the inspections."""

SeriesName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.HISTORY_NAME_CHARACTERS_MAX)]
HistoryStep: TypeAlias = Literal[0, 10, 60, 1200]
TimeMs: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 52)]
StatisticsName: TypeAlias = Annotated[str, Meta(max_length=limits.STATISTICS_NAME_BYTES_MAX)]

Table: TypeAlias = Literal["topics", "groups", "clients"]
"""Kinds of names that statistics are kept for."""
Step: TypeAlias = Literal["minute", "hour", "day"]

COLUMNS: Final[dict[Table, tuple[str, ...]]] = {
    "topics": ("messages", "bytes", "consumed", "consumed_bytes"),
    "groups": ("messages", "bytes", "sent_back"),
    "clients": ("published", "published_bytes", "delivered", "delivered_bytes", "connections"),
}
"""The counts of a name of each table, the one that ranks names first."""
STEPS_MS: Final[dict[Step, int]] = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
OTHERS: Final = ""
"""Stands for all names that have no place of their own."""


class QuestionError(RequestError):
    """A question that cannot be answered as it is; the text says why."""

    def __init__(self, message: str) -> None:
        # INVALID_PARAMETER of the native protocol.
        super().__init__(29, message)


class HistoryQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask a process for the values of some series; without any, for the series it has."""

    series: Annotated[tuple[SeriesName, ...], Meta(max_length=limits.HISTORY_ASKED_MAX)] = ()
    """Series or metrics; a metric stands for all its series."""
    from_ms: TimeMs = 0
    to_ms: TimeMs = 0
    """0: now."""
    step_s: HistoryStep = 0
    """0: the smallest step that goes back far enough."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A series that a process remembers."""

    name: str
    """The metric, and its labels as in the text format of Prometheus."""
    is_rate: bool
    """Whether values are what a counter grew by in a second; else they are those of the metric."""
    help: str
    """The text of the metric."""


class SeriesList(msgspec.Struct, frozen=True, kw_only=True):
    """All series of a process."""

    items: list[Series]


class SeriesValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values of one series."""

    name: str
    is_rate: bool
    """Whether values are what a counter grew by in a second; else they are those of the metric."""
    values: list[float | None]
    """One of each step; null where nothing is known."""


class SeriesHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Values of some series at equal steps."""

    from_ms: int
    """Time of the first value, in milliseconds since 1970: the beginning of its step."""
    step_s: int
    """Seconds from one value to the next. A value is the mean of its step."""
    count: int
    """How many values each series has."""
    items: list[SeriesValues]


class StatisticsQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask a broker for statistics: of some names step by step, or without names for the sums of all."""

    table: Table
    step: Step
    names: Annotated[tuple[StatisticsName, ...], Meta(max_length=limits.STATISTICS_ASKED_MAX)] = ()
    from_ms: TimeMs = 0
    to_ms: TimeMs = 0
    """0: now."""
    names_max: Annotated[int, Meta(ge=1, le=limits.STATISTICS_LISTED_MAX)] = limits.STATISTICS_LISTED_MAX
    """Without names: how many, those with most first."""


class NameValues(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one name, step by step."""

    name: str
    counts: dict[str, list[int | None]]
    """By what is counted: one number of each step; null where nobody counted."""


class NameSums(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one name over the time asked for."""

    name: str
    """Empty for all names together that have no place of their own."""
    counts: dict[str, int]
    """By what is counted."""


class StatisticsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a question: steps of names, or sums."""

    from_ms: int
    step_ms: int
    count: int
    steps: list[NameValues]
    sums: list[NameSums]
    oldest_ms: int | None = None
    """The first step that is kept; None where nothing is."""
