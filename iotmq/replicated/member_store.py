"""Open the store of a member, with what it remembers of the replication."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iotmq.files import make_directory
from iotmq.replicated.member_file import MemberFile, open_member_file
from iotmq.replicated.member_log import StoreLog
from iotmq.store.store import Store

if TYPE_CHECKING:
    from iotmq.replication.cluster_state import MemberAddress
    from iotmq.store.settings import StoreSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemberStore:
    """Hold a member's store, its log as the state machine sees it, and its file."""

    store: Store
    log: StoreLog
    file: MemberFile

    def confirm(self, position: int) -> int:
        """Show what is before `position`, as far as it is here; return the store's confirmed position."""
        self.store.raise_confirmed_limit(position)
        return self.store.advance()

    def note_members(self, members: tuple[MemberAddress, ...], epoch: int) -> None:
        """Remember who the members are, unless the state that says so is older than the log.

        Raises StoreError.
        """
        if not self.log.epochs or epoch >= self.log.epochs[-1].epoch:
            self.file.note_members(members)

    def close(self) -> None:
        """Close the store, and write that the run has ended well. Raises StoreError."""
        try:
            self.file.save()
        finally:
            # Or the next run could not have the directory.
            self.store.close()
        if self.store.flushed_position == self.store.appended_position:
            self.file.close()


def open_member_store(
    directory: Path,
    settings: StoreSettings,
    *,
    cluster: str,
    broker: str,
    member: int,
    acknowledge_flushed: bool,
    store_host: bytes,
    boot_id: str | None = None,
    **options: Any,
) -> MemberStore:
    """Open a member's data directory, made when missing; `options` are those of `Store.open`.

    With `acknowledge_flushed` the member has acknowledged only what was on its disk. Its incarnation is a
    new one when its log has lost something that was confirmed, or may have. Raises StoreError.
    """
    make_directory(directory)
    file = open_member_file(
        directory,
        cluster=cluster,
        broker=broker,
        member=member,
        keeps_acknowledged=acknowledge_flushed,
        boot_id=boot_id,
    )
    store = Store.open(directory, settings, store_host=store_host, confirmed_limit=file.confirmed, **options)
    try:
        damaged = [damage for damage in store.recovery.damage if damage.start_position < file.confirmed]
        if damaged or store.appended_position < file.confirmed:
            logger.error(
                "the log of member %d has lost what was confirmed, from position %d on: it has to catch up",
                member,
                min([store.appended_position, *(damage.start_position for damage in damaged)]),
            )
            file.renew(confirmed=min(file.confirmed, store.appended_position))
        elif store.confirmed_position > file.confirmed:
            file.note_confirmed(store.confirmed_position)
        return MemberStore(store, StoreLog(store, file, host=store_host), file)
    except BaseException:
        store.close()
        raise
