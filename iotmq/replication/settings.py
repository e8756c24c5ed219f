"""Settings of replication (section `[replication]`)."""

from __future__ import annotations

import ipaddress
import ssl
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.addresses import address_text, parse_address
from iotmq.errors import ConfigError
from iotmq.remoting.tls.files import client_tls
from iotmq.replication.cluster_state import MemberAddress, check_members
from iotmq.replication.consensus.settings import EtcdSettings, KubernetesSettings
from iotmq.replication.ports import MemberSettings
from iotmq.secret_text import hide
from iotmq.setting_types import AccountKey, AccountSecret, FileName

_MEMBER_PATTERN: Final = r"^\d{1,3}=(\[[^\]]+\]|[^:\s]+):\d{1,5}$"
_OPTIONAL_ADDRESS_PATTERN: Final = r"^((\[[^\]]+\]|[^:\s]+):\d{1,5})?$"
_ManyMs = Annotated[int, Meta(ge=100, le=600_000)]


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [replication]: several brokers with one name, of which one is master at a time."""

    mode: Literal["off", "elected", "static"] = "off"
    """off: a broker of its own. elected: a member of a replicated broker. What is acknowledged is on every
    member in sync, and when the master is gone, one of those takes over. static: master or slave as in
    RocketMQ 4.9, whose brokers may be the other one; a slave takes over when an operator restarts it as
    master."""
    role: Literal["async_master", "sync_master", "slave"] = "async_master"
    """Role in mode static. async_master: slaves copy its log. sync_master: sends are answered when a slave
    has them, with status 11 (SLAVE_NOT_AVAILABLE) or 12 (FLUSH_SLAVE_TIMEOUT) when none does; they stay
    stored. slave: copies its master's log and answers pulls."""
    broker_id: Annotated[int, Meta(ge=0, le=limits.BROKER_ID_MAX)] = 0
    """A slave's number among the brokers of its name, from 1. Masters are 0."""
    master_address: Annotated[str, Meta(pattern=_OPTIONAL_ADDRESS_PATTERN, max_length=300)] = ""
    """HOST:PORT of the master's replication port, which is the one behind its native port. Empty: what the
    registries say."""
    allow: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...], Meta(max_length=limits.HA_NETWORKS_MAX)
    ] = ("127.0.0.0/8", "::1")
    """Addresses and networks from which slaves may connect to the replication port of a master. The wire of
    RocketMQ 4.9 has neither accounts nor encryption: whoever connects reads all messages, and may claim to
    have stored them. So only this machine is allowed unless told otherwise."""
    slave_timeout_ms: _ManyMs = 3_000
    """So long a send to a sync_master waits for a slave, in milliseconds."""
    slave_read_enabled: bool = False
    """Send readers that are far behind to a slave: further than 40 % of this machine's memory. At a slave:
    send the others back to the master."""
    vip_port_enabled: bool = False
    """Listen on the native port minus 2, too. A Java slave asks for its master's topics there, and gets none
    without it."""
    consensus: Literal["etcd", "kubernetes"] = "etcd"
    """Where members agree on who is master: an etcd cluster (section [replication.etcd]) or Lease objects of
    Kubernetes (section [replication.kubernetes]). No message goes there. While it is away the master goes on;
    only the choice of another one waits."""
    member: Annotated[int, Meta(ge=0, le=limits.REPLICATION_MEMBER_MAX)] = 0
    """This member's number, from 1; no other member of the broker name may have it. A number stays with its
    data directory; a replaced disk may keep the number."""
    members: Annotated[
        tuple[Annotated[str, Meta(pattern=_MEMBER_PATTERN, max_length=300)], ...],
        Meta(max_length=limits.REPLICATION_MEMBERS_MAX),
    ] = ()
    """Members, as NUMBER=HOST:PORT of their native ports, this one among them. At the first start of a
    replicated broker all of them, the same on all members. Then the set is recorded in the consensus store:
    `iotmq replication add` and `remove` change it there, and this setting changes nothing any more."""
    in_sync_min: Annotated[int, Meta(ge=0, le=limits.REPLICATION_MEMBERS_MAX)] = 0
    """Members, the master among them, that must be in sync, or `when_few` holds; 0 means 1 of two members and
    2 of more."""
    when_few: Literal["auto", "accept", "refuse"] = "auto"
    """Behaviour of the master with fewer members in sync. accept: it goes on alone, and native clients get
    the status 11 (SLAVE_NOT_AVAILABLE); if it is lost then, the others wait for it. refuse: it takes no
    messages until enough are in sync. auto: accept with two members, refuse with more."""
    suspect_ms: _ManyMs = 1_250
    """So long the master may be silent before another member tries to take over, in milliseconds. A master
    whose process has ended is noticed at once."""
    fall_behind_ms: _ManyMs = 2_000
    """A member that has not acknowledged what it was sent for so many milliseconds is in sync no more. Sends
    wait for it until then."""
    copy_bytes_per_s: Annotated[int, Meta(ge=0, le=2**40)] = 0
    """Bytes a second at most for a member that catches up: when this one takes a copy of the master's data,
    and when it is master and another is far behind. 0 is as fast as it goes."""
    access_key: AccountKey = ""
    """Account by which this member opens connections to the others, and a slave to its master; needed where
    `broker.acl_enabled` is set, and then it has to be an administrator's."""
    secret_key: AccountSecret = ""
    """Secret of that account."""
    tls_enabled: bool = False
    """Connect to the other members by TLS."""
    tls_ca_file: FileName = ""
    """PEM file with the roots of their certificates; empty for the machine's own."""
    tls_certificate_file: FileName = ""
    """PEM file with this member's certificate, where the others ask for one; empty for none."""
    tls_key_file: FileName = ""
    """PEM file with its key; empty when the certificate's file has it."""
    etcd: EtcdSettings = EtcdSettings()
    """The etcd cluster."""
    kubernetes: KubernetesSettings = KubernetesSettings()
    """The Kubernetes API."""

    def __post_init__(self) -> None:
        hide(self, "secret_key")

    def tls(self) -> ssl.SSLContext | None:
        """Make the TLS context for other members; None for plain ones. ConfigError for an unusable file."""
        if not self.tls_enabled:
            return None
        return client_tls(
            ca_file=self.tls_ca_file,
            certificate_file=self.tls_certificate_file,
            key_file=self.tls_key_file,
        )

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        """Return member -> host and port of its native port. Raises ConfigError for a number used twice."""
        found: dict[int, tuple[str, int]] = {}
        for text in self.members:
            number, _, address = text.partition("=")
            if int(number) in found:
                raise ConfigError(f"replication.members names member {number} twice")
            found[int(number)] = parse_address(address)
        return found

    @property
    def member_addresses(self) -> tuple[MemberAddress, ...]:
        """Return `members` as the state of a replicated broker has them; the error of `addresses`."""
        addresses = sorted(self.addresses.items())
        return tuple(MemberAddress(member, address_text(*address)) for member, address in addresses)

    @property
    def networks(self) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
        """Return `allow`. Raises ValueError for what is no network."""
        return [ipaddress.ip_network(text) for text in self.allow]

    def problems(self) -> list[str]:
        """Return what is wrong with settings that do not fit each other, a sentence for each."""
        if self.mode == "off":
            return []
        return self._static_problems() if self.mode == "static" else self._elected_problems()

    def _static_problems(self) -> list[str]:
        problems: list[str] = []
        if self.role == "slave":
            if not self.broker_id:
                problems.append(
                    "replication.broker_id is 0, a master's: a slave needs a number of its own from 1"
                )
            if self.vip_port_enabled:
                problems.append("replication.vip_port_enabled is for masters, and replication.role is slave")
        else:
            if self.broker_id:
                problems.append(
                    f"replication.broker_id is {self.broker_id}, and replication.role is {self.role}: "
                    "a master is 0"
                )
            if self.master_address:
                problems.append(
                    f"replication.master_address is for slaves, and replication.role is {self.role}"
                )
        if self.master_address:
            try:
                parse_address(self.master_address)
            except ValueError as error:
                problems.append(f"replication.master_address: {error}")
        for text in self.allow:
            try:
                ipaddress.ip_network(text)
            except ValueError as error:
                problems.append(f"replication.allow: {error}")
        return problems

    def _elected_problems(self) -> list[str]:
        try:
            addresses = self.addresses
        except (ConfigError, ValueError) as error:
            return [str(error)]
        problems: list[str] = []
        if self.member not in addresses:
            problems.append(
                f"replication.member is {self.member}, which replication.members does not name: "
                "members are NUMBER=HOST:PORT"
            )
        try:
            check_members(self.member_addresses)
        except ValueError as error:
            problems.append(f"replication.members: {error}")
        if self.in_sync_min > len(addresses):
            problems.append(
                f"replication.in_sync_min is {self.in_sync_min}, and replication.members names "
                f"{len(addresses)}"
            )
        return problems

    def member_settings(self, *, acknowledge_flushed: bool) -> MemberSettings:
        """Return the settings of the state machine.

        With `acknowledge_flushed` a member has a record when its disk has it.
        """
        return MemberSettings(
            acknowledge_flushed=acknowledge_flushed,
            members=self.member_addresses,
            in_sync_min=self.in_sync_min,
            refuses_when_few=None if self.when_few == "auto" else self.when_few == "refuse",
            suspect_s=self.suspect_ms / 1000,
            fall_behind_s=self.fall_behind_ms / 1000,
            catch_up_bytes_per_s=self.copy_bytes_per_s,
        )
