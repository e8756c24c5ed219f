"""A swarm that a program drives over pipes, and the histograms and faults in its reports."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from gateway_process import free_port
from scripted_server import Peer, scripted
from swarm_runs import running_sink

from loadtest.swarm import Plan, Swarm
from loadtest.swarm.driven import plan_text


def drive(plan: Plan | str, *, reports: int = 0) -> tuple[int, list[dict[str, Any]]]:
    """Run a plan until it is over, or stop it after so many reports; its exit code, and all of them."""
    words = [sys.executable, "-m", "loadtest.swarm", "driven"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write((plan if isinstance(plan, str) else plan_text(plan)) + "\n")
        process.stdin.flush()
        found = []
        for line in process.stdout:
            found.append(json.loads(line))
            if len(found) == reports:
                process.stdin.close()
        return process.wait(30), found


def oracle_bucket(value_ns: int) -> int:
    """The largest value that shares a bucket: exact below 128, 64 buckets an octave above."""
    if value_ns < 128:
        return value_ns
    width = 1 << (value_ns.bit_length() - 7)
    return value_ns // width * width + width - 1


def test_every_edge_of_a_histogram_is_that_of_its_bucket_and_percentiles_are_those_of_the_counts() -> None:
    with running_sink(relay=True) as sink:
        plan = Plan(port=sink.port, publishers=3, subscribers=1, messages_max=3_000, warmup_s=0, seconds=20)
        with Swarm(plan) as swarm:
            swarm.connect()
            swarm.publish()
            histograms = {name: each.counts() for name, each in swarm.engine.histograms().items()}
            latencies = swarm.engine.latencies()
    assert set(histograms) == {*latencies, "connection"}
    assert sum(histograms["connection"]["counts"].values()) == 4
    delivery, summary = histograms["delivery"], latencies["delivery"]
    counts = delivery["counts"]
    assert sum(counts.values()) == summary["count"] == 3_000
    assert all(oracle_bucket(edge) == edge for edge in counts)
    assert oracle_bucket(delivery["max_ns"]) == max(counts)
    assert delivery["total_ns"] / 3_000 == pytest.approx(summary["mean_ns"])
    ordered = [edge for edge, count in sorted(counts.items()) for _ in range(count)]
    for name, at in (("p50_ns", 1_500), ("p90_ns", 2_700), ("p99_ns", 2_970)):
        assert summary[name] == min(ordered[at], delivery["max_ns"])


def test_reports_add_up_to_what_was_sent() -> None:
    with running_sink(relay=True) as sink:
        plan = Plan(
            port=sink.port, publishers=10, subscribers=1, messages_max=5_000, deliveries_per_message=1,
            measures_acks=True,
        )  # fmt: skip
        code, reports = drive(plan)
    assert code == 0
    assert reports[0]["state"] == "connecting"
    last = reports[-1]
    assert last["state"] == "over"
    assert last["counters"]["published"] == last["counters"]["delivered"] == 5_000
    for name, count in (("acknowledgement", 5_000), ("delivery", 5_000), ("connection", 11)):
        summed: Counter[str] = Counter()
        for report in reports:
            summed.update(report["histograms"][name]["counts"])
        assert summed.total() == count, name


def test_the_end_of_input_stops_a_swarm() -> None:
    with running_sink() as sink:
        code, reports = drive(Plan(port=sink.port, publishers=2, rate_per_s=100), reports=4)
    assert code == 0
    counters = reports[-1]["counters"]
    assert reports[-1]["state"] == "over"
    assert counters["published"] == counters["acknowledged"]


def test_a_swarm_ends_without_a_word_when_nobody_reads_its_reports() -> None:
    words = [sys.executable, "-m", "loadtest.swarm", "driven"]
    with (
        running_sink() as sink,
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(plan_text(Plan(port=sink.port, idle=1)) + "\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr.read() == ""


def test_faults_are_counted_by_errno() -> None:
    code, reports = drive(Plan(port=free_port(), idle=5))
    assert code == 0
    assert reports[-1]["faults"] == {"failed": {str(errno.ECONNREFUSED): 5}, "lost": {}, "refused": {}}


def test_refusals_are_counted_by_code_and_not_as_failures() -> None:
    def refuse(peer: Peer) -> None:
        peer.packet()
        peer.send(b"\x20\x02\x00\x05")
        peer.packet()

    with scripted(refuse, connections=3) as port:
        _, reports = drive(Plan(port=port, idle=3))
    assert reports[-1]["faults"] == {"failed": {}, "lost": {}, "refused": {"5": 3}}


def test_broken_rules_and_closed_connections_are_told_apart() -> None:
    answers = [b"\x20\x02\x00\x00\x10\x00", b"\x20\x02\x00\x00"]

    def serve(peer: Peer) -> None:
        peer.packet()
        peer.send(answers.pop())
        peer.socket.shutdown(socket.SHUT_WR)

    with scripted(serve, connections=2) as port:
        _, reports = drive(Plan(port=port, idle=2))
    faults = reports[-1]["faults"]
    total = Counter(faults["lost"]) + Counter(faults["failed"])
    assert total == {"0": 1, str(errno.EPROTO): 1}


def test_connections_without_an_answer_are_overdue() -> None:
    def swallow(peer: Peer) -> None:
        while peer.packet():
            continue

    with scripted(swallow, connections=2) as port:
        _, reports = drive(Plan(port=port, idle=2, connect_timeout_s=0.3))
    assert [report["overdue"] for report in reports][-1] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"publishrs": 1}', "no field publishrs; did you mean publishers?"),
        ('{"publishers": 1, "rate_per_s": -5}', "rate_per_s is -5"),
        ("{}", "at least one connection"),
        ("nonsense", "Expecting value"),
        ("", "Expecting value"),
    ],
)
def test_a_plan_that_is_none_is_refused(text: str, said: str) -> None:
    code, reports = drive(text)
    assert code == 1
    assert [report["state"] for report in reports] == ["refused"]
    assert said in reports[0]["error"]
