"""Looks at the cluster through a native client: groups, dead letters, devices, and what has gone.

The numbers have the names that `conditions.py` gives them. What cannot be asked now is left out, and alarms
about it stay as they are.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.alarms.book import Missed
from iotmq.alarms.cluster_conditions import (
    BROKER_GONE,
    DEAD_LETTERS,
    DEVICES_SILENT,
    FRONT_END_GONE,
    GROUP_AGE,
    GROUP_ALONE,
    GROUP_BEHIND,
    GROUP_STUCK,
    REGISTRY_GONE,
)
from iotmq.alarms.condition import Labels
from iotmq.alarms.lease import FORBIDDEN_S, is_forbidden
from iotmq.alarms.settings import DeviceWatch
from iotmq.client.admin.admin import Admin
from iotmq.client.admin.devices.front_ends import FrontEndAdmin
from iotmq.client.admin.devices.sessions import SessionAdmin
from iotmq.client.admin.groups import GroupProgress, is_own_group
from iotmq.client.transport.calls import ask
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import DEAD_LETTER_PREFIX
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.clock import Clock
from iotmq.errors import IotmqError, RouteNotFoundError
from iotmq.event_loop import some_at_once
from iotmq.ports.session_pages import SessionSummary
from iotmq.remoting.codes import RequestCode

logger = logging.getLogger("iotmq.alarms")

Found = dict[str, list[tuple[Labels, float]]]

# Front ends without a name of their own: they have another one after each start.
_UNNAMED: Final = re.compile(r":\d+(-\d+)?$")
_OF_THIS_PROCESS: Final = "local"
_AT_ONCE: Final = 16
# A device's absence is looked at so often in its time.
_LOOKS_PER_SILENCE: Final = 10.0


class GroupFacts(NamedTuple):
    """How far a group is at all brokers, in all topics."""

    behind: int
    consumed: int
    late: tuple[tuple[int, str], ...]
    """(store time of the last message consumed, or 0; topic) of each topic in which it is behind."""


class Watch:
    """Looks at one cluster."""

    def __init__(self, devices: Sequence[DeviceWatch], missed: Missed, clock: Clock) -> None:
        """`missed` is kept up to date."""
        self._devices = tuple(devices)
        self._missed = missed
        self._clock = clock
        # Group -> what it had consumed, and since when that has not changed.
        self._moved: dict[str, tuple[int, float]] = {}
        # Name of a watch of devices -> when it was looked at last, and what was found.
        self._silent: dict[str, tuple[float, float]] = {}
        # Topic of dead letters -> queue -> its end, as it was seen last: what a broker has that is away for a
        # while are no new ones when it is back.
        self._dead_letter_ends: dict[str, dict[MessageQueue, int]] = {}
        # What the account of the process may not ask, and when it is tried again, in monotonic seconds.
        self._forbidden_until_s: dict[str, float] = {}
        # What could not be asked at the last look, with the reason.
        self.failures: dict[str, str] = {}

    async def look(self, client: ClientTransport) -> Found:
        """Return all numbers that can be had now."""
        found: Found = {}
        failures: dict[str, str] = {}
        looks: dict[str, Callable[[ClientTransport], Awaitable[Found]]] = {
            "registries": self._registries,
            "brokers": self._brokers,
            "front ends": self._front_ends,
            "groups": self._groups,
            "dead letters": self._dead_letters,
            "devices": self._sessions,
        }
        now_s = self._clock.monotonic_s()
        for name, look in looks.items():
            if now_s < self._forbidden_until_s.get(name, now_s):
                failures[name] = self.failures[name]
                continue
            try:
                found |= await look(client)
            except (IotmqError, ConnectionError) as error:
                if is_forbidden(error):
                    self._forbidden_until_s[name] = now_s + FORBIDDEN_S
                failures[name] = str(error)
                if name not in self.failures:
                    logger.info(
                        "the cluster cannot be looked at now", extra={"what": name, "detail": str(error)}
                    )
        self.failures = failures
        return found

    async def _registries(self, client: ClientTransport) -> Found:
        async def is_gone(address: str) -> bool:
            try:
                await ask(
                    client, address, RequestCode.GET_BROKER_CLUSTER_INFO, doing="looking for a registry"
                )
            except (IotmqError, ConnectionError) as error:
                logger.debug("registry %s: %s", address, error)
                return True
            return False

        addresses = client.registries.addresses
        gone = await asyncio.gather(*map(is_gone, addresses))
        return {
            REGISTRY_GONE: [
                ((("registry", address),), float(each)) for address, each in zip(addresses, gone, strict=True)
            ]
        }

    async def _brokers(self, client: ClientTransport) -> Found:
        cluster = await client.registries.cluster()
        present = {name for name, by_id in cluster.items() if MASTER_ID in by_id}
        return {BROKER_GONE: _gone("broker", present, self._missed.brokers)}

    async def _front_ends(self, client: ClientTransport) -> Found:
        names = await FrontEndAdmin(client).front_ends()
        present = {name for name in names if name != _OF_THIS_PROCESS and not _UNNAMED.search(name)}
        return {FRONT_END_GONE: _gone("front_end", present, self._missed.front_ends)}

    async def _groups(self, client: ClientTransport) -> Found:
        admin = Admin(client)
        progress: dict[str, list[GroupProgress]] = {}
        for broker in sorted(await admin.configurations.groups()):
            for group, parts in (await admin.statistics.progress(broker)).groups.items():
                if not is_own_group(group):
                    progress.setdefault(group, []).extend(parts)
        facts = {group: facts_of(parts) for group, parts in progress.items()}
        worst = sorted(facts, key=lambda group: (-facts[group].behind, group))[: limits.ALARM_GROUPS_MAX]
        behind = {group: facts[group] for group in worst if facts[group].behind > 0}
        still_s = self._note_moves({group: facts[group] for group in worst})
        ages = await _ages(admin, behind)
        still = [group for group in behind if still_s[group] > 0][: limits.ALARM_GROUPS_ASKED_MAX]
        members = dict(
            zip(still, await some_at_once(admin.groups.connections, still, count=_AT_ONCE), strict=True)
        )
        alone = [group for group in still if members[group] is None]
        stuck = [group for group in still if members[group] is not None]
        return {
            GROUP_BEHIND: [(_labels("group", group), each.behind) for group, each in behind.items()],
            GROUP_AGE: [(_labels("group", group), age_s) for group, age_s in ages.items()],
            GROUP_STUCK: [(_labels("group", group), still_s[group]) for group in stuck],
            GROUP_ALONE: [(_labels("group", group), behind[group].behind) for group in alone],
        }

    def _note_moves(self, facts: dict[str, GroupFacts]) -> dict[str, float]:
        """Return for how many seconds each group has consumed nothing although it could."""
        now_s = self._clock.monotonic_s()
        moved: dict[str, tuple[int, float]] = {}
        for group, each in facts.items():
            before = self._moved.get(group)
            is_still = before is not None and before[0] == each.consumed and each.behind > 0
            moved[group] = before if is_still and before is not None else (each.consumed, now_s)
        self._moved = moved
        return {group: now_s - since_s for group, (_, since_s) in moved.items()}

    async def _dead_letters(self, client: ClientTransport) -> Found:
        admin = Admin(client)
        topics = [topic for topic in await admin.topics() if topic.startswith(DEAD_LETTER_PREFIX)]
        topics = topics[: limits.ALARM_DEAD_LETTER_TOPICS_MAX]
        contents = await some_at_once(admin.statistics.topic_content, topics, count=_AT_ONCE)
        ends = self._dead_letter_ends
        for topic, content in zip(topics, contents, strict=True):
            known = ends.pop(topic, {})
            ends[topic] = known | {queue: each.max_offset for queue, each in content.items()}
        for topic in list(ends)[: max(0, len(ends) - limits.ALARM_DEAD_LETTER_TOPICS_MAX)]:
            # Those that are not there come first.
            del ends[topic]
        return {
            DEAD_LETTERS: [
                (_labels("group", topic.removeprefix(DEAD_LETTER_PREFIX)), sum(known.values()))
                for topic, known in ends.items()
            ]
        }

    async def _sessions(self, client: ClientTransport) -> Found:
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        for watch in self._devices:
            looked_s, _ = self._silent.get(watch.name, (-watch.silent_s, 0.0))
            if now_s - looked_s < watch.silent_s / _LOOKS_PER_SILENCE:
                continue
            sessions: list[SessionSummary] = []
            async for session in SessionAdmin(client).kept(prefix=watch.client_prefix):
                sessions.append(session)
                if len(sessions) == limits.ALARM_SESSIONS_MAX:
                    break
            self._silent[watch.name] = (now_s, silent_share(watch, sessions, now_ms))
        return {
            DEVICES_SILENT: [(_labels("watch", name), share) for name, (_, share) in self._silent.items()]
        }


def facts_of(parts: Iterable[GroupProgress]) -> GroupFacts:
    """Return how far a group is, of its progress in topics at brokers."""
    behind = consumed = 0
    late: dict[str, int] = {}
    for part in parts:
        for queue, lag in part.queues.items():
            consumed += lag.consumer_offset
            if lag.behind > 0:
                behind += lag.behind
                late[queue.topic] = min(lag.last_timestamp, late.get(queue.topic, lag.last_timestamp))
    return GroupFacts(behind, consumed, tuple(sorted((time_ms, topic) for topic, time_ms in late.items())))


def silent_share(watch: DeviceWatch, sessions: Sequence[SessionSummary], now_ms: int) -> float:
    """Return which part of the watched devices is away; 0 when there should be none."""
    since_ms = now_ms - watch.silent_s * 1000
    there = sum(bool(session.front_end) or session.closed_ms > since_ms for session in sessions)
    count = max(len(sessions), watch.expected)
    return (count - there) / count if count else 0.0


async def _ages(admin: Admin, behind: dict[str, GroupFacts]) -> dict[str, float]:
    """Return the age in seconds of the oldest message that groups have not consumed.

    Those that have consumed nothing for longest are asked about.
    """
    asked = sorted((time_ms, group, topic) for group, each in behind.items() for time_ms, topic in each.late)
    asked = asked[: limits.ALARM_GROUPS_ASKED_MAX]
    answers = await some_at_once(lambda each: _age_s(admin, each[1], each[2]), asked, count=_AT_ONCE)
    ages: dict[str, float] = {}
    for (_, group, _), age_s in zip(asked, answers, strict=True):
        ages[group] = max(age_s, ages.get(group, 0.0))
    return ages


async def _age_s(admin: Admin, group: str, topic: str) -> float:
    try:
        times = await admin.groups.times(group, topic)
    except RouteNotFoundError:
        # The topic has been deleted meanwhile.
        return 0.0
    return max((each.delay_ms for each in times.values()), default=0) / 1000


def _gone(label: str, present: set[str], missed: set[str]) -> list[tuple[Labels, float]]:
    """Remember those that are there, and return which of all that have been are not."""
    missed.update(sorted(present - missed)[: max(0, limits.ALARM_KNOWN_MAX - len(missed))])
    return [(_labels(label, name), float(name not in present)) for name in sorted(missed)]


def _labels(name: str, value: str) -> Labels:
    return ((name, value[: limits.ALARM_TEXT_CHARACTERS_MAX]),)
