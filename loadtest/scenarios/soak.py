"""Soak: a moderate load for hours, in search of what grows.

    locust -f loadtest/scenarios/soak.py --headless --csv soak --html soak.html -H 127.0.0.1:1883 \
        --lost-max 0 --repeated-max 0

Watch the server's memory and disk meanwhile. The shape ends the run after HOURS (8).
"""

import os

from loadtest.users import Plan, SwarmUser
from loadtest.users.shapes import Soak


class Telemetry(SwarmUser):
    plan = Plan(
        publishers=500,
        subscribers=500,
        topic="soak/{n}",
        filter="soak/{n}",
        rate_per_s=1_000,
        deliveries_per_message=1,
    )


class Hours(Soak):
    users = 1
    ramp_s = 1
    hold_s = 3600 * float(os.environ.get("HOURS", "8"))
