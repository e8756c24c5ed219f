"""Throws damaged data directories at the store: what no crash leaves, but a bad disk or a stranger may.

Small whole directories (stopped cleanly, killed, without their oldest files, repaired once) are changed: bits
flipped, numbers overwritten, files cut, stretched, removed, renamed, doubled, mixed from two directories, and
marks whose checksum holds although what they say does not. Allowed outcomes, all else is a finding:

* the directory is refused with a StoreError, by whoever opens it or looks into it;
* or it opens: every read ends and gives whole records, appends are taken (or refused with a StoreError), what
  was appended is read again, and it is still there after a stop and a start;
* both within CASE_S and MEMORY_BYTES, and without a crash.

Cases run in child processes, so that a hang and a crash are seen. This file with --seconds, or `make fuzz`.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import queue
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "oracles")]

from store_keeper import Keeper  # noqa: E402
from store_model import SMALL, open_small, put, wait_flushed  # noqa: E402

from iotmq.errors import StoreError  # noqa: E402
from iotmq.message.records.record import iter_records  # noqa: E402
from iotmq.store.files.state_record import sealed, unsealed  # noqa: E402
from iotmq.store.settings import StoreSettings  # noqa: E402
from iotmq.store.store import Store  # noqa: E402
from iotmq.store.tools.closed_check import ClosedCheck  # noqa: E402
from iotmq.store.tools.inspection import ClosedStore  # noqa: E402

# A case takes some ten milliseconds; so long is a hang, on a busy machine too.
CASE_S = 60.0
# The largest file a case may make, and the children's address space: files are mapped whole.
FILE_BYTES = 64 << 20
MEMORY_BYTES = 64 << 30
CASES_PER_CHILD = 200
READS_MAX = 30

INTERESTING = [
    0,
    1,
    7,
    8,
    19,
    20,
    91,
    92,
    140,
    4088,
    4095,
    4096,
    8192,
    1 << 20,
    1 << 31,
    1 << 56,
    1 << 58,
    1 << 62,
]
TOPICS = ["T", "U", "long" * 30]


class Finding(Exception):  # noqa: N818 - what a fuzzer looks for is no error of its own
    """Something that must not happen."""


# What is changed -----------------------------------------------------------------------------------------


def make_seeds(directory: Path) -> list[Path]:
    """Directories in order, each in another state; the same every time but for times."""
    kinds: list[tuple[str, Callable[[Path], None]]] = [
        ("clean", _make_clean),
        ("killed", _make_killed),
        ("trimmed", _make_trimmed),
        ("repaired", _make_repaired),
        ("empty", lambda path: open_small(path).close()),
    ]
    for name, make in kinds:
        make(directory / name)
    return [directory / name for name, _ in kinds]


def _fill(store: Store, count: int) -> None:
    for number in range(count):
        topic = TOPICS[number % 3]
        properties = [b"", b"TAGS\x01a\x02KEYS\x01k%d\x02" % number, b"MSG_TTL_MS\x0160000\x02"][
            number % 7 % 3
        ]
        body = b"%d" % number + b"x" * (number * 37 % 700)
        # Every eighth is one half of a transaction, and has no entry.
        put(store, topic, number % 2, body, properties=properties, sys_flag=4 if number % 8 == 7 else 0)


def _make_clean(directory: Path) -> None:
    store = open_small(directory)
    _fill(store, 40)
    store.close()


def _make_killed(directory: Path) -> None:
    store = open_small(directory.with_name("alive"))
    _fill(store, 25)
    wait_flushed(store)
    store.write_checkpoint()
    _fill(store, 15)
    shutil.copytree(directory.with_name("alive"), directory)
    store.close()


def _make_trimmed(directory: Path) -> None:
    keeper = Keeper(directory)
    _fill(keeper.store, 30)
    keeper.clock.advance(2 * 3600)
    _fill(keeper.store, 15)
    keeper.delete_expired()
    keeper.store.close()


def _make_repaired(directory: Path) -> None:
    _make_clean(directory)
    path = sorted((directory / "commitlog").iterdir())[-2]
    data = bytearray(path.read_bytes())
    data[100:900] = bytes(800)
    path.write_bytes(data)
    open_small(directory).close()


def change(source: random.Random, directory: Path, other: Path) -> str:
    """Damage one thing in `directory`; what was done. `other` is a directory to take files from."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    if not files:
        return "nothing"
    # Few files are many: each kind as often as the others.
    folder = source.choice(sorted({path.parent for path in files}))
    path = source.choice([path for path in files if path.parent == folder])
    name = f"{path.relative_to(directory)}"
    kind = source.choice(
        [_flip, _flip, _number, _number, _cut, _stretch, _remove, _rename, _double, _mix, _mark]
    )
    return f"{kind.__name__[1:]} {name} {kind(source, path, directory, other)}"


def _flip(source: random.Random, path: Path, *_: Path) -> str:
    data = bytearray(path.read_bytes())
    places = [source.randrange(_end_of(data)) for _ in range(source.choice([1, 1, 3]))] if data else []
    for at in places:
        data[at] ^= 1 << source.randrange(8)
    path.write_bytes(data)
    return str(places)


def _end_of(data: bytearray) -> int:
    """Most of a file is zeros behind what was written: where that ends, and a little more."""
    return min(len(data), len(data.rstrip(b"\0")) + 30)


def _number(source: random.Random, path: Path, *_: Path) -> str:
    data = bytearray(path.read_bytes())
    width = source.choice([4, 8])
    number = (source.choice(INTERESTING) + source.choice([-1, 0, 1])) % (1 << 8 * width)
    at = source.randrange(_end_of(data) or 1)
    if path.parent.parent.parent.name == "consumequeue" and source.random() < 0.8:
        at = at // 20 * 20 + source.choice([0, 8, 12])
    data[at : at + width] = number.to_bytes(width, "big")[: max(0, len(data) - at)]
    path.write_bytes(data)
    return f"{at} {number}"


def _cut(source: random.Random, path: Path, *_: Path) -> str:
    size = source.choice(
        [0, 1, path.stat().st_size // 2, max(0, path.stat().st_size - source.choice([1, 7, 8, 20]))]
    )
    os.truncate(path, size)
    return str(size)


def _stretch(source: random.Random, path: Path, *_: Path) -> str:
    more = source.choice([1, 7, 20, 139, 4096, 100_000])
    with path.open("ab") as file:
        file.write(bytes(more) if source.random() < 0.5 else source.randbytes(more))
    return str(more)


def _remove(_source: random.Random, path: Path, *_: Path) -> str:
    path.unlink()
    return ""


def _any_name(source: random.Random, path: Path) -> str:
    number = source.choice([*INTERESTING, 1 << 63, 10**20 - 1]) + source.choice([-1, 0, 1])
    names = [
        f"{abs(number):020d}"[:20],
        f"{abs(number):017d}"[:17],
        str(abs(number))[:20],
        "0",
        path.name + ".tmp",
    ]
    return source.choice(names)


def _rename(source: random.Random, path: Path, directory: Path, _other: Path) -> str:
    if path.parent != directory and source.random() < 0.3:
        path = path.parent
    target = path.with_name(_any_name(source, path))
    if target.exists():
        return "not"
    path.rename(target)
    return target.name


def _double(source: random.Random, path: Path, *_: Path) -> str:
    target = path.with_name(_any_name(source, path))
    if not target.exists():
        shutil.copy(path, target)
    return target.name


def _mix(source: random.Random, path: Path, directory: Path, other: Path) -> str:
    """The file, or its whole folder, of another directory."""
    part = path.relative_to(directory)
    if len(part.parts) > 1 and source.random() < 0.3:
        shutil.rmtree(directory / part.parts[0])
        if (other / part.parts[0]).is_dir():
            shutil.copytree(other / part.parts[0], directory / part.parts[0])
        return f"folder of {other.name}"
    candidates = sorted(each for each in other.rglob("*") if each.is_file())
    found = other / part if (other / part).is_file() else source.choice(candidates)
    shutil.copy(found, path)
    return f"{found.relative_to(other)} of {other.name}"


def _mark(source: random.Random, _path: Path, directory: Path, _other: Path) -> str:
    """A number in a file that has a checksum, which holds again afterwards."""
    found = [directory / name for name in ("checkpoint", "consumequeue.begins", "index.applied")]
    found += [
        directory / "consumequeue" / ".applied",
        *directory.glob("*mark*"),
        *directory.glob("*flushed*"),
    ]
    found = [each for each in found if each.is_file()]
    if not found:
        return "none"
    path = source.choice(found)
    data = path.read_bytes()
    size = next((size for size in range(len(data), 8, -1) if unsealed(data[:size]) is not None), 0)
    if not size:
        return "unproven"
    content = bytearray(data[: size - 4])
    at = source.choice([*range(0, len(content) - 7, 8)])
    number = source.choice([*INTERESTING, struct.unpack_from(">Q", content, at)[0]]) + source.choice(
        [-8, -1, 0, 1, 8]
    )
    struct.pack_into(">Q", content, at, number % (1 << 64))
    path.write_bytes(sealed(bytes(content)) + data[size:])
    return f"{path.name} {at} {number}"


# What may happen -----------------------------------------------------------------------------------------


def try_directory(directory: Path) -> str:
    """Look into it, open it, use it, open it again; what came of it. Raises Finding."""
    _look_into(directory)
    try:
        store = open_small(directory)
    except StoreError:
        return "refused"
    try:
        _read_all(store)
        written = _append(store)
        _expect(store, written)
    except StoreError:
        store.close()
        return "refused later"
    store.close()
    try:
        store = open_small(directory)
    except StoreError as error:
        raise Finding(f"it opened, and after a clean stop it does not: {error}") from error
    _expect(store, written)
    store.close()
    return "opened" if written else "opened, appends refused"


def _look_into(directory: Path) -> None:
    """As `iotmq store check`."""
    try:
        with ClosedStore(directory) as closed:
            ClosedCheck(closed, StoreSettings(**SMALL)).run()  # type: ignore[arg-type]
    except StoreError:
        pass


def _read_all(store: Store) -> None:
    for each in store.queues():
        offset = each.min_offset
        for _ in range(READS_MAX):
            plan = store.plan_read(each, offset, records_max=8, bytes_max=5000)
            if plan is not None:
                store.load(plan)
            read = store.read(each, offset, records_max=8, bytes_max=5000)
            records = [record for view in read.views for record in iter_records(view)]
            if len(records) != read.count or any(record.queue_id != each.queue_id for record in records):
                raise Finding(f"{each!r} from {offset}: {records}")
            if read.next_offset == offset:
                break
            offset = read.next_offset
        for timestamp_ms in (0, 1 << 60):
            store.offset_at_time(each, timestamp_ms)
        store.position_of(each, each.min_offset)
    for number in (1, 8):
        store.query("T", f"k{number}", records_max=10, begin_ms=0, end_ms=1 << 60)


def _append(store: Store) -> list[tuple[str, int, int, bytes]]:
    """(topic, queue id, offset, body) of what was taken."""
    written = []
    for number in range(12):
        topic, queue_id, body = TOPICS[number % 3], number % 2, b"new %d" % number + b"y" * (number * 97)
        try:
            appended = put(store, topic, queue_id, body)
        except StoreError:
            continue
        written.append((topic, queue_id, appended.first_offset, body))
    wait_flushed(store)
    return written


def _expect(store: Store, written: list[tuple[str, int, int, bytes]]) -> None:
    for topic, queue_id, offset, body in written:
        read = store.read(store.queue(topic, queue_id), offset, records_max=1, bytes_max=1)
        bodies = [record.body for view in read.views for record in iter_records(view)]
        if bodies != [body]:
            raise Finding(f"{topic} {queue_id} at {offset}: {read!r}, appended was {body[:10]!r}")


def play(seeds: list[Path], directory: Path, *, seed: int, number: int) -> str:
    """One case from its beginning to its end."""
    source = random.Random(f"{seed} {number}")
    shutil.copytree(source.choice(seeds), directory)
    changes = [change(source, directory, source.choice(seeds)) for _ in range(source.choice([1, 1, 2, 4]))]
    try:
        return try_directory(directory)
    except BaseException as error:
        error.add_note(f"case {number} of seed {seed}: {changes}")
        raise
    finally:
        shutil.rmtree(directory)


# Children ------------------------------------------------------------------------------------------------


def run_child(*, seed: int, first: int, count: int) -> None:
    """Play cases, saying on standard output which has begun and what the last one came to."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    if "ASAN_OPTIONS" not in os.environ:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir=_fast_directory()) as name:
        seeds = make_seeds(Path(name))
        for number in range(first, first + count):
            print(f"case {number}", flush=True)
            print(f"came to: {play(seeds, Path(name) / 'case', seed=seed, number=number)}", flush=True)


def _fast_directory() -> str | None:
    """In memory where there is one: every case syncs some dozen files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def fuzz(*, seed: int, cases_max: int | None = None, seconds: float | None = None) -> Counter[str]:
    """Play cases until their number or the time is over; outcomes by kind. Raises Finding."""
    outcomes: Counter[str] = Counter()
    ends_s = None if seconds is None else time.monotonic() + seconds
    first = 0
    while (cases_max is None or first < cases_max) and (ends_s is None or time.monotonic() < ends_s):
        count = CASES_PER_CHILD if cases_max is None else min(CASES_PER_CHILD, cases_max - first)
        outcomes += _watch_child(seed=seed, first=first, count=count, ends_s=ends_s)
        first += count
    return outcomes


def _watch_child(*, seed: int, first: int, count: int, ends_s: float | None) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    words = [
        sys.executable,
        __file__,
        "--seed",
        str(seed),
        "--first",
        str(first),
        "--cases",
        str(count),
        "--child",
    ]
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    case = "before the first case"
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)

        def take_lines() -> None:
            assert child.stdout is not None
            for line in child.stdout:
                lines.put(line.strip())
            lines.put("")

        reader = threading.Thread(target=take_lines)
        reader.start()
        try:
            while line := lines.get(timeout=CASE_S):
                if line.startswith("came to: "):
                    outcomes[line.removeprefix("came to: ")] += 1
                    if ends_s is not None and time.monotonic() > ends_s:
                        return outcomes
                else:
                    case = line
        except queue.Empty:
            raise Finding(f"{case} of seed {seed} hangs") from None
        finally:
            child.kill() if child.poll() is None and sum(outcomes.values()) < count else None
            status = child.wait(CASE_S)
            reader.join()
            assert child.stdout is not None
            child.stdout.close()
        if status:
            errors.seek(0)
            raise Finding(f"{case} of seed {seed} ended its process with {status}: {errors.read()[-6000:]}")
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--child", action="store_true", help="play the cases in this process")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int)
    words = parser.parse_args()
    if words.child:
        run_child(seed=words.seed, first=words.first, count=words.cases or 1)
        return
    print(f"seed {words.seed}, {words.seconds:.0f} s", flush=True)
    outcomes = fuzz(seed=words.seed, cases_max=words.cases, seconds=None if words.cases else words.seconds)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8} {outcome}")


if __name__ == "__main__":
    main()
