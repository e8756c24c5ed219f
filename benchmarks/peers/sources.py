"""Where peers come from: the system, package registries, or a path that somebody gives."""

import hashlib
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers.server import PeerError

FETCH_COMMAND: Final = "python -m benchmarks.peers"
_FETCH_TIMEOUT_S: Final = 900.0
_STAMP: Final = "complete"
_ARCHIVE_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Installed:
    """A program of the system."""

    program: str
    package: str

    @property
    def origin(self) -> str:
        return f"Debian: `{self.package}`"

    def fetch(self, directory: Path) -> None:
        """Nothing: system packages are installed by tools/setup.sh."""
        self.find(directory)

    def find(self, _directory: Path) -> Path:
        found = shutil.which(self.program) or shutil.which(self.program, path="/usr/sbin:/usr/local/sbin")
        if found is None:
            raise PeerError(f"{self.program} is not installed (Debian: apt install {self.package})")
        return Path(found)


@dataclass(frozen=True, slots=True)
class Given:
    """A program that somebody has built: an environment variable says where."""

    variable: str
    title: str
    program: str

    @property
    def origin(self) -> str:
        return f"given: `{self.variable}`"

    def fetch(self, directory: Path) -> None:
        """Nothing: it cannot be had from a package registry."""
        self.find(directory)

    def find(self, _directory: Path) -> Path:
        text = os.environ.get(self.variable, "")
        if not text:
            raise PeerError(
                f"{self.title} is in no package registry: build it, and set {self.variable} to the program "
                f"{self.program}, or to the tree it was built in"
            )
        path = Path(text)
        places = [path] if path.is_file() else sorted(path.rglob(self.program))
        for place in places:
            if place.is_file() and os.access(place, os.X_OK):
                return place.resolve()
        raise PeerError(f"{self.variable} is {text}, and there is no program {self.program}")


@dataclass(frozen=True, slots=True)
class DebianSource:
    """The source that a package of Debian is built from, built here by CMake."""

    path: str
    """In the pool of a mirror."""
    sha256: str
    left_out: tuple[str, ...]
    """Of its options WITH_..."""
    headers: Mapping[str, str]
    """Headers it needs, and the packages that have them."""
    program: str
    """In the tree that was built."""

    @property
    def origin(self) -> str:
        return f"Debian, source: `{Path(self.path).name}`"

    def fetch(self, directory: Path) -> None:
        if _is_complete(directory, self.sha256):
            return
        _needs("cmake", "CMake")
        for header, package in self.headers.items():
            if not Path("/usr/include", header).exists():
                raise PeerError(f"{header} is not installed (Debian: apt install {package})")
        archive = _emptied(directory) / Path(self.path).name
        with urllib.request.urlopen(_debian_mirror() + "pool/" + self.path, timeout=60.0) as answer:
            archive.write_bytes(answer.read(_ARCHIVE_BYTES_MAX))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != self.sha256:
            raise PeerError(f"{archive.name} has the SHA-256 {found}, not {self.sha256}")
        source = directory / "source"
        source.mkdir()
        _run(["tar", "-xf", str(archive), "--strip-components=1", "-C", str(source)])
        build = str(directory / "build")
        _run(["cmake", "-S", str(source), "-B", build, "-DCMAKE_BUILD_TYPE=Release",
              *(f"-DWITH_{option}=OFF" for option in self.left_out)])  # fmt: skip
        _run(["cmake", "--build", build, "--parallel", "2"])
        (directory / _STAMP).write_text(self.sha256)

    def find(self, directory: Path) -> Path:
        return _found(directory, self.sha256) / "build" / self.program


@dataclass(frozen=True, slots=True)
class Wheel:
    """A Python package, in a directory of its own."""

    requirement: str

    @property
    def origin(self) -> str:
        return f"PyPI: `{self.requirement}`"

    def fetch(self, directory: Path) -> None:
        if not _is_complete(directory, self.requirement):
            _run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet",
                  "--no-deps", "--target", str(_emptied(directory)), self.requirement])  # fmt: skip
            (directory / _STAMP).write_text(self.requirement)

    def find(self, directory: Path) -> Path:
        return _found(directory, self.requirement)


@dataclass(frozen=True, slots=True)
class GoProgram:
    """A program of a Go module, built here."""

    module: str
    version: str
    program: str

    @property
    def origin(self) -> str:
        return f"Go: `{self.module}@{self.version}`"

    def fetch(self, directory: Path) -> None:
        what = f"{self.module}@{self.version}"
        if not _is_complete(directory, what):
            _needs("go", "Go")
            _run(["go", "install", what], {"GOBIN": str(_emptied(directory))})
            (directory / _STAMP).write_text(what)

    def find(self, directory: Path) -> Path:
        return _found(directory, f"{self.module}@{self.version}") / self.program


@dataclass(frozen=True, slots=True)
class Jars:
    """Java libraries from Maven, with all they need: ``group:artifact:version`` each."""

    coordinates: tuple[str, ...]

    @property
    def origin(self) -> str:
        return "Maven: " + ", ".join(f"`{one}`" for one in self.coordinates)

    def fetch(self, directory: Path) -> None:
        what = "\n".join(self.coordinates)
        if not _is_complete(directory, what):
            _needs("java", "Java")
            _needs("mvn", "Maven")
            project = _emptied(directory) / "pom.xml"
            project.write_text(pom(self.coordinates))
            _run(["mvn", "-B", "-q", "-f", str(project), "dependency:copy-dependencies",
                  "-DincludeScope=runtime", f"-DoutputDirectory={directory}"])  # fmt: skip
            (directory / _STAMP).write_text(what)

    def find(self, directory: Path) -> Path:
        _needs("java", "Java")
        return _found(directory, "\n".join(self.coordinates))


def pom(coordinates: Sequence[str]) -> str:
    """The project that Maven reads."""
    names = ("groupId", "artifactId", "version")
    dependencies = "".join(
        "<dependency>"
        + "".join(f"<{name}>{word}</{name}>" for name, word in zip(names, one.split(":"), strict=True))
        + "</dependency>\n"
        for one in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n<modelVersion>4.0.0</modelVersion>\n'
        "<groupId>iotmq</groupId><artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>\n"
        f"<dependencies>\n{dependencies}</dependencies>\n</project>\n"
    )


def _is_complete(directory: Path, what: str) -> bool:
    stamp = directory / _STAMP
    return stamp.is_file() and stamp.read_text() == what


def _found(directory: Path, what: str) -> Path:
    if not _is_complete(directory, what):
        raise PeerError(f"{directory.name} has not been fetched: {FETCH_COMMAND} {directory.name}")
    return directory


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _needs(program: str, name: str) -> None:
    if shutil.which(program) is None:
        raise PeerError(f"{name} is not installed (no {program} in PATH)")


def _debian_mirror() -> str:
    """The address of the archive that this system's packages come from."""
    _needs("apt-get", "APT")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    known = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60.0, check=False).stdout
    for address in known.split():
        if address.endswith("/debian/"):
            return address
    raise PeerError("APT knows no mirror of Debian: add one to its sources")


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{command[0]} did not end within {_FETCH_TIMEOUT_S} s") from error
    if done.returncode:
        raise PeerError(f"{' '.join(command[:3])} failed: {done.stdout.strip()[-1_000:]}")
