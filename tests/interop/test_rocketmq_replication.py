"""Both sides of the replication wire against a Java broker (4.9.7, Maven)."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from gateway_process import free_port
from java_process import LIBRARIES, JavaBroker, java_marks
from store_model import put

from iotmq.message.hosts import encode_host
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.replication.rocketmq.ha_master import HaMaster, LogRange
from iotmq.replication.rocketmq.ha_slave import HaSlave
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

SEGMENT_BYTES = 16 << 20
BODY = "b" * 60_000

pytestmark = [
    *java_marks,
    pytest.mark.skipif(
        not list(LIBRARIES.glob("rocketmq-broker-*.jar")),
        reason="rocketmq-broker is not installed (tools/setup.sh dev, with Maven)",
    ),
]


def send(connection: BlockingConnection, number: int) -> int:
    """Send a message; returns where its record begins."""
    fields = {"a": "pg", "b": "Alpha", "c": "TBW102", "d": 4, "e": number % 4, "f": 0, "g": 1, "h": 7}
    fields |= {"i": f"UNIQ_KEY\x01K{number}", "j": 0, "k": "false", "m": "false"}
    request = Command.request(
        RequestCode.SEND_MESSAGE_V2, {name: str(value) for name, value in fields.items()}
    )
    request.version = 399
    request.body = f"{number} {BODY}".encode()
    answer = connection.request(request)
    assert answer.code == 0, answer
    return int(answer.ext["msgId"][16:], 16)


def log_files(data: Path) -> bytes:
    """All of the log's files, one behind the other."""
    return b"".join(path.read_bytes() for path in sorted((data / "commitlog").iterdir()))


def follow(store: Store, port: int, end_position: int) -> None:
    """Take a master's log until it has been taken up to a position."""
    begins_at_zero = store.appended_position == 0
    slave = HaSlave(store.appended_position, now_s=time.monotonic(), begins_at_zero=begins_at_zero)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(slave.first_report())
        while store.appended_position < end_position:
            data = connection.recv(1 << 20)
            assert data, "the master has closed the connection"
            slave.receive_data(data, now_s=time.monotonic())
            slave.appended(store.append_raw(slave.position, slave.data))
            connection.sendall(slave.report(now_s=time.monotonic()))


def test_a_java_masters_log_is_taken_byte_by_byte_and_continued(tmp_path: Path) -> None:
    store = Store.open(
        tmp_path / "slave",
        StoreSettings(segment_bytes=SEGMENT_BYTES, allocation_step_bytes=65_536),
        store_host=encode_host("127.0.0.1", 10_911),
    )
    with JavaBroker(tmp_path / "java") as java:
        broker = BlockingConnection("127.0.0.1", java.port, 30)
        for begun in (0, 300):
            last_position = [send(broker, number) for number in range(begun, begun + 300)][-1]
            # A Java broker listens for its slaves behind its own port.
            follow(store, java.port + 1, last_position + 1)
        broker.close()
    end_position = store.appended_position
    assert end_position > 2 * SEGMENT_BYTES, "there are blanks among it"
    store.advance()
    assert [store.queue("Alpha", queue).max_offset for queue in range(4)] == [150] * 4
    assert store.check() == []
    store.close()
    assert log_files(tmp_path / "java")[:end_position] == log_files(tmp_path / "slave")[:end_position]


def lead(store: Store, listener: socket.socket) -> None:
    """Send the whole log to the slave that connects, and wait until it has reported all of it."""
    log = LogRange(store.min_position, store.appended_position, SEGMENT_BYTES)
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(30)
        master = HaMaster(now_s=time.monotonic(), full_copy=True)
        while master.reported_position < log.end:
            data = connection.recv(4096)
            assert data, "the slave has closed the connection"
            master.receive_data(data, log, now_s=time.monotonic())
            position, size = master.next_range(log)
            while size:
                view = store.read_raw(position, size)
                connection.sendall(master.send_data(len(view), now_s=time.monotonic()) + view)
                position, size = master.next_range(log)


def test_an_empty_java_slave_takes_a_full_copy(tmp_path: Path) -> None:
    store = Store.open(
        tmp_path / "master",
        StoreSettings(segment_bytes=SEGMENT_BYTES, allocation_step_bytes=65_536),
        store_host=encode_host("127.0.0.1", 10_911),
    )
    for number in range(600):
        put(store, "Alpha", number % 4, f"{number} {BODY}".encode(), properties=b"TAGS\x01a\x02")
    end_position = store.appended_position
    assert end_position > 2 * SEGMENT_BYTES, "there are blanks among it"
    port = free_port()
    role = ("brokerRole=SLAVE", "brokerId=1", f"haMasterAddress=127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)) as listener, JavaBroker(tmp_path / "java", *role):
        listener.settimeout(30)
        lead(store, listener)
    assert store.check() == []
    store.close()
    assert log_files(tmp_path / "java")[:end_position] == log_files(tmp_path / "master")[:end_position]
