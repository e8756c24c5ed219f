"""Know what amqtt's own plug-ins do, where that is more than what the contract of plug-ins says."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple


class KnownClass(NamedTuple):
    """Describe what is special about a class."""

    asks_password: bool = True
    """Whether it decides by user name and password, so that it is not asked without."""
    without_user: bool | None = False
    """The answer for a device that says neither, which the class then need not be asked for."""
    is_ldap: bool = False
    """Whether a user name becomes a part of an LDAP filter, unescaped."""
    keeps_password: bool = False
    """Whether it looks at the password after the CONNECT, too."""
    proves: Literal["user", "client id", "nothing"] = "user"
    """The part of a device's word that an acceptance proves."""
    filters_by_user: str = ""
    """The option that has the filters of each user, if what they contain is to be checked here."""
    no_by_error: type[Exception] | None = None
    """Raised for a user that the class does not know, in place of a no."""
    denied_topics: tuple[str, ...] = ()
    """Topics that it denies all but `admin`, so that filters that match them are to be denied here."""


OTHERS: Final = KnownClass()
"""Classes that are not amqtt's."""

_AUTHENTICATION: Final = "amqtt.plugins.authentication."
_TOPICS: Final = "amqtt.plugins.topic_checking."
_CONTRIB: Final = "amqtt.contrib."

KNOWN: Final = {
    f"{_AUTHENTICATION}AnonymousAuthPlugin": KnownClass(asks_password=False, proves="nothing"),
    f"{_AUTHENTICATION}FileAuthPlugin": KnownClass(without_user=None),
    f"{_TOPICS}TopicTabooPlugin": KnownClass(denied_topics=("prohibited", "top-secret", "data/classified")),
    f"{_TOPICS}TopicAccessControlListPlugin": KnownClass(filters_by_user="acl"),
    f"{_CONTRIB}auth_db.UserAuthDBPlugin": KnownClass(),
    f"{_CONTRIB}auth_db.TopicAuthDBPlugin": KnownClass(no_by_error=AttributeError),
    f"{_CONTRIB}http.UserAuthHttpPlugin": KnownClass(),
    f"{_CONTRIB}http.TopicAuthHttpPlugin": KnownClass(),
    f"{_CONTRIB}jwt.UserAuthJwtPlugin": KnownClass(without_user=None),
    f"{_CONTRIB}jwt.TopicAuthJwtPlugin": KnownClass(keeps_password=True),
    f"{_CONTRIB}ldap.UserAuthLdapPlugin": KnownClass(is_ldap=True),
    f"{_CONTRIB}ldap.TopicAuthLdapPlugin": KnownClass(is_ldap=True),
    f"{_CONTRIB}cert.UserAuthCertPlugin": KnownClass(asks_password=False, proves="client id"),
}


def known(plugin_class: type) -> KnownClass:
    """Return what is special about a class, or about the one of amqtt's that it derives from."""
    for each in plugin_class.__mro__:
        path = f"{each.__module__}.{each.__qualname__}".replace(".auth_db.plugin.", ".auth_db.")
        if path in KNOWN:
            # What a class of the operator's looks at, nobody knows.
            found = KNOWN[path]
            return found if each is plugin_class else found._replace(asks_password=True, without_user=False)
    return OTHERS
