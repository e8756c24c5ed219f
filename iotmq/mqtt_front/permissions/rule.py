"""One rule: what it allows or denies, and to whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, NamedTuple

from iotmq.mqtt_front.permissions.topic_template import Subject, TemplateLevels

PUBLISH: Final = 1
SUBSCRIBE: Final = 2
ACTIONS: Final = {"publish": PUBLISH, "subscribe": SUBSCRIBE, "all": PUBLISH | SUBSCRIBE}

NO_RULE: Final = "no rule"
"""Stands for the name of a rule where none fits."""


class Use(NamedTuple):
    """Describe what a device wants to do with a topic or a filter."""

    action: int
    qos: int = 0
    is_retained: bool = False
    is_will: bool = False
    is_delayed: bool = False
    is_shared: bool = False
    is_exclusive: bool = False
    payload_bytes: int = 0


class Decision(NamedTuple):
    """Whether a device may, and the name of the rule that says so; `detail` has more for people."""

    is_allowed: bool
    rule: str
    detail: str = ""
    qos: int = 2
    """The highest QoS that is allowed, of those a subscription asks for."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Narrow a rule to some uses; None: to all."""

    qos: frozenset[int] | None = None
    retain: bool | None = None
    will: bool | None = None
    delayed: bool | None = None
    shared: bool | None = None
    exclusive: bool | None = None
    payload_bytes_max: int | None = None

    def hold(self, use: Use) -> bool:
        """Return whether the rule is for this use, whatever its payload."""
        return not self.missed(use)

    def missed(self, use: Use) -> str:
        """Return the condition that does not hold, as a file says it; empty when all hold."""
        if self.qos is not None and use.qos not in self.qos:
            return f"it is for QoS {', '.join(map(str, sorted(self.qos)))}"
        asked: tuple[tuple[str, bool | None, bool], ...]
        if use.action == PUBLISH:
            asked = (
                ("retain", self.retain, use.is_retained),
                ("will", self.will, use.is_will),
                ("delayed", self.delayed, use.is_delayed),
            )
        else:
            asked = (("shared", self.shared, use.is_shared), ("exclusive", self.exclusive, use.is_exclusive))
        for name, wanted, given in asked:
            if wanted is not None and wanted != given:
                return f"it has {name} = {str(wanted).lower()}"
        return ""


@dataclass(frozen=True, slots=True)
class Who:
    """Those a rule is for: who has one of the values of every kind that is not empty."""

    user: frozenset[str] = frozenset()
    client_id: frozenset[str] = frozenset()
    certificate: frozenset[str] = frozenset()
    role: frozenset[str] = frozenset()
    group: frozenset[str] = frozenset()
    listener: frozenset[str] = frozenset()
    attribute: tuple[tuple[str, frozenset[str]], ...] = ()
    address: tuple[IPv4Network | IPv6Network, ...] = ()

    @property
    def key(self) -> tuple[str, frozenset[str]] | None:
        """Return a kind and values by which the rule is found; None for one that always has to be asked."""
        for kind in ("user", "client_id", "certificate", "role", "group", "listener"):
            values = getattr(self, kind)
            if values:
                return kind, values
        return None

    def includes(self, subject: Subject, roles: frozenset[str]) -> bool:
        """Return whether the rule is for a device with these roles."""
        return (
            (not self.user or subject.user in self.user)
            and (not self.client_id or subject.client_id in self.client_id)
            and (not self.certificate or subject.certificate_identity in self.certificate)
            and (not self.role or not self.role.isdisjoint(roles))
            and (not self.group or not self.group.isdisjoint(subject.groups))
            and (not self.listener or subject.listener in self.listener)
            and (not self.attribute or self._has_attributes(subject))
            and (not self.address or self._has_address(subject))
        )

    def _has_attributes(self, subject: Subject) -> bool:
        if subject.identity is None:
            return False
        known: Mapping[str, str] = subject.identity.attributes
        return all(known.get(name) in values for name, values in self.attribute)

    def _has_address(self, subject: Subject) -> bool:
        if subject.address is None:
            return False
        try:
            address: IPv4Address | IPv6Address = ip_address(subject.address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.address)


EVERYBODY: Final = Who()
ALWAYS: Final = Conditions()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule; its name says where it stands."""

    name: str
    is_allow: bool
    actions: int
    topics: tuple[TemplateLevels, ...]
    who: Who = EVERYBODY
    conditions: Conditions = ALWAYS


def roles_of(subject: Subject, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the roles of a device: those of its identity, and more that are known of its user."""
    return frozenset(more).union(() if subject.identity is None else subject.identity.roles)
