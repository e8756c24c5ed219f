"""Keep the bans of this front end those of all: read and heard from brokers, and told to them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from iotmq.clock import Clock
from iotmq.errors import StoreError
from iotmq.message.message_ids import UniqueKeys
from iotmq.message.properties import MQTT_TOPIC, UNIQ_KEY, decode_properties, encode_properties
from iotmq.message.records.record import decode_record, encode_batch
from iotmq.mqtt.bans import (
    BANS_FILTER,
    Ban,
    BanKind,
    ban_of_topic,
    decode_ban,
)
from iotmq.mqtt.operator_state import OPERATOR_TOPIC, state_properties
from iotmq.mqtt_front.limiting.bans import Bans
from iotmq.ports.gateway import GatewayPort
from iotmq.ports.sessions import Refused, RetainedRead, RetainedRecords, SessionPort
from iotmq.supervised import end, supervise, surviving

_log: Final = logging.getLogger("iotmq.mqtt")

# A look at all of them finds what was missed while a broker was away.
READ_INTERVAL_S: Final = 60.0
# Devices wait so long at the start for the bans of brokers that do not answer.
START_TIMEOUT_S: Final = 3.0
_RETRY_S: Final = 1.0
_TELL_TRIES_MAX: Final = 30
_PAGE_RECORDS_MAX: Final = 256
_PAGE_BYTES_MAX: Final = 256 * 1024


class Hearing(Protocol):
    """Hear the records of a filter (deliver.egress)."""

    def listen(self, topic_filter: str, heard: Callable[[bytes, bytes, bytes], None]) -> int: ...


class BrokerPorts(NamedTuple):
    """The ways to the brokers. Without sessions bans are this front end's alone."""

    gateway: GatewayPort
    sessions: SessionPort | None


class SharedBans:
    """Changes `bans`, and calls `banned` with each that was not known before."""

    def __init__(
        self,
        bans: Bans,
        ports: BrokerPorts,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        banned: Callable[[Ban], None],
    ) -> None:
        self.bans = bans
        self._ports = ports
        self._loop = loop
        self._clock = clock
        self._banned = banned
        self._keys = UniqueKeys()
        self._tasks: list[asyncio.Task[None]] = []
        # What was heard while all are being read; None else.
        self._heard_meanwhile: set[tuple[BanKind, str]] | None = None
        self._is_stopped = False

    async def start(self, hearing: Hearing) -> None:
        """Hear of changes from now on, and read all there are."""
        if self._ports.sessions is None:
            return
        number = hearing.listen(BANS_FILTER, self._heard)
        self._ports.gateway.attach([(number, BANS_FILTER)], self._attached)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._read_all()
        except TimeoutError:
            _log.warning("the bans at the brokers are not known yet", extra={"waited_s": START_TIMEOUT_S})
        self._tasks = [supervise("reading of bans", self._read_forever)]

    async def stop(self) -> None:
        self._is_stopped = True
        await end(self._tasks)

    def put(self, ban: Ban) -> None:
        """Ban here at once, and everywhere soon; one past what may be is nowhere."""
        if self._take(ban):
            self._tell(ban, 0)

    # From the brokers

    def _attached(self, is_attached: bool) -> None:
        if not is_attached:
            # Each look at all of them finds them still.
            _log.warning("a broker does not tell of new bans", extra={"filter": BANS_FILTER})

    def _heard(self, broker_topic: bytes, raw_topic: bytes, body: bytes) -> None:
        if broker_topic != OPERATOR_TOPIC.encode():
            self.bans.malformed_total += 1
            return
        topic = raw_topic.decode("utf-8", "replace")
        try:
            kind, value = ban_of_topic(topic)
            ban = decode_ban(topic, body) if body else None
        except ValueError as error:
            self._note_malformed(topic, error)
            return
        if self._heard_meanwhile is not None:
            self._heard_meanwhile.add((kind, value))
        if ban is None:
            self.bans.remove(kind, value)
        else:
            self._take(ban)

    def _take(self, ban: Ban) -> bool:
        if ban.is_over(self._clock.now_ms()):
            return False
        try:
            is_taken = self.bans.put(ban)
        except ValueError as error:
            self._note_malformed(ban.topic, error)
            return False
        if is_taken:
            self._banned(ban)
        else:
            _log.warning("a ban is not taken: there are too many", extra={"kind": ban.kind})
        return is_taken

    def _note_malformed(self, topic: str, error: ValueError) -> None:
        self.bans.malformed_total += 1
        _log.warning("a message is no ban", extra={"topic": topic, "detail": str(error)})

    async def _read_forever(self) -> None:
        while True:
            await asyncio.sleep(READ_INTERVAL_S)
            await self._read_all()

    async def _read_all(self) -> None:
        """Have exactly the bans that the brokers have, once they have told all."""
        now_ms = self._clock.now_ms()
        self.bans.drop_over(now_ms)
        found: dict[tuple[BanKind, str], Ban] = {}
        heard: set[tuple[BanKind, str]] = set()
        self._heard_meanwhile = heard
        try:
            after: str | None = None
            while True:
                page = await self._page(after)
                if isinstance(page, Refused):
                    await asyncio.sleep(_RETRY_S)
                    continue
                for record in page.records:
                    ban = self._decoded(bytes(record))
                    if ban is not None and not ban.is_over(now_ms):
                        known = found.get((ban.kind, ban.value), ban)
                        found[ban.kind, ban.value] = max(known, ban, key=lambda ban: ban.made_ms)
                after = page.after
                if after is None:
                    break
        finally:
            self._heard_meanwhile = None
        for ban in list(self.bans):
            key = (ban.kind, ban.value)
            # What was made here may be on its way still.
            if key not in found and key not in heard and ban.made_ms < now_ms - READ_INTERVAL_S * 1000:
                self.bans.remove(*key)
        known_bans = {(ban.kind, ban.value): ban for ban in self.bans}
        for key, ban in found.items():
            if key not in heard and known_bans.get(key) != ban:
                self._take(ban)

    async def _page(self, after: str | None) -> RetainedRecords | Refused:
        assert self._ports.sessions is not None
        answer: asyncio.Future[RetainedRecords | Refused] = self._loop.create_future()

        def answered(found: RetainedRecords | Refused) -> None:
            if not answer.done():
                answer.set_result(found)

        request = RetainedRead(
            topic_filter=BANS_FILTER,
            after=after,
            records_max=_PAGE_RECORDS_MAX,
            bytes_max=_PAGE_BYTES_MAX,
        )
        self._ports.sessions.read_retained(request, answered)
        return await answer

    def _decoded(self, record: bytes) -> Ban | None:
        """Read the ban of a record; None for one that is none, which is counted."""
        topic = ""
        try:
            decoded = decode_record(record)
            topic = decode_properties(bytes(decoded.properties)).get(MQTT_TOPIC, "")
            if decoded.topic != OPERATOR_TOPIC:
                raise ValueError(f"it is in the broker topic {decoded.topic}")
            return decode_ban(topic, bytes(decoded.body))
        except StoreError as error:
            self._note_malformed(topic, ValueError(str(error)))
        except ValueError as error:
            self._note_malformed(topic, error)
        return None

    # To the brokers

    def _tell(self, ban: Ban, tries: int) -> None:
        """Store a ban where all front ends find it."""
        if self._is_stopped or self._ports.sessions is None:
            return
        now_ms = self._clock.now_ms()
        expires_ms = max(1, ban.until_ms - now_ms) if ban.until_ms else 0
        properties = state_properties(ban.topic, expires_ms=expires_ms)
        properties[UNIQ_KEY] = self._keys.next()
        elements = encode_batch([(ban.body, encode_properties(properties), 0)])
        with surviving("telling of bans"):
            self._ports.gateway.append_own(
                OPERATOR_TOPIC, elements, count=1, is_repeat=tries > 0, done=partial(self._told, ban, tries)
            )

    def _told(self, ban: Ban, tries: int, code: int, remark: str) -> None:
        if not code:
            return
        if tries + 1 >= _TELL_TRIES_MAX or ban.is_over(self._clock.now_ms()):
            _log.warning(
                "a ban is this front end's alone", extra={"kind": ban.kind, "code": code, "detail": remark}
            )
        elif not self._is_stopped:
            self._loop.call_later(_RETRY_S, self._tell, ban, tries + 1)
