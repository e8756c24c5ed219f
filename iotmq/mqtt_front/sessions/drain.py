"""Draining a front end: it takes no more devices, and lets go of those it has, some a second."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from iotmq.metrics import Metric, samples
from iotmq.mqtt.reason_codes import SERVER_MOVED, USE_ANOTHER_SERVER, Reason
from iotmq.mqtt_front.connection.device import Device
from iotmq.ports.sessions import DrainOrder
from iotmq.supervised import surviving

_log: Final = logging.getLogger("iotmq.mqtt")

# Devices are told to go in steps of this length.
STEP_S: Final = 0.1


class Drain:
    """Done as ordered. `devices()` gives every connection; `changed` is told when it begins and ends."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        devices: Callable[[], Iterable[Device]],
        changed: Callable[[bool], None],
        *,
        server_reference: str,
    ) -> None:
        """`server_reference` is what devices are told when the order says nothing else."""
        self._loop = loop
        self._devices = devices
        self._changed = changed
        self._server_reference = server_reference
        self._order: DrainOrder | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Those that were connected when it was looked last, and how many of them may be told by now.
        self._left: deque[Device] = deque()
        self._allowance = 0.0
        self.reason: Reason | None = None
        """The refusal of a CONNECT; None while nothing is drained."""
        self.drained_total = 0
        self.refused_total = 0

    def ordered(self, order: DrainOrder) -> None:
        """Begin, go on in another way, or end; the same order again changes nothing."""
        if not order.is_draining:
            self._end()
        elif order != self._order:
            was_draining = self._order is not None
            self._order = order
            reference = order.server_reference or self._server_reference
            reason = SERVER_MOVED if order.has_moved else USE_ANOTHER_SERVER
            self.reason = reason._replace(server_reference=reference or None)
            _log.warning(
                "draining: devices are sent elsewhere",
                extra={"per_second": order.per_second, "server_reference": reference},
            )
            if not was_draining:
                self._changed(True)
                self._step()

    def stop(self) -> None:
        """Nothing more is done by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("draining", "1 while devices are sent elsewhere.", self.reason is not None),
            ("drained_total", "Devices told to go elsewhere.", self.drained_total),
            ("drain_refused_total", "CONNECTs refused while devices are sent elsewhere.", self.refused_total),
            prefix="iotmq_mqtt_",
        )

    def _end(self) -> None:
        if self._order is None:
            return
        self.stop()
        self._order = self.reason = None
        self._left.clear()
        self._allowance = 0.0
        _log.warning("draining is over: devices are welcome")
        self._changed(False)

    def _step(self) -> None:
        order, reason = self._order, self.reason
        assert order is not None, "the timer runs while there is an order"
        assert reason is not None, "there is one with the order"
        if not self._left:
            self._left.extend(device for device in self._devices() if _is_here(device))
        self._allowance = min(self._allowance + order.per_second * STEP_S, float(order.per_second))
        while self._left and self._allowance >= 1:
            device = self._left.popleft()
            if _is_here(device):
                self._allowance -= 1
                self.drained_total += 1
                with surviving("drain"):
                    device.close(reason, "this server is being drained")
                    device.finish()
        self._timer = self._loop.call_later(STEP_S, self._step)


def _is_here(device: Device) -> bool:
    """Tell whether a device has sent its CONNECT and was not told to go yet."""
    return device.client_id is not None and device.close_reason is None
