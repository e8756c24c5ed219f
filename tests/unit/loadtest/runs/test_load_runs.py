"""Whole load tests in processes of their own, and what they leave behind."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_server import CONNACK, SUBACK, Peer, parse_publish, puback, publish_packet, scripted
from swarm_runs import running_sink

from loadtest.runs.crew import PROCESSES_MAX, share_plan
from loadtest.runs.live_metrics import LiveMetrics
from loadtest.runs.load_run import LoadRun, Options, Progress
from loadtest.runs.result import FORMAT, read_result, write_result
from loadtest.runs.server_process import ServerProcess
from loadtest.swarm import Plan, SwarmError

QUICK = Options(interval_s=0.1)


# Sharing the work


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_shares_add_up_and_numbers_are_those_of_one_process(processes: int) -> None:
    plan = Plan(
        publishers=10, subscribers=4, idle=5, number_base=100, rate_per_s=1_001, rate_from_per_s=7,
        ramp_s=1.0, messages_max=12_345, connect_rate_per_s=500.0, leave_per_s=9.0, resubscribe_per_s=8.0,
    )  # fmt: skip
    plans = share_plan(plan, processes)
    for name in ("publishers", "subscribers", "idle", "rate_per_s", "rate_from_per_s", "messages_max"):
        assert sum(getattr(each, name) for each in plans) == getattr(plan, name)
    for name in ("leave_per_s", "resubscribe_per_s", "connect_rate_per_s"):
        assert sum(getattr(each, name) for each in plans) == pytest.approx(getattr(plan, name))
    numbers = [each.number_base + i for each in plans for i in range(each.publishers)]
    assert numbers == list(range(100, 110))
    subscribers = [(each.subscriber_base or 0) + i for each in plans for i in range(each.subscribers)]
    assert subscribers == list(range(100, 104))
    idle = [(each.idle_base or 0) + i for each in plans for i in range(each.idle)]
    assert idle == list(range(100, 105))
    assert {each.publishers_tracked for each in plans} == {110}


def test_a_process_without_devices_is_not_begun() -> None:
    plans = share_plan(Plan(idle=2, connect_rate_per_s=10), 5)
    assert len(plans) == 2
    assert sum(each.connect_rate_per_s for each in plans) == pytest.approx(10)


@pytest.mark.parametrize(("processes", "pubs"), [(1, [8]), (2, [8, 0]), (3, [4, 4, 0])])
def test_the_members_of_a_shared_subscription_are_in_one_process(processes: int, pubs: list[int]) -> None:
    plan = Plan(publishers=8, subscribers=3, idle=4, filter="$share/g/devices/+/telemetry", number_base=5)
    plans = share_plan(plan, processes)
    assert [each.publishers for each in plans] == pubs
    assert [each.subscribers for each in plans] == [0] * (processes - 1) + [3]
    assert sum(each.idle for each in plans) == 4
    assert plans[-1].subscriber_base == 5
    own = replace(plan, filter="$share/g%i/devices/+/telemetry")
    assert [each.subscribers for each in share_plan(own, 3)] == [1, 1, 1]


@pytest.mark.parametrize("processes", [0, PROCESSES_MAX + 1])
def test_the_number_of_processes_has_a_limit(processes: int) -> None:
    with pytest.raises(SwarmError, match="processes must be"):
        LoadRun(Plan(idle=1), Options(processes=processes))
    LoadRun(Plan(idle=1), Options(processes=PROCESSES_MAX))


# Runs


@pytest.mark.parametrize("processes", [1, 3])
def test_a_run_counts_what_the_server_counts(processes: int, tmp_path: Path) -> None:
    watched: list[Progress] = []
    with running_sink() as sink:
        plan = Plan(port=sink.port, publishers=6, messages_max=3_000, warmup_s=0, measures_acks=True)
        options = replace(QUICK, processes=processes, server_pid=os.getpid(), name="one")
        result = LoadRun(plan, options, watch=watched.append).run()
    assert result["counters"]["published"] == result["counters"]["acknowledged"] == sink.messages == 3_000
    assert result["connect"] == result["connect"] | {"wanted": 6, "ready": 6}
    assert result["verdict"] == []
    assert result["latencies"]["acknowledgement"]["count"] == 3_000
    assert result["latencies"]["connection"]["count"] == 6
    path = tmp_path / "result.json"
    write_result(result, path)
    assert read_result(path) == json.loads(json.dumps(result))


def test_ticks_show_the_test_over_time() -> None:
    with running_sink() as sink:
        plan = Plan(port=sink.port, publishers=2, rate_per_s=500, seconds=1.0, warmup_s=0.2)
        result = LoadRun(plan, replace(QUICK, server_pid=os.getpid())).run()
    ticks = result["ticks"]
    assert len(ticks) >= 8
    assert [tick["at_s"] for tick in ticks] == sorted(tick["at_s"] for tick in ticks)
    assert {"warm-up", "measure"} <= {tick["phase"] for tick in ticks}
    assert ticks[-1]["counters"]["ready"] == 2
    assert ticks[-1]["server_memory_bytes"] > 1024 * 1024
    counted = [
        tick["latencies"]["acknowledgement"]["count"]
        for tick in ticks
        if "acknowledgement" in tick["latencies"]
    ]
    assert sum(counted) <= result["counters"]["acknowledged"]
    assert result["rates"]["published_per_s"] == pytest.approx(500, rel=0.2)


def test_what_a_lossy_server_lost_and_repeated_is_reported_exactly() -> None:
    """The server of one subscriber drops every seventh message, and sends every tenth of the others twice."""
    subscribers: list[Peer] = []

    def script(peer: Peer) -> None:
        peer.packet()
        peer.send(CONNACK)
        first = peer.packet()
        if first[:1] == b"\x82":
            peer.send(SUBACK)
            subscribers.append(peer)
            while peer.packet():
                pass
            return
        packet = first
        while packet[:1] == b"\x32":
            packet_id, _, payload = parse_publish(packet)
            copies = 0 if packet_id % 7 == 0 else 2 if packet_id % 10 == 0 else 1
            subscribers[0].send(publish_packet(payload) * copies)
            peer.send(puback(packet_id))
            packet = peer.packet()

    with scripted(script, connections=2) as port:
        plan = Plan(port=port, publishers=1, subscribers=1, window=5, messages_max=1_000, warmup_s=0)
        result = LoadRun(plan, QUICK).run()
    lost = sum(i % 7 == 0 for i in range(1, 1_001))
    repeated = sum(i % 7 != 0 and i % 10 == 0 for i in range(1, 1_001))
    assert result["missing"] == lost
    assert result["counters"]["sequence_gaps"] == lost
    assert result["counters"]["sequence_repeats"] == repeated
    assert f"{lost} deliveries are missing" in result["verdict"]
    assert f"sequence_repeats is {repeated}" in result["verdict"]


def test_a_count_that_ends_in_the_warm_up_is_measured_from_its_beginning() -> None:
    with running_sink() as sink:
        plan = Plan(port=sink.port, publishers=4, messages_max=20_000, measures_acks=True)
        result = LoadRun(plan, replace(QUICK, processes=2)).run()
    assert result["latencies"]["acknowledgement"]["count"] == 20_000
    # The time until the last acknowledgement, and not until somebody looked.
    assert result["measured_s"] < 1.0
    assert result["rates"]["acknowledged_per_s"] == pytest.approx(20_000 / result["measured_s"], rel=0.05)


def test_a_rate_that_a_server_does_not_take_is_a_failure() -> None:
    """It acknowledges one message every 10 ms."""

    def script(peer: Peer) -> None:
        peer.greet()
        count = 0
        while peer.packet()[:1] == b"\x32":
            count += 1
            tick.wait(0.01)
            peer.send(puback(count))

    tick = threading.Event()
    with scripted(script) as port:
        plan = Plan(
            port=port, publishers=1, window=1, rate_per_s=1_000, seconds=0.5, warmup_s=0, drain_timeout_s=0.2
        )
        result = LoadRun(plan, QUICK).run()
    published = result["counters"]["published"]
    assert published + result["unsent"] == pytest.approx(500, rel=0.2)
    assert f"{result['unsent']} messages were due and could not be sent in time" in str(result["verdict"])


def test_what_a_server_refuses_is_a_failure_and_not_missing() -> None:
    def script(peer: Peer) -> None:
        peer.packet()
        peer.send(b"\x20\x03\x00\x00\x00")
        for i in range(10):
            peer.packet()
            peer.send(b"\x40\x04\x00" + bytes([i + 1]) + b"\x87\x00")
        peer.packet()

    with scripted(script) as port:
        plan = Plan(port=port, publishers=1, is_v5=True, messages_max=10, warmup_s=0)
        result = LoadRun(plan, QUICK).run()
    assert result["missing"] == 0
    assert result["verdict"] == ["10 messages were refused"]


def test_what_is_dropped_of_qos_0_is_told() -> None:
    subscribers: list[Peer] = []

    def script(peer: Peer) -> None:
        peer.packet()
        peer.send(CONNACK)
        packet = peer.packet()
        if packet[:1] == b"\x82":
            peer.send(SUBACK)
            subscribers.append(peer)
        count = 0
        while packet:
            if packet[:1] == b"\x30":
                # The second and the third one of four are dropped.
                if count in (0, 3):
                    subscribers[0].send(packet)
                count += 1
            packet = peer.packet()

    with scripted(script, connections=2) as port:
        plan = Plan(port=port, publishers=1, subscribers=1, qos=0, messages_max=4, warmup_s=0)
        result = LoadRun(plan, QUICK).run()
    assert result["verdict"] == []
    assert "2 deliveries of QoS 0 are missing, which a server may drop" in result["notes"]


def test_messages_without_a_stamp_are_told() -> None:
    with running_sink(relay=True) as sink:
        plan = Plan(port=sink.port, publishers=1, subscribers=1, payload_bytes=3, messages_max=5, warmup_s=0)
        result = LoadRun(plan, replace(QUICK, p99_ms_max=1_000)).run()
    assert [note for note in result["notes"] if note.startswith("5 messages came without a stamp")]
    assert result["verdict"] == ["no time was measured that p99 could be taken of"]


def test_a_server_that_lets_nobody_in_gives_a_result_of_failures() -> None:
    def script(peer: Peer) -> None:
        peer.packet()
        peer.send(b"\x20\x02\x00\x05")
        peer.packet()

    with scripted(script, connections=2) as port:
        result = LoadRun(Plan(port=port, publishers=2, seconds=60), QUICK).run()
    assert result["ends"] == {"failed": {"refused": 2}, "lost": {}, "refused": {"0x05": 2}}
    assert result["verdict"] == ["2 of 2 connections did not get in"]


def test_a_server_that_vanishes_ends_the_test() -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.packet()
        peer.socket.close()

    with scripted(script) as port:
        result = LoadRun(Plan(port=port, publishers=1, seconds=60, warmup_s=0), QUICK).run()
    assert sum(result["ends"]["lost"].values()) == 1
    assert any("connections were lost" in sentence for sentence in result["verdict"])


def test_a_p99_that_is_too_long_is_a_failure() -> None:
    with running_sink() as sink:
        plan = Plan(port=sink.port, publishers=1, messages_max=50, measures_acks=True, warmup_s=0)
        result = LoadRun(plan, replace(QUICK, p99_ms_max=0.000_001)).run()
    assert [sentence for sentence in result["verdict"] if "p99 is" in sentence]


def test_secrets_are_not_in_the_result() -> None:
    with running_sink() as sink:
        plan = Plan(port=sink.port, idle=1, username="u", password="hidden", seconds=0.1)
        result = LoadRun(plan, QUICK).run()
    assert "hidden" not in json.dumps(result)


def test_a_plan_that_a_process_refuses_ends_the_test_with_its_words() -> None:
    with pytest.raises(SwarmError, match="window must be"):
        LoadRun(Plan(publishers=1, window=0), QUICK).run()


def test_a_process_that_is_killed_ends_the_test_and_says_so() -> None:
    def kill(_: Progress) -> None:
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        os.kill(min(int(pid) for pid in words if b"loadtest.swarm.worker" in words[pid]), signal.SIGKILL)

    with running_sink() as sink:
        plan = Plan(port=sink.port, publishers=2, rate_per_s=100, seconds=60)
        with pytest.raises(SwarmError, match="ended: killed by SIGKILL"):
            LoadRun(plan, replace(QUICK, processes=2), watch=kill).run()


def test_a_test_can_be_stopped_while_it_connects() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plan = Plan(port=listener.getsockname()[1], publishers=3, connect_timeout_s=60)
        run = LoadRun(plan, replace(QUICK, processes=2), watch=lambda _: run.stop())
        began_s = time.monotonic()
        result = run.run()
    assert time.monotonic() - began_s < 20
    assert result["verdict"] == ["3 of 3 connections did not get in"]
    assert result["notes"] == ["it was ended early"]


def test_who_stops_a_test_has_its_result() -> None:
    with running_sink() as sink:
        run = LoadRun(
            Plan(port=sink.port, publishers=1, rate_per_s=100, seconds=600), QUICK, watch=lambda _: run.stop()
        )
        result = run.run()
    assert result["measured_s"] < 60
    assert result["counters"]["published"] < 6_000


def test_who_stops_a_test_once_has_what_was_on_its_way() -> None:
    """As fast as the windows allow, a thousand messages are on their way at any time."""
    stops: list[None] = []

    def stop_once(progress: Progress) -> None:
        if progress.counters["published"] and not stops:
            stops.append(None)
            run.stop()

    with running_sink() as sink:
        plan = Plan(port=sink.port, publishers=10, seconds=600, warmup_s=0)
        run = LoadRun(plan, QUICK, watch=stop_once)
        result = run.run()
    assert result["counters"]["published"] == result["counters"]["acknowledged"] > 0
    assert (result["outstanding"], result["verdict"]) == (0, [])


# The server's process


def test_a_process_is_measured_with_its_children() -> None:
    alone = ServerProcess(os.getpid()).usage()
    assert alone is not None
    program = "import time; data = bytearray(50_000_000); print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        both = ServerProcess(os.getpid()).usage()
        assert both is not None
        assert both.memory_bytes > alone.memory_bytes + 40_000_000
        one = ServerProcess(child.pid)
    finally:
        child.kill()
        child.communicate()
    assert one.usage() is None
    with pytest.raises(SwarmError, match="no process"):
        ServerProcess(child.pid)


def test_the_time_of_a_child_that_has_ended_is_kept() -> None:
    before = ServerProcess(os.getpid()).usage()
    assert before is not None
    program = "import time\nwhile time.process_time() < 0.3:\n  pass"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    after = ServerProcess(os.getpid()).usage()
    assert after is not None
    assert after.cpu_s - before.cpu_s >= 0.3


# Files and metrics


def test_what_is_no_result_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text, problem in (
        (None, "No such file"),
        ("{", "no JSON"),
        ("[]", "no result"),
        ('{"format": "other"}', "no result"),
        (json.dumps({"format": FORMAT}), "has no name"),
        (json.dumps({"format": FORMAT, "name": "x", "began_at": "x", "plan": []}), "has no plan"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(SwarmError, match=problem):
            read_result(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_text("1" * 1_001)
    monkeypatch.setattr("loadtest.runs.result.RESULT_BYTES_MAX", 1_001)
    with pytest.raises(SwarmError, match="no result"):
        read_result(path)
    monkeypatch.setattr("loadtest.runs.result.RESULT_BYTES_MAX", 1_000)
    with pytest.raises(SwarmError, match="has more than"):
        read_result(path)


def test_metrics_are_there_while_a_test_runs() -> None:
    seen: list[str] = []
    metrics = LiveMetrics(0)

    def watch(progress: Progress) -> None:
        metrics.show(progress)
        connection = http.client.HTTPConnection("127.0.0.1", metrics.port, timeout=10)
        connection.request("GET", "/metrics")
        seen.append(connection.getresponse().read().decode())
        connection.request("GET", "/other")
        assert connection.getresponse().status == 404
        connection.close()

    try:
        with running_sink() as sink:
            plan = Plan(port=sink.port, publishers=2, rate_per_s=500, seconds=0.5, warmup_s=0)
            LoadRun(plan, QUICK, watch=watch).run()
        with pytest.raises(SwarmError, match="no metrics on"):
            LiveMetrics(metrics.port)
    finally:
        metrics.close()
    text = seen[-1]
    values = dict(re.findall(r"^(\S+) (\S+)$", text, re.M))
    assert values["iotmq_loadtest_connections"] == "2"
    assert int(values["iotmq_loadtest_published_total"]) > 0
    kind = '{kind="acknowledgement"'
    count = int(values[f"iotmq_loadtest_latency_seconds_count{kind}}}"])
    assert count == int(values[f'iotmq_loadtest_latency_seconds_bucket{kind},le="+Inf"}}'])
    assert count >= int(values[f'iotmq_loadtest_latency_seconds_bucket{kind},le="10"}}']) > 0
