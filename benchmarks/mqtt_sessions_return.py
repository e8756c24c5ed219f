"""A million kept sessions in a running gateway: commands to random ones for a minute, then devices come back.

    .venv/bin/python -m benchmarks.mqtt_sessions_return [--sessions 1000000] [--seconds 60] [--quick]

The sessions are made in the log beforehand, as `mqtt_sessions` makes them (a filter `dev/ID/cmd/#` each,
nobody connected); then the gateway starts with them. One service sends 1,000 messages a second (QoS 1),
each to a random device. Then a thousand of the devices that have something connect, and have to get
exactly theirs, in order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from benchmarks import machine, peers
from benchmarks.mqtt_sessions import make_sessions, open_store
from loadtest.swarm import connect_packet

RATE_PER_S: Final = 1_000
RETURNING: Final = 1_000
AT_ONCE: Final = 100
TICK_S: Final = 0.01
# After what a device has to get nothing may come for so long.
QUIET_S: Final = 1.0
DELIVERY_TIMEOUT_S: Final = 60.0


class Client:
    """An MQTT connection that reads packet by packet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, client_id: str, *, is_clean: bool) -> tuple[Client, bool]:
        """The connection, and whether the session was there."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client.writer.write(connect_packet(client_id, is_clean=is_clean))
        first, body = await client.packet()
        assert (first, body[1]) == (0x20, 0), (first, body)
        return client, bool(body[0])

    async def packet(self) -> tuple[int, bytes]:
        """(first byte, what follows the length) of the next packet."""
        first = (await self._reader.readexactly(1))[0]
        size = shift = 0
        while True:
            (digit,) = await self._reader.readexactly(1)
            size |= (digit & 0x7F) << shift
            shift += 7
            if digit < 0x80:
                return first, await self._reader.readexactly(size)

    async def close(self) -> None:
        self.writer.write(b"\xe0\x00")
        self.writer.close()
        await self.writer.wait_closed()


async def send(port: int, sessions: int, seconds: float) -> dict[int, list[int]]:
    """Commands at a fixed rate, all of them acknowledged; which each device is to get, in order."""
    source = random.Random(5)
    wanted: dict[int, list[int]] = defaultdict(list)
    client, _ = await Client.connect(port, "service", is_clean=True)
    count = round(RATE_PER_S * seconds)
    began, sent = time.monotonic(), 0

    async def acknowledged() -> None:
        for _ in range(count):
            first, _ = await client.packet()
            assert first == 0x40, first

    reading = asyncio.ensure_future(acknowledged())
    while sent < count:
        due = min(count, round((time.monotonic() - began) * RATE_PER_S))
        while sent < due:
            device = source.randrange(sessions)
            wanted[device].append(sent)
            topic = b"dev/%07d/cmd/run" % device
            body = len(topic).to_bytes(2, "big") + topic + (sent % 65_535 + 1).to_bytes(2, "big")
            body += b"%07d %012d" % (device, sent)
            client.writer.write(bytes([0x32, len(body)]) + body)
            sent += 1
        await asyncio.sleep(TICK_S)
    async with asyncio.timeout(DELIVERY_TIMEOUT_S):
        await reading
    await client.close()
    return wanted


async def come_back(port: int, device: int, count: int) -> tuple[bool, list[tuple[int, int]], float]:
    """Whether the session was there, (device, number) of all that came, and the seconds until the last."""
    began = last = time.monotonic()
    client, is_present = await Client.connect(port, f"device-{device:07d}", is_clean=False)
    got: list[tuple[int, int]] = []
    try:
        while True:
            async with asyncio.timeout(DELIVERY_TIMEOUT_S if len(got) < count else QUIET_S):
                first, body = await client.packet()
            if first >> 4 == 3:
                at = 2 + int.from_bytes(body[:2], "big")
                whom, number = body[at + 2 :].split()
                got.append((int(whom), int(number)))
                client.writer.write(b"\x40\x02" + body[at : at + 2])
                last = time.monotonic()
    except TimeoutError:
        pass
    await client.close()
    return is_present, got, last - began


async def return_all(port: int, wanted: dict[int, list[int]]) -> tuple[Counter[str], list[float]]:
    """What went wrong with those that returned, and how long each took."""
    wrong: Counter[str] = Counter({"sessions lost": 0, "devices with anything else than theirs": 0})
    seconds: list[float] = []
    devices = random.Random(7).sample(sorted(wanted), min(RETURNING, len(wanted)))
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(device: int) -> None:
        async with turn:
            is_present, got, taken_s = await come_back(port, device, len(wanted[device]))
        wrong["sessions lost"] += not is_present
        wrong["devices with anything else than theirs"] += got != [
            (device, number) for number in wanted[device]
        ]
        seconds.append(taken_s)

    await asyncio.gather(*(one(device) for device in devices))
    return wrong, seconds


async def play(server: peers.Server, sessions: int, seconds: float) -> tuple[Counter[str], list[float]]:
    memory = server.memory_bytes()["anonymous"]
    before_s, began = server.exact_cpu_s(), time.monotonic()
    wanted = await send(server.port, sessions, seconds)
    cpu_s, taken_s = server.exact_cpu_s() - before_s, time.monotonic() - began
    count = sum(map(len, wanted.values()))
    print(
        f"{count:,} commands to {len(wanted):,} of {sessions:,} devices in {taken_s:.1f} s: "
        f"{cpu_s / count * 1e6:.0f} us of processor time each in all of the gateway, the front end and its "
        f"single packets included; memory of the process that is no file's {memory / 1e6:,.0f} MB"
    )
    return await return_all(server.port, wanted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true", help="50,000 sessions and 5 s, for a look")
    options = parser.parse_args()
    sessions, seconds = (50_000, 5.0) if options.quick else (options.sessions, options.seconds)
    server_core, load_core = machine.cores()
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-sessions-", dir=machine.RESULTS) as directory:
        began = time.monotonic()
        store, _ = open_store(Path(directory))
        make_sessions(store, sessions)
        store.close()
        print(f"{sessions:,} sessions made in {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        with peers.iotmq(core=server_core, data=Path(directory)) as server:
            print(f"started with them in {time.monotonic() - began:.1f} s")
            os.sched_setaffinity(0, {load_core})
            wrong, taken_s = asyncio.run(play(server, sessions, seconds))
    taken_s.sort()
    print(
        f"{len(taken_s):,} devices come back, {AT_ONCE} at a time: half have all within "
        f"{taken_s[len(taken_s) // 2] * 1e3:.0f} ms, the last within {taken_s[-1] * 1e3:.0f} ms"
    )
    print(", ".join(f"{name} {count}" for name, count in wrong.items()))
    machine.save("mqtt_sessions_return", {"wrong": dict(wrong), "returned": len(taken_s)})
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
