"""Alarms of the process, and of the cluster where the process looks at it."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.alarms.alarm import Acknowledgement
from iotmq.alarms.alarm import Alarm as KnownAlarm
from iotmq.alarms.book import TooManySilencesError
from iotmq.alarms.condition import Condition as KnownCondition
from iotmq.alarms.condition import Level
from iotmq.alarms.receivers.sender import DeliveryError
from iotmq.alarms.role import AlarmsRole
from iotmq.alarms.silence import LabelText
from iotmq.alarms.silence import Silence as KnownSilence
from iotmq.console.api.pages import PageArguments, page_of
from iotmq.console.api.problems import CONFLICT, NOT_FOUND, NOT_SUPPORTED, ProblemError, invalid
from iotmq.console.api.route import Call, NoArguments, Role, route
from iotmq.console.api.routes.names import TimeMs
from iotmq.console.api.services import Services

_SILENCE_MS_MAX: Final = 366 * 86_400_000

Text = Annotated[str, Meta(max_length=limits.ALARM_TEXT_CHARACTERS_MAX)]
Reason = Annotated[str, Meta(min_length=1, max_length=limits.ALARM_TEXT_CHARACTERS_MAX)]
SilenceName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$", max_length=64)]


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """An alarm."""

    id: str
    """Follows from name and labels: the same alarm has it again the next time, and in every process."""
    name: str
    labels: dict[str, str]
    level: Level
    state: str
    """`pending`: met, but not for long enough yet; `firing`; `ended`."""
    says: str
    """Says what is wrong."""
    what_to_do: str
    owner: str
    """The people who look after such alarms."""
    value: float
    """The number that was seen last."""
    since_ms: int
    """When its condition was met first, in milliseconds since 1970."""
    fired_ms: int
    """When it fired; 0: it is pending."""
    ended_ms: int
    """When it ended; 0: it has not."""
    ended_by: str
    """The one who ended it by hand; empty: nobody."""
    acknowledged: Acknowledgement | None
    is_flapping: bool
    """Whether it comes and goes, and ends only after a longer rest."""
    is_silenced: bool
    """Whether nobody is told of it now."""


class Alarms(msgspec.Struct, frozen=True, kw_only=True):
    """A page of alarms, by name."""

    items: list[Alarm]
    next: str | None = None
    """The cursor of the next page; null behind the last one."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Alarms that have ended, the last one first."""

    items: list[Alarm]


class HistoryArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of them."""

    name: Text = ""
    """Only alarms of this name."""
    limit: Annotated[int, Meta(ge=1, le=limits.ALARMS_ENDED_MAX)] = 100
    """The most items."""


class AlarmArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One alarm."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    """The id of the alarm."""


class Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A word with an acknowledgement."""

    note: Text = ""
    """Shown beside the alarm."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition as it is after the settings."""

    name: str
    sources: tuple[str, ...]
    """The metrics it looks at, or the names of what a look at the cluster finds."""
    reads: str
    """The number that is compared: `value`, `increase`, `rate` or `seconds_left`."""
    fires_at: float
    clears_at: float
    for_s: float
    clear_for_s: float
    level: Level
    owner: str
    says: str
    what_to_do: str
    is_of_cluster: bool


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """All conditions that are on."""

    items: list[Condition]


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of alarms."""

    name: str
    kind: str
    level: Level
    """The least serious alarms that it gets."""
    delivered: int
    """Notifications that it has taken since the start."""
    delivered_ms: int
    """When it took the last one, in milliseconds since 1970; 0: none yet."""
    failing_s: float
    """For how long every try has failed; 0: the last one has not."""
    failed_reason: str | None
    """Why the last try failed."""


class Receivers(msgspec.Struct, frozen=True, kw_only=True):
    """All receivers of the settings."""

    items: list[Receiver]
    tells_cluster: bool
    """Whether this process tells them of the alarms of the cluster; one process does."""


class Test(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A receiver to try."""

    receiver: Annotated[str, Meta(min_length=1, max_length=64)]
    """The name of the receiver."""


class Tested(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a test."""

    receiver: str
    is_delivered: bool
    reason: str | None
    """Why it was not taken."""


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """Alarms that nobody is told of until a time."""

    name: str
    alarm: str
    labels: dict[str, str]
    until_ms: int
    reason: str
    by: str
    made_ms: int


class Silences(msgspec.Struct, frozen=True, kw_only=True):
    """All silences that are not over, by name."""

    items: list[Silence]


class SilenceArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One silence."""

    name: SilenceName
    """The name of the silence."""


class NewSilence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A silence to be made: of which alarms, until when and why."""

    alarm: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-z0-9*-]+$")] = "*"
    """The name of the alarms; `*` in it stands for anything."""
    labels: Annotated[dict[LabelText, LabelText], Meta(max_length=16)] = {}
    """Labels that the alarms must have."""
    until_ms: TimeMs
    """When it ends, in milliseconds since 1970; at most a year from now."""
    reason: Reason
    """Shown with the silence."""


async def list_alarms(services: Services, call: Call[PageArguments, None]) -> Alarms:
    """List the alarms that fire, and those that are about to, by name."""
    alarms = _alarms(services)
    items, next_cursor = page_of(alarms.book.engine.current.values(), call.arguments, _key)
    return Alarms(items=[_shown(alarms, each) for each in items], next=next_cursor)


async def list_ended_alarms(services: Services, call: Call[HistoryArguments, None]) -> History:
    """List the alarms that have ended, the last one first."""
    alarms = _alarms(services)
    name = call.arguments.name
    found = [each for each in reversed(alarms.book.engine.ended) if name in ("", each.name)]
    return History(items=[_shown(alarms, each) for each in found[: call.arguments.limit]])


async def acknowledge_alarm(services: Services, call: Call[AlarmArguments, Note]) -> Alarm:
    """Say that one looks after an alarm: it is not repeated any more. Its end is told."""
    alarms = _alarms(services)
    try:
        alarm = alarms.book.acknowledge(call.arguments.id, by=call.caller.name, note=call.body.note)
    except KeyError:
        raise _no_alarm(call.arguments.id) from None
    alarms.shared.acknowledge(alarm)
    alarms.changed()
    return _shown(alarms, alarm)


async def end_alarm(services: Services, call: Call[AlarmArguments, None]) -> Alarm:
    """End an alarm by hand, as for a broker that is gone for good. It fires again when it is met again."""
    alarms = _alarms(services)
    try:
        event = alarms.book.end(call.arguments.id, by=call.caller.name)
    except KeyError:
        raise _no_alarm(call.arguments.id) from None
    alarms.changed([event])
    return _shown(alarms, event.alarm)


async def list_conditions(services: Services, _call: Call[NoArguments, None]) -> Conditions:
    """List the conditions that are on, with their marks."""
    return Conditions(items=[_condition(each) for each in _alarms(services).book.conditions])


async def list_receivers(services: Services, _call: Call[NoArguments, None]) -> Receivers:
    """List those who are told of alarms, and how that goes."""
    alarms = _alarms(services)
    items = [
        Receiver(
            name=name,
            kind=delivery.kind,
            level=delivery.level,
            delivered=delivery.delivered_count,
            delivered_ms=delivery.delivered_ms,
            failing_s=delivery.failing_s,
            failed_reason=delivery.failed_reason,
        )
        for name, delivery in sorted(alarms.deliveries.items())
    ]
    return Receivers(items=items, tells_cluster=alarms.tells_cluster)


async def test_receiver(services: Services, call: Call[NoArguments, Test]) -> Tested:
    """Send a marked notification to a receiver, and say whether it was taken."""
    name = call.body.receiver
    delivery = _alarms(services).deliveries.get(name)
    if delivery is None:
        raise ProblemError(NOT_FOUND, f"alarms.receivers has no {name}")
    try:
        await delivery.test()
    except DeliveryError as error:
        return Tested(receiver=name, is_delivered=False, reason=str(error))
    return Tested(receiver=name, is_delivered=True, reason=None)


async def list_silences(services: Services, _call: Call[NoArguments, None]) -> Silences:
    """List the silences that are not over."""
    return Silences(items=[_silence(each) for each in _alarms(services).book.silences])


async def put_silence(services: Services, call: Call[SilenceArguments, NewSilence]) -> Silence:
    """Make a silence, or change it: nobody is told of its alarms until it ends."""
    alarms, body = _alarms(services), call.body
    now_ms = alarms.book.now_ms
    if not now_ms < body.until_ms <= now_ms + _SILENCE_MS_MAX:
        raise invalid("a silence ends in the future, and within a year", pointer="/until_ms")
    silence = KnownSilence(
        name=call.arguments.name,
        alarm=body.alarm,
        labels=tuple(sorted(body.labels.items())),
        until_ms=body.until_ms,
        reason=body.reason,
        by=call.caller.name,
        made_ms=now_ms,
    )
    try:
        alarms.book.silence(silence)
    except TooManySilencesError:
        detail = f"there are {limits.ALARM_SILENCES_MAX} silences, and no more may be: end some"
        raise ProblemError(CONFLICT, detail) from None
    alarms.shared.silence(silence)
    alarms.changed()
    return _silence(silence)


async def end_silence(services: Services, call: Call[SilenceArguments, None]) -> Silence:
    """End a silence: people are told of its alarms again."""
    alarms = _alarms(services)
    try:
        silence = alarms.book.end_silence(call.arguments.name)
    except KeyError:
        raise ProblemError(NOT_FOUND, f"there is no silence {call.arguments.name}") from None
    alarms.shared.end_silence(silence.name)
    alarms.changed()
    return _silence(silence)


def _alarms(services: Services) -> AlarmsRole:
    if services.alarms is None:
        raise ProblemError(NOT_SUPPORTED, "this process looks for no alarms: alarms.enabled is false")
    return services.alarms


def _no_alarm(identity: str) -> ProblemError:
    return ProblemError(NOT_FOUND, f"no alarm {identity} fires")


def _key(alarm: KnownAlarm) -> str:
    return f"{alarm.name} {alarm.id}"


def _shown(alarms: AlarmsRole, alarm: KnownAlarm) -> Alarm:
    return Alarm(
        id=alarm.id,
        name=alarm.name,
        labels=dict(alarm.labels),
        level=alarm.level,
        state=alarm.state,
        says=alarm.says,
        what_to_do=alarm.what_to_do,
        owner=alarm.owner,
        value=alarm.value,
        since_ms=alarm.since_ms,
        fired_ms=alarm.fired_ms,
        ended_ms=alarm.ended_ms,
        ended_by=alarm.ended_by,
        acknowledged=alarm.acknowledged,
        is_flapping=alarm.is_flapping,
        is_silenced=alarm.state != "ended" and alarms.book.is_silenced(alarm),
    )


def _condition(condition: KnownCondition) -> Condition:
    return Condition(**{name: getattr(condition, name) for name in Condition.__struct_fields__})


def _silence(silence: KnownSilence) -> Silence:
    values = {name: getattr(silence, name) for name in Silence.__struct_fields__}
    return Silence(**{**values, "labels": dict(silence.labels)})


_AREA: Final = "alarms"

ROUTES: Final = (
    route("GET", "/alarms", list_alarms, tag=_AREA, problems=(NOT_SUPPORTED,)),
    route("GET", "/alarms/history", list_ended_alarms, tag=_AREA, problems=(NOT_SUPPORTED,)),
    route("GET", "/alarms/conditions", list_conditions, tag=_AREA, problems=(NOT_SUPPORTED,)),
    route("GET", "/alarms/receivers", list_receivers, tag=_AREA, problems=(NOT_SUPPORTED,)),
    route(
        "POST",
        "/alarms/{id}/acknowledge",
        acknowledge_alarm,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND, NOT_SUPPORTED),
    ),
    route(
        "DELETE",
        "/alarms/{id}",
        end_alarm,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND, NOT_SUPPORTED),
    ),
    route(
        "POST",
        "/alarms:test",
        test_receiver,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND, NOT_SUPPORTED),
    ),
    route("GET", "/silences", list_silences, tag=_AREA, problems=(NOT_SUPPORTED,)),
    route(
        "PUT",
        "/silences/{name}",
        put_silence,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(CONFLICT, NOT_SUPPORTED),
    ),
    route(
        "DELETE",
        "/silences/{name}",
        end_silence,
        tag=_AREA,
        role=Role.OPERATOR,
        problems=(NOT_FOUND, NOT_SUPPORTED),
    ),
)
