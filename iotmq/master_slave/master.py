"""A broker that is master in the way of RocketMQ 4.9: slaves copy its log from the port behind its own."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from iotmq.broker.broker import Broker
from iotmq.broker.broker_role import BrokerRole
from iotmq.broker.settings import BrokerSettings
from iotmq.clock import Clock
from iotmq.master_slave.ha_server import HaListening, HaServer
from iotmq.master_slave.vip_port import two_ports
from iotmq.metrics import Metric
from iotmq.ports.inspections import Inspection
from iotmq.replication.settings import ReplicationSettings
from iotmq.store.store import Store

# A reader is sent to a slave when it is further behind than so much of the memory.
_MEMORY_PERCENT: Final = 40


class MasterBroker:
    """The broker with its replication port, from `start` to `stop`."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        replication: ReplicationSettings,
        *,
        directory: Path,
        clock: Clock,
    ) -> None:
        is_sync = replication.role == "sync_master"
        self.ha = HaServer(
            store,
            clock,
            HaListening(
                host=settings.listen_host, port=settings.listen_port + 1, allow=tuple(replication.networks)
            ),
        )
        self.broker = Broker(
            settings,
            store,
            directory=directory,
            clock=clock,
            role=BrokerRole(
                make_server=two_ports(settings, clock) if replication.vip_port_enabled else None,
                name="SYNC_MASTER" if is_sync else "ASYNC_MASTER",
                ha_port=self.ha.port,
                replication=self.ha.replication_state,
                slaves=self.ha if is_sync else None,
                slave_timeout_s=replication.slave_timeout_ms / 1000,
                slave_read_behind_bytes=slave_read_behind_bytes() if replication.slave_read_enabled else None,
            ),
        )
        self.broker.writer.add_confirmed_listener(self.ha.log_grew)

    @property
    def port(self) -> int:
        """Return the native port."""
        return self.broker.port

    @property
    def not_ready_reason(self) -> str | None:
        """Return None while clients can find this broker, else why they cannot."""
        return self.broker.not_ready_reason

    async def start(self) -> None:
        """Listen and register. OSError when a port is taken, StoreError when a config file is broken."""
        await self.ha.start()
        try:
            await self.broker.start()
        except BaseException:
            await self.ha.stop()
            raise

    async def stop(self) -> None:
        """Stop the broker first: what was taken until then goes to slaves, too."""
        await self.broker.stop()
        await self.ha.stop()

    def add_inspection(self, name: str, answer: Inspection) -> None:
        self.broker.add_inspection(name, answer)

    def metrics(self) -> Iterable[Metric]:
        yield from self.broker.metrics()
        yield from self.ha.metrics()

    def topic_metrics(self, pattern: str) -> Iterable[Metric]:
        return self.broker.topic_metrics(pattern)


def slave_read_behind_bytes() -> int:
    """Return how far behind a reader is sent to a slave, by this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _MEMORY_PERCENT // 100
