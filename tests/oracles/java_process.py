"""The scripts of tests/interop/java and the servers, with what Maven has fetched, each in its own home."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Self

import pytest
from eventually import eventually
from gateway_process import ROOT, free_port
from piped_client import PipedClient

from benchmarks.peers.rocketmq import broker_command, broker_environment, broker_files

# As quick to start as can be: these processes live for seconds, of which half would go to the compiler that
# makes long ones fast.
FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
LIBRARIES = ROOT / "build" / "interop" / "java"
HIVEMQ = ROOT / "build" / "interop" / "hivemq"
ROCKETMQ_5 = ROOT / "build" / "interop" / "rocketmq5"
CLASSES = ROOT / "build" / "interop" / "java-classes"
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

hivemq_marks = [
    *java_marks[:2],
    pytest.mark.skipif(
        not list(HIVEMQ.glob("hivemq-mqtt-client-*.jar")),
        reason="hivemq-mqtt-client is not installed (tools/setup.sh dev, with Maven)",
    ),
]
"""For tests that start it."""

rocketmq_5_marks = [
    *java_marks[:2],
    pytest.mark.skipif(
        not list(ROCKETMQ_5.glob("rocketmq-tools-*.jar")),
        reason="rocketmq-tools 5 is not installed (tools/setup.sh dev, with Maven)",
    ),
]
"""For tests that start the client of RocketMQ 5."""


@cache
def compiled(script: str, libraries: Path) -> Path:
    """The directory of a script's classes: `java FILE.java` would compile again with each start."""
    sources = [SCRIPTS / f"{script}.java", SCRIPTS / "Pipe.java"]
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    made = CLASSES / f"{script}-{libraries.name}-{state}"
    if not made.exists():
        CLASSES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CLASSES) as directory:
            words = ["javac", "-J-XX:TieredStopAtLevel=1", "-cp", f"{libraries}/*", "-d", f"{directory}/made"]
            subprocess.run([*words, *sources], check=True, timeout=120)
            # Another process of pytest may have been faster.
            with contextlib.suppress(OSError):
                Path(directory, "made").rename(made)
    assert made.is_dir()
    return made


class JavaProcesses:
    """Processes that speak to one server; use `java_processes`."""

    def __init__(
        self, stack: ExitStack, directory: Path, server: str, *, tools_yml: str, libraries: Path
    ) -> None:
        self._stack = stack
        self._directory = directory
        self._server = server
        self._tools_yml = tools_yml
        self._libraries = libraries
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
            *FAST_START,
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            f"-Djava.io.tmpdir={home}",
            "-Drocketmq.client.logUseSlf4j=true",
            # Who was not told of a change, or found a queue locked, looks again; by default after 20 s.
            "-Drocketmq.client.rebalance.waitInterval=1000",
        ]
        classes = f"{compiled(script, self._libraries)}:{self._libraries}/*"
        return self._stack.enter_context(
            PipedClient(
                ["java", *options, "-cp", classes, script, self._server],
                directory=home,
                environment={**os.environ, "HOME": str(home)},
            )
        )


@contextmanager
def java_processes(
    directory: Path, server: str, *, tools_yml: str = "", libraries: Path = LIBRARIES
) -> Iterator[JavaProcesses]:
    """Ends those that were started. `server` is the registry, or what else the scripts speak to.

    `tools_yml` is where mqadmin finds its keys.
    """
    with ExitStack() as stack:
        yield JavaProcesses(stack, directory, server, tools_yml=tools_yml, libraries=libraries)


RunMqadmin = Callable[..., str]


def mqadmin_of(javas: JavaProcesses) -> RunMqadmin:
    """Runs one command of mqadmin, given as words; what it prints."""
    client = javas.start("MqAdmin")

    def run(*words: str) -> str:
        printed: str = client.call("run", words=list(words), within_s=60)
        assert "Exception" not in printed, printed
        return printed

    return run


class JavaServer(ABC):
    """A server of RocketMQ in a home of its own; `with` starts it, and ends it by SIGTERM as scripts do."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.home = home
        self._log = home / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def files(self) -> Mapping[str, str]:
        """The files below its home."""

    @abstractmethod
    def command(self) -> list[str]:
        """What runs it."""

    def __enter__(self) -> Self:
        self.launch()
        assert self._process is not None
        try:
            eventually(self._is_ready, f"{type(self).__name__} is ready")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def launch(self) -> None:
        """Start it without waiting."""
        for path, text in self.files().items():
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            (self.home / path).write_text(text)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.home,
                env={**os.environ, **broker_environment(self.home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def process_id(self) -> int:
        """Its number for the system."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process is not None
        text = self._log.read_text(errors="replace")
        assert self._process.poll() is None, text[-4000:]
        return "boot success" in text

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()


class JavaBroker(JavaServer):
    """A Java broker over a data directory."""

    def __init__(
        self, data: Path, *settings: str, heap: str = "512m", options: Sequence[str] = FAST_START
    ) -> None:
        """`settings` are lines of broker.conf; they win over those that are the default here.

        A benchmark has no `options`: those that start quickly make it slow.
        """
        super().__init__(data.with_name(data.name + "-home"))
        self.data = data
        self._settings = settings
        self._heap = heap
        self._options = options

    def files(self) -> Mapping[str, str]:
        return broker_files(
            port=self.port,
            ha_port=free_port(),
            data=self.data,
            settings=(
                *(f"mappedFileSizeCommitLog={16 << 20}", "maxHashSlotNum=1000", "maxIndexNum=4000"),
                *self._settings,
            ),
        )

    def command(self) -> list[str]:
        java, *words = broker_command(home=self.home, libraries=LIBRARIES, heap=self._heap)
        return [java, *self._options, *words]


class JavaNameServer(JavaServer):
    """A name server of RocketMQ."""

    def files(self) -> Mapping[str, str]:
        return {
            "conf/logback_namesrv.xml": '<configuration><root level="OFF"/></configuration>',
            "conf/namesrv.conf": f"listenPort={self.port}\n",
        }

    def command(self) -> list[str]:
        return [
            *("java", *FAST_START, "-Xms32m", "-Xmx256m"),
            *(f"-Duser.home={self.home}", f"-Drocketmq.home.dir={self.home}", "-cp", f"{LIBRARIES}/*"),
            *("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(self.home / "conf" / "namesrv.conf")),
        ]
