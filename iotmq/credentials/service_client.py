"""Ask an operator's service by HTTP, and take nothing from it that is not bounded.

Redirects are not followed, certificates are verified, no cookie is kept and no proxy of the environment is
used: where a question with passwords goes is what the settings say, and nothing else.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from iotmq.errors import ConfigError, IotmqError

# It takes 10 MB and 0.15 s: only those pay who ask a service.
if TYPE_CHECKING:
    import aiohttp

_OK: Final = 200
_HEADER_BYTES_MAX: Final = 8 * 1024
_KEPT_ALIVE_S: Final = 15.0


class ServiceFailedError(IotmqError):
    """A service did not answer, or not as it has to; the text is for the operator."""


class ServiceStatusError(ServiceFailedError):
    """A service answers with another status than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the service answers with status {status}")
        self.status = status


class ServiceAnswer(NamedTuple):
    """Hold what a service has said."""

    body: bytes
    headers: Mapping[str, str]


class ServiceClient:
    """Connections to one service. Made before there is a loop; used on one."""

    def __init__(self, asked_by: str, url: str, *, ca_file: str, at_once_max: int) -> None:
        """ConfigError, which names who asks, when the roots of its certificate cannot be used."""
        # Before there is a loop, which would wait for it with the first question.
        import_module("aiohttp")
        self._url = url
        self._at_once_max = at_once_max
        try:
            self._tls = (
                ssl.create_default_context(cafile=ca_file or None) if url.startswith("https:") else None
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{asked_by}: {ca_file or 'the roots of this machine'}: {error}") from error
        # Made on the loop by the first question.
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        *,
        bytes_max: int,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ServiceAnswer:
        """Send one request. ServiceFailedError unless it is answered with 200 and few enough bytes.

        How long that may take is the caller's business.
        """
        import aiohttp

        session = self._opened()
        try:
            async with session.request(
                method, self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                if answer.status != _OK:
                    raise ServiceStatusError(answer.status)
                content = await _bounded(answer.content, bytes_max)
                return ServiceAnswer(content, answer.headers)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise ServiceFailedError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """End the connections."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._at_once_max,
                ssl=self._tls if self._tls is not None else True,
                keepalive_timeout=_KEPT_ALIVE_S,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                max_line_size=_HEADER_BYTES_MAX,
                max_field_size=_HEADER_BYTES_MAX,
                auto_decompress=False,
                headers={"accept-encoding": "identity"},
                trust_env=False,
            )
        return self._session


async def _bounded(content: aiohttp.StreamReader, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in content.iter_any():
        size += len(part)
        if size > bytes_max:
            raise ServiceFailedError(f"the service answers with more than {bytes_max:,} bytes")
        parts.append(part)
    return b"".join(parts)
