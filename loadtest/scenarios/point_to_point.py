"""Point to point: each publisher has one subscriber, on a topic of their own.

    locust -f loadtest/scenarios/point_to_point.py --headless -u 1 -t 60s -H 127.0.0.1:1883 --lost-max 0 \
        --repeated-max 0

| SIZE | pairs of a user | messages/s of a user |
| --- | --- | --- |
| p2p-1K-1K-1K-1K | 1,000 | 1,000 |
| p2p-50K-50K-50K-50K | 5,000 of 50,000 (`-u 10`) | 5,000 of 50,000 |
"""

from loadtest.scenarios.sizes import PAYLOAD_BYTES, chosen
from loadtest.users import Plan, SwarmUser

pairs, rate = chosen({"p2p-1K-1K-1K-1K": (1_000, 1_000), "p2p-50K-50K-50K-50K": (5_000, 5_000)})


class PointToPoint(SwarmUser):
    plan = Plan(
        publishers=pairs,
        subscribers=pairs,
        topic="p2p/{n}",
        filter="p2p/{n}",
        rate_per_s=rate,
        payload_bytes=PAYLOAD_BYTES,
        deliveries_per_message=1,
    )
