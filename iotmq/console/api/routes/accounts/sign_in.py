"""Signing in and out, the caller, and the sessions of all."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.console.access.access import CONSOLE_PATH, Access
from iotmq.console.access.browser import may_have_session, own_origin, user_agent
from iotmq.console.access.console_sessions import Session, Way
from iotmq.console.access.console_users import RoleName
from iotmq.console.access.oidc_error import OidcError
from iotmq.console.access.passwords import SignInFailedError, TooManyAttemptsError
from iotmq.console.api.api import BASE
from iotmq.console.api.problems import (
    FORBIDDEN,
    INVALID,
    MALFORMED,
    MEDIA_TYPE,
    NOT_FOUND,
    TOO_MANY,
    UNAUTHENTICATED,
    ProblemError,
)
from iotmq.console.api.route import Call, Caller, NoArguments, Role, route
from iotmq.console.api.services import Services
from iotmq.console.server.messages import Answer, Request
from iotmq.secret_text import hide

if TYPE_CHECKING:
    from iotmq.console.access.oidc import Oidc

logger = logging.getLogger("iotmq.http")

_BODY_BYTES_MAX: Final = 4_096
_RETURN_PATH: Final = f"{BASE}/sign-in/oidc/return"
_FIRST_NAME: Final = "first-sign-in"
_NAME: Final = limits.CONSOLE_USER_NAME_CHARACTERS_MAX
_ROLES: Final[dict[Role, RoleName]] = {
    Role.VIEWER: "viewer",
    Role.OPERATOR: "operator",
    Role.ADMINISTRATOR: "administrator",
}


class SignInWays(msgspec.Struct, frozen=True, kw_only=True):
    """The ways to sign in that there are."""

    password: bool
    """Whether somebody has a name and a password."""
    link: bool
    """Whether the link of the log still counts."""
    oidc: str | None
    """The text of the button for an OpenID provider, which leads to `sign-in/oidc`; null: there is none."""
    is_safe: bool
    """Whether this request came by TLS or from this machine; otherwise nobody can sign in."""


class SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name with a password, or the token of the link in the log."""

    user: Annotated[str, Meta(max_length=_NAME)] = ""
    """The name of a user of the console."""
    password: Annotated[str, Meta(max_length=limits.CONSOLE_PASSWORD_BYTES_MAX)] = ""
    """The password of that user."""
    link: Annotated[str, Meta(max_length=limits.CONSOLE_PASSWORD_BYTES_MAX)] = ""
    """The text behind `link=` in the link of the log; then there are neither user nor password."""

    def __post_init__(self) -> None:
        hide(self, "password", "link")


class OidcArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place to come back to."""

    return_to: Annotated[str, Meta(max_length=1_024)] = ""
    """The page of the console to show afterwards: what stands behind its path, from the # on."""


class OidcReturn(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters that a provider adds; others that it has are not looked at."""

    state: Annotated[str, Meta(max_length=512)] = ""
    """Made when it began."""
    code: Annotated[str, Meta(max_length=4_096)] = ""
    """The code of RFC 6749."""
    iss: Annotated[str, Meta(max_length=2_048)] = ""
    """The provider (RFC 9207), from those that say so."""
    error: Annotated[str, Meta(max_length=512)] = ""
    """A word, where nobody has signed in there."""


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The caller."""

    name: str
    role: str
    """viewer, operator or administrator."""
    way: str
    """How that was shown: token, key, password, link, oidc or header."""
    expires_ms: int | None
    """When the session ends if nobody uses it, in milliseconds since 1970; null for callers without one."""
    ends_ms: int | None
    """When it ends in any case."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The request has been done."""

    done: bool = True


class SignedOut(msgspec.Struct, frozen=True, kw_only=True):
    """The session has ended."""

    done: bool = True
    provider: str | None
    """The page where the OpenID provider signs people out, for who has come by it; null: there is none."""


class ConsoleSession(msgspec.Struct, frozen=True, kw_only=True):
    """One browser in which somebody is signed in."""

    id: str
    name: str
    role: str
    way: str
    """password, link, oidc or header."""
    address: str
    agent: str
    """The program, as it calls itself."""
    signed_in_ms: int
    used_ms: int
    """When it was used last, in milliseconds since 1970."""
    is_own: bool
    """Whether this request has come from it."""


class ConsoleSessions(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions, the one that was used last in front."""

    items: list[ConsoleSession]


class SessionArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One session."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    """The id of the session, from the list."""


async def show_sign_in_ways(services: Services, call: Call[NoArguments, None]) -> SignInWays:
    """Show the ways to sign in."""
    access = services.access
    return SignInWays(
        password=access.users is not None and bool(access.users.items),
        link=access.link.is_open,
        oidc=None if access.oidc is None else access.settings.oidc.label,
        is_safe=may_have_session(call.request),
    )


async def sign_in(services: Services, call: Call[NoArguments, SignIn]) -> Answer:
    """Sign in, with a name and a password or with the link of the log; the answer sets the cookie."""
    access, request, body = services.access, call.request, call.body
    if bool(body.link) == bool(body.user):
        raise ProblemError(INVALID, "say user and password, or link")
    _check_is_safe(request)
    way: Way = "link" if body.link else "password"
    try:
        if body.link:
            if not access.link.take(body.link):
                raise SignInFailedError("the link has been used, or is too old; the log has the newest one")
            return _signed_in(access, request, _FIRST_NAME, "administrator", way)
        users = {} if access.users is None else access.users.items
        user = await access.passwords.check(users, body.user, body.password, request.peer)
        if access.users is None or access.users.items.get(user.name) != user:
            # The check takes its time, and what ends the sessions of a user has been there before this one.
            raise SignInFailedError("the user has been changed meanwhile")
    except SignInFailedError as error:
        access.note_sign_in(body.user, way, request.peer, "refused")
        raise ProblemError(UNAUTHENTICATED, str(error)) from None
    except TooManyAttemptsError as error:
        access.note_sign_in(body.user, way, request.peer, "refused")
        raise ProblemError(TOO_MANY, str(error)) from None
    return _signed_in(access, request, user.name, user.role, way, proof=user.kept)


async def begin_oidc_sign_in(services: Services, call: Call[OidcArguments, None]) -> Answer:
    """Send the browser to the OpenID provider; it comes back to `sign-in/oidc/return`."""
    access, request = services.access, call.request
    oidc = _oidc(access)
    _check_is_safe(request)
    try:
        begun = await oidc.begin(_redirect_uri(access, request), call.arguments.return_to)
    except OidcError as error:
        return _not_signed_in(access, request, error)
    return _to(begun.location, access.flow_cookie.set(request, begun.cookie))


async def finish_oidc_sign_in(services: Services, call: Call[OidcReturn, None]) -> Answer:
    """Take the browser back from the OpenID provider, and show it the console."""
    access, request, given = services.access, call.request, call.arguments
    oidc = _oidc(access)
    _check_is_safe(request)
    try:
        if given.iss and given.iss != access.settings.oidc.issuer:
            raise OidcError("refused", "another provider sends the browser back")
        if given.error:
            raise OidcError("refused", f"the provider says {given.error[:64]!a}")
        cookie = access.flow_cookie.token(request)
        person, place = await oidc.finish(cookie, given.state, given.code, _redirect_uri(access, request))
    except OidcError as error:
        return _not_signed_in(access, request, error)
    signed_in = _signed_in(access, request, person.name, person.role, "oidc")
    there = _to(f"{access.base_path}{CONSOLE_PATH}{place}", access.flow_cookie.clear(request))
    return there._replace(headers=there.headers + signed_in.headers)


async def sign_out(services: Services, call: Call[NoArguments, None]) -> Answer:
    """Sign out: the session of the caller ends."""
    access, own = services.access, call.caller.session
    if own is not None:
        access.sessions.end_where(lambda session: session is own)
    is_foreign = own is not None and own.way == "oidc"
    provider = access.oidc.sign_out_location() if access.oidc is not None and is_foreign else None
    return _json(SignedOut(provider=provider), access.cookie.clear(call.request))


async def show_me(services: Services, call: Call[NoArguments, None]) -> Me:
    """Show who the caller is, and what it may do."""
    return _me(
        services.access, call.caller.name, _ROLES[call.caller.role], call.caller.way, call.caller.session
    )


async def list_console_sessions(services: Services, call: Call[NoArguments, None]) -> ConsoleSessions:
    """List the sessions: the caller's own, and for an administrator all."""
    sessions = services.access.sessions
    items = [
        ConsoleSession(
            id=each.id,
            name=each.name,
            role=each.role,
            way=each.way,
            address=each.address,
            agent=each.agent,
            signed_in_ms=each.signed_in_ms,
            used_ms=sessions.used_ms(each),
            is_own=each is call.caller.session,
        )
        for each in sessions.all()
        if _may_see(call.caller, each)
    ]
    return ConsoleSessions(items=items[::-1])


async def end_console_session(services: Services, call: Call[SessionArguments, None]) -> Done:
    """End a session: one of the caller's own, for an administrator any."""
    ended = services.access.sessions.end_where(
        lambda session: session.id == call.arguments.id and _may_see(call.caller, session)
    )
    if not ended:
        raise ProblemError(NOT_FOUND, "there is no such session")
    return Done()


def _oidc(access: Access) -> Oidc:
    if access.oidc is None:
        raise ProblemError(NOT_FOUND, "there is no OpenID provider in the settings (http.sign_in.oidc)")
    return access.oidc


def _redirect_uri(access: Access, request: Request) -> str:
    return f"{own_origin(request)}{access.base_path}{_RETURN_PATH}"


def _to(location: str, *headers: tuple[str, str]) -> Answer:
    return Answer(b"", 303, headers=(("Location", location), *headers))


def _not_signed_in(access: Access, request: Request, error: OidcError) -> Answer:
    """Show the sign-in page, with a word of why; the log has more."""
    access.note_sign_in("", "oidc", request.peer, "refused")
    logger.warning(
        "nobody is signed in by OpenID", extra={"peer": request.peer, "why": error.word, "detail": str(error)}
    )
    return _to(
        f"{access.base_path}{CONSOLE_PATH}#/sign-in?problem={error.word}", access.flow_cookie.clear(request)
    )


def _check_is_safe(request: Request) -> None:
    if not may_have_session(request):
        raise ProblemError(
            FORBIDDEN,
            "passwords and cookies come by TLS or within this machine only: set http.tls_certificate_file, "
            "or http.proxies where a proxy does TLS",
        )


def _signed_in(
    access: Access, request: Request, name: str, role: RoleName, way: Way, *, proof: str = ""
) -> Answer:
    """Begin a session, in the place of one that this browser has had."""
    former = access.cookie.token(request)
    token, session = access.sessions.open(
        name, role, way, address=request.peer, agent=user_agent(request.headers), proof=proof
    )
    if former is not None and (found := access.sessions.find(former)) is not None:
        access.sessions.end_where(lambda each: each is found)
    access.note_sign_in(name, way, request.peer, "done")
    return _json(_me(access, name, role, way, session), access.cookie.set(request, token))


def _me(access: Access, name: str, role: RoleName, way: Way | None, session: Session | None) -> Me:
    return Me(
        name=name,
        role=role,
        way=way or "",
        expires_ms=None if session is None else access.sessions.expires_ms(session),
        ends_ms=None if session is None else access.sessions.ends_ms(session),
    )


def _may_see(caller: Caller, session: Session) -> bool:
    is_own = caller.session is not None and (session.name, session.way) == (caller.name, caller.way)
    return is_own or caller.role is Role.ADMINISTRATOR


def _json(body: msgspec.Struct, *headers: tuple[str, str]) -> Answer:
    return Answer(msgspec.json.encode(body), 200, "application/json", headers)


_AREA: Final = "sign-in"

ROUTES: Final = (
    route("GET", "/sign-in", show_sign_in_ways, tag=_AREA, is_open=True),
    route(
        "POST",
        "/sign-in",
        sign_in,
        tag=_AREA,
        body_bytes_max=_BODY_BYTES_MAX,
        # It notes itself, with the name.
        is_audited=False,
        is_open=True,
        answer=Me,
        problems=(UNAUTHENTICATED, FORBIDDEN, TOO_MANY, INVALID, MALFORMED, MEDIA_TYPE),
    ),
    route(
        "GET",
        "/sign-in/oidc",
        begin_oidc_sign_in,
        tag=_AREA,
        is_open=True,
        problems=(NOT_FOUND, FORBIDDEN),
    ),
    route(
        "GET",
        "/sign-in/oidc/return",
        finish_oidc_sign_in,
        tag=_AREA,
        is_open=True,
        problems=(NOT_FOUND, FORBIDDEN),
    ),
    route("DELETE", "/sign-in", sign_out, tag=_AREA, answer=SignedOut),
    route("GET", "/me", show_me, tag=_AREA),
    route("GET", "/console-sessions", list_console_sessions, tag=_AREA, is_for_people=True),
    route(
        "DELETE",
        "/console-sessions/{id}",
        end_console_session,
        tag=_AREA,
        is_for_people=True,
        problems=(NOT_FOUND,),
    ),
)
