"""A standalone Spark cluster on loopback: Spark's own master and two workers, each a process."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Self

from eventually import eventually
from gateway_process import free_port
from pyspark.find_spark_home import _find_spark_home

from iotmq.bridge.spark_session import ensure_java

_STARTS_WITHIN_S = 60.0
_STOPS_WITHIN_S = 30.0


class StandaloneCluster:
    """Master and workers; `with` starts them and ends them for good."""

    def __init__(self, directory: Path, *, workers: int = 2) -> None:
        self.directory = directory
        self.port = free_port()
        self.page_port = free_port()
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        ensure_java()
        try:
            self._launch("master", "Master", "--port", str(self.port), "--webui-port", str(self.page_port))
            eventually(lambda: "ALIVE" in self._page(), "a master", within_s=_STARTS_WITHIN_S)
            for number in range(self._workers):
                self._launch(
                    f"worker-{number}", "Worker", "--cores", "1", "--memory", "600m",
                    "--work-dir", str(self.directory / f"work-{number}"),
                    "--webui-port", str(free_port()), self.master,
                )  # fmt: skip
            eventually(self._has_all_workers, "all workers", within_s=_STARTS_WITHIN_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_STOPS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        found = []
        for worker in self._processes[1:]:
            children = Path(f"/proc/{worker.pid}/task").glob("*/children")
            found += [int(child) for text in children for child in text.read_text().split()]
        return found

    def logs_of_executors(self) -> str:
        """What all executors have written so far."""
        return "".join(path.read_text() for path in sorted(self.directory.glob("work-*/app-*/*/stderr")))

    def _launch(self, name: str, program: str, *words: str) -> None:
        environment = dict(os.environ) | {
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
        }
        # An executor with the environment of the tests could find packages that nobody has sent to it.
        for variable in ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON"):
            environment.pop(variable, None)
        command = [
            f"{_find_spark_home()}/bin/spark-class",
            f"org.apache.spark.deploy.{program.lower()}.{program}",
            *("--host", "127.0.0.1"),
            *words,
        ]
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.directory,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _page(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.page_port}/json/", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def _has_all_workers(self) -> bool:
        return len(re.findall(r'"state" : "ALIVE"', self._page())) >= self._workers
