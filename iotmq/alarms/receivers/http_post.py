"""Post to an address of the settings, and to no other.

Redirects are not followed, certificates are verified, no cookie is kept and no proxy of the environment is
used: a request goes to the host that the settings name.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from iotmq import limits
from iotmq.alarms.receivers.sender import DeliveryError
from iotmq.errors import ConfigError

# It takes 10 MB and 0.15 s: only those pay who have such a receiver.
if TYPE_CHECKING:
    import aiohttp

_SHOWN_CHARACTERS: Final = 200
_HEADER_BYTES_MAX: Final = 8 * 1024


class HttpPost:
    """Connections to one address."""

    def __init__(self, url: str, headers: Mapping[str, str], *, ca_file: str) -> None:
        """ConfigError when the roots of its certificate cannot be used."""
        self._url = url
        self._headers = dict(headers)
        try:
            self._tls = (
                ssl.create_default_context(cafile=ca_file or None) if url.startswith("https:") else None
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{ca_file or 'the roots of this machine'}: {error}") from error
        # Made on the loop by the first request.
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a JSON body. DeliveryError unless it is answered with 2xx."""
        import aiohttp

        sent = {**self._headers, "Content-Type": "application/json", **(headers or {})}
        try:
            async with self._opened().post(
                self._url, data=body, headers=sent, allow_redirects=False
            ) as answer:
                said = await answer.content.read(limits.ALARM_ANSWER_BYTES_MAX)
                if not 200 <= answer.status < 300:
                    text = said[:_SHOWN_CHARACTERS].decode(errors="replace")
                    raise DeliveryError(f"it answers with status {answer.status}: {text!r}")
        except aiohttp.ClientConnectorError as error:
            # The text of its own says "ssl:default" of addresses without TLS, too.
            raise DeliveryError(f"cannot connect to {error.host}:{error.port}: {error.os_error}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise DeliveryError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """End the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, ssl=self._tls if self._tls is not None else True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                max_line_size=_HEADER_BYTES_MAX,
                max_field_size=_HEADER_BYTES_MAX,
                trust_env=False,
            )
        return self._session
