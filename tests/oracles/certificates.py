"""Certificates for tests, made by the openssl command: a root, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    certificate: str
    key: str


def make_root(directory: Path, name: str = "root") -> Certificate:
    """A root of its own."""
    made = _files(directory, name)
    _openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
        "-subj", f"/CN=iotmq test {name}", "-keyout", made.key, "-out", made.certificate,
    )  # fmt: skip
    return made


def make_certificate(
    directory: Path, root: Certificate, name: str = "server", *, days: int = 30
) -> Certificate:
    """One for localhost and 127.0.0.1, signed by `root`; with -1 days it expired yesterday."""
    made = _files(directory, name)
    wish = directory / f"{name}.csr"
    extensions = directory / f"{name}.ext"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    _openssl(
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
        "-keyout", made.key, "-out", str(wish),
    )  # fmt: skip
    _openssl(
        "x509", "-req", "-in", str(wish), "-CA", root.certificate, "-CAkey", root.key, "-CAcreateserial",
        "-days", str(days), "-extfile", str(extensions), "-out", made.certificate,
    )  # fmt: skip
    return made


def _files(directory: Path, name: str) -> Certificate:
    return Certificate(str(directory / f"{name}.pem"), str(directory / f"{name}.key"))


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)
