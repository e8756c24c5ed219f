"""A wheel of the tree in an environment of its own: everything is in it that a gateway needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from gateway_process import ROOT, GatewayProcess
from paho.mqtt import publish, subscribe

PACKAGES = ("iotmq", "loadtest")


def run(*words: str | Path) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `pip wheel .` builds it, but not packed, and without the modules that the tree has compiled.

    They are where the build is to put them, and newer than what they are made from.
    """
    directory = tmp_path_factory.mktemp("wheel")
    built = directory / "built"
    for package in PACKAGES:
        for module in (ROOT / package).rglob("*.so"):
            place = built / module.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(module, place)
    said = run(
        sys.executable, "setup.py",
        "egg_info", "--egg-base", directory,
        "build", "--build-lib", built, "--build-temp", directory / "objects",
        "bdist_wheel", "--compression", "stored", "--bdist-dir", directory / "tree", "--dist-dir", directory,
    )  # fmt: skip
    assert "building '" not in said, "a module was compiled once more"
    (made,) = directory.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; what the wheel depends on comes from the one the tests run in."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", directory / "bin" / "python")
    options = ("--disable-pip-version-check", "--quiet", "--no-index", "--no-deps", "--no-compile")
    run(*pip, "install", *options, wheel)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    # A path alone: what makes the tree itself importable there is not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory


def test_it_has_every_module_and_what_describes_their_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for suffix in ("py", "so", "pyi", "pxd")
        for file in (ROOT / package).rglob(f"*.{suffix}")
        if package == "iotmq" or suffix in ("py", "so")
    }
    static = ROOT / "iotmq" / "console" / "static"
    wanted |= {str(file.relative_to(ROOT)) for file in static.rglob("*") if file.is_file()}
    assert wanted - names == set()
    assert "iotmq/py.typed" in names


def test_a_gateway_starts_from_it_and_takes_a_message(environment: Path, tmp_path: Path) -> None:
    where = run(environment / "bin" / "python", "-I", "-c", "import iotmq; print(iotmq.__file__)")
    assert Path(where.strip()).is_relative_to(environment)
    program = (str(environment / "bin" / "iotmq"),)
    with GatewayProcess(tmp_path / "data", program=program) as gateway:
        publish.single("wheel/one", b"1", qos=1, retain=True, port=gateway.mqtt_port)
        assert subscribe.simple("wheel/one", port=gateway.mqtt_port).payload == b"1"
