"""Settings of who may connect (section `[mqtt.authentication]` of the configuration)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.mqtt.auth.method_names import SCRAM_METHOD, TOKEN_METHOD
from iotmq.mqtt_front.settings.links import (
    CertificateLinkSettings,
    HttpLinkSettings,
    JwtLinkSettings,
    UsersLinkSettings,
)
from iotmq.mqtt_front.settings.plugins import AmqttLinkSettings
from iotmq.mqtt_front.settings.service_links import LdapLinkSettings, RedisLinkSettings, SqlLinkSettings
from iotmq.setting_types import FileName, SecretText

NOBODY: Final = "anonymous"
"""The chain of a listener where nobody is asked who it is."""
AnyLinkSettings = (
    UsersLinkSettings
    | CertificateLinkSettings
    | JwtLinkSettings
    | HttpLinkSettings
    | SqlLinkSettings
    | LdapLinkSettings
    | RedisLinkSettings
    | AmqttLinkSettings
)


class AuthenticationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which devices may connect, and how they authenticate."""

    users_file: FileName = ""
    """The file of users, which iotmq users writes: a line NAME:SCRAM-SHA-256$... or NAME:$argon2id$...
    for each. It is read again when it changes, and holds secrets: no other user may read it. Empty, without
    a chain: every device may connect."""
    chain: Annotated[tuple[AnyLinkSettings, ...], Meta(max_length=limits.MQTT_LINKS_MAX)] = ()
    """Links that are asked one after the other until one allows or denies. At the end of the chain a device
    is denied; so it is when a link fails or is late."""
    allow_anonymous: bool = False
    """With a users_file or a chain: take devices that give neither a user name, a password nor a method, too,
    when no link knows them."""
    client_ids: Literal["any", "user", "prefix"] = "any"
    """Which client ids a device may have: any; its user name only ("user"); or its user name, alone or with
    client_id_separator and anything behind it ("prefix"). So nobody takes over the session of another. A
    device that asks for none gets one that it may have."""
    client_id_separator: Annotated[str, Meta(min_length=1, max_length=8)] = ":"
    """With client_ids = "prefix": what stands behind the user name. User names that have it in them are
    refused."""
    reload_interval_s: Annotated[float, Meta(ge=0.01, le=3_600)] = 5.0
    """How often the file is looked at for changes, in seconds."""
    password_hash: Literal["scram-sha-256", "argon2id"] = "scram-sha-256"
    """The form in which iotmq users keeps a password with these settings. A verifier of
    SCRAM-SHA-256 is for passwords and exchanges; a hash of argon2id is for passwords alone, and each guess at
    it takes 19 MiB and about 30 ms of a core."""
    scram_iterations: Annotated[int, Meta(ge=limits.SCRAM_ITERATIONS_MIN, le=limits.SCRAM_ITERATIONS_MAX)] = (
        limits.SCRAM_ITERATIONS_MIN
    )
    """How much work a guess at a password is, for those that iotmq users writes with these settings, and for
    names without a user. 4,096 take one to two milliseconds of a core, 600,000 a third of a second; each user
    costs that once after a start of a front end, so a fleet of 100,000 keeps a core busy for two minutes with
    4,096 and for eight hours with 600,000. Take more where the file may be stolen and people chose the
    passwords."""
    threads: Annotated[int, Meta(ge=1, le=64)] = 2
    """Passwords compared at one time, each in a thread of its own."""
    waiting_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    """CONNECTs that may wait for one of these threads; more are refused as busy (0x89, before MQTT 5 return
    code 3)."""
    verified_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 100_000
    """Users whose last right password is remembered as a keyed digest, so that a device that comes back costs
    microseconds; about 150 bytes each. 0 remembers none."""
    failures_per_minute_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 100
    """Failures of one address in a minute (of IPv6, of its /64); past that its devices are refused until the
    minute is over (0x9F, before MQTT 5 return code 3). Devices behind one NAT or proxy share an address, but
    a user whose password was right from there before is counted alone. 0 = no limit."""
    unknown_users_secret: Annotated[SecretText, Meta(max_length=1_024)] = ""
    """Any text, the same at all front ends. SCRAM salts of unknown names are made of it, so that SCRAM does
    not tell which names exist. Empty: a new one for each start of iotmq, which workers share."""

    @property
    def is_asked(self) -> bool:
        """Return whether there is anything by which a device can say who it is."""
        return bool(self.users_file or self.chain)

    @property
    def methods(self) -> frozenset[str]:
        """Return the authentication methods of MQTT 5 that some link takes."""
        kinds = {type(link) for link in self.chain}
        has_users = UsersLinkSettings in kinds or (bool(self.users_file) and not self.chain)
        return frozenset(
            method
            for method, is_taken in ((SCRAM_METHOD, has_users), (TOKEN_METHOD, JwtLinkSettings in kinds))
            if is_taken
        )

    def keeping_copies(self, directory: Path) -> AuthenticationSettings:
        """Return these settings with fetched sets of keys kept in a directory, unless they say where."""
        chain = tuple(
            msgspec.structs.replace(link, jwks_copy_file=str(directory / f"{link.name}.json"))
            if isinstance(link, JwtLinkSettings) and link.jwks_url and not link.jwks_copy_file
            else link
            for link in self.chain
        )
        return msgspec.structs.replace(self, chain=chain)

    @property
    def problems(self) -> Iterator[str]:
        """Yield what does not go together."""
        names = [link.name for link in self.chain]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"chain with two links of the name {name}"
        if NOBODY in names:
            yield f"chain with a link of the name {NOBODY}, by which listeners say that nobody is asked,"
        of_file = [link for link in self.chain if isinstance(link, UsersLinkSettings) and not link.file]
        if of_file and not self.users_file:
            yield f"chain with the link {of_file[0].name}, which has no file while there is no users_file,"
        if self.chain and self.users_file and not of_file:
            yield "users_file beside a chain without a link of kind users that has no file of its own"
        if self.client_ids != "any" and self.allow_anonymous:
            yield f"client_ids = {self.client_ids} with allow_anonymous (who is nobody could have a user's),"
