"""A place in the authentication chain: one link, and all that holds for links of every kind.

It says about which devices the link is asked, gives questions their turns and their time, remembers answers,
and makes of a link that fails, is late or lies a no. `remembered` and `keep` are for the thread of the front
end, `ask` for the loop of the chain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from iotmq.clock import Clock
from iotmq.credentials.pace import Pace
from iotmq.credentials.service_client import ServiceFailedError
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt.reason_codes import SERVER_BUSY, SERVER_UNAVAILABLE
from iotmq.mqtt_front.access.answers import Answer, Answers, digest
from iotmq.mqtt_front.access.exchanges import Exchange
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.links.link import Link, told_everything
from iotmq.mqtt_front.access.verdicts import Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.patterns import compile_pattern
from iotmq.mqtt_front.settings.links import LinkSettings
from iotmq.supervised import supervise

_log: Final = logging.getLogger("iotmq.mqtt")

OUTCOMES: Final = ("accepted", "denied", "not_mine", "remembered", "failed", "late", "busy")
_LEVELS: Final = {"3.1": 3, "3.1.1": 4, "5": 5}


class ChainLink:
    """One link of the settings; the chains of several listeners may have it."""

    def __init__(self, settings: LinkSettings, link: Link, clock: Clock, *, how: str) -> None:
        """`how` is what metrics call devices that it accepts. ConfigError for settings that are no use."""
        self.settings = settings
        self.link = link
        self.how = how
        self._clock = clock
        self._exchange: Callable[[str], Exchange | None] | None = getattr(link, "exchange", None)
        self._told: Callable[[Credentials], bytes | None] = getattr(link, "told", told_everything)
        try:
            self._pattern = compile_pattern(settings.when_user) if settings.when_user else None
        except ValueError as error:
            raise ConfigError(f"link {settings.name}: when_user = {settings.when_user!r}: {error}") from None
        self._levels = frozenset(_LEVELS[version] for version in settings.when_protocols)
        self._accepted = Answers(settings.cached_max)
        self._others = Answers(settings.cached_max)
        self._pace = Pace(
            at_once_max=settings.at_once_max,
            per_s_max=settings.questions_per_s_max,
            waiting_max=settings.waiting_max,
        )
        # All keys from the beginning: the threads that count and that read are two.
        self._outcomes = dict.fromkeys(OUTCOMES, 0)
        # Set on the loop of the chain once the link has started.
        self._started: asyncio.Event | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    # On the loop of the chain

    def start(self) -> None:
        """Start the link, again and again until that succeeds."""
        self._started = asyncio.Event()
        self._starting = supervise(f"start of link {self.name}", self._start)

    async def _start(self) -> None:
        assert self._started is not None, "start() sets it"
        await self.link.start()
        self._started.set()

    async def close(self) -> None:
        """Stop the link."""
        self._pace.close()
        if self._starting is not None:
            self._starting.cancel()
        await self.link.close()

    async def ask(self, asked: Credentials, is_wanted: Callable[[], bool]) -> Answer | None:
        """Return the link's answer, or a no where it gives none. None when the device has gone meanwhile."""
        settings = self.settings
        try:
            if not await self._pace.turn(is_wanted, wait_s=settings.wait_s):
                return None
        except TimeoutError:
            self._outcomes["busy"] += 1
            detail = f"link {self.name} has no turn within wait_s or waiting_max of it"
            return Denied(SERVER_BUSY, "busy", detail, cache_s=0.0)
        try:
            async with asyncio.timeout(settings.timeout_s):
                if self._started is None or not self._started.is_set():
                    await self._has_started()
                answer = await self.link.decide(asked)
        except TimeoutError:
            return self._failed("late", f"no answer within timeout_s = {settings.timeout_s}")
        except ServiceFailedError as error:
            return self._failed("failed", str(error))
        except Exception as error:
            _log.exception("a link of the authentication chain broke", extra={"link": self.name})
            return self._failed("failed", f"{type(error).__name__}: {error}")
        finally:
            self._pace.done()
        return self._checked(answer)

    async def _has_started(self) -> None:
        assert self._started is not None, "questions come behind the start"
        await self._started.wait()

    def _checked(self, answer: object) -> Answer:
        """Return the answer if it is one."""
        if isinstance(answer, Accepted) and isinstance(answer.identity, Identity):
            self._outcomes["accepted"] += 1
            return answer
        if isinstance(answer, Denied):
            self._outcomes["denied"] += 1
            return answer
        if isinstance(answer, NotMine):
            self._outcomes["not_mine"] += 1
            return answer
        return self._failed("failed", f"its answer is {type(answer).__name__}")

    def _failed(self, outcome: str, detail: str) -> Denied:
        self._outcomes[outcome] += 1
        # The log itself stops floods.
        _log.warning(
            "a link of the authentication chain gives no answer, so devices are denied",
            extra={"link": self.name, "outcome": outcome, "detail": detail},
        )
        return Denied(SERVER_UNAVAILABLE, outcome, f"link {self.name}: {detail}", cache_s=0.0)

    # On the thread of the front end

    def is_asked_about(self, asked: Credentials) -> bool:
        """Return whether the link is for such devices; on any thread."""
        settings = self.settings
        if settings.when_certificate is not None and settings.when_certificate != (
            asked.certificate is not None or asked.certificate_identity is not None
        ):
            return False
        if self._levels and asked.protocol_level not in self._levels:
            return False
        if self._pattern is None:
            return True
        return asked.user_name is not None and self._pattern.fullmatch(asked.user_name) is not None

    def key_of(self, asked: Credentials) -> bytes | None:
        """Return what stands for the question; None when its answer is not remembered. On any thread."""
        if not self.settings.cached_max:
            return None
        told = self._told(asked)
        return None if told is None else digest(told)

    def remembered(self, key: bytes) -> Answer | None:
        """Return what the link has answered to the same; on any thread."""
        now_s = self._clock.monotonic_s()
        return self._accepted.find(key, now_s) or self._others.find(key, now_s)

    def exchange(self, method: str) -> Exchange | None:
        """Begin an exchange of MQTT 5; None when the link does not know the method."""
        return None if self._exchange is None else self._exchange(method)

    def count_remembered(self) -> None:
        """An answer that was remembered was used."""
        self._outcomes["remembered"] += 1

    def keep(self, key: bytes, answer: Answer) -> None:
        """Remember an answer for as long as it says, or the settings."""
        now_s = self._clock.monotonic_s()
        if isinstance(answer, Accepted):
            kept_s = self.settings.cache_s if answer.cache_s is None else answer.cache_s
            expires_at_s = answer.identity.expires_at_s
            if expires_at_s is not None:
                kept_s = min(kept_s, expires_at_s - self._clock.now_ms() / 1000)
            if kept_s > 0:
                self._accepted.keep(key, answer, now_s + kept_s)
            return
        kept_s = self.settings.refusal_cache_s if answer.cache_s is None else answer.cache_s
        if kept_s > 0:
            self._others.keep(key, answer, now_s + kept_s)

    def metrics(self) -> Iterable[Metric]:
        """Report the samples of the place; those of the link itself are its own."""
        labels = (("link", self.name),)
        yield from samples_by(
            "outcome",
            "iotmq_mqtt_link_answers_total",
            "Answers of a link of the authentication chain, by what they were.",
            self._outcomes,
            labels=labels,
        )
        yield from samples(
            (
                "iotmq_mqtt_link_waiting",
                "Devices that wait for their turn at a link of the authentication chain.",
                self._pace.waiting_count,
            ),
            (
                "iotmq_mqtt_link_under_way",
                "Questions to a link of the authentication chain that have no answer yet.",
                self._pace.under_way_count,
            ),
            (
                "iotmq_mqtt_link_remembered",
                "Answers of a link of the authentication chain that are remembered.",
                len(self._accepted) + len(self._others),
            ),
            (
                "iotmq_mqtt_link_remembered_bytes",
                "About how many bytes these take.",
                self._accepted.size + self._others.size,
            ),
            labels=labels,
        )
        yield from self.link.metrics()
