"""Alarms of a real gateway: they arrive at real receivers, end, are silenced, and outlive a kill."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MailHandler
from eventually import eventually
from gateway_process import GatewayProcess, free_port
from http_api_caller import Caller

import iotmq
from iotmq.client.transport.message import Message
from iotmq.commands.cli import main
from iotmq.limits import ALARMS_ENDED_MAX

TOKEN = "token-of-the-operator"
SECRET = "secret-of-the-webhook"


class Hook(ThreadingHTTPServer):
    """A webhook; `is_dead` has it refuse."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.are_signed: list[bool] = []
        self.is_dead = False
        super().__init__(("127.0.0.1", 0), _HookHandler)

    def alerts(self, name: str, status: str) -> list[dict[str, Any]]:
        return [
            alert
            for body in list(self.bodies)
            for alert in body["alerts"]
            if (alert["labels"]["alertname"], alert["status"]) == (name, status)
        ]


class _HookHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hook = self.server
        assert isinstance(hook, Hook)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if hook.is_dead:
            self.send_error(503)
            return
        fields = dict(each.split("=", 1) for each in self.headers["X-Iotmq-Signature"].split(","))
        signed = fields["t"].encode() + b"." + body
        hook.are_signed.append(fields["v1"] == hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest())
        hook.bodies.append(json.loads(body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Mails(MailHandler):
    """An SMTP server's post box."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.got.append(message)

    def subjects(self, words: str) -> list[str]:
        return [mail["Subject"] for mail in list(self.got) if words in mail["Subject"]]


class Alertmanager:
    """Prometheus' own."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("prometheus-alertmanager")
        if program is None:
            pytest.skip("there is no prometheus-alertmanager; tools/setup.sh installs it")
        config = directory / "alertmanager.yml"
        config.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
        self.port = free_port()
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.path={directory / 'alertmanager'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--cluster.listen-address=",
            ],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def firing(self) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", "/api/v2/alerts?active=true")
            alerts = json.loads(connection.getresponse().read())
        except ConnectionError:
            return []
        finally:
            connection.close()
        return [alert["labels"]["alertname"] for alert in alerts]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)


class Site:
    """A gateway with its receivers."""

    def __init__(self, directory: Path, running: ExitStack) -> None:
        self.hook = Hook()
        threading.Thread(target=self.hook.serve_forever, daemon=True).start()
        running.callback(self.hook.server_close)
        running.callback(self.hook.shutdown)
        self.mails = Mails()
        mail = Controller(self.mails, hostname="127.0.0.1", port=free_port())
        mail.start()
        running.callback(mail.stop)
        self.alertmanager = Alertmanager(directory)
        running.callback(self.alertmanager.stop)
        config = directory / "iotmq.toml"
        config.write_text(
            f"""
[http]
open_paths = ["/healthz", "/readyz", "/metrics"]

[[http.tokens]]
name = "ops"
token = "{TOKEN}"
role = "operator"
[[http.tokens]]
name = "eyes"
token = "token-of-the-viewer"
role = "viewer"

[alarms]
interval_s = 0.1
cluster_interval_s = 0.2
flapping_count = 100

[[alarms.rules]]
name = "crowded"
metric = "iotmq_mqtt_connections"
fires_at = 2
clears_at = 1
for_s = 0
clear_for_s = 0
says = "{{value}} devices"
what_to_do = "Send some home."

[[alarms.changes]]
name = "group-without-client"
for_s = 0
clear_for_s = 0

[[alarms.changes]]
name = "alarms-not-delivered"
fires_at = 0.2

[[alarms.receivers]]
kind = "webhook"
name = "hook"
url = "http://127.0.0.1:{self.hook.server_port}/alarms"
secret = "{SECRET}"
group_wait_s = 0

[[alarms.receivers]]
kind = "email"
name = "mail"
host = "127.0.0.1"
port = {mail.port}
encryption = "none"
sender = "iotmq@example.com"
to = ["ann@example.com", "bob@example.com"]
group_wait_s = 0

[[alarms.receivers]]
kind = "alertmanager"
name = "prometheus"
url = "http://127.0.0.1:{self.alertmanager.port}"
"""
        )
        self.config = config
        self.gateway = GatewayProcess(directory / "data", config=config)
        running.enter_context(self.gateway)
        self.ask = partial(Caller(self.gateway).ask, token=TOKEN)

    def firing(self) -> dict[str, dict[str, Any]]:
        items = self.ask("list_alarms").body["items"]
        return {alarm["name"]: alarm for alarm in items if alarm["state"] == "firing"}

    def wait_for(self, name: str) -> dict[str, Any]:
        eventually(lambda: name in self.firing(), f"{name} fires")
        return self.firing()[name]

    def wait_end(self, name: str) -> None:
        eventually(lambda: name not in self.firing(), f"{name} has ended")

    def command(self, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
        """Run `iotmq alarms`."""
        http = f"http://127.0.0.1:{self.gateway.ports['http']}"
        code = main(["alarms", *words, "--config", str(self.config), "--http", http])
        return code, capsys.readouterr().out


class Device:
    def __init__(self, site: Site, topic_filter: str = "") -> None:
        self.got: list[tuple[str, dict[str, Any], bool]] = []
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._filter = topic_filter
        self._is_subscribed = threading.Event()
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: self._is_subscribed.set()
        self._site = site

    def __enter__(self) -> Device:
        self._client.connect("127.0.0.1", self._site.gateway.ports["mqtt"])
        self._client.loop_start()
        eventually(self._client.is_connected, "the device is connected")
        if self._filter:
            self._client.subscribe(self._filter)
            assert self._is_subscribed.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        self.got.append((message.topic, json.loads(message.payload), message.retain))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as running:
        yield Site(tmp_path_factory.mktemp("alarms"), running)


def test_an_alarm_arrives_everywhere_and_so_does_its_end(site: Site) -> None:
    topic = "$SYS/broker/alarms/crowded"
    with Device(site, "$SYS/broker/alarms/#") as first:
        with Device(site) as _second:
            alarm = site.wait_for("crowded")
            assert (alarm["says"], alarm["level"]) == ("2 devices", "warning")
            eventually(lambda: site.hook.alerts("crowded", "firing"), "the webhook is told")
            eventually(lambda: site.mails.subjects("warning] crowded"), "the mail comes")
            eventually(lambda: "crowded" in site.alertmanager.firing(), "Alertmanager is told")
            eventually(lambda: first.got, "a device is told")
            with Device(site, "$SYS/broker/alarms/crowded") as late:
                eventually(lambda: late.got, "a device that comes later is told")
                assert late.got[0][::2] == (topic, True)
        name, said, _ = first.got[0]
        assert (name, said["count"], said["firing"][0]["id"]) == (topic, 1, alarm["id"])
        site.wait_end("crowded")
        eventually(lambda: site.hook.alerts("crowded", "resolved"), "the webhook is told of the end")
        eventually(lambda: site.mails.subjects("ended] crowded"), "the mail of the end comes")
        eventually(lambda: "crowded" not in site.alertmanager.firing(), "Alertmanager is told of the end")
        eventually(lambda: first.got[-1][1]["count"] == 0, "the device is told of the end")
    with Device(site, "$SYS/broker/alarms/#") as after:
        with Device(site) as _again:
            site.wait_for("crowded")
            eventually(lambda: after.got, "nothing is retained of what has ended")
        assert after.got[0][1]["count"] == 1
        site.wait_end("crowded")
    assert all(site.hook.are_signed)
    (firing, *_) = site.hook.alerts("crowded", "firing")
    assert firing["fingerprint"] == alarm["id"]
    mail = next(each for each in site.mails.got if "warning] crowded" in each["Subject"])
    assert mail["To"] == "ann@example.com, bob@example.com"
    assert "what to do: Send some home." in mail.get_payload()
    ended = site.ask("list_ended_alarms", query="name=crowded").body["items"]
    assert ended[0]["ended_ms"] >= ended[0]["fired_ms"] > 0
    assert site.ask("list_ended_alarms", query="name=other").body["items"] == []
    assert site.ask("list_ended_alarms", query=f"limit={ALARMS_ENDED_MAX + 1}").status == 422


def test_alarms_are_acknowledged_silenced_and_ended_by_hand(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    now_ms = site.ask("list_receivers").body["items"][0]["delivered_ms"]
    until = {"until_ms": now_ms + 600_000, "reason": "a test"}
    silence = site.ask("put_silence", "quiet", body={"alarm": "crow*", **until}).body
    assert (silence["by"], silence["alarm"]) == ("ops", "crow*")
    assert site.ask("put_silence", "past", body={**until, "until_ms": 1}).status == 422
    assert site.ask("put_silence", "bad", body={**until, "alarm": "a b"}).status == 422
    told = len(site.hook.alerts("crowded", "firing"))
    with Device(site), Device(site):
        alarm = site.wait_for("crowded")
        assert alarm["is_silenced"]
        code, out = site.command(capsys, "silences")
        assert (code, "a test" in out) == (0, True)
        code, out = site.command(capsys, "list", "--json")
        assert [each["state"] for each in json.loads(out) if each["alarm"] == "crowded"] == ["silenced"]
        code, out = site.command(capsys, "acknowledge", alarm["id"], "--note", "I see")
        assert (code, out) == (0, "crowded is looked after by ops\n")
        seen = site.ask("acknowledge_alarm", alarm["id"], body={"note": "I do"}).body
        assert (seen["acknowledged"]["by"], seen["acknowledged"]["note"]) == ("ops", "I do")
        assert len(site.hook.alerts("crowded", "firing")) == told
        assert [each["name"] for each in site.ask("list_silences").body["items"]] == ["quiet"]
        assert site.ask("end_silence", "quiet").body["name"] == "quiet"
        assert site.ask("end_silence", "quiet").status == 404
        eventually(lambda: len(site.hook.alerts("crowded", "firing")) > told, "the silence is over")
        ended = site.ask("end_alarm", alarm["id"]).body
        assert (ended["state"], ended["ended_by"]) == ("ended", "ops")
        site.wait_for("crowded")
    site.wait_end("crowded")
    for name in ("acknowledge_alarm", "end_alarm"):
        assert site.ask(name, "0123", body={} if name == "acknowledge_alarm" else None).status == 404
    for words in (
        ("silence", "s1", "--alarm", "crow*", "--label", "a=b", "--for", "1h", "--reason", "x"),
        ("unsilence", "s1"),
        ("history", "--limit", "2"),
        ("conditions",),
        ("receivers",),
    ):
        assert site.command(capsys, *words)[0] == 0
    assert "disk-nearly-full warning 0.85 0.8 60 " in " ".join(site.command(capsys, "conditions")[1].split())
    assert " delivered last delivered failing s " in " ".join(site.command(capsys, "receivers")[1].split())
    kept = json.loads(site.command(capsys, "receivers", "--json")[1])
    assert {each["name"]: each["delivered_ms"] > 0 for each in kept["items"]}["hook"]
    assert main(["alarms", "unsilence", "s1", "--config", str(site.config), "--http", _url(site)]) == 1
    assert "there is no silence s1" in capsys.readouterr().err


def _url(site: Site) -> str:
    return f"http://127.0.0.1:{site.gateway.ports['http']}"


def test_receivers_are_tried(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.ask("test_receiver", body={"receiver": "mail"}).body["is_delivered"]
    assert site.mails.subjects("TEST: ")
    site.hook.is_dead = True
    outcome = site.ask("test_receiver", body={"receiver": "hook"}).body
    assert (outcome["is_delivered"], "status 503" in outcome["reason"]) == (False, True)
    code, out = site.command(capsys, "test", "hook")
    assert (code, "has not taken it" in out) == (1, True)
    site.hook.is_dead = False
    assert site.command(capsys, "test", "hook") == (0, "hook has taken it\n")
    assert site.ask("test_receiver", body={"receiver": "nobody"}).status == 404
    names = [each["name"] for each in site.ask("list_conditions").body["items"]]
    assert {"crowded", "group-behind"} <= set(names)


def test_a_receiver_that_is_dead_is_an_alarm_and_is_told_when_it_is_back(site: Site) -> None:
    site.hook.is_dead = True
    told = len(site.hook.bodies)
    with Device(site), Device(site):
        alarm = site.wait_for("alarms-not-delivered")
        assert alarm["labels"]["receiver"] == "hook"
        eventually(lambda: site.mails.subjects("alarms-not-delivered"), "the other receiver is told")
        receivers = {each["name"]: each for each in site.ask("list_receivers").body["items"]}
        assert "503" in receivers["hook"]["failed_reason"]
        site.hook.is_dead = False
        eventually(lambda: len(site.hook.bodies) > told, "it is told when it is back")
        site.wait_end("alarms-not-delivered")
    site.wait_end("crowded")


def test_a_group_without_a_client_is_seen_in_the_cluster(site: Site) -> None:
    with iotmq.connect_sync(f"iotmq://127.0.0.1:{site.gateway.ports['registry']}") as client:
        client.admin.create_topic("orders", queues=1)
        (queue,) = client.admin.queues("orders")
        client.admin.set_group_offset("billing", queue, 0)
        with client.producer() as producer:
            producer.send(Message("orders", b"1"))
        alarm = site.wait_for("group-without-client")
        assert (alarm["labels"], alarm["says"]) == (
            {"group": "billing"},
            "the group billing has 1 messages to consume and no consumer",
        )
        client.admin.set_group_offset("billing", queue, 1)
        site.wait_end("group-without-client")


def test_a_kill_neither_repeats_nor_forgets(site: Site) -> None:
    with Device(site), Device(site):
        alarm = site.wait_for("crowded")
        site.ask("acknowledge_alarm", alarm["id"], body={"note": "before the kill"})
        # The kill is behind what was told, and behind its being kept.
        kept = site.gateway.data / "alarms" / "serve.json"

        def is_kept() -> bool:
            state = json.loads(kept.read_text())
            told = [state["inboxes"].get(name, {}).get("told", {}) for name in ("hook", "mail")]
            known = {each["id"]: each for each in state["firing"]}
            return all(alarm["id"] in each for each in told) and bool(
                known.get(alarm["id"], {}).get("acknowledged")
            )

        eventually(is_kept, "what was told is kept")
        site.gateway.kill()
    firing = len(site.hook.alerts("crowded", "firing"))
    ended = len(site.hook.alerts("crowded", "resolved"))
    site.gateway.start()
    # Its devices are gone: what fired before the kill ends, and is told once.
    site.wait_end("crowded")
    eventually(lambda: len(site.hook.alerts("crowded", "resolved")) > ended, "the end is told")
    assert len(site.hook.alerts("crowded", "resolved")) == ended + 1
    assert len(site.hook.alerts("crowded", "firing")) == firing
    last = site.ask("list_ended_alarms", query="name=crowded").body["items"][0]
    assert (last["id"], last["acknowledged"]["note"]) == (alarm["id"], "before the kill")
