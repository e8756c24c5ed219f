"""Tickets of TLS that processes share: who resumes whose sessions, and who must not."""

from __future__ import annotations

import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificate, make_certificate, make_revocation_list, make_root

from iotmq.remoting.tls import tickets
from iotmq.remoting.tls.context import CertificateFiles, ContextSettings, server_context
from iotmq.remoting.tls.files import ServerTls
from iotmq.remoting.tls.tickets import share_tickets, ticket_keys_of

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")


class Files:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = make_root(directory)
        self.server = make_certificate(directory, self.root)
        self.client = make_certificate(directory, self.root, "client")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def settings_of(certificate: Certificate, **more: Any) -> ContextSettings:
    return ContextSettings(certificates=(CertificateFiles(*certificate),), **more)


def context_of(settings: ContextSettings, secret: str) -> ssl.SSLContext:
    return ServerTls(settings, ticket_secret=secret).context


class Device:
    """Connects in memory, again with the session of the time before."""

    def __init__(self, files: Files, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.load_verify_locations(files.root.certificate)
        self.context.load_cert_chain(*files.client)
        self.context.minimum_version = self.context.maximum_version = version
        self.session: ssl.SSLSession | None = None

    def is_resumed_at(self, server: ssl.SSLContext) -> bool:
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        own = self.context.wrap_bio(to_client, to_server, server_hostname="localhost", session=self.session)
        other = server.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(4):
            for end in (own, other):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        other.write(b"x")
        assert own.read(1) == b"x"
        self.session = own.session
        assert own.session_reused is other.session_reused
        return bool(other.session_reused)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("asks", [False, True])
def test_a_session_of_one_process_is_resumed_by_another(
    files: Files, version: ssl.TLSVersion, asks: bool
) -> None:
    more = {"client_ca_file": files.root.certificate} if asks else {}
    device = Device(files, version)
    settings = settings_of(files.server, **more)
    assert not device.is_resumed_at(context_of(settings, "shared"))
    assert device.is_resumed_at(context_of(settings, "shared"))
    assert not device.is_resumed_at(context_of(settings, "another secret"))


def test_without_a_secret_every_context_has_keys_of_its_own(files: Files) -> None:
    device = Device(files)
    settings = settings_of(files.server)
    contexts = [context_of(settings, "") for _ in range(2)]
    assert ticket_keys_of(contexts[0]) != ticket_keys_of(contexts[1])
    assert not device.is_resumed_at(contexts[0])
    assert not device.is_resumed_at(contexts[1])


def test_no_session_gets_past_what_another_listener_asks_for(files: Files) -> None:
    device = Device(files)
    loose = context_of(settings_of(files.server), "shared")
    strict = context_of(settings_of(files.server, client_ca_file=files.root.certificate), "shared")
    assert not device.is_resumed_at(loose)
    assert not device.is_resumed_at(strict)


def test_no_session_gets_past_a_file_that_has_changed(files: Files) -> None:
    revoked = make_revocation_list(files.directory, files.root)
    settings = settings_of(files.server, client_ca_file=files.root.certificate, revocation_files=(revoked,))
    device = Device(files)
    before = context_of(settings, "shared")
    assert not device.is_resumed_at(before)
    assert device.is_resumed_at(context_of(settings, "shared"))
    make_revocation_list(files.directory, files.root, files.server)
    after = context_of(settings, "shared")
    assert ticket_keys_of(after) != ticket_keys_of(before)
    assert not device.is_resumed_at(after)


async def test_a_context_that_is_read_again_shares_as_well(files: Files) -> None:
    tls = ServerTls(settings_of(files.server), ticket_secret="shared")
    before = tls.context
    os.utime(files.server.key)
    await tls.reload()
    assert tls.context is not before
    assert ticket_keys_of(tls.context) == ticket_keys_of(before)


def test_where_there_is_no_way_to_the_keys_each_has_its_own(
    files: Files, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(files.server)
    monkeypatch.setattr(tickets, "_PYTHON_UNKNOWN", (3, 0))
    tickets._control.cache_clear()
    try:
        assert not share_tickets(server_context(settings), settings, "shared")
        assert "not shared" in caplog.text
        assert context_of(settings, "shared")
    finally:
        tickets._control.cache_clear()
