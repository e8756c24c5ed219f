"""Fan-in: many devices, and one subscriber that gets everything, as fast as it comes.

    locust -f loadtest/scenarios/fan_in.py --headless -u 1 -t 60s -H 127.0.0.1:1883 --lost-max 0

Publishers send as fast as the subscriber gets it: one is never more than `lead_max` messages ahead. Without
that, servers drop what a subscriber without a kept session cannot read in time, and it shows as lost.
"""

from loadtest.scenarios.sizes import chosen
from loadtest.users import Plan, SwarmUser

publishers, lead = chosen({"fanin-100-1": (100, 10), "fanin-1k-1": (1_000, 1)})


class FanIn(SwarmUser):
    plan = Plan(
        publishers=publishers,
        subscribers=1,
        topic="fanin/{swarm}/{n}",
        filter="fanin/{swarm}/+",
        window=lead,
        lead_max=lead,
        payload_bytes=100,
        deliveries_per_message=1,
        drain_timeout_s=30,
    )
