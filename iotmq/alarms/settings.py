"""Settings of alarms (section [alarms])."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from iotmq import limits
from iotmq.addresses import is_loopback
from iotmq.alarms.cluster_conditions import DEVICES_SILENT
from iotmq.alarms.condition import LEVELS, Condition, Level, Name, Reads, Seconds, Window, check_says
from iotmq.alarms.conditions import CONDITIONS
from iotmq.secret_text import hide
from iotmq.setting_types import FileName, Port, SecretText
from iotmq.spelling import did_you_mean

Text = Annotated[str, Meta(min_length=1, max_length=limits.ALARM_TEXT_CHARACTERS_MAX)]
Url = Annotated[str, Meta(max_length=2_048, pattern=r"^https?://[^\s/@]+(/\S*)?$")]
# ASCII alone: SMTP servers take other letters with an extension only, and hosts have a form without them.
MailAddress = Annotated[str, Meta(max_length=254, pattern=r"^[!-+\-.-:=?A-~]+@[!-+\-.-:=?A-~]+$")]
LabelName = Annotated[str, Meta(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=64)]


class ConditionChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A built-in condition with other values; what is left out stays as it is."""

    name: Name
    """The name of the condition."""
    is_on: bool = True
    """False switches it off."""
    fires_at: float | None = None
    """The number at which it is met."""
    clears_at: float | None = None
    """The number at which it is over; between the two nothing changes."""
    for_s: Seconds | None = None
    """Seconds it has to be met before it fires."""
    clear_for_s: Seconds | None = None
    """Seconds it has to be over before it ends."""
    window_s: Window | None = None
    """Seconds over which growth is counted, where it is about growth."""
    level: Level | None = None
    """How serious it is."""
    owner: Text | None = None
    """The people who look after it."""
    what_to_do: Text | None = None
    """The sentence that tells them what to do."""


class AlarmRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition of your own over any metric that the process exports."""

    name: Name
    """A name that no other condition has."""
    metric: Annotated[str, Meta(pattern=r"^[a-z_][a-zA-Z0-9_]*$", max_length=128)]
    """The metric, as in /metrics."""
    where: Annotated[dict[LabelName, str], Meta(max_length=16)] = {}
    """Labels that a sample must have, such as { listener = "tls" }."""
    by: Annotated[tuple[LabelName, ...], Meta(max_length=16)] = ()
    """The labels of which each value has an alarm of its own; without any there is one alarm, for the worst
    of all samples."""
    reads: Reads = "value"
    """The number that is compared: `value`; `increase`, how much it has grown in window_s; `rate`, how much a
    second; or `seconds_left`, for a time in seconds since 1970."""
    window_s: Window = 300.0
    """Seconds over which growth is counted."""
    fires_at: float
    """The number at which it is met."""
    clears_at: float
    """The number at which it is over. Below fires_at for what must not grow, above it for what must not
    shrink. Between the two nothing changes, so that an alarm does not come and go."""
    for_s: Seconds = 60.0
    """Seconds it has to be met before it fires."""
    clear_for_s: Seconds = 60.0
    """Seconds it has to be over before it ends."""
    level: Level = "warning"
    """How serious it is."""
    owner: Text = "whoever runs the gateway"
    """The people who look after it."""
    says: Text = "{value}"
    """Says what is wrong. {value} stands for the number, and {LABEL} for a label."""
    what_to_do: Text
    """Says what they should do."""

    def __post_init__(self) -> None:
        if self.fires_at == self.clears_at:
            raise ValueError("fires_at and clears_at have to differ")
        check_says(self.says)

    @property
    def condition(self) -> Condition:
        """Return it as a condition."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "metric"}
        values["where"] = tuple(sorted(self.where.items()))
        return Condition(sources=(self.metric,), **values)


class DeviceWatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices that are missed when they are away: one, or a part of a fleet."""

    name: Name
    """Name of the alarm."""
    client_prefix: Annotated[str, Meta(min_length=1, max_length=limits.ALARM_TEXT_CHARACTERS_MAX)]
    """How their client ids begin; the whole id for one device."""
    silent_s: Annotated[float, Meta(ge=1, le=31_536_000)] = 3600.0
    """Seconds a device has to be away to count as silent."""
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The part of the devices that has to be silent, 1 for all of them."""
    expected: Annotated[int, Meta(ge=0, le=limits.ALARM_SESSIONS_MAX)] = 0
    """How many devices there should be. Those with kept sessions are known without it; devices that leave no
    session behind are known to be missing only by this number."""
    level: Level = "info"
    """How serious it is."""
    owner: Text = "whoever runs the devices"
    """The people who look after it."""

    @property
    def condition(self) -> Condition:
        """Return it as a condition."""
        prefix = self.client_prefix.replace("{", "{{").replace("}", "}}")
        return Condition(
            name=self.name,
            sources=(DEVICES_SILENT,),
            where=(("watch", self.name),),
            by=(),
            fires_at=self.share,
            clears_at=self.share * 0.9,
            clear_for_s=0,
            level=self.level,
            owner=self.owner,
            says=f"devices {prefix}... are away for {self.silent_s:.0f} s or more: {{value}} of "
            "all",
            what_to_do="`iotmq sessions list` shows which; look at their power and their network.",
            is_of_cluster=True,
        )


class ReceiverSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="any"
):
    """A receiver of alarms."""

    name: Name
    """A name that no other receiver has."""
    level: Level = "warning"
    """The least serious alarms that it gets."""
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 10.0
    """Seconds that one try may take. A try that fails is repeated, after longer and longer pauses."""


class GroupedSettings(ReceiverSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="any"):
    """A receiver of notifications, each about a group of alarms."""

    group_by: Annotated[tuple[LabelName, ...], Meta(max_length=16)] = ("alertname",)
    """The labels of which each value has notifications of its own; `alertname` is the alarm's name, `level`
    its level. Without any there is one notification for all."""
    group_wait_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """Seconds that the first alarm of a group waits for others, so that they come together."""
    repeat_s: Annotated[float, Meta(ge=60, le=2_592_000)] = 14_400.0
    """Seconds after which it is told again of what still fires and nobody has acknowledged."""


class WebhookSettings(GroupedSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="webhook"):
    """An HTTP service that gets notifications in the form of Prometheus' Alertmanager (version 4)."""

    url: Url
    """Where they are sent by POST. Redirects are not followed, and no proxy of the environment is used."""
    secret: SecretText = ""
    """With it each request is signed: the header X-Iotmq-Signature has `t=TIME,v1=HEX`, the HMAC-SHA256 of
    TIME, a point and the body."""
    headers: Annotated[dict[str, str], Meta(max_length=16, extra={"is_secret": True})] = {}
    """Further headers, such as { authorization = "Bearer ..." }."""
    ca_file: FileName = ""
    """PEM file with the roots of its certificate; empty for the machine's own."""

    def __post_init__(self) -> None:
        hide(self, "secret", "headers")


class EmailSettings(GroupedSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="email"):
    """E-mail through an SMTP server. Needs `pip install iotmq[email]`."""

    host: Annotated[str, Meta(min_length=1, max_length=255)]
    """The SMTP server."""
    port: Port = 587
    """The TCP port of the server."""
    encryption: Literal["starttls", "tls", "none"] = "starttls"
    """`starttls` refuses to go on without it, `tls` begins with it, and `none` is for a server on this
    machine."""
    ca_file: FileName = ""
    """PEM file with the roots of its certificate; empty for the machine's own."""
    user: Annotated[str, Meta(max_length=255)] = ""
    """User name at the server; empty: none is asked for."""
    password: SecretText = ""
    """The password."""
    sender: MailAddress
    """The address mails come from."""
    to: Annotated[tuple[MailAddress, ...], Meta(min_length=1, max_length=64)]
    """The addresses they go to."""

    def __post_init__(self) -> None:
        hide(self, "password")
        if self.encryption == "none" and not is_loopback(self.host):
            raise ValueError("encryption = none is for a server on this machine")


class AlertmanagerSettings(
    ReceiverSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="alertmanager"
):
    """Prometheus' Alertmanager, which groups, repeats and delivers by itself."""

    url: Url
    """The address, to which /api/v2/alerts is added."""
    headers: Annotated[dict[str, str], Meta(max_length=16, extra={"is_secret": True})] = {}
    """Further headers, such as { authorization = "Bearer ..." }."""
    ca_file: FileName = ""
    """PEM file with the roots of its certificate; empty for the machine's own."""

    def __post_init__(self) -> None:
        hide(self, "headers")


AnyReceiver = WebhookSettings | EmailSettings | AlertmanagerSettings


class AlarmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [alarms]: when something is an alarm, and who is told."""

    enabled: bool = True
    """Whether the process looks for alarms at all."""
    interval_s: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0
    """Seconds between two looks at the numbers of the process."""
    cluster_interval_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """Seconds between two looks at groups, dead letters, brokers and front ends, by all-in-one processes and
    registries; 0: never."""
    process_name: Annotated[str, Meta(max_length=255)] = ""
    """The label `process` of alarms of this process; empty: the name of the machine and the role. Two
    processes of one role on a machine need different ones, or their alarms count as the same."""
    directory: FileName = ""
    """Where alarms are kept over a restart; empty: in the data directory. A front end and a process of
    bridges have none, and forget without this."""
    log_enabled: bool = True
    """Whether the log has a line for each alarm that fires or ends."""
    flapping_count: Annotated[int, Meta(ge=2, le=100)] = 4
    """So often within flapping_s an alarm has to fire until it counts as one that comes and goes."""
    flapping_s: Annotated[float, Meta(ge=1, le=86_400)] = 3600.0
    """Seconds in which that is counted. One that comes and goes ends only after being over for so long."""
    changes: Annotated[tuple[ConditionChange, ...], Meta(max_length=limits.ALARM_RULES_MAX)] = ()
    """Built-in conditions with other values, or switched off."""
    rules: Annotated[tuple[AlarmRule, ...], Meta(max_length=limits.ALARM_RULES_MAX)] = ()
    """Conditions of your own over metrics."""
    devices: Annotated[tuple[DeviceWatch, ...], Meta(max_length=limits.ALARM_RULES_MAX)] = ()
    """Devices that are missed when they are away."""
    receivers: Annotated[tuple[AnyReceiver, ...], Meta(max_length=limits.ALARM_RECEIVERS_MAX)] = ()
    """Receivers, beside the log and the topics below $SYS/broker/alarms/."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Return all conditions that are on, as they are after the changes."""
        change_of = {change.name: change for change in self.changes}
        built_in = (_changed(condition, change_of.get(condition.name)) for condition in CONDITIONS)
        return (
            *(condition for condition in built_in if condition is not None),
            *(rule.condition for rule in self.rules),
            *(watch.condition for watch in self.devices),
        )

    def problems(self) -> Iterator[str]:
        """Find what is refused, each as a sentence that begins with the setting."""
        names = {condition.name: condition for condition in CONDITIONS}
        for change in self.changes:
            if change.name not in names:
                hint = did_you_mean(change.name, {name: name for name in names})
                yield f"alarms.changes has {change.name}, and there is no such condition{hint}"
            elif (changed := _changed(names[change.name], change)) and (
                changed.fires_at == changed.clears_at
            ):
                yield f"alarms.changes: {change.name} fires and clears at the same number"
        for what, given in (
            ("alarms.changes", [each.name for each in self.changes]),
            ("alarms.receivers", [each.name for each in self.receivers]),
            ("alarms.rules and alarms.devices", [*names, *(each.name for each in self._own)]),
        ):
            yield from (f"{what}: the name {name} is there twice" for name in _twice(given))
        for receiver in self.receivers:
            if isinstance(receiver, WebhookSettings | AlertmanagerSettings) and not _has_port(receiver.url):
                yield f"alarms.receivers: the url of {receiver.name} has no valid port"

    @property
    def _own(self) -> tuple[AlarmRule | DeviceWatch, ...]:
        return (*self.rules, *self.devices)


def gets(receiver: ReceiverSettings, level: Level) -> bool:
    """Return whether a receiver is told of alarms of a level."""
    return LEVELS[level] >= LEVELS[receiver.level]


def _changed(condition: Condition, change: ConditionChange | None) -> Condition | None:
    """Return a built-in condition as it is after a change; None when it is off."""
    if change is None:
        return condition
    if not change.is_on:
        return None
    given = {name: getattr(change, name) for name in change.__struct_fields__ if name != "is_on"}
    return replace(condition, **{name: value for name, value in given.items() if value is not None})


def _twice(names: Iterable[str]) -> list[str]:
    given = list(names)
    return sorted({name for name in given if given.count(name) > 1})


def _has_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0 and bool(urlsplit(url).hostname)
    except ValueError:
        return False
