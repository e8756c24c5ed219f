"""Copies what the pages of the console import out of npm packages, under names with versions.

The files go to iotmq/console/static/vendor/NAME-VERSION/ with their licences, and manifest.json there has the
SHA-384 of each. Browsers have no search path, so bare imports become relative ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LOCK = Path(__file__).parent / "package-lock.json"
VENDOR = ROOT / "iotmq" / "console" / "static" / "vendor"


class Copied(NamedTuple):
    """A file of a package, and what changes on the way."""

    source: str
    name: str
    replaced: tuple[tuple[str, str], ...] = ()
    appended: str = ""
    types: str = ""
    """What its declaration says, for those who check the types of pages."""


PACKAGES: dict[str, tuple[Copied, ...]] = {
    "preact": (
        Copied("dist/preact.mjs", "preact.mjs", types='export * from "preact";'),
        Copied(
            "hooks/dist/hooks.mjs",
            "hooks.mjs",
            replaced=(('from"preact"', 'from"./preact.mjs"'),),
            types='export * from "preact/hooks";',
        ),
    ),
    "htm": (Copied("dist/htm.mjs", "htm.mjs", types='export { default } from "htm";'),),
    "@preact/signals-core": (
        Copied("dist/signals-core.mjs", "signals-core.mjs", types='export * from "@preact/signals-core";'),
    ),
    # The module of the package is not minified: half of the size is the other one.
    "uplot": (
        Copied(
            "dist/uPlot.iife.min.js",
            "uplot.mjs",
            appended="export default uPlot;\n",
            types='export { default } from "uplot";',
        ),
        Copied("dist/uPlot.min.css", "uplot.css"),
    ),
}


def main() -> None:
    """Copy from the directory of packages that is named, whole or not at all."""
    packages = Path(sys.argv[1])
    versions = locked_versions()
    made = VENDOR.with_name("vendor.new")
    shutil.rmtree(made, ignore_errors=True)
    manifest: dict[str, str] = {}
    for package, files in PACKAGES.items():
        source = packages / package
        installed = json.loads((source / "package.json").read_text())["version"]
        if installed != versions[package]:
            sys.exit(f"{package} is there as {installed}, and the lock file names {versions[package]}")
        directory = made / directory_name(package, installed)
        directory.mkdir(parents=True)
        for file in files:
            (directory / file.name).write_text(_changed(source / file.source, file))
            if file.types:
                (directory / file.name).with_suffix(".d.mts").write_text(file.types + "\n")
        shutil.copyfile(source / "LICENSE", directory / "LICENSE")
        for each in sorted(directory.iterdir()):
            manifest[f"{directory.name}/{each.name}"] = sha384(each.read_bytes())
    (made / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    shutil.rmtree(VENDOR, ignore_errors=True)
    made.rename(VENDOR)


def locked_versions() -> dict[str, str]:
    """Return the versions of the lock file, by the names of the packages."""
    packages = json.loads(LOCK.read_text())["packages"]
    return {name.removeprefix("node_modules/"): each["version"] for name, each in packages.items() if name}


def directory_name(package: str, version: str) -> str:
    """Return the name of a package's folder: the scope, as in @preact/, is left out."""
    return f"{package.rpartition('/')[2]}-{version}"


def sha384(data: bytes) -> str:
    """Return a digest as pages write it."""
    return "sha384-" + base64.b64encode(hashlib.sha384(data).digest()).decode()


def _changed(source: Path, file: Copied) -> str:
    text = source.read_text()
    for old, new in file.replaced:
        if old not in text:
            sys.exit(f"{source} has no {old}")
        text = text.replace(old, new)
    lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL=")]
    return "\n".join(lines) + "\n" + file.appended


if __name__ == "__main__":
    main()
