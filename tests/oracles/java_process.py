"""The scripts of tests/interop/java, with the libraries of rocketmq 4.9.8 (Maven), each in its own home."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from gateway_process import ROOT
from piped_client import PipedClient

LIBRARIES = ROOT / "build" / "interop" / "java"
SCRIPTS = ROOT / "tests" / "interop" / "java"

java_marks = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
    pytest.mark.skipif(
        not list(LIBRARIES.glob("rocketmq-tools-*.jar")),
        reason="rocketmq-tools is not installed (tools/setup.sh dev, with Maven)",
    ),
]
"""For tests that start such processes."""


class JavaProcesses:
    """Processes that speak to one registry; use `java_processes`."""

    def __init__(self, stack: ExitStack, directory: Path, registry: str, *, tools_yml: str) -> None:
        self._stack = stack
        self._directory = directory
        self._registry = registry
        self._tools_yml = tools_yml
        self._count = 0

    def start(self, script: str) -> PipedClient:
        """Run a script; returns when it is ready."""
        self._count += 1
        home = self._directory / f"{script}-{self._count}"
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "logback_tools.xml").write_text('<configuration><root level="OFF"/></configuration>')
        if self._tools_yml:
            (home / "conf" / "tools.yml").write_text(self._tools_yml)
        options = [
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            f"-Djava.io.tmpdir={home}",
            "-Drocketmq.client.logUseSlf4j=true",
        ]
        return self._stack.enter_context(
            PipedClient(
                ["java", *options, "-cp", f"{LIBRARIES}/*", str(SCRIPTS / f"{script}.java"), self._registry],
                directory=home,
                environment={**os.environ, "HOME": str(home)},
            )
        )


@contextmanager
def java_processes(directory: Path, registry: str, *, tools_yml: str = "") -> Iterator[JavaProcesses]:
    """Ends those that were started. `tools_yml` is where mqadmin finds its keys."""
    with ExitStack() as stack:
        yield JavaProcesses(stack, directory, registry, tools_yml=tools_yml)


def mqadmin_of(javas: JavaProcesses) -> Callable[..., str]:
    """Runs one command of mqadmin, given as words; what it prints."""
    client = javas.start("MqAdmin")

    def run(*words: str) -> str:
        printed: str = client.call("run", words=list(words), within_s=60)
        assert "Exception" not in printed, printed
        return printed

    return run
