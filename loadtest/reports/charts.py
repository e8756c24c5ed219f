"""Line charts as SVG, without anything that a browser would have to load."""

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


class Line(NamedTuple):
    """Hold one line of a chart. A second test of a comparison has the colours of the first, and dashes."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    is_dashed: bool = False


def chart(title: str, unit: str, lines: Sequence[Line], *, is_logarithmic: bool = False) -> str:
    """An SVG with these lines over seconds; nothing when none has a point."""
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    points = [point for line in lines for point in line.points]
    across = _Scale(0.0, max(at for at, _ in points), _LEFT, WIDTH - _RIGHT)
    low, high = _bounds([value for _, value in points], is_logarithmic=is_logarithmic)
    upward = _Scale(low, high, HEIGHT - _BOTTOM, _TOP, is_logarithmic=is_logarithmic)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="16" class="title">{escape(title)} ({escape(unit)})</text>',
    ]
    for value in upward.marks():
        y = upward.place(value)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{short_number(value)}</text>')
    for value in across.marks():
        x = across.place(value)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" class="middle">{short_number(value)} s</text>')
    for line in lines:
        parts += _drawn(line, COLOURS[line.colour % len(COLOURS)], across, upward)
    parts.append("</svg>")
    return f"<figure>{''.join(parts)}{_legend(lines)}</figure>"


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
            powers = range(round(math.log10(self._low)), round(math.log10(self._high)) + 1)
            return [10.0**power for power in powers]
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


def _drawn(line: Line, colour: str, across: _Scale, upward: _Scale) -> list[str]:
    places = [(across.place(at), upward.place(value)) for at, value in line.points]
    dashes = ' stroke-dasharray="5 4"' if line.is_dashed else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline points="{path}" stroke="{colour}"{dashes}/>']
    # One point is no line; it is shown all the same.
    dots = places if len(places) == 1 else []
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in dots]
    return parts


def _legend(lines: Sequence[Line]) -> str:
    items = "".join(
        f'<li><i style="border-top: 3px {"dashed" if line.is_dashed else "solid"} '
        f'{COLOURS[line.colour % len(COLOURS)]}"></i>{escape(line.label)}</li>'
        for line in lines
    )
    return f'<figcaption><ul class="legend">{items}</ul></figcaption>'
