"""A swarm in a process of its own: the plan goes in, reports come out (`loadtest.swarm.driven`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import gevent

from loadtest.swarm import Plan
from loadtest.swarm.driven import plan_text
from loadtest.users.faults import Fault

# How long a swarm may take to end beyond what its plan allows for what is under way.
_END_S: Final = 5.0
_ROOT: Final = Path(__file__).resolve().parents[2]


class SwarmProcess:
    """Runs a plan until it is `stop`ped."""

    def __init__(self, plan: Plan) -> None:
        self._end_s = plan.drain_timeout_s + _END_S
        # Whether everything was heard that it has to say.
        self._is_over = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.swarm", "driven"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The terminal's Ctrl-C is for Locust, which stops the swarm.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(plan_text(plan).encode() + b"\n")
        self._process.stdin.flush()

    def reports(self) -> Iterator[dict[str, Any]]:
        """Yield reports as they come; Fault when the process has ended without its last one."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            report = json.loads(line)
            self._is_over = report["state"] in ("over", "refused")
            yield report
            if self._is_over:
                return
        self._is_over = True
        raise Fault(f"a swarm's process ended with {self._process.wait()}")

    def stop(self) -> Iterator[dict[str, Any]]:
        """End it; yields what it still has to report."""
        assert self._process.stdin is not None
        try:
            with gevent.Timeout(self._end_s, False):
                try:
                    self._process.stdin.close()
                except BrokenPipeError:
                    pass
                if not self._is_over:
                    yield from self.reports()
                self._process.wait()
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
