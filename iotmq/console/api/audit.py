"""Audit records of the API, written through its own client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from iotmq import limits
from iotmq.audit_log import AUDIT_TOPIC, AuditLog
from iotmq.console.api.services import Services
from iotmq.errors import IotmqError, MessageRefusedError
from iotmq.metrics import Metric
from iotmq.ports.gateway import AppendDone
from iotmq.remoting.codes import ResponseCode


class ApiAudit:
    """The audit records of one process. `record` is what the API is given."""

    def __init__(self, services: Services, *, source: str) -> None:
        self._services = services
        self._log = AuditLog(
            self._write,
            services.clock,
            source=source,
            events=("administered",),
            per_second_max=limits.AUDIT_RECORDS_PER_S_MAX,
        )
        self._writing: set[asyncio.Task[None]] = set()
        self.record = self._log.record

    async def stop(self) -> None:
        """Hand over all that waits, and wait for it; before the client ends."""
        self._log.close()
        if self._writing:
            await asyncio.wait(self._writing)

    def metrics(self) -> Iterable[Metric]:
        """Report the numbers of the records."""
        return self._log.metrics("iotmq_http_api")

    def _write(self, elements: bytes, count: int, is_repeat: bool, done: AppendDone) -> None:
        writing = asyncio.ensure_future(self._send(elements, count, is_repeat, done))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def _send(self, elements: bytes, count: int, is_repeat: bool, done: AppendDone) -> None:
        try:
            producer = await self._services.producer()
            await producer.send_encoded_batch_nowait(AUDIT_TOPIC, None, elements, count, is_repeat=is_repeat)
        except MessageRefusedError as error:
            done(ResponseCode.MESSAGE_ILLEGAL, str(error))
        except (IotmqError, ConnectionError) as error:
            done(ResponseCode.SYSTEM_ERROR, str(error))
        else:
            done(ResponseCode.SUCCESS, "")
