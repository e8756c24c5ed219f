"""Statistics of windows as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812


def shown_rows(statistics: DataFrame, rows_max: int) -> list[Row]:
    """The first rows for people, in order, with the window as text in the session's time zone (UTC)."""
    return (
        statistics.orderBy("window_end", "device", "metric")
        .limit(rows_max)
        .withColumn(
            "window",
            F.expr("date_format(window_start, 'HH:mm:ss') || '-' || date_format(window_end, 'HH:mm:ss')"),
        )
        .collect()
    )


def render_rows(rows: Sequence[Row], count: int) -> str:
    """Rows of `shown_rows` as a table for people; `count` is how many there are in all."""
    names = ("window (UTC)", "device", "metric", "count", "mean", "min", "max", "stddev", "last")
    lines = [names]
    for row in rows:
        numbers = tuple(_number(row[name]) for name in ("mean", "min", "max", "stddev", "last"))
        lines.append((row["window"], row["device"], row["metric"], str(row["count"]), *numbers))
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    text = "\n".join(_aligned(line, widths) for line in lines)
    return text if count <= len(rows) else f"{text}\n... and {count - len(rows)} more"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _aligned(line: Iterable[str], widths: Sequence[int]) -> str:
    cells = [
        text.ljust(width) if column < 3 else text.rjust(width)
        for column, (text, width) in enumerate(zip(line, widths, strict=True))
    ]
    return "  ".join(cells)
