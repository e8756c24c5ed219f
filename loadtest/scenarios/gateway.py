"""The whole way through a gateway: devices publish, services consume; services send natively.

    locust -f loadtest/scenarios/gateway.py --headless -u 30 -r 10 -t 30s --lost-max 0

With `--tags alarms Device` devices send alarms only; with `Producer ServiceConsumer` only the services run.
MQTT and REGISTRY are the addresses of the gateway.
"""

import os

from locust import constant_throughput, tag, task

from loadtest.users import MqttDeviceUser, NativeConsumerUser, NativeProducerUser


class Device(MqttDeviceUser):
    weight = 8
    host = os.environ.get("MQTT", "mqtt://127.0.0.1:1883")
    wait_time = constant_throughput(2)
    stamps = "payload"

    def event_name(self, action: str, qos: int, topic: str) -> str:
        return f"{action}:{qos}:{topic.partition('/')[0]}/+"

    @task(9)
    def publish(self) -> None:
        self.client.publish(f"devices/{self.client.client_id}", b"21.5", qos=1)

    @tag("alarms")
    @task(1)
    def alarm(self) -> None:
        self.client.publish(f"alarms/{self.client.client_id}", b"too hot", qos=1)


class Producer(NativeProducerUser):
    weight = 1
    registries = (os.environ.get("REGISTRY", "127.0.0.1:9876"),)
    wait_time = constant_throughput(10)

    @task
    def send_one(self) -> None:
        self.client.send("loadtest", b"x" * 100, key="load")


class Consumer(NativeConsumerUser):
    """Gets what the devices publish: their messages go to the broker topic `mqtt`."""

    fixed_count = 1
    registries = (os.environ.get("REGISTRY", "127.0.0.1:9876"),)
    topic = "mqtt"


class ServiceConsumer(Consumer):
    """Gets what the services send."""

    fixed_count = 1
    group = "loadtest-services"
    topic = "loadtest"
