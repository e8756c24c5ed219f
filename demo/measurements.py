"""This machine as a fleet of devices: every CPU core, disk, network interface and busy process is one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import psutil

_PROCESSES_PER_ROUND_MAX: Final = 12
_DISKS_MAX: Final = 16
_INTERFACES_MAX: Final = 16


class Measurement(NamedTuple):
    """What one device says at one moment."""

    device: str
    timestamp_ms: int
    values: dict[str, float]


class Machine:
    """Samples all devices; the first round only sets what later rounds are compared with."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()
        self._disks: dict[str, tuple[float, ...]] = {}
        self._interfaces: dict[str, tuple[float, ...]] = {}
        self._processes: dict[int, psutil.Process] = {}
        list(self.sample())

    def sample(self) -> Iterator[Measurement]:
        """One measurement of every device that has something to say."""
        now_s = time.monotonic()
        passed_s = max(now_s - self._last_s, 0.001)
        self._last_s = now_s
        timestamp_ms = time.time_ns() // 1_000_000
        for device, values in (
            *_cores(),
            *self._disk_rates(passed_s),
            *self._interface_rates(passed_s),
            *self._busy_processes(),
        ):
            yield Measurement(device, timestamp_ms, values)

    def _disk_rates(self, passed_s: float) -> Iterator[tuple[str, dict[str, float]]]:
        counters = psutil.disk_io_counters(perdisk=True) or {}
        whole = [name for name in counters if not _is_part(name, counters)]
        for name in sorted(whole)[:_DISKS_MAX]:
            disk = counters[name]
            now = (disk.read_bytes, disk.write_bytes, disk.read_count, disk.write_count)
            before = self._disks.get(name)
            self._disks[name] = now
            if before is not None and any(now):
                read, written, reads, writes = _rates(before, now, passed_s)
                yield (
                    f"disk-{_safe(name)}",
                    {
                        "read_bytes_per_s": read,
                        "written_bytes_per_s": written,
                        "reads_per_s": reads,
                        "writes_per_s": writes,
                    },
                )
        usage = psutil.disk_usage("/")
        yield "disk-root", {"used_percent": usage.percent, "free_bytes": float(usage.free)}

    def _interface_rates(self, passed_s: float) -> Iterator[tuple[str, dict[str, float]]]:
        for name, nic in sorted(psutil.net_io_counters(pernic=True).items())[:_INTERFACES_MAX]:
            now = (nic.bytes_recv, nic.bytes_sent, nic.packets_recv, nic.packets_sent)
            before = self._interfaces.get(name)
            self._interfaces[name] = now
            if before is not None:
                received, sent, packets_in, packets_out = _rates(before, now, passed_s)
                yield (
                    f"net-{_safe(name)}",
                    {
                        "received_bytes_per_s": received,
                        "sent_bytes_per_s": sent,
                        "received_packets_per_s": packets_in,
                        "sent_packets_per_s": packets_out,
                    },
                )

    def _busy_processes(self) -> Iterator[tuple[str, dict[str, float]]]:
        """The processes that used most CPU since the last round."""
        alive = set(psutil.pids())
        for pid in self._processes.keys() - alive:
            del self._processes[pid]
        found: list[tuple[float, str, float]] = []
        for pid in alive:
            try:
                process = self._processes.get(pid)
                is_new = process is None
                process = process or psutil.Process(pid)
                self._processes[pid] = process
                percent = process.cpu_percent(None)
                if not is_new and percent > 0:
                    name = f"process-{_safe(process.name())}-{pid}"
                    found.append((percent, name, float(process.memory_info().rss)))
            except psutil.Error:
                self._processes.pop(pid, None)
        for percent, name, resident in sorted(found, reverse=True)[:_PROCESSES_PER_ROUND_MAX]:
            yield name, {"cpu_percent": percent, "resident_bytes": resident}


def _cores() -> Iterator[tuple[str, dict[str, float]]]:
    for number, core in enumerate(psutil.cpu_times_percent(None, percpu=True)):
        yield (
            f"cpu-{number}",
            {"user_percent": core.user, "system_percent": core.system, "idle_percent": core.idle},
        )


def _rates(before: tuple[float, ...], now: tuple[float, ...], passed_s: float) -> list[float]:
    return [round(max(0.0, new - old) / passed_s, 1) for old, new in zip(before, now, strict=True)]


def _is_part(name: str, counters: dict[str, object]) -> bool:
    """Whether `name` is a partition of a disk that is listed too, or a loop or RAM disk."""
    return name.startswith(("loop", "ram", "zram")) or any(
        name != other and re.fullmatch(re.escape(other) + r"p?\d+", name) for other in counters
    )


def _safe(name: str) -> str:
    """A name as one level of an MQTT topic."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name)[:40] or "unnamed"
