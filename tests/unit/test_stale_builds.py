"""The check of tests/conftest.py that no test runs against an extension older than its sources."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """An extension that was built after all its sources."""
    package = tmp_path / "package"
    package.mkdir()
    sources = {
        "codec.pyx": "from package.layout cimport get\n",
        "codec.pxd": "from libc.stdint cimport int32_t\n",
        "layout.pxd": "cimport package.numbers\n",
        "numbers.pxd": "",
        "other.pyx": "",
    }
    for name, text in sources.items():
        (package / name).write_text(text)
        os.utime(package / name, (1000, 1000))
    extension = package / "codec.cpython-311-x86_64-linux-gnu.so"
    extension.touch()
    os.utime(extension, (1000, 1000))
    return extension


def test_an_extension_as_new_as_its_sources_is_fresh(checks: ModuleType, built: Path) -> None:
    assert not checks.is_stale(built, built.parent.parent)


@pytest.mark.parametrize("changed", ["codec.pyx", "codec.pxd", "layout.pxd", "numbers.pxd"])
def test_a_newer_source_makes_it_stale(checks: ModuleType, built: Path, changed: str) -> None:
    os.utime(built.parent / changed, (1001, 1001))
    assert checks.is_stale(built, built.parent.parent)


def test_a_newer_source_of_another_module_does_not(checks: ModuleType, built: Path) -> None:
    os.utime(built.parent / "other.pyx", (1001, 1001))
    assert not checks.is_stale(built, built.parent.parent)


def test_extensions_of_others_are_not_looked_at(checks: ModuleType, built: Path, tmp_path: Path) -> None:
    os.utime(built.parent / "codec.pyx", (1001, 1001))
    assert not checks.is_stale(built, tmp_path / "elsewhere")
