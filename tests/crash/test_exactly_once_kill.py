"""QoS 2 both ways, sessions kept, while the broker and two front ends are killed, one after the other or two
together: each message comes once.

`make crash` runs many rounds (IOTMQ_CRASH_ROUNDS) from a seed of its own (IOTMQ_CRASH_SEED); it is printed.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections import Counter
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from crash_load import BACK_S, SMALL_FILES
from eventually import eventually
from gateway_process import GatewayProcess
from log_reader import read_topic
from mqtt_roles import mqtt_roles
from paho.mqtt.enums import MessageState

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "4"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "20"))
PAIRS = 3
WINDOW = 50
# Messages of a publisher from one kill to the next.
BETWEEN = 150


class Publisher:
    """Publishes numbers with QoS 2, a window of them at a time; its session is kept."""

    def __init__(self, number: int, ports: list[int]) -> None:
        self.number = number
        self.sent = 0
        self.done: Counter[int] = Counter()
        self._sent_max = 0
        self._under_way = 0
        self._lock = threading.Lock()
        self.client = kept_client(f"publisher-{number}", ports)
        self.client.on_publish = self._published

    def send_more(self, count: int) -> None:
        """Publish so many more, as fast as they are taken."""
        with self._lock:
            self._sent_max += count
        self._publish()

    def _publish(self) -> None:
        while True:
            with self._lock:
                if self.sent == self._sent_max or self._under_way == WINDOW:
                    return
                number, self.sent = self.sent, self.sent + 1
                self._under_way += 1
            self.client.publish(f"once/{self.number}/{number % 7}", b"%d:%d" % (self.number, number), qos=2)

    def _published(self, client: paho.Client, data: object, packet_id: int, *_: object) -> None:
        with self._lock:
            self._under_way -= 1
        self.done[packet_id] += 1
        self._publish()


class Subscriber:
    """Subscribes to one publisher with QoS 2; its session is kept."""

    def __init__(self, number: int, ports: list[int]) -> None:
        self.got: Counter[bytes] = Counter()
        subscribed = threading.Event()
        self.client = kept_client(f"subscriber-{number}", ports)
        self.client.on_message = self._on_message
        self.client.on_subscribe = lambda *_: subscribed.set()
        self.client.subscribe(f"once/{number}/#", qos=2)
        assert subscribed.wait(10)

    def _on_message(self, client: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        self.got[message.payload] += 1


class KeptClient(paho.Client):
    """Does not forget that it has had PUBREC for a message when it tries to connect a second time.

    paho-mqtt 2.1 does, and publishes the message anew, without DUP. When the front end was killed between the
    release of its packet id and PUBCOMP, nobody can tell that from a new message.
    """

    def _messages_reconnect_reset_out(self) -> None:
        messages = self._out_messages.values()
        received = [message for message in messages if message.state == MessageState.MQTT_MS_RESEND_PUBREL]
        super()._messages_reconnect_reset_out()
        for message in received:
            message.state = MessageState.MQTT_MS_RESEND_PUBREL


def kept_client(client_id: str, ports: list[int]) -> paho.Client:
    """A connected client that goes to the other front end whenever it has lost its connection."""
    doors = itertools.cycle(ports)
    client = KeptClient(
        paho.CallbackAPIVersion.VERSION2, client_id, clean_session=False, protocol=paho.MQTTv311
    )
    client.max_queued_messages_set(0)
    client.max_inflight_messages_set(WINDOW)
    client.reconnect_delay_set(1, 1)
    client.on_disconnect = lambda *_: client.connect_async("127.0.0.1", next(doors))
    client.connect("127.0.0.1", next(doors))
    client.loop_start()
    eventually(client.is_connected, f"{client_id} is connected")
    return client


def restart(*processes: GatewayProcess) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.launch()
    for process in processes:
        process.wait_ready(within_s=BACK_S)


@pytest.mark.timeout(90 + 30 * ROUNDS)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_each_message_of_qos_2_comes_once_whatever_dies(tmp_path: Path, flush: str) -> None:
    print(f"IOTMQ_CRASH_SEED={SEED}")
    random_source = random.Random(SEED)
    settings = (*SMALL_FILES, f"store.flush={flush}")
    with mqtt_roles(tmp_path, broker_settings=settings) as roles:
        ports = [roles["one"].mqtt_port, roles["two"].mqtt_port]
        subscribers = [Subscriber(number, ports) for number in range(PAIRS)]
        publishers = [Publisher(number, ports[::-1]) for number in range(PAIRS)]
        allowed = 0
        victims = itertools.cycle([["broker"], ["broker", "one"], ["two"], ["one", "two"]])
        for names in itertools.islice(victims, ROUNDS):
            for publisher in publishers:
                publisher.send_more(BETWEEN)
            allowed += BETWEEN * PAIRS
            target = allowed - random_source.randrange(BETWEEN * PAIRS)
            eventually(
                lambda target=target: sum(publisher.sent for publisher in publishers) >= target,
                "publishers go on", within_s=BACK_S,
            )  # fmt: skip
            restart(*(roles[name] for name in names))
        eventually(
            lambda: all(sum(publisher.done.values()) == publisher.sent for publisher in publishers),
            "all is stored", within_s=BACK_S,
        )  # fmt: skip
        sent = Counter(
            b"%d:%d" % (publisher.number, number)
            for publisher in publishers
            for number in range(publisher.sent)
        )
        eventually(
            lambda: sum(len(subscriber.got) for subscriber in subscribers) == len(sent),
            "all is delivered", within_s=BACK_S,
        )  # fmt: skip
        for client in (*publishers, *subscribers):
            client.client.disconnect()
            client.client.loop_stop()
        queues = read_topic(roles["registry"].registry, "mqtt").values()
        stored = Counter(record.body for records in queues for record in records)
        received = sum((subscriber.got for subscriber in subscribers), Counter())
        again = [(found - sent).total() for found in (stored, received)]
        print(f"{len(sent)} sent, {again} stored and received again")
        assert not sent - stored, "lost"
        twice = stored - sent
        print(*(record for records in queues for record in records if record.body in twice), sep="\n")
        assert not twice, "stored twice"
        assert received == sent
