"""List MQTT front ends with their clients, and drain them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Collection
from typing import Final

from iotmq.client.admin.devices.front_ends import FrontEndAdmin
from iotmq.commands.admin.output import Done, Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError
from iotmq.ports.sessions import DrainOrder

_LOOK_S: Final = 1.0
# Without any client less for so many looks, waiting is over.
_STUCK_LOOKS: Final = 30


async def list_front_ends(session: Session, options: argparse.Namespace) -> Result:
    """List the front ends that brokers know, with their clients."""
    found = await FrontEndAdmin(session.client).front_ends()
    rows = [
        {"front_end": name, "clients": summary.clients, "is_draining": summary.is_draining}
        for name, summary in sorted(found.items())
    ]
    return Table(rows, nothing="no front end is connected")


async def drain(session: Session, options: argparse.Namespace) -> Result:
    """Have front ends let their devices go, and wait until they have; or end that."""
    admin = FrontEndAdmin(session.client)
    order = DrainOrder(
        is_draining=not options.undo,
        per_second=options.per_second,
        server_reference=options.reference,
        has_moved=options.moved,
    )
    names: list[str] = list(dict.fromkeys(options.front_ends))
    known = await admin.front_ends()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ClientError(
            f"no front end {', '.join(unknown)} is connected: `iotmq sessions front-ends` shows which are"
        )
    for name in names:
        await admin.drain(name, order)
    text = ", ".join(names)
    if options.undo:
        return Done(f"{text}: devices are welcome again", {"front_ends": names, "is_draining": False})
    left = sum(known[name].clients for name in names)
    if not options.no_wait:
        left = await _wait(session, admin, names, left)
    return Done(
        f"{text}: draining, {left} clients left; `iotmq sessions drain --undo {' '.join(names)}` ends it",
        {"front_ends": names, "is_draining": True, "clients": left},
    )


async def _wait(session: Session, admin: FrontEndAdmin, names: Collection[str], count: int) -> int:
    """Wait until no client is left, or no more leave; returns how many are left."""
    left, stuck = count, 0
    while left and stuck < _STUCK_LOOKS:
        session.progress(f"{left} of {count} clients left")
        await asyncio.sleep(_LOOK_S)
        found = await admin.front_ends()
        now_left = sum(found[name].clients for name in names if name in found)
        stuck = stuck + 1 if now_left >= left else 0
        left = now_left
    session.progress(f"{left} of {count} clients left", is_last=True)
    return left
