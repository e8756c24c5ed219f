"""Retained lookup: how long until a device that subscribes has the retained message?

    locust -f loadtest/scenarios/retained.py --headless -u 50 -r 50 -t 30s -H 127.0.0.1:1883

Each user keeps one retained message, and looks it up again and again. Row `lookup` has the time from
SUBSCRIBE to the message.
"""

import time

import gevent.event
from locust import constant_throughput, task

from loadtest.users import MqttDeviceUser


class Device(MqttDeviceUser):
    wait_time = constant_throughput(2)

    def event_name(self, action: str, qos: int, topic: str) -> str:
        return f"{action}:{qos}:retained/+"

    def on_start(self) -> None:
        self.topic = f"retained/{self.client.client_id}"
        self.came = gevent.event.Event()
        self.client.on_message = lambda *_: self.came.set()
        self.client.wait_connected(10)
        self.client.publish(self.topic, b"42", qos=1, retain=True).wait_for_publish(10)

    @task
    def look_up(self) -> None:
        self.came.clear()
        began_s = time.perf_counter()
        self.client.subscribe(self.topic, qos=1)
        has_come = self.came.wait(5)
        self.environment.events.request.fire(
            request_type="MQTT",
            name="lookup",
            response_time=(time.perf_counter() - began_s) * 1e3,
            response_length=2,
            exception=None if has_come else TimeoutError("no retained message"),
            context={},
        )
        self.client.unsubscribe(self.topic)

    def on_stop(self) -> None:
        # Leaves nothing behind at the server.
        self.client.publish(self.topic, b"", qos=1, retain=True)
