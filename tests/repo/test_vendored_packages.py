"""Packages of the console: what is copied is what the lock file names, and pages import those."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "iotmq" / "console" / "static"
VENDOR = STATIC / "vendor"
TOOLS = ROOT / "tools" / "vendor"
IMPORTED = re.compile(r"""^(?:import|export)\b(?:[^;"'()]*\bfrom)?\s*["']([^"']+)["']""", re.MULTILINE)


@pytest.fixture(scope="module")
def copying() -> ModuleType:
    spec = importlib.util.spec_from_file_location("copy_packages", TOOLS / "copy_packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def manifest() -> dict[str, str]:
    file = VENDOR / "manifest.json"
    if not file.exists():
        pytest.skip("the packages of the console are not there: make vendor")
    return dict(json.loads(file.read_text()))


def test_versions_are_exact_and_those_of_the_lock_file(copying: ModuleType) -> None:
    wanted = json.loads((TOOLS / "package.json").read_text())
    locked = copying.locked_versions()
    for name, version in {**wanted["dependencies"], **wanted["devDependencies"]}.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
        assert locked[name] == version


def test_the_lock_file_has_digests_and_names_no_registry() -> None:
    text = (TOOLS / "package-lock.json").read_text()
    assert '"resolved"' not in text
    for name, each in json.loads(text)["packages"].items():
        assert not name or each["integrity"].startswith("sha512-"), name


def test_the_manifest_has_every_file_with_its_digest(manifest: dict[str, str]) -> None:
    files = {
        str(file.relative_to(VENDOR)): "sha384-" + base64.b64encode(_digest(file)).decode()
        for file in VENDOR.rglob("*")
        if file.is_file() and file.name != "manifest.json"
    }
    assert files == manifest


def test_the_folders_are_those_of_the_lock_file(copying: ModuleType, manifest: dict[str, str]) -> None:
    locked = copying.locked_versions()
    wanted = {copying.directory_name(name, locked[name]) for name in copying.PACKAGES}
    assert {name.partition("/")[0] for name in manifest} == wanted
    assert {f"{each}/LICENSE" for each in wanted} <= manifest.keys()


def test_pages_import_what_is_there_and_nothing_by_a_bare_name(manifest: dict[str, str]) -> None:
    for file in [*STATIC.rglob("*.js"), *STATIC.rglob("*.mjs"), STATIC / "index.html"]:
        text = file.read_text()
        for name in re.findall(r"vendor/([\w.-]+/[\w.-]+)", text):
            assert name in manifest, (file, name)
        for imported in IMPORTED.findall(text):
            assert imported.startswith("."), (file, imported)


def _digest(file: Path) -> bytes:
    return hashlib.sha384(file.read_bytes()).digest()
