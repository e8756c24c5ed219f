"""Let members, etcd, the network and disks of a replicated broker fail under load, and check what is left.

    python tests/oracles/cluster_faults.py --rounds 20 --seed 7 [--network] [--etcd 3] [--all-in-one]

Each round takes one fault by chance, holds it for a while, heals everything, and waits until all members are
in sync. At the end the logs of the stopped members are compared with what the load did and saw. Prints the
longest time without an acknowledgement in each round, and every anomaly; 1 when there is one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in ("tests/oracles", "deploy/cluster"))]

from bad_bytes import STRANGERS, request  # noqa: E402
from fault_cluster import SEGMENT_BYTES, STORE, FaultCluster, Network  # noqa: E402
from fault_history import Fault, MemberLog, anomalies, duplicates, gaps_s, latest, read_log  # noqa: E402
from fault_load import FaultLoad  # noqa: E402
from fault_objects import ObjectLoad  # noqa: E402
from linearizability import Forget  # noqa: E402
from replicated_cluster import ClusterError, eventually  # noqa: E402

from iotmq.errors import IotmqError  # noqa: E402
from iotmq.remoting.codes import RequestCode  # noqa: E402

_LONG_S: Final = 5.0
"""Longer than the sign of life of a member lasts."""
_SHORT_S: Final = 1.0
# Before and after each fault.
_SETTLE_S: Final = 0.5


class Faults:
    """What can be done to a cluster; each method returns when the fault may be healed."""

    def __init__(self, cluster: FaultCluster, source: random.Random) -> None:
        self._cluster = cluster
        self._source = source

    def names(self) -> list[str]:
        """Return the faults that are possible here."""
        found = [
            "kill_master", "kill_follower", "stop_master_shortly", "stop_master", "stop_follower",
            "stop_two", "kill_two", "kill_all", "end_all", "hand_over", "stop_etcd", "kill_etcd",
            "stop_etcd_and_kill_master", "kill_twice", "number_twice", "masters_number_twice",
            "older_copy", "older_copies",
            "older_copy_and_kill_master", "directory_of_another_cluster", "older_etcd",
        ]  # fmt: skip
        if self._cluster.network.has_namespaces:
            found += [
                "cut_master", "cut_follower", "master_is_not_heard", "master_hears_nobody",
                "cut_master_from_etcd", "cut_follower_from_etcd", "cut_two_followers_apart", "fill_disk",
                "fill_disk_of_master",
                "fill_disk_and_kill_master",
            ]  # fmt: skip
        return found

    def play(self, name: str) -> None:
        getattr(self, name)()

    def _master(self) -> int:
        return self._cluster.wait_in_sync()

    def _follower(self) -> int:
        self._master()
        return self._source.choice(self._cluster.followers())

    # Processes

    def kill_master(self) -> None:
        self._cluster.kill(self._master())
        time.sleep(_SHORT_S)

    def kill_twice(self) -> None:
        """The next master, too, as soon as it serves; the first one is back by then."""
        first = self._master()
        self._cluster.kill(first)
        self._cluster.start(first)
        second = self._cluster.master()
        if second is not None:
            self._cluster.kill(second)
        time.sleep(_SHORT_S)

    def kill_follower(self) -> None:
        self._cluster.kill(self._follower())
        time.sleep(_SHORT_S)

    def stop_master_shortly(self) -> None:
        self._cluster.pause(self._master())
        time.sleep(_SHORT_S)

    def stop_master(self) -> None:
        self._cluster.pause(self._master())
        time.sleep(_LONG_S)

    def stop_follower(self) -> None:
        self._cluster.pause(self._follower())
        time.sleep(_LONG_S)

    def stop_two(self) -> None:
        self._cluster.pause(*self._source.sample([1, 2, 3], 2))
        time.sleep(_LONG_S)

    def kill_two(self) -> None:
        self._cluster.kill(*self._source.sample([1, 2, 3], 2))
        time.sleep(self._source.choice([0.1, _SHORT_S, _LONG_S]))

    def kill_all(self) -> None:
        self._cluster.kill(1, 2, 3)

    def end_all(self) -> None:
        for part in self._cluster.members.values():
            part.signal(signal.SIGTERM)

    def hand_over(self) -> None:
        self._cluster.hand_over()
        time.sleep(_SHORT_S)

    # The consensus store

    def _etcd(self, number: signal.Signals) -> None:
        """All nodes but one; the one node where there is one only."""
        nodes = self._cluster.etcd
        for part in self._source.sample(nodes, len(nodes) // 2 + 1):
            part.signal(number)

    def stop_etcd(self) -> None:
        self._etcd(signal.SIGSTOP)
        time.sleep(_LONG_S)

    def kill_etcd(self) -> None:
        self._etcd(signal.SIGKILL)
        time.sleep(_LONG_S)

    def stop_etcd_and_kill_master(self) -> None:
        master = self._master()
        self._etcd(signal.SIGSTOP)
        self._cluster.kill(master)
        time.sleep(_SHORT_S)

    def older_etcd(self) -> None:
        """Put an older copy of the data of etcd back, and do what the documentation says then."""
        cluster = self._cluster
        self._master()
        copies = []
        for part in cluster.etcd:
            part.signal(signal.SIGKILL)
        for part in cluster.etcd:
            copies.append(put_aside(part.data, is_copy=True))
            part.start()
        for part in cluster.etcd:
            part.wait_ready()
        # Two more epochs.
        for _ in range(2):
            master = self._master()
            cluster.kill(master)
            cluster.start(master)
        self._master()
        cluster.restores_count += 1
        for part in cluster.etcd:
            part.signal(signal.SIGKILL)
        for part, copy in zip(cluster.etcd, copies, strict=True):
            shutil.rmtree(part.data)
            copy.rename(part.data)
            part.start()
        for part in cluster.etcd:
            part.wait_ready()
        cluster.restores_count += 1
        time.sleep(_LONG_S)
        cluster.kill(1, 2, 3)
        cluster.start(1, 2, 3)
        cluster.adopt()

    # Data directories and numbers

    def _number_twice(self, number: int) -> None:
        """Somebody starts a process with the settings of a member that runs, and an empty directory."""
        twin = self._cluster.twin(number)
        # By the master, by the state; and a process with all roles finds its ports taken.
        texts = (
            "follows already, by another connection",
            f"member {number} is recorded as master, and its log may",
            "address already in use",
        )

        def is_told() -> bool:
            logs = "".join(part.log_text() for part in (*self._cluster.members.values(), twin))
            return any(text in logs for text in texts)

        twin.start()
        try:
            eventually(is_told, f"the second member {number} is refused")
            time.sleep(_LONG_S)
        finally:
            twin.end()

    def number_twice(self) -> None:
        self._number_twice(self._follower())

    def masters_number_twice(self) -> None:
        self._number_twice(self._master())

    def older_copy(self) -> None:
        """Put an older copy of a follower's directory back."""
        self._older_copies(1)

    def older_copy_and_kill_master(self) -> None:
        """The same, and the master never comes back to notice it: the other follower has to be master."""
        self._older_copies(1, kills_master=True)

    def older_copies(self) -> None:
        """The same with both followers."""
        self._older_copies(2)

    def _older_copies(self, count: int, *, kills_master: bool = False) -> None:
        cluster = self._cluster
        master = self._master()
        chosen = self._source.sample(cluster.followers(), count)
        copies = {}
        for number in chosen:
            cluster.kill(number)
            copies[number] = put_aside(cluster.members[number].data, is_copy=True)
            cluster.start(number)
        self._master()
        time.sleep(_SHORT_S)
        # At once, so that nobody has recorded that they are gone.
        cluster.pause(master)
        for number in chosen:
            cluster.kill(number)
            put_back(copies[number], cluster.members[number].data)
            cluster.start(number)
        if kills_master:
            cluster.kill(master)
            time.sleep(_LONG_S)
        else:
            cluster.go_on(master)
            time.sleep(_SHORT_S)

    def directory_of_another_cluster(self) -> None:
        """Start a follower over a directory of another cluster, then over its own again."""
        cluster = self._cluster
        number = self._follower()
        directory = cluster.members[number].data
        cluster.kill(number)
        own = put_aside(directory, is_copy=False)
        cluster.make_foreign(number)
        cluster.start(number)
        time.sleep(_LONG_S)
        text = json.dumps(cluster.status(number))
        cluster.kill(number)
        put_back(own, directory)
        if "in_sync" in text:
            raise ClusterError(f"member {number} takes part with a directory of another cluster: {text}")

    # The network

    def cut_master(self) -> None:
        self._cluster.network.take_down(f"member-{self._master()}")
        time.sleep(_LONG_S)

    def cut_follower(self) -> None:
        self._cluster.network.take_down(f"member-{self._follower()}")
        time.sleep(_LONG_S)

    def master_is_not_heard(self) -> None:
        master = self._master()
        for other in self._cluster.followers():
            self._cluster.network.lose(f"member-{master}", f"member-{other}")
        time.sleep(_LONG_S)

    def master_hears_nobody(self) -> None:
        master = self._master()
        for other in self._cluster.followers():
            self._cluster.network.lose(f"member-{other}", f"member-{master}")
        time.sleep(_LONG_S)

    def _cut_from_etcd(self, member: int) -> None:
        for number in range(1, len(self._cluster.etcd) + 1):
            self._cluster.network.lose(f"member-{member}", f"etcd-{number}")
        time.sleep(_LONG_S)

    def cut_master_from_etcd(self) -> None:
        self._cut_from_etcd(self._master())

    def cut_follower_from_etcd(self) -> None:
        self._cut_from_etcd(self._follower())

    def cut_two_followers_apart(self) -> None:
        master = self._master()
        one, other = (number for number in (1, 2, 3) if number != master)
        self._cluster.network.lose(f"member-{one}", f"member-{other}")
        self._cluster.kill(master)
        time.sleep(_LONG_S)

    # The disk

    def fill_disk(self) -> None:
        self._cluster.fill_disk(3)
        time.sleep(_LONG_S)

    def fill_disk_of_master(self) -> None:
        for _ in range(20):
            if self._master() == 3:
                break
            self._cluster.hand_over(3)
        self._cluster.fill_disk(3)
        time.sleep(_LONG_S)

    def fill_disk_and_kill_master(self) -> None:
        self._cluster.fill_disk(3)
        time.sleep(_SHORT_S)
        master = self._cluster.master()
        if master is not None:
            self._cluster.kill(master)
        time.sleep(_LONG_S)


def put_aside(directory: Path, *, is_copy: bool) -> Path:
    """Copy or move what is in a directory to one beside it."""
    aside = directory.with_name(f"{directory.name}.aside")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for each in directory.iterdir():
        if not is_copy:
            shutil.move(each, aside / each.name)
        elif each.is_dir():
            shutil.copytree(each, aside / each.name)
        else:
            shutil.copy2(each, aside / each.name)
    return aside


def put_back(aside: Path, directory: Path) -> None:
    """Replace what is in a directory, which may be a mounted one, by what was put aside."""
    for each in directory.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    for each in aside.iterdir():
        shutil.move(each, directory / each.name)
    aside.rmdir()


class Strangers:
    """A thread that sends what nobody should to the native ports of all members."""

    def __init__(self, cluster: FaultCluster, source: random.Random) -> None:
        self._cluster = cluster
        self._source = source
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent_count = 0

    def __enter__(self) -> Strangers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.2):
            address = self._source.choice(list(self._cluster.addresses.values()))
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=0.5) as stranger:
                stranger.settimeout(0.2)
                stranger.sendall(self._bytes())
                self.sent_count += 1
                stranger.recv(1_000)

    def _bytes(self) -> bytes:
        source = self._source
        if source.random() < 0.5:
            return source.choice(list(STRANGERS.values()))
        kind = source.choice(["open", "ack", "data", "follow", "table", "refused", "released", "x"])
        fields: dict[str, object] = {"kind": kind, "epoch": source.choice(["1", "-1", "9" * 19, "x"])}
        for name in ("received", "flushed", "position", "end", "confirmed"):
            fields[name] = source.choice(["0", "1", "-5", "9" * 18, ""])
        body = source.choice([b"", b"{}", b"[" * 1_000, source.randbytes(200)])
        return request(RequestCode.MEMBER_MESSAGE, fields, body)


async def run(options: argparse.Namespace, cluster: FaultCluster) -> bool:
    """Play the rounds, check, and print; return whether all is well."""
    source = random.Random(options.seed)
    load = FaultLoad(cluster.registries, cluster.mqtt)
    objects = ObjectLoad(cluster, load.history, random.Random(options.seed))
    faults = Faults(cluster, source)
    deadline_s = time.monotonic() + options.seconds
    turns: list[str] = []
    with Strangers(cluster, random.Random(options.seed)) as strangers:
        failures: list[str] = []
        try:
            async with load.running(), objects.running():
                for number in range(1, options.rounds + 1):
                    if time.monotonic() > deadline_s:
                        break
                    if not turns:
                        turns = list(options.only or faults.names())
                        source.shuffle(turns)
                    await play(cluster, load, faults, turns.pop(), number)
                    for started_s in cluster.starts_s:
                        objects.note_restart(started_s, load.history.faults[-1].end_s)
                    cluster.starts_s.clear()
        except* (ClusterError, AssertionError, IotmqError) as errors:
            failures += [f"failed: {error}" for error in leaves(errors)]
            failures += [f"missing: {text}" for text in load.missing()]
    if failures:
        print("\n".join(failures), flush=True)
        return False
    confirmed = await asyncio.to_thread(cluster.wait_level)
    for part in cluster.members.values():
        await asyncio.to_thread(part.signal, signal.SIGTERM)
    found = await asyncio.to_thread(check, cluster, load, confirmed)
    report(cluster, load, strangers.sent_count)
    for text in found:
        print(text, flush=True)
    return not found


def leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    """Return the errors in a group, and in groups in it."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def play(cluster: FaultCluster, load: FaultLoad, faults: Faults, name: str, number: int) -> None:
    """One round."""
    await asyncio.sleep(_SETTLE_S)
    begun_s = time.monotonic()
    before = len(load.disconnects)
    await asyncio.to_thread(faults.play, name)
    healed_s = time.monotonic()
    await asyncio.to_thread(cluster.heal)
    await asyncio.to_thread(cluster.wait_in_sync)
    count, since_s = load.acknowledged_count, time.monotonic()
    while load.acknowledged_count < count + 20:
        assert time.monotonic() < since_s + 60, f"nothing is acknowledged after {name}"
        await asyncio.sleep(0.02)
    await asyncio.sleep(_SETTLE_S)
    fault = Fault(name, begun_s, healed_s, time.monotonic())
    load.history.faults.append(fault)
    gap_s = (await asyncio.to_thread(gaps_s, load.history, faults=[fault]))[0][1]
    print(
        f"round {number}: {name}: nothing acknowledged for {gap_s * 1000:.0f} ms, in sync "
        f"{fault.end_s - healed_s - _SETTLE_S:.1f} s after its end, "
        f"disconnects {len(load.disconnects) - before}",
        flush=True,
    )


def check(cluster: FaultCluster, load: FaultLoad, confirmed: int) -> list[str]:
    """Compare the logs with the history, and have each directory checked by itself."""
    logs: dict[int, MemberLog] = {}
    found: list[str] = []
    for number in cluster.members:
        directory = cluster.members[number].data
        logs[number] = read_log(directory, segment_bytes=SEGMENT_BYTES, confirmed=confirmed)
        sets = [word for key, value in STORE.items() for word in ("--set", f"store.{key}={value}")]
        done = subprocess.run(
            [sys.executable, "-m", "iotmq", "store", "check", "--data", str(directory), *sets],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if done.returncode:
            found.append(f"check: member {number}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
        text = cluster.members[number].log_text()
        if "Traceback" in text:
            found.append(f"traceback: member {number}: {text[text.index('Traceback') :][:3_000]}")
    found += anomalies(load.history, logs)
    print(f"repeated in the log: {duplicates(logs, load.history)}")
    return found


def report(cluster: FaultCluster, load: FaultLoad, strangers_count: int) -> None:
    """Print what was done."""
    history = load.history
    longest: dict[str, float] = {}
    for name, gap_s in gaps_s(history):
        longest[name] = max(gap_s, longest.get(name, 0.0))
    for name, gap_s in sorted(longest.items(), key=lambda item: -item[1]):
        print(f"  {name:<28}{gap_s * 1000:>8.0f} ms")
    for name, delay_s, body, fault in latest(history):
        print(f"{name} got {body!r}, after {fault}, {delay_s:.1f} s after its acknowledgement; nothing later")
    for kind, objects in (
        ("locks", history.locks), ("registers", history.registers), ("states", history.states)
    ):  # fmt: skip
        calls = [each for one in objects.values() for each in one if not isinstance(each.action, Forget)]
        open_count = sum(not each.is_answered for each in calls)
        print(f"{kind}: {len(objects)}, calls {len(calls)}, without an answer {open_count}")
    heard = {name: len(bodies) - len(set(bodies)) for name, bodies in history.heard.items()}
    print(
        f"sent {len(history.sent)}, acknowledged {load.acknowledged_count}, "
        f"refused {sum(each.is_refused for each in history.sent)}, strangers {strangers_count}, "
        f"commands twice {sum(heard.values())}, read twice "
        f"{ {name: len(seen) - len({each.body for each in seen}) for name, seen in history.readers.items()} }"
    )
    reasons = Counter(text for _at_s, _name, text in load.disconnects)
    print(f"disconnects: {dict(reasons.most_common(5))}")


def main(words: list[str] | None = None, *, body: Callable[..., object] = run) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3_600.0, help="begin no round after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="this fault, and others that are named so")
    parser.add_argument("--etcd", type=int, choices=(1, 3), default=1)
    parser.add_argument("--network", action="store_true", help="this process is alone in its namespaces")
    parser.add_argument("--all-in-one", action="store_true", dest="is_all_in_one")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "cluster-faults")
    parser.add_argument("--port", type=int, default=26_000)
    options = parser.parse_args(words)
    print(f"seed {options.seed}", flush=True)
    network = Network(has_namespaces=options.network)
    try:
        with FaultCluster(
            options.directory, network, port=options.port, etcd_nodes=options.etcd,
            is_all_in_one=options.is_all_in_one,
        ) as cluster:  # fmt: skip
            return 0 if asyncio.run(run(options, cluster)) else 1
    except ClusterError as error:
        print(f"failed: {error}", flush=True)
        return 1
    finally:
        network.end()


if __name__ == "__main__":
    sys.exit(main())
