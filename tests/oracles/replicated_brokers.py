"""Two brokers of one name in this process: the follower gets the master's log and tables, and takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from eventually import soon

from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.table_pieces import TablePiece, decode_piece
from iotmq.client import ClientSettings
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.replicated.member_store import open_member_store
from iotmq.store.settings import StoreSettings

# Between looks at what there is to copy.
_PAUSE_S = 0.002
_PIECE_BYTES = 20_000


class Member:
    """A broker that follows, or is the master."""

    def __init__(self, directory: Path, number: int, settings: BrokerSettings) -> None:
        self.number = number
        self.opened = open_member_store(
            directory,
            StoreSettings(segment_bytes=4 * 1024 * 1024),
            cluster=settings.cluster,
            broker=settings.name,
            member=number,
            acknowledge_flushed=False,
            store_host=resolve_store_host(settings),
            boot_id="boot",
        )
        self.store = self.opened.store
        self.log = self.opened.log
        self.broker = Broker(settings, self.store, directory=directory)

    async def lead(self, epoch: int) -> None:
        """Become the master."""
        self.log.append_epoch(epoch, self.opened.file.identity)
        self.opened.confirm(self.log.end)
        await self.broker.start()

    async def stop(self) -> None:
        """Stop the broker, and close the store."""
        await self.broker.stop()
        assert self.store.check() == []
        self.opened.close()

    def log_bytes(self) -> bytes:
        """Return the whole log."""
        position, data = self.log.oldest, b""
        while position < self.log.end:
            end = self.log.piece_end(position, _PIECE_BYTES)
            data += self.store.read_raw(position, end - position, end_position=self.log.end)
            position = end
        return data


class ReplicatedBrokers:
    """A registry, a master and a follower; `take_over` has the follower go on alone."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        """`settings` are those of both brokers."""
        self._directory = directory
        self._settings = settings
        self.registry = Registry(RegistrySettings(listen_port=0), directory=directory / "registry")

    @property
    def client_settings(self) -> ClientSettings:
        """For a client that finds things again quickly."""
        return ClientSettings(
            registries=(f"127.0.0.1:{self.registry.port}",),
            reconnect_ms_min=5,
            reconnect_ms_max=50,
            missing_route_refresh_ms=50,
            heartbeat_ms=200,
        )

    @property
    def broker(self) -> Broker:
        """The master."""
        return self.master.broker

    def open(self, number: int, **settings: Any) -> Member:
        """Open a member; `settings` are its alone."""
        registries = (f"127.0.0.1:{self.registry.port}",)
        words = {**self._settings, **settings}
        broker_settings = BrokerSettings(
            listen_port=0, registries=registries, registration_interval_s=0.2, **words
        )
        return Member(self._directory / f"member-{number}", number, broker_settings)

    async def start(self, *, master: dict[str, Any] | None = None) -> None:
        """Start both; `master` are settings of the first master alone."""
        await self.registry.start()
        self.master = self.open(1, **(master or {}))
        await self.master.lead(1)
        self.follow(self.open(2))
        await self.broker.wait_registered(10)

    def follow(self, follower: Member) -> None:
        """Have a member get everything from now on."""
        self.follower: Member | None = follower
        follower.broker.follow()
        self.snapshot: Iterator[TablePiece] = self.broker.table_copies.snapshot()
        follower.broker.table_copies.begin()
        self._copying = asyncio.ensure_future(self._copy_repeatedly(self.master, follower))

    async def level(self) -> None:
        """Return when the follower has everything there is now."""
        follower = self.follower
        assert follower is not None
        await soon(
            lambda: (
                follower.store.confirmed_position == self.master.log.end
                and follower.broker.table_copies.is_complete
            ),
            "the follower is level",
        )
        self._copy_tables(follower)

    async def take_over(self) -> Member:
        """Have the follower become the master as it is now; return the old one, which has stopped."""
        follower, old = self.follower, self.master
        assert follower is not None
        await self.end_copying()
        self.master, self.follower = follower, None
        await follower.lead(2)
        self._copying = asyncio.ensure_future(self._copy_repeatedly(follower, None))
        await old.stop()
        await follower.broker.wait_registered(10)
        return old

    async def end_copying(self) -> None:
        """Cut the connection."""
        self._copying.cancel()
        with suppress(asyncio.CancelledError):
            await self._copying

    async def stop(self) -> None:
        """Stop everything."""
        await self.end_copying()
        for member in (self.follower, self.master):
            if member is not None:
                await member.stop()
        await self.registry.stop()

    async def _copy_repeatedly(self, master: Member, follower: Member | None) -> None:
        while True:
            if follower is not None:
                self._copy_log(master, follower)
                self._copy_tables(follower)
                follower.opened.confirm(follower.log.end)
            # What the follower has is confirmed.
            master.store.raise_confirmed_limit(master.log.end if follower is None else follower.log.end)
            master.broker.writer.confirm()
            await asyncio.sleep(_PAUSE_S)

    def _copy_log(self, master: Member, follower: Member) -> None:
        while (position := follower.log.end) < master.log.end:
            end = master.log.piece_end(position, _PIECE_BYTES)
            view = master.store.read_raw(position, end - position, end_position=master.log.end)
            follower.log.append_copy(position, end, bytes(view))

    def _copy_tables(self, follower: Member) -> None:
        for pieces in (self.snapshot, self.broker.table_copies.changes()):
            for piece in pieces:
                follower.broker.table_copies.apply(decode_piece(piece.encode()))
