"""Tell the service manager that started this process how it is: the protocol of sd_notify(3).

systemd names a datagram socket in NOTIFY_SOCKET, and the interval of its watchdog in WATCHDOG_USEC. Each
datagram is lines of NAME=VALUE. Started by hand there is no socket, and nothing is told.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Final, Self

from iotmq.limits import SERVICE_STATUS_BYTES_MAX
from iotmq.supervised import end, repeat, supervise

logger = logging.getLogger(__name__)

_STATUS_INTERVAL_S: Final = 2.0
# How much longer than now a start may take, as long as the loop turns: a log that is recovered may need
# minutes, and a start that hangs is ended so soon.
START_EXTENSION_S: Final = 180
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """Sends the states of this process; leaving `async with` ends the reports and closes the socket.

    `address` is a path, or a name behind "@" of the abstract namespace; None tells nobody. After `watchdog_s`
    the manager takes a silent process for stalled; None when it does not watch.
    """

    def __init__(self, address: str | None, *, watchdog_s: float | None) -> None:
        self._address = None if address is None else _socket_address(address)
        self._watchdog_s = watchdog_s
        # Not connected: a manager that is started anew has another socket at the address.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # A manager that does not read must not hold up the devices.
        self._socket.setblocking(False)
        # NAME -> VALUE of what had no room in the socket; told with what comes next.
        self._untold: dict[str, str] = {}
        self._told_status = ""
        self._is_starting = True
        self._has_complained = False
        self._reports: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await end(self._reports)
        self._socket.close()

    @classmethod
    def taken_from(cls, environment: MutableMapping[str, str]) -> Self:
        """Make it from the variables of the service manager, and remove them.

        What this process starts must not speak for it, nor be watched in its place.
        """
        address, interval, pid = (environment.pop(name, "") for name in _VARIABLES)
        return cls(address or None, watchdog_s=_watchdog_s(interval, pid))

    def report(self, status: Callable[[], Awaitable[str]]) -> None:
        """Begin to tell the status whenever it changes, and the watchdog that the running loop turns."""
        if self._address is None:
            return
        self._reports.append(supervise("service status", lambda: self._report_status(status)))
        if self._watchdog_s is not None:
            interval_s = self._watchdog_s / 2
            self._beat()
            # By a timer of the loop that serves devices, never by a thread: a stalled loop must miss it.
            self._reports.append(supervise("service watchdog", lambda: repeat(interval_s, self._beat)))

    def ready(self) -> None:
        """Tell that the start is complete."""
        self._is_starting = False
        self._tell_status("ready", READY="1")

    def stopping(self) -> None:
        """Tell that the process has begun to stop."""
        self._is_starting = False
        self._tell_status("stopping", STOPPING="1")

    async def _report_status(self, status: Callable[[], Awaitable[str]]) -> None:
        while True:
            self._tell_status(await status())
            await asyncio.sleep(_STATUS_INTERVAL_S)

    def _beat(self) -> None:
        self._tell({"WATCHDOG": "1"})

    def _tell_status(self, status: str, **states: str) -> None:
        text = _one_line(status)
        if text != self._told_status:
            self._told_status = text
            states["STATUS"] = text
        if self._is_starting:
            states["EXTEND_TIMEOUT_USEC"] = str(START_EXTENSION_S * 1_000_000)
        if states or self._untold:
            self._tell(states)

    def _tell(self, states: dict[str, str]) -> None:
        if self._address is None:
            return
        self._untold |= states
        lines = "\n".join(f"{name}={value}" for name, value in self._untold.items())
        try:
            self._socket.sendto(lines.encode(), self._address)
        except BlockingIOError:
            # The watchdog wants to hear of a turn of now, not of then.
            self._untold.pop("WATCHDOG", None)
            return
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                logger.warning("the service manager cannot be told of this process: %s", error)
        self._untold.clear()


def _socket_address(text: str) -> str | None:
    """Return the address as the kernel has it; None for a kind that this machine's manager does not use."""
    if text.startswith("@"):
        return "\0" + text[1:]
    if text.startswith("/"):
        return text
    logger.warning("NOTIFY_SOCKET is neither a path nor an abstract name, and is ignored: %r", text)
    return None


def _watchdog_s(interval: str, pid: str) -> float | None:
    """Return WATCHDOG_USEC in seconds; None without one, or when another process is meant."""
    if not interval or (pid and pid != str(os.getpid())):
        return None
    if not re.fullmatch("[1-9][0-9]{0,19}", interval):
        logger.warning("WATCHDOG_USEC is no number of microseconds, and is ignored: %r", interval)
        return None
    return int(interval) / 1_000_000


def _one_line(text: str) -> str:
    """Return the text without what would begin another state, and as long as a datagram may be."""
    line = " ".join(text.split())
    return line.encode(errors="replace")[:SERVICE_STATUS_BYTES_MAX].decode(errors="ignore")
