"""Find connections that have been silent for too long, without a timer for each.

Operations: watch a connection once when it comes, and find the late ones once a second. Goal: no work per
packet. Plan: a bucket per second; a connection sits in the bucket of the deadline it had when it was put
there, and is asked for its present one only when that second comes. A bucket is at most `RECHECK_S` ahead,
so that connections that ended are not kept in memory for the length of a long keep-alive. Connections
that have not opened a session yet all have the same time for it, so a queue keeps them in order. A device
whose deadline has come nearer is put into a bucket again; the one it knows counts.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from iotmq.mqtt_front.connection.device import Device

RECHECK_S: Final = 60


class Deadlines:
    """The devices of a front end, by the second in which each is looked at next."""

    def __init__(self, now_s: float) -> None:
        self._next_s = math.floor(now_s)
        self._buckets: dict[int, list[Device]] = {}
        self._connecting: deque[tuple[float, Device]] = deque()

    def watch_connecting(self, device: Device) -> None:
        """Look after a device until its session is open."""
        deadline = device.next_deadline()
        assert deadline is not None, "a connection without a session has a deadline"
        self._connecting.append((deadline, device))

    def watch(self, device: Device, now_s: float) -> None:
        """Look after a device from now on: its session opens, it is told to go, its deadline changes."""
        self._put(device, device.next_deadline(), now_s)

    def late(self, now_s: float) -> list[Device]:
        """Return the devices whose deadline has passed; they are not watched any longer.

        A device whose connection is over is dropped silently, unless its transport still lingers.
        """
        late: list[Device] = []
        while self._connecting and self._connecting[0][0] <= now_s:
            device = self._connecting.popleft()[1]
            if device.transport is not None and device.client_id is None:
                late.append(device)
        for second in range(self._next_s, math.floor(now_s) + 1):
            for device in self._buckets.pop(second, ()):
                if device.transport is None or device.watched_s != second:
                    continue
                deadline = device.next_deadline()
                if device.close_reason is not None or (deadline is not None and deadline <= now_s):
                    late.append(device)
                else:
                    self._put(device, deadline, now_s)
        self._next_s = math.floor(now_s) + 1
        return late

    def _put(self, device: Device, deadline: float | None, now_s: float) -> None:
        latest = now_s + RECHECK_S
        at_s = latest if deadline is None else min(deadline, latest)
        second = max(math.ceil(at_s), self._next_s + 1)
        if device.watched_s != second:
            device.watched_s = second
            self._buckets.setdefault(second, []).append(device)
