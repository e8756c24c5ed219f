"""Alarms as a role of a process: looks at numbers, tells who is to be told, and keeps what it knows."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from iotmq import limits
from iotmq.alarms.alarm import Alarm, Event
from iotmq.alarms.book import AlarmBook
from iotmq.alarms.condition import LEVELS, Labels
from iotmq.alarms.conditions import NOT_READY
from iotmq.alarms.delivery import Delivery
from iotmq.alarms.feed import Feed
from iotmq.alarms.kept import read_state, write_state
from iotmq.alarms.lease import FORBIDDEN_S, LEASE_S, RENEWAL_S, Lease, is_forbidden
from iotmq.alarms.measures import PROCESS, Measures
from iotmq.alarms.notification import Notification
from iotmq.alarms.senders import sender_of
from iotmq.alarms.settings import AlarmSettings, AlertmanagerSettings, AnyReceiver
from iotmq.alarms.shared import SHARE_S, SharedWords
from iotmq.alarms.watch import Watch
from iotmq.client.client import IotmqClient
from iotmq.clock import Clock
from iotmq.errors import IotmqError
from iotmq.metrics import Metric, MetricSource, SourceReader, samples, samples_by
from iotmq.supervised import end, supervise, surviving, to_its_end

logger = logging.getLogger("iotmq.alarms")

_SYS_ROOT: Final = "$SYS/broker/alarms/"
_SHOWN_MAX: Final = 20
_PREFIXES: Final = ("iotmq_", "process_")
_PROCESSOR: Final = "process_cpu_seconds_total"
_RELEASE_S: Final = 0.2
_SAVE_PAUSE_S: Final = 10.0


class SysTopics(Protocol):
    """Where MQTT clients of this process read what is below $SYS/."""

    def put(self, topic: str, text: str) -> None: ...

    def drop(self, topic: str) -> None: ...


class ProcessView(NamedTuple):
    """Everything to see of a process."""

    name: str
    """The label `process` of its alarms."""
    sources: Collection[MetricSource]
    readiness: Callable[[], Mapping[str, str | None]]
    """Part -> why it is not ready, None when it is."""
    refresh: Callable[[], Awaitable[None]] | None = None
    """Asks parts in other processes, before they are looked at."""
    sys_topics: Callable[[], SysTopics | None] = lambda: None


class AlarmsRole:
    """A role: `start()`, `stop()`, `metrics()`."""

    def __init__(
        self,
        settings: AlarmSettings,
        view: ProcessView,
        clock: Clock,
        *,
        make_client: Callable[[], IotmqClient] | None = None,
        watches_cluster: bool = False,
        file: Path | None = None,
    ) -> None:
        """With `make_client` it knows what operators say to other processes, too.

        ConfigError when a receiver cannot be made.
        """
        self._settings = settings
        self._view = view
        self._clock = clock
        self._reader = SourceReader(view.sources)
        self._file = file
        self.book = AlarmBook(settings, clock, None if file is None else read_state(file))
        conditions = self.book.conditions
        self._measures = Measures(
            (each for each in conditions if not each.is_of_cluster), counts_from_start=True
        )
        self._client = _Client(make_client) if make_client else None
        self.shared = SharedWords(self.book, clock)
        self._cluster = (
            _Cluster(settings, self.book, clock, self._client) if self._client and watches_cluster else None
        )
        self.deliveries = {each.name: self._delivery(each) for each in settings.receivers}
        # The $SYS tree that was told last, and what of: name of a condition -> identities.
        self._shown_in: SysTopics | None = None
        self._shown: dict[str, tuple[tuple[str, int, bool], ...]] = {}
        self._saved_count = self.book.changes_count
        self._is_unsaved = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def tells_cluster(self) -> bool:
        """Return whether this process tells receivers of the alarms of the cluster."""
        return self._cluster is None or self._cluster.lease.tells

    async def start(self) -> None:
        """Begin to look."""
        self._tasks.append(supervise("alarms", self._look_repeatedly))
        if self._file is not None:
            self._tasks.append(supervise("keeping alarms", self._save_repeatedly, pause_s=_SAVE_PAUSE_S))
        if self._client is not None:
            self._tasks.append(supervise("sharing of words on alarms", self._share_repeatedly))
        if self._cluster is not None:
            self._tasks.append(supervise("watching the cluster", self._watch_repeatedly))
            self._tasks.append(supervise("lease of alarms", self._cluster.renew_repeatedly))
        for delivery in self.deliveries.values():
            self._tasks.append(supervise(f"alarms to {delivery.name}", delivery.run))

    async def stop(self) -> None:
        """Keep what is known, and end."""
        await end(self._tasks)
        if self._file is not None and self._saved_count != self.book.changes_count:
            await self._save(self._file)
        for delivery in self.deliveries.values():
            await delivery.close()
        if self._cluster is not None:
            await self._cluster.release()
        if self._client is not None:
            await self._client.stop()

    def changed(self, events: Iterable[Event] = ()) -> None:
        """Take note of a change of the book: receivers look at it, and it is kept."""
        for event in events:
            self._log(event)
            if event.kind == "ended":
                self.shared.ended(event.alarm)
        self._show()
        self._is_unsaved.set()
        for delivery in self.deliveries.values():
            delivery.changed()

    async def look(self) -> None:
        """Look at the numbers of the process once."""
        if self._view.refresh is not None:
            await self._view.refresh()
        readings, looked_at = self._measures.read(self._samples(), self.book.now_ms)
        self._observed(self.book.observe(readings, looked_at))

    def metrics(self) -> Iterable[Metric]:
        """Report how many alarms there are, and how their delivery goes."""
        engine = self.book.engine
        firing = [alarm.level for alarm in engine.firing]
        by_level = {level: firing.count(level) for level in LEVELS}
        yield from samples_by("level", "iotmq_alarms_firing", "Alarms that fire now.", by_level)
        yield from samples(
            ("iotmq_alarms_fired_total", "Alarms that have fired.", engine.fired_count),
            (
                "iotmq_alarms_refused_total",
                "Alarms, and series they need, left out because there are too many.",
                engine.refused_count + self._measures.refused_count,
            ),
        )
        if self._cluster is not None:
            yield from self._cluster.metrics()
        each = self.deliveries.items()
        yield from samples_by(
            "receiver",
            "iotmq_alarms_delivered_total",
            "Notifications that a receiver has taken.",
            {name: delivery.delivered_count for name, delivery in each},
        )
        yield from samples_by(
            "receiver",
            "iotmq_alarms_delivery_failed_total",
            "Tries to tell a receiver that failed.",
            {name: delivery.failed_count for name, delivery in each},
        )
        yield from samples_by(
            "receiver",
            "iotmq_alarms_delivery_failing_seconds",
            "For how long every try to tell a receiver has failed.",
            {name: delivery.failing_s for name, delivery in each},
        )

    async def _look_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.interval_s)
            await self.look()

    async def _watch_repeatedly(self) -> None:
        assert self._cluster is not None
        while True:
            await asyncio.sleep(self._settings.cluster_interval_s)
            self._observed(await self._cluster.look())

    async def _share_repeatedly(self) -> None:
        assert self._client is not None
        while True:
            try:
                is_changed, ended = await self.shared.exchange(await self._client.started())
            except (IotmqError, ConnectionError) as error:
                logger.debug("words on alarms cannot be shared now: %s", error)
                # Each refusal of an account is an audit record of its broker.
                await asyncio.sleep(FORBIDDEN_S if is_forbidden(error) else SHARE_S)
                continue
            if is_changed:
                self.changed(ended)
            await self.shared.wait()

    def _observed(self, events: list[Event]) -> None:
        if events or self._shown_in is not self._view.sys_topics():
            self.changed(events)
        # A silence may have ended.
        for delivery in self.deliveries.values():
            delivery.changed()

    def _samples(self) -> dict[str, list[tuple[Labels, float]]]:
        """Return those samples of this process that conditions look at."""
        found: dict[str, list[tuple[Labels, float]]] = {source: [] for source in self._measures.sources}
        own = (PROCESS, self._view.name)
        for sample in self._reader.samples():
            name = sample.name if sample.name.startswith(_PREFIXES) else f"iotmq_{sample.name}"
            if (chosen := found.get(name)) is not None:
                labels = (
                    (label, value[: limits.ALARM_TEXT_CHARACTERS_MAX]) for label, value in sample.labels
                )
                chosen.append((tuple(sorted((*labels, own))), sample.value))
        if NOT_READY in found:
            for part, reason in self._view.readiness().items():
                found[NOT_READY].append(((("part", part), own), float(reason is not None)))
        if _PROCESSOR in found:
            found[_PROCESSOR].append(((own,), time.process_time()))
        return found

    def _delivery(self, settings: AnyReceiver) -> Delivery:
        name = settings.name
        if isinstance(settings, AlertmanagerSettings):
            feed = Feed(settings, self.book)
            return Delivery(settings, sender_of(settings, self._clock), feed.next, feed.told, self._clock)

        def told(notification: Notification) -> None:
            self.book.told(name, notification)
            self._is_unsaved.set()

        return Delivery(
            settings,
            sender_of(settings, self._clock),
            lambda: self.book.next_for(name, tells_cluster=self.tells_cluster),
            told,
            self._clock,
        )

    def _log(self, event: Event) -> None:
        if not self._settings.log_enabled:
            return
        alarm = event.alarm
        level = logging.INFO
        if event.kind == "fired":
            level = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.ERROR}[alarm.level]
        logger.log(
            level,
            "alarm: %s",
            alarm.says,
            extra={
                "alarm": alarm.name,
                "state": "firing" if event.kind == "fired" else "ended",
                "alarm_level": alarm.level,
                "alarm_id": alarm.id,
                **{f"label_{name}": value for name, value in alarm.labels},
                "what_to_do": alarm.what_to_do,
            },
        )

    def _show(self) -> None:
        """Keep the topics below $SYS/broker/alarms/ as things are."""
        topics = self._view.sys_topics()
        if topics is not self._shown_in:
            self._shown_in, self._shown = topics, {}
        if topics is None:
            return
        firing: dict[str, list[Alarm]] = {}
        for alarm in self.book.engine.firing:
            firing.setdefault(alarm.name, []).append(alarm)
        for name, alarms in firing.items():
            facts = tuple((each.id, each.fired_ms, each.acknowledged is not None) for each in alarms)
            if self._shown.get(name) != facts:
                self._shown[name] = facts
                topics.put(_SYS_ROOT + name, sys_text(name, alarms))
        for name in self._shown.keys() - firing.keys():
            del self._shown[name]
            topics.put(_SYS_ROOT + name, sys_text(name, []))
            topics.drop(_SYS_ROOT + name)

    async def _save_repeatedly(self) -> None:
        assert self._file is not None
        while True:
            await self._is_unsaved.wait()
            self._is_unsaved.clear()
            if self._saved_count != self.book.changes_count and not await self._save(self._file):
                self._is_unsaved.set()
                await asyncio.sleep(_SAVE_PAUSE_S)

    async def _save(self, file: Path) -> bool:
        """Keep what is known; return whether the disk has taken it."""
        count, state = self.book.changes_count, self.book.state
        try:
            # stop() writes what has changed since, and not at the same time.
            await to_its_end(asyncio.get_running_loop().run_in_executor(None, write_state, file, state))
        except OSError as error:
            logger.error("alarms are not kept: %s", error, extra={"file": str(file)})
            return False
        self._saved_count = count
        return True


class _Client:
    """The native client of the role, made and started when it is first used."""

    def __init__(self, make: Callable[[], IotmqClient]) -> None:
        self._make = make
        self._client: IotmqClient | None = None
        self._lock = asyncio.Lock()

    async def started(self) -> IotmqClient:
        async with self._lock:
            if self._client is None:
                client = self._make()
                await client.start()
                self._client = client
            return self._client

    async def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.stop()


class _Cluster:
    """The part of the role that looks at the cluster."""

    def __init__(
        self,
        settings: AlarmSettings,
        book: AlarmBook,
        clock: Clock,
        client: _Client,
    ) -> None:
        self._book = book
        self._clock = clock
        self._client = client
        conditions = (each for each in book.conditions if each.is_of_cluster)
        self._measures = Measures(conditions, counts_from_start=False)
        self._watch = Watch(settings.devices, book.missed, clock)
        self.lease = Lease(clock)
        # Since when something could not be looked at; None: all could.
        self._failing_since_s: float | None = None

    async def look(self) -> list[Event]:
        """Look once, and return what has changed."""
        known = len(self._book.missed.brokers), len(self._book.missed.front_ends)
        try:
            found = await self._watch.look(await self._client.started())
            is_failing = bool(self._watch.failures)
        except (IotmqError, ConnectionError) as error:
            logger.debug("the cluster cannot be looked at now: %s", error)
            found, is_failing = {}, True
        if not is_failing:
            self._failing_since_s = None
        elif self._failing_since_s is None:
            self._failing_since_s = self._clock.monotonic_s()
        if known != (len(self._book.missed.brokers), len(self._book.missed.front_ends)):
            self._book.changes_count += 1
        readings, looked_at = self._measures.read(found, self._book.now_ms)
        return self._book.observe(readings, looked_at)

    async def renew_repeatedly(self) -> None:
        """Keep the lease, or try to get it, for ever."""
        while True:
            try:
                await self.lease.renew(await self._client.started())
            except (IotmqError, ConnectionError) as error:
                logger.debug("there is no client for the lease of alarms: %s", error)
            if not self.lease.tells:
                self._book.hand_over(self._book.now_ms - round(2 * LEASE_S * 1000))
            await asyncio.sleep(RENEWAL_S)

    async def release(self) -> None:
        """Give the lease back."""
        with surviving("lease of alarms"):
            try:
                async with asyncio.timeout(_RELEASE_S):
                    await self.lease.release()
            except TimeoutError:
                logger.debug("the lease of alarms is not given back: its broker does not answer")

    def metrics(self) -> Iterable[Metric]:
        since_s = self._failing_since_s
        failing_s = 0.0 if since_s is None else self._clock.monotonic_s() - since_s
        yield from samples(
            (
                "iotmq_alarms_watch_failing_seconds",
                "For how long some of the cluster could not be looked at.",
                failing_s,
            ),
            (
                "iotmq_alarms_tells_cluster",
                "1 while this process tells receivers of the alarms of the cluster.",
                self.lease.tells,
            ),
        )


def sys_text(name: str, alarms: list[Alarm]) -> str:
    """Return what is below $SYS/ of the alarms of a name; with none of them, that they have ended."""
    firing = [
        {
            "id": alarm.id,
            "labels": dict(alarm.labels),
            "level": alarm.level,
            "says": alarm.says,
            "what_to_do": alarm.what_to_do,
            "since_ms": alarm.fired_ms,
            "acknowledged_by": None if alarm.acknowledged is None else alarm.acknowledged.by,
        }
        for alarm in alarms[-_SHOWN_MAX:]
    ]
    return msgspec.json.encode({"name": name, "count": len(alarms), "firing": firing}).decode()
