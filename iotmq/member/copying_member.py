"""A member between two runs, while it takes a copy of the master's data: what it says of itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from iotmq.errors import RequestError, StoreError
from iotmq.event_loop import happens_within
from iotmq.member.copy_download import CopyDownload, CopyError
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.supervised import end

# After a copy that could not be taken; what is missing is said meanwhile.
_AGAIN_S: Final = 5.0

logger = logging.getLogger("iotmq.replication")


class Copying:
    """Takes one copy, and answers other members and operators meanwhile."""

    def __init__(
        self,
        download: CopyDownload,
        last_status: Mapping[str, Any],
        *,
        check_member: Callable[[ServerConnection, Command], None],
    ) -> None:
        """`last_status` is what the run before said of this member, `check_member` its access control."""
        self._check_member = check_member
        self._download = download
        self._last_status = last_status
        self._problem = ""

    @property
    def text(self) -> str:
        """Return why nobody is served: how far the copy is, or what it is missing."""
        return self._problem or self._download.progress

    async def run(self, stop_asked: asyncio.Event) -> None:
        """Take the copy, unless the process is to stop; after a failure wait until it may be tried again."""
        taking = asyncio.ensure_future(self._download.run())
        stopping = asyncio.ensure_future(stop_asked.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                return
            kept = taking.result()
            logger.warning(
                "this member has a copy of member %d's data%s",
                self._download.master,
                "" if kept is None else f"; what it had before is in {kept}",
            )
        except (CopyError, StoreError, OSError) as error:
            self._problem = str(error)
            logger.error("%s", error)
            await happens_within(stop_asked, _AGAIN_S)
        finally:
            await end([taking, stopping])

    def check_member(self, connection: ServerConnection, request: Command) -> None:
        """Refuse what only members send: there is no broker that could serve it."""
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, self.text)

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        """Answer what this member is doing, and refuse everything else."""
        if request.code != RequestCode.GET_MEMBER_STATUS:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, self.text)
        self._check_member(connection, request)
        download = self._download
        status = {
            **self._last_status,
            "role": "copying",
            "hearsMaster": False,
            "followers": {},
            "notReady": self.text,
            "holds": None,
            "consensusProblem": "",
            "alarms": [self._problem] if self._problem else [],
            "isServing": False,
            "copy": {
                "from": download.master,
                "bytes": download.copied_bytes,
                "totalBytes": download.total_bytes,
                "remainingS": download.remaining_s,
            },
        }
        return request.reply(ResponseCode.SUCCESS, body=msgspec.json.encode(status))

    def connection_lost(self, connection: ServerConnection) -> None:
        """Nothing depends on a connection that others have made."""

    def metrics(self) -> Iterator[Metric]:
        yield from samples(
            (
                "iotmq_replication_copied_bytes",
                "Bytes this member has of the copy it takes of the master's data.",
                self._download.copied_bytes,
            ),
            (
                "iotmq_replication_copy_bytes",
                "Bytes of the copy this member takes of the master's data.",
                self._download.total_bytes,
            ),
        )
