"""The API as a role of a process: its client, its audit records, and the routes over both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from iotmq.alarms.role import AlarmsRole
from iotmq.client.client import IotmqClient
from iotmq.clock import Clock
from iotmq.console.access.access import Access
from iotmq.console.api.api import Api
from iotmq.console.api.audit import ApiAudit
from iotmq.console.api.gate import Gate
from iotmq.console.api.routes.table import ROUTES
from iotmq.console.api.services import OwnProcess, Services
from iotmq.console.server.messages import Answer, Request
from iotmq.metrics import Metric
from iotmq.ports.websockets import WebSocketPlace


class ApiRole:
    """A role, and the part of a site that answers requests of the API."""

    def __init__(
        self,
        access: Access,
        make_client: Callable[[], IotmqClient],
        clock: Clock,
        *,
        own: OwnProcess,
        source: str,
        alarms: AlarmsRole | None = None,
    ) -> None:
        """`make_client` is called with the first request that asks brokers."""
        self._access = access
        areas = frozenset(route.tag for route in ROUTES)
        self._services = Services(make_client, clock, access, own, areas=areas, alarms=alarms)
        self._audit = ApiAudit(self._services, source=source)
        access.record = self._audit.record
        self._api = Api(
            ROUTES,
            self._services,
            Gate(access),
            record=self._audit.record,
            open_paths=access.open_paths,
        )

    async def start(self) -> None:
        """Read who may ask; the client starts when somebody does."""
        await self._access.start()

    async def stop(self) -> None:
        """Write the audit records that wait, then end the client."""
        await self._audit.stop()
        await self._access.stop()
        await self._services.stop()

    def body_bytes_max(self, head: Request) -> int:
        """Return how large a body may be."""
        return self._api.body_bytes_max(head)

    def websockets(self) -> Sequence[WebSocketPlace]:
        """Return the listeners that the console's pages may connect to."""
        return self._services.own.websockets()

    def answer(self, request: Request) -> Awaitable[Answer]:
        """Answer a request below the base of the API."""
        return self._api.answer(request)

    def metrics(self) -> Iterable[Metric]:
        """Report the requests and the audit records."""
        yield from self._api.metrics()
        yield from self._access.metrics()
        yield from self._audit.metrics()
        yield from self._services.streams.metrics()
