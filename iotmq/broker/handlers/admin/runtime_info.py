"""Answer code 28: the counters that tools of the RocketMQ family read (wire document 4.5).

Keys that stay constant because what they are about does not exist here are in `_CONSTANTS`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from iotmq import __version__
from iotmq.broker.handlers.native.pull import PullHandler
from iotmq.broker.parts import BrokerParts
from iotmq.broker.statistics.rates import DailyTotals, Rates
from iotmq.errors import RequestError
from iotmq.message.records.record import decode_record
from iotmq.remoting.codes import Version
from iotmq.store.retention.decide import read_disk_usage

_CONSTANTS: Final = {
    # Sends are taken from the first moment.
    "startAcceptSendRequestTimeStamp": "0",
    # One thread appends: there is no lock to wait for.
    "pageCacheLockTimeMills": "0",
    # Records are dispatched by the append itself, without a buffer between.
    "dispatchMaxBuffer": "0",
    # There is no pool of buffers outside the page cache; this is what brokers without one say.
    "remainTransientStoreBufferNumbs": "2147483647",
    # Requests are handled as they come, not by pools of threads with queues in front. Senders wait for group
    # commits only, which have no limit of their own.
    "sendThreadPoolQueueCapacity": "0",
    "queryThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "endTransactionThreadPoolQueueHeadWaitTimeMills": "0",
}


class RuntimeInfo:
    """Reads other parts' counters; `sample` is to be called every ten seconds."""

    def __init__(
        self,
        parts: BrokerParts,
        pulls: PullHandler,
        delay_progress: Callable[[], Iterable[tuple[int, int]]],
    ) -> None:
        """`delay_progress()` is, level by level, the next offset to deliver and the end of its queue."""
        self._store = parts.store
        self._writer = parts.writer
        self._pulls = pulls
        self._cold_reads = parts.cold_reads
        self._statistics = parts.statistics
        clock = self._clock = parts.clock
        self._directory = parts.config.parent
        self._cold_reads_max = parts.settings.cold_reads_max
        self._delay_progress = delay_progress
        self._started_ms = clock.now_ms()
        self._rates = Rates(clock, ("put", "found", "missed", "total", "transferred"))
        self._days = DailyTotals(clock, totals=2)
        # The first record in the log at the last look, and its store time, -1 when there was none.
        self._earliest_position = -1
        self._earliest_ms = -1
        self._is_looking = False

    def sample(self) -> None:
        pulls = self._pulls
        self._rates.sample(
            (
                self._writer.records_count,
                pulls.found_count,
                pulls.missed_count,
                pulls.found_count + pulls.missed_count,
                pulls.records_count,
            )
        )
        self._days.sample((self._writer.records_count, pulls.records_count))

    def table(self) -> dict[str, str]:
        """Return the runtime information, key -> value, both as text."""
        return {
            "bootTimestamp": str(self._started_ms),
            "runtime": duration_text(self._clock.now_ms() - self._started_ms),
            "brokerVersion": str(Version.OURS),
            "brokerVersionDesc": f"iotmq {__version__}",
            **self._puts(),
            **self._gets(),
            **self._daily(),
            **self._log(),
            **_CONSTANTS,
            **{
                f"scheduleMessageOffset_{level}": f"{delivered},{end}"
                for level, (delivered, end) in enumerate(self._delay_progress(), start=1)
            },
        }

    def _puts(self) -> dict[str, str]:
        writer, window = self._writer, self._statistics.put_window
        records = writer.records_count
        return {
            "putTps": self._rates.text("put", records),
            "putMessageTimesTotal": str(records),
            "putMessageSizeTotal": str(writer.bytes_count),
            "putMessageAverageSize": f"{writer.bytes_count / max(1, records):.1f}",
            "putMessageFailedTimes": str(writer.refused_count),
            "putMessageEntireTimeMax": str(window.max_ms),
            "putMessageDistributeTime": window.distribution(),
            "putLatency99": f"{window.percentile_ms(0.99):.3f}",
            "putLatency999": f"{window.percentile_ms(0.999):.3f}",
            "sendThreadPoolQueueSize": str(writer.waiting_count),
            "sendThreadPoolQueueHeadWaitTimeMills": str(writer.longest_wait_ms),
        }

    def _gets(self) -> dict[str, str]:
        pulls, window = self._pulls, self._statistics.get_window
        found, missed = pulls.found_count, pulls.missed_count
        return {
            "getFoundTps": self._rates.text("found", found),
            "getMissTps": self._rates.text("missed", missed),
            "getTotalTps": self._rates.text("total", found + missed),
            "getTransferedTps": self._rates.text("transferred", pulls.records_count),
            "getMessageFoundTimes": str(found),
            "getMessageMissTimes": str(missed),
            "getMessageEntireTimeMax": str(window.max_ms),
            "getMessageDistributeTime": window.distribution(),
            "getLatency99": f"{window.percentile_ms(0.99):.3f}",
            "getLatency999": f"{window.percentile_ms(0.999):.3f}",
            # Held pulls wait for messages, not for the broker; what waits here waits for the disk.
            "pullThreadPoolQueueSize": str(self._cold_reads.waiting_count),
            "pullThreadPoolQueueCapacity": str(self._cold_reads_max),
            "pullThreadPoolQueueHeadWaitTimeMills": str(self._cold_reads.longest_wait_ms),
        }

    def _daily(self) -> dict[str, str]:
        put_yesterday, get_yesterday = self._days.yesterday_morning
        put_today, get_today = self._days.today_morning
        return {
            "msgPutTotalYesterdayMorning": str(put_yesterday),
            "msgPutTotalTodayMorning": str(put_today),
            "msgPutTotalTodayNow": str(self._writer.records_count),
            "msgGetTotalYesterdayMorning": str(get_yesterday),
            "msgGetTotalTodayMorning": str(get_today),
            "msgGetTotalTodayNow": str(self._pulls.records_count),
        }

    def _log(self) -> dict[str, str]:
        store = self._store
        disk = read_disk_usage(self._directory)
        used_ratio = f"{disk.ratio:.4f}"
        total, free = size_text(disk.total_bytes), size_text(disk.total_bytes - disk.used_bytes)
        return {
            "commitLogMinOffset": str(store.min_position),
            "commitLogMaxOffset": str(store.appended_position),
            "commitLogDiskRatio": used_ratio,
            f"commitLogDiskRatio_{self._directory / 'commitlog'}": used_ratio,
            "consumeQueueDiskRatio": used_ratio,
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
            "dispatchBehindBytes": str(store.appended_position - store.confirmed_position),
            "remainHowManyDataToFlush": str(store.appended_position - store.flushed_position),
            "earliestMessageTimeStamp": str(self._look_at_earliest()),
        }

    def _look_at_earliest(self) -> int:
        """Store time of the first record still in the log, -1 when there is none.

        Its pages are in memory least of all: while the disk is waited for, the last answer holds.
        """
        position = self._store.min_position
        if position != self._earliest_position and not self._is_looking:
            self._is_looking = True

            def looked(view: memoryview | None) -> None:
                self._is_looking = False
                if view is not None:
                    self._earliest_position = position
                    self._earliest_ms = decode_record(view).store_timestamp_ms

            def refused(_: RequestError) -> None:
                self._is_looking = False

            self._cold_reads.finish(self._store.record_steps(position), looked, refused)
        return self._earliest_ms


def duration_text(duration_ms: int) -> str:
    """As tools print it: `[ 0 days, 1 hours, 2 minutes, 3 seconds ]`."""
    seconds = max(0, duration_ms) // 1_000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def size_text(size: int) -> str:
    """A number of bytes for people: `1.5 GiB`."""
    if size < 1_024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1_024
        if value < 1_024 or unit == "PiB":
            break
    return f"{value:.1f} {unit}"
