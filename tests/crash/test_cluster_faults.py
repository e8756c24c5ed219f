"""Faults of a replicated broker of real processes under load: nothing that was acknowledged is lost.

IOTMQ_CLUSTER_ROUNDS=200 for long (make cluster-crash), IOTMQ_CRASH_SEED=N repeats.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fault_cluster import Network
from fault_history import Fault, History, MemberLog, Place, Seen, Sent, Stored, anomalies, body_of, gaps_s
from gateway_process import free_ports
from linearizability import Call, Lock, Read, Replace, Version

from iotmq.replication.cluster_state import ClusterState, Identity

pytestmark = pytest.mark.crash

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "oracles" / "cluster_faults.py"
ROUNDS = int(os.environ.get("IOTMQ_CLUSTER_ROUNDS", "0"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "1"))
# Of a short run, for each of its parts.
SECONDS = 5

# The checker --------------------------------------------------------------------------------------------

SENDER = "native-0"


def state_of(version: int, *, epoch: int, master: int = 1) -> Version:
    in_sync = (Identity(master, "a"),)
    return Version(version + 1, ClusterState(epoch=epoch, master=master, in_sync=in_sync).encode())


def good_history() -> tuple[History, dict[int, MemberLog]]:
    """Ten messages of a producer in one queue, read by a group and a reader, in the logs of two members."""
    places = [Place("faults", 1, offset) for offset in range(10)]
    bodies = [body_of(SENDER, number) for number in range(10)]
    records = [Stored(place, body) for place, body in zip(places, bodies, strict=True)]
    history = History(owed={"group": ("native-",), "reader": ("native-",)}, groups={"group"})
    history.sent = [Sent(SENDER, n, n / 10, n / 10 + 0.05, places[n]) for n in range(10)]
    history.commands = {"session": SENDER}
    history.heard["session"] = list(bodies)
    history.retained = {"state-0": b"state-0/3"}
    history.sent.append(Sent("state-0", 3, 0.0, 0.1))
    records.append(Stored(Place("mqtt", 0, 0), b"state-0/3"))
    for name in ("group", "reader"):
        history.readers[name] = [Seen(1.0, place, body) for place, body in records]
    history.locks["g/0"] = [Call("a", 0.0, 0.1, Lock("a"), True), Call("b", 0.2, 0.3, Lock("b"), False)]
    history.registers["r"] = [
        Call("s", 0.0, 0.1, Replace(0, b"x"), 3),
        Call("s", 0.2, 0.3, Read(), Version(3, b"x")),
    ]
    history.states[0] = [Call("r", n, n + 0.1, Read(), state_of(n, epoch=7 + n)) for n in range(3)]
    log = MemberLog(0, 1_000, bytes(1_000), records)
    return history, {1: log, 2: log}


def without(log: MemberLog, number: int) -> MemberLog:
    return replace(log, records=[record for record in log.records if record.body != body_of(SENDER, number)])


def lose_the_last(history: History, logs: dict[int, MemberLog]) -> None:
    logs[2] = without(logs[2], 9)


def lose_one_between(history: History, logs: dict[int, MemberLog]) -> None:
    logs[2] = without(logs[2], 4)


def add_a_phantom(history: History, logs: dict[int, MemberLog]) -> None:
    phantom = Stored(Place("faults", 1, 10), body_of(SENDER, 77))
    logs[1] = logs[2] = replace(logs[1], records=[*logs[1].records, phantom])


def give_an_offset_twice(history: History, logs: dict[int, MemberLog]) -> None:
    """A reader was shown what the logs have not."""
    history.readers["reader"][9] = history.readers["reader"][9]._replace(body=body_of(SENDER, 8))
    history.owed = {}


def acknowledge_elsewhere(history: History, logs: dict[int, MemberLog]) -> None:
    history.sent[5].place = Place("faults", 1, 50)


def exchange_two(history: History, logs: dict[int, MemberLog]) -> None:
    records = list(logs[1].records)
    records[3], records[4] = (
        Stored(records[3].place, records[4].body),
        Stored(records[4].place, records[3].body),
    )
    logs[1] = logs[2] = replace(logs[1], records=records)
    for name in history.readers:
        history.readers[name] = [Seen(1.0, place, body) for place, body in records]
    for each in history.sent:
        each.place = None


def store_twice(history: History, logs: dict[int, MemberLog]) -> None:
    again = Stored(Place("faults", 1, 10), body_of(SENDER, 9))
    logs[1] = logs[2] = replace(logs[1], records=[*logs[1].records, again])


def skip_in_the_group(history: History, logs: dict[int, MemberLog]) -> None:
    del history.readers["group"][9]


def jump_back(history: History, logs: dict[int, MemberLog]) -> None:
    history.readers["reader"].append(history.readers["reader"][2])


def jump_ahead(history: History, logs: dict[int, MemberLog]) -> None:
    seen = history.readers["group"]
    seen[4], seen[6] = seen[6], seen[4]


def change_a_byte(history: History, logs: dict[int, MemberLog]) -> None:
    content = bytearray(logs[2].content)
    content[500] = 1
    logs[2] = replace(logs[2], content=bytes(content))


def forget_a_command(history: History, logs: dict[int, MemberLog]) -> None:
    history.heard["session"].remove(body_of(SENDER, 6))


def retain_an_old_value(history: History, logs: dict[int, MemberLog]) -> None:
    history.retained["state-0"] = b"state-0/2"


def lock_twice(history: History, logs: dict[int, MemberLog]) -> None:
    history.locks["g/0"].append(Call("b", 0.4, 0.5, Lock("b"), True))


def read_an_old_value(history: History, logs: dict[int, MemberLog]) -> None:
    history.registers["r"].append(Call("s", 0.4, 0.5, Replace(3, b"y"), 4))
    history.registers["r"].append(Call("s", 0.6, 0.7, Read(), Version(3, b"x")))


def make_two_masters(history: History, logs: dict[int, MemberLog]) -> None:
    history.states[0].append(Call("r", 4.0, 4.1, Read(), state_of(4, epoch=9, master=2)))


PLANTED: dict[str, tuple[Callable[[History, dict[int, MemberLog]], None], str]] = {
    "lost": (lose_the_last, "lost: b'native-0/9', member 2"),
    "hole": (lose_one_between, "hole: ('faults', 1) of member 2"),
    "phantom": (add_a_phantom, "phantom: b'native-0/77'"),
    "inconsistent": (give_an_offset_twice, "inconsistent: Place(topic='faults', queue_id=1, offset=9)"),
    "misplaced": (acknowledge_elsewhere, "misplaced: b'native-0/5'"),
    "disorder": (exchange_two, "disorder: native-0/3 in queue 1"),
    "duplicate": (store_twice, "duplicate: b'native-0/9' is there 2 times after 1 tries"),
    "skipped": (skip_in_the_group, "skipped: group was not given b'native-0/9'"),
    "backwards": (jump_back, "backwards: reader was given offset 2"),
    "forwards": (jump_ahead, "backwards: group was given offset 6"),
    "unequal": (change_a_byte, "unequal: members 1 and 2 differ at position 500"),
    "unheard": (forget_a_command, "unheard: b'native-0/6' by session"),
    "retained": (retain_an_old_value, "retained: b'state-0/2'"),
    "locked twice": (lock_twice, "lock: g/0: after 3 answers no order fits"),
    "stale read": (read_an_old_value, "register: r: after 4 answers no order fits"),
    "two masters": (make_two_masters, "state: epoch 9 of 2 after 9 of 1"),
}


def test_the_checker_finds_nothing_where_nothing_is() -> None:
    assert anomalies(*good_history()) == []


@pytest.mark.parametrize("kind", PLANTED)
def test_the_checker_finds_what_was_planted(kind: str) -> None:
    history, logs = good_history()
    plant, text = PLANTED[kind]
    plant(history, logs)
    assert any(found.startswith(text) for found in anomalies(history, logs)), anomalies(history, logs)


def test_a_repetition_is_allowed_after_a_retry_or_in_a_fault() -> None:
    history, logs = good_history()
    store_twice(history, logs)
    history.sent[9].tries = 2
    assert anomalies(history, logs) == []
    history.sent[9].tries, history.sent[9].is_repeated_unseen = 1, True
    assert anomalies(history, logs) != []
    history.faults = [Fault("kill_master", 0.92, 0.93, 3.0)]
    assert anomalies(history, logs) == []


def test_gaps_are_measured_around_each_fault() -> None:
    history, _logs = good_history()
    history.sent[7].done_s = 5.0
    history.faults = [Fault("early", 0.1, 0.2, 0.3), Fault("late", 1.0, 2.0, 3.0)]
    assert gaps_s(history) == [("early", pytest.approx(0.1)), ("late", pytest.approx(4.05))]


# The cluster --------------------------------------------------------------------------------------------


def run_faults(directory: Path, *words: str, prefix: tuple[str, ...] = ()) -> None:
    """Run the program, for some rounds at least. Fails when it found something."""
    if shutil.which("etcd") is None:
        pytest.skip("no etcd here")
    length = ["--rounds", str(ROUNDS)] if ROUNDS else ["--seconds", str(SECONDS)]
    command = [
        *prefix, sys.executable, str(PROGRAM), "--seed", str(SEED), "--directory", str(directory),
        "--port", str(free_ports()), *length, *words,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8_000:]}\n{done.stderr[-4_000:]}"
    assert "round 1:" in done.stdout
    print(done.stdout)


@pytest.mark.timeout(36_000 if ROUNDS else 300)
def test_nothing_is_lost_when_processes_fail(tmp_path: Path) -> None:
    run_faults(tmp_path / "cluster")


@pytest.mark.timeout(36_000 if ROUNDS else 300)
def test_nothing_is_lost_when_processes_with_all_roles_fail(tmp_path: Path) -> None:
    """Each has a registry and a front end, too: devices at those that are left go on."""
    run_faults(tmp_path / "cluster", "--all-in-one")


@pytest.mark.timeout(36_000 if ROUNDS else 300)
def test_nothing_is_lost_when_the_network_disks_and_etcd_nodes_fail(tmp_path: Path) -> None:
    if not Network.is_permitted():
        pytest.skip("no network namespaces here: the network of the members does not fail")
    run_faults(tmp_path / "cluster", "--network", "--etcd", "3", prefix=("unshare", "--net", "--mount"))
