"""Locust users for MQTT and the native protocol (docs/how-to/load-test.md).

Start with `mqtt_user` (one user is one device) and `swarm_user` (one user is thousands). Importing this
adds the options of `thresholds` to Locust's command line.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import gevent
from locust import events
from locust.env import Environment

from iotmq.errors import ClientError
from loadtest.swarm import Plan, SwarmError
from loadtest.users import devices_tab, ending, numbering, thresholds
from loadtest.users.before_run import check_run
from loadtest.users.mqtt_client import DeviceClient
from loadtest.users.mqtt_user import MqttDeviceUser
from loadtest.users.native_users import NativeConsumerUser, NativeProducerUser
from loadtest.users.swarm_user import SwarmUser

__all__ = [
    "DeviceClient",
    "MqttDeviceUser",
    "NativeConsumerUser",
    "NativeProducerUser",
    "Plan",
    "SwarmUser",
]

events.init_command_line_parser.add_listener(thresholds.add_options)


def _install(environment: Environment, **_: Any) -> None:
    """Set up what a run needs; ends the process when it cannot succeed here."""
    numbering.install(environment)
    ending.install(environment)
    devices_tab.install(environment)
    try:
        thresholds.install(environment)
        check_run(environment)
    except (argparse.ArgumentTypeError, ClientError, SwarmError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        sys.exit(2)
    # gevent's clock stands still while modules are loaded: --run-time would be over that much too early.
    gevent.get_hub().loop.update_now()


events.init.add_listener(_install)
