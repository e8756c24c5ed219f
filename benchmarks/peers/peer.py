"""A peer: how it is got, how it is configured at its fastest and durably, and how it is started."""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from benchmarks import machine
from benchmarks.peers.server import PeerError, Server, free_port_beside, free_ports, running

FAST: Final = "fast"
DURABLE: Final = "durable"
SETTINGS: Final = (FAST, DURABLE)


class Source(Protocol):
    """Where a peer comes from."""

    @property
    def origin(self) -> str:
        """That in words, as Markdown."""

    def fetch(self, directory: Path) -> None:
        """Put it into the directory, quickly when it is there. Raises PeerError when it cannot be had."""

    def find(self, directory: Path) -> Path:
        """What `Peer.launch` starts: a program, or a directory with jars or Python packages.

        Raises PeerError, which says how it is got, when it is not there.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a server is to run, and how it is to be configured."""

    directory: Path
    """Of this run alone, on a real disk."""
    port: int
    """Where the load connects to."""
    spare_port: int
    """For a second protocol that the server insists on."""
    setting: str = FAST
    is_websocket: bool = False
    is_mqtt5: bool = False
    more: tuple[str, ...] = ()
    """Further lines of the configuration."""

    @property
    def is_durable(self) -> bool:
        return self.setting == DURABLE


@dataclass(frozen=True, slots=True)
class Launch:
    """The command of a server, and the files it reads: relative paths and their text."""

    command: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Peer:
    """One server to be compared with, in one protocol of its."""

    name: str
    title: str
    source: Source
    launch: Callable[[Path, Place], Launch]
    settings: Mapping[str, str]
    """What its settings are, in words; a peer that cannot keep anything has no durable one."""
    versions: tuple[str, ...] = ()
    """Of MQTT; none for a peer on the native side."""
    has_websocket: bool = False
    warmup_s: float = 0.0
    """What it takes under load until it is as fast as it will be: Java compiles meanwhile."""
    ports_beside: tuple[int, ...] = ()
    """What it listens at, too, whatever it is told: offsets to its port."""

    def fetch(self) -> None:
        """Make it ready below build/peers."""
        self.source.fetch(self._home)

    def find(self) -> Path:
        """What is started; raises PeerError when it is not there."""
        return self.source.find(self._home)

    @property
    def _home(self) -> Path:
        return machine.PEERS / self.name


def those_there(wanted: Iterable[Peer]) -> Iterator[Peer]:
    """The peers that can be started. Of the others it is said why not."""
    for peer in wanted:
        try:
            peer.find()
        except PeerError as error:
            print(f"{peer.title}: SKIPPED: {error}", file=sys.stderr, flush=True)
        else:
            yield peer


@contextlib.contextmanager
def started(
    peer: Peer,
    *,
    core: int | None,
    setting: str = FAST,
    is_websocket: bool = False,
    is_mqtt5: bool = False,
    more: Sequence[str] = (),
) -> Iterator[Server]:
    """The peer over an empty directory, alone on its core, from its first accepted connection on."""
    if setting not in peer.settings:
        raise PeerError(f"{peer.title} has no {setting} setting")
    program = peer.find()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f"data-{peer.name}-", dir=machine.RESULTS, ignore_cleanup_errors=True
    ) as name:
        port, spare_port = free_ports(2)
        if peer.ports_beside:
            port = free_port_beside(*peer.ports_beside)
        place = Place(
            directory=Path(name), port=port, spare_port=spare_port, setting=setting,
            is_websocket=is_websocket, is_mqtt5=is_mqtt5, more=tuple(more),
        )  # fmt: skip
        launch = peer.launch(program, place)
        for path, text in launch.files.items():
            file = place.directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        with running(
            peer.name, launch.command, core, port, place.directory, environment=launch.environment
        ) as server:
            yield server
