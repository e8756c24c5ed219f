"""Define what the HTTP API asks about the identities and permissions of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

_Name = Annotated[str, Meta(min_length=1, max_length=1024)]
_Names = Annotated[tuple[_Name, ...], Meta(max_length=64)]


class AccessQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device, and what it would do."""

    client_id: Annotated[str, Meta(max_length=65_535)]
    """The client id of the device."""
    action: Literal["publish", "subscribe"]
    """The use it would make of the topic."""
    topic: Annotated[str, Meta(min_length=1, max_length=65_535)]
    """The topic or filter as the device has it, with $share/GROUP/, $exclusive/ or $delayed/SECONDS/."""
    user: _Name | None = None
    """The user name; null: it is anonymous."""
    roles: _Names = ()
    """Roles that it has beside those that the file of permissions gives to its user."""
    groups: _Names = ()
    """Groups of it."""
    attributes: Annotated[dict[str, str], Meta(max_length=64)] = {}
    """Attributes of it, such as claims of its token."""
    permissions: Annotated[tuple[dict[str, Any], ...], Meta(max_length=64)] | None = None
    """Rules that come with its identity, as in a token, a database or the answer of a service."""
    certificate: _Name | None = None
    """The identity in its client certificate."""
    address: Annotated[str, Meta(max_length=64)] | None = None
    """The IP address it connects from."""
    listener: _Name | None = None
    """The listener it connects to; null: the first one."""
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    """The QoS of the message or filter."""
    retain: bool = False
    """Whether it would publish with the retain flag."""
    will: bool = False
    """Whether it would be its will."""
    payload_bytes: Annotated[int, Meta(ge=0, le=1 << 32)] = 0
    """The size of the message."""


class AccessDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a device may, and why."""

    is_allowed: bool
    rule: str
    """The rule that has decided."""
    detail: str
    """More about it, in words; empty where there is no more to say."""
    topic: str
    """The topic or filter after rewriting, without its prefix, that was decided about."""
    qos: int
    """The highest QoS that is allowed."""


class AccessRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of the file of permissions."""

    name: str
    is_allow: bool
    """Whether it allows or denies."""
    action: str
    """`publish`, `subscribe` or `all`."""
    topics: list[str]
    who: dict[str, Any]
    """Those it is for, by kind; empty: everybody."""
    conditions: dict[str, Any]
    """The conditions beside topic and action."""


class DeviceAccess(Protocol):
    """The identities and permissions of the settings of a process. Reads files: call it in a thread."""

    def decide(self, question: AccessQuestion) -> AccessDecision:
        """Decide. ConfigError for a question that no device could ask, and for rules that cannot be used."""

    def rules(self) -> list[AccessRule]:
        """Return the rules in their order."""

    def users(self) -> Mapping[str, list[str]]:
        """Return the users of the file of users, with the roles that the file of permissions gives them."""
