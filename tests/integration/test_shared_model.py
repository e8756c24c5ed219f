"""Random lives of a group over two front ends and a broker: every message is acknowledged by some member.

IOTMQ_SHARED_PROGRAMS says how many programs are run for each strategy, IOTMQ_SHARED_SEED which is the first.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from eventually import soon
from mqtt_site import Front, MqttSite, SessionDevice, open_site

from iotmq.broker.shares.share_group import Strategy
from iotmq.broker.shares.shares import REJOIN_GRACE_S

pytestmark = pytest.mark.uvloop

PROGRAMS = int(os.environ.get("IOTMQ_SHARED_PROGRAMS", "1"))
SEED = int(os.environ.get("IOTMQ_SHARED_SEED", "1"))
STEPS = 50
FRONTS = ("one", "two")
SHARE = "$share/g/t/+"


class Program:
    """One life, from a seed. The session of m0 keeps the group; m0 and m1 are kept, the others are not."""

    def __init__(self, site: MqttSite, seed: int) -> None:
        self.site = site
        self.random = random.Random(seed)
        self.members = [SessionDevice(f"m{number}") for number in range(5)]
        self.publisher = SessionDevice("publisher")
        self.published: list[bytes] = []
        self.log: list[str] = []

    async def run(self) -> None:
        for number in range(len(self.members)):
            await self.connect(number)
        steps = [
            (self.publish, 40),
            (self.connect, 10),
            (self.drop, 5),
            (self.disconnect, 3),
            (self.unsubscribe, 2),
            (self.hold, 5),
            (self.answer, 8),
            (self.pass_time, 5),
            (self.kill_front, 2),
            (self.restart_broker, 1),
        ]
        for _ in range(STEPS):
            step = self.random.choices([step for step, _ in steps], [weight for _, weight in steps])[0]
            number = self.random.randrange(len(self.members))
            self.log.append(f"{step.__name__} {number}")
            await step(number)
        await self.finish()

    def front(self) -> Front:
        return self.site.fronts[self.random.choice(FRONTS)]

    async def publish(self, number: int) -> None:
        if not self.publisher.is_connected:
            await self.publisher.connect(self.front(), clean_session=True)
        for _ in range(self.random.choice((1, 1, 30))):
            body = b"%d" % len(self.published)
            self.published.append(body)
            await self.publisher.publish(f"t/{self.random.randrange(4)}", body)

    async def connect(self, number: int) -> None:
        device = self.members[number]
        await device.connect(self.front(), clean_session=number > 1)
        if not device.is_present or self.random.random() < 0.5:
            assert await device.subscribe((SHARE, 1)) == [1]

    async def drop(self, number: int) -> None:
        await self.members[number].drop()

    async def disconnect(self, number: int) -> None:
        await self.members[number].disconnect()

    async def unsubscribe(self, number: int) -> None:
        if number and self.members[number].is_connected:
            await self.members[number].unsubscribe(SHARE)

    async def hold(self, number: int) -> None:
        self.members[number].is_acknowledging = False

    async def answer(self, number: int) -> None:
        device = self.members[number]
        if device.is_connected:
            device.acknowledge(self.random.choice((1, 3, None)))
        device.is_acknowledging = self.random.random() < 0.7

    async def pass_time(self, number: int) -> None:
        self.site.bench.pass_time(self.random.choice((0.5, 3.0, 31.0)))
        await asyncio.sleep(0)

    async def kill_front(self, number: int) -> None:
        await self.site.kill_front(self.random.choice(FRONTS))
        for device in (*self.members, self.publisher):
            if device.is_connected:
                self.site.bench.pass_time(0)
                await device.drop()

    async def restart_broker(self, number: int) -> None:
        for device in (*self.members, self.publisher):
            await device.drop()
        await self.site.restart_broker()

    async def finish(self) -> None:
        """Everybody comes back and acknowledges everything."""
        shares = self.site.bench.broker.sessions.shares
        for number, device in enumerate(self.members):
            await self.connect(number)
            device.is_acknowledging = True
            device.acknowledge()
        # What front ends that were killed held, and the pause after a start.
        self.site.bench.pass_time(REJOIN_GRACE_S + 1)
        await soon(lambda: shares.view(SHARE).behind == 0, "everything to be acknowledged")
        got = Counter(body for device in self.members for _, body in device.got)
        assert set(got) == set(self.published)
        shares.check_invariants()
        assert shares.view(SHARE).in_flight == 0


@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("strategy", list(Strategy))
async def test_every_message_of_a_group_is_acknowledged(
    tmp_path: Path, strategy: Strategy, is_remote: bool
) -> None:
    for seed in range(SEED, SEED + PROGRAMS):
        site = await open_site(tmp_path / str(seed), *FRONTS, is_remote=is_remote)
        site.bench.settings["shared_strategy"] = strategy.value
        await site.restart_broker()
        program = Program(site, seed)
        try:
            await program.run()
        except BaseException:
            print(f"seed {seed}, {strategy}:", ", ".join(program.log))
            raise
        finally:
            for device in (*program.members, program.publisher):
                await device.drop()
            await site.close()
