"""The table of all built-in conditions of alarms, for docs/how-to/alarms.md."""

from __future__ import annotations

from iotmq.alarms.condition import Condition
from iotmq.alarms.conditions import CONDITIONS

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def table() -> str:
    """Return it as Markdown."""
    lines = [
        "| alarm | level | fires | clears | is about | what to do |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(condition) for condition in CONDITIONS]
    return "\n".join(lines)


def _row(condition: Condition) -> str:
    held = f", for {_time(condition.for_s)}" if condition.for_s else ""
    rest = f", for {_time(condition.clear_for_s)}" if condition.clear_for_s else ""
    low, high = ("at most", "at least") if condition.is_downward else ("at least", "at most")
    cells = (
        f"`{condition.name}`",
        condition.level,
        f"{low} {_number(condition, condition.fires_at)}{held}",
        f"{high} {_number(condition, condition.clears_at)}{rest}",
        f"{condition.says.replace('{', '*').replace('}', '*')}",
        f"{condition.what_to_do.replace('{', '').replace('}', '')} ({condition.owner})",
    )
    return "| " + " | ".join(cells) + " |"


def _number(condition: Condition, value: float) -> str:
    if condition.reads == "seconds_left":
        return f"{_time(value)} left"
    text = f"{value:,.0f}" if value == int(value) else f"{value:g}"
    if condition.reads == "increase":
        return f"{text} in {_time(condition.window_s)}"
    return f"{text} a second" if condition.reads == "rate" else text


def _time(seconds: float) -> str:
    size, unit = next(
        ((size, unit) for size, unit in _UNITS if seconds >= size and not seconds % size), (1, "s")
    )
    return f"{seconds / size:g} {unit}"
