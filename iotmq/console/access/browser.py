"""The rules for browsers: cookies, pages of other sites, and the headers of answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from iotmq.addresses import is_loopback
from iotmq.console.server.messages import Request
from iotmq.ports.websockets import WebSocketPlace

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_COOKIE_CHARACTERS: Final = re.compile(r"[A-Za-z0-9_.-]{20,2000}")
_PORT: Final = re.compile(r":(\d{1,5})$")
_POLICY_HOST: Final = re.compile(r"[a-z0-9.-]{1,253}")
_POLICY_ESCAPES: Final = str.maketrans({";": "%3B", ",": "%2C"})

_ALWAYS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
API_HEADERS: Final = (
    *_ALWAYS,
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
)
"""Headers of answers that are data: nobody shows them as a page, keeps them or puts them into a frame."""
_PAGE_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'{places}",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_PAGE_HEADERS: Final = (
    *_ALWAYS,
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
_ENCRYPTED_ONLY: Final = (("Strict-Transport-Security", "max-age=31536000"),)


def page_headers(
    request: Request, websockets: Iterable[WebSocketPlace] = ()
) -> tuple[tuple[str, str], ...]:
    """Return the headers of pages and of what they load.

    Pages connect to their own port, and to the listeners of MQTT at the host that they were asked for by.
    That has to be a name or an address of IPv4: a policy cannot name others.
    """
    host, places = _host_name(request), ""
    if _POLICY_HOST.fullmatch(host):
        # A policy ends a source at these.
        sources = (each._replace(path=each.path.translate(_POLICY_ESCAPES)) for each in websockets)
        places = "".join(f" {each.scheme}://{host}:{each.port}{each.path}" for each in sources)
    return ("Content-Security-Policy", _PAGE_POLICY.format(places=places)), *_PAGE_HEADERS


def security_headers(
    request: Request, headers: tuple[tuple[str, str], ...] = API_HEADERS
) -> tuple[tuple[str, str], ...]:
    """Return the headers that an answer has in addition; by TLS, browsers are to come by it from then on.

    Not for localhost, whose other ports are other programs.
    """
    if request.is_encrypted and _host_name(request) != "localhost":
        return headers + _ENCRYPTED_ONLY
    return headers


def is_of_other_site(request: Request, *, may_be_silent: bool) -> bool:
    """Return whether a page of another site may have made the browser send this.

    Browsers say so in Sec-Fetch-Site; from old ones, for what changes something, Origin has to be this port.
    Programs say neither, which is enough where nothing counts that a browser adds by itself.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OWN_SITES
    if request.method in _SAFE_METHODS:
        return False
    origin = request.headers.get("origin")
    return not may_be_silent if origin is None else origin != own_origin(request)


def own_origin(request: Request) -> str:
    """Return the origin that a page of this port has."""
    return f"{'https' if request.is_encrypted else 'http'}://{request.headers.get('host', '')}"


def may_have_session(request: Request) -> bool:
    """Return whether a cookie is safe on the way: by TLS, or within this machine."""
    return request.is_encrypted or is_loopback(request.peer)


class SessionCookie:
    """The cookie of sessions. Ports and paths of one host share their cookies, so its name has both."""

    def __init__(self, base_path: str, *, word: str = "iotmq", lasts_s: int | None = None) -> None:
        """`word` begins its name; it is kept for `lasts_s`, or until the browser is closed."""
        self._stem = word + base_path.replace("/", ".")
        self._age = "" if lasts_s is None else f"; Max-Age={lasts_s}"

    def token(self, request: Request) -> str | None:
        """Return the token that a request shows; None without one, and for what is none in form."""
        if not may_have_session(request):
            return None
        # The name that came first counts, as it does for a browser's more specific path.
        name = self._name(request)
        for part in request.headers.get("cookie", "").split(";"):
            found, _, value = part.strip().partition("=")
            if found == name:
                return value if _COOKIE_CHARACTERS.fullmatch(value) else None
        return None

    def set(self, request: Request, token: str) -> tuple[str, str]:
        """Return the header that gives the browser its token."""
        return self._header(request, f"{token}; Path=/{self._age}")

    def clear(self, request: Request) -> tuple[str, str]:
        """Return the header that takes it away."""
        return self._header(request, "; Path=/; Max-Age=0")

    def _header(self, request: Request, value: str) -> tuple[str, str]:
        secure = "; Secure" if request.is_encrypted else ""
        return "Set-Cookie", f"{self._name(request)}={value}; HttpOnly; SameSite=Lax{secure}"

    def _name(self, request: Request) -> str:
        port = _PORT.search(request.headers.get("host", ""))
        prefix = "__Host-" if request.is_encrypted else ""
        return f"{prefix}{self._stem}{f'-{port[1]}' if port else ''}"


def _host_name(request: Request) -> str:
    return _PORT.sub("", request.headers.get("host", "")).lower()


def user_agent(headers: Mapping[str, str]) -> str:
    """Return what the program of who asks calls itself, without what does not print."""
    return "".join(each for each in headers.get("user-agent", "") if each.isprintable())
