"""How many bytes from the other broker wake this process while the window of a connection is full.

Some brokers write each acknowledgement by itself. Woken by each, this process reads one and sends one, all
the time: measured by `benchmarks/mqtt_bridge.py`. The kernel counts better than a timer would: what is waited
for comes as fast as the other broker works.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

_IN_FLIGHT_MIN: Final = 64
# Bytes of one acknowledgement at least, and the part of the window that comes together.
_ACK_BYTES: Final = 4
_PARTS: Final = 4
# Nothing waits longer than two of these, such as an answer to a ping, or a message of the other broker.
_PATIENCE_S: Final = 0.005


class Wakes:
    """Of one connection; `begin` while its window is full, `end` when there is nothing to send."""

    def __init__(self, transport: asyncio.BaseTransport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._bytes = 1
        self._is_needed = False

    def begin(self, in_flight: int) -> None:
        """Be woken by the acknowledgements of a part of these messages, or soon by what there is."""
        self._is_needed = True
        self._set(max(in_flight * _ACK_BYTES // _PARTS, 1) if in_flight >= _IN_FLIGHT_MIN else 1)
        if self._timer is None and self._bytes > 1:
            self._timer = self._loop.call_later(_PATIENCE_S, self._look)

    def end(self) -> None:
        """Be woken by every byte."""
        self._set(1)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._is_needed:
            # The window has been full again since.
            self._is_needed = False
            self._timer = self._loop.call_later(_PATIENCE_S, self._look)
        else:
            self._set(1)

    def _set(self, size: int) -> None:
        if size != self._bytes and not self._transport.is_closing():
            self._bytes = size
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
