"""Until when lists of revoked certificates hold."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest
from certificates import make_certificate, make_revocation_list, make_root

from iotmq.remoting.tls.context import CertificateFiles, ContextSettings
from iotmq.remoting.tls.files import ServerTls
from iotmq.remoting.tls.revocation import lists_expire_s

OUTDATED_S = 1_577_923_200  # 2020-01-02
DAYS = 30


def test_the_first_list_of_all_counts(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    holding = make_revocation_list(tmp_path, root, make_certificate(tmp_path, root, name="gone"))
    outdated = make_revocation_list(tmp_path, root, name="outdated", is_outdated=True)
    assert lists_expire_s(outdated) == OUTDATED_S
    found = lists_expire_s(holding)
    assert found is not None
    assert abs(found - time.time() - DAYS * 86_400) < 600
    both = tmp_path / "both.pem"
    both.write_bytes(Path(holding).read_bytes() + b"words\n" + Path(outdated).read_bytes())
    assert lists_expire_s(str(both)) == OUTDATED_S
    server = make_certificate(tmp_path, root, name="server")
    settings = ContextSettings(
        certificates=(CertificateFiles(server.certificate, server.key),),
        client_ca_file=root.certificate,
        revocation_files=(holding, outdated),
    )
    assert ServerTls(settings).lists_expire_s == OUTDATED_S


def list_of(*elements: bytes, version: bytes = b"\x02\x01\x01") -> bytes:
    name = b"\x30\x00"
    inner = version + name + name + b"".join(elements)
    body = bytes((0x30, len(inner))) + inner
    return bytes((0x30, len(body))) + body


THIS = b"\x17\x0d200101000000Z"
NEXT = b"\x17\x0d200102000000Z"


@pytest.mark.parametrize(
    ("der", "expires_s"),
    [
        (list_of(THIS, NEXT), OUTDATED_S),
        (list_of(THIS, NEXT, version=b""), OUTDATED_S),
        (list_of(THIS, b"\x18\x0f20200102000000Z"), OUTDATED_S),
        (list_of(THIS, b"\x17\x0d700101000000Z"), 0.0),
        # There is none in this one: the serial numbers come next.
        (list_of(THIS, b"\x30\x00"), None),
        (list_of(THIS), None),
        (list_of(THIS, b"\x17\x0dnonsense00000"), None),
        (list_of(THIS, NEXT)[:-1], None),
        (b"", None),
        (b"\x30\xff", None),
    ],
)
def test_what_cannot_be_told_is_not_told(tmp_path: Path, der: bytes, expires_s: float | None) -> None:
    file = tmp_path / "list.pem"
    text = base64.encodebytes(der)
    file.write_bytes(b"-----BEGIN X509 CRL-----\n" + text + b"\n-----END X509 CRL-----\n")
    assert lists_expire_s(str(file)) == expires_s
