"""Describe who a device proved to be, for all that decides about it later."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

NO_ATTRIBUTES: Final[Mapping[str, str]] = MappingProxyType({})


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a link of the authentication chain gave about a device; shared by its connections.

    A device that nobody asked has none (None at `Device.identity`).
    """

    user: str | None = None
    """None for an anonymous device."""
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    """Further facts, such as claims of a token and fields of a certificate, for rules."""
    permissions: tuple[Mapping[str, object], ...] | None = None
    """Rules that came with the identity, in the order in which they are asked; None: it brought none."""
    limits: Mapping[str, int] | None = None
    """Limits that came with it, by the name of their setting; None: those of the configuration."""
    expires_at_s: float | None = None
    """When it ends, in seconds since 1970; None: never."""
    decided_by: str = ""
    """The name of the link."""
    is_bridge: bool = False
    """Whether it speaks for other devices, too."""
