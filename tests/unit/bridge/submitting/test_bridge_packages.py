"""The archive for executors, and how long it stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from iotmq.bridge.submitting import packages
from iotmq.bridge.submitting.packages import packed
from iotmq.errors import ConfigError


def test_the_archive_has_what_the_source_imports_besides_spark(tmp_path: Path) -> None:
    archive = packed(tmp_path, with_dependencies=False)
    with zipfile.ZipFile(archive) as zipped:
        names = set(zipped.namelist())
        zipped.extractall(tmp_path / "unpacked")
    assert {"iotmq/bridge/source.py", "pyspark_iotmq/__init__.py"} <= names
    assert not [
        name for name in names if name.startswith("..") or "__pycache__" in name or name.endswith(".pyx")
    ]
    # Compiled modules work from there, with nothing else on the path but what clusters have.
    program = (
        "import iotmq.message.records.columns as module, msgspec; print(module.__file__, msgspec.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "unpacked")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert all(word.startswith(str(tmp_path)) for word in done.stdout.split())


def test_an_archive_is_made_once_for_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "iotmq" / "__init__.py"
    source.parent.mkdir()
    source.write_text("")
    monkeypatch.setattr(packages.iotmq, "__file__", str(source))
    cache = tmp_path / "cache"
    first = packed(cache, with_dependencies=False)
    before = first.stat().st_ino
    assert packed(cache, with_dependencies=False) == first
    assert first.stat().st_ino == before
    source.write_text("changed = True")
    second = packed(cache, with_dependencies=False)
    assert second != first
    # A driver may still send the old one; after a month none does.
    assert first.exists()
    old_s = time.time() - 31 * 86_400
    os.utime(first, (old_s, old_s))
    packed(cache, with_dependencies=False)
    assert list(cache.iterdir()) == [second]


def test_a_package_that_is_not_there_is_said_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "DEPENDENCIES", ("no-such-package",))
    with pytest.raises(ConfigError, match="no-such-package is not installed: pip install"):
        packed(tmp_path, with_dependencies=True)
