"""Command fan-out: few publishers, and every message goes to many devices.

    locust -f loadtest/scenarios/command_fanout.py --headless -u 1 -t 60s -H 127.0.0.1:1883 --lost-max 0

| SIZE | publishers | subscribers | messages/s in | messages/s out |
| --- | --- | --- | --- | --- |
| fanout-1-1k-1-1K | 1 | 1,000 | 1 | 1,000 |
| fanout-5-1000-5-250K | 5 | 1,000 | 250 | 250,000 |
"""

from loadtest.scenarios.sizes import PAYLOAD_BYTES, chosen
from loadtest.users import Plan, SwarmUser

publishers, subscribers, rate = chosen(
    {"fanout-1-1k-1-1K": (1, 1_000, 1), "fanout-5-1000-5-250K": (5, 1_000, 250)}
)


class FanOut(SwarmUser):
    plan = Plan(
        publishers=publishers,
        subscribers=subscribers,
        topic="fanout/{swarm}/{n}",
        filter="fanout/{swarm}/+",
        rate_per_s=rate,
        payload_bytes=PAYLOAD_BYTES,
        deliveries_per_message=subscribers,
    )
