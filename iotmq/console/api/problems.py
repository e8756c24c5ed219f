"""Problem documents (RFC 9457): each kind with its status, and which error of ours becomes which."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from iotmq.client.admin.cursors import CursorError
from iotmq.client.admin.devices.traces import NoSuchTraceError
from iotmq.console.server.messages import Answer
from iotmq.errors import (
    BrokerError,
    ClientClosedError,
    ClientError,
    ConnectionClosedError,
    IotmqError,
    MessageRefusedError,
    NotMasterError,
    NotSupportedError,
    OffsetMovedError,
    ProducerBusyError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendFailedError,
)
from iotmq.remoting.codes import ResponseCode

_PREFIX: Final = "urn:iotmq:problem:"
_CONTENT_TYPE: Final = "application/problem+json"
_DETAIL_CHARACTERS_MAX: Final = 1000
# Where a busy server may be asked again.
_RETRY_AFTER_S: Final = 1
# `Expected ..., got ... - at `$.limit``
_PLACE: Final = re.compile(r" - at `(key in )?\$(.*)`$")
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class Kind(NamedTuple):
    """A kind of problem."""

    word: str
    status: int
    title: str

    @property
    def uri(self) -> str:
        """Return the `type` of its documents."""
        return _PREFIX + self.word


MALFORMED: Final = Kind("malformed", 400, "The request cannot be read.")
UNAUTHENTICATED: Final = Kind("unauthenticated", 401, "Nobody is signed in.")
FORBIDDEN: Final = Kind("forbidden", 403, "The role of who asks does not allow this.")
NOT_FOUND: Final = Kind("not-found", 404, "There is no such thing.")
METHOD: Final = Kind("method-not-allowed", 405, "The path has other methods.")
CONFLICT: Final = Kind("conflict", 409, "The state of things does not allow this.")
MEDIA_TYPE: Final = Kind("media-type", 415, "The body has another type than is taken here.")
INVALID: Final = Kind("invalid", 422, "A value is not allowed.")
TOO_MANY: Final = Kind("too-many", 429, "Too much is asked at once.")
INTERNAL: Final = Kind("internal", 500, "A fault of the server; its log says more.")
NOT_SUPPORTED: Final = Kind("not-supported", 501, "The broker does not know this.")
UNAVAILABLE: Final = Kind("unavailable", 503, "No broker can do this now.")
UNHEALTHY: Final = Kind("unhealthy", 503, "What was checked is not well.")
TIMEOUT: Final = Kind("timeout", 504, "No answer came in time; the work may have been done.")

KINDS: Final = (
    *(MALFORMED, UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, METHOD, CONFLICT, MEDIA_TYPE),
    *(INVALID, TOO_MANY, INTERNAL, NOT_SUPPORTED, UNAVAILABLE, UNHEALTHY, TIMEOUT),
)


class FieldProblem(msgspec.Struct, frozen=True):
    """A value that is wrong."""

    detail: str
    pointer: str = ""
    """JSON pointer (RFC 6901) to the value in the body; empty for one of the query or path."""
    parameter: str = ""
    """Name of the parameter of query or path; empty for a value of the body."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of an answer that is none (RFC 9457 section 3)."""

    type: str
    title: str
    status: int
    detail: str = ""
    errors: tuple[FieldProblem, ...] = ()
    """The values that are wrong, where that is the problem."""
    code: int | None = None
    """The response code of the broker, where one refused."""


class ProblemError(Exception):
    """A request cannot be answered; raised by handlers and on the way to them."""

    def __init__(
        self, kind: Kind, detail: str, *, errors: tuple[FieldProblem, ...] = (), code: int | None = None
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.errors = errors
        self.code = code

    @property
    def document(self) -> Problem:
        """Return what who asked is told."""
        return Problem(
            type=self.kind.uri,
            title=self.kind.title,
            status=self.kind.status,
            detail=str(self)[:_DETAIL_CHARACTERS_MAX],
            errors=self.errors,
            code=self.code,
        )


def answer_of(error: ProblemError, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """Make the answer."""
    kind = error.kind
    if kind.status in (429, 503):
        headers = (*headers, ("Retry-After", str(_RETRY_AFTER_S)))
    return Answer(msgspec.json.encode(error.document), kind.status, _CONTENT_TYPE, headers)


def invalid(detail: str, *, pointer: str = "", parameter: str = "") -> ProblemError:
    """Return the problem of one wrong value: of the body, at a JSON pointer, or of a parameter."""
    errors = (FieldProblem(detail, pointer, parameter),)
    return ProblemError(INVALID, f"{pointer or parameter or 'the body'}: {detail}", errors=errors)


def invalid_body(error: msgspec.ValidationError) -> ProblemError:
    """Return the problem of a body that has been decoded into a type it does not fit."""
    detail, pointer = _place(str(error))
    return invalid(detail, pointer=pointer)


def invalid_arguments(error: msgspec.ValidationError, choices: Mapping[str, Sequence[str]]) -> ProblemError:
    """Return the problem of parameters that do not fit; `choices` are the words that some may be."""
    detail, pointer = _place(str(error))
    name = pointer.split("/")[1] if pointer else ""
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", detail)
    missing = re.fullmatch(r"Object missing required field `(.*)`", detail)
    if unknown:
        name, detail = unknown[1], "there is no such parameter"
    elif missing:
        name, detail = missing[1], "the parameter is missing"
    elif detail.startswith("Invalid enum value") and name in choices:
        detail += f": one of {', '.join(choices[name])}"
    return invalid(detail, parameter=name)


def from_error(error: IotmqError | ConnectionError) -> ProblemError:
    """Return the problem that an error of the native client is to who asks."""
    if isinstance(error, CursorError):
        return invalid(str(error), parameter="cursor")
    return ProblemError(_kind(error), str(error), code=error.code if isinstance(error, BrokerError) else None)


def _kind(error: IotmqError | ConnectionError) -> Kind:
    match error:
        case NotSupportedError():
            return NOT_SUPPORTED
        case NotMasterError() | ConnectionClosedError() | ClientClosedError() | SendFailedError():
            return UNAVAILABLE
        case BrokerError():
            return _KIND_OF_CODE.get(error.code, CONFLICT)
        case RequestTimeoutError():
            return TIMEOUT
        case ProducerBusyError():
            return TOO_MANY
        case RouteNotFoundError() | NoSuchTraceError():
            return NOT_FOUND
        case MessageRefusedError() | OffsetMovedError() | ClientError():
            return INVALID
    return UNAVAILABLE


_KIND_OF_CODE: Final = {
    int(ResponseCode.SYSTEM_BUSY): UNAVAILABLE,
    int(ResponseCode.SERVICE_NOT_AVAILABLE): UNAVAILABLE,
    int(ResponseCode.TOO_MANY_WAITING): TOO_MANY,
    int(ResponseCode.TOPIC_NOT_EXIST): NOT_FOUND,
    int(ResponseCode.QUERY_NOT_FOUND): NOT_FOUND,
    int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST): NOT_FOUND,
    int(ResponseCode.CONSUMER_NOT_ONLINE): NOT_FOUND,
    int(ResponseCode.MESSAGE_ILLEGAL): INVALID,
    int(ResponseCode.INVALID_PARAMETER): INVALID,
    int(ResponseCode.NO_PERMISSION): FORBIDDEN,
}


def _place(text: str) -> tuple[str, str]:
    """Split a text of msgspec into what is wrong and a JSON pointer to where."""
    found = _PLACE.search(text)
    if found is None:
        return text, ""
    steps = _STEP.findall(found[2])
    return text[: found.start()], "".join(f"/{name or index}" for name, index in steps)
