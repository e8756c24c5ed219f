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
    directory: Path,
    root: Certificate,
    name: str = "server",
    *,
    days: int = 30,
    alternatives: str = "DNS:localhost,IP:127.0.0.1",
) -> Certificate:
    """One for localhost and 127.0.0.1, signed by `root`; with -1 days it expired yesterday.

    `alternatives` in the words of OpenSSL, empty for none.
    """
    made = _files(directory, name)
    wish = directory / f"{name}.csr"
    extensions = directory / f"{name}.ext"
    extensions.write_text(f"subjectAltName={alternatives}\n" if alternatives else "")
    _openssl(
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
        "-keyout", made.key, "-out", str(wish),
    )  # fmt: skip
    _openssl(
        "x509", "-req", "-in", str(wish), "-CA", root.certificate, "-CAkey", root.key, "-CAcreateserial",
        "-days", str(days), "-extfile", str(extensions), "-out", made.certificate,
    )  # fmt: skip
    return made


def make_revocation_list(
    directory: Path,
    root: Certificate,
    *revoked: Certificate,
    name: str = "revoked",
    is_outdated: bool = False,
) -> str:
    """The name of the file with the list `root` signs."""
    database, settings, made = (directory / f"{name}.{kind}" for kind in ("txt", "cnf", "crl"))
    lines = []
    for certificate in revoked:
        shown = _openssl("x509", "-in", certificate.certificate, "-noout", "-serial").decode()
        serial = shown.strip().partition("=")[2]
        lines.append(f"R\t400101000000Z\t200101000000Z\t{serial}\tunknown\t/CN=revoked\n")
    database.write_text("".join(lines))
    settings.write_text(
        f"[ca]\ndefault_ca=it\n[it]\ndatabase={database}\ndefault_md=sha256\ndefault_crl_days=30\n"
    )
    until = (
        ("-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", "20200102000000Z") if is_outdated else ()
    )
    _openssl(
        "ca", "-gencrl", "-config", str(settings), "-cert", root.certificate, "-keyfile", root.key,
        "-out", str(made), *until,
    )  # fmt: skip
    return str(made)


def _files(directory: Path, name: str) -> Certificate:
    return Certificate(str(directory / f"{name}.pem"), str(directory / f"{name}.key"))


def _openssl(*words: str) -> bytes:
    return subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60).stdout
