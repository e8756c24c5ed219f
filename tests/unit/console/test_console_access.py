"""The HTTP port by TLS and with tokens: who may read what."""

from __future__ import annotations

import asyncio
import math
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from certificates import make_certificate, make_root
from eventually import soon

from iotmq import limits
from iotmq.console.access.tokens import KNOWN_MAX, Tokens
from iotmq.console.pages import Pages
from iotmq.console.server.connection import HttpConnection
from iotmq.console.server.messages import Request
from iotmq.console.server.port import HttpPort
from iotmq.console.settings import HttpSettings, HttpTokenSettings
from iotmq.errors import ConfigError

TOKENS = (
    HttpTokenSettings(name="scraper", token="0123456789abcdef"),
    HttpTokenSettings(name="other", token="ghijklmnopqrstuv-longer"),
)
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[HttpPort]:
    used = HttpSettings(listen_port=0, **settings)
    server = HttpPort(used, Pages(used))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def number(server: HttpPort, name: str) -> float:
    return next(metric.value for metric in server.metrics() if metric.name == name)


async def status(server: HttpPort, path: str, *authorization: str, tls: ssl.SSLContext | None = None) -> int:
    scheme = "http" if tls is None else "https"
    headers = [("Authorization", value) for value in authorization]
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            f"{scheme}://127.0.0.1:{server.port}{path}", headers=headers, ssl=True if tls is None else tls
        ) as answer,
    ):
        if answer.status == 401:
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        return answer.status


async def test_a_token_opens_everything_and_nothing_else_does() -> None:
    async with running(tokens=TOKENS) as server:
        for token in TOKENS:
            assert await status(server, "/metrics", f"Bearer {token.token}") == 200
            assert await status(server, "/readyz", f"bearer  {token.token} ") == 200
        for refused in (
            (),
            ("Bearer 0123456789abcdeg",),
            ("Bearer 0123456789abcde",),
            ("Bearer 0123456789abcdef0",),
            ("Bearer",),
            ("Basic 0123456789abcdef",),
            ("0123456789abcdef",),
            (f"Bearer {TOKENS[0].token}", f"Bearer {TOKENS[0].token}"),
        ):
            assert await status(server, "/metrics", *refused) == 401, refused
        assert number(server, "iotmq_http_unauthorized_total") == 8


def test_headers_that_were_right_are_known_and_only_so_many() -> None:
    token = HttpTokenSettings(name="a", token="t" * 32, role="viewer")
    tokens = Tokens([token])

    def asked(authorization: str) -> Request:
        return Request("GET", "/", "", {"authorization": authorization}, "127.0.0.1")

    assert tokens.find(asked(f"Bearer {'x' * 32}")) is None
    assert tokens.known(asked(f"Bearer {'x' * 32}")) is None
    assert tokens.known(asked(f"Bearer {'t' * 32}")) is None
    for spaces in range(KNOWN_MAX):
        assert tokens.find(asked(f"Bearer {' ' * spaces}{'t' * 32}")) is token
    assert tokens.known(asked(f"Bearer {'t' * 32}")) is token
    assert tokens.find(asked(f"bearer {'t' * 32}")) is token
    assert tokens.known(asked(f"Bearer {'t' * 32}")) is None
    assert tokens.known(asked(f"bearer {'t' * 32}")) is token


async def test_a_token_in_the_address_is_none() -> None:
    async with running(tokens=TOKENS) as server:
        assert await status(server, f"/metrics?token={TOKENS[0].token}") == 401


@pytest.mark.parametrize(
    ("settings", "health", "ready"),
    [({}, 200, 401), ({"open_paths": ()}, 401, 401), ({"open_paths": ("/readyz",)}, 401, 200)],
)
async def test_probes_may_need_no_token(settings: dict[str, Any], health: int, ready: int) -> None:
    async with running(tokens=TOKENS, **settings) as server:
        assert await status(server, "/healthz") == health
        assert await status(server, "/healthz?now") == health
        assert await status(server, "/readyz") == ready
        assert await status(server, "/metrics") == 401
        # What there is, nobody learns without one.
        assert await status(server, "/nothing") == 401


async def test_a_refusal_is_a_line_of_the_log_without_the_token(caplog: pytest.LogCaptureFixture) -> None:
    async with running(tokens=TOKENS) as server:
        await status(server, "/metrics", "Bearer not-the-right-one")
    (record,) = [record for record in caplog.records if "token" in record.message]
    assert record.__dict__["peer"] == "127.0.0.1"
    assert "right-one" not in str(record.__dict__)
    assert "0123456789abcdef" not in repr(server._settings)


async def test_of_so_many_connections_the_quietest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as server:
        opened = [
            await asyncio.open_connection("127.0.0.1", server.port)
            for _ in range(limits.HTTP_CONNECTIONS_MAX)
        ]
        await soon(lambda: len(server._connections) == limits.HTTP_CONNECTIONS_MAX, "all of them")
        # It was the quietest, and has asked for something since.
        active = min(server._connections, key=lambda each: each.quiet_until_s)
        active._deadline_s += 1_000
        assert await status(server, "/healthz") == 200
        assert active in server._connections
        assert number(server, "iotmq_http_refused_connections_total") == 1
        await soon(lambda: len(server._connections) < limits.HTTP_CONNECTIONS_MAX, "room")
        opened.append(await asyncio.open_connection("127.0.0.1", server.port))
        await soon(lambda: len(server._connections) == limits.HTTP_CONNECTIONS_MAX, "one for the other")
        # Those that are answered now stay.
        monkeypatch.setattr(HttpConnection, "quiet_until_s", math.inf)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await reader.read() == b""
        assert len(server._connections) == limits.HTTP_CONNECTIONS_MAX
        assert number(server, "iotmq_http_refused_connections_total") == 2
        for _, other in (*opened, (reader, writer)):
            other.close()


class Files:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = make_root(directory)
        self.server = make_certificate(directory, self.root)
        self.client = make_certificate(directory, self.root, "client")

    def listening(self) -> dict[str, str]:
        return {"tls_certificate_file": self.server.certificate, "tls_key_file": self.server.key}

    def tls(self, *, has_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.root.certificate)
        if has_certificate:
            context.load_cert_chain(*self.client)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@needs_openssl
async def test_metrics_by_tls(files: Files) -> None:
    async with running(tokens=TOKENS, **files.listening()) as server:
        assert await status(server, "/metrics", f"Bearer {TOKENS[0].token}", tls=files.tls()) == 200
        assert await status(server, "/metrics", tls=files.tls()) == 401
        # Who speaks plainly learns nothing.
        with pytest.raises(aiohttp.ClientError):
            await status(server, "/healthz")
        await soon(lambda: number(server, "iotmq_http_failed_handshakes_total") >= 1, "the end of that")
        assert number(server, "iotmq_http_tls_certificate_expires_seconds") > 0


@needs_openssl
async def test_no_http_is_answered_by_tls_too(files: Files) -> None:
    async with running(**files.listening()) as server:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=files.tls(), server_hostname="localhost"
        )
        writer.write(b"no http\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()


@needs_openssl
async def test_a_client_certificate_is_a_proof(files: Files) -> None:
    settings = {**files.listening(), "tls_client_ca_file": files.root.certificate}
    async with running(**settings) as server:
        assert await status(server, "/metrics", tls=files.tls(has_certificate=True)) == 200
        with pytest.raises((aiohttp.ClientError, OSError)):
            await status(server, "/metrics", tls=files.tls())


@needs_openssl
async def test_a_changed_certificate_is_used_for_new_connections(files: Files) -> None:
    async with running(**files.listening()) as server:
        other = make_root(files.directory, "other-root")
        changed = make_certificate(files.directory, other, "changed")
        assert server._tls is not None
        for fresh, place in zip(changed, files.server, strict=True):
            shutil.copy(fresh, place)
        await server._tls.reload()
        assert number(server, "iotmq_http_tls_reloads_total") == 1
        with pytest.raises(aiohttp.ClientError):
            await status(server, "/healthz", tls=files.tls())
        context = ssl.create_default_context(cafile=other.certificate)
        assert await status(server, "/healthz", tls=context) == 200


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    settings = HttpSettings(tls_certificate_file=str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match="none\\.pem"):
        HttpPort(settings, Pages(settings))
