"""Random lives of clients that want filters to themselves, against a model: one at most has each."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from session_bench import FrontEnd, SessionBench, turns

from iotmq.broker.sessions.exclusives import START_GRACE_S, SWEEP_INTERVAL_S
from iotmq.broker.sessions.sessions import FENCE_TIMEOUT_S, OWNER_GRACE_S
from iotmq.ports.sessions import ExclusiveClaim, Refused

CLIENTS = ("a", "b", "c", "d")
FILTERS = ("1", "2", "3")
STEPS = 200


class Life:
    """The clients, where they are connected, and what each must have."""

    def __init__(self, bench: SessionBench, choice: random.Random) -> None:
        self.bench = bench
        self.choice = choice
        self.fronts = [FrontEnd(bench, name) for name in ("one", "two")]
        # client -> (front end, epoch, is kept) of those that are connected.
        self.connected: dict[str, tuple[FrontEnd, int, bool]] = {}
        # What was granted, by filter, until it is given back or its session ends.
        self.granted: dict[str, str] = {}
        # Those of clients that are away with a kept session.
        self.kept: set[str] = set()

    async def step(self) -> None:
        client = self.choice.choice(CLIENTS)
        actions = [
            self.connect,
            self.claim,
            self.claim,
            self.claim,
            self.give_back,
            self.leave,
            self.pass_time,
        ]
        await self.choice.choice(actions)(client)
        if self.choice.random() < 0.02:
            await self.restart()
        self.check()

    def check(self) -> None:
        held = dict(self.bench.broker.sessions.projection.exclusives.all())
        assert self.granted.items() <= held.items()

    async def connect(self, client: str) -> None:
        former = self.connected.pop(client, None)
        front = self.choice.choice(self.fronts)
        is_kept, is_clean = self.choice.random() < 0.5, self.choice.random() < 0.5
        if former is not None and former[0] is not front:
            # The front end that had it gives it up.
            former[0].close(client, former[1], expiry_s=60 if former[2] else 0)
        if not is_kept or is_clean or (former is not None and not former[2]):
            self.forget(client)
        self.kept.discard(client)
        opened = await front.open(client, is_clean=is_clean, expiry_s=60 if is_kept else 0)
        self.connected[client] = (front, opened.epoch, is_kept)

    async def claim(self, client: str) -> None:
        """Perhaps together with somebody else."""
        wanted = self.choice.choice(FILTERS)
        asked = []
        for name in {client, self.choice.choice(CLIENTS)} & self.connected.keys():
            front, epoch, _ = self.connected[name]
            future: asyncio.Future[list[Refused | None]] = asyncio.get_running_loop().create_future()
            front.port.claim_exclusive(
                ExclusiveClaim(client_id=name, epoch=epoch, filters=[wanted]), future.set_result
            )
            asked.append((name, future))
        for name, future in asked:
            (outcome,) = await asyncio.wait_for(future, 5)
            holder = self.granted.get(wanted, name)
            if outcome is None:
                assert holder == name, f"{name} has got {wanted}, which {holder} has"
                self.granted[wanted] = name
                front, epoch, is_kept = self.connected[name]
                if is_kept:
                    await front.subscribe(name, epoch, wanted)
            else:
                assert holder != name or wanted not in self.granted, f"{name} has {wanted} and is refused it"

    async def give_back(self, client: str) -> None:
        if client in self.connected:
            front, epoch, _ = self.connected[client]
            wanted = self.choice.choice(FILTERS)
            if self.granted.get(wanted) == client:
                del self.granted[wanted]
            await front.unsubscribe(client, epoch, wanted)

    async def leave(self, client: str) -> None:
        if client in self.connected:
            front, epoch, is_kept = self.connected.pop(client)
            front.close(client, epoch, expiry_s=60 if is_kept else 0)
            if is_kept:
                self.kept.add(client)
            else:
                self.forget(client)

    async def pass_time(self, client: str) -> None:
        seconds = self.choice.choice((1, 5, 59, 61))
        if seconds >= 59:
            # Sessions of those that are away expire now, or with the next time that passes.
            for name in self.kept:
                self.forget(name)
            self.kept.clear()
        self.bench.pass_time(seconds)
        await turns()

    async def restart(self) -> None:
        """The broker, and with it the front ends: sessions that are kept have a minute to come back."""
        for client in CLIENTS:
            if client not in self.kept and not self.connected.get(client, (None, 0, False))[2]:
                self.forget(client)
        self.kept |= {client for client, (_, _, is_kept) in self.connected.items() if is_kept}
        self.connected.clear()
        await self.bench.restart()
        self.fronts = [FrontEnd(self.bench, name) for name in ("one", "two")]

    def forget(self, client: str) -> None:
        self.granted = {name: holder for name, holder in self.granted.items() if holder != client}


@pytest.mark.parametrize("seed", range(3))
async def test_one_client_at_most_has_a_filter_and_nobody_has_it_for_ever(tmp_path: Path, seed: int) -> None:
    bench = SessionBench(tmp_path)
    await bench.start()
    life = Life(bench, random.Random(seed))
    for _ in range(STEPS):
        await life.step()
    for client in CLIENTS:
        await life.leave(client)
    for _ in range(8):
        bench.pass_time(max(60, START_GRACE_S, SWEEP_INTERVAL_S, OWNER_GRACE_S, FENCE_TIMEOUT_S))
        await turns()
    assert dict(bench.broker.sessions.projection.exclusives.all()) == {}
    await bench.close()
