"""A service of the operator that is asked about each device by HTTP.

    POST URL
    {"client_id": "pump-7", "user_name": "pump", "password": "...", "address": "10.1.2.3", "listener": "tcp",
     "protocol": "5", "certificate": {"subject": {"commonName": ["pump-7"]}, "alternative_names": {...}, ...}}

    200
    {"result": "allow", "user": "pump", "client_id": "pump-7", "roles": [...], "groups": [...],
     "attributes": {...}, "acl": [...], "limits": {...}, "expire_at": 1790000000}

`result` is allow, deny or ignore; all else may be left out. Any other status, a redirect, and what is not of
this form are a failure of the service.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.credentials.service_client import ServiceClient
from iotmq.metrics import Metric
from iotmq.mqtt.reason_codes import NOT_AUTHORIZED
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.verdicts import Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.settings.links import HttpLinkSettings

_PROTOCOLS: Final = {3: "3.1", 4: "3.1.1", 5: "5"}
_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
_NO_STORE: Final = re.compile(r"(?:^|[\s,])(?:no-store|no-cache)\b", re.IGNORECASE)
_DAY_S: Final = 86_400.0

_Name = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_USER_NAME_BYTES_MAX)]
_Names = Annotated[tuple[_Name, ...], Meta(max_length=limits.MQTT_IDENTITY_NAMES_MAX)]


class _Certificate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The client certificate of a question."""

    subject: dict[str, list[str]]
    alternative_names: dict[str, list[str]]
    serial_number: str = ""
    not_after: str = ""


class _QuestionBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tell the service of a device."""

    client_id: str
    listener: str
    protocol: str
    user_name: str | None = None
    password: str | None = None
    password_base64: bytes | None = None
    token: str | None = None
    address: str | None = None
    certificate_identity: str | None = None
    certificate: _Certificate | None = None


class _AnswerBody(msgspec.Struct, frozen=True):
    """Describe what the service may answer."""

    result: Literal["allow", "deny", "ignore"]
    user: _Name | None = None
    client_id: _Name | None = None
    roles: _Names = ()
    groups: _Names = ()
    attributes: Annotated[dict[str, str], Meta(max_length=limits.MQTT_IDENTITY_NAMES_MAX)] = {}
    acl: Annotated[tuple[dict[str, Any], ...], Meta(max_length=limits.MQTT_IDENTITY_NAMES_MAX)] | None = None
    limits: dict[str, Annotated[int, Meta(ge=0)]] | None = None
    expire_at: float | None = None
    is_bridge: bool = False
    reason: Annotated[str, Meta(max_length=512)] = ""


_decode = msgspec.json.Decoder(_AnswerBody).decode
_encode = msgspec.json.Encoder().encode


class HttpLink:
    """Asks a service by HTTP."""

    def __init__(self, settings: HttpLinkSettings) -> None:
        """ConfigError when the roots of its certificate cannot be used."""
        self.name = settings.name
        self._settings = settings
        self._headers = {"content-type": "application/json", **settings.headers}
        self._client = ServiceClient(
            f"link {settings.name}", settings.url, ca_file=settings.ca_file, at_once_max=settings.at_once_max
        )

    async def start(self) -> None:
        """Begin: connections are made when there is something to ask."""

    async def close(self) -> None:
        """End the connections."""
        await self._client.close()

    async def decide(self, asked: Credentials) -> Accepted | Denied | NotMine:
        """Ask about one device."""
        answer = await self._client.ask(
            "POST",
            body=_encode(_question(asked)),
            headers=self._headers,
            bytes_max=limits.MQTT_SERVICE_ANSWER_BYTES_MAX,
        )
        try:
            said = _decode(answer.body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise LinkFailedError(f"the service answers what is no answer: {error}") from error
        cache_s = None
        if self._settings.honours_cache_control:
            cache_s = cache_seconds(answer.headers.get("cache-control", ""))
        if said.result == "ignore":
            return NotMine(cache_s=cache_s)
        if said.result == "deny":
            return Denied(NOT_AUTHORIZED, "service", f"link {self.name}: {said.reason!a}", cache_s=cache_s)
        return Accepted(self._identity(said, asked), client_id=said.client_id, cache_s=cache_s)

    def metrics(self) -> Iterable[Metric]:
        """Report nothing beyond what every link does."""
        return ()

    def _identity(self, said: _AnswerBody, asked: Credentials) -> Identity:
        user = said.user if said.user is not None else asked.user_name
        names = [user, said.client_id, *said.roles, *said.groups]
        if not all(name is None or name.isprintable() for name in names):
            raise LinkFailedError("the service answers a name with control characters")
        if said.expire_at is not None and not math.isfinite(said.expire_at):
            raise LinkFailedError("the service answers with an expire_at that is no time")
        return Identity(
            user=user or None,
            roles=said.roles,
            groups=said.groups,
            attributes=said.attributes,
            permissions=said.acl,
            limits=said.limits,
            expires_at_s=said.expire_at,
            decided_by=self.name,
            is_bridge=said.is_bridge,
        )


def cache_seconds(header: str) -> float | None:
    """Return how long an answer may be remembered by its Cache-Control; None when that does not say."""
    if _NO_STORE.search(header):
        return 0.0
    found = _MAX_AGE.search(header)
    return None if found is None else min(float(found[1]), _DAY_S)


def _question(asked: Credentials) -> _QuestionBody:
    password, password_base64 = _text_or_bytes(asked.password)
    return _QuestionBody(
        client_id=asked.client_id,
        listener=asked.listener,
        protocol=_PROTOCOLS.get(asked.protocol_level, str(asked.protocol_level)),
        user_name=asked.user_name,
        password=password,
        password_base64=password_base64,
        token=None if asked.token is None else asked.token.decode(errors="replace"),
        address=asked.address,
        certificate_identity=asked.certificate_identity,
        certificate=None if asked.certificate is None else _certificate(asked.certificate),
    )


def _text_or_bytes(password: bytes | None) -> tuple[str | None, bytes | None]:
    """Return a password as text, or as bytes when it is none."""
    if password is None:
        return None, None
    try:
        return password.decode(), None
    except UnicodeDecodeError:
        return None, password


def _certificate(shown: Mapping[str, Any]) -> _Certificate:
    subject: dict[str, list[str]] = {}
    for part in shown.get("subject", ()):
        for key, value in part:
            subject.setdefault(str(key), []).append(str(value))
    names: dict[str, list[str]] = {}
    for kind, value in shown.get("subjectAltName", ()):
        names.setdefault(str(kind), []).append(str(value))
    return _Certificate(subject, names, str(shown.get("serialNumber", "")), str(shown.get("notAfter", "")))
