"""Copy the log of a master: connect, report, append what comes, and again when the connection has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, cast

from iotmq.addresses import address_text
from iotmq.clock import Clock
from iotmq.errors import StoreError
from iotmq.event_loop import happens_within
from iotmq.metrics import Metric, samples
from iotmq.replication.rocketmq.ha_slave import HaBrokenError, HaSlave
from iotmq.store.store import Store

logger = logging.getLogger("iotmq.replication")

RETRY_S: Final = 5.0
_CONNECT_S: Final = 5.0
# How often reports and silence are looked at.
_LOOK_S: Final = 1.0


class MasterLink(asyncio.Protocol):
    """One connection to a master's replication port, over a log whose whole is confirmed."""

    def __init__(self, store: Store, clock: Clock, *, appended: Callable[[], None]) -> None:
        """`appended` is called when the log has grown."""
        self._store = store
        self._clock = clock
        self._appended = appended
        position = store.appended_position
        self._core = HaSlave(position, now_s=clock.monotonic_s(), begins_at_zero=position == 0)
        self._reported_position = position
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        # Why it has ended; empty when the master has closed it.
        self.reason = ""
        self.received_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._core.first_report())

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.received_bytes += len(data)
        core, store = self._core, self._store
        try:
            core.receive_data(data, now_s=self._clock.monotonic_s())
            before = core.position
            core.appended(store.append_raw(before, core.data))
        except HaBrokenError as error:
            self.close(f"the master sent {error}")
            return
        except StoreError as error:
            self.close(f"the log does not take what the master sent: {error}")
            return
        if core.position > before:
            self._appended()
            self.report()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if error is not None and not self.reason:
            self.reason = str(error)
        self.ended.set()

    def report(self) -> None:
        """Tell the master what is confirmed here, if that is more than before."""
        position = self._store.confirmed_position
        if position > self._reported_position:
            self._report(position)

    def look(self) -> None:
        """Report when it is time to; end a connection whose master is silent."""
        now_s = self._clock.monotonic_s()
        if self._core.is_silent(now_s):
            self.close("the master says nothing")
        elif self._core.is_report_due(now_s):
            self._report(self._store.confirmed_position)

    def close(self, reason: str) -> None:
        """End the connection at once."""
        self.reason = self.reason or reason
        if self._transport is not None:
            self._transport.abort()

    def _report(self, position: int) -> None:
        if self._transport is not None:
            self._reported_position = position
            self._transport.write(self._core.report(now_s=self._clock.monotonic_s(), position=position))


class HaClient:
    """Follows the master whose address it is told. `follow_repeatedly` is background work."""

    def __init__(
        self, store: Store, clock: Clock, *, appended: Callable[[], None], retry_s: float = RETRY_S
    ) -> None:
        """`appended` is called when the log has grown."""
        self._store = store
        self._clock = clock
        self._appended = appended
        self._retry_s = retry_s
        self._address: tuple[str, int] | None = None
        self._changed = asyncio.Event()
        self._link: MasterLink | None = None
        self._last_reason = ""
        self.connects_count = 0
        self._received_bytes = 0

    @property
    def is_connected(self) -> bool:
        """Return whether a connection to the master is open."""
        return self._link is not None

    def follow(self, address: tuple[str, int]) -> None:
        """Copy from there; the connection to another address ends."""
        if address != self._address:
            logger.info("the log is copied from %s", address_text(*address))
            self._address = address
            self._changed.set()
            if self._link is not None:
                self._link.close("the master has another address")

    def confirmed(self) -> None:
        """Report what the disk has by now."""
        if self._link is not None:
            self._link.report()

    async def follow_repeatedly(self) -> None:
        """Connect, and again some seconds after a connection has ended, until cancelled."""
        while True:
            address = self._address
            self._changed.clear()
            if address is not None:
                await self._follow(address)
            await happens_within(self._changed, self._retry_s)

    async def _follow(self, address: tuple[str, int]) -> None:
        if not await self._is_all_confirmed():
            self._log("the disk takes too long")
            return
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, link = await asyncio.get_running_loop().create_connection(
                    lambda: MasterLink(self._store, self._clock, appended=self._appended), *address
                )
        except (OSError, TimeoutError) as error:
            self._log(f"no connection to {address_text(*address)}: {error or 'it takes too long'}")
            return
        self.connects_count += 1
        self._link = link
        if address != self._address:
            link.close("the master has another address")
        try:
            while not await happens_within(link.ended, _LOOK_S):
                link.look()
                if link.received_bytes and self._last_reason:
                    logger.info("the master's log is copied from %s", address_text(*address))
                    self._last_reason = ""
        finally:
            self._link = None
            link.close("stopped")
            self._received_bytes += link.received_bytes
        self._log(f"the connection has ended: {link.reason or 'by the master, whose log may say why'}")

    async def _is_all_confirmed(self) -> bool:
        """Wait for the disk: the first report says where the log goes on, and counts as stored."""
        store = self._store
        if store.confirmed_position < store.appended_position:
            flushed = asyncio.Event()
            store.when_flushed(store.appended_position, flushed.set)
            store.request_flush()
            if not await happens_within(flushed, _CONNECT_S):
                return False
        return store.advance() == store.appended_position

    def _log(self, reason: str) -> None:
        """Say why the log is not copied; once, until it is copied again."""
        if reason != self._last_reason:
            logger.warning("the master's log is not copied: %s", reason)
        self._last_reason = reason

    def metrics(self) -> Iterable[Metric]:
        received = self._received_bytes + (0 if self._link is None else self._link.received_bytes)
        yield from samples(
            ("connected", "1 while connected to the master's replication port.", float(self.is_connected)),
            ("connects_total", "Connections made to the master's replication port.", self.connects_count),
            ("received_bytes_total", "Bytes received there.", received),
            prefix="iotmq_ha_slave_",
        )
