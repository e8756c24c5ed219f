"""Ask others what a device may, such as plug-ins: at most so many questions at one time, each for so long.

A `Decider` that says None has no opinion, and the next one is asked; without any opinion the rules decide.
One that fails or is late says no.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from iotmq import limits
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.permissions.decisions import EVERYTHING_FITS, Policy, Rooms, nothing_by
from iotmq.mqtt_front.permissions.rule import PUBLISH, Decision, Use
from iotmq.mqtt_front.permissions.topic_template import Subject
from iotmq.supervised import surviving

_log: Final = logging.getLogger("iotmq.mqtt")


class Decider(Protocol):
    """Decides about topics in its own time, on the front end's loop."""

    @property
    def name(self) -> str:
        """Return the name that log lines and refusals have."""

    async def may(self, identity: Identity | None, client_id: str, action: str, topic: str) -> bool | None:
        """Whether a device may "publish" to a topic, or "subscribe" a filter; None: no opinion."""


class Answer:
    """Hold what deciders said, and the name of the one that did; None: they have no opinion."""

    __slots__ = ("is_allowed", "name")

    def __init__(self, is_allowed: bool | None, name: str) -> None:
        self.is_allowed = is_allowed
        self.name = name


class AskedPolicy:
    """The policy of a connection where others are asked first; it knows the answers it was told."""

    __slots__ = ("_answers", "rules")

    def __init__(self, rules: Policy) -> None:
        self.rules = rules
        self._answers: dict[tuple[int, str], Answer] = {}

    def is_known(self, action: int, topic: str) -> bool:
        return (action, topic) in self._answers

    def tell(self, action: int, topic: str, answer: Answer) -> None:
        """Remember an answer; a few are."""
        if len(self._answers) >= limits.MQTT_PERMISSION_ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers[action, topic] = answer

    def rooms(self, topic: str, *, is_delayed: bool) -> Rooms:
        answer = self._answers[PUBLISH, topic]
        if answer.is_allowed is None:
            return self.rules.rooms(topic, is_delayed=is_delayed)
        if answer.is_allowed:
            return EVERYTHING_FITS
        return nothing_by(answer.name)

    def may_publish(self, topic: str, use: Use) -> Decision:
        answer = self._answers[PUBLISH, topic]
        if answer.is_allowed is None:
            return self.rules.may_publish(topic, use)
        return Decision(answer.is_allowed, answer.name)

    def may_subscribe(self, topic_filter: str, use: Use) -> Decision:
        answer = self._answers[use.action, topic_filter]
        if answer.is_allowed is None:
            return self.rules.may_subscribe(topic_filter, use)
        return Decision(answer.is_allowed, answer.name)


class Questions:
    """The questions of one front end to its deciders."""

    def __init__(
        self, deciders: Sequence[Decider], loop: asyncio.AbstractEventLoop, *, timeout_s: float
    ) -> None:
        self._deciders = tuple(deciders)
        self._loop = loop
        self._timeout_s = timeout_s
        self._running: set[asyncio.Task[None]] = set()
        self.asked_count = 0
        self.refused_count = 0
        self.failed_count = 0

    def __bool__(self) -> bool:
        return bool(self._deciders)

    def ask(self, subject: Subject, action: str, topic: str, done: Callable[[Answer], None]) -> None:
        """Have `done` called with the answer, in a later turn of the loop."""
        if len(self._running) >= limits.MQTT_PERMISSION_QUESTIONS_MAX:
            self.refused_count += 1
            self._loop.call_soon(self._tell, done, Answer(False, "too many questions"))
            return
        self.asked_count += 1
        task = self._loop.create_task(self._ask(subject, action, topic, done))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def close(self) -> None:
        """Stop: nobody needs an answer any more."""
        for task in self._running:
            task.cancel()

    async def _ask(self, subject: Subject, action: str, topic: str, done: Callable[[Answer], None]) -> None:
        answer = Answer(None, "")
        for decider in self._deciders:
            try:
                async with asyncio.timeout(self._timeout_s):
                    is_allowed = await decider.may(subject.identity, subject.client_id, action, topic)
            except Exception as error:  # whatever a plug-in raises is a no
                self.failed_count += 1
                _log.warning(
                    "a plug-in does not decide, which is a no",
                    extra={"plugin": decider.name, "topic": topic, "error": repr(error)},
                )
                is_allowed = False
            if is_allowed is not None:
                answer = Answer(is_allowed is True, decider.name)
                break
        self._tell(done, answer)

    @staticmethod
    def _tell(done: Callable[[Answer], None], answer: Answer) -> None:
        with surviving("answers of plug-ins"):
            done(answer)

    def metrics(self) -> Iterable[Metric]:
        if self._deciders:
            yield from samples(
                (
                    "iotmq_mqtt_permission_questions_total",
                    "Topics that plug-ins were asked about.",
                    self.asked_count,
                ),
                (
                    "iotmq_mqtt_permission_questions_refused_total",
                    "Topics refused because too many questions were under way.",
                    self.refused_count,
                ),
                (
                    "iotmq_mqtt_permission_questions_failed_total",
                    "Questions that a plug-in failed to answer, or not in time.",
                    self.failed_count,
                ),
            )
