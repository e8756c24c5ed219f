"""Authenticated connects a second of a gateway: by password, by token, and without authentication.

    .venv/bin/python -m benchmarks.mqtt_authentication [--seconds 5] [--devices 2000] [--quick]

A gateway in one process runs on one core, and devices on another: each connects with a clean session, waits
for its CONNACK, and leaves; 200 do so at a time. *remembered* is what a fleet costs that was here before,
*first* what it costs when nothing is remembered (`cached_max = 0`; of passwords only a few, because each
takes milliseconds). What counts is the processor time of the gateway, all its threads together, with the
opening and the end of the session.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks import machine, peers
from iotmq.config.setting_text import toml_value

AT_ONCE: Final = 200
GOAL_PER_S: Final = 5_000
Credentials = Callable[[int], tuple[str | None, bytes | None]]


@dataclass(frozen=True)
class Case:
    """One way to authenticate."""

    name: str
    link: dict[str, Any]
    """Settings of the one link of the chain; empty: nobody is asked."""
    credentials: Credentials
    has_goal: bool = False
    devices: int | None = None
    """Fewer than the others have."""


def cases(directory: Path, devices: int) -> list[Case]:
    import jwt
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from iotmq.credentials.argon2 import make as make_argon2
    from iotmq.mqtt_front.access.scram import make_verifier

    private = ec.generate_private_key(ec.SECP256R1())
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    (directory / "key.pem").write_bytes(private.public_key().public_bytes(*form))
    ends = time.time() + 3_600
    tokens = [
        jwt.encode({"sub": f"user-{number}", "exp": ends, "iat": time.time()}, private, "ES256").encode()
        for number in range(devices)
    ]
    few = min(devices, 64)
    hashed = {"argon2": make_argon2(b"password"), "scram": str(make_verifier(b"password", iterations=4_096))}
    for name, kept in hashed.items():
        (directory / name).write_text("".join(f"user-{number}:{kept}\n" for number in range(devices)))
        (directory / name).chmod(0o600)

    def password(number: int) -> tuple[str, bytes]:
        return f"user-{number}", b"password"

    def token(number: int) -> tuple[str, bytes]:
        return f"user-{number}", tokens[number]

    def users(name: str, **settings: Any) -> dict[str, Any]:
        return {"kind": "users", "name": "users", "file": str(directory / name), **settings}

    def by_token(**settings: Any) -> dict[str, Any]:
        keys = [str(directory / "key.pem")]
        fixed = {"algorithms": ["ES256"], "key_files": keys, "cache_s": 3_600.0}
        return {"kind": "jwt", "name": "tokens", **fixed, **settings}

    return [
        Case("nobody is asked", {}, lambda number: (None, None)),
        Case("password, argon2id, remembered", users("argon2"), password, has_goal=True, devices=few),
        Case("password, SCRAM verifier, remembered", users("scram"), password),
        Case("token, ES256, remembered", by_token(), token, has_goal=True),
        Case("token, ES256, first", by_token(cached_max=0), token),
        Case("password, SCRAM verifier, first", users("scram", cached_max=0), password, devices=few),
        Case("password, argon2id, first", users("argon2", cached_max=0), password, devices=few),
    ]


async def come_and_go(port: int, packet: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(packet)
    answer = await reader.readexactly(4)
    assert answer == b"\x20\x02\x00\x00", answer
    writer.write(b"\xe0\x00")
    writer.close()


async def connect_all(port: int, packets: list[bytes], count: int) -> None:
    """`count` connects, the packets in turn."""
    left = iter(range(count))

    async def some() -> None:
        for number in left:
            await come_and_go(port, packets[number % len(packets)])

    await asyncio.gather(*(some() for _ in range(min(AT_ONCE, len(packets)))))


def measure(case: Case, devices: int, seconds: float, core: int) -> dict[str, float]:
    devices = case.devices or devices
    packets = [connect_with(f"device-{number}", *case.credentials(number)) for number in range(devices)]
    lines = [f"{key} = {toml_value(value)}\n" for key, value in case.link.items()]
    settings = "".join(["[[mqtt.authentication.chain]]\n", *lines]) if lines else ""
    with peers.iotmq(core=core, routes=settings) as server:
        uvloop.run(connect_all(server.port, packets, devices))
        before_s, began, count = server.exact_cpu_s(), time.monotonic(), 0
        while time.monotonic() - began < seconds:
            uvloop.run(connect_all(server.port, packets, devices))
            count += devices
        taken_s, used_s = time.monotonic() - began, server.exact_cpu_s() - before_s
    return {"per_s": count / taken_s, "per_core_s": count / used_s, "us": used_s / count * 1e6}


def connect_with(client_id: str, user: str | None, password: bytes | None) -> bytes:
    from iotmq.mqtt.codec import packets

    return packets.encode_connect(packets.Connect(client_id, True, 0, None, user, password))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--devices", type=int, default=2_000)
    parser.add_argument("--quick", action="store_true", help="1 s each, for a look")
    options = parser.parse_args()
    seconds = 1.0 if options.quick else options.seconds
    server_core, load_core = machine.cores()
    about = machine.description()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    os.sched_setaffinity(0, {load_core})
    results: dict[str, dict[str, float]] = {}
    is_reached = True
    with tempfile.TemporaryDirectory() as directory:
        for case in cases(Path(directory), options.devices):
            found = results[case.name] = measure(case, options.devices, seconds, server_core)
            goal = f" (goal {GOAL_PER_S:,})" if case.has_goal else ""
            is_reached &= not case.has_goal or found["per_core_s"] >= GOAL_PER_S
            print(
                f"{case.name}: {found['per_core_s']:,.0f} connects/s a core{goal}, {found['us']:.0f} us "
                f"each; {found['per_s']:,.0f}/s were made"
            )
    machine.save("mqtt_authentication", {"machine": about, "results": results})
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
