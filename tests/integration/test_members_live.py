"""What is left behind in one process when the master changes again and again."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter

from eventually import soon
from member_site import MakeSite, Site, bodies, send

from iotmq.broker.broker import Broker
from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.member.copying import Copies
from iotmq.member.driver import MemberDriver
from iotmq.member.replicated_broker import _Run
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.server import ServerConnection
from iotmq.replicated.member_store import MemberStore
from iotmq.replication.leading import Leading
from iotmq.replication.member import Member
from iotmq.store.kv.kv import KeyValueStore
from iotmq.store.store import Store

KINDS = (
    Broker,
    ClientConnection,
    Copies,
    KeyValueStore,
    Leading,
    Member,
    MemberDriver,
    MemberStore,
    MessageWriter,
    ServerConnection,
    Store,
    _Run,
    asyncio.Task,
)
# A request to the consensus store, a probe, a thread that a pool has begun: they come and go.
SHORT_LIVED = {"ClientConnection", "ServerConnection", "Task", "files", "sockets", "threads"}
SHORT_LIVED_MAX = 4


def held() -> Counter[str]:
    """What one process has: objects of each kind, threads by their names, files by their paths."""
    gc.collect()
    counts = Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, KINDS))
    counts["threads"] = threading.active_count()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        # The database keeps a few small tables of each run until it merges them.
        if not target.endswith(".sst"):
            counts["sockets" if target.startswith("socket:") else "files"] += 1
    return counts


async def change_master(site: Site) -> None:
    """Have the other member made master, send to it, and wait until both have that."""
    former = await site.master()
    new = next(number for number in site.members if number != former)
    await soon(
        lambda: site.run(former) is not None and site.run(former).driver.hand_over(new), "it is handed over"
    )
    await soon(
        lambda: site.members[former].broker is None and site.members[new].broker, "the other one serves"
    )
    await site.in_sync(2)
    connection = await site.connect(new)
    assert (await send(connection, b"x")).code == ResponseCode.SUCCESS
    await connection.close()
    await soon(lambda: bodies(site, former) == bodies(site, new), "both have it")


async def test_ten_changes_of_master_leave_nothing_behind(make: MakeSite) -> None:
    site = make(2)
    await site.start_all()
    await site.in_sync(2)
    # Pools of threads and caches are filled.
    for _ in range(4):
        await change_master(site)
    before = held()
    for _ in range(10):
        await change_master(site)
    grown: Counter[str] = Counter()

    def is_gone() -> bool:
        grown.clear()
        grown.update(held() - before)
        return all(name in SHORT_LIVED and count <= SHORT_LIVED_MAX for name, count in grown.items())

    try:
        await soon(is_gone, "what was before", step_s=0.2)
    except AssertionError:
        raise AssertionError(f"more than before: {dict(grown)}") from None
