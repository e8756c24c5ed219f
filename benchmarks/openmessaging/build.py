"""Build the benchmark from a checkout: its framework and the two drivers, from sources nobody has touched.

The drivers of other systems stay out, since their libraries are many and some are nowhere to be had. So do
the checks of its style. Only the `pom.xml` of the copy that is built are others.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

DRIVERS: Final = ("driver-rocketmq", "driver-mqtt5")
FRAMEWORK: Final = "benchmark-framework"
MODULES: Final = ("driver-api", *DRIVERS, FRAMEWORK)
CLASS_PATH: Final = "target/iotmq-class-path.txt"
_CHECKS: Final = {
    "jacoco-maven-plugin",
    "license-maven-plugin",
    "maven-checkstyle-plugin",
    "maven-enforcer-plugin",
    "spotbugs-maven-plugin",
    "spotless-maven-plugin",
}
_NAMESPACE: Final = "http://maven.apache.org/POM/4.0.0"
_BUILD_S: Final = 1_200


class UnavailableError(Exception):
    """The benchmark cannot be had here; the text is the reason."""


def build(checkout: Path | None, directory: Path) -> str:
    """The class path of the benchmark, built in `directory` from a checkout of it."""
    if checkout is None:
        raise UnavailableError(
            "it is in no package registry: name a checkout of its repository (openmessaging/benchmark)"
        )
    missing = [name for name in MODULES if not (checkout / name / "pom.xml").exists()]
    if missing:
        raise UnavailableError(f"{checkout} is no checkout of it, or one too old: no {', '.join(missing)}")
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise UnavailableError(f"{program} is not installed (Debian: default-jdk-headless, maven)")
    copy(checkout, directory)
    command = [
        "mvn", "-B", "-q", "-Dmaven.test.skip=true", "package",
        "dependency:build-classpath", f"-Dmdep.outputFile={CLASS_PATH}",
    ]  # fmt: skip
    log = directory / "build.log"
    with log.open("wb") as output:
        done = subprocess.run(
            command, cwd=directory, stdout=output, stderr=output, timeout=_BUILD_S, check=False
        )
    if done.returncode:
        text = log.read_text(errors="replace")[-2_000:]
        raise UnavailableError(f"Maven could not build it; the end of {log}:\n{text}")
    framework = directory / FRAMEWORK
    return f"{framework / 'target' / 'classes'}:{(framework / CLASS_PATH).read_text().strip()}"


def copy(checkout: Path, directory: Path) -> None:
    """Copy what is built, with `pom.xml` that know of nothing else."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in checkout.iterdir():
        if file.is_file():
            shutil.copy2(file, directory)
    for name in MODULES:
        shutil.copytree(
            checkout / name, directory / name, ignore=shutil.ignore_patterns("target"), dirs_exist_ok=True
        )
    root, framework = directory / "pom.xml", directory / FRAMEWORK / "pom.xml"
    root.write_text(root_pom(root.read_text()))
    framework.write_text(framework_pom(framework.read_text()))


def root_pom(text: str) -> str:
    """The project's, with our modules only and without checks of style."""
    pom = _parsed(text)
    modules = pom.find(_tag("modules"))
    if modules is None:
        raise UnavailableError("the pom.xml of the checkout has no modules")
    modules.clear()
    for name in MODULES:
        ElementTree.SubElement(modules, _tag("module")).text = name
    for plugins in list(pom.iter(_tag("plugins"))):
        _remove(plugins, (plugin for plugin in plugins if _name(plugin) in _CHECKS))
    return _written(pom)


def framework_pom(text: str) -> str:
    """The framework's, which needs all drivers to have them in its class path; now it needs ours."""
    pom = _parsed(text)
    dependencies = pom.find(_tag("dependencies"))
    if dependencies is None:
        raise UnavailableError("the pom.xml of the checkout's framework has no dependencies")
    _remove(dependencies, (each for each in dependencies if _name(each).startswith("driver-")))
    for name in MODULES:
        if name != FRAMEWORK:
            added = ElementTree.SubElement(dependencies, _tag("dependency"))
            for word, value in (
                ("groupId", "${project.groupId}"),
                ("artifactId", name),
                ("version", "${project.version}"),
            ):
                ElementTree.SubElement(added, _tag(word)).text = value
    return _written(pom)


def _parsed(text: str) -> ElementTree.Element:
    ElementTree.register_namespace("", _NAMESPACE)
    return ElementTree.fromstring(text)


def _written(pom: ElementTree.Element) -> str:
    ElementTree.indent(pom)
    return ElementTree.tostring(pom, encoding="unicode") + "\n"


def _tag(name: str) -> str:
    return f"{{{_NAMESPACE}}}{name}"


def _name(element: ElementTree.Element) -> str:
    return element.findtext(_tag("artifactId"), "").strip()


def _remove(parent: ElementTree.Element, children: Iterable[ElementTree.Element]) -> None:
    for child in list(children):
        parent.remove(child)
