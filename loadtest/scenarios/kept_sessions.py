"""Kept sessions: devices go away without a word and come back, and miss nothing of what came meanwhile.

    locust -f loadtest/scenarios/kept_sessions.py --headless -u 100 -r 50 -t 60s -H 127.0.0.1:1883 \
        --lost-max 0 --repeated-max 0

One user is one device with a kept session and QoS 1. It publishes to itself; now and then its network goes.
Row `receive` has what came at once and what waited in the session.
"""

import random

from locust import task

from loadtest.users import MqttDeviceUser


class Device(MqttDeviceUser):
    protocol = 5
    clean_session = True
    session_expiry_s = 600
    stamps = "payload"
    reconnect_min_s = 0.5

    def wait_time(self) -> float:
        return random.uniform(0.5, 1.5)

    def event_name(self, action: str, qos: int, topic: str) -> str:
        return f"{action}:{qos}:kept/+"

    def on_start(self) -> None:
        self.inbox = f"kept/{self.client.client_id}"
        self.client.wait_connected(10)
        self.client.subscribe(self.inbox, qos=1)
        self.client.wait_subscribed(10)

    @task(9)
    def publish(self) -> None:
        self.client.publish(self.inbox, b"21.5", qos=1)

    @task(1)
    def lose_the_network(self) -> None:
        self.client.drop()
