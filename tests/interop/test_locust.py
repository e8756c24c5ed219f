"""Locust with the users of loadtest: its own numbers beside those of the server."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from eventually import eventually
from gateway_process import GatewayProcess, free_port
from locust_run import DEADLINE_S, LocustRun, environment, locust_words, read_run, run_locust
from lossy_proxy import LossyProxy
from mosquitto_broker import PROGRAM, MosquittoBroker

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="Mosquitto is not installed (tools/setup.sh dev)"),
]

DEVICES = """
    from locust import constant_throughput, task
    from loadtest.users import MqttDeviceUser

    class Device(MqttDeviceUser):
        abstract = True
        wait_time = constant_throughput(10)
        stamps = "payload"
        qos = 1

        def event_name(self, action, qos, topic):
            return f"{action}:{type(self).__name__}"

        def on_start(self):
            self.own = f"load/{self.client.client_id}"
            assert self.client.wait_connected(10)
            self.client.subscribe(self.own, self.qos)
            assert self.client.wait_subscribed(10)

        @task
        def publish(self):
            self.client.publish(self.own, b"x" * 40, qos=self.qos)
"""


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoBroker]:
    directory = tmp_path_factory.mktemp("mosquitto")
    with MosquittoBroker(directory, "allow_anonymous true", "sys_interval 1") as running:
        yield running


def locustfile(directory: Path, *parts: str, name: str = "load") -> Path:
    path = directory / f"{name}.py"
    path.write_text("\n".join(dedent(part) for part in parts))
    return path


def sys_number(broker: MosquittoBroker, topic: str) -> int:
    done = subprocess.run(
        ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(broker.port), "-t", f"$SYS/broker/{topic}", "-C", "1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return int(done.stdout)


def check_echo(run: LocustRun, kind: str) -> int:
    """Every device got what it had published, and nothing failed; returns how much that was."""
    published = run.count(f"publish:{kind}")
    assert published > 0
    assert run.count(f"receive:{kind}") == published
    assert run.failed(f"publish:{kind}") == run.failed(f"receive:{kind}") == 0
    assert float(run.rows[f"receive:{kind}"]["Max Response Time"]) > 0
    return published


def test_devices_of_all_versions_against_a_gateway(gateway: GatewayProcess, tmp_path: Path) -> None:
    kinds = """
        class V3(Device):
            pass

        class V5(Device):
            protocol = 5
            qos = 2
            stamps = "property"

        class Kept(Device):
            protocol = 5
            clean_session = False
            session_expiry_s = 60
    """
    published, accepted = (
        gateway.metric("iotmq_mqtt_published_total"),
        gateway.metric("iotmq_mqtt_accepted_total"),
    )
    run = run_locust(
        locustfile(tmp_path, DEVICES, kinds), tmp_path, "-u", "9", "-r", "9",
        "-H", f"mqtt://127.0.0.1:{gateway.mqtt_port}", "--html", "page.html",
    )  # fmt: skip
    assert run.code == 0, run.output
    total = sum(check_echo(run, kind) for kind in ("V3", "V5", "Kept"))
    assert gateway.metric("iotmq_mqtt_published_total") - published == total
    assert gateway.metric("iotmq_mqtt_accepted_total") - accepted == run.count("connect") == 9
    assert float(run.rows["connect"]["Min Response Time"]) > 0, "connect times are real"
    assert run.count("disconnect") == 9
    assert "receive:V5" in (tmp_path / "page.html").read_text()


def test_devices_over_all_transports_of_mosquitto(mosquitto: MosquittoBroker, tmp_path: Path) -> None:
    kinds = f"""
        import ssl

        trusted = ssl.create_default_context(cafile={str(mosquitto.root.certificate)!r})

        class Tcp(Device):
            port = {mosquitto.port}

        class Tls(Device):
            port = {mosquitto.tls_port}
            tls_context = trusted

        class Web(Device):
            port = {mosquitto.websocket_port}
            transport = "websockets"

        class SecureWeb(Device):
            port = {mosquitto.secure_websocket_port}
            transport = "websockets"
            tls_context = trusted
    """
    before = sys_number(mosquitto, "publish/messages/received")
    run = run_locust(locustfile(tmp_path, DEVICES, kinds), tmp_path, "-u", "8", "-r", "8")
    assert run.code == 0, run.output
    total = sum(check_echo(run, kind) for kind in ("Tcp", "Tls", "Web", "SecureWeb"))
    eventually(
        lambda: sys_number(mosquitto, "publish/messages/received") - before == total, "the same at the server"
    )


def test_a_device_that_drops_its_connection_leaves_its_will_and_returns(
    mosquitto: MosquittoBroker, tmp_path: Path
) -> None:
    kinds = """
        from iotmq.mqtt_client import Will
        from locust import constant

        class Listener(MqttDeviceUser):
            fixed_count = 1
            wait_time = constant(1)

            def on_start(self):
                self.client.subscribe("wills/+", 1)
                self.client.wait_subscribed(10)
                Dropping.is_heard = True

            @task
            def nothing(self):
                pass

        class Dropping(MqttDeviceUser):
            fixed_count = 4
            wait_time = constant(0.05)
            will = Will("wills/gone", b"gone", qos=1, retain=False)
            is_heard = has_dropped = False

            @task
            def drop_once(self):
                if self.is_heard and not self.has_dropped and self.client.wait_connected(5):
                    self.has_dropped = True
                    self.client.drop()
    """
    run = run_locust(
        locustfile(tmp_path, DEVICES, kinds), tmp_path, "-u", "5", "-r", "5",
        "-H", f"mqtt://127.0.0.1:{mosquitto.port}", "--errors-max", "0",
    )  # fmt: skip
    assert run.code == 0, run.output
    assert run.count("receive:1:wills/gone") == 4
    assert run.count("connect") == run.count("disconnect") == 5 + 4


def test_a_locustfile_for_locusts_own_client_needs_another_import_only(
    mosquitto: MosquittoBroker, tmp_path: Path
) -> None:
    text = f"""
        import time
        from locust import task, between
        from paho.mqtt.client import MQTTv5
        from {{module}} import {{name}} as MqttUser
        # Also in the run of Locust's own: files are complete at the end, and runs as long as they are to be.
        import loadtest.users

        class Device(MqttUser):
            host = "127.0.0.1"
            port = {mosquitto.port}
            protocol = MQTTv5
            wait_time = between(0.1, 0.2)

            def on_start(self):
                time.sleep(0.5)
                self.client.subscribe("drop-in/+", 1)

            @task
            def say(self):
                info = self.client.publish("drop-in/a", b"hello", qos=1)
                info.wait_for_publish(5)
                self.client.publish("drop-in/b", "hello")
    """
    names = {}
    for module, name in (("locust.contrib.mqtt", "MqttUser"), ("loadtest.users", "MqttDeviceUser")):
        part = dedent(text).replace("{module}", module).replace("{name}", name)
        run = run_locust(locustfile(tmp_path, part, name=name.lower()), tmp_path)
        assert run.code == 0, run.output
        assert run.count("publish:1:drop-in/a") > 1
        names[module] = {each for each in run.rows if not each.startswith("receive")}
    assert names["loadtest.users"] == names["locust.contrib.mqtt"] | {"disconnect"}


SWARM = """
    from loadtest.users import Plan, SwarmUser

    class Swarm(SwarmUser):
        plan = Plan(
            publishers=50, subscribers=50, topic="swarm/{swarm}/{n}", filter="swarm/{swarm}/{n}", qos=1,
            rate_per_s=400, deliveries_per_message=1,
        )
"""


def test_two_swarms_have_the_numbers_of_the_gateway(gateway: GatewayProcess, tmp_path: Path) -> None:
    published, accepted = (
        gateway.metric("iotmq_mqtt_published_total"),
        gateway.metric("iotmq_mqtt_accepted_total"),
    )
    run = run_locust(
        locustfile(tmp_path, SWARM), tmp_path, "-u", "2", "-r", "2",
        "-H", f"127.0.0.1:{gateway.mqtt_port}", "--lost-max", "0", "--repeated-max", "0", "--errors-max", "0",
    )  # fmt: skip
    assert run.code == 0, run.output
    name = "swarm/{swarm}/{n}"
    count = run.count(f"publish:1:{name}")
    assert (
        count
        == run.count(f"receive:1:{name}")
        == gateway.metric("iotmq_mqtt_published_total") - published
        > 400
    )
    assert run.count("connect") == gateway.metric("iotmq_mqtt_accepted_total") - accepted == 200
    assert 0 < float(run.rows[f"receive:1:{name}"]["Average Response Time"]) < 1_000


def test_a_master_with_two_workers_adds_up_devices_and_swarms(
    mosquitto: MosquittoBroker, tmp_path: Path
) -> None:
    before = sys_number(mosquitto, "publish/messages/received")
    file = locustfile(tmp_path, DEVICES, "class Echo(Device):\n    weight = 2\n", SWARM)
    prefix, port = tmp_path / "load-run", str(free_port())
    shared = ["--master-bind-port", port, "--expect-workers", "2", "-H", f"mqtt://127.0.0.1:{mosquitto.port}"]
    limits = ["--lost-max", "0", "--errors-max", "0"]
    words = locust_words(
        file, "--master", "-t", "2s", "-u", "6", "-r", "6", "--csv", str(prefix), *shared, *limits
    )
    worker_words = locust_words(file, "--worker", "--master-port", port)
    with (tmp_path / "workers.log").open("wb") as log:
        workers = [
            subprocess.Popen(worker_words, env=environment(), stdout=log, stderr=subprocess.STDOUT)
            for _ in range(2)
        ]
        try:
            master = subprocess.run(
                words, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )
            for worker in workers:
                worker.wait(DEADLINE_S)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    output = master.stdout + master.stderr + (tmp_path / "workers.log").read_text()
    run = read_run(prefix, master.returncode, output)
    assert run.code == 0, output
    swarm = run.count("publish:1:swarm/{swarm}/{n}")
    assert swarm == run.count("receive:1:swarm/{swarm}/{n}") > 0
    total = check_echo(run, "Echo") + swarm
    # Four devices, and two swarms with numbers of their own: no client id came twice.
    assert run.count("connect") == 4 + 200
    assert run.failed("connect") == 0
    eventually(
        lambda: sys_number(mosquitto, "publish/messages/received") - before == total, "the same at the server"
    )


def test_thresholds_that_are_passed_fail_the_process(mosquitto: MosquittoBroker, tmp_path: Path) -> None:
    run = run_locust(
        locustfile(tmp_path, DEVICES, "class Echo(Device):\n    pass\n"), tmp_path, "-u", "2", "-r", "2",
        "--processes", "2", "-H", f"mqtt://127.0.0.1:{mosquitto.port}",
        "--p99-max-ms", "receive=0.001", "--p99-max-ms", "connect=10000", seconds=2,
    )  # fmt: skip
    assert run.code == 1
    assert re.search(r"p99 of receive:Echo is \S+ ms, 0.001 ms are allowed", run.output)
    assert "p99 of connect" not in run.output


def test_devices_behind_a_lossy_proxy_report_exactly_what_was_lost(
    mosquitto: MosquittoBroker, tmp_path: Path
) -> None:
    kind = "class Echo(Device):\n    qos = 0\n"
    # Of each device the first message, every seventh, and all from the sixteenth on.
    with LossyProxy(
        mosquitto.port, forgets=lambda n: n % 7 == 0 or n >= 15, repeats=lambda n: n == 3
    ) as proxy:
        run = run_locust(
            locustfile(tmp_path, DEVICES, kind), tmp_path, "-u", "5", "-r", "5",
            "-H", f"mqtt://127.0.0.1:{proxy.port}", "--lost-max", "10%",
        )  # fmt: skip
    assert run.failures["receive:Echo", "lost"] == proxy.lost >= 15
    assert run.failures["receive:Echo", "repeated"] == proxy.repeated == 5
    received = run.count("receive:Echo") - proxy.lost - proxy.repeated
    assert received == run.count("publish:Echo") - proxy.lost
    assert run.code == 1
    assert f"{proxy.lost} of {run.count('receive:Echo')} are lost" in run.output


def test_a_swarm_behind_a_lossy_proxy_reports_exactly_what_was_lost(
    mosquitto: MosquittoBroker, tmp_path: Path
) -> None:
    plan = """
        from loadtest.users import Plan, SwarmUser

        class Swarm(SwarmUser):
            plan = Plan(publishers=5, subscribers=5, topic="lossy/{n}", filter="lossy/{n}", qos=0,
                        rate_per_s=100, messages_max=100, deliveries_per_message=1)
    """
    with LossyProxy(mosquitto.port, forgets=lambda n: n % 7 == 0 or n >= 15) as proxy:
        run = run_locust(
            locustfile(tmp_path, plan),
            tmp_path,
            "-H",
            f"127.0.0.1:{proxy.port}",
            "--lost-max",
            "0",
            seconds=3,
        )
    assert proxy.lost == 5 * (3 + 5)
    assert run.failures["receive:0:lossy/{n}", "lost"] == proxy.lost
    assert run.count("receive:0:lossy/{n}") == run.count("publish:0:lossy/{n}") == 100
    assert run.code == 1


def test_native_producers_and_consumers_against_a_gateway(gateway: GatewayProcess, tmp_path: Path) -> None:
    users = f"""
        from locust import constant_throughput, task
        from loadtest.users import NativeConsumerUser, NativeProducerUser

        class Consumer(NativeConsumerUser):
            fixed_count = 2
            registries = ({gateway.registry!r},)
            topic = "load_native"

        class Producer(NativeProducerUser):
            registries = ({gateway.registry!r},)
            wait_time = constant_throughput(20)

            def on_start(self):
                import gevent
                gevent.sleep(1)

            @task
            def say(self):
                self.client.send("load_native", b"x" * 50, key="k")
    """
    run_admin(gateway, "topic", "create", "load_native")
    run = run_locust(
        locustfile(tmp_path, users),
        tmp_path,
        "-u",
        "4",
        "-r",
        "4",
        "--lost-max",
        "0",
        "--errors-max",
        "0",
        seconds=3,
    )
    assert run.code == 0, run.output
    # A producer that ends while it waits for an answer does not know what has become of its message.
    assert 0 <= run.count("receive:load_native") - run.count("send:load_native") <= 2
    assert run.count("send:load_native") > 20


def run_admin(gateway: GatewayProcess, *words: str) -> None:
    import sys

    subprocess.run(
        [sys.executable, "-m", "iotmq", "admin", *words, "--registry", gateway.registry],
        check=True,
        capture_output=True,
        timeout=30,
    )
