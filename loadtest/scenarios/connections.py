"""Connection ramp: devices connect at a steady rate and stay, without messages.

    locust -f loadtest/scenarios/connections.py --headless -u 1 -t 60s -H 127.0.0.1:1883

Row `connect` has the time from the first packet of TCP to CONNACK. Each user is a process with so many
devices of its own; `-u 20` with the largest size makes a million, if the server and the addresses have room
(`source_addresses`).

| SIZE | devices of a user | connections a second of a user |
| --- | --- | --- |
| conn-tcp-1k-100 | 1,000 | 100 |
| conn-tcp-10k-100 | 10,000 | 100 |
| conn-tcp-1M-5K | 50,000 of 1,000,000 (`-u 20`) | 250 of 5,000 |
"""

from loadtest.scenarios.sizes import chosen
from loadtest.users import Plan, SwarmUser

devices, rate = chosen(
    {"conn-tcp-1k-100": (1_000, 100), "conn-tcp-10k-100": (10_000, 100), "conn-tcp-1M-5K": (50_000, 250)}
)


class Connections(SwarmUser):
    plan = Plan(
        idle=devices,
        connect_rate_per_s=rate,
        connects_in_progress_max=max(64, rate),
        connect_timeout_s=2 * devices / rate + 10,
        # All from one address have 28,000 ports; 127.0.0.x are for servers on this machine.
        source_addresses=tuple(f"127.0.0.{n}" for n in range(2, 5)) if devices > 25_000 else (),
    )
