"""A broker that is a slave in the way of RocketMQ 4.9: it copies its master's log, and answers pulls.

It takes no messages and decides nothing by itself: no delays, no transactions, no sessions, and its log keeps
what its master's keeps. It becomes master by a restart with another `replication.role`: an operator decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from iotmq.addresses import parse_address
from iotmq.broker.broker import Broker
from iotmq.broker.broker_role import BrokerRole
from iotmq.broker.settings import BrokerSettings
from iotmq.clock import Clock
from iotmq.errors import IotmqError, StoreError
from iotmq.master_slave.ha_client import HaClient
from iotmq.master_slave.master import slave_read_behind_bytes
from iotmq.master_slave.master_calls import MasterCalls, find_master, told_address
from iotmq.master_slave.master_tables import MasterTables
from iotmq.metrics import Metric
from iotmq.ports.inspections import Inspection
from iotmq.replication.settings import ReplicationSettings
from iotmq.store.store import Store
from iotmq.supervised import end, supervise

logger = logging.getLogger("iotmq.replication")

# A slave without a log asks so often for its master, and says every so many times that it waits.
_ASK_S: Final = 1.0
_LOG_EVERY: Final = 30


class SlaveBroker:
    """The broker with its copy of a log, from `start` to `stop`."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        replication: ReplicationSettings,
        *,
        directory: Path,
        clock: Clock,
    ) -> None:
        """ConfigError for a file of certificates that cannot be used."""
        self._settings = settings
        self._store = store
        self._replication = replication
        self._directory = directory
        self._clock = clock
        self._calls = MasterCalls(replication)
        self._ha = HaClient(store, clock, appended=self._appended)
        self._work: list[asyncio.Task[None]] = []
        # Why start() waits, before the log has a beginning.
        self._waits_for = "the log has no beginning yet"
        # Both are made by start(), once the log has a beginning.
        self._broker: Broker | None = None
        self._inspections: dict[str, Inspection] = {}
        self._tables: MasterTables | None = None
        if replication.master_address:
            host, port = parse_address(replication.master_address)
            self._ha.follow((host, port))
            # Until a registry says otherwise: the replication port is the one behind the native port.
            self._calls.call_at((host, port - 1))

    @property
    def broker(self) -> Broker:
        """Return the broker, once it has started."""
        assert self._broker is not None, "start() has not returned"
        return self._broker

    @property
    def ha(self) -> HaClient:
        """Return the way to the master's log."""
        return self._ha

    @property
    def tables(self) -> MasterTables:
        """Return the way to the master's tables, once the broker has started."""
        assert self._tables is not None, "start() has not returned"
        return self._tables

    @property
    def port(self) -> int:
        """Return the native port."""
        return self.broker.port

    @property
    def not_ready_reason(self) -> str | None:
        """Return None while clients can find this broker, also without its master; else why they cannot."""
        return self._waits_for if self._broker is None else self._broker.not_ready_reason

    def add_inspection(self, name: str, answer: Inspection) -> None:
        """Have operators' questions answered, once the broker is made; before `start`."""
        self._inspections[name] = answer

    async def start(self) -> None:
        """Serve, and follow the master. A new slave waits here until its master can be asked.

        OSError when the port is taken; StoreError when a config file is broken, or the log cannot be a copy
        of the master's.
        """
        store = self._store
        if store.appended_position == store.min_position:
            await self._begin_log()
        replication = self._replication
        self._broker = broker = Broker(
            self._settings,
            store,
            directory=self._directory,
            clock=self._clock,
            role=BrokerRole(
                name="SLAVE",
                broker_id=replication.broker_id,
                slave_read_behind_bytes=slave_read_behind_bytes() if replication.slave_read_enabled else None,
                registered=self._registered,
            ),
        )
        for name, answer in self._inspections.items():
            broker.add_inspection(name, answer)
        broker.writer.add_confirmed_listener(self._ha.confirmed)
        self._tables = MasterTables(broker.parts, broker.delay_offsets, self._calls)
        store.held_position = self._held_position
        await broker.start()
        self._work = [
            supervise("copy of the master's log", self._ha.follow_repeatedly),
            supervise("copy of the master's tables", self._tables.poll_repeatedly),
        ]

    async def stop(self) -> None:
        """Follow no more, and end like any broker."""
        await end(self._work)
        self._calls.stop()
        if self._broker is not None:
            await self._broker.stop()

    def metrics(self) -> Iterable[Metric]:
        yield from self._ha.metrics()
        if self._broker is not None and self._tables is not None:
            yield from self._broker.metrics()
            yield from self._tables.metrics()

    def topic_metrics(self, pattern: str) -> Iterable[Metric]:
        return () if self._broker is None else self._broker.topic_metrics(pattern)

    def _appended(self) -> None:
        self.broker.writer.appended_raw()

    def _registered(self, ext: Mapping[str, str]) -> None:
        """Follow the master that a registry knows; what is configured wins."""
        if not self._replication.master_address:
            address = told_address(ext, "haServerAddr")
            if address is not None:
                self._ha.follow(address)
        address = told_address(ext, "masterAddr")
        if address is not None:
            self._calls.call_at(address)

    def _held_position(self) -> int:
        """Return where the log has to begin at the latest: nothing goes that the master may still have."""
        oldest = None if self._tables is None else self._tables.oldest_position
        return self._store.min_position if oldest is None else oldest

    async def _begin_log(self) -> None:
        """Let the log begin where the master's begins."""
        tries = 0
        while True:
            try:
                if not self._calls.has_address:
                    address = await find_master(self._settings)
                    if address is None:
                        raise IotmqError(f"no registry knows a master of {self._settings.name}")
                    self._calls.call_at(address)
                await self._check_segments()
                position, _ = await self._calls.log_range()
                break
            except StoreError:
                raise
            except IotmqError as error:
                self._waits_for = f"a new slave waits for its master: {error}"
                if tries % _LOG_EVERY == 0:
                    logger.warning("%s", self._waits_for)
                tries += 1
            await asyncio.sleep(_ASK_S)
        if position != self._store.min_position:
            self._store.start_at(position)
        logger.info("the log begins at position %d, as the master's", position)

    async def _check_segments(self) -> None:
        """Raise StoreError when the master's files have another size: positions of a copy would not fit."""
        theirs, ours = await self._calls.segment_bytes(), self._store.settings.segment_bytes
        if theirs != ours:
            raise StoreError(
                f"the files of the master's log have {theirs} bytes, and store.segment_bytes is {ours}: "
                "they must be equal"
            )
