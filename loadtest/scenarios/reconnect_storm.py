"""Reconnect storm: all devices lose their connection together and come back together, to their kept sessions.

    locust -f loadtest/scenarios/reconnect_storm.py --headless -H 127.0.0.1:1883

One user is a swarm. The shape has all swarms leave for `down_s` and return, `storms` times; it ends the
run. Row `connect` has the storm's connections, with the time until the session is there.
"""

import os

from loadtest.scenarios.sizes import chosen
from loadtest.users import Plan, SwarmUser
from loadtest.users.shapes import Storm

devices = chosen({"storm-1k": 1_000, "storm-10k": 10_000})


class Devices(SwarmUser):
    plan = Plan(
        subscribers=devices,
        filter="commands/{n}",
        filter_qos=1,
        keeps_sessions=True,
        connect_rate_per_s=50_000,
        connects_in_progress_max=1_000,
    )


class AllAtOnce(Storm):
    users = int(os.environ.get("SWARMS", "1"))
    up_s = float(os.environ.get("UP_S", "10"))
    down_s = 2
    storms = 2
