"""The packets of the load engine, what a plan may ask for, and its command line."""

import json
import resource
import socket
from collections.abc import Iterator

import pytest
from scripted_server import stamped
from swarm_runs import running_sink

from loadtest.swarm import Plan, Sink, Swarm, SwarmError, connect_packet, read_stamp, subscribe_packet
from loadtest.swarm.__main__ import main
from loadtest.swarm.engine import (
    PAYLOAD_BYTES_MAX,
    PORTS_MAX,
    RING_BYTES_MAX,
    TOPICS_PER_PUBLISHER_MAX,
    WINDOW_MAX,
    Engine,
)


@pytest.fixture
def sink() -> Iterator[Sink]:
    with running_sink() as sink:
        yield sink


# Packets


def test_packets_follow_the_specification() -> None:
    assert connect_packet("ab", keep_alive_s=10) == b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x0a\x00\x02ab"
    assert connect_packet("", username="u", password="p", is_clean=False) == (
        b"\x10\x12\x00\x04MQTT\x04\xc0\x00\x3c\x00\x00\x00\x01u\x00\x01p"
    )
    assert subscribe_packet("a/#", 1) == b"\x82\x08\x00\x01\x00\x03a/#\x01"
    assert subscribe_packet("x" * 200, 0)[:3] == b"\x82\xcd\x01"


def test_packets_of_mqtt_5_have_their_properties() -> None:
    assert connect_packet("ab", keep_alive_s=10, is_v5=True) == (
        b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x0a\x00\x00\x02ab"
    )
    assert connect_packet("ab", keep_alive_s=10, is_clean=False, will=("w", b"x"), is_v5=True) == (
        b"\x10\x1b\x00\x04MQTT\x05\x0c\x00\x0a\x05\x11\xff\xff\xff\xff\x00\x02ab\x00\x00\x01w\x00\x01x"
    )
    assert subscribe_packet("a/#", 1, is_v5=True) == b"\x82\x09\x00\x01\x00\x00\x03a/#\x01"


def test_a_will_stands_in_the_connect_packet() -> None:
    packet = connect_packet("ab", will=("w", b"gone"))
    assert packet == b"\x10\x17\x00\x04MQTT\x04\x0e\x00\x3c\x00\x02ab\x00\x01w\x00\x04gone"


def test_stamps_are_read_back() -> None:
    assert read_stamp(stamped(1, 2, 3, size=100)) == (1, 2, 3)
    assert read_stamp(stamped(1, 2, 3)[:-1]) is None
    assert read_stamp(b"\x00" * 100) is None
    assert read_stamp(b"") is None


# Limits


def test_a_number_fits_the_digits_of_its_topic() -> None:
    engine = Engine("127.0.0.1", 1, window=1, topics_per_publisher=1_000_000, number_base=9)
    engine.add_publisher(connect_packet("a"), b"t/0000000", number_at=2)
    with pytest.raises(ValueError, match="7 digits"):
        engine.add_publisher(connect_packet("a"), b"t/0000000", number_at=2)
    with pytest.raises(ValueError, match="7 digits at 3"):
        Engine("127.0.0.1", 1, topics_per_publisher=2).add_publisher(
            connect_packet("a"), b"t/0000000", number_at=3
        )


def test_limits_hold_at_and_past_them() -> None:
    Engine("127.0.0.1", 1, window=WINDOW_MAX, payload=b"x" * PAYLOAD_BYTES_MAX)
    Engine("127.0.0.1", 65_535, window=1, qos=0)
    for wrong in (
        {"window": 0},
        {"window": WINDOW_MAX + 1},
        {"payload": b"x" * (PAYLOAD_BYTES_MAX + 1)},
        {"qos": 3},
        {"lead_max": -1},
        {"lead_max": 1, "topics_per_publisher": 2},
        {"topics_per_publisher": 0},
        {"topics_per_publisher": TOPICS_PER_PUBLISHER_MAX + 1},
        {"fallback_ports": [1] * PORTS_MAX},
    ):
        with pytest.raises(ValueError, match=r"must be|at most|a lead"):
            Engine("127.0.0.1", 1, **wrong)  # type: ignore[arg-type]
    for port in (0, 65_536):
        with pytest.raises(ValueError, match="port"):
            Engine("127.0.0.1", port)


def test_memory_for_windows_is_bounded() -> None:
    engine = Engine("127.0.0.1", 1, window=WINDOW_MAX, payload=b"x" * (RING_BYTES_MAX // WINDOW_MAX))
    with pytest.raises(ValueError, match="window x packet size"):
        engine.add_publisher(connect_packet("a"), b"t")


def test_a_topic_fits_its_length_field() -> None:
    engine = Engine("127.0.0.1", 1, window=1)
    assert engine.add_publisher(connect_packet("a"), b"t" * 65_535) == 0
    for topic in (b"", b"t" * 65_536):
        with pytest.raises(ValueError, match="topic"):
            engine.add_publisher(connect_packet("a"), topic)


def test_a_plan_beyond_the_open_files_is_refused_before_it_starts() -> None:
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with pytest.raises(SwarmError, match="open files"):
        Swarm(Plan(idle=files_max))
    with pytest.raises(SwarmError, match="at least one connection"):
        Swarm(Plan())
    with pytest.raises(SwarmError, match="a lead needs"):
        Swarm(Plan(publishers=1, qos=0, lead_max=1))


# The command line


def test_the_command_line_prints_a_report_as_json(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["publish", "--port", str(sink.port), "--publishers", "3", "--messages", "500"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["counters"]["acknowledged"] == 500
    assert report["violations"] == 0


def test_the_command_line_holds_connections(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hold", "--port", str(sink.port), "--idle", "5", "--seconds", "0.1"]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert json.loads(first)["connections"] == 5
    assert json.loads(last)["counters"]["ready"] == 5


def test_the_command_line_names_what_went_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["hold", "--port", str(port), "--idle", "1"]) == 1
    assert "ECONNREFUSED" in capsys.readouterr().err
