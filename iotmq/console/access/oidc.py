"""Sign people in by an OpenID Connect provider: authorisation code with PKCE, state and nonce.

Nothing is kept between the beginning and the return. The browser has a random text in a cookie; state, nonce
and the verifier of PKCE are digests of it with a key of this process. So who comes back is who has begun, and
a flood of beginnings takes no memory.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from iotmq import limits
from iotmq.clock import Clock
from iotmq.console.access.named_roles import Person, person_of
from iotmq.console.access.oidc_error import OidcError
from iotmq.console.settings import OidcSettings
from iotmq.credentials.pace import Pace
from iotmq.credentials.service_client import ServiceClient, ServiceFailedError, ServiceStatusError
from iotmq.credentials.signed_tokens import SignedTokens, TokenError, claim_of
from iotmq.credentials.token_keys import TokenKeys

logger = logging.getLogger("iotmq.http")

_DISCOVERY: Final = "/.well-known/openid-configuration"
_RANDOM_BYTES: Final = 32
_ANSWER_BYTES_MAX: Final = 256 * 1024
_END: Final = "end_session_endpoint"
# A wrong code, and a wrong secret of this gateway (RFC 6749 section 5.2).
_REFUSALS: Final = frozenset({400, 401})
_AT_ONCE_MAX: Final = 4
_WAITING_MAX: Final = 32
# How far the clocks of the provider and of this machine may differ.
_LEEWAY_S: Final = 60.0
# A page of the console; it stands behind the path of the console and nowhere else.
_RETURN_TO: Final = re.compile(r"#/[A-Za-z0-9._~/?=&%+:@!$'()*,;-]*\Z")

_Answer = TypeVar("_Answer")


class Beginning(NamedTuple):
    """A sign-in that has begun."""

    cookie: str
    """For the browser, until it is back."""
    location: str
    """The page of the provider."""


class _KeySources(NamedTuple):
    jwks_url: str
    jwks_ca_file: str
    algorithms: tuple[str, ...]
    refresh_s: float
    timeout_s: float
    name: str = "http.sign_in.oidc"
    secret_file: str = ""
    key_files: tuple[str, ...] = ()
    jwks_file: str = ""
    jwks_copy_file: str = ""


class _Provider:
    """The provider as its document says; `close` ends what asks it."""

    def __init__(self, document: Mapping[str, Any], settings: OidcSettings, clock: Clock) -> None:
        """OidcError when the document is none, or names hosts that may not be asked."""
        self.document = document
        self.authorization = _url(document, "authorization_endpoint", settings, is_asked=False)

        self.end_of_session = (
            _url(document, _END, settings, is_asked=False) if _END in document else None
        )

        def client(name: str) -> ServiceClient:
            url = _url(document, name, settings, is_asked=True)
            return ServiceClient("oidc", url, ca_file=settings.ca_file, at_once_max=_AT_ONCE_MAX)

        self.token = client("token_endpoint")
        self.userinfo = client("userinfo_endpoint") if "userinfo_endpoint" in document else None
        self.keys = TokenKeys(
            _KeySources(
                _url(document, "jwks_uri", settings, is_asked=True),
                settings.ca_file,
                settings.algorithms,
                settings.refresh_s,
                settings.timeout_s,
            ),
            clock,
        )
        self.tokens = SignedTokens(self.keys, settings.algorithms, bytes_max=_ANSWER_BYTES_MAX)
        methods = document.get("token_endpoint_auth_methods_supported")
        # RFC 8414 section 2: what is meant by none is this.
        self.takes_basic = methods is None or "client_secret_basic" in methods

    async def close(self) -> None:
        await self.keys.close()
        await self.token.close()
        if self.userinfo is not None:
            await self.userinfo.close()


class Oidc:
    """One provider. It is asked with the first sign-in, and no sooner."""

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        """ConfigError when the roots of its certificate cannot be used."""
        self._settings = settings
        self._clock = clock
        self._key = secrets.token_bytes(_RANDOM_BYTES)
        self._discovery = ServiceClient(
            "http.sign_in.oidc",
            settings.issuer.rstrip("/") + _DISCOVERY,
            ca_file=settings.ca_file,
            at_once_max=1,
        )
        self._pace = Pace(at_once_max=_AT_ONCE_MAX, per_s_max=0, waiting_max=_WAITING_MAX)
        self._reading = asyncio.Lock()
        self._provider: _Provider | None = None
        self._read_s = float("-inf")

    async def close(self) -> None:
        """End the connections."""
        self._pace.close()
        await self._discovery.close()
        if self._provider is not None:
            await self._provider.close()

    async def begin(self, redirect_uri: str, return_to: str) -> Beginning:
        """Begin; `return_to` is the page of the console to come back to, if it is one. OidcError."""
        if not _RETURN_TO.match(return_to):
            return_to = ""
        provider = await self._asked(self._current())
        place = base64.urlsafe_b64encode(return_to.encode()).decode().rstrip("=")
        cookie = f"{secrets.token_urlsafe(_RANDOM_BYTES)}.{place}"
        challenge = hashlib.sha256(self._derived("verifier", cookie).encode()).digest()
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": self._derived("state", cookie),
            "nonce": self._derived("nonce", cookie),
            "code_challenge": base64.urlsafe_b64encode(challenge).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        mark = "&" if "?" in provider.authorization else "?"
        return Beginning(cookie, f"{provider.authorization}{mark}{urlencode(query)}")

    async def finish(
        self, cookie: str | None, state: str, code: str, redirect_uri: str
    ) -> tuple[Person, str]:
        """Return who has come back, and the page to show. OidcError."""
        expected = "" if cookie is None else self._derived("state", cookie)
        if cookie is None or not hmac.compare_digest(expected.encode(), state.encode()):
            raise OidcError("refused", "this browser was not sent there, or comes back too late")
        person = await self._asked(self._person(cookie, code, redirect_uri))
        place = cookie.partition(".")[2]
        return person, base64.urlsafe_b64decode(place + "=" * (-len(place) % 4)).decode()

    def sign_out_location(self) -> str | None:
        """Return the page where people sign out of the provider; None where there is none, or none is wanted.

        OpenID Connect RP-Initiated Logout 1.0. It asks whether they want to: nothing here tells who they are.
        """
        page = None if self._provider is None else self._provider.end_of_session
        if page is None or not self._settings.signs_out:
            return None
        mark = "&" if "?" in page else "?"
        return f"{page}{mark}{urlencode({'client_id': self._settings.client_id})}"

    def _derived(self, what: str, cookie: str) -> str:
        made = hmac.digest(self._key, f"{what}\0{cookie}".encode("utf-8", "surrogateescape"), "sha256")
        return base64.urlsafe_b64encode(made).decode().rstrip("=")

    async def _asked(self, asking: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Wait for answers of the provider, with a limit of how many ask at a time, and how long."""
        try:
            await self._pace.turn(lambda: True, wait_s=self._settings.timeout_s)
        except TimeoutError:
            asking.close()
            raise OidcError("unavailable", "too many sign in at once") from None
        try:
            async with asyncio.timeout(3 * self._settings.timeout_s):
                return await asking
        except ServiceFailedError as error:
            raise OidcError("unavailable", f"the provider: {error}") from error
        except TimeoutError:
            raise OidcError("unavailable", "the provider does not answer in time") from None
        except TokenError as error:
            raise OidcError("refused", f"the identity: {error}") from error
        finally:
            self._pace.done()

    async def _current(self) -> _Provider:
        """Return the provider as its document is now; the former one counts while that cannot be read."""
        async with self._reading:
            now_s = self._clock.monotonic_s()
            if self._provider is not None and now_s - self._read_s < self._settings.refresh_s:
                return self._provider
            try:
                document = await self._document()
            except ServiceFailedError:
                if self._provider is None:
                    raise
                logger.warning("the document of the OpenID provider cannot be read; the former one counts")
                self._read_s = now_s
                return self._provider
            if self._provider is None or self._provider.document != document:
                provider = _Provider(document, self._settings, self._clock)
                await provider.keys.start()
                former, self._provider = self._provider, provider
                if former is not None:
                    await former.close()
            self._read_s = now_s
            return self._provider

    async def _document(self) -> dict[str, Any]:
        answer = await self._discovery.ask("GET", bytes_max=_ANSWER_BYTES_MAX)
        document = _object(answer.body)
        if document.get("issuer") != self._settings.issuer:
            raise ServiceFailedError("its document names another issuer than http.sign_in.oidc.issuer")
        return document

    async def _person(self, cookie: str, code: str, redirect_uri: str) -> Person:
        settings = self._settings
        provider = await self._current()
        tokens = await self._exchange(provider, self._derived("verifier", cookie), code, redirect_uri)
        identity, access = tokens.get("id_token"), tokens.get("access_token")
        if not isinstance(identity, str) or not identity.isascii():
            raise TokenError("there is none")
        claims = await provider.tokens.verified(identity.encode())
        now_s = self._clock.now_ms() / 1000
        check_claims(claims, settings, nonce=self._derived("nonce", cookie), now_s=now_s)
        named = [settings.name_claim, settings.roles_claim]
        is_told = all(claim_of(claims, name) is not None for name in named)
        if not is_told and provider.userinfo is not None and isinstance(access, str) and access.isascii():
            more = await provider.userinfo.ask(
                "GET", bytes_max=_ANSWER_BYTES_MAX, headers={"authorization": f"Bearer {access}"}
            )
            found = _object(more.body)
            if found.get("sub") != claims["sub"]:
                raise TokenError("the userinfo is somebody else's")
            claims = {**found, **claims}
        roles = claim_of(claims, settings.roles_claim)
        listed = roles if isinstance(roles, list) else [roles]
        if len(listed) > limits.CONSOLE_FOREIGN_ROLES_MAX:
            raise TokenError(f"its claim {settings.roles_claim} has {len(listed)} names")
        names = [each for each in listed if isinstance(each, str)]
        try:
            person = person_of(claim_of(claims, settings.name_claim), names, settings)
        except ValueError as error:
            raise TokenError(f"its claim {settings.name_claim}: {error}") from None
        if person is None:
            raise OidcError("no-role", f"none of {len(names)} roles of a person is one of http.sign_in.oidc")
        return person

    async def _exchange(
        self, provider: _Provider, verifier: str, code: str, redirect_uri: str
    ) -> dict[str, Any]:
        settings = self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        if settings.client_secret and provider.takes_basic:
            # RFC 6749 section 2.3.1: both are encoded as in a form.
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = settings.client_id
            if settings.client_secret:
                form["client_secret"] = settings.client_secret
        try:
            answer = await provider.token.ask(
                "POST", bytes_max=_ANSWER_BYTES_MAX, body=urlencode(form).encode(), headers=headers
            )
        except ServiceStatusError as error:
            if error.status in _REFUSALS:
                raise OidcError("refused", f"the provider takes neither code nor client: {error}") from error
            raise
        return _object(answer.body)


def check_claims(claims: Mapping[str, Any], settings: OidcSettings, *, nonce: str, now_s: float) -> None:
    """Check an identity (OpenID Connect Core 1.0 section 3.1.3.7). TokenError."""
    if claims.get("iss") != settings.issuer:
        raise TokenError("its iss is another issuer")
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if settings.client_id not in named:
        raise TokenError("its aud is not this gateway")
    if (len(named) > 1 or "azp" in claims) and claims.get("azp") != settings.client_id:
        raise TokenError("its azp is not this gateway")
    expires_s, issued_s = claims.get("exp"), claims.get("iat")
    if expires_s is None or issued_s is None or not _is_time(expires_s) or not _is_time(issued_s):
        raise TokenError("its exp or iat is no time")
    if expires_s + _LEEWAY_S <= now_s:
        raise TokenError("it has expired")
    if issued_s - _LEEWAY_S > now_s:
        raise TokenError("its iat is ahead")
    if not isinstance(claims.get("sub"), str) or not claims["sub"]:
        raise TokenError("it has no sub")
    given = claims.get("nonce")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
        raise TokenError("its nonce is not the one that was sent")


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12


def _object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ServiceFailedError(f"it answers what is no object of JSON: {error}") from None


def _url(document: Mapping[str, Any], name: str, settings: OidcSettings, *, is_asked: bool) -> str:
    """Return an address of the document: as safe as the issuer's, and asked only where that is allowed."""
    text = document.get(name)
    issuer = urlsplit(settings.issuer)
    try:
        found = urlsplit(text if isinstance(text, str) and text.isascii() else "")
        port, own_port = found.port, issuer.port
    except ValueError:
        raise ServiceFailedError(f"its {name} is no address") from None
    if found.scheme not in ("https", issuer.scheme) or not found.hostname or found.username is not None:
        raise ServiceFailedError(f"its {name} is no address that is as safe as the issuer's")
    is_own = (found.hostname, port) == (issuer.hostname, own_port)
    if is_asked and not is_own and found.hostname not in settings.other_hosts:
        raise ServiceFailedError(
            f"its {name} is at {found.hostname}: name that in http.sign_in.oidc.other_hosts"
        )
    return str(text)
