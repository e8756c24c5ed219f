"""Settings of who may connect (section `[mqtt.authentication]` of the configuration)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.setting_types import FileName, SecretText


class AuthenticationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which devices may connect, and how they authenticate."""

    users_file: FileName = ""
    """The file of users, which iotmq users writes: a line NAME:SCRAM-SHA-256$... for each. It is read again
    when it changes, and holds secrets: no other user may read it. Empty: every device may connect."""
    allow_anonymous: bool = False
    """With a users_file: take devices that give neither a user name nor a method, too."""
    reload_interval_s: Annotated[float, Meta(ge=0.01, le=3_600)] = 5.0
    """How often the file is looked at for changes, in seconds."""
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
    def has_to_be_proved(self) -> bool:
        """Return whether a device has to prove who it is."""
        return bool(self.users_file) and not self.allow_anonymous
