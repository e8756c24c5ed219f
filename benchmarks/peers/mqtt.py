"""The peers on the side of devices: brokers that speak MQTT."""

import getpass
import sys
from pathlib import Path
from typing import Final

from benchmarks.peers.nats import NATS_SOURCE, nats_configuration
from benchmarks.peers.peer import DURABLE, FAST, Launch, Peer, Place
from benchmarks.peers.server import PeerError
from benchmarks.peers.sources import DebianSource, Given, Installed, Jars, Wheel

_SQLITE_PLUGIN: Final = "mosquitto_persist_sqlite.so"
_HIVEMQ_MAIN: Final = Path(__file__).with_name("HiveMqEmbedded.java")
_HIVEMQ_NEEDS: Final = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
)


def mosquitto_launch(program: Path, place: Place) -> Launch:
    """Nothing logged, no bounds on queues and in-flight messages; a snapshot every second when durable."""
    # Version 2.0.11 (Debian 12) does not start with a listener for WebSockets alone.
    websocket = ["protocol websockets", f"listener {place.spare_port} 127.0.0.1"]
    persistence = ["persistence true", f"persistence_location {place.directory}/", "autosave_interval 1"]
    return _mosquitto(program, place, websocket, persistence)


def mosquitto_2_1_launch(program: Path, place: Place) -> Launch:
    """The same; when durable with the plug-in that was built beside it, which stores changes as they come."""
    persistence = []
    if place.is_durable:
        plugins = sorted(program.parent.parent.rglob(_SQLITE_PLUGIN))
        if not plugins:
            raise PeerError(f"there is no {_SQLITE_PLUGIN} beside {program}")
        persistence = [f"persistence_location {place.directory}/", f"global_plugin {plugins[0]}"]
        persistence += ["plugin_opt_sync full", "plugin_opt_flush_period 1"]
    return _mosquitto(program, place, ["protocol websockets"], persistence)


def _mosquitto(program: Path, place: Place, websocket: list[str], persistence: list[str]) -> Launch:
    lines = [
        f"listener {place.port} 127.0.0.1",
        *(websocket if place.is_websocket else []),
        "allow_anonymous true",
        # Started by root it would become another user, who may not write here.
        f"user {getpass.getuser()}",
        *(persistence if place.is_durable else ["persistence false"]),
        "max_queued_messages 0",
        "max_inflight_messages 0",
        "log_type none",
        *place.more,
    ]
    file = place.directory / "mosquitto.conf"
    return Launch([str(program), "-c", str(file)], {file.name: "\n".join(lines) + "\n"})


def flashmq_launch(program: Path, place: Place) -> Launch:
    """One thread, no bounds on what waits; sessions are saved at times when durable."""
    lines = [
        "listen {",
        f"    protocol {'websockets' if place.is_websocket else 'mqtt'}",
        f"    port {place.port}",
        "    inet_protocol ip4",
        "    inet4_bind_address 127.0.0.1",
        "}",
        "allow_anonymous true",
        "log_level warning",
        "log_subscriptions false",
        "thread_count 1",
        "max_qos_msg_pending_per_client 65535",
        "max_qos_bytes_pending_per_client 268435456",
        *([f"storage_dir {place.directory}"] if place.is_durable else []),
        *place.more,
    ]
    file = place.directory / "flashmq.conf"
    return Launch([str(program), "--config-file", str(file)], {file.name: "\n".join(lines) + "\n"})


def nanomq_launch(program: Path, place: Place) -> Launch:
    """Two task threads, as its documentation recommends for one core; messages in SQLite when durable."""
    bind = f"127.0.0.1:{place.port}"
    kind, path = ("ws", "/mqtt") if place.is_websocket else ("tcp", "")
    lines = [
        "system {\n  num_taskq_thread = 2\n  max_taskq_thread = 2\n  parallel = 4\n}",
        "mqtt {\n  max_mqueue_len = 65535\n  max_inflight_window = 65535\n}",
        f'listeners.{kind} {{\n  bind = "{bind}{path}"\n}}',
        "auth {\n  allow_anonymous = true\n  no_match = allow\n}",
        "log {\n  to = [console]\n  level = error\n}",
        *place.more,
    ]
    if place.is_durable:
        lines.append(
            f'sqlite {{\n  disk_cache_size = 1000000\n  mounted_file_path = "{place.directory}/"\n'
            "  flush_mem_threshold = 1\n}"
        )
    file = place.directory / "nanomq.conf"
    return Launch([str(program), "start", "--conf", str(file)], {file.name: "\n".join(lines) + "\n"})


def rumqttd_launch(packages: Path, place: Place) -> Launch:
    """One listener, of one version; its log is in memory."""
    kind = "ws" if place.is_websocket else "v5" if place.is_mqtt5 else "v4"
    text = f"""id = 0
[router]
id = 0
max_connections = 30000
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10
[{kind}.1]
name = "{kind}"
listen = "127.0.0.1:{place.port}"
next_connection_delay_ms = 0
[{kind}.1.connections]
connection_timeout_ms = 60000
max_payload_size = 1048576
max_inflight_count = 65535
dynamic_filters = true
"""
    file = place.directory / "rumqttd.toml"
    # At ERROR it says each packet, and is twenty times slower.
    command = [sys.executable, "-m", "iotcore", "--config", str(file), "--log-level", "CRITICAL"]
    return Launch(command, {file.name: "\n".join([text, *place.more])}, {"PYTHONPATH": str(packages)})


def nats_launch(directory: Path, place: Place) -> Launch:
    """MQTT over JetStream, whose files are synced every two minutes, or before each acknowledgement."""
    text = nats_configuration(place, client_port=place.spare_port)
    text += (
        f'mqtt {{\n  listen: "127.0.0.1:{place.port}"\n  max_ack_pending: 65535\n'
        "  js_api_timeout: 60s\n"
        f"  consumer_memory_storage: {'false' if place.is_durable else 'true'}\n}}\n"
    )
    file = place.directory / "nats.conf"
    return Launch([str(directory), "-c", str(file)], {file.name: text})


def hivemq_launch(jars: Path, place: Place) -> Launch:
    """Sessions and messages in memory, or in files."""
    kind = "websocket" if place.is_websocket else "tcp"
    path = "<path>/mqtt</path><subprotocols><subprotocol>mqtt</subprotocol></subprotocols>"
    text = f"""<?xml version="1.0"?>
<hivemq>
  <listeners>
    <{kind}-listener>
      <port>{place.port}</port>
      <bind-address>127.0.0.1</bind-address>
      {path if place.is_websocket else ""}
    </{kind}-listener>
  </listeners>
  <mqtt>
    <queued-messages><max-queue-size>1000000</max-queue-size></queued-messages>
    <receive-maximum><server-receive-maximum>65535</server-receive-maximum></receive-maximum>
  </mqtt>
  <anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>
  <persistence><mode>{"file" if place.is_durable else "in-memory"}</mode></persistence>
</hivemq>
"""
    silent = '<configuration><root level="OFF"/></configuration>\n'
    command = [
        *("java", "-Xms1g", "-Xmx4g", *_HIVEMQ_NEEDS, "-cp", f"{jars}/*"),
        *(str(_HIVEMQ_MAIN), str(place.directory)),
    ]
    return Launch(command, {"conf/config.xml": text, "conf/logback.xml": silent})


MOSQUITTO: Final = Peer(
    name="mosquitto",
    title="Mosquitto 2.0",
    source=Installed("mosquitto", "mosquitto"),
    launch=mosquitto_launch,
    settings={
        FAST: "nothing on disk, no limits",
        DURABLE: "a snapshot of sessions and queues every second, not before an acknowledgement",
    },
    versions=("3.1.1", "5"),
    has_websocket=True,
)

PEERS: Final = {
    peer.name: peer
    for peer in (
        MOSQUITTO,
        Peer(
            name="mosquitto-2.1",
            title="Mosquitto 2.1.2",
            source=DebianSource(
                "main/m/mosquitto/mosquitto_2.1.2.orig.tar.gz",
                "a8e37cc4c1d4141e56c5a8729c5fa36b1f0b1ca95378a12131d68f0509de122a",
                ("TESTS", "DOCS", "CTRL_SHELL", "CLIENTS", "APPS", "HTTP_API", "LIB_CPP", "PLUGIN_EXAMPLES"),
                {
                    "cjson/cJSON.h": "libcjson-dev",
                    "sqlite3.h": "libsqlite3-dev",
                    "openssl/ssl.h": "libssl-dev",
                },
                "src/mosquitto",
            ),
            launch=mosquitto_2_1_launch,
            settings={
                FAST: "nothing on disk, no limits",
                DURABLE: "SQLite, written every second with full sync, not before an acknowledgement",
            },
            versions=("3.1.1", "5"),
            has_websocket=True,
        ),
        Peer(
            name="flashmq",
            title="FlashMQ",
            source=Given("IOTMQ_PEER_FLASHMQ", "FlashMQ", "flashmq"),
            launch=flashmq_launch,
            settings={
                FAST: "nothing on disk, one thread",
                DURABLE: "sessions and retained messages saved at times, not before an acknowledgement",
            },
            versions=("3.1.1", "5"),
            has_websocket=True,
        ),
        Peer(
            name="nanomq",
            title="NanoMQ",
            source=Given("IOTMQ_PEER_NANOMQ", "NanoMQ", "nanomq"),
            launch=nanomq_launch,
            settings={FAST: "nothing on disk, two task threads", DURABLE: "SQLite, from one message on"},
            versions=("3.1.1", "5"),
            has_websocket=True,
        ),
        Peer(
            name="rumqttd",
            title="rumqttd (iotcore 0.4.0)",
            source=Wheel("iotcore==0.4.0"),
            launch=rumqttd_launch,
            settings={FAST: "its log is in memory; it has no durable setting"},
            versions=("3.1.1", "5"),
            has_websocket=True,
        ),
        Peer(
            name="nats",
            title="NATS 2.15",
            source=NATS_SOURCE,
            launch=nats_launch,
            settings={
                FAST: "JetStream in files, synced every two minutes",
                DURABLE: "JetStream in files, synced before each acknowledgement",
            },
            versions=("3.1.1",),
        ),
        Peer(
            name="hivemq",
            title="HiveMQ CE 2025.4",
            source=Jars(("com.hivemq:hivemq-community-edition-embedded:2025.4",)),
            launch=hivemq_launch,
            settings={FAST: "sessions and messages in memory", DURABLE: "sessions and messages in files"},
            versions=("3.1.1", "5"),
            has_websocket=True,
            warmup_s=15.0,
        ),
    )
}
