"""Refuse a run that cannot succeed, before it begins: impossible plans, a machine too small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locust.runners import MasterRunner, WorkerRunner

from loadtest.swarm import Swarm, SwarmError
from loadtest.swarm.room import raise_file_limit
from loadtest.users.machine import DEVICE_BYTES, Machine, Wanted, problems
from loadtest.users.mqtt_user import MqttDeviceUser
from loadtest.users.swarm_user import SwarmUser

if TYPE_CHECKING:
    from locust.env import Environment


def check_run(environment: Environment) -> None:
    """Raise SwarmError with a sentence for each thing that is wrong."""
    raise_file_limit()
    runner = environment.runner
    options = environment.parsed_options
    # A master has its workers' users, and a worker does not know yet how many it will get.
    users = 1 if isinstance(runner, WorkerRunner | MasterRunner) else getattr(options, "num_users", None) or 1
    classes = environment.user_classes
    weight = sum(each.weight for each in classes if not each.fixed_count) or 1
    wanted = []
    for each in classes:
        count = each.fixed_count or max(1, round(users * each.weight / weight))
        if issubclass(each, SwarmUser):
            if not hasattr(each, "plan"):
                raise SwarmError(f"{each.__name__} has no plan")
            plan = each.plan_of_swarm(0, environment.host)
            Swarm.check(plan)
            wanted.append(
                Wanted(
                    connections=plan.publishers + plan.subscribers + plan.idle,
                    processes=count,
                    server=f"{plan.host}:{plan.port}",
                    source_addresses=max(1, len(plan.source_addresses)),
                )
            )
        elif issubclass(each, MqttDeviceUser):
            each.check()
            wanted.append(
                Wanted(
                    connections=count,
                    server=f"{environment.host or each.host}:{each.port}",
                    connection_bytes=DEVICE_BYTES,
                    process_bytes=0,
                )
            )
    found = problems(wanted, Machine.here())
    if found:
        raise SwarmError("\n  ".join(["this machine is too small for the run:", *found]))
