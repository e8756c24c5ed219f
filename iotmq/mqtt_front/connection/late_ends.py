"""End devices that are late, a few in each turn of the loop.

They may be many at once, after an attack or an outage: each costs some 100 us, and devices that are well wait
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from iotmq.event_loop import SomePerTurn
from iotmq.mqtt import reason_codes
from iotmq.mqtt_front.connection.deadlines import Deadlines
from iotmq.mqtt_front.connection.device import Device, DeviceGroup
from iotmq.supervised import surviving

ENDS_PER_TURN: Final = 4

End: TypeAlias = Callable[[Device, float], None]


class LateEnds:
    """The devices of a front end whose deadline has passed, or whose packet takes too long."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._ends: SomePerTurn[tuple[End, Device, float]] = SomePerTurn(_end, ENDS_PER_TURN)

    def tick(self, group: DeviceGroup, end_late: End, now_s: float) -> None:
        """Look for them, and end the first ones."""
        for device in self._deadlines.late(now_s):
            self._ends.add((end_late, device, now_s))
        for device in group.slow_packets(now_s):
            self._ends.add((self._end_slow, device, now_s))
        self._ends.do_some()

    def _end_slow(self, device: Device, now_s: float) -> None:
        device.close(reason_codes.PACKET_TIMEOUT, "mqtt.device_limits.packet_timeout_s")
        device.finish()
        self._deadlines.watch(device, now_s)


def _end(late: tuple[End, Device, float]) -> None:
    end, device, now_s = late
    # Nobody watches those that are late any more: one that fails must not leave the others open.
    with surviving("end of late devices"):
        end(device, now_s)
