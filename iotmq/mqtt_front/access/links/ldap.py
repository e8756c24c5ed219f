"""Look users up in an LDAP directory: search the device's entry, then try its password on it (a bind).

What a device says goes into filters escaped, and never into a name (DN). A password that is empty never gets
as far as a bind: servers take that for nobody's, and answer yes (RFC 4513 section 5.1.2).
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.reason_codes import BAD_USER_NAME_OR_PASSWORD
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.links.looked_up import identity_of, looked_at, parameters_of, told
from iotmq.mqtt_front.access.links.loop_thread import LoopThread
from iotmq.mqtt_front.access.scram import can_be_password
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.settings.service_links import LdapLinkSettings

if TYPE_CHECKING:
    from bonsai import LDAPClient, LDAPEntry
    from bonsai.asyncio import AIOLDAPConnection

_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_NAMES: Final = ("user_name", "client_id", "certificate_identity")
# RFC 4515 section 3.
_ESCAPED: Final = str.maketrans({"\\": "\\5c", "*": "\\2a", "(": "\\28", ")": "\\29", "\0": "\\00"})


class LdapLink:
    """A link of the authentication chain, with a loop of its own.

    The library closes sockets while a loop watches them, for which uvloop ends the process. Its calls that
    wait, instead, keep the interpreter from all threads.
    """

    def __init__(self, settings: LdapLinkSettings) -> None:
        """ConfigError when passwords would be sent in clear, a filter is wrong, or the library is missing."""
        self.name = settings.name
        self._settings = settings
        _check_encryption(settings)
        _check_filter(f"{self.name}.filter", settings.filter, _NAMES)
        _check_filter(f"{self.name}.group_filter", settings.group_filter, ("dn", *_NAMES))
        filters = settings.filter + settings.group_filter
        self._names = set(_PLACEHOLDER.findall(filters)) - {"dn"}
        self._searcher = _client(settings, settings.bind_dn, settings.bind_password)
        self._thread = LoopThread("iotmq-ldap")
        # Connections for searches that are not used now.
        self._idle: list[AIOLDAPConnection] = []
        self._turns = asyncio.Semaphore(settings.connections_max)
        # One at a time: the library waits in vain for some of those that are refused together, and keeps
        # their descriptors for ever.
        self._connecting = asyncio.Lock()
        self._searches_total = 0
        self._binds_total = 0
        attributes = [settings.user_attribute, settings.role_attribute, *settings.attributes.values()]
        # "1.1" asks for no attribute (RFC 4511 section 4.5.1.8).
        self._attributes = sorted({name for name in attributes if name}) or ["1.1"]

    async def start(self) -> None:
        """Connections are made when they are needed: a directory that is down stops no start."""

    async def close(self) -> None:
        """Give up the connections, which end with the link."""
        self._thread.close()

    def told(self, asked: Credentials) -> bytes:
        """Return what the answer depends on (links.link.Link)."""
        return told(asked, self._names)

    async def decide(self, asked: Credentials) -> Accepted | Denied | NotMine:
        """LinkFailedError when the directory does not answer, or says what cannot be."""
        if not asked.user_name or not asked.password:
            return NOT_MINE
        password = _password(asked.password)
        if password is None:
            return Denied(BAD_USER_NAME_OR_PASSWORD, "credentials", "no password of a user's form")
        return await self._thread.run(partial(self._decide, asked, password))

    def metrics(self) -> Iterable[Metric]:
        """Report searches and binds."""
        yield from samples(
            ("iotmq_mqtt_ldap_searches_total", "Searches in the directory.", self._searches_total),
            ("iotmq_mqtt_ldap_binds_total", "Passwords tried on entries.", self._binds_total),
            labels=(("link", self.name),),
        )

    # On its own loop

    async def _decide(self, asked: Credentials, password: str) -> Accepted | Denied | NotMine:
        try:
            # Who has asked has given up by then, and is not cancelled here.
            async with asyncio.timeout(self._settings.timeout_s):
                await self._turns.acquire()
        except TimeoutError:
            raise LinkFailedError("no connection to the directory was free in time") from None
        try:
            return await self._look_up(asked, password)
        finally:
            self._turns.release()

    async def _look_up(self, asked: Credentials, password: str) -> Accepted | Denied | NotMine:
        settings = self._settings
        parameters = parameters_of(asked)
        search_filter = _filled(settings.filter, parameters)
        if search_filter is None:
            return NOT_MINE
        entries = await self._search(settings.base_dn, search_filter, self._attributes, 1)
        if not entries:
            if settings.unknown_users == "deny":
                return Denied(BAD_USER_NAME_OR_PASSWORD, "user", "there is no such user")
            return NOT_MINE
        (entry,) = entries
        dn = str(entry.dn)
        if not dn:
            raise LinkFailedError("the directory says that the root is a user")
        if not await self._is_password(dn, password):
            return Denied(BAD_USER_NAME_OR_PASSWORD, "password", "the password is wrong")
        groups: tuple[str, ...] = ()
        group_filter = _filled(settings.group_filter, {**parameters, "dn": dn})
        if settings.group_base_dn and group_filter is not None:
            found = await self._search(
                settings.group_base_dn, group_filter, [settings.group_attribute], limits.LOOKED_UP_NAMES_MAX
            )
            groups = tuple(name for each in found for name in _values(each, settings.group_attribute))
        return Accepted(self._identity(asked, entry, groups))

    def _identity(self, asked: Credentials, entry: LDAPEntry, groups: Sequence[str]) -> Identity:
        settings = self._settings
        roles = _values(entry, settings.role_attribute)
        roles += [role for group, role in settings.group_roles.items() if group in groups]
        fields: dict[str, object] = {
            "user": _user(asked, entry, settings.user_attribute),
            "roles": list(dict.fromkeys(roles)),
            "groups": list(groups),
            "attributes": {
                name: value
                for name, attribute in settings.attributes.items()
                if (value := _first(entry, attribute)) is not None
            },
        }
        if settings.user_attribute and fields["user"] is None:
            raise LinkFailedError(f"the entry has no attribute {settings.user_attribute}")
        found = looked_at(asked, _PLACEHOLDER.findall(settings.filter))
        return identity_of(fields, user_name=found.user_name, decided_by=self.name)

    async def _search(
        self, base: str, search_filter: str, attributes: list[str], entries_max: int
    ) -> list[LDAPEntry]:
        """Return the entries; LinkFailedError past `entries_max`."""
        import bonsai

        self._searches_total += 1
        # A connection that lay idle may be gone, which is known when it is used: then a new one is asked.
        while True:
            connection = self._taken()
            is_fresh = connection is None
            try:
                if connection is None:
                    connection = await self._opened(self._searcher)
                found: list[LDAPEntry] = await connection.search(
                    base,
                    bonsai.LDAPSearchScope.SUB,
                    search_filter,
                    attributes,
                    timeout=self._settings.timeout_s,
                    sizelimit=entries_max,
                )
            except bonsai.SizeLimitError:
                self._close(connection)
                raise LinkFailedError(
                    f"more than {entries_max} entries match {search_filter}"[:200]
                ) from None
            except (bonsai.LDAPError, OSError, TimeoutError) as error:
                self._close(connection)
                # A server that is slow is not asked twice.
                if is_fresh or isinstance(error, TimeoutError):
                    raise LinkFailedError(f"the directory: {_said(error)}") from error
            else:
                self._idle.append(connection)
                return found

    def _taken(self) -> AIOLDAPConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    @staticmethod
    def _close(connection: AIOLDAPConnection | None) -> None:
        if connection is not None:
            connection.close()

    async def _is_password(self, dn: str, password: str) -> bool:
        import bonsai

        assert password, "an empty password is everybody's"
        self._binds_total += 1
        try:
            connection = await self._opened(_client(self._settings, dn, password))
        except bonsai.AuthenticationError:
            return False
        except (bonsai.LDAPError, OSError, TimeoutError) as error:
            raise LinkFailedError(f"the directory: {_said(error)}") from error
        connection.close()
        return True

    async def _opened(self, client: LDAPClient) -> AIOLDAPConnection:
        async with asyncio.timeout(self._settings.timeout_s):
            await self._connecting.acquire()
        try:
            opening: Any = client.connect(is_async=True, timeout=self._settings.timeout_s)
            opened: AIOLDAPConnection = await opening
            return opened
        finally:
            self._connecting.release()


def escaped(text: str) -> str:
    """Return text as a value in a filter, whatever is in it."""
    return text.translate(_ESCAPED)


def _filled(template: str, parameters: Mapping[str, str | None]) -> str | None:
    """Return the filter; None when the device lacks something, for an empty value is another question."""
    if not all(parameters[name] for name in _PLACEHOLDER.findall(template)):
        return None
    return _PLACEHOLDER.sub(lambda found: escaped(parameters[found[1]] or ""), template)


def _check_filter(setting: str, template: str, names: Sequence[str]) -> None:
    found = _PLACEHOLDER.findall(template)
    if unknown := sorted(set(found).difference(names)):
        raise ConfigError(
            f"{setting} has {{{unknown[0]}}}, which is none of {', '.join(f'{{{name}}}' for name in names)}"
        )
    if not found:
        raise ConfigError(f"{setting} asks for no device: it has none of {{{'}, {'.join(names)}}}")
    if template[:1] != "(" or template.count("(") != template.count(")"):
        raise ConfigError(f"{setting} is no filter, such as (uid={{user_name}})")


def _check_encryption(settings: LdapLinkSettings) -> None:
    url = urlsplit(settings.url)
    is_encrypted = url.scheme == "ldaps" or settings.start_tls
    if is_encrypted or settings.plain_remote or _is_loopback(url.hostname or ""):
        return
    raise ConfigError(
        f"{settings.name}.start_tls is false and {settings.url} is not loopback: passwords would be sent in "
        f"clear; {settings.name}.plain_remote = true takes that"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _client(settings: LdapLinkSettings, user: str, password: str) -> LDAPClient:
    try:
        import bonsai
    except ImportError:
        raise ConfigError(f"{settings.name} needs bonsai: pip install iotmq[ldap]") from None
    client = bonsai.LDAPClient(settings.url, settings.start_tls and settings.url.startswith("ldap://"))
    client.set_cert_policy("demand")
    if settings.ca_file:
        client.set_ca_cert(settings.ca_file)
    client.set_ignore_referrals(True)
    client.set_server_chase_referrals(False)
    if user:
        client.set_credentials("SIMPLE", user=user, password=password)
    return client


def _password(password: bytes) -> str | None:
    if not can_be_password(password):
        return None
    try:
        return password.decode()
    except UnicodeDecodeError:
        return None


def _values(entry: LDAPEntry, attribute: str) -> list[str]:
    return [str(value) for value in entry.get(attribute, [])] if attribute else []


def _user(asked: Credentials, entry: LDAPEntry, attribute: str) -> str | None:
    """Return the name as the directory writes it, which finds it in any case; of several the one asked."""
    names = _values(entry, attribute)
    same = (name for name in names if name.casefold() == (asked.user_name or "").casefold())
    return next(same, next(iter(names), None))


def _first(entry: LDAPEntry, attribute: str) -> str | None:
    return next(iter(_values(entry, attribute)), None)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
