"""Foreign MQTT clients that all do the same when told: libraries behind a pipe, and the command-line pairs.

`Library` has any number of clients by name in one process; `CommandLine` makes a process per subscription and
per message.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from eventually import eventually
from piped_client import PipedClient


class Message(NamedTuple):
    topic: str | None
    payload: str
    qos: int | None
    """None where the client does not say, as with the others."""
    is_retained: bool | None


# The will's topic, payload, qos and retain.
Will = Mapping[str, Any]


class Clients(Protocol):
    """One kind of client."""

    def connect(
        self, name: str, port: int, client_id: str, *, clean: bool = True, will: Will | None = None
    ) -> None: ...
    def subscribe(self, name: str, topic_filter: str, qos: int) -> None: ...
    def unsubscribe(self, name: str, topic_filter: str) -> None: ...
    def publish(
        self, name: str, topic: str, payload: str, qos: int = 1, *, is_retained: bool = False
    ) -> None: ...
    def messages(self, name: str, count: int) -> list[Message]: ...
    def drop(self, name: str) -> None: ...
    def disconnect(self, name: str) -> None: ...


class Library:
    """A library behind a pipe, speaking one version."""

    def __init__(self, pipe: PipedClient, version: int) -> None:
        self._pipe = pipe
        self._version = version

    def connect(
        self, name: str, port: int, client_id: str, *, clean: bool = True, will: Will | None = None
    ) -> None:
        is_present = self._pipe.call(
            "connect",
            name=name,
            port=port,
            version=self._version,
            client_id=client_id,
            clean=clean,
            will=will,
        )
        assert not (clean and is_present)

    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        assert self._pipe.call("subscribe", name=name, topic_filter=topic_filter, qos=qos) == qos

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        self._pipe.call("unsubscribe", name=name, topic_filter=topic_filter)

    def publish(
        self, name: str, topic: str, payload: str, qos: int = 1, *, is_retained: bool = False
    ) -> None:
        self._pipe.call("publish", name=name, topic=topic, payload=payload, qos=qos, retain=is_retained)

    def messages(self, name: str, count: int) -> list[Message]:
        lines = self._pipe.wait_for("message", count, client=name)
        return [Message(line["topic"], line["payload"], line["qos"], line["retain"]) for line in lines]

    def drop(self, name: str) -> None:
        self._pipe.call("drop", name=name)

    def disconnect(self, name: str) -> None:
        self._pipe.call("disconnect", name=name)


class Tool(NamedTuple):
    """A pair of commands. Subscribers write a line per message: topic, payload, and what `line` says."""

    publish: str
    subscribe: str
    version: str
    will_words: Sequence[str]
    """The flags for the will's topic, payload and QoS."""
    kept_words: Sequence[str] | None
    """Those that ask for a session that is kept; None: it cannot."""
    line_words: Sequence[str]
    read_line: Callable[[str], Message | None]
    """None for a line about something else."""


class CommandLine:
    """A pair of commands, speaking one version."""

    def __init__(
        self, tool: Tool, directory: Path, subscribed: Callable[[int, Callable[[], None]], None]
    ) -> None:
        """`subscribed(port, start)` calls `start` and returns when that front end has a subscription more."""
        self._tool = tool
        self._directory = directory
        self._subscribed = subscribed
        self._words: dict[str, tuple[int, list[str]]] = {}
        self._kept: dict[str, list[str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def connect(
        self, name: str, port: int, client_id: str, *, clean: bool = True, will: Will | None = None
    ) -> None:
        words = ["-h", "127.0.0.1", "-p", str(port), "-i", client_id, "-V", self._tool.version]
        if will is not None:
            for flag, value in zip(self._tool.will_words, ("topic", "payload", "qos"), strict=True):
                words += [flag, str(will[value])]
        if not clean:
            assert self._tool.kept_words is not None
            words += self._tool.kept_words
        self._words[name] = (port, words)
        if client_id in self._kept and not clean:
            # A session that goes on: subscribing is what such a command does.
            self._start(name, self._kept[client_id])

    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        words = ["-t", topic_filter, "-q", str(qos)]
        self._kept[self._words[name][1][5]] = words
        self._subscribed(self._words[name][0], lambda: self._start(name, words))

    def _start(self, name: str, words: Sequence[str]) -> None:
        command = [self._tool.subscribe, *self._words[name][1], *words, *self._tool.line_words]
        with (self._directory / name).open("ab") as output:
            self._running[name] = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )

    def unsubscribe(self, name: str, topic_filter: str) -> None:
        raise AssertionError("such a command cannot unsubscribe")

    def publish(
        self, name: str, topic: str, payload: str, qos: int = 1, *, is_retained: bool = False
    ) -> None:
        words = ["-t", topic, "-m", payload, "-q", str(qos), *(["-r"] if is_retained else [])]
        done = subprocess.run(
            [self._tool.publish, *self._words[name][1], *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def messages(self, name: str, count: int) -> list[Message]:
        file = self._directory / name

        def read() -> list[Message] | None:
            lines = file.read_text().splitlines() if file.exists() else []
            said = [message for line in lines if (message := self._tool.read_line(line)) is not None]
            return said if len(said) >= count else None

        found = eventually(read, f"{count} messages for {name}")
        assert found is not None
        return found

    def drop(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def disconnect(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(20)

    def close(self) -> None:
        for name in list(self._running):
            self.drop(name)
