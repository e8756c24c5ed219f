"""Throws mutated frames, headers and bodies of every request code at a broker in this process.

No socket and no second process: some thousand inputs a second. Allowed outcomes, all else is a finding:

* a request is answered, once at most, by a whole frame with a response code there is; oneway never;
* a connection is ended for one of REASONS (a frame, header or TLS greeting that cannot be read);
* nothing else is raised: not by the reader, not by a handler, not by what a handler left for later.

`fuzz_ports.py` does the same to a running gateway from outside. This file with --seconds, or `make fuzz`.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "oracles")]

from module_files import load_module  # noqa: E402
from short_and_general import Side  # noqa: E402

from iotmq.remoting.codes import Flag, Serialize  # noqa: E402
from iotmq.remoting.command import Command  # noqa: E402
from iotmq.remoting.frames.frame import REASONS, FrameReader, encode  # noqa: E402

fuzz_ports = load_module(ROOT / "tests" / "fuzz" / "fuzz_ports.py")
requests = load_module(ROOT / "tests" / "property" / "test_broker_requests.py")
Finding = fuzz_ports.Finding

# So many inputs between two looks at what was left for later.
TURN = 20


def seed_request(source: random.Random, opaque: int) -> bytes:
    """A request of some code with its fields, most of them good, and a body of some kind."""
    code = source.choice(sorted(requests.FIELDS))
    if source.random() < 0.3:
        code = source.choice([10, 310, 320, 11, 34])
    ext = {}
    for name, values in requests.FIELDS[code].items():
        roll = source.random()
        if roll < 0.95:
            ext[name] = values[0] if roll < 0.7 else source.choice(values)
    body = source.choice(requests.BODIES)
    if source.random() < 0.3:
        body = fuzz_ports.mutate(source, body)
    # A binary header has two bytes for a code, and some of 5.x need more.
    serialize = source.choice([Serialize.JSON, Serialize.BINARY]) if code <= 0x7FFF else Serialize.JSON
    flag = Flag.ONEWAY if source.random() < 0.1 else 0
    return b"".join(encode(Command(code, opaque, flag, 0, 409, None, ext, body, serialize)))


def check_answers(written: bytes) -> str:
    """What came back is whole frames of known codes."""
    reader = FrameReader()
    reader.receive_data(written)
    reader.receive_eof()
    if reader.error is not None:
        raise Finding(f"half a frame as an answer: {written[-60:].hex()}")
    responses = [answer for answer in reader.commands_received() if answer.is_response]
    for answer in responses:
        if answer.code not in fuzz_ports.RESPONSE_CODES:
            raise Finding(f"response code {answer}")
        if answer.is_oneway:
            raise Finding(f"an answer to a oneway request: {answer}")
    return "answered" if responses else "silent"


def play(side: Side, data: bytes, *, pieces: int, seed: int) -> str:
    """One connection from its start to its end; what came of it."""
    side.connect()
    failures = side.traffic.handler_failures
    step = max(1, -(-len(data) // pieces))
    for at in range(0, len(data), step):
        side.play(data[at : at + step], seed=seed)
    reason = side.connection.close_reason
    if reason and reason not in REASONS:
        raise Finding(f"the connection was ended for {reason!r}")
    side.connection.eof_received()
    outcome = check_answers(bytes(side.transport.written))
    side.connection.connection_lost(None)
    if side.traffic.handler_failures != failures:
        raise Finding("a handler failed")
    if side.traffic.unfinished_bytes:
        raise Finding("bytes of a connection that has ended are still counted")
    return f"ended: {reason}" if reason else outcome


async def fuzz(
    directory: Path, *, seed: int, inputs_max: int | None = None, seconds: float | None = None
) -> Counter[str]:
    """Play inputs until their number or the time is over; outcomes by kind. Raises Finding."""
    source = random.Random(seed)
    outcomes: Counter[str] = Counter()
    left_over: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: left_over.append(context))
    side = Side(directory, is_short=True, flush="async", peer="127.0.0.1")
    await side.start()
    began_s = time.monotonic()
    count = 0
    try:
        while (inputs_max is None or count < inputs_max) and (
            seconds is None or time.monotonic() - began_s < seconds
        ):
            data = b"".join(seed_request(source, number) for number in range(source.choice([1, 1, 3])))
            if source.random() < 0.7:
                data = fuzz_ports.mutate(source, data)
            try:
                outcomes[play(side, data, pieces=source.choice([1, 1, 2, 7]), seed=count)] += 1
            except Finding as finding:
                finding.add_note(f"input {count} of seed {seed}: {data.hex()}")
                raise
            count += 1
            if count % TURN == 0:
                side.clock.advance(0.1)
                side.broker.expire()
                await asyncio.sleep(0)
                if left_over:
                    raise Finding(
                        f"left for later by input {count - TURN}..{count} of {seed}: {left_over[0]}"
                    )
    finally:
        await side.stop()
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    words = parser.parse_args()
    print(f"seed {words.seed}, {words.seconds:.0f} s", flush=True)
    # A line for every connection that is ended.
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as directory:
        outcomes = asyncio.run(fuzz(Path(directory), seed=words.seed, seconds=words.seconds))
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:8} {outcome}")


if __name__ == "__main__":
    main()
