"""Remember totals at the last two midnights (local time), for counts of today and yesterday."""

from __future__ import annotations

from datetime import date

from iotmq.clock import Clock


class DailyTotals:
    """Watches totals that only grow; `sample` is to be called every few seconds.

    Totals count from the start of the broker, so a midnight before it counts as 0.
    """

    def __init__(self, clock: Clock, *, totals: int) -> None:
        self._clock = clock
        self._today = self._date()
        self.yesterday_morning = (0,) * totals
        self.today_morning = (0,) * totals

    def sample(self, totals: tuple[int, ...]) -> None:
        today = self._date()
        if today == self._today:
            return
        days = (today - self._today).days
        self._today = today
        # A clock that steps back over midnight begins a day again: what was counted stays yesterday's.
        self.yesterday_morning = self.today_morning if days == 1 else totals
        self.today_morning = totals

    def _date(self) -> date:
        return date.fromtimestamp(self._clock.now_ms() / 1_000)
