"""Bursts: a steady load, and for some seconds ten times as much.

    locust -f loadtest/scenarios/bursts.py --headless -H 127.0.0.1:1883 --lost-max 0

One user is a swarm of telemetry. The shape adds nine swarms for the burst; it ends the run.
"""

import os

from loadtest.users import Plan, SwarmUser
from loadtest.users.shapes import Spike


class Telemetry(SwarmUser):
    plan = Plan(
        publishers=100,
        subscribers=1,
        topic="bursts/{swarm}/{n}",
        filter="bursts/{swarm}/+",
        rate_per_s=500,
        deliveries_per_message=1,
    )


class Burst(Spike):
    users = 1
    spike_users = int(os.environ.get("SWARMS", "10"))
    before_s = float(os.environ.get("BEFORE_S", "30"))
    spike_s = float(os.environ.get("SPIKE_S", "10"))
    after_s = before_s
