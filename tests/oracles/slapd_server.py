"""A real OpenLDAP server on a free port of loopback, with StartTLS."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from certificates import Certificate
from eventually import eventually
from gateway_process import free_port
from server_process import ServerProcess, is_listening

_PATH = f"/usr/sbin:/usr/lib/openldap:{os.environ.get('PATH', '')}"
PROGRAM = shutil.which("slapd", path=_PATH)
ADD = shutil.which("slapadd", path=_PATH)
BASE = "dc=example,dc=org"
ADMIN = f"cn=admin,{BASE}"
ADMIN_PASSWORD = "admin-secret"


class SlapdServer(ServerProcess):
    """`with` starts it and ends it; everything it needs is below `directory`."""

    def __init__(self, directory: Path, entries: str, server: Certificate | None = None) -> None:
        """`entries` are LDIF, below BASE, which is there. With a certificate there are StartTLS and ldaps."""
        super().__init__(directory / "slapd.log")
        self.port = free_port()
        self.tls_port = free_port()
        self._file = directory / "slapd.conf"
        (directory / "ldap").mkdir()
        modules = _first("/usr/lib/ldap", "/usr/lib64/openldap", "/usr/lib/openldap")
        schemas = _first("/etc/ldap/schema", "/etc/openldap/schema")
        secrets = []
        if server is not None:
            secrets = [f"TLSCertificateFile {server.certificate}", f"TLSCertificateKeyFile {server.key}"]
        lines = [
            *(f"include {schemas}/{name}.schema" for name in ("core", "cosine", "inetorgperson", "nis")),
            # As Active Directory does, whose yes to an empty password has let many in.
            "allow bind_anon_cred bind_anon_dn",
            f"modulepath {modules}", "moduleload back_mdb",
            f"pidfile {directory}/slapd.pid", f"argsfile {directory}/slapd.args",
            *secrets,
            "database mdb", "maxsize 16777216", f'suffix "{BASE}"', f'rootdn "{ADMIN}"',
            f"rootpw {ADMIN_PASSWORD}", f"directory {directory}/ldap",
            "access to attrs=userPassword by anonymous auth by * none",
            "access to * by users read by anonymous read",
        ]  # fmt: skip
        self._file.write_text("\n".join(lines) + "\n")
        ldif = directory / "entries.ldif"
        root = f"dn: {BASE}\nobjectClass: dcObject\nobjectClass: organization\no: test\ndc: example\n\n"
        ldif.write_text(root + entries)
        assert ADD is not None
        words = [ADD, "-f", str(self._file), "-l", str(ldif)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        self._has_tls = server is not None

    @property
    def url(self) -> str:
        return f"ldap://127.0.0.1:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"ldaps://127.0.0.1:{self.tls_port}"

    def start(self) -> None:
        """Start it, or start it again with the entries it had; returns when it listens."""
        assert PROGRAM is not None
        urls = f"{self.url} {self.tls_url}" if self._has_tls else self.url
        self.launch([PROGRAM, "-f", str(self._file), "-h", urls, "-d", "0"])

        def listens() -> bool:
            self.check()
            return is_listening(self.port)

        eventually(listens, "slapd listens")


def _first(*places: str) -> str:
    """The one of these directories that this distribution has."""
    return next(place for place in places if Path(place).is_dir())
