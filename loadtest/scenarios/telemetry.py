"""Steady telemetry: every device publishes at a steady rate, whether the server keeps up or not.

    locust -f loadtest/scenarios/telemetry.py --headless -u 2 -t 60s -H 127.0.0.1:1883 --lost-max 0 \
        --p99-max-ms 50

Latencies count from the time at which a message was due: a server that stalls is charged for all that had
to wait. A few listeners in each swarm get everything of its devices.
"""

from loadtest.scenarios.sizes import chosen
from loadtest.users import Plan, SwarmUser

devices, rate = chosen(
    {
        "telemetry-1k-1k": (1_000, 1_000),
        "telemetry-5k-5k": (5_000, 5_000),
        "telemetry-10k-50k": (10_000, 50_000),
    }
)


class Telemetry(SwarmUser):
    plan = Plan(
        publishers=devices,
        subscribers=1,
        topic="telemetry/{swarm}/{n}",
        filter="telemetry/{swarm}/+",
        rate_per_s=rate,
        payload_bytes=100,
        deliveries_per_message=1,
    )
