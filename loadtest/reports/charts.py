"""Line charts as SVG, without anything that a browser would have to load: parts of a page, or files."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 560
HEIGHT: Final = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 30, 30
# Told apart by people who do not see all colours, too (Okabe and Ito).
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_TICKS_WANTED: Final = 5
# What is less than a millionth is drawn at the bottom of a logarithmic scale.
_LEAST: Final = 1e-6


_LEGEND_LINE: Final = 18
# A file has its own style; a page has that of the page.
_STYLE: Final = (
    "rect{fill:#fff}text{font:11px system-ui,sans-serif;fill:#57606a}.title{font-size:13px;fill:#1b1f24}"
    ".end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#d8dde3}polyline{fill:none;stroke-width:1.8}"
)


class Axis(NamedTuple):
    """Describe what a chart goes along. A logarithmic axis begins at its first point, the other at 0."""

    unit: str = " s"
    is_logarithmic: bool = False


_SECONDS: Final = Axis()


class Line(NamedTuple):
    """Hold one line of a chart. A second test of a comparison has the colours of the first, and dashes."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    is_dashed: bool = False


def chart(title: str, unit: str, lines: Sequence[Line], *, is_logarithmic: bool = False) -> str:
    """A figure with these lines over seconds; nothing when none has a point."""
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    drawn = _drawn(title, unit, lines, _SECONDS, is_logarithmic=is_logarithmic)
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{drawn}</svg>'
    return f"<figure>{svg}{_legend(lines)}</figure>"


def picture(title: str, unit: str, lines: Sequence[Line], axis: Axis, *, is_logarithmic: bool = False) -> str:
    """A file of SVG with these lines, their measured points and what they mean."""
    height = HEIGHT + _LEGEND_LINE * len(lines)
    drawn = _drawn(title, unit, lines, axis, is_logarithmic=is_logarithmic, has_dots=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<rect width="{WIDTH}" height="{height}"/>{drawn}{_written_legend(lines)}</svg>\n'
    )


def short_number(value: float) -> str:
    """A number as it fits beside an axis."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}"
    return f"{value:.3g}"


class _Scale:
    """From values to places on the page."""

    def __init__(
        self, low: float, high: float, start: float, end: float, *, is_logarithmic: bool = False
    ) -> None:
        self._is_logarithmic = is_logarithmic
        self._low, self._high = low, high if high > low else low + 1.0
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        low, high = self._low, self._high
        if self._is_logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        return self._start + (value - low) / (high - low) * (self._end - self._start)

    def marks(self) -> list[float]:
        if self._is_logarithmic:
            first, last = (round(math.log10(value), 9) for value in (self._low, self._high))
            return [10.0**power for power in range(math.ceil(first), math.floor(last) + 1)]
        step = _step((self._high - self._low) / _TICKS_WANTED)
        return [step * i for i in range(math.ceil(self._low / step), math.floor(self._high / step) + 1)]


def _bounds(values: Sequence[float], *, is_logarithmic: bool) -> tuple[float, float]:
    if not is_logarithmic:
        step = _step(max(values) / _TICKS_WANTED) if max(values) > 0 else 1.0
        return 0.0, step * max(1, math.ceil(max(values) / step))
    positive = [value for value in values if value >= _LEAST] or [1.0]
    low = 10.0 ** math.floor(math.log10(min(positive)))
    return low, max(10.0 ** math.ceil(math.log10(max(positive))), low * 10.0)


def _step(least: float) -> float:
    """The round step that is no smaller: 1, 2 or 5 times a power of ten."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * 0.999_999)


def _drawn(
    title: str,
    unit: str,
    lines: Sequence[Line],
    axis: Axis,
    *,
    is_logarithmic: bool,
    has_dots: bool = False,
) -> str:
    """Title, axes and lines."""
    points = [point for line in lines for point in line.points]
    first, last = min(at for at, _ in points), max(at for at, _ in points)
    across = _Scale(
        first if axis.is_logarithmic else 0.0,
        last,
        _LEFT,
        WIDTH - _RIGHT,
        is_logarithmic=axis.is_logarithmic,
    )
    low, high = _bounds([value for _, value in points], is_logarithmic=is_logarithmic)
    upward = _Scale(low, high, HEIGHT - _BOTTOM, _TOP, is_logarithmic=is_logarithmic)
    parts = [f'<text x="{_LEFT}" y="16" class="title">{escape(title)} ({escape(unit)})</text>']
    for value in upward.marks():
        y = upward.place(value)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{short_number(value)}</text>')
    for value in across.marks():
        x = across.place(value)
        shown = f"{short_number(value)}{escape(axis.unit)}"
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" class="middle">{shown}</text>')
    for line in lines:
        parts += _line(line, across, upward, has_dots=has_dots)
    return "".join(parts)


def _line(line: Line, across: _Scale, upward: _Scale, *, has_dots: bool) -> list[str]:
    colour = COLOURS[line.colour % len(COLOURS)]
    places = [(across.place(at), upward.place(value)) for at, value in line.points]
    dashes = ' stroke-dasharray="5 4"' if line.is_dashed else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{path}" stroke="{colour}"{dashes}/>']
    # One point is no line; it is shown all the same.
    dots = places if has_dots or len(places) == 1 else []
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in dots]
    return parts


def _written_legend(lines: Sequence[Line]) -> str:
    parts = []
    for i, line in enumerate(lines):
        y, colour = HEIGHT + _LEGEND_LINE * i, COLOURS[line.colour % len(COLOURS)]
        dashes = ' stroke-dasharray="5 4"' if line.is_dashed else ""
        parts.append(f'<line x1="{_LEFT}" x2="{_LEFT + 22}" y1="{y}" y2="{y}" stroke="{colour}"{dashes}/>')
        parts.append(f'<text x="{_LEFT + 30}" y="{y + 4}">{escape(line.label)}</text>')
    return "".join(parts)


def _legend(lines: Sequence[Line]) -> str:
    items = "".join(
        f'<li><i style="border-top: 3px {"dashed" if line.is_dashed else "solid"} '
        f'{COLOURS[line.colour % len(COLOURS)]}"></i>{escape(line.label)}</li>'
        for line in lines
    )
    return f'<figcaption><ul class="legend">{items}</ul></figcaption>'
