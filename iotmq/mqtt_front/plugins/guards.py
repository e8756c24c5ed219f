"""Keep questions from plug-ins that they would answer wrongly."""

from __future__ import annotations

from typing import Final

from iotmq.mqtt_front.access.verdicts import Credentials
from iotmq.mqtt_front.plugins.known_classes import KnownClass
from iotmq.mqtt_front.settings.plugins import AmqttPluginSettings

# They mean something in a filter of LDAP (RFC 4515), into which the plug-ins put a name as it is.
_LDAP_MARKS: Final = frozenset("*()\\\0")


def is_unguarded_name(name: str | None) -> bool:
    """Return whether a user name, or none, may be shown to a plug-in."""
    return name is None or (bool(name) and name.isprintable())


def is_ldap_name(name: str | None) -> bool:
    """Return whether a name means itself in a filter of LDAP."""
    return bool(name) and _LDAP_MARKS.isdisjoint(name or "")


def guarded_answer(
    settings: AmqttPluginSettings, known: KnownClass, asked: Credentials, password: str | None
) -> tuple[bool, bool | None]:
    """Return whether the plug-in may be asked to authenticate, and else its answer."""
    if not is_unguarded_name(asked.user_name) or not asked.client_id.isprintable():
        return False, False
    if asked.password is not None and password is None:
        # No text: plug-ins know passwords as text only.
        return False, False
    if known.is_ldap and asked.user_name is not None and not is_ldap_name(asked.user_name):
        return False, False
    is_guarded = settings.guard == "password" or (settings.guard == "auto" and known.asks_password)
    if is_guarded and not (asked.user_name and password):
        # An empty password is an anonymous bind to LDAP, and somebody's default elsewhere.
        return False, known.without_user if asked.user_name is None and password is None else False
    return True, None
