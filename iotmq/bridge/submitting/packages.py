"""The archive that executors get: this package with its compiled modules, and the packages it needs.

Executors cannot import compiled modules from a wheel or a zip on their path, so they unpack the archive
into their working directory. It fits machines with the same system, processor and version of Python.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import time
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import iotmq
from iotmq.errors import ConfigError

#: Where executors unpack the archive, below their working directory.
PACKAGES_DIRECTORY: Final = "iotmq-packages"
#: What the source needs on executors besides what Spark clusters usually have.
_ALWAYS: Final = ("msgspec", "typing_extensions")
#: What Spark clusters usually have for Python; packed when asked for.
DEPENDENCIES: Final = ("numpy", "pyarrow", "protobuf", "fastavro")

_OWN: Final = ("iotmq", "pyspark_iotmq")
_SUFFIXES: Final = frozenset({".py", ".so", ".typed"})
# Tests and headers: half of the size.
_LEFT_OUT: Final = frozenset({"tests", "include", "__pycache__"})
_KEPT_S: Final = 30 * 86_400.0
# The earliest time that a zip can hold: equal contents give equal archives.
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)


def packed(directory: Path, *, with_dependencies: bool) -> Path:
    """Return the archive in `directory`, made if there is none for what is installed now."""
    files = _own_files()
    for name in (*_ALWAYS, *(DEPENDENCIES if with_dependencies else ())):
        files |= _distribution_files(name)
    archive = directory / f"packages-{_fingerprint(files)}.zip"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _forget_old(directory)
    if archive.exists():
        os.utime(archive)
        return archive
    aside = archive.with_suffix(f".{os.getpid()}")
    try:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
            for name, path in sorted(files.items()):
                zipped.writestr(zipfile.ZipInfo(name, _ZIP_TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
        aside.replace(archive)
    finally:
        aside.unlink(missing_ok=True)
    return archive


def _own_files() -> dict[str, Path]:
    """Files of our packages by their names in the archive, wherever those are installed."""
    top = Path(iotmq.__file__).parent.parent
    return {
        str(path.relative_to(top)): path
        for package in _OWN
        for path in (top / package).rglob("*")
        if _is_wanted(path.relative_to(top))
    }


def _distribution_files(name: str) -> dict[str, Path]:
    try:
        files: Iterable[importlib.metadata.PackagePath] = importlib.metadata.files(name) or ()
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"the Python package {name} is not installed: pip install 'iotmq[spark]'") from None
    return {
        str(file): Path(str(file.locate()))
        for file in files
        if ".." not in file.parts and not _LEFT_OUT.intersection(file.parts) and file.suffix != ".pyc"
    }


def _is_wanted(path: Path) -> bool:
    return path.suffix in _SUFFIXES and not _LEFT_OUT.intersection(path.parts)


def _fingerprint(files: Mapping[str, Path]) -> str:
    """Return a name that changes with the contents of any file, without reading them."""
    known = hashlib.sha256(sys.version.encode())
    for name, path in sorted(files.items()):
        found = path.stat()
        known.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return known.hexdigest()[:16]


def _forget_old(directory: Path) -> None:
    for path in directory.glob("packages-*"):
        if path.stat().st_mtime < time.time() - _KEPT_S:
            path.unlink(missing_ok=True)
