"""The load engine in processes of its own, as benchmarks use it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from benchmarks import machine

_END_TIMEOUT_S: Final = 30.0


class LoadError(Exception):
    """The load generator failed, or found that it was not served as the protocol demands."""


class Holding:
    """A process with connections that stay; made by `holding`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ready(self) -> dict[str, Any]:
        """Wait until all connections are in: when that began and ended, in CLOCK_MONOTONIC nanoseconds."""
        return self._answer()

    def report(self) -> dict[str, Any]:
        """Counters and latencies so far."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except OSError as error:
            raise LoadError(f"the connections ended: {self._said()}") from error
        return self._answer()

    def end(self) -> dict[str, Any]:
        """Say good-bye for all connections; the last counters and latencies."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        report = self._answer()
        try:
            returned = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise LoadError(f"connections did not close: {error}") from error
        if returned:
            raise LoadError(f"the connections ended with {returned}: {self._said()}")
        return report

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        # The swarm gives up by itself when it is not let in; its output ends then.
        if not line:
            raise LoadError(f"connections were not made or kept: {self._said()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _said(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read().strip()[-1_000:]


@contextlib.contextmanager
def holding(port: int, *arguments: str, core: int | None = None) -> Iterator[Holding]:
    """A process of connections that stay, as fast as they are let in; wait for it with `ready`."""
    process = subprocess.Popen(
        [
            *command("hold", port, core=core), *arguments, "--until-input-ends", "--seconds", "900",
            "--keep-alive", "900",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=machine.ROOT,
    )  # fmt: skip
    try:
        yield Holding(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError, AttributeError):
                stream.close()  # type: ignore[union-attr]


def publish(port: int, *arguments: str, timeout_s: float, core: int | None = None) -> dict[str, Any]:
    """One run of publishers, and of subscribers that listen to them; its report."""
    try:
        done = subprocess.run(
            [*command("publish", port, core=core), *arguments],
            capture_output=True,
            text=True,
            cwd=machine.ROOT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise LoadError(f"the load did not end: {error}") from error
    if done.returncode:
        raise LoadError(f"the load ended with {done.returncode}: {done.stderr.strip()[-1_000:]}")
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def command(name: str, port: int, *, core: int | None = None) -> list[str]:
    """The words of one swarm command against a port, pinned to a core."""
    words = [sys.executable, "-m", "loadtest.swarm", name, "--port", str(port)]
    return words if core is None else [*words, "--core", str(core)]
