"""Devices by their client certificate, which the listener has verified: its fields say who one is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, product
from typing import Any, Final, TypeGuard

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.metrics import Metric
from iotmq.mqtt.reason_codes import NOT_AUTHORIZED
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.links.link import told_everything
from iotmq.mqtt_front.access.verdicts import NEVER_MINE, Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.settings.links import CertificateLinkSettings

_PLACE: Final = re.compile(r"\{([^{}]*)\}")
# Fields of the subject as the standard library calls them, with their usual short forms (RFC 4514).
_SUBJECT: Final = {
    "cn": "commonName",
    "ou": "organizationalUnitName",
    "o": "organizationName",
    "c": "countryName",
    "l": "localityName",
    "st": "stateOrProvinceName",
    "serial": "serialNumber",
    "email": "emailAddress",
}
_SHORT: Final = {name: short.upper() for short, name in _SUBJECT.items()}
_ALTERNATIVES: Final = {"san-dns": "DNS", "san-uri": "URI", "san-email": "email", "san-ip": "IP Address"}
FIELDS: Final = frozenset({*_SUBJECT, *_ALTERNATIVES, "dn", "identity"})
# Of values in a distinguished name (RFC 4514 section 2.4).
_ESCAPED: Final = re.compile(r'([,+"\\<>;=])')


class CertificateLink:
    """Makes an identity of a certificate by templates."""

    def __init__(self, settings: CertificateLinkSettings) -> None:
        """ConfigError for a template with a field that certificates do not have."""
        self.name = settings.name
        self._settings = settings
        for setting, templates in (
            ("user", [settings.user]),
            ("client_id", [settings.client_id]),
            ("roles", settings.roles),
            ("groups", settings.groups),
            ("attributes", settings.attributes.values()),
        ):
            for template in templates:
                unknown = [name for name in _PLACE.findall(template) if name not in FIELDS]
                if unknown:
                    raise ConfigError(
                        f"link {self.name}: {setting} = {template!r}: there is no field {{{unknown[0]}}}; "
                        f"those of a certificate are {', '.join(sorted(FIELDS))}"
                    )

    async def start(self) -> None:
        """Begin: there is nothing to do."""

    async def close(self) -> None:
        """Stop: there is nothing to do."""

    def told(self, asked: Credentials) -> bytes | None:
        """Return the certificate, and nothing else that the device says."""
        return told_everything(
            Credentials("", None, None, None, "", asked.certificate_identity, asked.certificate)
        )

    async def decide(self, asked: Credentials) -> Accepted | Denied | NotMine:
        """Decide by the certificate alone."""
        if asked.certificate is None and asked.certificate_identity is None:
            return NEVER_MINE
        fields = _fields(asked)
        settings = self._settings
        user = _first(settings.user, fields)
        if not _is_name(user):
            return self._denied(f"its certificate makes no user name of {settings.user}: {user!a}")
        client_id = None
        if settings.client_id:
            client_id = _first(settings.client_id, fields)
            if not _is_name(client_id):
                return self._denied(
                    f"its certificate makes no client id of {settings.client_id}: {client_id!a}"
                )
        attributes = {name: _first(template, fields) for name, template in settings.attributes.items()}
        identity = Identity(
            user=user,
            roles=_names(settings.roles, fields),
            groups=_names(settings.groups, fields),
            attributes={name: value for name, value in attributes.items() if value is not None},
            decided_by=self.name,
        )
        return Accepted(identity, client_id=client_id)

    def metrics(self) -> Iterable[Metric]:
        """Report nothing beyond what every link does."""
        return ()

    @staticmethod
    def _denied(detail: str) -> Denied:
        return Denied(NOT_AUTHORIZED, "certificate", detail[:256])


def _fields(asked: Credentials) -> Mapping[str, list[str]]:
    """Return the values of every field that the certificate has, in its order."""
    certificate: Mapping[str, Any] = asked.certificate or {}
    subject = [(str(key), str(value)) for part in certificate.get("subject", ()) for key, value in part]
    fields = {short: [value for key, value in subject if key == name] for short, name in _SUBJECT.items()}
    for short, name in _ALTERNATIVES.items():
        found = [str(value) for key, value in certificate.get("subjectAltName", ()) if key == name]
        fields[short] = found
    if subject:
        # The last part first, as RFC 4514 has it.
        fields["dn"] = [
            ",".join(f"{_SHORT.get(key, key)}={_escaped(value)}" for key, value in reversed(subject))
        ]
    if asked.certificate_identity is not None:
        fields["identity"] = [asked.certificate_identity]
    return fields


def _escaped(value: str) -> str:
    return _ESCAPED.sub(r"\\\1", value)


def _filled(template: str, fields: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the template with every combination of the values that its fields have."""
    pieces = _PLACE.split(template)
    choices = [[piece] if at % 2 == 0 else fields.get(piece, []) for at, piece in enumerate(pieces)]
    return map("".join, islice(product(*choices), limits.MQTT_IDENTITY_NAMES_MAX))


def _first(template: str, fields: Mapping[str, list[str]]) -> str | None:
    return next(_filled(template, fields), None)


def _names(templates: Iterable[str], fields: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return what several templates make, without what is there twice."""
    found = dict.fromkeys(
        name for template in templates for name in _filled(template, fields) if _is_name(name)
    )
    return tuple(islice(found, limits.MQTT_IDENTITY_NAMES_MAX))


def _is_name(text: str | None) -> TypeGuard[str]:
    """Return whether a user, a role or a client id may be called so."""
    return (
        text is not None
        and text != ""
        and text.isprintable()
        and len(text.encode()) <= limits.MQTT_USER_NAME_BYTES_MAX
    )
