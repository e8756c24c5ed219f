"""Make a verdict of what a service says of a device: fields by name, such as columns or entries of a hash.

A service may lie, or be asked by a wrong statement: what is not of its form, or past a limit, is an error,
and the chain refuses the device. Nothing is guessed, because half of somebody's rules may be too much.
"""

from __future__ import annotations

import asyncio
import datetime
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from iotmq import limits
from iotmq.mqtt.reason_codes import BAD_USER_NAME_OR_PASSWORD
from iotmq.mqtt_front.access.identity import NO_ATTRIBUTES, Identity
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.password_hashes import PasswordHashError, is_password
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.settings.service_links import LookedUpSettings

FIELDS: Final = (
    "password_hash",
    "user",
    "roles",
    "groups",
    "is_bridge",
    "attributes",
    "permissions",
    "expires_at",
)
"""The fields that are read; others that a service has are left alone."""

PARAMETERS: Final = ("user_name", "client_id", "address", "listener", "certificate_identity")
"""The facts about a device that questions may name."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TRUE: Final = frozenset({"1", "true", "t", "yes", "on"})
_FALSE: Final = frozenset({"", "0", "false", "f", "no", "off"})
_PERMISSION_KEYS: Final = frozenset({"permission", "action", "topic", "qos", "retain"})


def parameters_of(asked: Credentials) -> dict[str, str | None]:
    """Return the facts by the names in PARAMETERS. LinkFailedError for text that no service takes."""
    found = {
        "user_name": asked.user_name,
        "client_id": asked.client_id,
        "address": asked.address,
        "listener": asked.listener,
        "certificate_identity": asked.certificate_identity,
    }
    for name, value in found.items():
        if value is not None and "\0" in value:
            raise LinkFailedError(f"the {name} has a NUL")
    return found


def told(asked: Credentials, names: Iterable[str], *, with_password: bool = True) -> bytes:
    """Return what an answer depends on that these facts, the user name and the password decide about."""
    parameters = parameters_of(asked)
    password = asked.password if with_password else None
    return msgspec.msgpack.encode(([parameters[name] for name in sorted(names)], asked.user_name, password))


def looked_at(asked: Credentials, names: Iterable[str]) -> Credentials:
    """Return the device as a question that names these facts finds it.

    A user name that was not asked for is what the device says, and could be anybody's.
    """
    return asked if "user_name" in names else asked._replace(user_name=None)


class LookedUp:
    """Judges by what was found; passwords are hashed in threads of its own."""

    def __init__(self, settings: LookedUpSettings, *, wall_s: Callable[[], float] = time.time) -> None:
        self._name = settings.name
        self._hashing = ThreadPoolExecutor(settings.threads, thread_name_prefix="iotmq-hash")
        self._needs_password = settings.password_required
        self._unknown: Denied | NotMine = NOT_MINE
        if settings.unknown_users == "deny":
            self._unknown = Denied(BAD_USER_NAME_OR_PASSWORD, "user", "there is no such user")
        self._wall_s = wall_s
        # The last hash that was looked at: names that are not there cost as much as those that are.
        self._usual_hash: str | None = None

    def close(self) -> None:
        """Stop hashing."""
        self._hashing.shutdown(wait=False, cancel_futures=True)

    def told(self, asked: Credentials, names: Iterable[str]) -> bytes:
        """Return what an answer depends on that these facts decide about (links.link.Link)."""
        return told(asked, names, with_password=self._needs_password)

    def is_question(self, asked: Credentials) -> bool:
        """Return whether the device has what the link needs."""
        return not self._needs_password or bool(asked.user_name and asked.password)

    async def verdict(
        self,
        asked: Credentials,
        fields: Mapping[str, object] | None,
        permission_rows: Sequence[Mapping[str, object]] | None = None,
    ) -> Accepted | Denied | NotMine:
        """Return the verdict. `fields` is None when the service knows nobody. LinkFailedError: see there."""
        if fields is None:
            if self._needs_password and self._usual_hash is not None:
                await self._is_password(self._usual_hash, asked.password or b"")
            return self._unknown
        if self._needs_password:
            kept = fields.get("password_hash")
            if not isinstance(kept, str) or not kept:
                raise LinkFailedError("there is no password_hash, or it is no text")
            self._usual_hash = kept
            if not await self._is_password(kept, asked.password or b""):
                return Denied(BAD_USER_NAME_OR_PASSWORD, "password", "the password is wrong")
        identity = identity_of(
            fields, user_name=asked.user_name, decided_by=self._name, permission_rows=permission_rows
        )
        if identity.expires_at_s is not None and identity.expires_at_s <= self._wall_s():
            return Denied(BAD_USER_NAME_OR_PASSWORD, "expired", "expires_at is over")
        return Accepted(identity)

    async def _is_password(self, kept: str, password: bytes) -> bool:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._hashing, is_password, kept, password)
        except PasswordHashError as error:
            raise LinkFailedError(f"password_hash: {error}") from error


def identity_of(
    fields: Mapping[str, object],
    *,
    user_name: str | None,
    decided_by: str,
    permission_rows: Sequence[Mapping[str, object]] | None = None,
) -> Identity:
    """Return who the fields say it is. LinkFailedError names the field that is not of its form."""
    size = sum(_size(fields.get(name)) for name in FIELDS) + sum(map(_size, permission_rows or ()))
    if size > limits.LOOKED_UP_BYTES_MAX:
        raise LinkFailedError(f"it has {size} bytes; {limits.LOOKED_UP_BYTES_MAX} are allowed")
    user = fields.get("user")
    if user is None:
        user = user_name
    if user is not None and not (
        isinstance(user, str)
        and user
        and len(user.encode()) <= limits.MQTT_USER_NAME_BYTES_MAX
        and not _CONTROL.search(user)
    ):
        raise LinkFailedError("user is no name")
    permissions = _permissions(fields.get("permissions"))
    if permission_rows is not None:
        permissions = (*(permissions or ()), *map(_permission, permission_rows))
    if permissions is not None and len(permissions) > limits.LOOKED_UP_PERMISSIONS_MAX:
        raise LinkFailedError(f"permissions has more than {limits.LOOKED_UP_PERMISSIONS_MAX} entries")
    return Identity(
        user=user,
        roles=names_of("roles", fields.get("roles")),
        groups=names_of("groups", fields.get("groups")),
        attributes=_attributes(fields.get("attributes")),
        permissions=permissions,
        expires_at_s=_time_s(fields.get("expires_at")),
        decided_by=decided_by,
        is_bridge=_is_true(fields.get("is_bridge")),
    )


def names_of(field: str, value: object) -> tuple[str, ...]:
    """Return the names in a list, in a JSON list, or in text with commas."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = _json(field, value) if value.startswith("[") else value.split(",")
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise LinkFailedError(f"{field} is neither a list of names nor text with commas")
    if len(value) > limits.LOOKED_UP_NAMES_MAX:
        raise LinkFailedError(f"{field} has more than {limits.LOOKED_UP_NAMES_MAX} names")
    return tuple(stripped for name in value if (stripped := name.strip()))


def _attributes(value: object) -> Mapping[str, str]:
    if value is None or value == "":
        return NO_ATTRIBUTES
    if isinstance(value, str):
        value = _json("attributes", value)
    if not isinstance(value, Mapping):
        raise LinkFailedError("attributes is no object")
    if len(value) > limits.LOOKED_UP_ATTRIBUTES_MAX:
        raise LinkFailedError(f"attributes has more than {limits.LOOKED_UP_ATTRIBUTES_MAX} entries")
    found = {}
    for name, text in value.items():
        if isinstance(text, bool):
            text = "true" if text else "false"
        if not isinstance(text, (str, int, float)) or not isinstance(name, str):
            raise LinkFailedError(f"attribute {str(name)[:64]!a} is neither text nor a number")
        found[name] = str(text)
    return found


def _permissions(value: object) -> tuple[Mapping[str, object], ...] | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = _json("permissions", value)
    if not isinstance(value, (list, tuple)):
        raise LinkFailedError("permissions is no list")
    return tuple(map(_permission, value))


def _permission(entry: object) -> Mapping[str, object]:
    """Return a rule; one that names nothing of `qos` or `retain` leaves them out, as columns with NULL do."""
    if not isinstance(entry, Mapping):
        raise LinkFailedError("an entry of permissions is no object")
    rule = {str(name): value for name, value in entry.items() if value is not None}
    if not all(isinstance(rule.get(name), str) for name in ("permission", "action", "topic")):
        raise LinkFailedError("an entry of permissions has no permission, action or topic")
    if unknown := sorted(rule.keys() - _PERMISSION_KEYS):
        # It may be what makes the rule narrower.
        raise LinkFailedError(f"an entry of permissions has {unknown[0][:64]!a}, which is unknown")
    if "qos" in rule:
        rule["qos"] = _qos(rule["qos"])
    if "retain" in rule:
        rule["retain"] = _retain(rule["retain"])
    return rule


def _qos(value: object) -> list[int]:
    if isinstance(value, str):
        value = _json("qos", value) if value.startswith("[") else value.split(",")
    if not isinstance(value, (list, tuple)):
        value = [value]
    try:
        found = sorted({int(str(each)) for each in value if not isinstance(each, (bool, float))})
    except ValueError:
        found = []
    if not found or not set(found) <= {0, 1, 2} or len(value) > 3:
        raise LinkFailedError("qos of a permission is not of 0, 1 and 2")
    return found


def _retain(value: object) -> object:
    return value if value == "all" else _is_true(value)


def _time_s(value: object) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            return _finite(float(value))
        except ValueError:
            pass
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            raise LinkFailedError("expires_at is no time") from None
    if isinstance(value, datetime.datetime):
        # Without a zone it is that of the service, which nobody knows: UTC.
        return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise LinkFailedError("expires_at is no time")
    return _finite(float(value))


def _finite(number: float) -> float:
    if not 0 <= number < 1e11:
        raise LinkFailedError("expires_at is not in seconds since 1970")
    return number


def _is_true(value: object) -> bool:
    if value is None:
        return False
    text = str(int(value)) if isinstance(value, bool) else str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise LinkFailedError(f"{text[:64]!a} is neither true nor false")


def _json(field: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        raise LinkFailedError(f"{field} is no JSON") from None


def _size(value: object) -> int:
    """Return about how much text a value is."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(name) + _size(each) for name, each in value.items())
    if isinstance(value, Iterable):
        return sum(map(_size, value))
    return 16
