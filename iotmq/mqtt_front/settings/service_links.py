"""Settings of links that ask services who a device is (`[[mqtt.authentication.chain]]`)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq.mqtt_front.settings.links import LinkSettings
from iotmq.setting_types import FileName, SecretText

_Secret = Annotated[SecretText, Meta(min_length=1, max_length=1_024)]
_Statement = Annotated[str, Meta(max_length=16 * 1024)]
_LdapName = Annotated[str, Meta(max_length=1_024)]


class LookedUpSettings(LinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold what links have that read a device's hashed password, and more, from a service."""

    password_required: bool = True
    """False: to be there is enough, whatever the password; for questions with certificate_identity."""
    unknown_users: Literal["deny", "not-mine"] = "not-mine"
    """Whether a device that is not there is for the next link, or denied."""
    connections_max: Annotated[int, Meta(ge=1, le=256)] = 4
    """Connections to the service."""
    threads: Annotated[int, Meta(ge=1, le=64)] = 2
    """Passwords compared at one time, each in a thread of its own."""


class SqlLinkSettings(LookedUpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="sql"):
    """Users in an SQL database."""

    url: _Secret
    """Where it is, in SQLAlchemy's form with a driver for asyncio: postgresql+asyncpg://user:password@host/name
    or sqlite+aiosqlite:////path/of/file.db. Others need their driver installed, such as mysql+asyncmy."""
    statement: _Statement
    """SELECT of the one row of a device. :user_name, :client_id, :address, :listener and
    :certificate_identity stand for what the device says; they are bound, never made into text. Columns that
    are read: password_hash, user, roles, groups, is_bridge, attributes (JSON), permissions (JSON),
    expires_at."""
    permissions_statement: _Statement = ""
    """SELECT of the rows of its permissions, with the columns permission, action, topic and, if there are,
    qos and retain; they follow those of the column permissions. Empty: none."""


class RedisLinkSettings(LookedUpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="redis"):
    """Users in Redis."""

    url: _Secret
    """Where it is: redis://user:password@host:6379/0, rediss:// with TLS, or unix:///path/of/socket."""
    key: Annotated[str, Meta(max_length=1_024)] = "mqtt:{user_name}"
    """Key of the hash of a device, with {user_name}, {client_id}, {address}, {listener} or
    {certificate_identity} in it. Names of others than letters, digits and - _ . @ + = ~ are in no key. Fields
    that are read: as the columns of an sql link."""


class LdapLinkSettings(LinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ldap"):
    """Users in an LDAP directory: an entry is searched, then the device's password is tried on it."""

    url: Annotated[str, Meta(pattern=r"^ldaps?://[^/?]+$", max_length=1_024)]
    """ldaps://host[:636], or ldap://host[:389] with StartTLS."""
    start_tls: bool = True
    """Encrypt a connection to ldap://. False sends passwords in clear, and is taken for loopback only."""
    plain_remote: bool = False
    """True: take start_tls = false for other hosts than loopback, too."""
    ca_file: FileName = ""
    """Certificates that sign the server's (PEM); empty: those of the machine."""
    bind_dn: _LdapName = ""
    """Name of the entry by which the directory is searched; empty: none (an anonymous bind)."""
    bind_password: Annotated[SecretText, Meta(max_length=1_024)] = ""
    """The password of bind_dn."""
    base_dn: _LdapName
    """Below which entry devices are searched."""
    filter: Annotated[str, Meta(min_length=1, max_length=1_024)] = "(uid={user_name})"
    """Filter of the one entry of a device; {user_name}, {client_id} and {certificate_identity} in it are
    escaped."""
    user_attribute: _LdapName = "uid"
    """Attribute that has the user's name as it is written, for directories find names in any case. Empty: the
    name that the device said."""
    role_attribute: _LdapName = ""
    """Attribute of the entry whose values are the device's roles; empty: none."""
    attributes: Annotated[dict[str, str], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    """Attributes of the device, as name = attribute of LDAP, whose first value counts."""
    group_base_dn: _LdapName = ""
    """Below which entry groups are searched; empty: nowhere."""
    group_filter: Annotated[str, Meta(min_length=1, max_length=1_024)] = "(member={dn})"
    """Filter of the device's groups; {dn} is its entry, and {user_name} and the others may be in it, too."""
    group_attribute: Annotated[str, Meta(min_length=1, max_length=1_024)] = "cn"
    """Attribute that has a group's name."""
    group_roles: Annotated[dict[str, str], Meta(max_length=256)] = msgspec.field(default_factory=dict)
    """Roles of the members of groups: group = role."""
    unknown_users: Literal["deny", "not-mine"] = "not-mine"
    """When there is no entry: the device is for the next link, or denied."""
    connections_max: Annotated[int, Meta(ge=1, le=256)] = 4
    """Devices that the directory is asked about at one time, each with a connection for
    searches, and one more while its password is tried."""
