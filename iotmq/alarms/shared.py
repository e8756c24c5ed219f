"""Share what operators say of alarms with all processes: silences, acknowledgements, ends by hand.

Each is state of operators (mqtt.operator_state), which brokers keep. A process tells what was said to it, and
reads what was said to others. What it has not told yet, or has told just now, counts before what it reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import msgspec

from iotmq import limits
from iotmq.alarms.alarm import Acknowledgement, Alarm, Event
from iotmq.alarms.book import AlarmBook
from iotmq.alarms.lease import FORBIDDEN_S, is_forbidden
from iotmq.alarms.silence import Silence
from iotmq.client.admin.operator_state import OperatorState
from iotmq.client.transport.client import ClientTransport
from iotmq.clock import Clock
from iotmq.errors import IotmqError
from iotmq.mqtt.operator_state import name_of_topic, state_topic

logger = logging.getLogger("iotmq.alarms")

_PREFIX: Final = "$iotmq/alarms/"
_FILTER: Final = f"{_PREFIX}#"
_SILENCES: Final = f"{_PREFIX}silences/"
_ACKNOWLEDGEMENTS: Final = f"{_PREFIX}acknowledgements/"
_ENDS: Final = f"{_PREFIX}ends/"
_READ_MAX: Final = limits.ALARM_SILENCES_MAX + 2 * limits.ALARMS_MAX
SHARE_S: Final = 10.0
"""So soon others know what was said to one."""
# An index of a broker follows its log in milliseconds.
_FRESH_S: Final = 2.0
# Words on an alarm outlive it when nobody was there to see its end.
_ACKNOWLEDGED_MS: Final = 30 * 86_400_000
_ENDED_MS: Final = 3_600_000

_Word = TypeVar("_Word")


class _Said(NamedTuple):
    body: bytes
    """Empty: it is taken back."""
    until_ms: int
    """When it ends by itself; 0: never."""


class SharedWords:
    """The words of operators that the book of a process has in common with those of others."""

    def __init__(self, book: AlarmBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock
        # By MQTT topic: what brokers have not taken yet, and when they took the rest, in monotonic seconds.
        self._unsent: dict[str, _Said] = {}
        self._sent_s: dict[str, float] = {}
        # In monotonic seconds; set when the account may read, and not write.
        self._forbidden_until_s = clock.monotonic_s()
        self._is_wanted = asyncio.Event()

    def silence(self, silence: Silence) -> None:
        """Tell others of a silence."""
        self._say(_SILENCES, silence.name, msgspec.json.encode(silence), silence.until_ms)

    def end_silence(self, name: str) -> None:
        """Tell others that a silence has ended."""
        self._say(_SILENCES, name, b"", 0)

    def acknowledge(self, alarm: Alarm) -> None:
        """Tell others who looks after an alarm that they may see, too."""
        if alarm.is_of_cluster and alarm.acknowledged is not None:
            body = msgspec.json.encode(alarm.acknowledged)
            self._say(_ACKNOWLEDGEMENTS, alarm.id, body, alarm.acknowledged.at_ms + _ACKNOWLEDGED_MS)

    def ended(self, alarm: Alarm) -> None:
        """Take an acknowledgement back with its alarm, and tell others of an end by hand."""
        if not alarm.is_of_cluster:
            return
        if alarm.acknowledged is not None:
            self._say(_ACKNOWLEDGEMENTS, alarm.id, b"", 0)
        if alarm.ended_by:
            by_hand = Acknowledgement(by=alarm.ended_by, at_ms=alarm.ended_ms)
            self._say(_ENDS, alarm.id, msgspec.json.encode(by_hand), alarm.ended_ms + _ENDED_MS)

    async def wait(self) -> None:
        """Wait until there is something to tell, or it is time to read again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SHARE_S):
                await self._is_wanted.wait()

    async def exchange(self, client: ClientTransport) -> tuple[bool, list[Event]]:
        """Tell brokers and read them; returns whether something is another now, and what has ended."""
        self._is_wanted.clear()
        state = OperatorState(client)
        now_s = self._clock.monotonic_s()
        if now_s >= self._forbidden_until_s:
            try:
                await self._send(state)
            except (IotmqError, ConnectionError) as error:
                logger.debug("words on alarms are not told to others now: %s", error)
                if is_forbidden(error):
                    self._forbidden_until_s = now_s + FORBIDDEN_S
        return self._take(dict(await state.read(_FILTER, most=_READ_MAX)))

    async def _send(self, state: OperatorState) -> None:
        for topic, said in list(self._unsent.items()):
            expires_ms = max(1, said.until_ms - self._book.now_ms) if said.until_ms else 0
            await state.put(topic, said.body, expires_ms=expires_ms)
            self._sent_s[topic] = self._clock.monotonic_s()
            if self._unsent.get(topic) is said:
                del self._unsent[topic]

    def _say(self, prefix: str, name: str, body: bytes, until_ms: int) -> None:
        self._unsent[state_topic(prefix, name)] = _Said(body, until_ms)
        if len(self._unsent) > _READ_MAX:
            del self._unsent[next(iter(self._unsent))]
        self._is_wanted.set()

    def _take(self, found: Mapping[str, bytes]) -> tuple[bool, list[Event]]:
        fresh_s = self._clock.monotonic_s() - _FRESH_S
        self._sent_s = {topic: sent_s for topic, sent_s in self._sent_s.items() if sent_s > fresh_s}
        own = self._unsent.keys() | self._sent_s.keys()
        others = {topic: body for topic, body in found.items() if topic not in own}
        silences = [
            silence
            for name, silence in _words(others, _SILENCES, Silence)
            if silence.name == name and silence.until_ms > self._book.now_ms
        ]
        is_changed = self._book.take_silences(silences, lambda name: state_topic(_SILENCES, name) in own)
        for identity, word in _words(others, _ACKNOWLEDGEMENTS, Acknowledgement):
            is_changed |= self._book.take_acknowledgement(identity, word)
        events = [
            event
            for identity, word in _words(others, _ENDS, Acknowledgement)
            if (event := self._book.take_end(identity, word)) is not None
        ]
        return is_changed or bool(events), events


def _words(found: Mapping[str, bytes], prefix: str, form: type[_Word]) -> list[tuple[str, _Word]]:
    """Return names and words; what is none was written by hand into the topic, and nobody goes by it."""
    words: list[tuple[str, _Word]] = []
    for topic, body in found.items():
        if topic.startswith(prefix):
            with suppress(ValueError, RecursionError):
                words.append((name_of_topic(prefix, topic), msgspec.json.decode(body, type=form)))
    return words
