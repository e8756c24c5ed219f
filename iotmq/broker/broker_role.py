"""A broker's role among those of its name: a master, or a slave as RocketMQ 4.9 has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from iotmq.metrics import Metric
from iotmq.ports.replication_state import ReplicationState
from iotmq.remoting.server import RequestHandler, RunHandler

MASTER_ID = 0
NOT_CURRENT = "another broker may be master: this one hears neither other members nor the consensus store"


class Serving(Protocol):
    """Give the requests of clients to a broker, from `start` to `stop`."""

    @property
    def port(self) -> int: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def metrics(self) -> Iterable[Metric]: ...


MakeServer: TypeAlias = Callable[[RequestHandler, RunHandler], Serving]


class Slaves(Protocol):
    """The slaves that copy the log of a sync master."""

    @property
    def reported_position(self) -> int:
        """Return the position up to which some connected slave has the log; -1 without a slave."""

    def is_ok(self, end_position: int) -> bool:
        """Return whether a slave is connected that is near enough to `end_position` to wait for it."""

    def add_listener(self, listener: Callable[[], None]) -> None:
        """`listener` is called when `reported_position` has changed."""


def _hear_nothing(ext: Mapping[str, str]) -> None:
    pass


def _always() -> bool:
    return True


def _have_none() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRole:
    """All that a broker is told of its role when it is made. The default is a master without slaves."""

    name: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = "ASYNC_MASTER"
    broker_id: int = MASTER_ID
    # Makes what listens for clients; None: a server by the settings.
    make_server: MakeServer | None = None
    # The port from which slaves copy the log, as registries are told; None: there is none.
    ha_port: int | None = None
    # What sends to a sync master wait for, and how long.
    slaves: Slaves | None = None
    slave_timeout_s: float = 3.0
    # A reader further behind the log's end is sent to a slave; None: nobody is.
    slave_read_behind_bytes: int | None = None
    # One of several with the same log. What is not copied between them is not changed at one of them.
    is_member: bool = False
    # Tells whether no other broker of the name can have become master. What only one may give is not given
    # otherwise: queue locks, offsets of groups, registrations.
    is_current: Callable[[], bool] = _always
    # Where the epochs of a replicated log begin, (epoch, position) each; None: the log is this broker's own.
    epochs: Callable[[], Sequence[tuple[int, int]]] | None = None
    # Returns what operators are told of those that copy the log; None: nobody does.
    replication: Callable[[], ReplicationState | None] = _have_none
    # Told the fields of a registry's answer to a registration; a slave's name its master.
    registered: Callable[[Mapping[str, str]], None] = _hear_nothing

    @property
    def is_slave(self) -> bool:
        return self.name == "SLAVE"

    def facts(self) -> dict[str, str]:
        """Return what tools of the RocketMQ family expect among the settings of a broker."""
        return {
            "brokerId": str(self.broker_id),
            "brokerRole": self.name,
            "slaveReadEnable": "true" if self.slave_read_behind_bytes is not None else "false",
        }
