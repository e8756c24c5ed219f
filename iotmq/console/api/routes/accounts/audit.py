"""Audit records: who was refused, and who has changed what."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from iotmq.audit_log import AUDIT_TOPIC
from iotmq.client.admin.admin import Admin
from iotmq.client.admin.cursors import decode_cursor, encode_cursor
from iotmq.client.consuming.offsets import offsets
from iotmq.client.transport.message import StoredMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.console.api.pages import Cursor, Limit
from iotmq.console.api.route import Call, route
from iotmq.console.api.routes.names import ClientText, TimeMs
from iotmq.console.api.services import Services
from iotmq.errors import RouteNotFoundError

# Records that one request looks at; what is left is for the next page.
SCANNED_MAX: Final = 5_000
_BLOCK: Final = 250
_BLOCK_BYTES: Final = 1024 * 1024
# A record is stored so long after its time at the latest, as a rule: while no broker takes it, it waits.
_LATE_MS: Final = 600_000
_Offset = Annotated[int, Meta(ge=0)]


class AuditArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The records that are wanted."""

    from_ms: TimeMs = 0
    """Of this time or later, in milliseconds since 1970."""
    to_ms: TimeMs | None = None
    """Of this time or before."""
    event: Annotated[str, Meta(max_length=64)] | None = None
    """Of this event, such as `refused` or `administered`."""
    client: ClientText | None = None
    """Of this client id."""
    account: Annotated[str, Meta(max_length=1024)] | None = None
    """Of this account, or of who asked for it by the HTTP API."""
    limit: Limit = 100
    """The most items of a page; it may have fewer, also when there are more."""
    cursor: Cursor = ""
    """`next` of the page before; empty for the first page."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The deed, or the refusal."""

    time_ms: int
    """When, in milliseconds since 1970."""
    event: str
    source: str
    """The process that has recorded it."""
    client: str = ""
    user: str = ""
    account: str = ""
    address: str = ""
    request: str = ""
    result: str = ""
    """`done`, `refused`, `failed`, or `accepted`: it went on after the record was made."""
    reason: str = ""
    details: dict[str, str | int] = {}
    """The rest of the record."""


class AuditRecords(msgspec.Struct, frozen=True, kw_only=True):
    """A page of audit records, the newest first."""

    items: list[AuditRecord]
    next: str | None = None
    """The cursor of the next page; null behind the oldest one."""


async def list_audit_records(services: Services, call: Call[AuditArguments, None]) -> AuditRecords:
    """List audit records, the newest first."""
    each = call.arguments
    client = await services.client()
    try:
        queues = await client.admin.queues(AUDIT_TOPIC)
    except RouteNotFoundError:
        return AuditRecords(items=[])
    below = decode_cursor(each.cursor, "audit", dict[str, _Offset]) or {}
    readers = []
    for queue in queues:
        name = f"{queue.broker_name}/{queue.queue_id}"
        begin, end = await asyncio.gather(
            offsets.min_offset(client, queue), offsets.max_offset(client, queue)
        )
        if each.to_ms is not None and name not in below:
            end = min(end, await offsets.offset_at_time(client, queue, each.to_ms + _LATE_MS) + 1)
        # Whoever made the cursor up reads from the end, too.
        at = min(end, below.get(name, end))
        readers.append(_Backwards(client.admin, queue, name, begin=begin, below=at))
    items: list[AuditRecord] = []
    scanned = 0
    while scanned < SCANNED_MAX and len(items) < each.limit:
        heads = [(head.store_timestamp_ms, reader) for reader in readers if (head := await reader.head())]
        if not heads:
            break
        stored_ms, reader = max(heads, key=lambda pair: pair[0])
        if stored_ms < each.from_ms:
            # Whatever is older has been recorded before, too.
            return AuditRecords(items=items)
        scanned += 1
        record = _record(reader.take())
        if record is not None and _is_wanted(record, each):
            items.append(record)
    left = {reader.name: reader.below for reader in readers}
    has_more = any(reader.below > reader.begin for reader in readers)
    return AuditRecords(items=items, next=encode_cursor("audit", left) if has_more else None)


class _Backwards:
    """Reads a queue from an offset back to its begin, a block at a time."""

    def __init__(self, admin: Admin, queue: MessageQueue, name: str, *, begin: int, below: int) -> None:
        self._admin = admin
        self._queue = queue
        self.name = name
        self.begin = begin
        # What is at this offset and behind it has been read.
        self.below = below
        self._block: list[StoredMessage] = []

    async def head(self) -> StoredMessage | None:
        """Return the next message; None at the begin."""
        while not self._block and self.below > self.begin:
            await self._load()
        return self._block[-1] if self._block else None

    def take(self) -> StoredMessage:
        """Return it, and go on to the one before."""
        message = self._block.pop()
        self.below = message.queue_offset
        return message

    async def _load(self) -> None:
        start = max(self.begin, self.below - _BLOCK)
        at = start
        while at < self.below:
            messages, at_next = await self._admin.messages.from_offset(
                self._queue, at, messages_max=self.below - at, bytes_max=_BLOCK_BYTES
            )
            self._block += [message for message in messages if message.queue_offset < self.below]
            if at_next <= at:
                break
            at = at_next
        if not self._block:
            # Nothing is there any more.
            self.below = start


def _record(message: StoredMessage) -> AuditRecord | None:
    """Return what a message says; None for one that somebody else has put into the topic."""
    try:
        found: dict[str, Any] = msgspec.json.decode(message.body, type=dict[str, str | int])
        known = {name: found.pop(name) for name in AuditRecord.__struct_fields__ if name in found}
        return msgspec.convert({**known, "details": found}, AuditRecord)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None


def _is_wanted(record: AuditRecord, each: AuditArguments) -> bool:
    return (
        each.from_ms <= record.time_ms
        and (each.to_ms is None or record.time_ms <= each.to_ms)
        and each.event in (None, record.event)
        and each.client in (None, record.client)
        and each.account in (None, record.account)
    )


ROUTES: Final = (route("GET", "/audit", list_audit_records, tag="audit"),)
