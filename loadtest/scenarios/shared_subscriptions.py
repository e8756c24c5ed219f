"""Shared subscriptions: many devices publish, and the members of one group share what comes.

    locust -f loadtest/scenarios/shared_subscriptions.py --headless -u 1 -t 60s -H 127.0.0.1:1883 --lost-max 0

| SIZE | publishers of a user | members of its group | messages/s of a user |
| --- | --- | --- | --- |
| sharedsub-1K-5-1K-1K | 1,000 | 5 | 1,000 |
| sharedsub-50K-500-50K-50K | 5,000 of 50,000 (`-u 10`) | 50 of 500 | 5,000 of 50,000 |
"""

from loadtest.scenarios.sizes import PAYLOAD_BYTES, chosen
from loadtest.users import Plan, SwarmUser

publishers, members, rate = chosen(
    {"sharedsub-1K-5-1K-1K": (1_000, 5, 1_000), "sharedsub-50K-500-50K-50K": (5_000, 50, 5_000)}
)


class Shared(SwarmUser):
    plan = Plan(
        publishers=publishers,
        subscribers=members,
        topic="sharedsub/{swarm}/{n}",
        filter="$share/group-{swarm}/sharedsub/{swarm}/+",
        rate_per_s=rate,
        payload_bytes=PAYLOAD_BYTES,
        # All members of a swarm are checked together.
        deliveries_per_message=1,
    )
