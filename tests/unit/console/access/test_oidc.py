"""An OpenID provider that lies, fails, or has too much: nobody is signed in, and nothing else is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web
from http_service import HttpService, serving
from manual_clock import ManualClock
from tokens import SigningKey, jwks, key_of

from iotmq import limits
from iotmq.console.access import oidc as oidc_module
from iotmq.console.access.named_roles import Person
from iotmq.console.access.oidc import Oidc, OidcError, check_claims
from iotmq.console.settings import OidcSettings
from iotmq.credentials.signed_tokens import TokenError

KEY = key_of("ES256", "one")
BACK = "http://gateway/return"
Change = Callable[[dict[str, Any]], None]


class Provider:
    """A provider whose answers a test changes."""

    def __init__(self, service: HttpService) -> None:
        self.service = service
        self.clock = ManualClock()
        self.issuer = service.url("").rstrip("/")
        self.document: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/auth?tenant=1",
            "token_endpoint": f"{self.issuer}/token",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "jwks_uri": f"{self.issuer}/keys",
        }
        self.claims: dict[str, Any] = {}
        self.userinfo: Any = {}
        self.tokens: Any = None
        self.status = 200
        self.asked: list[tuple[str, dict[str, list[str]], str]] = []
        service.answer = self._answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        form = parse_qs((await request.read()).decode())
        self.asked.append((request.path, form, request.headers.get("authorization", "")))
        if request.path == "/token":
            tokens = {"access_token": "a", "id_token": KEY.token(self.claims).decode()}
            body = tokens if self.tokens is None else self.tokens
            return web.json_response(body, status=self.status)
        found = {
            "/.well-known/openid-configuration": self.document,
            "/keys": jwks(KEY),
            "/userinfo": self.userinfo,
        }
        return web.json_response(found[request.path])

    def settings(self, **more: Any) -> OidcSettings:
        defaults = {"issuer": self.issuer, "client_id": "iotmq", "viewers": ("staff",)}
        return OidcSettings(**{**defaults, **more})

    async def sign_in(self, change: Change | None = None, **settings: Any) -> Person:
        """Go all the way, with claims that a test has changed."""
        oidc = Oidc(self.settings(**settings), self.clock)
        try:
            begun = await oidc.begin(BACK, "#/topics")
            query = dict(part.split("=") for part in urlsplit(begun.location).query.split("&"))
            now_s = self.clock.now_ms() // 1000
            self.claims = {
                "iss": self.issuer,
                "aud": "iotmq",
                "sub": "1",
                "exp": now_s + 60,
                "iat": now_s,
                "nonce": query["nonce"],
                "preferred_username": "ada",
                "roles": ["staff"],
            }
            if change is not None:
                change(self.claims)
            person, place = await oidc.finish(begun.cookie, query["state"], "code", BACK)
            assert place == "#/topics"
            return person
        finally:
            await oidc.close()


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with serving() as service:
        yield Provider(service)


async def refused(provider: Provider, change: Change | None = None, **settings: Any) -> str:
    with pytest.raises(OidcError) as raised:
        await provider.sign_in(change, **settings)
    return f"{raised.value.word}: {raised.value}"


async def test_a_person_comes_with_the_claims_that_the_settings_name(provider: Provider) -> None:
    assert await provider.sign_in() == Person("ada", "viewer")

    def keycloak(claims: dict[str, Any]) -> None:
        claims["realm_access"] = {"roles": ["iot", "staff"]}
        claims["email"] = "ada@example.org"

    named = {"name_claim": "email", "roles_claim": "realm_access.roles", "administrators": ("iot",)}
    assert await provider.sign_in(keycloak, **named) == Person("ada@example.org", "administrator")
    assert await provider.sign_in(lambda claims: claims.update(roles="staff")) == Person("ada", "viewer")
    everybody = await provider.sign_in(lambda claims: claims.update(roles=[]), operators=("*",))
    assert everybody == Person("ada", "operator")


@pytest.mark.parametrize(
    ("end", "more", "location"),
    [
        ("https://login.example.com/out", {}, "https://login.example.com/out?client_id=iotmq"),
        ("https://login.example.com/out?a=b", {}, "https://login.example.com/out?a=b&client_id=iotmq"),
        ("https://login.example.com/out", {"signs_out": False}, None),
        (None, {}, None),
    ],
)
async def test_the_page_to_sign_out_is_that_of_the_document(
    provider: Provider, end: str | None, more: dict[str, Any], location: str | None
) -> None:
    if end is not None:
        provider.document["end_session_endpoint"] = end
    oidc = Oidc(provider.settings(**more), provider.clock)
    assert oidc.sign_out_location() is None, "nobody has signed in by it"
    await oidc.begin(BACK, "")
    assert oidc.sign_out_location() == location
    await oidc.close()


async def test_the_code_goes_with_the_verifier_and_the_secret(provider: Provider) -> None:
    await provider.sign_in(client_secret="a b+c")
    path, form, authorization = provider.asked[2]
    assert (path, form["grant_type"], form["code"]) == ("/token", ["authorization_code"], ["code"])
    assert len(form["code_verifier"][0]) == 43
    assert authorization.startswith("Basic ")
    assert "client_secret" not in form
    provider.asked.clear()
    provider.document["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    await provider.sign_in(client_secret="a b+c")
    assert provider.asked[2][1]["client_secret"] == ["a b+c"]
    provider.asked.clear()
    await provider.sign_in()
    assert provider.asked[2][1]["client_id"] == ["iotmq"]
    assert provider.asked[2][2] == ""


async def test_claims_that_the_identity_has_not_are_in_the_userinfo(provider: Provider) -> None:
    provider.userinfo = {"sub": "1", "roles": ["staff"], "preferred_username": "eve"}
    assert await provider.sign_in(lambda claims: claims.pop("roles")) == Person("ada", "viewer")
    provider.userinfo = {"sub": "2", "roles": ["staff"]}
    assert "somebody else" in await refused(provider, lambda claims: claims.pop("roles"))


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "http://elsewhere.example"},
        {"aud": "another"},
        {"aud": ["iotmq", "another"]},
        {"aud": ["iotmq", "another"], "azp": "another"},
        {"azp": "another"},
        {"exp": 1_000},
        {"exp": "soon"},
        {"exp": None},
        {"exp": True},
        {"iat": 99_999_999_999},
        {"iat": None},
        {"sub": ""},
        {"sub": None},
        {"nonce": "another"},
        {"nonce": "ä"},
        {"nonce": None},
        {"preferred_username": None},
        {"preferred_username": "a\nb"},
        {"preferred_username": ["ada"]},
        {"preferred_username": "a" * (limits.CONSOLE_FOREIGN_NAME_CHARACTERS_MAX + 1)},
        {"roles": ["x"] * (limits.CONSOLE_FOREIGN_ROLES_MAX + 1)},
    ],
    ids=range(21),
)
async def test_an_identity_that_does_not_count(provider: Provider, change: dict[str, Any]) -> None:
    provider.userinfo = {"sub": "1"}
    assert (await refused(provider, lambda claims: claims.update(change))).startswith("refused: ")


async def test_names_and_roles_at_their_limits_count(provider: Provider) -> None:
    name = "a" * limits.CONSOLE_FOREIGN_NAME_CHARACTERS_MAX
    roles = ["x"] * (limits.CONSOLE_FOREIGN_ROLES_MAX - 1)

    def change(claims: dict[str, Any]) -> None:
        claims.update(preferred_username=name, roles=[*roles, "staff"])

    assert await provider.sign_in(change) == Person(name, "viewer")


async def test_who_has_no_role_is_told_so(provider: Provider) -> None:
    for roles in (["guests"], [], [["staff"]], "staf", {"staff": True}, [None, 1]):
        said = await refused(provider, lambda claims, roles=roles: claims.update(roles=roles))
        assert said.startswith("no-role: ")


async def test_identities_are_signed_with_a_key_of_the_provider(provider: Provider) -> None:
    other = SigningKey("ES256", "one")
    for token in (other.token().decode(), "x.y.z", "", "ä", 7, None, "eyJhbGciOiJub25lIn0.e30."):
        provider.tokens = {"access_token": "a", "id_token": token}
        assert (await refused(provider)).startswith("refused: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("issuer", "http://elsewhere.example"),
        ("issuer", None),
        ("token_endpoint", "http://10.0.0.1/token"),
        ("token_endpoint", "https://elsewhere.example/token"),
        ("token_endpoint", "http://127.0.0.1:1/token"),
        ("token_endpoint", "file:///etc/passwd"),
        ("token_endpoint", "http://user@127.0.0.1/"),
        ("token_endpoint", "http://127.0.0.1:99999/"),
        ("token_endpoint", None),
        ("jwks_uri", "http://169.254.169.254/keys"),
        ("userinfo_endpoint", "http://[::1/"),
        ("end_session_endpoint", "javascript:alert(1)"),
        ("authorization_endpoint", "javascript:alert(1)"),
        ("authorization_endpoint", ["x"]),
    ],
)
async def test_nothing_is_asked_that_the_settings_do_not_name(
    provider: Provider, name: str, value: Any
) -> None:
    provider.document[name] = value
    assert (await refused(provider)).startswith("unavailable: ")
    assert [path for path, _, _ in provider.asked] == ["/.well-known/openid-configuration"]


async def test_hosts_of_the_settings_are_asked(provider: Provider) -> None:
    port = urlsplit(provider.issuer).port
    provider.document["token_endpoint"] = f"http://localhost:{port}/token"
    assert "other_hosts" in await refused(provider)
    assert await provider.sign_in(other_hosts=("localhost",)) == Person("ada", "viewer")


async def test_a_provider_that_fails_is_unavailable_and_one_that_refuses_refuses(provider: Provider) -> None:
    provider.status = 500
    assert (await refused(provider)).startswith("unavailable: ")
    provider.status = 400
    assert (await refused(provider)).startswith("refused: ")
    provider.status = 200
    provider.tokens = ["no", "object"]
    assert (await refused(provider)).startswith("unavailable: ")
    provider.service.says(b"x" * (256 * 1024 + 1))
    assert (await refused(provider)).startswith("unavailable: ")
    provider.service.hangs()
    assert (await refused(provider, timeout_s=0.05)).startswith("unavailable: ")


async def test_the_former_document_counts_while_a_new_one_cannot_be_read(provider: Provider) -> None:
    oidc = Oidc(provider.settings(refresh_s=10), provider.clock)
    try:
        await oidc.begin(BACK, "")
        provider.clock.advance(10)
        provider.service.says(b"broken")
        assert (await oidc.begin(BACK, "")).location.startswith(provider.issuer)
        provider.clock.advance(10)
        provider.document["authorization_endpoint"] = f"{provider.issuer}/other"
        provider.service.answer = provider._answer
        assert (await oidc.begin(BACK, "")).location.startswith(f"{provider.issuer}/other?")
    finally:
        await oidc.close()


async def test_so_many_ask_at_a_time_and_so_many_wait(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = provider.service.hangs()
    oidc = Oidc(provider.settings(timeout_s=30), provider.clock)
    places = oidc_module._AT_ONCE_MAX + oidc_module._WAITING_MAX
    asking = [asyncio.ensure_future(oidc.begin(BACK, "")) for _ in range(places)]
    try:
        await asyncio.sleep(0)
        with pytest.raises(OidcError, match="too many"):
            await oidc.begin(BACK, "")
    finally:
        released.set()
    assert len({each.cookie for each in await asyncio.gather(*asking)}) == places
    await oidc.close()


@pytest.mark.parametrize(
    "place",
    ["//elsewhere", "http://elsewhere", "#", "#x", "#/a\nb", "#/<script>", "#/\\elsewhere", "/topics"],
)
async def test_one_comes_back_to_a_page_of_the_console_only(provider: Provider, place: str) -> None:
    oidc = Oidc(provider.settings(), provider.clock)
    assert (await oidc.begin(BACK, place)).cookie.endswith("."), "to the first page"
    assert not (await oidc.begin(BACK, "#/topics?match=(a*'b')")).cookie.endswith(".")
    await oidc.close()


async def test_a_forged_cookie_opens_nothing(provider: Provider) -> None:
    oidc, other = (Oidc(provider.settings(), provider.clock) for _ in range(2))
    begun = await oidc.begin(BACK, "")
    state = parse_qs(urlsplit(begun.location).query)["state"][0]
    for each, cookie, given in (
        (oidc, None, state),
        (oidc, "", state),
        (oidc, begun.cookie + "A", state),
        (oidc, begun.cookie, ""),
        (oidc, begun.cookie, state[:-1]),
        (oidc, begun.cookie, "ä"),
        (other, begun.cookie, state),
    ):
        with pytest.raises(OidcError, match="was not sent there"):
            await each.finish(cookie, given, "code", BACK)
    for each in (oidc, other):
        await each.close()


def test_clocks_may_differ_by_a_minute() -> None:
    settings = OidcSettings(issuer="https://p", client_id="c", viewers=("*",))
    claims = {"iss": "https://p", "aud": "c", "sub": "1", "nonce": "n", "exp": 1_000, "iat": 1_000}
    for now_s in (940, 1_059):
        check_claims(claims, settings, nonce="n", now_s=now_s)
    for now_s in (939, 1_060):
        with pytest.raises(TokenError):
            check_claims(claims, settings, nonce="n", now_s=now_s)
